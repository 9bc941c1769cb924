"""The demo: the whole loop once, on a real retail log, with the commands a user would type.

``make demo``, or ``paimon-features demo --into demo``, runs it. It starts a Redis-protocol
server, a tile job and a materializer, ends all three, also on Ctrl-C, and leaves a project to
look around in, with ``report.html``.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from rich.console import Console

from paimon_features.clock import now_ms
from paimon_features.errors import JobError, StoreNotReadyError
from paimon_features.job_control.jobs import list_jobs
from paimon_features.project import Project
from paimon_features.serving.response import OnlineResponse
from paimon_features.setup.redis_server import RedisServer
from paimon_features.tables import EventWriter, read_arrow
from paimon_features.tables.lease import acquire
from paimon_features.tables.snapshots import latest_snapshot
from paimon_features.windows import DAY_MS

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from report import Facts, write_report  # noqa: E402 - next to this file, which may be anywhere
from train import Training  # noqa: E402

LOG = HERE / "data" / "online_retail.parquet"
BROKEN = HERE / "data" / "broken.csv"
MARK = ".paimon-features-demo"
SERVICE = "will_buy_v1"
VIEW = "customer_spend"
DIFFICULTY = "will_buy_difficulty"
CUSTOMERS = (12748, 14911, 12346, 99999)
STREAMED_DAYS = 3
STREAMED_BATCHES = 40
LABEL_DAYS = 30

console = Console(highlight=False, soft_wrap=True)


class Demo:
    """One run of the demo in the folder ``into``.

    ``log`` is a file in the form of ``LOG``; its last days come in ``batches`` commits.
    """

    def __init__(self, into: Path, log: Path = LOG, batches: int = STREAMED_BATCHES) -> None:
        self.into, self.log, self.batches = into.resolve(), log, batches
        self.facts = Facts()
        self.open = ExitStack()
        self.started = time.monotonic()
        self.running: list[tuple[tuple[str, ...], subprocess.Popen[str]]] = []

    def run(self) -> None:
        """Run all steps; whatever was started is ended, however this ends."""
        with self.open:
            self.step("A project", self.make_project)
            self.step("Ingest the log, and a few broken rows", self.ingest)
            self.step("Tiles, and Redis as a view of them", self.start_jobs)
            self.step(f"Stream the last {STREAMED_DAYS} days of the log", self.stream)
            self.step("Look customers up", self.look_up)
            self.step(f"Training set: who buys within {LABEL_DAYS} days?", self.training_set)
            self.step("Train, feed losses back, train on what was hard", self.train)
            self.step("Verify: online = tiles = raw events", self.verify)
        write_report(self.into / "report.html", self.facts)
        console.print(
            f"\nDone in {time.monotonic() - self.started:.0f} s; all processes have ended. "
            f"Look at [b]{self.into / 'report.html'}[/b], and continue:\n"
            f"  cd {self.into}\n"
            "  paimon-features plan         # after a change to features.py\n"
            "  paimon-features jobs         # what ran, and from where it would resume\n"
            "  paimon-features doctor       # what this machine has"
        )

    def step(self, title: str, action: Callable[[], None]) -> None:
        """Run one step under its title, and note how long it took."""
        console.print(f"\n[b]{title}[/b]")
        started = time.monotonic()
        action()
        self.facts.seconds[title] = time.monotonic() - started

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
        server = self.open.enter_context(RedisServer())
        shutil.copy(HERE / "features.py", self.into)
        (self.into / "paimon-features.toml").write_text(_TOML.format(url=server.url))
        self.command("apply")
        self.project = Project.open(self.into)
        console.print(f"  {len(self.project.lake.list())} tables in {self.into / 'lake'}")

    def ingest(self) -> None:
        log = pq.read_table(self.log).sort_by("invoice_time_ms")
        newest = pc.max(log["invoice_time_ms"]).as_py()
        cut = (newest // DAY_MS + 1 - STREAMED_DAYS) * DAY_MS
        late = pc.greater_equal(log["invoice_time_ms"], cut)
        self.streamed = log.filter(late)
        (self.into / "data").mkdir()
        history = self.into / "data" / "history.parquet"
        pq.write_table(log.filter(pc.invert(late)), history)
        shutil.copy(BROKEN, self.into / "data")
        reported = self.command("ingest", "retail", "data", "--engine", "local", "--json")
        report = json.loads(reported)
        self.facts.rejected = report["rejected"]
        rejected = ", ".join(f"{n} {reason}" for reason, n in report["rejected"].items())
        console.print(f"  {report['rows']:,} events in {report['seconds']:.0f} s")
        console.print(f"  rejected rows: {rejected}")

    def start_jobs(self) -> None:
        self.command("backfill", VIEW)
        record = self.project.generation(self.project.view(VIEW))
        snapshot = latest_snapshot(self.project.lake, record.table)
        assert snapshot is not None
        tiles = read_arrow(self.project.lake, record.table, ["p_rows"])
        console.print(f"  {pc.sum(tiles['p_rows']).as_py():,} events are {len(tiles):,} tiles")
        self.background("submit", VIEW)
        self.background("materialize", VIEW, "--follow")
        started = time.monotonic()
        as_of_ms = self.streamed["invoice_time_ms"][0].as_py()
        self.wait_for(
            f"tile snapshot {snapshot.id} in Redis",
            lambda: (
                self.fetch(CUSTOMERS[0], as_of_ms).freshness[VIEW].applied_snapshot >= snapshot.id
            ),
            timeout_s=180,
        )
        console.print(f"  all of them are in Redis after {time.monotonic() - started:.0f} s")
        self.wait_for("the tile job", self.tile_job_runs, timeout_s=180)

    def stream(self) -> None:
        source = self.project.definitions.source("retail")
        rows = len(self.streamed)
        size = -(-rows // self.batches)
        lake = self.project.lake
        with acquire(lake, source.table, purpose="demo: stream the last days"):
            writer = EventWriter(lake, source.table, source.event_time, now_ms)
            for start in range(0, rows, size):
                batch = self.streamed.slice(start, size)
                writer.write(batch)
                committed = time.monotonic()
                known = batch.filter(pc.is_valid(batch["customer_id"]))
                if len(known):
                    last = known.slice(len(known) - 1).to_pylist()[0]
                    self.wait_until_seen(last["customer_id"], last["invoice_time_ms"])
                    self.facts.freshness_s.append(time.monotonic() - committed)
        ordered = sorted(self.facts.freshness_s)
        console.print(
            f"  {rows:,} events in {len(ordered)} commits; from commit to lookup: "
            f"median {ordered[len(ordered) // 2]:.2f} s, slowest {ordered[-1]:.2f} s"
        )

    def look_up(self) -> None:
        self.as_of_ms = pc.max(self.streamed["invoice_time_ms"]).as_py() + 1
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
            console.print(f"  customer {row['customer_id']}: {values}  [{status}]")
        fresh = response.freshness[VIEW]
        console.print(
            f"  applied snapshot {fresh.applied_snapshot}, newest event "
            f"{_utc(fresh.event_time_high_ms)}, stale: {fresh.stale}"
        )

    def training_set(self) -> None:
        events = read_arrow(
            self.project.lake, "events_retail", ["customer_id", "quantity", "invoice_time_ms"]
        )
        rows = entity_rows(events)
        pq.write_table(rows, self.into / "data" / "rows.parquet")
        self.command(
            "training-set", "will_buy", "--service", SERVICE,
            "--rows", "data/rows.parquet", "--label", "will_buy",
        )  # fmt: skip
        share = pc.mean(rows["will_buy"]).as_py()
        console.print(f"  {len(rows):,} rows, each at its own time; {share:.0%} will buy")

    def train(self) -> None:
        def difficulty_is_ready() -> None:
            self.command("submit", DIFFICULTY, "--bounded")

        result = Training(self.project).run(difficulty_is_ready)
        self.facts.steps, self.facts.epochs = result.steps, result.epochs
        self.facts.hardest = result.hardest
        for epoch in result.epochs:
            console.print(
                f"  epoch {int(epoch['epoch'])}: loss {epoch['loss']:.4f}, "
                f"AUC of the last month {epoch['auc']:.3f}"
            )
        worst = result.hardest[0]
        console.print(
            f"  hardest sample: customer {worst['customer_id']} on {worst['at']}, "
            f"loss {worst['loss']:.2f}"
        )

    def verify(self) -> None:
        report = json.loads(self.command("verify", SERVICE, "--sample", "40", "--json"))
        facts = self.facts
        facts.compared, facts.largest = report["compared"], report["largest_relative_difference"]
        facts.pairs = [(pair["online"], pair["raw"]) for pair in report["pairs"]]
        console.print(
            f"  {facts.compared:,} values three ways: all agree "
            f"(largest relative difference {facts.largest:.0e})"
        )
        self._count_days()

    def _count_days(self) -> None:
        record = self.project.generation(self.project.view(VIEW))
        tiles = read_arrow(self.project.lake, record.table, ["tile_start", "p_rows"])
        day = pa.array(tiles["tile_start"].to_numpy() // DAY_MS)
        tiles = tiles.append_column("day", day)
        days = tiles.group_by("day").aggregate([("p_rows", "sum"), ("p_rows", "count")])
        days = days.sort_by("day")
        self.facts.days = days["day"].to_pylist()
        self.facts.events_per_day = days["p_rows_sum"].to_pylist()
        self.facts.tiles_per_day = days["p_rows_count"].to_pylist()

    # -- processes -------------------------------------------------------------------------

    def command(self, *words: str) -> str:
        """Run a command to its end, as a user would; what it printed to stdout."""
        console.print(f"  [dim]$ paimon-features {' '.join(words)}[/dim]")
        path = self.into / "demo.log"
        with path.open("a") as log, ExitStack() as here:
            log.write(f"\n$ paimon-features {' '.join(words)}\n")
            log.flush()
            process = self.start(here, words, stdout=subprocess.PIPE, stderr=log)
            reported, _ = process.communicate()
            log.write(reported)
        if process.returncode:
            raise JobError(
                f"'paimon-features {' '.join(words)}' ended with {process.returncode}; "
                f"see {path}:\n{_tail(path)}"
            )
        return reported

    def background(self, *words: str) -> None:
        """Start a command that runs until the demo ends."""
        console.print(f"  [dim]$ paimon-features {' '.join(words)} &[/dim]")
        log = self.open.enter_context((self.into / f"{words[0]}.log").open("w"))
        process = self.start(self.open, words, stdout=log, stderr=subprocess.STDOUT)
        self.running.append((words, process))

    def start(
        self, stack: ExitStack, words: Sequence[str], stdout: Any, stderr: Any
    ) -> subprocess.Popen[str]:
        """Start a command that is ended with the stack."""
        process = subprocess.Popen(
            [sys.executable, "-m", "paimon_features", *words],
            cwd=self.into, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, text=True,
            # Ctrl-C reaches the demo alone, which then ends each command once
            start_new_session=True,
        )  # fmt: skip
        stack.callback(_end, process)
        return process

    def wait_until_seen(self, customer: int, event_time_ms: int) -> None:
        """Wait until a lookup of the customer counts the event of that time."""

        def seen() -> bool:
            newest = self.fetch(customer, event_time_ms + 1).event_times[VIEW][0].as_py()
            return newest is not None and newest >= event_time_ms

        self.wait_for(f"the event of {_utc(event_time_ms)} of customer {customer}", seen, 60)

    def tile_job_runs(self) -> bool:
        return any(
            (row.view, row.state) == (VIEW, "RUNNING") for row in list_jobs(self.project.lake)
        )

    def fetch(self, customer: int, as_of_ms: int) -> OnlineResponse:
        return self.project.get_online_features(SERVICE, {"customer_id": [customer]}, as_of_ms)

    def wait_for(self, what: str, arrived: Callable[[], bool], timeout_s: float) -> None:
        """Wait until ``arrived``, as long as the processes in the background run."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            for words, process in self.running:
                if process.poll() is not None:
                    log = self.into / f"{words[0]}.log"
                    raise JobError(f"'{' '.join(words)}' has ended; see {log}:\n{_tail(log)}")
            try:
                if arrived():
                    return
            except StoreNotReadyError:
                time.sleep(0.2)
            time.sleep(0.02)
        raise JobError(f"{what} did not arrive within {timeout_s:.0f} s; see {self.into}/*.log")


