// "What should I install?": the cells that were judged, by what is chosen; nothing is asked of anybody.
const OTHER = "another GPU";
const NO_GPU = "no GPU";

const choices = ENTRIES.filter((entry) => entry.choice);

// How deep a cell counts as tried for a choice: the tier gpu counts on the kind of GPU that was asked for.
const provenAt = (entry, gpu) => {
  const { tier } = entry.choice;
  if (depth(tier) < depth("gpu") || !gpu || entry.gpus.includes(gpu)) return tier;
  const marks = entry.marks.filter((mark) => mark.outcome && mark.outcome !== "untested" && depth(mark.tier) < depth("gpu") && depth(mark.tier) > depth("surface"));
  return marks.length ? marks[marks.length - 1].tier : "";
};

const speaksAgainst = (entry, asked) => {
  const { against } = entry.choice;
  return ["", ...asked.features].flatMap((feature) => (against[feature] || []).map((line) => ({ feature, line })));
};

const newer = (axis) => (a, b) => RUN.versions[axis].indexOf(a.axes[axis]) - RUN.versions[axis].indexOf(b.axes[axis]);

const answer = (asked) => {
  const fits = choices.filter((entry) =>
    (!asked.verl || entry.axes.verl === asked.verl) && (!asked.vllm || entry.axes.vllm === asked.vllm) &&
    ((entry.variants.vllm === "cpu") === (asked.gpu === NO_GPU)));
  const judged = fits.map((entry) => ({ entry, against: speaksAgainst(entry, asked), tier: provenAt(entry, asked.gpu) }));
  const good = judged.filter((item) => !item.against.length && (item.entry.plain || item.entry.exact) && item.entry.deepest && depth(item.entry.deepest) >= depth("surface"));
  const rank = (a, b) => depth(b.tier) - depth(a.tier) || newer("verl")(a.entry, b.entry) || newer("vllm")(a.entry, b.entry) ||
    a.entry.features.length - b.entry.features.length || (a.entry.cell < b.entry.cell ? -1 : 1);
  good.sort(rank);
  const best = good[0] || null;
  const newest = [...good].sort((a, b) => newer("verl")(a.entry, b.entry) || newer("vllm")(a.entry, b.entry) || rank(a, b))[0];
  return { fits, judged, best, newest: newest && newest !== best ? newest : null, others: good.slice(1, 6), bad: judged.filter((item) => item.against.length) };
};

const conditional = (entry) =>
  entry.choice.conditional.length
    ? details(`${counted(entry.choice.conditional.length, "known failure")} under a condition`, h("ul", { class: "plain" }, entry.choice.conditional.map((item) => h("li", {}, failureLink(item.id), h("span", { class: "sub" }, `needs: ${item.needs}`)))))
    : null;

const provenLine = (item, gpu) => {
  const { choice } = item.entry;
  if (!item.tier && choice.partly) return h("p", {}, h("b", {}, "Tried in part"), ` (${choice.partly}): no PPO step was taken.`);
  if (!item.tier) return h("p", {}, h("b", {}, "By reading only."), " Nothing of it was installed or run.");
  const where = item.tier === choice.tier ? `${choice.machine}, ${choice.at}${choice.shipped ? ", not here: shipped evidence" : ""}` : `not on ${gpu}`;
  return h("p", {}, "Proven down to ", h("b", {}, item.tier), ` (${where}).`);
};

const answerSet = (item, asked, title) => {
  const { entry } = item;
  const untried = asked.features.filter((feature) => entry.choice.untried.includes(feature));
  const unasked = Object.keys(entry.choice.against).filter((feature) => feature && !asked.features.includes(feature));
  return [
    h("p", { class: "set" }, title ? h("b", {}, `${title} `) : null, badge(entry.status), " ", axes(entry), " ", cellLink(entry.cell, "evidence")),
    provenLine(item, asked.gpu),
    entry.choice.untested.length ? h("p", { class: "soft" }, `Untested: ${entry.choice.untested.join(", ")}.`) : null,
    item.tier && untried.length ? h("p", {}, h("b", {}, `Not tried there: ${untried.join(", ")}.`), " Nothing speaks against it, and no probe was about it.") : null,
    unasked.length ? h("p", { class: "soft" }, `Broken or degraded in it, not asked for: ${unasked.join(", ")}.`) : null,
    conditional(entry),
    command(entry.plain || entry.exact, `install ${entry.cell}`),
  ];
};

