// The page of one cell: its verdict, how it is installed, what was found, and on what evidence.
const site = (place) => (place ? h("span", { class: "site" }, code(place.line ? `${place.path}:${place.line}` : place.path), place.scope ? h("span", { class: "sub" }, `in ${place.scope}`) : null) : null);

const REASONS = 6;

const firstFew = (items, count) => (items.length > count ? `${items.slice(0, count).join(", ")} and ${items.length - count} more` : items.join(", "));

const findingRow = (item) =>
  h("tr", {},
    h("td", {}, code(item.symbol), h("span", { class: "sub" }, breakable(item.message)), item.guard ? h("span", { class: "sub" }, "guard: ", code(item.guard)) : null),
    h("td", {}, site(item.used_at)),
    h("td", {},
      item.moved_to.length ? code(item.moved_to[0]) : item.absent ? h("span", { class: "soft" }, "not in this cell") : item.found_at ? null : h("span", { class: "soft" }, `not found in ${item.target}`),
      site(item.found_at), item.moved_to.length > 1 ? h("span", { class: "sub" }, `or ${item.moved_to.slice(1).join(", ")}`) : null),
    h("td", {}, item.feature ? h("b", {}, item.feature) : null, item.exception ? h("span", { class: "sub" }, item.exception) : null,
      h("span", { class: "sub" }, firstFew(item.entry_points, 6))));

const findingParts = (parts) => parts.map((part) => {
  const rows = table(part.title, ["what", "used at", "where it is now", "who meets it"], part.rows.map(findingRow), "findings");
  const left = part.total - part.rows.length;
  const rest = left ? h("p", { class: "soft" }, `${left} more in report.json.`) : null;
  return part.folded ? details(`${part.title} (${part.total})`, rows, rest) : [h("h3", {}, part.title, h("small", {}, part.total)), rows, rest];
});

const failureLink = (id) => (FAILURES.has(id) ? h("a", { href: address("failure", id) }, breakable(id)) : breakable(id));

const probeRow = (item) =>
  h("tr", {},
    h("td", { class: "word" }, item.tier),
    h("td", {}, code(item.probe)),
    h("td", { class: "word" }, item.disagreement ? h("span", { class: "tone o-broken" }, "record wrong") : outcome(item.outcome)),
    h("td", {},
      item.failure ? [h("b", {}, failureLink(item.failure)), item.disagreement ? ` ${item.disagreement} ` : " "] : null,
      breakable(item.reason || item.title), item.proposal ? h("span", { class: "sub" }, item.proposal) : null,
      item.seen === "reproduced" ? item.way_out.map((step) => h("span", { class: "sub" }, `way out: ${step}`)) : null),
    h("td", { class: "word" }, `${item.seconds.toFixed(1)} s`,
      item.left_mib ? h("span", { class: "sub tone o-broken" }, `${item.left_mib} MiB left`) : null,
      item.shipped ? h("span", { class: "sub" }, "shipped") : null));

const probeParts = (parts) => parts.map((part) => {
  const rows = table(part.title, ["tier", "probe", "outcome", "what was seen", "took"], part.rows.map(probeRow));
  return part.folded ? details(`${part.title} (${part.rows.length})`, rows) : [h("h3", {}, part.title, h("small", {}, part.rows.length)), rows];
});

const evidenceRow = (item) =>
  h("tr", {},
    h("td", { class: "word" }, item.tier), h("td", {}, code(item.probe)), h("td", { class: "word" }, outcome(item.outcome)),
    h("td", {}, item.at, h("span", { class: "sub" }, `${item.machine === "static" ? "by reading" : item.machine}${item.shipped ? "; shipped evidence" : ""}`)),
    h("td", { class: "word" }, `${item.seconds.toFixed(2)} s`), h("td", { class: "word" }, item.tool),
    h("td", {}, Object.entries(item.reads).map(([name, digest]) => h("span", { class: "sub" }, `${name} `, code(digest)))),
    h("td", {}, code(item.key)));

const tierSteps = (entry) =>
  h("ol", { class: "steps", "aria-label": "Tier by tier" }, entry.marks.map((mark) =>
    h("li", { class: mark.outcome ? `o-${mark.outcome}${mark.shipped ? " by" : ""}` : "off" },
      h("b", {}, mark.tier), mark.outcome ? outcome(mark.outcome) : h("span", { class: "soft" }, "not tried"),
      h("span", { class: "sub" }, mark.line ? mark.line.split(", ").slice(1).join(", ") || mark.machines.join(", ") : WORDS.tiers[mark.tier]))));

const chain = (resolve) =>
  resolve.chain.length
    ? h("ol", { class: `chain o-${resolve.outcome}` }, resolve.chain.map((fact) => h("li", {}, fact.text, fact.source ? h("small", {}, fact.source) : null)))
    : resolve.reason ? h("p", {}, resolve.reason) : null;

const installCard = (entry, full) => {
  const { install } = full;
  return card("Install", install.packages ? `${install.packages} packages locked` : "",
    install.plain ? [h("p", { class: "soft" }, install.deviation ? `Against its own metadata: ${install.deviation}.` : "With uv; the index as of when it was locked, so that it resolves to the same set."), command(install.plain, "install with uv")] : null,
    install.builds.length ? h("p", { class: "soft" }, `No wheel on the index, built from source or from wheels of your own: ${install.builds.join(", ")}.`) : null,
    install.exact ? [h("p", { class: "soft" }, "The lock itself, each file by its hash ", install.lock ? code(install.lock.slice(0, 19)) : null, ":"), command(install.exact, "install from the lock")] : null,
    install.why_not ? h("p", {}, install.why_not) : null,
    pins("Requirements", [...full.requirements, `python ${full.python}`, full.platform]),
    full.resolve && Object.keys(full.resolve.axes).length
      ? [h("p", { class: "soft" }, "Locked axes:"), pins("Locked axes", Object.entries(full.resolve.axes).map(([name, version]) => `${name} ${version}`))] : null);
};

