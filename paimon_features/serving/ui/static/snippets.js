// How to read a view or service: Python, curl, Feast's client, SQL.
import { copied, el, panel } from "./dom.js";

const EXAMPLE = { int64: 1, int32: 1, string: "a", bool: true, float64: 1.5, float32: 1.5, date: "2026-01-31" };
const py = (value) => (value === true ? "True" : typeof value === "string" ? JSON.stringify(value) : String(value));
const dict = (entries, show) => `{${entries.map(([key, value]) => `${JSON.stringify(key)}: ${show(value)}`).join(", ")}}`;

export function snippets({ names, service, keys, request = {}, sample, table, warehouse, database }) {
  const values = Object.entries(keys).map(([key, type]) => [key, sample && sample[key] !== undefined ? sample[key] : EXAMPLE[type] ?? "…"]);
  const inputs = Object.entries(request).map(([key, type]) => [key, EXAMPLE[type] ?? "…"]);
  const chosen = names.slice(0, 3);
  const origin = location.protocol === "http:" && document.documentElement.dataset.mode === "server" ? location.origin : "http://localhost:6566";
  const features = service ? JSON.stringify(service) : `[${chosen.map((name) => JSON.stringify(name)).join(", ")}]`;
  const body = { ...(service ? { feature_service: service } : { features: chosen }), entities: Object.fromEntries(values.map(([k, v]) => [k, [v]])),
    ...(inputs.length ? { request: Object.fromEntries(inputs.map(([k, v]) => [k, v])) } : {}) };
  const json = JSON.stringify(body, (key, value) => (typeof value === "bigint" ? Number(value) : value), 2);
  const texts = {
    Python: `from paimon_features.project import Project\n\nproject = Project.open(".")\nresponse = project.get_online_features(\n    ${features},\n    ${dict(values, (v) => `[${py(v)}]`)},${inputs.length ? `\n    request=${dict(inputs, py)},` : ""}\n)\nprint(response.to_pylist())\n\n# point in time, for rows with keys and event_time_ms\nproject.get_historical_features(
    ${features},
    "rows.parquet",
)`,
    curl: `curl -s ${origin}/get-online-features \\\n  -H 'authorization: Bearer TOKEN' -d '${json.replaceAll("'", "'\\''")}'`,
    "Feast client": `# feature_store.yaml: online_store: {type: remote, path: ${origin}}\nfrom feast import FeatureStore\n\nstore = FeatureStore(".")\nstore.get_online_features(\n    features=${service ? `store.get_feature_service(${JSON.stringify(service)})` : features},\n    entity_rows=[${dict(values, py)}],\n).to_dict()`,
  };
  if (table) {
    const text = (value) => `'${String(value).replaceAll("'", "''")}'`;
    texts.SQL = `-- Flink SQL; a row is a tile: partial aggregates of an entity from tile_start\nCREATE CATALOG lake WITH ('type' = 'paimon', 'warehouse' = ${text(warehouse)});\nSELECT * FROM lake.\`${String(database).replaceAll("`", "``")}\`.\`${table.replaceAll("`", "``")}\`\nWHERE ${values.map(([key, value]) => `\`${key.replaceAll("`", "``")}\` = ${typeof value === "string" ? text(value) : value}`).join(" AND ") || "TRUE"}\nLIMIT 100;`;
  }
  const pre = el("pre", { tabindex: 0, id: "snippet" }), tabs = el("div", { class: "row", role: "tablist", "aria-label": "Languages" });
  const choose = (name, focus) => {
    pre.textContent = texts[name];
    for (const tab of tabs.children) {
      const mine = tab.textContent === name;
      tab.setAttribute("aria-selected", String(mine));
      tab.tabIndex = mine ? 0 : -1;
      if (mine && focus) tab.focus();
    }
  };
  const order = Object.keys(texts);
  tabs.append(...order.map((name, i) => el("button", { class: "quiet", type: "button", role: "tab", "aria-controls": "snippet", onclick: () => choose(name),
    onkeydown: (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (step) choose(order[(i + step + order.length) % order.length], true);
    } }, name)));
  const copy = el("button", { class: "quiet", type: "button", onclick: () => copied(copy, pre.textContent) }, "Copy");
  const box = panel("How to read it", el("div", { class: "row" }, tabs, el("span", { class: "grow" }), copy), pre);
  pre.setAttribute("role", "tabpanel");
  pre.setAttribute("aria-label", "Code");
  choose(order[0]);
  return box;
}
