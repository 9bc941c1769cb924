"""The demo: the whole loop once, on a real retail log, with the commands a user would type.

``make demo``, or ``paimon-features demo --into demo``, runs it. It starts a Redis-protocol
server, a tile job, a materializer and a feature server, ends all of them, also on Ctrl-C, and
leaves a project to look around in, with ``report.html``.

::

    A project ── Ingest ── Tiles and Redis ─┐ (the jobs start)
                           Training set     │  ── Stream, predict ── Outcomes, version 2 ── Verify
                           Train, serve ────┘                        (parity next to it)
                           (hard samples next to it)
"""

from __future__ import annotations

import json
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from paimon_features.core.errors import JobError
from paimon_features.core.process.ports import free_ports
from paimon_features.core.times.clock import now_ms
from paimon_features.core.windows import DAY_MS
from paimon_features.lake import EventWriter, read_arrow
from paimon_features.lake.metadata.snapshots import latest_snapshot
from paimon_features.lake.ownership.lease import acquire
from paimon_features.project import Project
from paimon_features.serving.replies.response import OnlineResponse
from paimon_features.testing.servers.redis_server import RedisServer
from paimon_features.tiles.jobs.jobs import list_jobs

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

# next to this file, which may be anywhere
from circle import LABEL_DAYS, SERVICE, ModelCircle  # noqa: E402
from processes import Processes  # noqa: E402
from report import Facts, write_report  # noqa: E402
from train import Training  # noqa: E402

LOG = HERE / "data" / "online_retail.parquet"
BROKEN = HERE / "data" / "broken.csv"
COPIED = ("features.py", "will_buy.yaml")
MARK = ".paimon-features-demo"
VIEW = "customer_spend"
DIFFICULTY = "will_buy_difficulty"
CUSTOMERS = (12748, 14911, 12346, 99999)
STREAMED_DAYS = 28
"""The newest days of the log are written while everything runs. A prediction has its outcome after
a week, and rows to train on end a week before those that the next version is tested on."""
STREAMED_BATCHES = 24


