// The address decides what is shown; the fields of the filter write themselves into it.
const missing = (view, noun, name) => {
  show(view, h("section", { class: "card" }, h("h1", { tabindex: -1 }, `No such ${noun}`), h("p", {}, `This report knows no ${noun} `, h("code", {}, name), ". It may be of another run."), h("p", {}, h("a", { href: "#/" }, "To the matrix"))));
};

// The benches come as markup, with their plots, and lie in a template.
const benchesView = (view) => {
  const made = byId("section-benches");
  show(view, h("header", { class: "title" }, h("h1", { tabindex: -1 }, "Benches")),
    made ? h("div", { class: "card benches" }, h("h2", {}, "Comparisons"), made.content.cloneNode(true)) : card("Nothing was measured", "", h("p", {}, "No bench is recorded in this report. What would be run, how long it takes and what it could show:"), command("python -m bench plan", "plan benches")));
};

const VIEWS = {
  matrix: { title: "Matrix", draw: matrixView, filters: true },
  cells: { title: "Cells", draw: cellsView, filters: true },
  cell: { draw: cellView, of: "matrix" },
  install: { title: "Install", draw: installView },
  failures: { title: "Known failures", draw: failuresView },
  failure: { draw: failureView, of: "failures" },
  benches: { title: "Benches", draw: benchesView },
};
if (RUN.gpu) VIEWS.machines = { title: "GPUs", draw: machinesView };
if (RUN.sections.claims) VIEWS.claims = { title: "Claims", draw: claimsView };
if (RUN.sections.nightly) VIEWS.nightly = { title: "Nightly", draw: nightlyView };

let current = { view: "", handle: null };
const fields = { q: byId("filter"), tier: byId("tier"), machine: byId("machine"), group: byId("group") };
const tallies = [...document.querySelectorAll(".tally")];

const tellCount = (filters) => {
  const found = ENTRIES.filter((entry) => passes(entry, filters));
  const planned = found.filter((entry) => !entry.pair).length;
  const pairs = RUN.lattice.length ? `, ${found.length - planned} of ${RUN.lattice.length} pairs` : "";
  byId("peek").textContent = "";
  byId("shown").textContent = `${planned} of ${counted(RUN.cells.length, "cell")}${pairs}`;
  byId("clear").hidden = !FILTERS.some((key) => readRoute().params.get(key));
};

const syncFields = (params) => {
  for (const [key, field] of Object.entries(fields)) {
    const value = params.get(key) || "";
    if (field !== document.activeElement || field.value.trim() !== value) field.value = value;
    // An option that is not there, as of another run: shown as what it is, nothing chosen.
    if (field.value !== value && field.tagName === "SELECT") field.value = "";
  }
  const chosen = new Set((params.get("status") || "").split(",").filter(Boolean));
  for (const tally of tallies) tally.setAttribute("aria-pressed", String(chosen.has(tally.dataset.status)));
};

const refine = (change) => {
  const { view, id, params } = readRoute();
  const target = VIEWS[view] && VIEWS[view].filters ? view : "matrix";
  const more = {};
  for (const [key, value] of params) if (!FILTERS.includes(key)) more[key] = value;
  history.replaceState(null, "", address(target, target === view ? id : "", { ...more, ...change }));
  const now = readRoute().params;
  syncFields(now);
  const filters = readFilters(now);
  if (current.handle) current.handle.update(filters);
  tellCount(filters);
  drawNav(target);
};

const drawNav = (view) => {
  const shown = VIEWS[view] && VIEWS[view].of ? VIEWS[view].of : view;
  show(byId("nav"), Object.entries(VIEWS).filter(([, item]) => item.title).map(([name, item]) =>
    h("a", { href: address(name), "aria-current": name === shown ? "page" : null }, item.title)));
};

const draw = (focus) => {
  const route = readRoute();
  const view = VIEWS[route.view] ? route.view : "matrix";
  const filters = readFilters(route.params);
  drawNav(view);
  byId("head").hidden = !VIEWS[view].filters;
  byId("tools").hidden = !VIEWS[view].filters;
  syncFields(route.params);
  const handle = VIEWS[view].draw(byId("view"), { ...route, view }) || null;
  current = { view, handle };
  if (VIEWS[view].filters) tellCount(filters);
  document.body.dataset.view = view;
  document.title = [route.id, VIEWS[view].title, "verl-matrix"].filter(Boolean).join(" · ");
  if (focus) {
    window.scrollTo(0, 0);
    const heading = byId("view").querySelector("h1");
    (heading || byId("main")).focus({ preventScroll: true });
  }
};

let waiting = 0;
fields.q.addEventListener("input", () => {
  clearTimeout(waiting);
  waiting = setTimeout(() => refine({ q: fields.q.value.trim() }), 60);
});
for (const key of ["tier", "machine", "group"]) fields[key].addEventListener("change", () => refine({ [key]: fields[key].value }));
for (const tally of tallies) {
  tally.addEventListener("click", () => {
    const chosen = new Set((readRoute().params.get("status") || "").split(",").filter(Boolean));
    if (!chosen.delete(tally.dataset.status)) chosen.add(tally.dataset.status);
    refine({ status: [...chosen].join(",") });
  });
}
byId("clear").addEventListener("click", () => {
  refine(Object.fromEntries(FILTERS.map((key) => [key, ""])));
  fields.q.focus();
});
byId("tools").addEventListener("submit", (event) => event.preventDefault());
byId("skip").addEventListener("click", (event) => {
  event.preventDefault();
  byId("main").focus();
});
document.addEventListener("keydown", (event) => {
  const typing = event.target.matches && event.target.matches("input, select, textarea");
  if (event.key === "/" && !typing && !byId("tools").hidden && !event.ctrlKey && !event.metaKey) {
    event.preventDefault();
    fields.q.focus();
  } else if (event.key === "Escape" && event.target === fields.q && fields.q.value) {
    fields.q.value = "";
    refine({ q: "" });
  }
});
window.addEventListener("hashchange", () => draw(true));
draw(false);
requestAnimationFrame(() => setTimeout(() => performance.mark("first-view"), 0));
