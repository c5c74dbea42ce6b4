(() => {
  "use strict";
  const data = JSON.parse(document.getElementById("data").textContent);
  const table = document.querySelector("table.heat");
  const cells = [...table.querySelectorAll("td[data-n]")];
  const columns = [...table.querySelectorAll("thead th")];
  const tallies = [...document.querySelectorAll(".tally")];
  const told = document.getElementById("told");
  const shown = document.getElementById("shown");
  let here = null;

  const line = (list, word, text, outcome) => {
    if (!text) return;
    const term = document.createElement("dt");
    const what = document.createElement("dd");
    term.textContent = word;
    what.textContent = text;
    if (outcome) {
      const mark = document.createElement("b");
      mark.className = `tone o-${outcome}`;
      mark.textContent = outcome;
      what.replaceChildren(mark, text === outcome ? "" : `  ${text}`);
    }
    list.append(term, what);
  };

  const tell = (cell) => {
    if (here) {
      here.classList.remove("at");
      here.parentElement.classList.remove("here");
      columns[here.cellIndex].classList.remove("here");
    }
    here = cell;
    cell.classList.add("at");
    cell.parentElement.classList.add("here");
    columns[cell.cellIndex].classList.add("here");
    const [x, y, status, resolvable, works, resolved, surface, features, at, deepest] = data.cells[Number(cell.dataset.n)];
    const head = document.createElement("h2");
    const badge = document.createElement("span");
    badge.className = `badge s-${status}`;
    badge.textContent = `${data.marks[status]} ${status}`;
    const more = document.createElement("small");
    more.textContent = `tried down to ${deepest || "no tier"}${at ? `, ${at}` : ""}`;
    head.append(`${data.x} ${x}, ${data.y} ${y}`, badge, more);
    const list = document.createElement("dl");
    line(list, "resolves", data.texts[resolved] || resolvable, resolvable);
    line(list, "works", data.texts[surface] || works, works);
    line(list, "features", data.texts[features]);
    told.replaceChildren(head, list);
  };

  const apply = () => {
    const on = new Set(tallies.filter((t) => t.getAttribute("aria-pressed") === "true").map((t) => t.dataset.status));
    let count = 0;
    for (const cell of cells) {
      const is = on.has(cell.dataset.s);
      cell.classList.toggle("off", !is);
      count += is ? 1 : 0;
    }
    shown.textContent = `${count} of ${cells.length} shown`;
  };

  for (const tally of tallies) {
    tally.addEventListener("click", () => {
      const pressed = tally.getAttribute("aria-pressed") === "true";
      const count = tallies.filter((t) => t.getAttribute("aria-pressed") === "true").length;
      for (const other of tallies) {
        if (count === tallies.length) other.setAttribute("aria-pressed", String(other === tally));
        else if (pressed && count === 1) other.setAttribute("aria-pressed", "true");
        else if (other === tally) other.setAttribute("aria-pressed", String(!pressed));
      }
      apply();
    });
  }
  table.addEventListener("pointerover", (event) => {
    const cell = event.target.closest("td[data-n]");
    if (cell) tell(cell);
  });
  table.addEventListener("focusin", (event) => {
    const cell = event.target.closest("td[data-n]");
    if (cell) tell(cell);
  });
  table.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    const from = event.target.closest("td[data-n]");
    if (!step || !from) return;
    let row = from.parentElement.rowIndex;
    let column = from.cellIndex;
    for (;;) {
      row += step[0];
      column += step[1];
      const next = row > 0 && row < table.rows.length && column > 0 ? table.rows[row].cells[column] : null;
      if (!next) break;
      if (next.dataset.n !== undefined) {
        from.tabIndex = -1;
        next.tabIndex = 0;
        next.focus();
        break;
      }
    }
    event.preventDefault();
  });
  apply();
})();