// The first few of a list, the others folded.
const shortList = (items) =>
  items.length > REASONS + 1 ? [items.slice(0, REASONS), h("li", { class: "bare" }, details(`${items.length - REASONS} more`, h("ul", { class: "plain" }, items.slice(REASONS))))] : items;

const knownRow = (id) => {
  const failure = FAILURES.get(id);
  if (!failure) return h("li", {}, id);
  return h("li", {}, failureLink(id), h("span", { class: "soft" }, ` ${failure.title}`), failure.needs ? h("span", { class: "sub" }, `needs: ${failure.needs}`) : null);
};

const knownCard = ({ against, conditional, elsewhere }) => {
  const count = against.length + conditional.length + elsewhere.length;
  if (!count) return card("Known failures of these versions", "", h("p", { class: "soft" }, "None is on record."));
  return card("Known failures of these versions", counted(count, "record"),
    against.length ? [h("h3", {}, "Any run meets"), h("ul", { class: "plain" }, against.map(knownRow))] : null,
    conditional.length ? [h("h3", {}, "Under a condition"), h("ul", { class: "plain" }, shortList(conditional.map(knownRow)))] : null,
    elsewhere.length ? details(`Of single features, or of low severity (${elsewhere.length})`, h("ul", { class: "plain" }, elsewhere.map(knownRow))) : null);
};

const pairCard = (entry) => [
  card("By reading", entry.pair.at,
    h("p", {}, "resolves: ", outcome(entry.resolvable), entry.pair.resolve_reason ? ` ${entry.pair.resolve_reason}` : ""),
    h("p", {}, "works: ", outcome(entry.works), entry.pair.surface_reason ? ` ${entry.pair.surface_reason}` : ""),
    h("p", { class: "soft" }, "The pair alone, each release's code against the other's; what the lock would add is not in it. For the whole of it:"),
    command(`verl-matrix check verl==${entry.axes.verl} vllm==${entry.axes.vllm}`, "check this pair")),
];

const cellView = (view, route) => {
  const entry = BY_NAME.get(route.id);
  if (!entry) return missing(view, "cell", route.id);
  const full = entry.full ? entry.full() : null;
  const head = h("header", { class: "title" },
    h("p", { class: "crumb" }, h("a", { href: address("matrix", "", { at: `${entry.axes.verl || ""},${entry.axes.vllm || ""}` }) }, "matrix"), " / ", pairName(entry.axes.verl, entry.axes.vllm)),
    h("h1", { class: "mono", tabindex: -1 }, breakable(entry.cell)),
    h("p", {}, badge(entry.status), " ", axes(entry)));
  if (!full) return show(view, head, pairCard(entry));
  const reasons = (items) => h("ul", { class: "plain" }, items.map((reason) => h("li", {}, breakable(reason))));
  return show(view, head, tierSteps(entry),
    h("div", { class: "cols" }, h("div", {},
    full.reasons.length ? card("Why", "", reasons(full.reasons.slice(0, REASONS)), full.reasons.length > REASONS ? details(`${full.reasons.length - REASONS} more`, reasons(full.reasons.slice(REASONS))) : null,
      full.expected ? h("p", { class: "soft" }, `Expected here: ${full.expected}.`) : null,
      full.why_here ? h("p", { class: "soft" }, `In the matrix because: ${full.why_here}${full.source ? ` Source: ${full.source}${full.source_date ? `, ${full.source_date}` : ""}.` : ""}`) : null) : null,
    full.reasons.length ? null : card("Why", "", h("p", {}, "Nothing was found, as far as it was tried.")),
    full.resolve ? card("Resolve", "", h("p", {}, outcome(full.resolve.outcome)), chain(full.resolve), full.resolve.notes.map((note) => h("p", { class: "soft" }, note))) : null),
    h("div", {}, installCard(entry, full), knownCard(full.known))),
    full.surface ? card("Surface", Object.entries(full.surface.versions).map(([name, version]) => `${name} ${version}`).join(", "),
      h("p", {}, outcome(full.surface.outcome), " ", full.surface.findings.length ? "" : full.surface.reason || "No finding."), findingParts(full.surface.findings)) : null,
    RUN.benched[entry.cell] ? card("Benches", "", h("ul", { class: "plain" }, RUN.benched[entry.cell].map((line) => h("li", {}, line))), h("p", {}, h("a", { href: address("benches") }, "samples and intervals"))) : null,
    full.probes.length ? card("Installed and probed", "",
      full.deep.map((item) => h("p", { class: item.shipped ? "evidence" : "" }, item.line)),
      full.gpu && full.gpu.ran ? h("p", {}, full.gpu.line) : null,
      full.patches.length ? [h("p", {}, h("em", {}, "Patched"), ", so this speaks for itself and not for the releases as they are:"), pins("Patches", full.patches)] : null,
      probeParts(full.probes)) : null,
    full.evidence.length ? card("Evidence", counted(full.evidence.length, "observation"),
      details("Observations that this verdict rests on", table("Observations", ["tier", "probe", "outcome", "when, on what", "took", "tool", "read", "key in the store"], full.evidence.map(evidenceRow)))) : null);
};
