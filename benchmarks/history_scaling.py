"""How the time of a point-in-time read grows with the number of events.

Events of a tenth as many customers at any time of sixty days, their tiles made by the local
backfill; windows of an hour and of thirty days. ``fixed`` reads the same number of rows from each
lake, ``share`` a number in proportion to its events. All on one core. An exponent of 1.0 between
two sizes: ten times the events take ten times as long.

    python -m benchmarks.history_scaling --events 100000 1000000 10000000
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.bounded import BEGIN_MS, DAYS
from benchmarks.point_in_time import SOURCE, one_core
from paimon_features.core.configuration.project_config import FlinkConfig
from paimon_features.core.types.schema import Int64
from paimon_features.core.windows import DAY_MS
from paimon_features.definitions import Definitions, Entity, FeatureRef, FeatureView
from paimon_features.definitions.aggregates import Count, Sum
from paimon_features.lake import Lake, append_arrow
from paimon_features.lake.side_folder import generations
from paimon_features.lake.specs import EVENT_DAY, INGEST_TIME_MS
from paimon_features.offline.store import OfflineStore
from paimon_features.project.planning.plan import apply_plan
from paimon_features.tiles.jobs.target import TileTarget
from paimon_features.tiles.local import submission as backfill_job

COMMIT_EVENTS = 2_000_000
EVENTS_PER_CUSTOMER = 10
WINDOWS = ("1h", "30d")

VIEW = FeatureView(
    "spend",
    source=SOURCE,
    entity=Entity("customer", keys={"customer_id": Int64}),
    derive={"amount": "quantity * unit_price"},
    features=[Sum("amount", windows=WINDOWS, scale=2), Count(windows=WINDOWS)],
)


def make_lake(folder: Path, events: int, dice: np.random.Generator) -> OfflineStore:
    """A lake with so many events in the order of their time, and their tiles."""
    lake = Lake.open(folder / "lake", "bench")
    apply_plan(lake, Definitions.of([VIEW]), now_ms=0)
    for first in range(0, events, COMMIT_EVENTS):
        count = min(events - first, COMMIT_EVENTS)
        at_ms = BEGIN_MS + (np.arange(first, first + count) * (DAYS * DAY_MS)) // events
        columns = {
            "customer_id": dice.integers(0, max(events // EVENTS_PER_CUSTOMER, 1), count),
            "invoice_time_ms": at_ms,
            "quantity": dice.integers(1, 20, count),
            "unit_price": np.round(dice.random(count) * 100, 2),
            EVENT_DAY: (at_ms // DAY_MS).astype(np.int32),
            INGEST_TIME_MS: at_ms,
        }
        append_arrow(lake, SOURCE.table, pa.table(columns))
    config = FlinkConfig(2, 1_000)
    target = TileTarget("bench", lake, VIEW.compiled, 1, folder / "state", config)
    backfill_job.backfill(target, rebuild=False, threads=2)
    record = generations.get(lake, VIEW.name, 1)
    return OfflineStore(lake, lambda _: VIEW.compiled, lambda _: record)


def entity_rows(events: int, rows: int, dice: np.random.Generator) -> pa.Table:
    """Any customers at any times of the second month."""
    return pa.table(
        {
            "customer_id": dice.integers(0, max(events // EVENTS_PER_CUSTOMER, 1), rows),
            "event_time_ms": dice.integers(30 * DAY_MS, DAYS * DAY_MS, rows) + BEGIN_MS,
        }
    )


def measure(store: OfflineStore, rows: pa.Table, rounds: int, memory_mb: float) -> list[float]:
    """The median of seconds by the clock, and of processor time; after a read that warms up."""
    refs = [FeatureRef(VIEW.name, f.name) for f in VIEW.compiled.features]
    taken = []
    for number in range(rounds + 1):
        began, used = time.perf_counter(), time.process_time()
        store.get_historical_features(refs, rows, memory_mb=memory_mb)
        if number:
            taken.append((time.perf_counter() - began, time.process_time() - used))
    return [statistics.median(column) for column in zip(*taken, strict=True)]


def report(kind: str, times: Mapping[int, list[float]]) -> None:
    """The exponents between neighbouring sizes, and between the last two."""
    sizes = sorted(times)
    for before, after in pairwise(sizes):
        found = [
            math.log(times[after][side] / times[before][side]) / math.log(after / before)
            for side in (0, 1)
        ]
        print(
            f"{kind:6} {before:12,} to {after:12,} events: exponent {found[0]:5.2f}, "
            f"by processor time {found[1]:5.2f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    sizes = [100_000, 1_000_000, 10_000_000]
    parser.add_argument("--events", type=int, nargs="+", default=sizes, help="100000000: 4 GB")
    parser.add_argument("--rows", type=int, default=20_000, help="of the fixed number")
    parser.add_argument("--share", type=int, default=50, help="events for each row, in proportion")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--memory-mb", type=float, default=1024)
    options = parser.parse_args()
    counts: dict[str, Callable[[int], int]] = {
        "fixed": lambda _: options.rows,
        "share": lambda events: events // options.share,
    }
    times: dict[str, dict[int, list[float]]] = {kind: {} for kind in counts}
    for events in options.events:
        dice = np.random.default_rng(7)
        with tempfile.TemporaryDirectory() as folder:
            store = make_lake(Path(folder), events, dice)
            cores = os.sched_getaffinity(0)
            one_core()
            for kind, rows_of in counts.items():
                rows = entity_rows(events, rows_of(events), dice)
                taken = measure(store, rows, options.rounds, options.memory_mb)
                times[kind][events] = taken
                print(
                    f"{kind:6} {events:12,} events, {rows.num_rows:10,} rows: {taken[0]:8.3f} s, "
                    f"{taken[1]:8.3f} s of processor time",
                    flush=True,
                )
            os.sched_setaffinity(0, cores)
    for kind, found in times.items():
        report(kind, found)


if __name__ == "__main__":
    main()
