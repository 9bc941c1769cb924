// The two kinds of hosts. Both have catalogue(), home(), definition(), explain(); what only the lake
// knows is in the project's, and `hasLake` says whether to offer it.
export const MODE = document.documentElement.dataset.mode;
const session = { token: "", skew: 0 };

export function takeToken() {
  const found = /^#token=([\w-]+)$/.exec(location.hash);
  if (found) {
    session.token = found[1];
    history.replaceState({ token: session.token }, "", "#/");
  } else if (history.state && history.state.token) session.token = history.state.token;
}
// so that a reload of the page keeps it, and nothing else does: of `paimon-features ui` only
export function keepToken() {
  if (MODE === "project" && session.token) history.replaceState({ token: session.token }, "");
}
export function useToken(token) { session.token = token; }
export const now = () => Date.now() + session.skew;

// integers beyond 2^53 keep all their digits, where the browser reports the source of a number
function parse(text) {
  return JSON.parse(text, (key, value, context) =>
    typeof value === "number" && Number.isInteger(value) && !Number.isSafeInteger(value) &&
    context && /^-?\d+$/.test(context.source) ? BigInt(context.source) : value);
}
export async function fetched(path, also = []) {
  const headers = { accept: "application/json" };
  if (session.token) headers.authorization = `Bearer ${session.token}`;
  let reply;
  try {
    reply = await fetch(path, { headers, cache: "no-store", credentials: "omit" });
  } catch (error) {
    throw new Error("The server does not answer. Is it still running?");
  }
  const text = await reply.text();
  const id = reply.headers.get("x-request-id");
  let found = null;
  try { found = parse(text); } catch (error) { /* reported below */ }
  if (!reply.ok && !also.includes(reply.status)) {
    const said = found && found.detail ? found.detail : text.slice(0, 200);
    throw Object.assign(new Error(`${said || reply.statusText} (${reply.status})`), { id, status: reply.status });
  }
  if (found === null) throw new Error(`${path} answered something else than JSON`);
  const date = Date.parse(reply.headers.get("date") || "");
  if (!isNaN(date)) session.skew = Math.abs(date - Date.now()) < 2000 ? 0 : date - Date.now();
  return { document: found, id };
}
const got = async (path, query = {}) => {
  const text = new URLSearchParams(query).toString();
  return (await fetched(text ? `${path}?${text}` : path)).document;
};
export function explainPath(view, entity, at, feature) {
  const query = new URLSearchParams({ view });
  for (const [key, value] of Object.entries(entity)) query.append("entity", `${key}=${value}`);
  if (at !== null && at !== undefined) query.set("as_of", at);
  if (feature) query.set("feature", feature);
  return `explain?${query}`;
}

const project = {
  hasLake: true,
  catalogue: async () => got("ui/api/catalogue"),
  async home() {
    const found = await got("ui/api/home");
    return {
      ready: found.ok, problems: found.attention, attention_in_all: found.attention_in_all, warnings: [], views: found.views.map((view) => ({ ...view, name: view.view })),
      jobs: found.jobs, tables: found.tables, bytes: found.bytes, tables_in_all: found.tables_in_all, online: found.online,
      rejected: found.rejected, leases: found.leases, at_ms: found.time_ms,
    };
  },
  definition: (kind, name) => got("ui/api/definition", { kind, name }),
  sample: (view) => got("ui/api/sample", { view }),
  profile: (view) => got("ui/api/profile", { view }),
  artifacts: () => got("ui/api/artifacts"),
  history(view, feature, entity, from, to, points) {
    const query = new URLSearchParams({ view, feature, from, to, points });
    for (const [key, value] of Object.entries(entity)) query.append("entity", `${key}=${value}`);
    return got(`ui/api/history?${query}`);
  },
};

const server = {
  hasLake: false,
  async catalogue() {
    const found = await got("features");
    const items = [], edges = [], at = new Map();
    const add = (kind, one, more) => { at.set(`${kind}/${one.name}`, items.length); items.push({ kind, state: "", note: "", features: [], count: 0, ...one, ...more }); };
    for (const one of found.entities) add("entity", one, {});
    for (const one of found.views) add("feature_view", one, { features: one.features.map((f) => f.name), count: one.features.length, full: one });
    for (const one of found.interactions) add("interaction", one, { features: [], uses: one.features, full: one });
    for (const one of found.transformed) add("transformed", one, { features: [], uses: one.features, full: one });
    for (const one of found.services) add("service", one, { features: one.features, uses: one.features, full: one, note: `${one.features.length} features` });
    items.forEach((item, number) => {
      const parents = new Set();
      for (const text of item.uses || []) {
        const name = text.includes(":") ? `feature_view/${text.split(":")[0]}` : at.has(`interaction/${text}`) ? `interaction/${text}` : `transformed/${text}`;
        if (at.has(name)) parents.add(at.get(name));
      }
      for (const parent of parents) edges.push([parent, number]);
    });
    return { project: found.project, items, edges, truncated: false };
  },
  async home() {
    const { document: found } = await fetched("health", [503]);
    return {
      ready: found.status === "ready", problems: found.reasons || [], warnings: found.warnings || [], at_ms: now(),
      views: Object.entries(found.views || {}).map(([name, view]) => ({
        name, generation: view.generation, applied_snapshot: view.applied_snapshot, current_ms: view.current_ms,
        behind_s: view.current_ms === undefined ? null : Math.max(0, (now() - Number(view.current_ms)) / 1000), stale: view.stale, behind: view.behind,
        high_mark_ms: view.event_time_high_ms, problem: view.reason || null,
      })),
      store: found.store, worker: found.worker, definitions: found.definitions,
    };
  },
  async definition(kind, name, { items }) {
    const item = items.find((one) => one.kind === kind && one.name === name);
    if (!item) throw new Error(`unknown ${kind.replaceAll("_", " ")} '${name}' for this token`);
    return { ...(item.full || {}), ...item, features: item.full ? item.full.features : [] };
  },
};
export const source = MODE === "project" ? project : server;
