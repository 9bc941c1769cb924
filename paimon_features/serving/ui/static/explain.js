// What makes up a number: the cells of the entity's record over time, and their table.
import { $, cards, duration, el, moment, number, panel, shape, short, shown, when, zone } from "./dom.js";

export const STATUS = { PRESENT: "good", STALE: "warn", EXPIRED: "warn", MISSING: "dim", ILL_CONDITIONED: "bad" };
const ZOOMS = { window: "Window", end: "Its end", record: "Whole record" };

// draws into `box`: the features of one view of one entity, and, once one is chosen or if `open`, what
// it is made of
export function explained(box, reply, id, open, chart = null) {
  const state = { zoom: "window", feature: null, open };
  const draw = (focus) => {
    const kept = reply.features.find((one) => one.name === state.feature);
    const feature = kept || reply.features.find((one) => one.cells.length) || reply.features[0];
    state.feature = feature.name;
    const record = reply.record;
    const used = new Map(feature.cells.map((share) => [share.cell, share]));
    $("said").textContent = feature.sentence;
    box.replaceChildren(
      el("section", { class: "panel fade", "data-explained": reply.view },
        el("h2", {}, `${reply.view}`, el("span", { class: "dim small" }, ` at ${moment(reply.as_of_ms)} ${zone()}`)),
        el("div", { class: "values" }, reply.features.map((one) => el("button", {
          class: "value", type: "button", "aria-pressed": String(state.open && one === feature), onclick: () => { state.feature = one.name; state.open = true; draw("value"); },
        }, el("span", {}, one.name), el("b", {}, short(one.value, 40)),
        one.status === "PRESENT" ? null : el("span", { class: STATUS[one.status] || "dim" }, one.status))))),
      ...(state.open ? [el("section", { class: "panel fade", "aria-label": `Explanation of ${reply.view}:${feature.name}` },
        el("h2", {}, feature.name), el("p", { class: "sentence" }, feature.sentence),
        reply.cells.length ? el("div", { class: "row" }, Object.entries(ZOOMS).map(([key, text]) => el("button", {
          class: "quiet", type: "button", "aria-pressed": String(state.zoom === key), onclick: () => { state.zoom = key; draw("quiet"); } }, text)),
        el("span", { class: "grow" }), el("span", { class: "small dim legend" },
          el("span", {}, el("i", { class: "u" }), "makes up the number"), el("span", {}, el("i", { class: "i" }), "kept, not in it"),
          el("span", {}, el("i", { class: "b" }), "the window"))) : null,
        reply.cells.length ? timeline(reply, feature, used, state.zoom)
          : el("p", { class: "dim" }, "There is no record of this entity, so there is nothing to draw.")),
      chart === null ? "" : chart(feature),
      reply.cells.length ? cellsTable(reply, feature, used) : "",
      panel("Record", cards([
        ["snapshot of the record", record ? shown(record.applied_snapshot) : "–"],
        ["applied snapshot, all of its bucket", shown(reply.freshness.applied_snapshot)],
        [`newest event, ${zone()}`, when(record ? record.event_high_ms : null)],
        ["generation, incarnation", record ? `${record.generation}, ${record.incarnation}` : "–"],
        ["bucket, epoch", record ? `${record.bucket}, ${record.epoch}` : "–"],
        ["size", record ? `${number(record.size_bytes)} bytes, ${reply.cells.length} cells` : "–"],
      ]), id ? el("p", { class: "dim small mono" }, `request ${id}`) : null)] : []));
    // what was pressed is drawn again: the keyboard stays there
    if (focus) box.querySelector(`.${focus}[aria-pressed="true"]`).focus({ preventScroll: true });
  };
  draw(false);
}

// -- the time line ---------------------------------------------------------------------------
const STEPS = [1, 10, 100, 1000, 5000, 15000, 60000, 300000, 900000, 3600000, 3 * 3600000, 6 * 3600000,
  12 * 3600000, 86400000, 2 * 86400000, 7 * 86400000, 14 * 86400000, 30 * 86400000, 91 * 86400000, 365 * 86400000];