def entity_rows(events: pa.Table) -> pa.Table:
    """Customers at the first of each month who bought in the 90 days before.

    The label is whether they buy in the 30 days after; the training set may not see those.
    """
    import duckdb

    return duckdb.sql(
        f"""
        WITH bought AS (
            SELECT customer_id, invoice_time_ms AS t FROM events
            WHERE quantity > 0 AND customer_id IS NOT NULL
        ),
        moments AS (
            SELECT epoch_ms(m)::BIGINT AS q FROM generate_series(
                TIMESTAMP '2011-02-01', TIMESTAMP '2011-11-01', INTERVAL 1 MONTH) AS g(m)
        )
        SELECT row_number() OVER (ORDER BY q, customer_id) - 1 AS sample_id,
               customer_id, q AS event_time_ms,
               max(CASE WHEN t >= q THEN 1 ELSE 0 END)::BIGINT AS will_buy
        FROM bought JOIN moments ON t >= q - {90 * DAY_MS} AND t < q + {LABEL_DAYS * DAY_MS}
        GROUP BY customer_id, q
        HAVING min(t) < q
        ORDER BY sample_id
        """
    ).to_arrow_table()


def _end(process: subprocess.Popen[str]) -> None:
    """End a command of ours as Ctrl-C would; by force if it does not listen."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(timeout=40)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _utc(time_ms: int | None) -> str:
    if time_ms is None:
        return "none"
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(time_ms / 1000))


def _tail(path: Path, lines: int = 12) -> str:
    return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])


_TOML = """# Written by the demo.
[project]
name = "retail_demo"
definitions = "features.py"

[lake]
warehouse = "lake"

[online]
url = "{url}"

[flink]
parallelism = 2
checkpoint_interval = "1s"
"""


def main(into: Path, log: Path = LOG, batches: int = STREAMED_BATCHES) -> None:
    """Run the demo in ``into``; a terminated demo ends its processes like an interrupted one."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    Demo(into, log, batches).run()


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "demo"))
