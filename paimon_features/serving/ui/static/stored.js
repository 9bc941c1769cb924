// Training sets and models, with what they were made from.
import { source } from "./api.js";
import { el, link, number, panel, pill, plural, rough, route, short, table, when, words, zone } from "./dom.js";
import { elsewhere } from "./home.js";

const STATES = { production: "good", challenger: "warn", shadow: "warn", candidate: "", archived: "dim" };
const pins = (entries) => el("ul", { class: "list small mono" }, entries.slice(0, 20).map(([name, at]) => el("li", {}, `${name} @ ${short(at, 24)}`)));

export async function artifacts(box) {
  const head = el("div", { class: "top" }, el("h1", {}, "Models and training sets"));
  if (!source.hasLake) { box.replaceChildren(head, elsewhere()); return; }
  box.replaceChildren(head, el("p", { class: "dim", role: "status" }, "Reading the lake …"));
  const found = await source.artifacts();
  box.replaceChildren(head,
    ...(found.models.length ? found.models.map(model) : [panel("Models", el("p", { class: "dim" }, "None yet; ", el("code", {}, "paimon-features train"), " registers one."))]),
    panel("Training sets", found.training_sets.length ? table([
      ["Name", null, (one) => link(route("training_set", one.name), one.name)],
      ["Rows", "num", (one) => number(one.rows ?? 0)],
      ["Features", "num", (one) => (one.features ? one.features.length : "–")],
      ["Label", null, (one) => one.label || "–"],
      [`Written, ${zone()}`, "mono", (one) => when(one.written_at_ms)],
      ["Pinned to", null, (one) => (one.error ? el("span", { class: "bad" }, one.error) : pins((one.sources || []).map((pin) => [pin.table, pin.commit ? `${pin.snapshot_id}@${pin.commit}` : pin.snapshot_id ?? "empty"])))],
    ], found.training_sets, "Training sets") : el("p", { class: "dim" }, "None yet; ", el("code", {}, "paimon-features training-set"), " builds one.")));
}

function model(one) {
  const metrics = [...new Set(one.versions.flatMap((version) => Object.keys(version.metrics)))].slice(0, 6);
  return panel(`Model ${one.name}`, one.error ? el("p", { class: "bad" }, one.error) : null, table([
    ["Version", null, (version) => el("b", {}, `${one.name}@${version.version}`)],
    ["State", null, (version) => [pill(version.state, STATES[version.state]), version.traffic ? ` ${(version.traffic * 100).toFixed(2)} %` : null]],
    ["Kind", null, (version) => words(version.kind)],
    ["Service", null, (version) => link(route("service", version.service), version.service)],
    ...metrics.map((name) => [name, "num", (version) => { const m = version.metrics[name]; return m ? el("span", { title: m.low === null ? "" : `${rough(m.low)} to ${rough(m.high)}, ${m.rows} rows` }, rough(m.value)) : "–"; }]),
    [`Created, ${zone()}`, "mono", (version) => when(version.created_at_ms)],
    ["Trained on", null, (version) => (version.pins ? pins([[`${version.pins.table}, ${plural(version.pins.rows, "row")}`, version.pins.snapshot], ...Object.entries(version.pins.sources)]) : "–")],
  ], one.versions, `Versions of ${one.name}`), one.versions_in_all > one.versions.length ? el("p", { class: "dim small" }, `the newest of ${number(one.versions_in_all)}`) : null);
}
