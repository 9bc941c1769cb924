// The page of one definition.
import { now, source } from "./api.js";
import { bars, lineChart, spark } from "./charts.js";
import { ago, cards, duration, el, link, longTable, moment, number, panel, pill, plural, rough, route, short, shown, table, tag, when, words, zone } from "./dom.js";
import { elsewhere } from "./home.js";
import { graph, links } from "./lineage.js";
import { catalogue, lastHealth, health, samples } from "./model.js";
import { snippets } from "./snippets.js";

const FACTS = ["expression", "of", "fitted", "type", "request", "event_time", "time_zone", "schema", "derive", "where", "keys", "tile", "buckets", "partition_days", "session_gap", "size"];

export function head(item, more = []) {
  return el("div", { class: "top" }, el("p", { class: "crumb" }, words(item.kind)), el("h1", {}, item.name),
    item.description ? el("p", { class: "lead" }, item.description) : null,
    el("div", { class: "row" }, item.state ? pill(item.state, item.state === "applied" ? "good" : "warn") : null,
      item.owner ? tag(`owner ${item.owner}`) : null, Object.entries(item.tags || {}).map(([key, value]) => tag(`${key}=${value}`)), more));
}

export async function definition(box, kind, name) {
  const found = await catalogue();
  const i = found.index.get(`${kind}/${name}`);
  if (i === undefined) throw new Error(`unknown ${words(kind)} '${name}'; the search lists the available ones`);
  const item = found.items[i];
  const defined = !["training_set", "fitted_transformer"].includes(kind);
  const document_ = defined ? await source.definition(kind, name, found) : {};
  const entity = item.entity ? link(route("entity", item.entity), `entity ${item.entity}`, "tag") : null;
  const parts = [head(item, [entity])];
  if (kind === "feature_view") parts.push(...await viewParts(item, document_, found));
  else if (kind === "entity") parts.push(entityParts(item, document_, found));
  else if (kind === "service") parts.push(...serviceParts(item, document_, found));
  else parts.push(facts(document_));
  if (kind === "training_set") parts.push(panel(null, link("#/artifacts", "Pins of all training sets and models")));
  if (document_.features && kind !== "feature_view" && kind !== "service") parts.push(plainFeatures(document_.features));
  parts.push(panel("Lineage", found.parents[i].length + found.children[i].length ? graph(found, i) : el("p", { class: "dim" }, source.hasLake ? "Nothing is derived from it here." : "No definition is derived from it; training sets and models that use it are not visible on this host.")),
    users(found, i), changes(document_), source.hasLake ? "" : elsewhere());
  box.replaceChildren(...parts);
}

function users(found, i) {
  return panel("Who uses it", el("div", { class: "row" }, found.children[i].length ? links(found, found.children[i]) : el("span", { class: "dim" }, "No service, interaction or training set yet.")),
    found.parents[i].length ? el("p", { class: "row" }, el("span", { class: "dim small" }, "derived from"), links(found, found.parents[i])) : null);
}
function plainFeatures(features) {
  return panel(plural(features.length, "feature"), longTable([["Feature", null, (one) => el("code", {}, typeof one === "string" ? one : one.name || shown(one))]], features, "Features"));
}
function facts(document_) {
  const rows = FACTS.filter((key) => document_[key] !== undefined && document_[key] !== null && shown(document_[key]) !== "{}");
  return rows.length ? panel("Definition", table([["", null, (key) => words(key)], ["", "word", (key) => el("code", {}, shown(document_[key]))]], rows, "Definition")) : "";
}

