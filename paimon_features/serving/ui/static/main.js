// Which page is shown, and what is on all of them.
import { MODE, keepToken, takeToken, useToken } from "./api.js";
import { $, el, number } from "./dom.js";
import { entity } from "./entity.js";
import { home, jobs } from "./home.js";
import { lineage } from "./lineage.js";
import { catalogue, forget, health, lastHealth } from "./model.js";
import { next, pref } from "./prefs.js";
import { search } from "./search.js";
import { artifacts } from "./stored.js";
import { definition } from "./view.js";

const POLL_MS = 5000;
const PAGES = [["", "Home"], ["search", "Definitions"], ["lineage", "Lineage"], ["jobs", "Jobs"], ["artifacts", "Models and data"]];
const state = { number: 0, redraw: null, onSearch: null };

function fail(error) {
  const box = $("problem");
  box.replaceChildren(el("b", {}, error.message));
  if (error.id) box.append(el("p", { class: "dim small mono" }, `request ${error.id}`));
  const closed = error.status === 401 || error.status === 403;
  if (closed) box.append(el("p", { class: "small" }, MODE === "server" ? "Enter a token that may read this, below." : "Open the address that 'paimon-features ui' printed."));
  $("access").hidden = !closed || MODE !== "server";
  box.hidden = false;
}

async function show() {
  keepToken();
  const mine = ++state.number;
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const [page = "", ...names] = path.split("/").map((part) => { try { return decodeURIComponent(part); } catch (error) { return part; } });
  const given = new URLSearchParams(query || "");
  const box = el("div", {});
  $("problem").hidden = true;
  state.redraw = state.onSearch = null;
  mark(page);
  try {
    let made;
    if (page === "") made = await home(box);
    else if (page === "search") made = await search(box, given);
    else if (page === "lineage") await lineage(box);
    else if (page === "jobs") made = await jobs(box);
    else if (page === "artifacts") await artifacts(box);
    else if (page === "entity") await Promise.race([entity(box, names[0], given), new Promise((done) => { setTimeout(done, 150); })]);
    else await definition(box, page, names.join("/"));
    if (mine !== state.number) return;
    if (page !== "search") $("text").value = "";
    if (typeof made === "function") state.redraw = made;
    else if (made) state.onSearch = made.search;
    $("access").hidden = true;
  } catch (error) {
    if (mine !== state.number) return;
    fail(error);
    box.prepend(el("h1", { class: "unseen" }, "Not found"));
  }
  $("view").replaceChildren(box);
  const title = box.querySelector("h1");
  document.title = title ? `${title.textContent} · paimon-features` : "paimon-features";
}

async function mark(page) {
  const found = await catalogue().catch(() => null);
  if (found) $("project").textContent = found.project;
  $("nav").replaceChildren(el("ul", {}, PAGES.map(([name, title]) => el("li", {}, el("a", { href: `#/${name}`, "aria-current": page === name ? "page" : null }, title,
    name === "search" && found ? el("small", {}, number(found.items.length)) : null)))));
}

async function pulse() {
  if (document.hidden) return;
  try {
    if (state.redraw && !$("view").contains(document.activeElement) && String(getSelection()) === "") await state.redraw();
    else await health();
    light();
  } catch (error) {
    status("bad", error.status === 401 ? "token needed" : "unreachable");
  }
}
function light() {
  const found = lastHealth();
  if (!found) return;
  const first = found.problems[0] || found.warnings[0] || "";
  if (found.problems.length) status("bad", MODE === "server" ? "not ready" : "needs attention", first);
  else if (found.warnings.length) status("warn", "ready, with warnings", first);
  else status("good", MODE === "server" ? "ready" : "all is well");
}
function status(kind, text, title = "") {
  if ($("server").textContent !== text) $("server").textContent = text;
  $("server").className = `state ${kind}`;
  $("server").title = title;
}

function theme() {
  const chosen = pref("theme");
  if (chosen === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = chosen;
  $("theme").textContent = { auto: "Auto", light: "Light", dark: "Dark" }[chosen];
  $("theme").setAttribute("aria-label", `Theme: ${chosen}`);
  $("clock").textContent = pref("clock") === "utc" ? "UTC" : "Local time";
  $("clock").setAttribute("aria-label", pref("clock") === "utc" ? "Clock: UTC" : "Clock: Local time");
}

takeToken();
theme();
$("theme").addEventListener("click", () => { next("theme"); theme(); });
$("clock").addEventListener("click", () => { next("clock"); theme(); show(); });
$("skip").addEventListener("click", (event) => { event.preventDefault(); $("content").focus(); });
$("find").addEventListener("submit", (event) => event.preventDefault());
let waiting = null;
$("text").addEventListener("input", () => {
  clearTimeout(waiting);
  waiting = setTimeout(() => {
    if (state.onSearch) state.onSearch();
    else location.hash = `/search?${new URLSearchParams({ q: $("text").value })}`;
  }, 120);
});
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && !/^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement.tagName)) { event.preventDefault(); $("text").focus(); }
});
$("access").addEventListener("submit", (event) => {
  event.preventDefault();
  useToken($("token").value.trim());
  $("token").value = "";
  forget();
  show().then(pulse);
});
addEventListener("hashchange", () => { if (/^#token=/.test(location.hash)) { takeToken(); forget(); } show().then(() => scrollTo(0, 0)); });
show().then(light);
setInterval(pulse, POLL_MS);
