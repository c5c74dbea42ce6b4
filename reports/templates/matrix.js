// The matrix: rows verl, columns vLLM; a square stands for all cells of its pair, the best and the worst of them.
const NONE = "";
const FIRST = 4;
const RANK = ["works", "degraded", "broken", "conflict", "untested"];
const DOTS = { import: 1, behave: 2, gpu: 3, bench: 4 };

const squareKey = (row, column) => `${row}|${column}`;

const bySquare = new Map();
for (const entry of ENTRIES) {
  const key = squareKey(entry.axes.verl || NONE, entry.axes.vllm || NONE);
  if (!bySquare.has(key)) bySquare.set(key, []);
  bySquare.get(key).push(entry);
}
const someWithout = (axis) => ENTRIES.some((entry) => !entry.axes[axis]);
const ROWS = [...RUN.versions.verl, ...(someWithout("verl") ? [NONE] : [])];
const COLUMNS = [...RUN.versions.vllm, ...(someWithout("vllm") ? [NONE] : [])];
const minor = (version) => version.split(".").slice(0, 2).join(".");

// Best and worst of what was tried; what was not tried counts only where nothing was.
const ends = (entries) => {
  const tried = entries.filter((entry) => entry.status !== "untested");
  const ranked = (tried.length ? tried : entries).map((entry) => entry.status).sort((a, b) => RANK.indexOf(a) - RANK.indexOf(b));
  return [ranked[0], ranked[ranked.length - 1]];
};

const deepestOf = (entries) => {
  let best = null;
  for (const entry of entries) if (!best || depth(entry.deepest) > depth(best.deepest)) best = entry;
  return best;
};

const pairName = (row, column) => `${row ? `verl ${row}` : "without verl"}, ${column ? `vLLM ${column}` : "without vLLM"}`;

const squareLabel = (row, column, entries, total) => {
  if (!entries.length) return `${pairName(row, column)}: ${total ? `${counted(total, "cell")}, none of which pass the filter` : "not in the matrix"}`;
  const [best, worst] = ends(entries);
  const told = best === worst ? best : `best ${best}, worst ${worst}`;
  const top = deepestOf(entries);
  return `${pairName(row, column)}: ${told}; ${counted(entries.length, "cell")}; deepest: ${howDeep(top)}`;
};

const half = (status) => h("i", { class: `s-${status}` }, WORDS.statuses[status].mark);

const fillSquare = (square, row, column, filters) => {
  const all = bySquare.get(squareKey(row, column)) || [];
  const entries = all.filter((entry) => passes(entry, filters));
  square.setAttribute("aria-label", squareLabel(row, column, entries, all.length));
  square.className = entries.length ? "has" : all.length ? "gone" : "";
  if (!entries.length) return show(square);
  const [best, worst] = ends(entries);
  const top = deepestOf(entries);
  const dots = DOTS[top.deepest] || 0;
  const elsewhere = dots && !entries.some((entry) => entry.here === top.deepest);
  show(square, half(best), best === worst ? null : half(worst),
    dots ? h("u", { class: `d${dots}${elsewhere ? " by" : ""}` }) : null);
  return undefined;
};

const matrixTable = () => {
  const head = h("tr", {}, h("th", { class: "corner", scope: "col" }, h("span", {}, "vLLM →"), h("span", {}, "verl ↓")),
    COLUMNS.map((column, index) =>
      h("th", { scope: "col", class: index && minor(column) !== minor(COLUMNS[index - 1]) ? "new" : "" }, h("span", {}, column || "(none)"))));
  const rows = ROWS.map((row) => h("tr", {},
    h("th", { scope: "row" }, row || "(none)"),
    COLUMNS.map((column, index) =>
      h("td", { tabindex: -1, role: "gridcell", "data-row": row, "data-column": column,
        class: index && minor(column) !== minor(COLUMNS[index - 1]) ? "new" : "" }))));
  return h("table", { class: "matrix", role: "grid", "aria-label": "Verdicts: rows verl, columns vLLM", "aria-describedby": "matrix-help" },
    h("thead", {}, head), h("tbody", {}, rows));
};

