// The catalogue in memory, fetched once and again when it may have changed; health, polled.
import { source } from "./api.js";

const kept = { catalogue: null, at: 0, home: null, samples: new Map() };
const FRESH_MS = 60000;

export async function catalogue() {
  if (kept.catalogue === null || Date.now() - kept.at > FRESH_MS) {
    const found = await source.catalogue();
    found.index = new Map(found.items.map((item, i) => [`${item.kind}/${item.name}`, i]));
    found.parents = found.items.map(() => []);
    found.children = found.items.map(() => []);
    for (const [a, b] of found.edges) { found.parents[b].push(a); found.children[a].push(b); }
    kept.catalogue = found;
    kept.at = Date.now();
  }
  return kept.catalogue;
}
export function forget() { kept.catalogue = null; kept.home = null; }

export async function health() {
  kept.home = await source.home();
  for (const view of kept.home.views) {
    if (typeof view.behind_s !== "number") continue;
    const samples = kept.samples.get(view.name) || [];
    samples.push([kept.home.at_ms, view.behind_s]);
    kept.samples.set(view.name, samples.slice(-360));
  }
  return kept.home;
}
export const lastHealth = () => kept.home;
// [time, seconds behind] since this page was opened
export const samples = (view) => kept.samples.get(view) || [];
export const viewsOf = (found, entity) => found.items.filter((item) =>
  item.kind === "feature_view" && item.entity === entity && item.online !== false);