function range(reply, feature, zoom) {
  const cells = reply.cells.filter((cell) => cell.start_ms !== null);
  const tile = reply.levels_ms[0];
  const starts = cells.map((cell) => cell.start_ms);
  const ends = cells.map((cell) => cell.end_ms);
  const usedStarts = feature.cells.map((share) => reply.cells[share.cell].start_ms).filter((ms) => ms !== null);
  let from, to = Math.max(reply.as_of_ms, feature.end_ms);
  if (zoom === "record") {
    from = Math.min(...starts, to);
    to = Math.max(...ends, to);
  } else if (zoom === "end") {
    const coarse = reply.levels_ms[Math.min(1, reply.levels_ms.length - 1)];
    from = Math.min(Math.floor(feature.end_ms / coarse) * coarse, to - 2 * tile);
    if (feature.start_ms !== null) from = Math.max(from, Math.min(feature.start_ms, to - 2 * tile));
    to = Math.max(to, Math.ceil(feature.end_ms / tile) * tile);
  } else {
    from = feature.start_ms !== null ? feature.start_ms : Math.min(...usedStarts, ...starts, to - tile);
    to = Math.max(to, Math.ceil(feature.end_ms / tile) * tile);
  }
  const room = Math.max(to - from, tile) * 0.03;
  return [from - room, to + room];
}
function timeline(reply, feature, used, zoom) {
  const [from, to] = range(reply, feature, zoom);
  const W = 960, LEFT = 92, RIGHT = 14, TOP = 40, LANE = 46, GAP = 12;
  const levels = reply.levels_ms.map((_, i) => i).reverse();
  const H = TOP + levels.length * (LANE + GAP) + 26;
  const x = (ms) => LEFT + (W - LEFT - RIGHT) * (ms - from) / (to - from);
  const inside = (px) => Math.min(Math.max(px, LEFT), W - RIGHT);
  const svg = shape("svg", { class: "cells", viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": `Cells over time. ${feature.sentence}` });
  const step = STEPS.find((s) => (to - from) / s <= 8) || Math.ceil((to - from) / 8 / STEPS.at(-1)) * STEPS.at(-1);
  const bottom = H - 26;
  for (let ms = Math.ceil(from / step) * step; ms <= to; ms += step) {
    svg.append(shape("line", { class: "tick", x1: x(ms), x2: x(ms), y1: TOP, y2: bottom + 4 }));
    const label = shape("text", { x: x(ms), y: bottom + 18, "text-anchor": x(ms) > W - 45 ? "end" : "middle" });
    label.textContent = step >= 86400000 || ms % 86400000 === 0 ? moment(ms, 86400000) : moment(ms, step).slice(11);
    svg.append(label);
  }
  levels.forEach((level, lane) => {
    const y = TOP + lane * (LANE + GAP);
    svg.append(shape("rect", { class: "lane", x: LEFT, y, width: W - LEFT - RIGHT, height: LANE, rx: 4 }));
    const name = shape("text", { x: LEFT - 10, y: y + LANE / 2 + 4, "text-anchor": "end" });
    name.textContent = `${duration(reply.levels_ms[level])} cells`;
    svg.append(name);
  });
  const first = feature.start_ms === null ? from : feature.start_ms;
  const [left, right] = [inside(x(first)), inside(x(feature.end_ms))];
  svg.append(shape("rect", { class: "band", x: left, y: TOP - 6, width: Math.max(right - left, 0), height: bottom - TOP + 6 }));
  const most = new Map(levels.map((level) => [level, Math.max(1, ...reply.cells.filter((c) => c.level === level).map((c) => Math.abs(c.events || 0)))]));
  reply.cells.forEach((cell, i) => {
    if (cell.level === null || cell.end_ms <= from || cell.start_ms >= to) return;
    const lane = levels.indexOf(cell.level);
    const [a, b] = [inside(x(cell.start_ms)), inside(x(cell.end_ms))];
    const height = LANE * (0.3 + 0.7 * Math.abs(cell.events || 0) / most.get(cell.level));
    const width = Math.max(b - a - (b - a > 4 ? 1 : 0), 2);
    const share = used.get(i);
    const rect = shape("rect", { class: `cell${share ? " used" : ""}`, "data-cell": i, x: a,
      y: TOP + lane * (LANE + GAP) + LANE - height, width, height, rx: Math.min(2, width / 3) });
    const title = shape("title", {});
    title.textContent = `${moment(cell.start_ms)} to ${moment(cell.end_ms)} ${zone()}\n${cell.events} events` +
      (share ? `\nalone: ${short(share.alone)}` : "\nnot in this window");
    rect.append(title);
    rect.addEventListener("mouseenter", () => hot(i, true));
    rect.addEventListener("mouseleave", () => hot(i, false));
    svg.append(rect);
  });
  const mark = (ms, kind, text, row) => {
    if (ms < from || ms > to) return;
    svg.append(shape("line", { class: kind, x1: x(ms), x2: x(ms), y1: row ? 8 : TOP - 18, y2: bottom }));
    const late = x(ms) > W - 250;
    const label = shape("text", { class: kind === "now" ? "nowtext" : "strong", x: x(ms) + (late ? -5 : 5), y: row ? 14 : TOP - 10, "text-anchor": late ? "end" : "start" });
    label.textContent = text;
    svg.append(label);
  };
  if (feature.start_ms !== null) mark(feature.start_ms, "edge", `from ${moment(feature.start_ms)}`, false);
  if (feature.end_ms !== reply.as_of_ms) mark(feature.end_ms, "edge", `to ${moment(feature.end_ms)}`, false);
  mark(reply.as_of_ms, "now", `read at ${moment(reply.as_of_ms)}`, true);
  if (reply.cells.some((cell) => cell.level === null)) {
    const i = reply.cells.findIndex((cell) => cell.level === null);
    const note = shape("text", { x: LEFT, y: 14, class: used.has(i) ? "strong" : "" });
    note.textContent = `◀ lifetime cell: ${number(reply.cells[i].events || 0)} events before ${moment(reply.cells[i].end_ms)}`;
    svg.append(note);
  }
  return el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": `Cells of ${reply.view}:${feature.name} over time` }, svg);
}
function hot(i, on) {
  for (const node of document.querySelectorAll(`[data-cell="${i}"]`)) node.classList.toggle("hot", on);
}
function cellsTable(reply, feature, used) {
  const partials = Object.keys(feature.merged);
  const order = feature.cells.map((share) => share.cell)
    .sort((a, b) => (reply.cells[b].start_ms ?? -Infinity) - (reply.cells[a].start_ms ?? -Infinity));
  const most = 200;
  const line = (i) => {
    const cell = reply.cells[i];
    const tr = el("tr", { "data-cell": i },
      el("td", {}, cell.level === null ? "lifetime" : duration(reply.levels_ms[cell.level])),
      el("td", { class: "mono" }, cell.level === null ? "the beginning" : moment(cell.start_ms)),
      el("td", { class: "mono" }, moment(cell.end_ms)),
      el("td", { class: "num" }, shown(cell.events)),
      partials.map((name) => el("td", { class: "num", title: shown(cell.partials[name]) }, short(cell.partials[name], 28))),
      el("td", { class: "num" }, short(used.get(i).alone, 36)));
    tr.addEventListener("mouseenter", () => hot(i, true));
    tr.addEventListener("mouseleave", () => hot(i, false));
    return tr;
  };
  return el("section", { class: "panel fade" },
    el("h2", {}, `${order.length} of ${reply.cells.length} cells make up ${feature.name}`),
    el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": `Cells of ${reply.view}:${feature.name}` }, el("table", {},
      el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "Level"), el("th", { scope: "col" }, "From (in)"),
        el("th", { scope: "col" }, "To (out)"), el("th", { scope: "col", class: "num" }, "Events"),
        partials.map((name) => el("th", { scope: "col", class: "num" }, name.replace(/^p_/, ""))),
        el("th", { scope: "col", class: "num" }, "Alone"))),
      el("tbody", {}, order.slice(0, most).map(line)),
      el("tfoot", {}, el("tr", { class: "used" }, el("td", { colspan: 3 }, el("b", {}, "together")),
        el("td", { class: "num" }, el("b", {}, number(feature.events))),
        partials.map((name) => el("td", { class: "num", title: shown(feature.merged[name]) }, short(feature.merged[name], 28))),
        el("td", { class: "num" }, el("b", {}, short(feature.value, 36))))))),
    order.length > most ? el("p", { class: "dim small" }, `and ${order.length - most} older ones`) : null,
    el("p", { class: "dim small" }, "Alone: what the value would be if this cell were the only one."));
}
