"""A backfill compared with what any engine must do: read the events, group them, write tiles.

    python -m benchmarks.backfill --events 10000000 --entities 1000000 --rounds 3 --flink

The events of one day, any user at any time, so that hardly two of them share a tile: the most
tiles that a day of events can be. ``local`` is ``backfill --engine local`` as a user calls it,
from the events table to a committed tile table: leases, records, skip rules, rows in the order
of the key, one file per bucket. ``duckdb`` is one statement by hand that reads the same files,
groups by user and tile, and writes the same columns to one Parquet file in no order, with the
compression that the tile table has. ``flink`` is the Flink backfill in this process's JVM. They
take turns. Two million events, ``--only-flink --events 2000000``, take a minute.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa

from benchmarks.tile_job import VIEW, jvm_cpu_s
from paimon_features.core.configuration.project_config import FlinkConfig
from paimon_features.core.windows import DAY_MS
from paimon_features.definitions import Definitions
from paimon_features.lake import Lake, append_arrow, latest_snapshot, read_arrow
from paimon_features.lake.reading.deltas import live_files
from paimon_features.lake.specs import EVENT_DAY, INGEST_TIME_MS
from paimon_features.project.planning.plan import apply_plan
from paimon_features.tiles.flink import submission
from paimon_features.tiles.jobs.target import TileTarget
from paimon_features.tiles.local import submission as local_backfill

START_MS = 15_000 * DAY_MS
COMMITS = 20

Turn = Callable[[TileTarget], None]


def make_events(lake: Lake, rows: int, entities: int) -> None:
    """A day of events in the order of their time, in ``COMMITS`` commits."""
    rng = np.random.default_rng(0)
    size = -(-rows // COMMITS)
    for first in range(0, rows, size):
        n = min(size, rows - first)
        at_ms = START_MS + (np.arange(first, first + n) * DAY_MS) // rows
        append_arrow(
            lake,
            VIEW.source.table,
            pa.table(
                {
                    "user_id": rng.integers(0, entities, n),
                    "amount": np.round(rng.gamma(2.0, 20.0, n), 2),
                    "at_ms": at_ms,
                    EVENT_DAY: (at_ms // DAY_MS).astype(np.int32),
                    INGEST_TIME_MS: at_ms,
                }
            ),
        )


def local(target: TileTarget) -> None:
    """``backfill --engine local --rebuild``."""
    local_backfill.backfill(target, rebuild=True, threads=target.flink.parallelism)


def flink(target: TileTarget) -> None:
    """``backfill --rebuild``."""
    submission.backfill(target, rebuild=True)


def by_hand(target: TileTarget) -> None:
    """Read, group, write: nothing else."""
    newest = latest_snapshot(target.lake, target.events)
    assert newest is not None
    files = [file.path for file in live_files(target.lake, target.events, newest.id)]
    with duckdb.connect(config={"threads": target.flink.parallelism}) as connection:
        connection.execute(
            "COPY (SELECT CAST(at_ms // 86400000 AS INTEGER) AS tile_day, user_id, "
            "at_ms // 300000 * 300000 AS tile_start, max(at_ms) AS p_event_time_max, "
            "count(*) AS p_rows, max(amount) AS p_max_amount, min(amount) AS p_min_amount, "
            "CAST(sum(CAST(round_even(amount * 100, 0) AS BIGINT)) AS BIGINT) AS p_sum_amount_s2 "
            f"FROM read_parquet({files!r}) GROUP BY ALL) "
            f"TO '{target.state_dir / 'by_hand.parquet'}' (COMPRESSION zstd, COMPRESSION_LEVEL 1)"
        )


def check(target: TileTarget, rows: int) -> int:
    """Both tables hold all events, in the same tiles; their number."""
    tiles = read_arrow(target.lake, target.tables[0])
    assert sum(tiles["p_rows"].to_pylist()) == rows
    digest = (
        "SELECT count(*), sum(hash(user_id, tile_start, p_event_time_max, p_rows, "
        "p_max_amount, p_min_amount, p_sum_amount_s2)) FROM "
    )
    with duckdb.connect() as connection:
        connection.register("tiles", tiles)
        ours = connection.execute(f"{digest} tiles").fetchall()
        by_hand_path = target.state_dir / "by_hand.parquet"
        theirs = connection.execute(f"{digest} '{by_hand_path}'").fetchall()
    assert ours == theirs, f"{ours} is not {theirs}"
    return len(tiles)


def run(target: TileTarget, rows: int, rounds: int, contenders: dict[str, Turn]) -> None:
    """Turns of all contenders; prints rates, and ratios to DuckDB by hand, round by round."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    cpu: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds + 1):  # the first round warms up
        for name, turn in contenders.items():
            clock = _processor_s(target, of_jvm=name == "flink")
            began, used = time.perf_counter(), clock()
            turn(target)
            took, used = time.perf_counter() - began, clock() - used
            if number:
                seconds[name].append(took)
                cpu[name].append(used)
                print(f"  {name:7} {took:6.2f} s {used:6.2f} s of processor time", flush=True)
    for name, times in seconds.items():
        ratios = [a / b for a, b in zip(times, seconds["duckdb"], strict=True)]
        by_cpu = statistics.median(a / b for a, b in zip(cpu[name], cpu["duckdb"], strict=True))
        spread = ", ".join(f"{ratio:.2f}" for ratio in sorted(ratios))
        print(
            f"{name:7} {rows / statistics.median(times):12,.0f} events/s; "
            f"takes {statistics.median(ratios):.2f} times as long ({spread}), "
            f"by processor time {by_cpu:.2f}"
        )


def _processor_s(target: TileTarget, *, of_jvm: bool) -> Callable[[], float]:
    """A clock of the processor time that a turn takes: of this process, or its JVM as well."""
    if not of_jvm:
        return time.process_time
    return lambda: time.process_time() + jvm_cpu_s(target.state_dir)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--events", type=int, default=10_000_000)
    parser.add_argument("--entities", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--parallelism", type=int, default=2)
    parser.add_argument("--flink", action="store_true", help="the Flink backfill as well")
    parser.add_argument("--only-flink", action="store_true", help="Flink and DuckDB alone")
    arguments = parser.parse_args()
    contenders: dict[str, Turn] = {"local": local, "duckdb": by_hand}
    with tempfile.TemporaryDirectory() as folder:
        lake = Lake.open(Path(folder) / "lake", "bench")
        apply_plan(lake, Definitions.of([VIEW]), now_ms=0)
        make_events(lake, arguments.events, arguments.entities)
        config = FlinkConfig(arguments.parallelism, 1_000)
        target = TileTarget("bench", lake, VIEW.compiled, 1, Path(folder) / "state", config)
        if not arguments.only_flink:
            run(target, arguments.events, arguments.rounds, contenders)
            local(target)
            tiles = check(target, arguments.events)
            print(f"{arguments.events:,} events are {tiles:,} tiles")
        if arguments.flink or arguments.only_flink:
            run(target, arguments.events, 1, {"flink": flink, "duckdb": by_hand})
            check(target, arguments.events)


if __name__ == "__main__":
    main()
