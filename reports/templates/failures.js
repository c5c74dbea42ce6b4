// Known failures: the list, and a page a record.
const STANDINGS = { reproduced: "broken", refuted: "conflict", unsettled: "degraded", absent: "untested" };
const standing = (word) => h("span", { class: `badge s-${STANDINGS[word] || "untested"}` }, word);

const range = (ranges) => Object.entries(ranges).map(([name, wanted]) => `${name} ${wanted}`);

const failuresView = (view, route) => {
  const words = (route.params.get("f") || "").toLowerCase();
  const list = h("tbody", {});
  const count = h("small", {});
  const fill = (text) => {
    const wanted = text.toLowerCase().split(/\s+/).filter(Boolean);
    const found = RUN.failures.filter((item) => {
      const all = [item.id, item.title, item.family, item.standing, item.testable, item.severity, item.cause, ...range(item.affects)].join(" ").toLowerCase();
      return wanted.every((word) => all.includes(word));
    });
    count.textContent = `${found.length} of ${counted(RUN.failures.length, "record")}`;
    show(list, found.map((item) => h("tr", {},
      h("td", {}, h("a", { class: "mono", href: address("failure", item.id) }, breakable(item.id)), h("span", { class: "sub" }, item.title)),
      h("td", {}, range(item.affects).map((line) => h("span", { class: "sub ink mono" }, line))),
      h("td", { class: "word" }, item.family), h("td", { class: "word" }, item.severity), h("td", { class: "word" }, item.testable),
      h("td", {}, standing(item.standing)))));
  };
  const input = h("input", { type: "search", placeholder: "Filter: package, family, word …", "aria-label": "Filter known failures", value: words, oninput: () => {
    history.replaceState(null, "", address("failures", "", { f: input.value }));
    fill(input.value);
  } });
  show(view, h("header", { class: "title" }, h("h1", { tabindex: -1 }, "Known failures ", count)),
    h("div", { class: "fields" }, input),
    h("div", { class: "card scroll", tabindex: 0, role: "region", "aria-label": "Known failures" }, h("table", { class: "list" },
      h("thead", {}, h("tr", {}, ["record", "affects (all of)", "family", "severity", "seen at", "standing"].map((head) => h("th", { scope: "col" }, head)))), list)));
  fill(words);
};

const row = (name, ...values) => (flat(values).length ? h("div", {}, h("dt", {}, name), h("dd", {}, values)) : null);

const failureView = (view, route) => {
  const item = FAILURES.get(route.id);
  if (!item) return missing(view, "known failure", route.id);
  const cells = ENTRIES.filter((entry) => entry.known.includes(item.id));
  const print = item.fingerprint;
  return show(view,
    h("header", { class: "title" }, h("p", { class: "crumb" }, h("a", { href: address("failures") }, "known failures"), ` / ${item.family}`),
      h("h1", { tabindex: -1 }, item.title), h("p", {}, standing(item.standing), " ", h("span", { class: "mono" }, item.id))),
    h("div", { class: "cols even" }, card("Affects", "all of these together", pins("Affected ranges", range(item.affects)),
      item.needs ? h("p", {}, `Needs: ${item.needs}.`) : item.default_path ? h("p", {}, "Any run meets it.") : null,
      Object.keys(item.mended).length ? [h("p", { class: "soft" }, "Mended where any of these holds:"), pins("Mended ranges", range(item.mended))] : null),
    card("Way out", "", h("ul", { class: "plain" }, item.way_out.map((step) => h("li", {}, step))))),
    card("What happens", "", h("p", {}, item.cause), h("dl", { class: "facts" },
      row("effect", WORDS.effects[item.effect]), row("feature", item.feature), row("exception", print.exception),
      row("message", print.pattern ? code(print.pattern) : null), row("place", print.place ? code(print.place) : null),
      row("seen by", print.observable), row("severity", item.severity), row("known by", item.confidence), row("least it takes", item.testable),
      row("probe", item.probe ? code(item.probe) : item.unprobed), row("last compared", item.checked)),
    print.example ? h("pre", { class: "example", tabindex: 0, "aria-label": "An example of its message" }, print.example) : null,
    item.note ? h("p", { class: "soft" }, item.note) : null),
    card("Where it was seen", "", h("p", {}, item.told),
      item.seen.length ? table("Where it was seen", ["cell", "tier", "when, on what", "what was seen"], item.seen.map((seen) =>
        h("tr", {}, h("td", {}, BY_NAME.has(seen.cell) ? cellLink(seen.cell) : breakable(seen.cell)), h("td", { class: "word" }, seen.tier),
          h("td", {}, seen.at, h("span", { class: "sub" }, `${seen.machine}${seen.shipped ? "; shipped evidence" : ""}`)), h("td", {}, breakable(seen.reason))))) : null),
    cells.length ? card("Cells with these versions", counted(cells.length, "cell"), h("ul", { class: "entries" }, cells.map((entry) => entryRow(entry)))) : null,
    card("Sources", "", h("ul", { class: "plain" }, item.sources.map((text) => h("li", {}, source(text))))));
};
