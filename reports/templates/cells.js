// The cells as a list, for a narrow screen, for reading aloud, and for those that are no pair.
const LISTED = 200;

const cellsView = (view, route) => {
  let limit = LISTED;
  const list = h("ul", { class: "entries card" });
  const more = h("button", { type: "button", class: "quiet" }, "");
  let filters = readFilters(route.params);
  const update = (next) => {
    filters = next;
    const found = ENTRIES.filter((entry) => passes(entry, filters));
    found.sort((a, b) => depth(b.deepest) - depth(a.deepest) || RANK.indexOf(a.status) - RANK.indexOf(b.status));
    show(list, found.slice(0, limit).map((entry) => entryRow(entry)),
      found.length ? null : h("li", { class: "none" }, "No cell passes the filter."));
    more.hidden = found.length <= limit;
    more.textContent = `Show ${found.length - limit} more`;
  };
  more.addEventListener("click", () => {
    limit = Infinity;
    update(filters);
  });
  show(view, h("h1", { class: "sr", tabindex: -1 }, "Cells"), list, h("p", {}, more));
  update(filters);
  return { update };
};
