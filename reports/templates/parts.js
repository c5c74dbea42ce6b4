// Parts that several views show: a verdict, the axes of a cell, how deep it was tried.
const DATA = unpack(JSON.parse(byId("data").textContent));
const RUN = DATA.root;
const WORDS = RUN.words;

const ENTRIES = RUN.cells.map((cell, index) => Object.assign(Object.create(null), cell, { full: () => DATA.lazy(index) }));
for (const pair of RUN.lattice) {
  ENTRIES.push({
    cell: pair.cell, status: pair.status, resolvable: pair.resolvable, works: pair.works, deepest: pair.deepest || "",
    axes: { verl: pair.verl, vllm: pair.vllm }, variants: {}, extras: {}, added: [], open: [], features: pair.features,
    groups: [], known: [], requirements: [], differs: [], machines: ["by reading"], gpus: [], marks: [], proven: "",
    reason: pair.resolvable === "ok" ? pair.surface_reason : pair.resolve_reason, pair,
  });
}
const BY_NAME = new Map(ENTRIES.map((entry) => [entry.cell, entry]));
const FAILURES = new Map(RUN.failures.map((failure) => [failure.id, failure]));

const badge = (status) =>
  h("span", { class: `badge s-${status}` }, h("span", { class: "mark", "aria-hidden": "true" }, WORDS.statuses[status].mark), status);

const outcome = (word) =>
  h("span", { class: `tone o-${word}` }, h("span", { class: "mark", "aria-hidden": "true" }, WORDS.outcomes[word].mark), word);

const pinned = (entry, axis) => {
  const name = entry.variants[axis] ? `${axis}-${entry.variants[axis]}` : axis;
  return `${name}${entry.extras[axis] ? `[${entry.extras[axis].join(",")}]` : ""}`;
};

// The axes of a cell but for those that are plain from where it stands.
const axes = (entry, skip = []) => {
  const shown = Object.keys(entry.axes).filter((axis) => !skip.includes(axis) || entry.variants[axis] || entry.extras[axis]);
  return h("span", { class: "axes" },
    shown.map((axis) => h("span", {}, `${pinned(entry, axis)} `, h("b", {}, entry.axes[axis]))),
    [...entry.open.map((text) => `${text} (open)`), ...entry.added].map((text) => h("span", {}, text)),
    entry.differs.map((text) => h("span", { class: "differs" }, text)));
};

const strip = (entry) =>
  h("span", { class: "strip", role: "list", "aria-label": "Tiers" }, entry.marks.map((mark) => {
    const line = mark.line || `${mark.tier}: not tried`;
    const kind = mark.outcome ? `o-${mark.outcome}${mark.shipped ? " by" : ""}` : "off";
    return h("span", { class: `t ${kind}`, role: "listitem", title: line },
      h("span", { "aria-hidden": "true" }, mark.tier[0]), h("span", { class: "sr" }, line));
  }));

const howDeep = (entry) => {
  if (entry.pair) return "by reading";
  if (!entry.deepest) return "not tried";
  const mark = entry.marks.find((item) => item.tier === entry.deepest);
  return mark.shipped ? `${entry.deepest}, not here` : entry.deepest;
};

const entryRow = (entry, skip = []) =>
  h("li", { class: `entry s-${entry.status}` },
    badge(entry.status),
    h("div", { class: "what" },
      h("a", { class: "mono name", href: address("cell", entry.cell) }, breakable(entry.cell)),
      axes(entry, skip),
      entry.pair ? h("span", { class: "soft" }, `the bare pair, by reading; ${entry.pair.at}`) : null,
      entry.reason ? h("p", { class: "why" }, entry.reason) : null),
    entry.marks.length ? strip(entry) : null);

const source = (text) =>
  /^https?:\/\/\S+$/.test(text) ? h("a", { href: text, rel: "noreferrer noopener", target: "_blank" }, breakable(text)) : h("span", {}, breakable(text));

const card = (title, small, ...kids) =>
  h("section", { class: "card" }, h("h2", {}, title, small ? h("small", {}, small) : null), kids);

const pins = (label, items) => h("ul", { class: "pins", "aria-label": label }, items.map((item) => h("li", {}, item)));

const details = (title, ...kids) => h("details", { class: "more" }, h("summary", {}, title), kids);