async function viewParts(item, view, found) {
  const state = (lastHealth() || await health().catch(() => ({ views: [] }))).views.find((one) => one.name === item.name) || {};
  const active = (view.kept || []).find((one) => one.state === "active");
  const parts = [cards([
    ["features", number(view.features.length)],
    [view.online === false ? "read" : "online", view.online === false ? "from the lake only" : state.problem ? "not served" : state.current_ms ? "served" : "not materialized", state.problem ? "bad" : null, state.problem],
    typeof state.behind_s === "number" ? ["behind", ago(state.behind_s * 1000), state.stale || state.behind ? "bad" : "good"] : null,
    active ? ["rows of tiles", number(active.rows)] : null,
    active && active.commits.length ? ["since the last commit", ago(now() - active.commits.at(-1).time_ms)] : null,
    view.ttl_ms ? ["ttl", duration(view.ttl_ms)] : null,
    view.max_staleness_ms ? ["stale after", duration(view.max_staleness_ms)] : null,
    item.full ? ["tile", duration(item.full.tile_ms)] : view.tile ? ["tile", shown(view.tile)] : null,
  ])];
  const sampleBox = el("div", {}), codeBox = el("div", {}), profileBox = el("div", {});
  const code = (sample) => snippets({ names: item.full ? view.features.map((f) => f.reference) : view.features.map((f) => `${item.name}:${f.name}`), keys: item.keys || (item.full || {}).keys || {},
    sample, table: active && active.table, warehouse: found.warehouse, database: found.database });
  codeBox.append(code(null));
  if (source.hasLake) {
    parts.push(sampleBox, profileBox);
    later(sampleBox, "Sample values", async () => {
      const sample = await source.sample(item.name);
      if (sample.rows.length) codeBox.replaceChildren(code(sample.rows[0].entity));
      return sampleTable(item, sample);
    });
    later(profileBox, "Distributions and drift", async () => profile(await source.profile(item.name)));
  } else if (item.full) parts.push(entityForm(item, item.full.keys));
  parts.push(featureTable(view), codeBox);
  if (samples(item.name).length > 1) parts.push(panel("Behind, since this page is open", lineChart(samples(item.name), { label: "Seconds behind", height: 150 })));
  if (view.kept) parts.push(...view.kept.map((one) => generation(one)).reverse());
  return parts;
}
// fetched on its own, so that a slow part holds up nobody
function later(box, title, fetch) {
  box.replaceChildren(panel(title, el("p", { class: "dim", role: "status" }, "Reading the lake …")));
  fetch().then((content) => box.replaceChildren(panel(title, content)))
    .catch((error) => box.replaceChildren(panel(title, el("p", { class: "dim" }, error.message))));
}

function sampleTable(item, sample) {
  if (!sample.rows.length) return el("p", { class: "dim" }, "There are no tiles yet, or the view has no entities.");
  const keys = Object.keys(sample.rows[0].entity), names = sample.features.slice(0, 8);
  const at = (row) => `${route("entity", item.entity)}?${new URLSearchParams([...Object.entries(row.entity).map(([key, value]) => [`key.${key}`, value]), ["at", sample.as_of_ms], ["view", item.name]])}`;
  return [table([
    ...keys.map((key, i) => [key, "mono", (row) => (i ? String(row.entity[key]) : link(at(row), short(String(row.entity[key]), 40)))]),
    ...names.map((name) => [name, "num", (row) => el("span", { title: shown(row.values[name]) }, short(typeof row.values[name] === "number" ? rough(row.values[name]) : row.values[name], 28))]),
  ], sample.rows, "Sample values"),
  el("p", { class: "dim small" }, `As of the newest event, ${moment(sample.as_of_ms)} ${zone()}; ${names.length} of ${plural(sample.features_in_all, "feature")}. A key leads to all features of the entity.`)];
}

function entityForm(item, keys) {
  const inputs = Object.entries(keys).map(([key, type]) => el("label", {}, `${key}: ${type}`, el("input", { type: "text", name: key, required: true, spellcheck: "false" })));
  return panel("Look up an entity", el("form", { class: "row", autocomplete: "off", onsubmit: (event) => {
    event.preventDefault();
    const given = [...new FormData(event.target)].map(([key, value]) => [`key.${key}`, value]);
    location.hash = `${route("entity", item.entity || item.name)}?${new URLSearchParams([...given, ...(item.kind === "feature_view" ? [["view", item.name]] : [])])}`.slice(1);
  } }, inputs, el("button", { class: "act" }, "Show its features")));
}
function entityParts(item, document_, found) {
  const own = found.items.map((one, i) => [one, i]).filter(([one]) => one.entity === item.name).map(([, i]) => i);
  return el("div", {}, entityForm(item, item.keys || {}), panel("Its views", el("div", { class: "row" }, own.length ? links(found, own) : el("span", { class: "dim" }, "None yet."))));
}