class Demo:
    """One run of the demo in the folder ``into``.

    ``log`` is a file in the form of ``LOG``; its last weeks come in ``batches`` commits.
    """

    def __init__(self, into: Path, log: Path = LOG, batches: int = STREAMED_BATCHES) -> None:
        self.into, self.log, self.batches = into.resolve(), log, batches
        self.facts = Facts()
        self.started = time.monotonic()
        self.processes = Processes(self.into)
        self.say, self.command = self.processes.say, self.processes.command

    def run(self) -> None:
        """Run all steps; whatever was started is ended, however this ends."""
        with self.processes:
            self.step("A project", self.make_project)
            self.step("Ingest the log, and a few broken rows", self.ingest)
            self.step("Tiles, and Redis as a view of them", self.start_jobs)
            self.step(
                f"Training set: who orders again within {LABEL_DAYS} days?", self.training_set
            )
            hard = self.aside("Losses fed back, and a loop that trains on what was hard", self.hard)
            self.step("Train, register and serve a model", self.circle.train_and_serve)
            hard()
            self.step("Wait until all of it runs", self.wait_for_jobs)
            self.step(f"Stream the last {STREAMED_DAYS} days; predict for whom orders", self.stream)
            parity = self.aside("Verify: online = tiles = raw events", self.verify)
            self.step("Outcomes, and retraining of the model", self.retrain)
            self.step("Verify: predictions online = offline", self.circle.verify)
            parity()
            self.step("Look customers up", self.look_up)
        self.facts.circle = self.circle.facts
        self.facts.total_s = time.monotonic() - self.started
        write_report(self.into / "report.html", self.facts)
        self.say(
            f"\nDone in {self.facts.total_s:.0f} s; all processes have ended. "
            f"Look at [b]{self.into / 'report.html'}[/b], and continue:\n"
            f"  cd {self.into}\n"
            "  paimon-features models show will_buy   # why version 2 was promoted\n"
            "  paimon-features plan                   # after a change to features.py\n"
            "  paimon-features jobs                   # what ran, and from where it would resume\n"
            "  paimon-features check installation     # what this machine has"
        )

    def step(self, title: str, action: Callable[[], None]) -> None:
        """Run one step under its title, and note how long it took."""
        self.say(f"\n[b]{title}[/b]")
        started = time.monotonic()
        action()
        self.facts.seconds[title] = time.monotonic() - started

    def aside(self, title: str, action: Callable[[], None]) -> Callable[[], None]:
        """Start a step next to the following ones; the function returned waits for it."""
        return self.processes.aside(lambda: self.step(title, action))

    # -- the steps -------------------------------------------------------------------------

    def make_project(self) -> None:
        if self.into.exists() and any(self.into.iterdir()):
            if not (self.into / MARK).exists():
                raise JobError(
                    f"{self.into} holds something else than a demo; choose another --into"
                )
            shutil.rmtree(self.into)
        self.into.mkdir(parents=True, exist_ok=True)
        (self.into / MARK).touch()
        server = self.processes.resources.enter_context(RedisServer())
        for name in COPIED:
            shutil.copy(HERE / name, self.into)
        (port,) = free_ports(1)
        settings = _TOML.format(url=server.url, port=port, days=LABEL_DAYS)
        (self.into / "paimon-features.toml").write_text(settings)
        self.command("apply")
        self.project = Project.open(self.into)
        self.circle = ModelCircle(self.processes, self.project, f"http://127.0.0.1:{port}")
        self.say(f"  {len(self.project.lake.list())} tables in {self.into / 'lake'}")

    def ingest(self) -> None:
        log = pq.read_table(self.log).sort_by("invoice_time_ms")
        newest = pc.max(log["invoice_time_ms"]).as_py()
        self.cut_ms = (newest // DAY_MS + 1 - STREAMED_DAYS) * DAY_MS
        late = pc.greater_equal(log["invoice_time_ms"], self.cut_ms)
        self.streamed = log.filter(late)
        (self.into / "data").mkdir()
        history = self.into / "data" / "history.parquet"
        pq.write_table(log.filter(pc.invert(late)), history)
        shutil.copy(BROKEN, self.into / "data")
        report = json.loads(self.command("ingest", "files", "retail", "data", "--json"))
        self.facts.rejected = report["rejected"]
        rejected = ", ".join(f"{n} {reason}" for reason, n in report["rejected"].items())
        self.say(f"  {report['rows']:,} events in {report['seconds']:.0f} s")
        self.say(f"  rejected rows: {rejected}")

    def start_jobs(self) -> None:
        self.command("backfill", VIEW)
        record = self.project.generation(self.project.view(VIEW))
        snapshot = latest_snapshot(self.project.lake, record.table)
        assert snapshot is not None
        self.backfilled = snapshot.id
        tiles = read_arrow(self.project.lake, record.table, ["p_rows"])
        self.say(f"  {pc.sum(tiles['p_rows']).as_py():,} events are {len(tiles):,} tiles")
        self.processes.background("submit", VIEW)
        self.processes.background("materialize", VIEW, "--follow")

    def training_set(self) -> None:
        self.circle.training_set(self.cut_ms)

    def hard(self) -> None:
        def difficulty_is_ready() -> None:
            self.command("backfill", DIFFICULTY)

        # a project of its own: this runs in a thread
        result = Training(Project.open(self.into)).run(difficulty_is_ready)
        self.facts.steps, self.facts.epochs = result.steps, result.epochs
        self.facts.hardest = result.hardest
        for epoch in result.epochs:
            self.say(
                f"  epoch {int(epoch['epoch'])}: loss {epoch['loss']:.4f}, "
                f"AUC on the newest orders {epoch['auc']:.3f}"
            )
        worst = result.hardest[0]
        self.say(
            f"  hardest sample: customer {worst['customer_id']} on {worst['at']}, "
            f"loss {worst['loss']:.2f}"
        )

    def wait_for_jobs(self) -> None:
        def is_filled() -> bool:
            fresh = self.fetch(CUSTOMERS[0], self.cut_ms).freshness[VIEW]
            return fresh.applied_snapshot >= self.backfilled

        wait_for = self.processes.wait_for
        wait_for(f"tile snapshot {self.backfilled} in Redis", is_filled, timeout_s=180)
        wait_for("the feature server", self.circle.is_serving, timeout_s=60)
        wait_for("the tile job", self.tile_job_runs, timeout_s=180)
        self.say("  all tiles are in Redis; tile job, materializer and feature server are running")

    def stream(self) -> None:
        source = self.project.definitions.source("retail")
        lake, facts = self.project.lake, self.facts
        days = self.streamed["invoice_time_ms"].to_numpy() // DAY_MS
        with acquire(lake, source.table, purpose="demo: stream the last days"):
            writer = EventWriter(lake, source.table, source.event_time, now_ms)
            for chosen in np.array_split(np.unique(days), self.batches):
                batch = self.streamed.filter(pa.array(np.isin(days, chosen)))
                if not len(batch):
                    continue
                writer.write(batch)
                committed = time.monotonic()
                last = batch.filter(pc.is_valid(batch["customer_id"])).to_pylist()[-1]
                self.wait_until_seen(last["customer_id"], last["invoice_time_ms"])
                facts.freshness_s.append(time.monotonic() - committed)
                self.as_of_ms = batch["invoice_time_ms"][-1].as_py() + 1
                self.circle.predict_buyers(batch, self.as_of_ms)
        fresh, requests = sorted(facts.freshness_s), sorted(self.circle.facts.requests_ms)
        self.say(
            f"  {len(self.streamed):,} events in {len(fresh)} commits; from commit to lookup: "
            f"median {fresh[len(fresh) // 2]:.2f} s, slowest {fresh[-1]:.2f} s"
        )
        self.say(
            f"  {self.circle.facts.predictions:,} predictions for customers who had just ordered, "
            f"in {len(requests)} requests: median {requests[len(requests) // 2]:.1f} ms"
        )

    def retrain(self) -> None:
        self.circle.join_outcomes()
        self.circle.retrain()

    def look_up(self) -> None:
        ids = ",".join(map(str, CUSTOMERS))
        self.command(
            "lookup", SERVICE, "--entity", f"customer_id={ids}", "--as-of", str(self.as_of_ms)
        )
        response = self.project.get_online_features(
            SERVICE, {"customer_id": list(CUSTOMERS)}, self.as_of_ms
        )
        shown = (
            "customer_id",
            "count_7d",
            "sum_amount_30d",
            "cancellations_90d",
            "last_country_180d",
        )
        for row, status in zip(
            response.to_pylist(), response.statuses["count_7d"].to_pylist(), strict=True
        ):
            self.facts.lookups.append({**{n: row[n] for n in shown}, "status": status})
            values = ", ".join(f"{name} {row[name]}" for name in shown[1:])
            self.say(f"  customer {row['customer_id']}: {values}  [{status}]")
        fresh = response.freshness[VIEW]
        self.say(
            f"  applied snapshot {fresh.applied_snapshot}, newest event "
            f"{_utc(fresh.event_time_high_ms)}, stale: {fresh.stale}"
        )

    def verify(self) -> None:
        report = json.loads(self.command("verify", SERVICE, "--sample", "40", "--json"))
        facts = self.facts
        facts.compared, facts.largest = report["compared"], report["largest_relative_difference"]
        facts.pairs = [(pair["feature"], pair["online"], pair["raw"]) for pair in report["pairs"]]
        self.say(
            f"  {facts.compared:,} values three ways: all agree "
            f"(largest relative difference {facts.largest:.0e})"
        )
        self._count_days()

    def _count_days(self) -> None:
        project = Project.open(self.into)  # this runs in a thread
        record = project.generation(project.view(VIEW))
        tiles = read_arrow(project.lake, record.table, ["tile_start", "p_rows"])
        day = pa.array(tiles["tile_start"].to_numpy() // DAY_MS)
        tiles = tiles.append_column("day", day)
        days = tiles.group_by("day").aggregate([("p_rows", "sum"), ("p_rows", "count")])
        days = days.sort_by("day")
        self.facts.days = days["day"].to_pylist()
        self.facts.events_per_day = days["p_rows_sum"].to_pylist()
        self.facts.tiles_per_day = days["p_rows_count"].to_pylist()

    def wait_until_seen(self, customer: int, event_time_ms: int) -> None:
        """Wait until a lookup of the customer counts the event of that time."""

        def seen() -> bool:
            newest = self.fetch(customer, event_time_ms + 1).event_times[VIEW][0].as_py()
            return newest is not None and newest >= event_time_ms

        what = f"the event of {_utc(event_time_ms)} of customer {customer}"
        self.processes.wait_for(what, seen, 60)

    def tile_job_runs(self) -> bool:
        return any(
            (row.view, row.state) == (VIEW, "RUNNING") for row in list_jobs(self.project.lake)
        )

    def fetch(self, customer: int, as_of_ms: int) -> OnlineResponse:
        return self.project.get_online_features(SERVICE, {"customer_id": [customer]}, as_of_ms)


def _utc(time_ms: int | None) -> str:
    if time_ms is None:
        return "none"
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(time_ms / 1000))


_TOML = """# Written by the demo.
[project]
name = "retail_demo"
definitions = "features.py"
engine = "local"             # backfills in this process; the stream runs on Flink

[lake]
warehouse = "lake"

[online]
url = "{url}"
timeout = "20s"              # on a busy machine an answer is better late than an error
connect_timeout = "20s"

[flink]
parallelism = 2
checkpoint_interval = "1s"

[serve]
port = {port}
prediction_log = "spool"
prediction_log_reads = 1.0
prediction_log_hash = false
spool_age = "1s"

[outcomes.will_buy]
source = "retail"
where = "quantity > 0"
within = "{days}d"
"""


def main(into: Path, log: Path = LOG, batches: int = STREAMED_BATCHES) -> None:
    """Run the demo in ``into``; a terminated demo ends its processes like an interrupted one."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    Demo(into, log, batches).run()


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "demo"))