const KEYS = {
  ArrowLeft: (r, c) => [r, c - 1], ArrowRight: (r, c) => [r, c + 1], ArrowUp: (r, c) => [r - 1, c], ArrowDown: (r, c) => [r + 1, c],
  Home: (r) => [r, 0], End: (r) => [r, COLUMNS.length - 1], PageUp: (r, c) => [r - 5, c], PageDown: (r, c) => [r + 5, c],
};
const within = (value, count) => Math.max(0, Math.min(count - 1, value));

// One view of the matrix; `select` is called with the pair that is chosen.
const makeMatrix = (select, peek) => {
  const made = matrixTable();
  const squares = [...made.tBodies[0].rows].map((row) => [...row.cells].slice(1));
  const columns = new Array(COLUMNS.length).fill("").map((_, index) => squares[0] && squares[0][index].classList.contains("new"));
  let active = null;
  const activate = (square, focus) => {
    if (active) active.tabIndex = -1;
    active = square;
    active.tabIndex = 0;
    if (focus) active.focus();
  };
  const place = (square) => [square.parentElement.rowIndex - 1, square.cellIndex - 1];
  const mark = (event, pin) => {
    const square = event.target.closest("td");
    if (square) select(square.dataset.row, square.dataset.column, pin);
    return square;
  };
  made.addEventListener("keydown", (event) => {
    const square = event.target.closest("td");
    if (!square || event.altKey || event.metaKey) return;
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      mark(event, "open");
      return;
    }
    const step = KEYS[event.key];
    if (!step) return;
    event.preventDefault();
    let [row, column] = step(...place(square));
    if (event.ctrlKey && event.key === "Home") row = 0;
    if (event.ctrlKey && event.key === "End") row = ROWS.length - 1;
    activate(squares[within(row, ROWS.length)][within(column, COLUMNS.length)], true);
  });
  made.addEventListener("focusin", (event) => {
    mark(event, "");
    peek(event.target.getAttribute("aria-label") || "");
  });
  made.addEventListener("pointerover", (event) => {
    const square = event.target.closest("td");
    if (square) peek(square.getAttribute("aria-label"));
  });
  made.addEventListener("click", (event) => {
    const square = mark(event, "pin");
    if (square) activate(square, true);
  });
  const fill = (filters) => {
    let count = 0;
    ROWS.forEach((row, r) => COLUMNS.forEach((column, c) => {
      fillSquare(squares[r][c], row, column, filters);
      if (columns[c]) squares[r][c].classList.add("new");
      count += squares[r][c].classList.contains("has") ? 1 : 0;
    }));
    return count;
  };
  const at = (row, column) => (squares[ROWS.indexOf(row)] || [])[COLUMNS.indexOf(column)];
  const start = squares.flat().find((square) => bySquare.has(squareKey(square.dataset.row, square.dataset.column)));
  if (start) activate(start, false);
  const chosen = (row, column) => {
    for (const square of made.querySelectorAll("[aria-selected]")) square.removeAttribute("aria-selected");
    const square = at(row, column);
    if (square) {
      square.setAttribute("aria-selected", "true");
      activate(square, false);
    }
  };
  return { element: made, fill, at, chosen };
};

