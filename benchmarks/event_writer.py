"""``EventWriter``: rows and commits a second, beside plain Parquet files of the same rows.

    python -m benchmarks.event_writer --rounds 5

A call of ``write`` validates the rows, writes a file per partition and commits it; plain pyarrow
writes the same rows to a file of the same compression, and neither validates nor commits. The
contenders take turns; an event has six columns, all of one day.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from paimon_features.core.types.schema import Float64, Int64, String
from paimon_features.definitions import EventSource
from paimon_features.lake import EventWriter, Lake
from paimon_features.lake.ownership.lease import acquire
from paimon_features.lake.specs import events_spec, rejected_spec

SOURCE = EventSource(
    "clicks",
    schema={
        "user_id": Int64,
        "page": String,
        "referrer": String,
        "amount": Float64,
        "number": Int64,
        "at_ms": Int64,
    },
    event_time="at_ms",
)
NOW_MS = 1_760_000_000_000
SIZES = {1: 50, 1_000: 30, 100_000: 10, 1_000_000: 2}
"""Rows of a call, and calls of a turn."""


def clicks(rows: int, seed: int = 0) -> pa.Table:
    """``rows`` events of 100,000 users within an hour, in order of time."""
    rng = np.random.default_rng(seed)
    pages = pa.array([f"/page/{number}" for number in range(1_000)])
    at_ms = np.sort(rng.integers(NOW_MS - 3_600_000, NOW_MS, rows))
    return pa.table(
        {
            "user_id": rng.integers(0, 100_000, rows),
            "page": pages.take(pa.array(rng.integers(0, 1_000, rows))),
            "referrer": pages.take(pa.array(rng.zipf(1.5, rows) % 1_000)),
            "amount": np.round(rng.gamma(2.0, 20.0, rows), 2),
            "number": np.arange(rows),
            "at_ms": at_ms,
        }
    )


class PlainFiles:
    """Writes the rows of each call to another Parquet file, by pyarrow alone."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._written = folder, 0

    def write(self, rows: pa.Table) -> None:
        path = self._folder / f"{self._written}.parquet"
        pq.write_table(rows, path, compression="zstd", compression_level=1)
        self._written += 1


class Turn:
    """One contender: its calls are timed by the clock and by processor time."""

    def __init__(self, name: str, write: Callable[[pa.Table], object]) -> None:
        self.name, self._write = name, write
        self.wall: list[float] = []
        self.busy: list[float] = []

    def run(self, rows: pa.Table, calls: int) -> None:
        wall, busy = time.perf_counter(), time.process_time()
        for _ in range(calls):
            self._write(rows)
        self.wall.append((time.perf_counter() - wall) / calls)
        self.busy.append((time.process_time() - busy) / calls)


def run(sizes: list[int], rounds: int) -> None:
    print("rows of a call | contender | ms a call | of processor time | rows/s | of pyarrow's rate")
    for size in sizes:
        rows = clicks(size)
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            lake = Lake.open(folder / "lake", "features")
            lake.create(events_spec(SOURCE.table, SOURCE.schema))
            lake.create(rejected_spec(SOURCE.rejected_table))
            with acquire(lake, SOURCE.table, purpose="write events"):
                writer = EventWriter.of(lake, SOURCE, lambda: NOW_MS)
                turns = [
                    Turn("pyarrow", PlainFiles(folder).write),
                    Turn("EventWriter", writer.write),
                ]
                for turn in turns:  # imports, the first file
                    turn.run(rows, 1)
                    turn.wall.clear()
                    turn.busy.clear()
                for _ in range(rounds):
                    for turn in turns:
                        turn.run(rows, SIZES.get(size, 5))
        base = statistics.median(turns[0].wall)
        for turn in turns:
            wall, busy = statistics.median(turn.wall), statistics.median(turn.busy)
            print(
                f"{size:9,} | {turn.name:11} | {1e3 * wall:8.2f} | {1e3 * busy:8.2f} | "
                f"{size / wall:11,.0f} | {base / wall:.2f}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.event_writer")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--sizes", type=int, nargs="+", default=list(SIZES), help="Rows of a call of write."
    )
    args = parser.parse_args()
    run(args.sizes, args.rounds)


if __name__ == "__main__":
    main()
