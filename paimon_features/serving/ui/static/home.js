// How everything is: what needs attention, views, jobs, tables.
import { MODE, now, source } from "./api.js";
import { spark } from "./charts.js";
import { ago, bytes, cards, el, link, longTable, number, panel, pill, plural, route, table, when, zone } from "./dom.js";
import { catalogue, health, samples } from "./model.js";

const JOB = { RUNNING: "good", FINISHED: "good", STOPPED: "dim", FAILED: "bad", LOST: "bad", UNKNOWN: "warn", RESTARTING: "warn", FAILING: "bad" };
const SHOWN = 8;
let unfolded = false; // also after the page was drawn again
const lag = (view) => (view.problem ? pill("problem", "bad") : view.stale || view.behind ? pill("behind", "warn")
  : view.current_ms ? pill("up to date", "good") : pill("in the lake", "dim"));

export async function home(box) {
  const found = await catalogue();
  const draw = async () => {
    const state = await health();
    const kinds = new Map();
    for (const item of found.items) kinds.set(item.kind, (kinds.get(item.kind) || 0) + 1);
    const features = found.items.reduce((sum, item) => sum + item.count, 0);
    const waiting = Math.max(state.attention_in_all || 0, state.problems.length + state.warnings.length);
    const slow = state.views.reduce((most, view) => Math.max(most, view.behind_s ?? 0), 0);
    box.replaceChildren(
      el("div", { class: "top" }, el("h1", {}, found.project)),
      cards([
        ["needs attention", number(waiting), state.problems.length ? "bad" : waiting ? "warn" : "good"],
        ["features", number(features)],
        ["feature views", number(kinds.get("feature_view") || 0)],
        ["services", number(kinds.get("service") || 0)],
        state.views.some((view) => view.current_ms) ? ["most behind", ago(slow * 1000), null, "of the views in the online store"] : null,
        state.jobs ? ["jobs running", number(state.jobs.filter((job) => job.state === "RUNNING").length)] : null,
        state.bytes !== undefined ? ["in the lake", bytes(state.bytes), null, plural(state.tables_in_all, "table")] : null,
      ]),
      waiting ? panel("Needs attention",
        reasons(state.problems, "list attention"),
        state.warnings.length ? reasons(state.warnings, "list attention warned") : null,
        waiting > state.problems.length + state.warnings.length ? el("p", { class: "dim small" }, `and ${number(waiting - state.problems.length - state.warnings.length)} more: `, el("code", {}, "paimon-features status")) : null) : "",
      views(state), state.jobs ? jobTable(state.jobs) : "", state.tables ? tables(state) : "",
      MODE === "server" ? elsewhere() : "");
  };
  await draw();
  return draw;
}

// many for one reason are not to hide the rest of the page
function reasons(texts, kind) {
  const lines = (some) => el("ul", { class: kind }, some.map((text) => el("li", {}, text)));
  return texts.length <= SHOWN ? lines(texts) : [lines(texts.slice(0, SHOWN)), el("details", { open: unfolded, ontoggle: (event) => { unfolded = event.target.open; } }, el("summary", {}, `${number(texts.length - SHOWN)} more`), lines(texts.slice(SHOWN)))];
}

function views(state) {
  if (!state.views.length) return panel("Views", el("p", { class: "dim" }, "There are none yet."));
  const lake = state.tables !== undefined, online = state.views.some((view) => view.current_ms);
  return panel("Views", longTable([
    ["View", null, (view) => link(route("feature_view", view.name), view.name)],
    ["State", null, (view) => lag(view)],
    ["Generation", "num", (view) => view.generation ?? "–"],
    lake ? ["Last commit", "num", (view) => (view.committed_ms ? `${ago(now() - view.committed_ms)} ago` : "–")] : null,
    lake ? ["Snapshot", "num", (view) => view.committed_snapshot ?? "–"] : null,
    online && lake ? ["Snapshots behind", "num", (view) => view.lag_snapshots ?? "–"] : null,
    online && !lake ? ["Applied snapshot", "num", (view) => view.applied_snapshot ?? "–"] : null,
    online ? ["Behind", "num", (view) => (typeof view.behind_s === "number" ? ago(view.behind_s * 1000) : "–")] : null,
    online ? ["Since this page is open", null, (view) => spark(samples(view.name), `seconds behind, ${view.name}`)] : null,
    online ? [`Newest event, ${zone()}`, "mono", (view) => when(view.high_mark_ms)] : null,
  ].filter(Boolean), state.views, "Views and how far behind they are", 50));
}