const refusal = (found, asked) => {
  if (!found.fits.length) return [h("p", {}, h("b", {}, "Nothing of this was tried.")), h("p", { class: "soft" }, asked.vllm ? "Leave one of the two open, or ask:" : "No cell of it is in the matrix. Ask:"), command(`verl-matrix check verl==${asked.verl || "…"} vllm==${asked.vllm || "…"}`, "ask about this pair")];
  const without = asked.features.map((feature) => [feature, answer({ ...asked, features: asked.features.filter((name) => name !== feature) })]).filter(([, other]) => other.best);
  const free = asked.vllm && answer({ ...asked, vllm: "" }).best;
  const newerVerl = asked.verl && answer({ ...asked, verl: "", vllm: "" }).best;
  const line = (item) => h("li", {}, cellLink(item.entry.cell), h("span", { class: "sub" }, item.against.length ? item.against[0].line : "there is no command that is known to install it"));
  const bad = found.judged.slice(0, 4);
  return [
    h("p", {}, h("b", {}, `None of ${counted(found.fits.length, "cell")} that fit qualifies.`)),
    h("ul", { class: "plain" }, bad.map(line)),
    without.map(([feature, other]) => h("p", {}, `Without ${feature}: `, cellLink(other.best.entry.cell))),
    free ? h("p", {}, "With another vLLM: ", cellLink(free.entry.cell)) : null,
    newerVerl ? h("p", {}, "With another verl: ", cellLink(newerVerl.entry.cell)) : null,
  ];
};

const select = (label, name, options, chosen, change) => {
  const made = h("select", { id: `box-${name}`, onchange: (event) => change(event.target.value) }, options.map(([value, text]) => h("option", { value, selected: value === chosen }, text)));
  return h("label", { class: "field" }, h("span", {}, label), made);
};

// The box; `small` for the first screen, else with what else would do.
const installBox = (route, small) => {
  const asked = {
    verl: route.params.get("verl") || "", vllm: route.params.get("vllm") || "", gpu: route.params.get("gpu") || "",
    features: (route.params.get("uses") || "").split(",").filter((name) => RUN.features.includes(name)),
  };
  const out = h("div", { class: "answer", "aria-live": "polite" });
  const has = (axis) => new Set(choices.map((entry) => entry.axes[axis]));
  const versions = (axis) => RUN.versions[axis].filter((version) => has(axis).has(version)).map((version) => [version, version]);
  const update = (change) => {
    Object.assign(asked, change);
    if (readRoute().view === "install") history.replaceState(null, "", address("install", "", { verl: asked.verl, vllm: asked.vllm, gpu: asked.gpu, uses: asked.features.join(",") }));
    const found = answer(asked);
    const unproven = found.best && !found.best.tier;
    show(out, unproven ? h("p", {}, h("b", {}, "Nothing of this is proven on a machine."), " What nothing speaks against, by reading:") : null,
      found.best ? answerSet(found.best, asked, "") : refusal(found, asked),
      !small && found.newest ? [h("h3", {}, "The newest that nothing speaks against"), answerSet(found.newest, asked, "")] : null,
      !small && found.others.length ? [h("h3", {}, "Others"), h("ul", { class: "entries" }, found.others.map((item) => entryRow(item.entry)))] : null,
      found.best ? h("p", { class: "soft" }, `Chosen from ${counted(found.fits.length, "cell")} that ${found.fits.length === 1 ? "fits" : "fit"}; ${found.bad.length} of them have something against them.`) : null);
  };
  const gpus = [["", "any GPU"], ...RUN.gpus.map((name) => [name, name]), [OTHER, OTHER], [NO_GPU, "no GPU (CPU build)"]];
  const boxes = RUN.features.map((name) =>
    h("label", { class: "chip" }, h("input", { type: "checkbox", checked: asked.features.includes(name), onchange: (event) => {
      update({ features: event.target.checked ? [...asked.features, name] : asked.features.filter((other) => other !== name) });
    } }), h("span", {}, name)));
  const made = [
    h("h2", {}, "What should I install?", h("small", {}, "answered from the cells of this report")),
    h("div", { class: "asked" },
      select("verl", "verl", [["", "any"], ...versions("verl")], asked.verl, (verl) => update({ verl })),
      select("vLLM", "vllm", [["", "any"], ...versions("vllm")], asked.vllm, (vllm) => update({ vllm })),
      select("GPU", "gpu", gpus, asked.gpu, (gpu) => update({ gpu }))),
    boxes.length ? h("details", { class: "uses", open: !small || asked.features.length > 0 }, h("summary", {}, "features in use"), h("div", { class: "chips", role: "group", "aria-label": "Features in use" }, boxes)) : null,
    out,
  ];
  update({});
  return made;
};

const installView = (view, route) => {
  show(view, h("section", { class: "card wide" }, h("h1", { class: "sr", tabindex: -1 }, "What should I install?"), installBox(route, false)));
};
