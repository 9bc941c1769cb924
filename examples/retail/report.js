// The demo's report: what it saw, in the elements and charts of the web UI.
import { bars, lineChart } from "./charts.js";
import { $, cards, el, number, panel, rough, shape, table } from "./dom.js";
import { next, pref } from "./prefs.js";

const facts = JSON.parse($("facts").textContent), circle = facts.circle;
const sum = (values) => values.reduce((a, b) => a + b, 0);
const middle = (values) => [...values].sort((a, b) => a - b)[Math.floor(values.length / 2)] ?? 0;
const most = (values) => Math.max(...values, 0);
const seconds = (value) => `${value.toLocaleString("en", { maximumSignificantDigits: 2 })} s`;
const millis = (value) => `${value.toLocaleString("en", { maximumSignificantDigits: 2 })} ms`;
const signed = (value) => `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(4)}`;
const percent = (value) => `${(value * 100).toFixed(0)} %`;
const tiny = (value) => (value ? value.toExponential(0).replace("e-", "e−") : "0");
const events = sum(facts.events_per_day), tiles = sum(facts.tiles_per_day);
const before = circle.answers[0], after = circle.answers[1];

function applyTheme() {
  const found = pref("theme");
  if (found === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = found;
  $("theme").textContent = found[0].toUpperCase() + found.slice(1);
  $("theme").setAttribute("aria-label", `Theme: ${found}`);
}

// -- the circle -------------------------------------------------------------------------------

function ring() {
  const steps = [
    ["Events", number(events), "with a customer, from files and as a stream"],
    ["Tiles", number(tiles), "partial aggregates of five minutes: DuckDB for the past, Flink for the stream"],
    ["Online features", seconds(middle(facts.freshness_s)), "from the commit of an event to a lookup (median)"],
    ["Training set", number(circle.rows), "orders, each with the features of its own time"],
    ["Version 1", `AUC ${circle.metrics.auc.toFixed(3)}`, "on the newest orders; served by the feature server", true],
    ["Predictions", number(circle.predictions), `for customers who had just ordered; ${millis(middle(circle.requests_ms))} a request (median)`],
    ["Outcomes", number(circle.outcomes), `predictions are a week old: ${percent(circle.bought)} have ordered again`],
    ["Version 2", `${signed(circle.gate.mean)}`, `log loss, on ${number(circle.gate.rows)} orders that neither version had seen: promoted`, true],
  ];
  const svg = shape("svg", { viewBox: "0 0 1000 540", preserveAspectRatio: "none", "aria-hidden": "true" },
    shape("ellipse", { cx: 500, cy: 270, rx: 390, ry: 218 }));
  // between two steps, in their direction
  const arrows = shape("svg", { viewBox: "0 0 1000 540", "aria-hidden": "true" });
  for (const degrees of [-66, -18, 18, 66, 114, 162, 198, 246]) {
    const a = degrees * Math.PI / 180, x = 500 + 390 * Math.cos(a), y = 270 + 218 * Math.sin(a);
    const turn = Math.atan2(218 * Math.cos(a), -390 * Math.sin(a)) * 180 / Math.PI;
    arrows.append(shape("path", { class: "arrow", d: "M-7 -7L8 0L-7 7Z", transform: `translate(${x.toFixed(1)} ${y.toFixed(1)}) rotate(${turn.toFixed(1)})` }));
  }
  return el("ol", { class: "ring", "aria-label": "The circle, from events to a version that has learned from its own predictions" }, svg, arrows,
    steps.map(([name, value, text, model], i) => el("li", { class: model ? "model" : null },
      el("h3", {}, el("i", {}, String(i + 1)), name), el("b", {}, value), el("span", {}, text))),
    el("p", {}, el("b", {}, seconds(facts.total_s)), el("span", { class: "dim small" }, "once around, on this machine; then the next events arrive")));
}

// -- plots ------------------------------------------------------------------------------------

// so wide that its text has the size of other text
const room = (share = 1) => Math.max(300, Math.min(1080, ($("content").clientWidth || 800) - 70) * share);

// zero and both signs on one scale: linear near 0, logarithmic beyond
const squeezed = (value) => Math.asinh(value * 5);
const TICKS = [-1e5, -1e4, -1e3, -100, -10, -1, 0, 1, 10, 100, 1e3, 1e4, 1e5, 1e6];

function parity() {
  const names = [...new Set(facts.pairs.map((pair) => pair[0]))].sort();
  const apart = ([, online, raw]) => Math.abs(online - raw) / Math.max(Math.abs(online), Math.abs(raw), 1e-300) * (online === raw ? 0 : 1);
  const choice = el("select", { id: "feature" }, el("option", { value: "" }, `All ${names.length} features`), names.map((name) => el("option", { value: name }, name)));
  const said = el("p", { class: "small said", role: "status" });
  const box = el("div", { class: "plot" });
  const idle = "Point at a value, or choose a feature.";

  function draw() {
    const shownPairs = facts.pairs.filter(([name]) => !choice.value || name === choice.value);
    const W = room(), H = Math.min(440, Math.max(300, W * 0.55)), LEFT = 58, RIGHT = 12, TOP = 12, BOTTOM = 40;
    const values = shownPairs.flatMap((pair) => [pair[1], pair[2]]).map(squeezed);
    let low = Math.min(...values), high = Math.max(...values);
    const margin = (high - low || 1) * 0.04;
    low -= margin; high += margin;
    const x = (value) => LEFT + (W - LEFT - RIGHT) * (squeezed(value) - low) / (high - low);
    const y = (value) => H - BOTTOM - (H - TOP - BOTTOM) * (squeezed(value) - low) / (high - low);
    const svg = shape("svg", { class: "chart", viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": `${shownPairs.length} values: online against raw events, all on the diagonal within the tolerance` });
    const ticks = TICKS.filter((tick) => squeezed(tick) >= low && squeezed(tick) <= high);
    let last = -1e9;
    for (const tick of ticks) {
      svg.append(shape("line", { class: "grid-line", x1: LEFT, x2: W - RIGHT, y1: y(tick), y2: y(tick) }),
        shape("line", { class: "grid-line", x1: x(tick), x2: x(tick), y1: TOP, y2: H - BOTTOM }),
        shape("text", { x: LEFT - 8, y: y(tick) + 4, "text-anchor": "end" }, number(tick)));
      if (x(tick) - last > 46) { svg.append(shape("text", { x: x(tick), y: H - BOTTOM + 18, "text-anchor": "middle" }, number(tick))); last = x(tick); }
    }
    svg.append(shape("text", { x: (LEFT + W - RIGHT) / 2, y: H - 4, "text-anchor": "middle" }, "computed from raw events"),
      shape("text", { x: -(TOP + H - BOTTOM) / 2, y: 12, transform: "rotate(-90)", "text-anchor": "middle" }, "online store"),
      shape("line", { class: "diagonal", x1: LEFT, y1: H - BOTTOM, x2: W - RIGHT, y2: TOP }));
    const points = shownPairs.map((pair) => [x(pair[2]), y(pair[1]), pair]);
    for (const [px, py] of points) svg.append(shape("circle", { class: "point", cx: px.toFixed(1), cy: py.toFixed(1), r: 3 }));
    const hot = shape("circle", { class: "point hot", r: 5.5, visibility: "hidden" });
    svg.append(hot);
    svg.addEventListener("pointermove", (event) => {
      const frame = svg.getBoundingClientRect(), cx = (event.clientX - frame.left) * W / frame.width, cy = (event.clientY - frame.top) * H / frame.height;
      const near = points.reduce((a, b) => (Math.hypot(b[0] - cx, b[1] - cy) < Math.hypot(a[0] - cx, a[1] - cy) ? b : a));
      hot.setAttribute("cx", near[0]); hot.setAttribute("cy", near[1]); hot.setAttribute("visibility", "visible");
      const [name, online, raw] = near[2], difference = apart(near[2]);
      said.replaceChildren(el("b", {}, name), `: online ${number(online)}, from raw events ${number(raw)}; relative difference ${difference ? tiny(difference) : "none"}`);
    });
    svg.addEventListener("pointerleave", () => { hot.setAttribute("visibility", "hidden"); said.textContent = idle; });
    said.textContent = idle;
    box.replaceChildren(svg);
  }
  choice.addEventListener("change", draw);
  const rows = names.map((name) => { const own = facts.pairs.filter((pair) => pair[0] === name); return [name, own.length, own.filter((pair) => pair[1] === pair[2]).length, most(own.map(apart))]; });
  return { draw, node: panel("Online equals raw events",
    el("p", { class: "dim" }, `${number(facts.compared)} values were computed three ways: from the online store, from the tiles, and from raw events by a reference implementation. None differs beyond the tolerance; the largest relative difference is ${tiny(facts.largest)}. ${number(facts.pairs.length)} of them are drawn.`),
    el("p", { class: "row" }, el("label", {}, "Feature", choice)), box, said,
    el("details", {}, el("summary", { class: "small" }, "By feature"), table([["feature", "mono", (r) => r[0]], ["values", "num", (r) => number(r[1])], ["equal to the bit", "num", (r) => number(r[2])], ["largest relative difference", "num", (r) => tiny(r[3])]], rows, "Parity by feature"))) };
}

function histogram(values, label) {
  const high = most(values) || 1, count = 12, bins = Array(count).fill(0);
  for (const value of values) bins[Math.min(count - 1, Math.floor(value / high * count))] += 1;
  const edge = (i) => seconds(high * i / count);
  return el("div", {}, bars(bins.map((n, i) => `${edge(i)} to ${edge(i + 1)}: ${n}`), bins, null, label),
    el("p", { class: "row small dim" }, el("span", { class: "grow" }, "0 s"), seconds(high)));
}

function losses() {
  const W = room(0.47), H = 210, LEFT = 44, BOTTOM = 34, TOP = 10;
  const svg = shape("svg", { class: "chart plot", viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": "Loss of each batch, by epoch" });
  const all = facts.steps.map(([, loss]) => loss), high = most(all) || 1, count = facts.steps.length;
  const x = (i) => LEFT + (W - LEFT - 8) * i / Math.max(count - 1, 1), y = (loss) => H - BOTTOM - (H - BOTTOM - TOP) * loss / high;
  const unit = high > 0.6 ? 0.2 : 0.1;
  for (let loss = 0; loss <= high; loss += unit) svg.append(shape("line", { class: "grid-line", x1: LEFT, x2: W - 8, y1: y(loss), y2: y(loss) }),
    shape("text", { x: LEFT - 8, y: y(loss) + 4, "text-anchor": "end" }, loss.toFixed(1)));
  for (const epoch of [1, 2]) {
    const d = facts.steps.map(([e, loss], i) => [e, i, loss]).filter(([e]) => e === epoch).map(([, i, loss], k) => `${k ? "L" : "M"}${x(i).toFixed(1)} ${y(loss).toFixed(1)}`).join("");
    svg.append(shape("path", { class: `epoch-${epoch}`, d }));
  }
  svg.append(shape("text", { x: (W + LEFT) / 2, y: H - 6, "text-anchor": "middle" }, "batch"));
  return svg;
}

function gate() {
  const found = circle.gate, W = room(0.47), H = 96, LEFT = 14;
  const low = Math.min(found.low * 1.15, 0), high = Math.max(found.high * 1.15, Math.abs(low) * 0.2);
  const x = (value) => LEFT + (W - 2 * LEFT) * (value - low) / (high - low);
  return shape("svg", { class: "chart plot", viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": `Difference of the log losses: ${signed(found.mean)}, from ${signed(found.low)} to ${signed(found.high)}` },
    shape("line", { class: "grid-line", x1: LEFT, x2: W - LEFT, y1: 60, y2: 60 }),
    shape("line", { class: "zero", x1: x(0), x2: x(0), y1: 16, y2: 70 }), shape("text", { x: x(0), y: 86, "text-anchor": "middle" }, "0: no difference"),
    shape("line", { class: "span", x1: x(found.low), x2: x(found.high), y1: 42, y2: 42 }), shape("circle", { class: "dot", cx: x(found.mean), cy: 42, r: 6 }),
    shape("text", { class: "strong", x: x(found.mean), y: 26, "text-anchor": "middle" }, signed(found.mean)),
    shape("text", { x: LEFT, y: 86 }, "better"));
}

const plain = (rows, caption) => table(Object.keys(rows[0] || {}).map((name) => {
  const isNumber = rows.every((row) => row[name] === null || typeof row[name] === "number");
  return [name, isNumber ? "num" : "", (row) => (row[name] === null ? "–" : isNumber && !/_id$/.test(name) ? rough(row[name]) : String(row[name]))];
}), rows, caption);

function steps() {
  const rows = Object.entries(facts.seconds), high = most(rows.map((row) => row[1])) || 1;
  return table([["step", "word", (r) => r[0]], ["seconds", "num", (r) => r[1].toFixed(1)],
    ["", "meter", (r) => shape("svg", { viewBox: "0 0 100 8", preserveAspectRatio: "none", "aria-hidden": "true" }, shape("rect", { class: "track", width: 100, height: 8 }), shape("rect", { width: (100 * r[1] / high).toFixed(1), height: 8 }))]], rows, "Seconds by step");
}

// -- the page ---------------------------------------------------------------------------------

function draw() {
  const plot = parity(), days = (values) => facts.days.map((day, i) => [day * 86400000, values[i]]);
  const scored = circle.customers.slice(0, 6).map((customer, i) => ({ customer: String(customer), "version 1": before.predictions[i], "version 2": after.predictions[i] }));
  $("content").replaceChildren(
    el("div", { class: "top" }, el("h1", {}, "From events to a model that learns from its own predictions"),
      el("p", { class: "dim lead" }, "A shop's log became tiles, tiles became online features and a training set, and these a model. Its predictions were logged, what customers did next became labels, and the second version, trained on them, replaced the first one in the running server.")),
    cards([
      ["events with a customer", number(events)],
      ["values online = tiles = raw events", number(facts.compared), "good", "Compared three ways; none differs"],
      ["from commit to lookup (median)", seconds(middle(facts.freshness_s))],
      ["a request for predictions (median)", millis(middle(circle.requests_ms))],
      ["AUC of version 1 on newer orders", circle.metrics.auc.toFixed(3)],
      ["log loss of version 2 against 1", signed(circle.gate.mean), circle.gate.mean < 0 ? "good" : "bad"],
      ["predictions online = offline", number(circle.compared), "good", `Largest difference ${tiny(circle.largest)}`],
      ["for all of it", seconds(facts.total_s)],
    ]),
    panel("The circle", ring()),
    plot.node,
    el("div", { class: "grid" },
      panel("Version 2 is better than version 1", el("p", { class: "dim" }, `On the ${number(circle.gate.rows)} newest orders with an outcome, which neither version was trained on, the mean log loss of version 2 is ${signed(circle.gate.mean)} from ${circle.gate.loss.toFixed(4)}. The line is its interval: each end is a bound of 95 %. A version whose bound is not below zero is not promoted.`), gate()),
      panel("The same request, before and after the promotion", el("p", { class: "dim" }, `The probability of another order within a week. ${number(circle.compared)} logged predictions of both versions were computed again from the lake: the largest difference is ${tiny(circle.largest)}.`), plain(scored, "Predictions by version")),
      panel("Freshness", el("p", { class: "dim" }, `From the commit of an event to its value in a lookup, ${facts.freshness_s.length} commits while the last weeks of the log were streamed: median ${seconds(middle(facts.freshness_s))}, slowest ${seconds(most(facts.freshness_s))}, at checkpoints of one second.`), histogram(facts.freshness_s, "Commits by seconds until the lookup")),
      panel("Loss per epoch", el("p", { class: "dim" }, facts.epochs.map((e) => `epoch ${e.epoch}: loss ${e.loss.toFixed(4)}, AUC of the newest orders ${e.auc.toFixed(3)}`).join("; ") + ". A network in a loop by hand: its losses are events, and the second epoch draws hard samples more often and weighs them back."), losses(),
        el("p", { class: "legend small dim" }, el("span", {}, el("i", { class: "u" }), "epoch 1"), el("span", {}, el("i", { class: "s" }), "epoch 2")))),
    panel("Events and tiles per day", el("p", { class: "dim" }, `${number(events)} events with a customer became ${number(tiles)} tiles of five minutes: ${(events / tiles).toFixed(1)} events each, merged by the lake.`),
      el("h3", {}, "Events"), lineChart(days(facts.events_per_day), { label: "Events with a customer per day", height: 170 }),
      el("h3", {}, "Tiles"), lineChart(days(facts.tiles_per_day), { label: "Tiles per day", height: 170 })),
    panel("Hardest samples", el("p", { class: "dim" }, "By decayed loss, read back from the tiles of the feedback."), plain(facts.hardest, "Hardest samples")),
    panel("Customers looked up", el("p", { class: "dim" }, "As the online store answered. MISSING: there is no event of the last half year, or there never was one."), plain(facts.lookups, "Customers looked up")),
    el("div", { class: "grid" },
      panel("Rows that did not become events", el("p", { class: "dim" }, "Kept in rejected_retail with the reason."), plain(Object.entries(facts.rejected).map(([reason, rows]) => ({ reason, rows })), "Rejected rows")),
      panel("Where the time went", el("p", { class: "dim" }, "Some steps ran next to each other."), steps())));
  plot.draw();
}

applyTheme();
$("theme").addEventListener("click", () => { document.documentElement.dataset.theme = next("theme"); applyTheme(); });
draw();
// drawn again where the page gets another width, and not where a phone's bars hide
let drawn = innerWidth;
addEventListener("resize", () => { if (innerWidth !== drawn) { drawn = innerWidth; draw(); } });