function serviceParts(item, document_, found) {
  const names = item.uses || document_.features || [];
  const keys = document_.keys || Object.assign({}, ...found.items.filter((one) => names.some((name) => name.startsWith(`${one.name}:`))).map((one) => one.keys || {}));
  const of = (name) => {
    const target = name.includes(":") ? ["feature_view", name.split(":")[0]] : found.index.has(`interaction/${name}`) ? ["interaction", name] : ["transformed", name];
    const made = found.items[found.index.get(target.join("/"))];
    return [link(route(...target), `${words(target[0])} ${target[1]}`), made && made.expression ? el("code", {}, ` ${made.expression}`) : null];
  };
  return [panel(plural(names.length, "feature"), longTable([["Feature", null, (name) => el("code", {}, name)], ["From", "word", of]], names, "Features of the service")),
    Object.keys(document_.request || {}).length ? panel("Request inputs", el("div", { class: "row" }, Object.entries(document_.request).map(([key, type]) => tag(`${key}: ${type}`)))) : "",
    snippets({ names, service: item.name, keys, request: document_.request })];
}

function featureTable(view) {
  const described = view.features.some((one) => one.description);
  const window = (one) => (one.window && one.window.window) || (one.window_ms ? duration(one.window_ms) : "lifetime");
  const kind = (one) => (one.window ? [one.window.kind, one.window.time_zone && `in ${one.window.time_zone}`, one.window.offset && `delayed by ${one.window.offset}`].filter(Boolean).join(", ") : "");
  const box = el("div", {});
  const columns = [["Feature", null, (one) => el("code", {}, one.name)], ["Type", null, (one) => one.type], ["Aggregate", null, (one) => one.aggregate || ""],
    ["Window", null, window], ["Kind", null, kind], ["Hop", null, (one) => (one.window && one.window.kind !== "exact" ? one.window.hop || "" : one.hop_ms ? duration(one.hop_ms) : "")],
    described ? ["Description", "word", (one) => one.description || ""] : null].filter(Boolean);
  const draw = (text) => box.replaceChildren(longTable(columns, view.features.filter((one) => one.name.toLowerCase().includes(text.toLowerCase())), "Features", 60));
  draw("");
  return panel(plural(view.features.length, "feature"), view.features.length > 20 ? el("label", {}, "Filter by name", el("input", { type: "search", oninput: (event) => draw(event.target.value) })) : null, box);
}

