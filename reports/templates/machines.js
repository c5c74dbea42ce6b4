// What was measured on GPUs: thresholds of memory, starts of PPO, the machines themselves.
const machinesView = (view) => {
  const { gpu } = RUN;
  const heads = Object.entries(gpu.heads);
  const where = (item) => [item.at, h("span", { class: "sub" }, `${item.machine}${item.shipped ? "; shipped evidence" : ""}`)];
  show(view,
    h("header", { class: "title" }, h("h1", { tabindex: -1 }, "On GPUs"), h("p", { class: "lead" }, gpu.probes.line)),
    gpu.thresholds.length ? card("Thresholds of memory", "largest value that survives, foretold and measured", table("Thresholds of memory", [...heads.map(([, head]) => head), "when"],
      gpu.thresholds.map((item) => h("tr", {}, heads.map(([name]) => h("td", { title: name === "knob" ? item.key : null }, breakable(item[name]))), h("td", {}, where(item)))))) : null,
    gpu.starts.map((item) => card("Start of a PPO launch", `${item.cell}, ${item.at}${item.shipped ? ", shipped evidence" : ""}`,
      pins("Seconds from the start", Object.entries(item.reached).map(([name, seconds]) => `${name} ${seconds.toFixed(1)} s`)))),
    gpu.machines.map((item) => card(item.machine, `${item.at}${item.shipped ? ", shipped evidence" : ""}; ${item.fingerprint}`,
      h("dl", { class: "facts" }, item.facts.map(([name, value]) => row(name, value))),
      h("p", { class: "soft" }, "Cells: ", item.cells.flatMap((name, index) => [index ? ", " : "", BY_NAME.has(name) ? cellLink(name) : name])))));
};
