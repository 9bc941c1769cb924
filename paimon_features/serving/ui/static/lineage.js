// What is derived from what, as a graph of links; a definition in the middle, or everything.
import { el, link, panel, plural, route, shape, words } from "./dom.js";
import { catalogue } from "./model.js";

const MOST = 150;
// a larger project is drawn around one definition
const WHOLE = 60;
const W = 196, H = 48, GAP_X = 46, GAP_Y = 14;

// ancestors and descendants, or all
function around(found, start) {
  if (start === undefined) return found.items.map((_, i) => i).filter((i) => found.parents[i].length || found.children[i].length);
  const kept = new Set([start]);
  for (const next of [found.parents, found.children]) {
    const waiting = [start];
    while (waiting.length) for (const other of next[waiting.pop()]) if (!kept.has(other)) { kept.add(other); waiting.push(other); }
  }
  return [...kept];
}

export function graph(found, start) {
  const all = around(found, start), kept = all.slice(0, MOST), inside = new Set(kept);
  const depth = new Map();
  const level = (i, seen = 0) => {
    if (!depth.has(i)) depth.set(i, seen > 50 ? 0 : Math.max(-1, ...found.parents[i].filter((p) => inside.has(p)).map((p) => level(p, seen + 1))) + 1);
    return depth.get(i);
  };
  kept.forEach((i) => level(i));
  const layers = [];
  for (const i of kept) (layers[depth.get(i)] ||= []).push(i);
  const row = new Map();
  layers.forEach((layer, x) => {
    // near their parents, so that edges cross less
    const middle = (i) => { const p = found.parents[i].filter((one) => row.has(one)); return p.length ? p.reduce((a, one) => a + row.get(one), 0) / p.length : 1e9; };
    if (x) layer.sort((a, b) => middle(a) - middle(b) || (found.items[a].name < found.items[b].name ? -1 : 1));
    layer.forEach((i, y) => row.set(i, y));
  });
  const tall = Math.max(...layers.map((layer) => layer.length), 1), height = tall * (H + GAP_Y) + 4, width = layers.length * (W + GAP_X) - GAP_X + 4;
  const x = (i) => 2 + depth.get(i) * (W + GAP_X);
  const y = (i) => 2 + row.get(i) * (H + GAP_Y) + (tall - layers[depth.get(i)].length) * (H + GAP_Y) / 2;
  const svg = shape("svg", { class: "graph", viewBox: `0 0 ${width} ${height}`, width, height, role: "group", "aria-label": "Lineage: from sources on the left to what is derived from them" });
  for (const [a, b] of found.edges) {
    if (!inside.has(a) || !inside.has(b)) continue;
    const [x1, y1, x2, y2] = [x(a) + W, y(a) + H / 2, x(b), y(b) + H / 2];
    svg.append(shape("path", { d: `M${x1} ${y1}C${(x1 + x2) / 2} ${y1} ${(x1 + x2) / 2} ${y2} ${x2} ${y2}` }));
  }
  const cut = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
  for (const i of kept) {
    const item = found.items[i];
    svg.append(shape("a", { href: route(item.kind, item.name), class: `k-${item.kind} ${i === start ? "mine" : ""}`, "aria-current": i === start ? "true" : null },
      shape("rect", { x: x(i), y: y(i), width: W, height: H, rx: 9 }), shape("rect", { class: "stripe", x: x(i), y: y(i) + 10, width: 4, height: H - 20, rx: 2 }),
      shape("text", { x: x(i) + 14, y: y(i) + 20 }, cut(item.name, 23)),
      shape("text", { class: "sub", x: x(i) + 14, y: y(i) + 37 }, cut([words(item.kind), item.note].filter(Boolean).join(" · "), 29)),
      shape("title", {}, `${words(item.kind)} ${item.name}`)));
  }
  return [el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Lineage graph" }, svg),
    all.length > MOST ? el("p", { class: "dim small" }, `${MOST} of ${plural(all.length, "definition")} are drawn; choose one to see what it is connected with.`) : null];
}

// of a large project one definition at a time, with what it is connected with: first the source of most
function neighbourhood(found, connected) {
  const label = (i) => `${words(found.items[i].kind)} ${found.items[i].name}`;
  const byLabel = new Map(connected.map((i) => [label(i), i]));
  const roots = connected.filter((i) => !found.parents[i].length);
  const first = (roots.length ? roots : connected).reduce((a, b) => (found.children[b].length > found.children[a].length ? b : a));
  const drawn = el("div", {});
  const field = el("input", { type: "search", list: "connected", value: label(first), autocomplete: "off", oninput: draw, "aria-label": "Definition whose lineage is drawn" });
  function draw() {
    const chosen = byLabel.get(field.value.trim());
    if (chosen !== undefined) drawn.replaceChildren(...graph(found, chosen).filter(Boolean));
  }
  draw();
  return [el("form", { class: "row", onsubmit: (event) => event.preventDefault() }, el("label", {}, "Lineage of ", field),
    el("datalist", { id: "connected" }, connected.map((i) => el("option", { value: label(i) }))),
    el("span", { class: "dim" }, `one of ${plural(connected.length, "connected definition")}`)), drawn];
}

export async function lineage(box) {
  const found = await catalogue(), connected = around(found);
  box.replaceChildren(el("div", { class: "top" }, el("h1", {}, "Lineage"), el("p", { class: "lead dim" }, "From sources on the left to services and training sets. Each box leads to its page.")),
    panel(null, !found.edges.length ? el("p", { class: "dim" }, "Nothing is derived from anything yet.") : connected.length > WHOLE ? neighbourhood(found, connected) : graph(found)));
}
export const links = (found, numbers) => numbers.slice(0, 100).map((i) => link(route(found.items[i].kind, found.items[i].name), `${words(found.items[i].kind)} ${found.items[i].name}`, "tag"));