export function jobTable(jobs) {
  if (!jobs.length) return panel("Jobs", el("p", { class: "dim" }, "No tile job was started yet: ", el("code", {}, "paimon-features submit VIEW"), " or ", el("code", {}, "backfill VIEW"), "."));
  return panel("Jobs", table([
    ["View", null, (job) => link(route("feature_view", job.view), `${job.view} g${job.generation}`)],
    ["Kind", null, (job) => job.kind],
    ["State", null, (job) => pill(job.state, JOB[job.state] || "dim")],
    ["Progress", null, (job) => progress(job)],
    ["Since", "mono", (job) => when(job.since_ms)],
    ["Checkpoint", "num", (job) => (job.checkpoint_ms ? `${job.checkpoint}, ${ago(now() - job.checkpoint_ms)} ago` : "–")],
    ["Restarts", "num", (job) => job.restarts ?? "–"],
    ["Where", "word", (job) => job.where],
    ["Last error", "word", (job) => job.last_error || ""],
  ], jobs, "Tile jobs"));
}
function progress(job) {
  if (job.kind === "backfill") return job.state === "RUNNING" ? "computing" : job.snapshot ? "committed" : "–";
  if (!job.lag_snapshots) return "caught up";
  return `${plural(job.lag_snapshots, "snapshot")} of events to read`;
}

function tables(state) {
  const most = Math.max(...state.tables.map((one) => one.bytes), 1);
  return panel("Tables", longTable([
    ["Table", null, (one) => el("code", {}, one.table)],
    ["Size", "num", (one) => bytes(one.bytes)],
    ["", "meter", (one) => meter(one.bytes / most)],
    ["Rows in files", "num", (one) => number(one.rows)],
    ["Files", "num", (one) => number(one.files)],
    ["Snapshots", "num", (one) => number(one.snapshots)],
    [`Newest, ${zone()}`, "mono", (one) => when(one.newest_ms)],
    ["", "word", (one) => (one.error ? el("span", { class: "bad" }, one.error) : "")],
  ], state.tables, "Tables by size", 15),
  rejected(state.rejected || []));
}
const rejected = (found) => (found.some((one) => one.rows) ? el("p", { class: "small dim" }, "Rejected rows: ",
  found.filter((one) => one.rows).map((one) => `${one.table}: ${number(one.rows)}${one.rejected ? ` (${Object.entries(one.rejected).map(([reason, rows]) => `${reason} ${number(rows)}`).join(", ") || "held"})` : ""}`).join("; ")) : null);

export function meter(share) {
  const fill = el("i", {});
  fill.style.width = `${Math.max(share * 100, share ? 1 : 0)}%`;
  return el("div", { class: "bar", "aria-hidden": "true" }, fill);
}
export function elsewhere() {
  return el("section", { class: "panel note" }, el("p", {},
    "This host has the online store and the definitions, not the lake. Samples, history, drift, jobs, training sets and models: ",
    el("code", {}, "paimon-features ui"), ", where the project and its warehouse are."));
}

export async function jobs(box) {
  const head = el("div", { class: "top" }, el("h1", {}, "Jobs"));
  if (!source.hasLake) { box.replaceChildren(head, elsewhere()); return null; }
  const draw = async () => {
    const state = await health();
    box.replaceChildren(head, jobTable(state.jobs), panel("Leases", state.leases.length ? table([
      ["Table", null, (one) => el("code", {}, one.table)], ["Purpose", null, (one) => one.purpose],
      ["Owner", "word", (one) => one.owner], ["State", null, (one) => pill(one.liveness, one.liveness === "alive" ? "good" : one.liveness === "dead" ? "bad" : "warn")],
      ["Since", "mono", (one) => when(one.since_ms)], ["", "word", (one) => one.state],
    ], state.leases, "Leases") : el("p", { class: "dim" }, "No process owns a table now.")));
  };
  await draw();
  return draw;
}
