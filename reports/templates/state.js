// Where the reader is lies in the address: #/view/name?filters. The filters go along from view to view.
const FILTERS = ["q", "status", "tier", "machine", "group"];

const readRoute = () => {
  let text = location.hash.slice(1);
  // Links of older reports: #cell-NAME.
  if (text.startsWith("cell-")) text = `/cell/${text.slice(5)}`;
  const [path, query] = text.split(/\?(.*)/s);
  const [view, ...rest] = path.replace(/^\//, "").split("/");
  let id = rest.join("/");
  try {
    id = decodeURIComponent(id);
  } catch {
    // Half an escape, as a cut link has it: the name as it stands.
  }
  return { view: view || "matrix", id, params: new URLSearchParams(query || "") };
};

const address = (view, id = "", more = {}) => {
  const params = new URLSearchParams();
  const now = readRoute().params;
  for (const key of FILTERS) if (now.get(key)) params.set(key, now.get(key));
  for (const [key, value] of Object.entries(more)) if (value) params.set(key, value); else params.delete(key);
  const path = view === "matrix" ? "" : view;
  const name = id ? `/${encodeURIComponent(id)}` : "";
  const query = params.toString();
  return `#/${path}${name}${query ? `?${query}` : ""}`;
};

const cellLink = (name, ...kids) => h("a", { href: address("cell", name) }, kids.length ? kids : breakable(name));

const readFilters = (params) => ({
  words: (params.get("q") || "").toLowerCase().split(/\s+/).filter(Boolean),
  statuses: new Set((params.get("status") || "").split(",").filter(Boolean)),
  tier: params.get("tier") || "",
  machine: params.get("machine") || "",
  group: params.get("group") || "",
});

const TIERS = ["resolve", "surface", "import", "behave", "gpu", "bench"];
const depth = (tier) => TIERS.indexOf(tier);

// What is filtered by text is put together when it is first asked for.
const haystack = (entry) => {
  if (entry.text === undefined) {
    const axes = Object.entries(entry.axes).map(([axis, version]) => `${axis} ${version} ${axis}==${version}`);
    const locked = Object.entries(entry.locked || {}).map(([axis, version]) => `${axis} ${version} ${axis}==${version}`);
    const parts = [entry.cell, entry.status, entry.resolvable, entry.works, entry.reason, ...axes, ...locked];
    parts.push(...(entry.features || []), ...(entry.groups || []), ...(entry.known || []), ...(entry.requirements || []));
    if (entry.full) {
      const full = entry.full();
      parts.push(...full.reasons, ...full.probes.flatMap((part) => part.rows.map((row) => row.failure)));
      const findings = full.surface ? full.surface.findings.filter((part) => !part.folded) : [];
      parts.push(...findings.flatMap((part) => part.rows.map((row) => row.symbol)));
    }
    entry.text = parts.join(" ").toLowerCase();
  }
  return entry.text;
};

// A word that ends in a digit stops there: 0.2 is not 0.24.
const holds = (text, word) => {
  for (let at = text.indexOf(word); at >= 0; at = text.indexOf(word, at + 1)) {
    const before = text[at - 1] || " ", after = text[at + word.length] || " ";
    const cut = /\d$/.test(word) && /[\d]/.test(after);
    const joined = /^\d/.test(word) && /[\d.]/.test(before);
    if (!cut && !joined) return true;
  }
  return false;
};

const passes = (entry, filters) =>
  (!filters.statuses.size || filters.statuses.has(entry.status)) &&
  (!filters.tier || depth(entry.deepest) >= depth(filters.tier)) &&
  (!filters.machine || entry.machines.includes(filters.machine)) &&
  (!filters.group || (entry.groups || []).includes(filters.group)) &&
  filters.words.every((word) => holds(haystack(entry), word));
