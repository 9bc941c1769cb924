// One entity: all its features now or at another time, their history, and what each is made of.
import { explainPath, fetched, now, source } from "./api.js";
import { lineChart } from "./charts.js";
import { el, link, moment, panel, plural, route, zone } from "./dom.js";
import { explained } from "./explain.js";
import { elsewhere } from "./home.js";
import { catalogue, viewsOf } from "./model.js";

const VIEWS = 12;
const POINTS = 48;

// "" is now; a number is UTC milliseconds; a text is in the clock of the page unless it names a zone
export function readTime(text) {
  text = text.trim();
  if (!text) return null;
  if (/^-?\d{9,}$/.test(text)) return Number(text);
  const zoned = /[zZ]|[+-]\d\d:?\d\d$/.test(text);
  const date = text.replace(" ", "T");
  const ms = Date.parse(zoned ? date : (text.length > 10 ? date : `${date}T00:00`) + (zone() === "UTC" ? "Z" : ""));
  if (isNaN(ms)) throw new Error(`"${text}" is not a time: expected 2011-12-09 12:50:00 or UTC milliseconds`);
  return ms;
}

export async function entity(box, name, query) {
  const found = await catalogue();
  const item = found.items[found.index.get(`entity/${name}`)];
  const views = viewsOf(found, name);
  if (!item && !views.length) throw new Error(`unknown entity '${name}'`);
  const keys = (item && item.keys) || (views[0].keys || views[0].full.keys);
  const given = Object.fromEntries([...query].filter(([key]) => key.startsWith("key.")).map(([key, value]) => [key.slice(4), value]));
  const at = query.get("at"), chosen = query.get("view");
  const fields = Object.entries(keys).map(([key, type]) => el("label", {}, `${key}: ${type}`,
    el("input", { type: "text", "data-key": key, name: `key.${key}`, value: given[key] ?? "", required: true, spellcheck: "false" })));
  const time = el("input", { type: "text", id: "time", name: "at", size: 24, placeholder: "now", value: at ? moment(Number(at), 1) : "", spellcheck: "false" });
  const results = el("div", {});
  const form = el("form", { class: "row", id: "query", autocomplete: "off", onsubmit: (event) => {
    event.preventDefault();
    const problem = document.getElementById("problem");
    try {
      const ms = readTime(time.value);
      const wanted = new URLSearchParams();
      for (const input of form.querySelectorAll("[data-key]")) wanted.set(input.name, keys[input.dataset.key] === "string" ? input.value : input.value.trim());
      if (ms !== null) wanted.set("at", ms);
      if (chosen) wanted.set("view", chosen);
      const next = `${route("entity", name)}?${wanted}`;
      problem.hidden = true;
      if (location.hash === next) draw(Object.fromEntries([...wanted].filter(([k]) => k.startsWith("key.")).map(([k, v]) => [k.slice(4), v])), ms);
      else location.hash = next.slice(1);
    } catch (error) {
      problem.replaceChildren(el("b", {}, error.message));
      problem.hidden = false;
    }
  } }, fields, el("label", {}, `Time (${zone()})`, time), el("button", { class: "act" }, "Show"));
  const title = Object.keys(given).length ? Object.entries(given).map(([key, value]) => `${key} = ${value}`).join(", ") : name;
  box.replaceChildren(el("div", { class: "top" }, el("p", { class: "crumb" }, `entity ${name}`), el("h1", {}, title),
    el("p", { class: "row" }, el("span", { class: "dim small" }, `${plural(views.length, "view")}:`), views.slice(0, 30).map((one) => link(route("feature_view", one.name), one.name, "tag")))),
  panel(null, form, el("p", { class: "dim small" }, "Empty for now; 2011-12-09 12:50:00, or UTC milliseconds. Choose a value to see what it is made of.")), results);
  async function draw(values, ms) {
    const ordered = [...views].sort((a, b) => (b.name === chosen) - (a.name === chosen));
    const show = async (some) => {
      const boxes = some.map((view) => { const one = el("div", {}, panel(view.name, el("p", { class: "dim", role: "status" }, "Reading …"))); results.append(one); return one; });
      for (const [i, view] of some.entries()) {
        try {
          const { document: reply, id } = await fetched(explainPath(view.name, values, ms, null));
          explained(boxes[i], reply, id, view === ordered[0], source.hasLake ? (feature) => history(view, feature, values, reply) : null);
        } catch (error) {
          boxes[i].replaceChildren(el("section", { class: "panel error", role: "alert" }, el("h2", {}, view.name), el("p", {}, error.message), error.id ? el("p", { class: "dim small mono" }, `request ${error.id}`) : null));
        }
      }
    };
    results.replaceChildren();
    await show(ordered.slice(0, VIEWS));
    let rest = ordered.slice(VIEWS);
    const more = () => (rest.length ? results.append(el("p", {}, el("button", { class: "quiet", type: "button", onclick: async (event) => {
      event.target.parentElement.remove();
      const some = rest.slice(0, VIEWS);
      rest = rest.slice(VIEWS);
      await show(some);
      more();
    } }, `Show ${plural(rest.length, "more view")}`))) : null);
    more();
    if (!source.hasLake) results.append(elsewhere());
  }
  if (Object.keys(given).length === Object.keys(keys).length) await draw(given, at === null ? null : Number(at));
  else if (views.length && source.hasLake) results.append(panel(null, el("p", { class: "dim" }, "Type a key, or take one from the sample values of a view."), el("div", { class: "row" }, views.slice(0, 30).map((one) => link(route("feature_view", one.name), `view ${one.name}`, "tag")))));
}

const drawn = new Map();
function history(view, feature, values, reply) {
  const to = Number(reply.as_of_ms);
  const oldest = Math.min(...reply.cells.filter((cell) => cell.start_ms !== null).map((cell) => Number(cell.start_ms)), to - 86400000);
  const span = feature.start_ms === null ? to - oldest : Math.min(Math.max(2 * (to - Number(feature.start_ms)), 86400000), Math.max(to - oldest, 86400000));
  const box = el("div", {}, el("p", { class: "dim", role: "status" }, "Reading the lake …"));
  const key = JSON.stringify([view.name, feature.name, values, to, span]);
  const fill = (found) => box.replaceChildren(lineChart(found.times_ms.map((ms, i) => [ms, typeof found.values[i] === "bigint" ? Number(found.values[i]) : found.values[i]]), { label: `History of ${feature.name}` }),
    el("p", { class: "dim small" }, `${POINTS} reads, each point in time from the lake: the values that a training set has. An open tile is not in them.`));
  if (!/int|float|decimal/.test(feature.type)) box.replaceChildren(el("p", { class: "dim" }, `Values of type ${feature.type} are not drawn.`));
  else if (drawn.has(key)) fill(drawn.get(key));
  else source.history(view.name, feature.name, values, to - span, to, POINTS).then((found) => { drawn.set(key, found); fill(found); })
    .catch((error) => box.replaceChildren(el("p", { class: "dim" }, error.message)));
  return panel(`${feature.name} over time`, box);
}
