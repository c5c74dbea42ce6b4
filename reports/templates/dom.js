// Elements are made here and nowhere else: text stays text, whatever it holds.
const flat = (kids) => kids.flat(Infinity).filter((kid) => kid !== null && kid !== undefined && kid !== false && kid !== "");

const h = (name, attributes, ...kids) => {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...flat(kids));
  return made;
};

const show = (parent, ...kids) => parent.replaceChildren(...flat(kids));

const byId = (id) => document.getElementById(id);

// A long dotted name or path may be broken after a dot, slash or underscore.
const breakable = (text) => {
  const parts = String(text).split(/(?<=[./_])(?=\w)/);
  return parts.flatMap((part, index) => (index ? [document.createElement("wbr"), part] : [part]));
};

const code = (text) => h("code", {}, breakable(text));

const counted = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;

const copyText = async (text, button) => {
  let done = false;
  try {
    await navigator.clipboard.writeText(text);
    done = true;
  } catch {
    // From file:// some browsers have no clipboard; the old way works there.
    const area = h("textarea", { readonly: true, "aria-hidden": "true", class: "sr" });
    area.value = text;
    document.body.append(area);
    area.select();
    done = document.execCommand("copy");
    area.remove();
    button.focus();
  }
  byId("copied").textContent = done ? "Copied" : "Select the text to copy it";
  byId("copied").classList.add("on");
  setTimeout(() => byId("copied").classList.remove("on"), 1400);
};

// A command to copy: the text can be selected, the button copies it whole.
const command = (text, label) =>
  h("div", { class: "command" },
    h("pre", { tabindex: 0, "aria-label": label }, h("code", {}, text)),
    h("button", { type: "button", class: "copy", "aria-label": `Copy: ${label}`, onclick: (event) => copyText(text, event.currentTarget) }, "Copy"));

const table = (caption, heads, rows, kind = "") =>
  h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption },
    h("table", { class: `list ${kind}` },
      h("caption", { class: "sr" }, caption),
      h("thead", {}, h("tr", {}, heads.map((head) => h("th", { scope: "col" }, head)))),
      h("tbody", {}, rows)));
