// Small charts as SVG, of our own: a line over time, bars, points against a diagonal, a spark line.
import { el, moment, rough, shape } from "./dom.js";

const STEPS = [1000, 5000, 15000, 60000, 300000, 900000, 3600000, 3 * 3600000, 6 * 3600000, 12 * 3600000,
  86400000, 2 * 86400000, 7 * 86400000, 14 * 86400000, 30 * 86400000, 91 * 86400000, 365 * 86400000];
// as wide as it is drawn, so that its text has the size of other text
const width = () => Math.max(300, Math.min(1040, ((document.getElementById("content") || document.body).clientWidth || 760) - 40));
const nice = (low, high, count) => {
  const raw = (high - low || 1) / count, power = 10 ** Math.floor(Math.log10(raw));
  return [1, 2, 5, 10].map((n) => n * power).find((step) => step >= raw);
};

// points: [[ms, value or null]]; a null breaks the line
export function lineChart(points, { label, height = 220, step = false, format = rough } = {}) {
  const W = width(), H = height, LEFT = 64, RIGHT = 14, TOP = 12, BOTTOM = 26;
  const known = points.filter(([, value]) => typeof value === "number");
  const svg = shape("svg", { class: "chart", viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": label });
  if (!known.length) return el("p", { class: "dim" }, "No values in this time.");
  const from = points[0][0], to = Math.max(points.at(-1)[0], from + 1);
  let low = Math.min(...known.map((p) => p[1])), high = Math.max(...known.map((p) => p[1]));
  if (low > 0 && low < high * 0.6) low = 0;
  if (low === high) { low -= Math.abs(low) * 0.1 || 1; high += Math.abs(high) * 0.1 || 1; }
  const unit = nice(low, high, 4);
  low = Math.floor(low / unit) * unit;
  high = Math.ceil(high / unit) * unit;
  const x = (ms) => LEFT + (W - LEFT - RIGHT) * (ms - from) / (to - from);
  const y = (value) => H - BOTTOM - (H - TOP - BOTTOM) * (value - low) / (high - low);
  for (let value = low; value <= high + unit / 2; value += unit) {
    svg.append(shape("line", { class: "grid-line", x1: LEFT, x2: W - RIGHT, y1: y(value), y2: y(value) }),
      shape("text", { x: LEFT - 8, y: y(value) + 4, "text-anchor": "end" }, format(Number(value.toPrecision(10)))));
  }
  const most = Math.max(2, Math.floor(W / 130));
  const tick = STEPS.find((s) => (to - from) / s <= most) || Math.ceil((to - from) / most / STEPS.at(-1)) * STEPS.at(-1);
  for (let ms = Math.ceil(from / tick) * tick; ms <= to; ms += tick)
    svg.append(shape("text", { x: x(ms), y: H - 8, "text-anchor": x(ms) > W - 50 ? "end" : "middle" },
      tick >= 86400000 ? moment(ms, 86400000) : moment(ms, 60000).slice(ms % 86400000 ? 11 : 5)));
  const runs = [];
  let run = null;
  for (const [ms, value] of points) {
    if (typeof value !== "number") run = null;
    else if (run) run.push([x(ms), y(value)]);
    else runs.push(run = [[x(ms), y(value)]]);
  }
  const text = (found) => found.map(([a, b], i) => (i && step ? `L${a.toFixed(1)} ${found[i - 1][1].toFixed(1)}` : "") +
    `${i ? "L" : "M"}${a.toFixed(1)} ${b.toFixed(1)}`).join("");
  for (const found of runs) {
    svg.append(shape("path", { class: "area", d: `${text(found)}L${found.at(-1)[0].toFixed(1)} ${H - BOTTOM}L${found[0][0].toFixed(1)} ${H - BOTTOM}Z` }),
      shape("path", { class: "line", d: text(found) }));
    if (found.length === 1 || known.length <= 60) for (const [a, b] of found) svg.append(shape("circle", { class: "dot", cx: a, cy: b, r: 2.5 }));
  }
  const cursor = shape("line", { class: "cursor", y1: TOP, y2: H - BOTTOM, visibility: "hidden" });
  const note = shape("text", { class: "strong", y: TOP + 10, visibility: "hidden" });
  svg.append(cursor, note);
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect(), at = from + ((event.clientX - box.left) * W / box.width - LEFT) / (W - LEFT - RIGHT) * (to - from);
    const near = known.reduce((a, b) => (Math.abs(b[0] - at) < Math.abs(a[0] - at) ? b : a));
    const px = x(near[0]);
    for (const node of [cursor, note]) node.setAttribute("visibility", "visible");
    cursor.setAttribute("x1", px); cursor.setAttribute("x2", px);
    note.setAttribute("x", px > W / 2 ? px - 6 : px + 6);
    note.setAttribute("text-anchor", px > W / 2 ? "end" : "start");
    note.textContent = `${format(near[1])} · ${moment(near[0])}`;
  });
  svg.addEventListener("pointerleave", () => { for (const node of [cursor, note]) node.setAttribute("visibility", "hidden"); });
  return svg;
}

// shares of now next to shares of then, per bin
export function bars(labels, nowCounts, thenCounts, label) {
  const W = 300, H = 96, BOTTOM = 4, total = (counts) => counts.reduce((a, b) => a + Number(b), 0) || 1;
  const nowTotal = total(nowCounts), thenTotal = thenCounts ? total(thenCounts) : 1;
  const shares = nowCounts.map((count, i) => [Number(count) / nowTotal, thenCounts ? Number(thenCounts[i]) / thenTotal : null]);
  const most = Math.max(...shares.flat().filter((v) => v !== null), 1e-9), each = W / shares.length;
  const svg = shape("svg", { class: "chart", viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": label });
  shares.forEach(([a, b], i) => {
    const bar = (kind, share, left, width) => shape("rect", { class: kind, x: left, width: Math.max(width, 0.8), rx: Math.min(2, width / 3),
      y: H - BOTTOM - (H - BOTTOM - 4) * share / most, height: Math.max((H - BOTTOM - 4) * share / most, share ? 1 : 0) },
    shape("title", {}, `${labels[i]}\nnow ${(a * 100).toFixed(1)} %${b === null ? "" : `, before ${(b * 100).toFixed(1)} %`}`));
    if (b !== null) svg.append(bar("bar-then", b, i * each + each * 0.52, each * 0.36));
    svg.append(bar("bar-now", a, i * each + each * 0.1, b === null ? each * 0.8 : each * 0.4));
  });
  svg.append(shape("line", { class: "grid-line", x1: 0, x2: W, y1: H - BOTTOM, y2: H - BOTTOM }));
  return svg;
}

export function spark(points, label) {
  const W = 120, H = 26;
  if (points.length < 2) return el("span", { class: "dim small" }, "–");
  const from = points[0][0], to = points.at(-1)[0], most = Math.max(...points.map((p) => p[1]), 1);
  const d = points.map(([ms, value], i) => `${i ? "L" : "M"}${(W * (ms - from) / (to - from || 1)).toFixed(1)} ${(H - 2 - (H - 4) * value / most).toFixed(1)}`).join("");
  return shape("svg", { class: "spark", viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": label }, shape("path", { d }));
}
