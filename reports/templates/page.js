(() => {
  "use strict";
  const cells = [...document.querySelectorAll(".cell")];
  const sections = [...document.querySelectorAll(".group")];
  const tallies = [...document.querySelectorAll(".tally")];
  const filter = document.getElementById("filter");
  const group = document.getElementById("group");
  const unfold = document.getElementById("unfold");
  const shown = document.getElementById("shown");
  const none = document.getElementById("none");

  const apply = () => {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const statuses = new Set(tallies.filter((t) => t.getAttribute("aria-pressed") === "true").map((t) => t.dataset.status));
    let count = 0;
    for (const section of sections) {
      const inGroup = !group.value || section.dataset.group === group.value;
      let some = false;
      for (const cell of section.querySelectorAll(".cell")) {
        const on = inGroup && statuses.has(cell.dataset.status) && words.every((word) => cell.dataset.text.includes(word));
        cell.hidden = !on;
        some = some || on;
        count += on ? 1 : 0;
      }
      section.hidden = !some;
    }
    shown.textContent = `${count} of ${cells.length} shown`;
    none.hidden = count > 0;
  };

  const reveal = () => {
    const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (target && target.classList.contains("cell")) {
      target.open = true;
      target.scrollIntoView();
    }
  };

  for (const tally of tallies) {
    tally.addEventListener("click", () => {
      const pressed = tally.getAttribute("aria-pressed") === "true";
      const all = tallies.every((t) => t.getAttribute("aria-pressed") === "true");
      const last = pressed && tallies.filter((t) => t.getAttribute("aria-pressed") === "true").length === 1;
      // The first click on one of five asks for that one alone; a click on the last one asks for all again.
      for (const other of tallies) {
        if (all) other.setAttribute("aria-pressed", String(other === tally));
        else if (last) other.setAttribute("aria-pressed", "true");
        else if (other === tally) other.setAttribute("aria-pressed", String(!pressed));
      }
      apply();
    });
  }
  filter.addEventListener("input", apply);
  group.addEventListener("change", apply);
  unfold.addEventListener("click", () => {
    const open = unfold.getAttribute("aria-expanded") !== "true";
    for (const cell of cells) if (!cell.hidden) cell.open = open;
    unfold.setAttribute("aria-expanded", String(open));
    unfold.textContent = open ? "Close all" : "Open all";
  });
  document.addEventListener("keydown", (event) => {
    const typing = event.target.matches && event.target.matches("input, select");
    if (event.key === "/" && !typing) {
      event.preventDefault();
      filter.focus();
    } else if (event.key === "Escape" && event.target === filter) {
      filter.value = "";
      apply();
    }
  });
  window.addEventListener("hashchange", reveal);
  apply();
  reveal();
})();