const KEY_TO_MARKS = () =>
  h("p", { class: "key", id: "matrix-help" },
    Object.entries(WORDS.statuses).map(([status, entry]) =>
      h("span", { title: entry.means }, h("i", { class: `sq s-${status}`, "aria-hidden": "true" }, entry.mark), ` ${entry.name}`)),
    h("span", {}, h("i", { class: "sq two", "aria-hidden": "true" }, half("works"), half("broken")), " best and worst of several cells"),
    h("span", { class: "legend" }, "Deepest tier:",
      [["d1", "import"], ["d2", "behave"], ["d3", "gpu"], ["d4", "bench"]].map(([kind, name]) =>
        h("span", {}, h("i", { class: "sq place", "aria-hidden": "true" }, h("u", { class: kind })), ` ${name}`)),
      h("span", {}, h("i", { class: "sq place", "aria-hidden": "true" }, h("u", { class: "d3 by" })), " dots above: recorded elsewhere, not here"),
      h("span", {}, "no dots: by reading")));

const pairPanel = (row, column, filters) => {
  const all = bySquare.get(squareKey(row, column)) || [];
  const entries = all.filter((entry) => passes(entry, filters));
  const order = (entry) => [-depth(entry.deepest), RANK.indexOf(entry.status)];
  entries.sort((a, b) => order(a)[0] - order(b)[0] || order(a)[1] - order(b)[1] || (a.cell < b.cell ? -1 : 1));
  const name = [row ? `verl ${row}` : "without verl", column ? `vLLM ${column}` : "without vLLM"].join(" × ");
  const left = all.length - entries.length;
  const small = entries.length || left ? `${counted(entries.length, "cell")}${left ? `, ${left} more outside the filter` : ""}` : "";
  const ask = `verl-matrix check ${[row && `verl==${row}`, column && `vllm==${column}`].filter(Boolean).join(" ")}`;
  return [
    h("h2", {}, name, h("small", {}, small)),
    entries.length ? h("ul", { class: "entries" }, entries.slice(0, FIRST).map((entry) => entryRow(entry, ["verl", "vllm"]))) : null,
    entries.length > FIRST ? details(`${entries.length - FIRST} more`, h("ul", { class: "entries" }, entries.slice(FIRST).map((entry) => entryRow(entry, ["verl", "vllm"])))) : null,
    all.length ? null : [h("p", { class: "soft" }, "This pair is not in the matrix. To ask about it:"), command(ask, "ask about this pair")],
  ];
};

const matrixView = (view, route) => {
  const filters = readFilters(route.params);
  const panel = h("section", { class: "card pair", "aria-label": "The pair that is pointed at" });
  let pinnedPair = null;
  let shownPair = "";
  const tell = (row, column) => {
    if (shownPair === squareKey(row, column)) return;
    shownPair = squareKey(row, column);
    show(panel, pairPanel(row, column, current));
  };
  let current = filters;
  const select = (row, column, pin) => {
    if (pin) {
      pinnedPair = [row, column];
      matrix.chosen(row, column);
      const at = `${row},${column}`;
      history.replaceState(null, "", address("matrix", "", { at }));
    }
    if (pin || !pinnedPair) tell(row, column);
    const link = pin === "open" && panel.querySelector("a");
    if (link) link.focus();
  };
  const matrix = makeMatrix(select, (text) => show(byId("peek"), text));
  const frame = h("div", { class: "frame" }, matrix.element);
  show(view, frame, KEY_TO_MARKS(), h("div", { class: "under" }, panel, h("section", { class: "card", id: "box", "aria-label": "What should I install?" }, installBox(route, true))));
  const update = (next) => {
    current = next;
    matrix.fill(next);
    shownPair = "";
    const [row, column] = pinnedPair || first(next);
    tell(row, column);
  };
  const first = (next) => {
    const deep = deepestOf(ENTRIES.filter((entry) => passes(entry, next) && entry.axes.verl && entry.axes.vllm));
    return deep ? [deep.axes.verl, deep.axes.vllm] : [ROWS[0] || NONE, COLUMNS[0] || NONE];
  };
  const at = (route.params.get("at") || "").split(",");
  if (at.length === 2 && bySquare.has(squareKey(...at))) {
    pinnedPair = at;
    matrix.chosen(...at);
  }
  update(filters);
  return { update };
};
