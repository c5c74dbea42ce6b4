// The statements of published guides: what each promises, what was found, on what evidence.
const CLAIM_TONES = { holds: "works", depends: "degraded", false: "broken", untested: "untested" };
const claimBadge = (verdict) => {
  const status = CLAIM_TONES[verdict] || "untested";
  return h("span", { class: `badge s-${status}` }, h("span", { class: "mark", "aria-hidden": "true" }, WORDS.statuses[status].mark), verdict);
};

const claimEvidence = (claim) => {
  const rows = claim.evidence.map((item) => h("tr", {},
    h("td", { class: "word" }, item.supports ? "for" : "against"), h("td", {}, breakable(item.text)),
    h("td", {}, item.subject, h("span", { class: "sub" }, breakable(item.place)))));
  const { holds, fails } = claim.releases;
  const links = [...claim.failures.map((id) => failureLink(id)), ...claim.pairings.map((name) => h("a", { href: address("benches") }, `bench ${name}`))];
  return details(`evidence${rows.length ? ` (${rows.length + claim.more})` : ""}`,
    rows.length ? table(`Evidence on ${claim.id}`, ["", "fact", "where"], rows) : h("p", { class: "soft" }, "None but the reason given."),
    claim.more ? h("p", { class: "soft" }, `${claim.more} more in report.json.`) : null,
    holds.length ? h("p", { class: "soft" }, `Holds in: ${holds.join(", ")}.`) : null,
    fails.length ? h("p", { class: "soft" }, `Does not in: ${fails.join(", ")}.`) : null,
    links.length ? h("p", {}, links.flatMap((link, index) => (index ? [", ", link] : [link]))) : null,
    h("p", { class: "soft" }, `Found by: ${claim.how}; checked ${claim.checked}.`));
};

const claimRow = (claim, guides) =>
  h("tr", { id: `claim-${claim.id}` },
    h("td", { class: "word mono" }, claim.id),
    h("td", {}, claim.statement, h("span", { class: "sub" }, `${guides.get(claim.guide) || claim.guide}${claim.section ? `, ${claim.section}` : ""}`)),
    h("td", {}, claimBadge(claim.verdict)),
    h("td", {}, breakable(claim.why), claim.instead ? h("span", { class: "sub" }, h("b", {}, "instead: "), breakable(claim.instead)) : null, claimEvidence(claim)));

const claimsView = (view, route) => {
  const data = RUN.sections.claims;
  const guides = new Map(data.guides.map((guide) => [guide.id, guide.title]));
  const asked = { f: route.params.get("f") || "", verdict: route.params.get("verdict") || "", topic: route.params.get("topic") || "", guide: route.params.get("guide") || "" };
  if (route.id) asked.f = route.id;
  const list = h("tbody", {});
  const count = h("small", { role: "status" });
  const update = (change) => {
    Object.assign(asked, change);
    history.replaceState(null, "", address("claims", "", asked));
    const words = asked.f.toLowerCase().split(/\s+/).filter(Boolean);
    const found = data.claims.filter((claim) =>
      (!asked.verdict || claim.verdict === asked.verdict) && (!asked.topic || claim.topic === asked.topic) && (!asked.guide || claim.guide === asked.guide) &&
      words.every((word) => [claim.id, claim.statement, claim.why, claim.instead, claim.section].join(" ").toLowerCase().includes(word)));
    count.textContent = `${found.length} of ${counted(data.claims.length, "statement")}`;
    show(list, found.map((claim) => claimRow(claim, guides)));
  };
  const choose = (label, key, options) =>
    h("select", { "aria-label": label, onchange: (event) => update({ [key]: event.target.value }) },
      [["", `any ${label}`], ...options].map(([value, text]) => h("option", { value, selected: value === asked[key] }, text)));
  const input = h("input", { type: "search", placeholder: "Filter statements …", "aria-label": "Filter statements", value: asked.f, oninput: () => update({ f: input.value }) });
  const total = data.claims.length;
  show(view,
    h("header", { class: "title" }, h("h1", { tabindex: -1 }, "What guides claim ", count),
      h("p", { class: "lead" }, Object.entries(data.counts).map(([verdict, number]) => `${number} of ${total} ${verdict}`).join(", "), ". Statements of published guides in our words, each with what was found.")),
    h("div", { class: "fields" }, input, choose("verdict", "verdict", Object.entries(data.counts).map(([name, number]) => [name, `${name} (${number})`])),
      choose("topic", "topic", data.topics.map((topic) => [topic.id, `${topic.title} (${topic.count})`])), choose("guide", "guide", data.guides.map((guide) => [guide.id, guide.title]))),
    h("div", { class: "card scroll", tabindex: 0, role: "region", "aria-label": "Statements" }, h("table", { class: "list claims" },
      h("thead", {}, h("tr", {}, ["id", "statement", "verdict", "why"].map((head) => h("th", { scope: "col" }, head)))), list)));
  update({});
};