function profile(report) {
  const range = (one) => `${one.since_ms === null ? "the beginning" : moment(one.since_ms, 86400000)} to ${one.until_ms === null ? "now" : moment(one.until_ms, 86400000)}`;
  const percent = (share) => (share === null || share === undefined ? "–" : `${(share * 100).toFixed(1)} %`);
  return [el("p", { class: "dim small" }, report.from === "features"
    ? `Of all entities known on ${moment(report.range.until_ms - 1, 60000)} ${zone()}${report.against ? `, next to those on ${moment(report.against.until_ms, 60000)}` : ""}.`
    : `Of ${report.from}, ${range(report.range)}${report.against ? `, next to ${range(report.against)}` : ""}.`),
  el("p", { class: "small dim legend" }, el("span", {}, el("i", { class: "u" }), "now"), report.against ? el("span", {}, el("i", { class: "i" }), "before") : null),
  el("div", { class: "columns" }, report.columns.map((column) => {
    const current = column.current, before = column.reference, psi = column.drift ? column.drift.psi : null;
    const few = before && Math.min(current.rows, before.rows) < 100;
    const level = psi === null || psi === undefined ? null : few ? ["few rows", "dim"] : psi > 0.25 && column.drift.psi_p_value < 0.01 ? ["drift", "bad"] : psi > 0.1 && column.drift.psi_p_value < 0.01 ? ["moderate drift", "warn"] : ["no drift", "good"];
    const labels = current.categories ? [...current.categories, "other"] : (current.bins || []).map((_, i) => (current.edges ? `${i ? rough(current.edges[i - 1]) : "less"} to ${i < current.edges.length ? rough(current.edges[i]) : "more"}` : String(i)));
    return el("article", { class: "column" }, el("div", { class: "row" }, el("h3", { class: "grow" }, column.column), level ? pill(level[0], level[1]) : null),
      current.bins && current.bins.some((n) => n) ? bars(...merged(labels, current.bins, before && before.bins, current.categories !== null), `Distribution of ${column.column}`) : el("p", { class: "dim small" }, "No values."),
      el("p", { class: "small dim" }, [`null ${percent(current.null_share)}${before ? ` (before ${percent(before.null_share)})` : ""}`,
        current.mean === null ? null : `mean ${rough(current.mean)}`, current.quantiles && current.quantiles.p50 !== null && current.quantiles.p50 !== undefined ? `median ${rough(current.quantiles.p50)}` : null,
        current.low === null ? null : `${rough(current.low)} to ${rough(current.high)}`, psi === null || psi === undefined ? null : `PSI ${psi.toFixed(3)}`].filter(Boolean).join(" · ")));
  }))];
}

// neighbouring bins together, so that few rows do not look like a comb
function merged(labels, counts, others, named) {
  const step = named ? 1 : Math.ceil(counts.length / 24);
  const pieces = (list, join) => Array.from({ length: Math.ceil(list.length / step) }, (_, i) => join(list.slice(i * step, (i + 1) * step)));
  const sum = (some) => some.reduce((a, b) => a + Number(b), 0);
  const name = (some) => (some.length === 1 ? some[0] : `${some[0].split(" to ")[0]} to ${some.at(-1).split(" to ").at(-1)}`);
  return [pieces(labels, name), pieces(counts, sum), others ? pieces(others, sum) : null];
}

function generation(one) {
  const state = { active: "good", building: "warn", retired: "dim" }[one.state];
  const points = one.commits.map((commit) => [commit.time_ms, commit.rows]);
  // how old the newest commit was, before each one and until now
  const ages = one.commits.slice(1).flatMap((commit, i) => [[one.commits[i].time_ms, 0], [commit.time_ms, (commit.time_ms - one.commits[i].time_ms) / 1000]]);
  return panel(null, el("div", { class: "row" }, el("h2", {}, `Generation ${one.generation}`), pill(one.state, state), one.fits ? null : pill("for an older definition", "warn"),
    pill(one.backfilled ? "backfilled" : one.job ? `job ${one.job}` : "not backfilled", one.backfilled ? "good" : "dim")),
  cards([["table", one.table], ["rows of tiles", number(one.rows)], ["snapshot", one.snapshot ?? "none"], ["buckets", number(one.buckets)],
    ["last commit", one.commits.length ? `${ago(now() - one.commits.at(-1).time_ms)} ago` : "none"]]),
  one.state === "active" && points.length > 1 ? [el("h3", {}, "Freshness over time: age of the newest commit, seconds"),
    lineChart(ages, { label: "Age of the newest commit over time", height: 150 }),
    el("p", { class: "row small dim" }, "Rows per commit", spark(points, "Rows per commit"))] : null);
}

function changes(document_) {
  const found = document_.changes;
  if (!found || !found.length) return "";
  return panel("Versions", el("ul", { class: "list" }, found.map((one) => el("li", {}, el("div", { class: "row" }, el("b", {}, `version ${one.version}`), el("span", { class: "dim small" }, when(one.applied_at_ms), ` ${zone()}`), one.dropped ? pill("dropped", "bad") : null),
    one.changes.length ? el("div", { class: "diff" }, one.changes.map((text) => el("div", { class: text.startsWith("+") ? "add" : text.startsWith("-") ? "cut" : null }, text)), one.more ? `and ${one.more} more` : "") : null))));
}
