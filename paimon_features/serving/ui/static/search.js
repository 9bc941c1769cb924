// Everything that is defined: by text, kind, owner, tag.
import { el, link, number, panel, pill, plural, route, tag, words } from "./dom.js";
import { catalogue } from "./model.js";

const MOST = 100;

function score(item, parts) {
  let total = 0;
  for (const part of parts) {
    const name = item.name.toLowerCase();
    const feature = item.features.find((one) => one.toLowerCase().includes(part));
    const tags = Object.entries(item.tags || {}).some(([key, value]) => `${key}=${value}`.toLowerCase().includes(part));
    const found = name === part ? 100 : name.startsWith(part) ? 60 : name.includes(part) ? 40
      : feature ? 30 : tags ? 20 : (item.owner || "").toLowerCase().includes(part) ? 20
        : (item.description || "").toLowerCase().includes(part) ? 10 : 0;
    if (!found) return 0;
    total += found;
  }
  return total;
}
export function searched(items, { q = "", kind = "", owner = "", tag: chosen = "" }) {
  const parts = q.toLowerCase().split(/\s+/).filter(Boolean);
  return items.filter((item) => (!kind || item.kind === kind) && (!owner || item.owner === owner)
    && (!chosen || Object.entries(item.tags || {}).some(([key, value]) => `${key}=${value}` === chosen)))
    .map((item) => [parts.length ? score(item, parts) : 1, item]).filter(([points]) => points)
    .sort((a, b) => b[0] - a[0] || (a[1].name < b[1].name ? -1 : 1)).map(([, item]) => item);
}
function marked(text, parts) {
  const low = text.toLowerCase(), at = parts.map((part) => [low.indexOf(part), part.length]).filter(([i]) => i >= 0)[0];
  return at ? [text.slice(0, at[0]), el("mark", {}, text.slice(at[0], at[0] + at[1])), text.slice(at[0] + at[1])] : [text];
}

export async function search(box, query) {
  const found = await catalogue();
  const given = Object.fromEntries(query);
  const count = (of) => {
    const all = new Map();
    for (const item of found.items) for (const value of of(item)) all.set(value, (all.get(value) || 0) + 1);
    return [...all].sort((a, b) => b[1] - a[1]).slice(0, 200);
  };
  const choice = (name, title, values) => el("label", {}, title, el("select", { name, onchange: draw },
    el("option", { value: "" }, "any"), values.map(([value, times]) => el("option", { value, selected: given[name] === value }, `${name === "kind" ? words(value) : value} (${times})`))));
  const list = el("div", {}), total = el("span", { class: "dim", role: "status" });
  const form = el("form", { class: "row", onsubmit: (event) => event.preventDefault() },
    choice("kind", "Kind", count((item) => [item.kind])), choice("owner", "Owner", count((item) => (item.owner ? [item.owner] : []))),
    choice("tag", "Tag", count((item) => Object.entries(item.tags || {}).map(([k, v]) => `${k}=${v}`))), el("span", { class: "grow" }), total);
  function draw() {
    const wanted = { q: document.getElementById("text").value, ...Object.fromEntries(new FormData(form)) };
    const parts = wanted.q.toLowerCase().split(/\s+/).filter(Boolean);
    const hits = searched(found.items, wanted);
    total.textContent = `${plural(hits.length, "definition")}${hits.length > MOST ? `, the first ${MOST}` : ""}`;
    list.replaceChildren(hits.length ? el("ul", { class: "list results" }, hits.slice(0, MOST).map((item) => {
      const inside = parts.length ? item.features.filter((name) => parts.some((part) => name.toLowerCase().includes(part))).slice(0, 6) : [];
      return el("li", {}, el("div", { class: "row" }, el("span", { class: "kind" }, words(item.kind)), link(route(item.kind, item.name), marked(item.name, parts)),
        item.state && item.state !== "applied" ? pill(item.state, "warn") : null, el("span", { class: "grow" }),
        item.owner ? tag(`owner ${item.owner}`) : null, Object.entries(item.tags || {}).slice(0, 4).map(([key, value]) => tag(`${key}=${value}`))),
      item.description || item.note ? el("p", { class: "dim small" }, marked((item.description || item.note).slice(0, 300), parts)) : null,
      inside.length ? el("p", { class: "small mono" }, inside.map((name, i) => [i ? ", " : "", ...marked(name, parts)])) : null);
    })) : el("p", { class: "dim" }, "Nothing matches; remove a filter or search for a part of a name."));
  }
  document.getElementById("text").value = given.q || "";
  box.replaceChildren(el("div", { class: "top" }, el("h1", {}, "Definitions")), panel(null, form), panel(null, list),
    found.truncated ? el("p", { class: "dim" }, `Only the first ${number(found.items.length)} definitions are listed.`) : "");
  draw();
  return { search: draw };
}
