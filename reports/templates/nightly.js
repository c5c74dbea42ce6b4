// A night: what changed since the one before, with its cause.
const SHIFTS = [
  ["new failure", "New failures", "broken", false], ["flaky", "Flaky", "degraded", false], ["fixed", "Fixed", "works", false],
  ["not run", "Not run", "untested", true], ["still failing", "Still failing", "conflict", true],
];
const minute = (text) => `${String(text).slice(0, 16).replace("T", " ")} UTC`;
const byKind = (counts, kind) => counts[kind] ?? counts[kind.replace(" ", "-")] ?? 0;
const isKind = (shift, kind) => shift.kind === kind || shift.kind === kind.replace(" ", "-");

const shiftRow = (shift) => {
  const lines = shift.turns.length ? shift.turns.map((turn) => turn.line) : shift.why;
  const status = shift.before && shift.before !== shift.now ? [badge(shift.before), " → ", badge(shift.now)] : badge(shift.now);
  return h("tr", {},
    h("td", {}, BY_NAME.has(shift.cell) ? cellLink(shift.cell) : code(shift.name)), h("td", {}, status),
    h("td", {}, lines.map((line) => h("p", {}, breakable(line))),
      shift.cause ? h("p", {}, h("b", {}, "cause: "), shift.cause.line) : null,
      shift.boundary ? h("p", {}, h("b", {}, "first bad: "), shift.boundary) : null, shift.retry ? h("p", { class: "soft" }, shift.retry) : null));
};

const nightlyView = (view) => {
  const data = RUN.sections.nightly;
  const { history } = data;
  show(view,
    h("header", { class: "title" }, h("h1", { tabindex: -1 }, data.title), h("p", { class: "lead" }, data.denominator, data.before_at ? `; compared with the night of ${minute(data.before_at)}` : ""),
      data.notes.map((note) => h("p", { class: "note" }, note))),
    h("ul", { class: "counts", "aria-label": "What changed" }, SHIFTS.map(([kind, title, status]) =>
      h("li", { class: `s-${status}` }, h("b", {}, byKind(data.changed, kind)), h("span", {}, title.toLowerCase())))),
    SHIFTS.map(([kind, title, , folded]) => {
      const found = data.shifts.filter((shift) => isKind(shift, kind));
      if (!found.length) return null;
      const rows = table(title, ["cell", "verdict", "what"], found.map(shiftRow));
      return card(title, found.length, folded ? details("show them", rows) : rows);
    }),
    data.releases.length ? card("Releases", counted(data.releases.length, "change"), h("ul", { class: "plain" }, data.releases.map((line) => h("li", {}, line)))) : null,
    data.dropped.length ? card("No longer planned", counted(data.dropped.length, "cell"), h("p", { class: "soft" }, breakable(data.dropped.join(", ")))) : null,
    history.length > 1 ? card("Nights", history.length, table("Nights", ["night", ...SHIFTS.map(([, title]) => title.toLowerCase()), "ran", "planned"], history.map((night) =>
      h("tr", {}, h("td", { class: "word" }, minute(night.at)), SHIFTS.map(([kind]) => h("td", {}, String(byKind(night.changed, kind)))),
        h("td", {}, String(night.counts.ran ?? "")), h("td", {}, String(night.counts.planned ?? "")))))) : null);
};
