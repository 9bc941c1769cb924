"""The same number of events over ten years and over a month: what a long, sparse history costs.

    python -m benchmarks.sparse_history --events 12000 --days 3270 --flink

Everything is printed in seconds and as the ratio to the same work over ``--short-days`` days in the
same run: writing the events, the backfill, a rebuild of the online store from the tiles, and
features of ``--rows`` rows at random times. ``--daily`` gives all tables daily partitions, instead
of those that the events ask for. With ``--flink`` also the backfill and the history by Flink in
this process's JVM, after a first run that starts it.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from paimon_features.core.configuration.project_config import FlinkConfig
from paimon_features.core.times.clock import now_ms
from paimon_features.core.types.schema import Float64, Int64
from paimon_features.core.windows import DAY_MS
from paimon_features.definitions import Definitions, Entity, EventSource, FeatureRef, FeatureView
from paimon_features.definitions.aggregates import Count, Max, Sum
from paimon_features.lake import Lake, latest_snapshot
from paimon_features.lake.reading.deltas import live_files
from paimon_features.lake.side_folder import generations
from paimon_features.lake.writing.table_writer import EventWriter
from paimon_features.offline.flink.engine import FlinkHistoryEngine
from paimon_features.offline.store import OfflineStore
from paimon_features.online.materialize import Materializer
from paimon_features.online.store import MemoryStore
from paimon_features.project.planning.plan import apply_plan
from paimon_features.tiles.flink import submission
from paimon_features.tiles.jobs.target import TileTarget
from paimon_features.tiles.local import submission as backfill_job

FIRST_DAY = 15_000
ENTITIES = 500
SOURCE = EventSource(
    "visits", schema={"user": Int64, "amount": Float64, "at_ms": Int64}, event_time="at_ms"
)
VIEW = FeatureView(
    "visits",
    source=SOURCE,
    entity=Entity("user", keys={"user": Int64}),
    features=[
        Count(windows=["30d", None]),
        Sum("amount", windows=["1d", "30d"], scale=2),
        Max("amount", windows=["30d"]),
    ],
)


def random_times(days: int, rows: int, seed: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    rng = np.random.default_rng(seed)
    return FIRST_DAY * DAY_MS + np.sort(rng.integers(0, days * DAY_MS, rows))


class History:
    """A lake with events over some days, and what is done with it."""

    def __init__(self, folder: Path, days: int, events: int, rows: int, daily: bool) -> None:
        self.days, self.events = days, events
        self.lake = Lake.open(folder / "lake", "bench")
        self.source = replace(SOURCE, partition_days=1) if daily else SOURCE
        self.view = replace(VIEW, source=self.source, partition_days=1 if daily else None)
        apply_plan(self.lake, Definitions.of([self.view]), now_ms=0)
        config = FlinkConfig(2, 1_000)
        view = self.view.compiled
        self.target = TileTarget("bench", self.lake, view, 1, folder / "state", config)
        self.rows = pa.table(
            {
                "user": np.random.default_rng(1).integers(0, ENTITIES, rows),
                "event_time_ms": random_times(days, rows, 2),
            }
        )

    def write(self) -> None:
        """The events in the order of their time, in one commit."""
        rng = np.random.default_rng(0)
        table = pa.table(
            {
                "user": rng.integers(0, ENTITIES, self.events),
                "amount": np.round(rng.gamma(2.0, 20.0, self.events), 2),
                "at_ms": random_times(self.days, self.events, 3),
            }
        )
        EventWriter.of(self.lake, self.source, now_ms).write(table)

    def backfill(self) -> None:
        backfill_job.backfill(self.target, rebuild=True, threads=2)

    def backfill_by_flink(self) -> None:
        submission.backfill(self.target, rebuild=True)

    def rebuild(self) -> None:
        """Fill an empty online store (in memory) from the tiles."""
        record = self.target.record()
        worker = Materializer(
            self.lake, "bench", self.target.view, lambda: record, MemoryStore(), lease_ttl_ms=None
        )
        assert worker.run_once().caught_up

    def history(self) -> pa.Table:
        return self._store().get_historical_features(self._features(), self.rows)

    def history_by_flink(self) -> pa.Table:
        engine = FlinkHistoryEngine(self.target.state_dir, 2)
        return self._store().get_historical_features(self._features(), self.rows, engine=engine)

    def _store(self) -> OfflineStore:
        record = generations.get(self.lake, VIEW.name, 1)
        return OfflineStore(self.lake, lambda _: self.target.view, lambda _: record)

    def _features(self) -> list[FeatureRef]:
        return [FeatureRef(VIEW.name, feature.name) for feature in VIEW.compiled.features]

    def files(self, table: str) -> int:
        newest = latest_snapshot(self.lake, table)
        return 0 if newest is None else len(live_files(self.lake, table, newest.id))


def seconds(turn: Callable[[], object]) -> float:
    began = time.perf_counter()
    turn()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--events", type=int, default=12_000)
    parser.add_argument("--days", type=int, default=3_270)
    parser.add_argument("--short-days", type=int, default=30)
    parser.add_argument("--rows", type=int, default=5_000, help="of the training set")
    parser.add_argument("--daily", action="store_true", help="partitions of a day")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--flink", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        both = [
            History(
                Path(folder) / str(days),
                days,
                arguments.events,
                arguments.rows,
                arguments.daily,
            )
            for days in (arguments.days, arguments.short_days)
        ]
        print(f"{arguments.events:,} events; ratio to {arguments.short_days} days", flush=True)
        show("write", [[seconds(each.write)] for each in both])
        seconds(both[1].backfill)  # imports
        turns = ["backfill", "rebuild", "history"]
        if arguments.flink:
            seconds(both[1].backfill_by_flink)  # starts the JVM
            turns += ["backfill_by_flink", "history_by_flink"]
        for turn in turns:
            rounds = 1 if turn.endswith("flink") else arguments.rounds
            show(turn, [[seconds(getattr(each, turn)) for _ in range(rounds)] for each in both])
        for each in both:
            print(
                f"{each.days:,} days: {each.files(SOURCE.table):,} files of events, "
                f"{each.files(each.target.tables[0]):,} of tiles"
            )


def show(turn: str, times: list[list[float]]) -> None:
    long, short = map(statistics.median, times)
    print(f"{turn:18} {long:8.2f} s  {short:8.2f} s  {long / short:6.1f}", flush=True)


if __name__ == "__main__":
    main()
