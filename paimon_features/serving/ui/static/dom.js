// Elements, numbers and times. Text from outside becomes a text node, never markup.
import { pref } from "./prefs.js";

const SVG = "http://www.w3.org/2000/svg";
export const $ = (id) => document.getElementById(id);

export function el(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}
export function shape(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}
function filled(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.flat(3).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}
export const panel = (title, ...children) =>
  el("section", { class: "panel fade" }, title === null ? null : el("h2", {}, title), ...children);
export const pill = (text, kind = "") => el("span", { class: `pill ${kind}` }, text);
export const tag = (text) => el("span", { class: "tag" }, text);
export const link = (route, text, kind = null) => el("a", { href: route, class: kind }, text);
export const route = (...parts) => `#/${parts.map(encodeURIComponent).join("/")}`;
export const words = (kind) => kind.replaceAll("_", " ");
export const cards = (pairs) => el("div", { class: "cards" }, pairs.filter(Boolean).map(([name, value, kind, title]) =>
  el("div", { class: "card", title: title || null }, el("b", { class: `${kind || ""} ${typeof value === "string" && value.length > 9 ? "long" : ""}` }, value), el("span", {}, name))));

// columns: [title, class, (row) => content]
export function table(columns, rows, caption) {
  return el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption }, el("table", {},
    el("caption", { class: "unseen" }, caption),
    el("thead", {}, el("tr", {}, columns.map(([title, kind]) => (title ? el("th", { scope: "col", class: kind === "num" ? kind : null }, title) : el("td", {}))))),
    el("tbody", {}, rows.map((row) => el("tr", {}, columns.map(([, kind, content]) => el("td", { class: kind || null }, content(row))))))));
}
// rows beyond `step` are drawn when somebody wants them
export function longTable(columns, rows, caption, step = 100) {
  const box = el("div", {});
  const draw = (count) => {
    box.replaceChildren(table(columns, rows.slice(0, count), caption));
    if (rows.length > count) box.append(el("p", {}, el("button", { class: "quiet", type: "button", onclick: () => draw(count + step * 5) },
      `Show more (${number(rows.length - count)} left)`)));
  };
  draw(step);
  return box;
}

const UNITS = [[86400000, "d"], [3600000, "h"], [60000, "min"], [1000, "s"], [1, "ms"]];
export function duration(ms) {
  for (const [size, unit] of UNITS) if (ms % size === 0) return `${ms / size} ${unit}`;
  return `${ms} ms`;
}
export function ago(ms) {
  if (ms < 0) return "0 s";
  for (const [size, unit] of UNITS.slice(0, 3)) if (ms >= 2 * size) return `${number(Math.floor(ms / size))} ${unit}`;
  return `${(ms / 1000).toFixed(1)} s`;
}
export const isLocal = () => pref("clock") === "local";
export const zone = () => (isLocal() ? "local" : "UTC");
export function moment(ms, detail = 1000) {
  if (ms === null || ms === undefined) return "–";
  const date = new Date(Number(ms) - (isLocal() ? new Date(Number(ms)).getTimezoneOffset() * 60000 : 0));
  if (isNaN(date)) return `${ms} ms`;
  const text = date.toISOString().replace("T", " ").replace("Z", "");
  if (Number(ms) % 1000 && detail <= 1) return text;
  return text.slice(0, detail >= 86400000 ? 10 : detail >= 60000 ? 16 : 19);
}
// with the other clock on hover
export function when(ms, detail = 1000) {
  if (ms === null || ms === undefined) return el("span", { class: "dim" }, "–");
  const date = new Date(Number(ms));
  const title = isNaN(date) ? "" : `${date.toISOString()} · ${date.toLocaleString()} local`;
  return el("time", { title }, moment(ms, detail));
}
export function number(value) {
  if (typeof value === "bigint") return value.toLocaleString("en");
  if (Number.isInteger(value)) return Math.abs(value) < 1e15 ? value.toLocaleString("en") : String(value);
  return Math.abs(value) >= 1e9 || (value && Math.abs(value) < 1e-4) ? value.toPrecision(6)
    : value.toLocaleString("en", { maximumSignificantDigits: 8 });
}
export function rough(value) {
  if (typeof value !== "number" || Number.isInteger(value)) return shown(value);
  return Math.abs(value) >= 1e6 || (value && Math.abs(value) < 1e-3) ? value.toPrecision(3)
    : value.toLocaleString("en", { maximumSignificantDigits: 4 });
}
export function shown(value) {
  if (value === null || value === undefined) return "null";
  if (typeof value === "number" || typeof value === "bigint") return number(value);
  if (Array.isArray(value)) return `[${value.map(shown).join(", ")}]`;
  if (typeof value === "object")
    return Object.entries(value).map(([key, one]) => `${key}: ${shown(one)}`).join(", ") || "{}";
  return String(value);
}
export function short(value, length = 60) {
  const text = shown(value);
  return text.length > length ? `${text.slice(0, length - 1)}…` : text;
}
export function bytes(count) {
  for (const [size, unit] of [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]])
    if (count >= size) return `${(count / size).toLocaleString("en", { maximumSignificantDigits: 3 })} ${unit}`;
  return `${number(count)} B`;
}
export const plural = (count, what) => `${number(count)} ${what}${count === 1 ? "" : what.endsWith("s") ? "" : "s"}`;

export async function copied(button, text) {
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch (error) {
    // no clipboard without https, except on localhost: select it instead
    const range = document.createRange();
    range.selectNodeContents(button.closest("section").querySelector("pre"));
    getSelection().removeAllRanges();
    getSelection().addRange(range);
    button.textContent = "Selected";
  }
  setTimeout(() => { button.textContent = "Copy"; }, 1500);
}
