"""What a stream of small commits leaves in the lake, and what ``maintain`` makes of it.

    python -m benchmarks.table_size --checkpoints 600

A writer commits events of the last thirty days, in random order, twice a second; the tile job runs
as a user starts it, a checkpoint a second. After so many checkpoints everything stops; the tile
table and the events table are measured, read whole, maintained (``maintain``, first with
the tables' own retention of two hours, then with the newest 20 snapshots kept), and read again.
The last lines compare the reads, each the best of five.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.freshness import FEATURES, process
from paimon_features.core.errors import JobError
from paimon_features.core.times.clock import now_ms
from paimon_features.core.windows import DAY_MS
from paimon_features.lake import EventWriter, Lake, latest_snapshot
from paimon_features.lake.ownership.lease import acquire
from paimon_features.lake.reading.deltas import live_files, read_file
from paimon_features.project import Project
from paimon_features.project.maintenance.tables import maintain, size_of

USERS = 10_000
DAYS = 30


def run(project: Project, checkpoints: int, rate: int) -> None:
    """Write and tile until the tile table has so many commits of its job."""
    source = project.definitions.source("purchases")
    table = project.generation(project.view("spend")).table
    rng = np.random.default_rng(0)
    words = [sys.executable, "-m", "paimon_features", "submit", "spend"]
    with (
        acquire(project.lake, source.table, purpose="write events"),
        (project.root / "submit.log").open("w") as log,
        process([*words, "--project", str(project.root)], stdout=log, stderr=log) as job,
    ):
        writer = EventWriter(project.lake, source.table, source.event_time, now_ms)
        done = shown = 0
        while done < checkpoints:
            if job.poll() is not None:
                raise JobError(f"the tile job has ended; {log.name} says why")
            count = rate // 2
            writer.write(
                pa.table(
                    {
                        "user_id": rng.integers(0, USERS, count),
                        "amount": np.round(rng.gamma(2.0, 20.0, count), 2),
                        "number": rng.integers(0, 1 << 40, count),
                        "at_ms": now_ms() - rng.integers(0, DAYS * DAY_MS, count),
                    }
                )
            )
            newest = latest_snapshot(project.lake, table)
            if newest is not None and newest.commit_identifier < 2**62:
                done = newest.commit_identifier
            if done >= shown + 60:
                print(f"{done} checkpoints", file=sys.stderr, flush=True)
                shown = done
            time.sleep(0.5)


def read_s(lake: Lake, table: str) -> float:
    """Seconds to read every live file of a table, the best of five."""
    times = []
    for _ in range(5):
        began = time.perf_counter()
        newest = latest_snapshot(lake, table)
        assert newest is not None
        columns = [n for n in lake.schema(table).names if n.startswith("p_") or n == "at_ms"]
        for file in live_files(lake, table, newest.id):
            read_file(file, columns)
        times.append(time.perf_counter() - began)
    return min(times)


def show(lake: Lake, when: str, tables: list[str]) -> dict[str, float]:
    """A line per table; the seconds to read each."""
    seconds = {}
    for table in tables:
        size = size_of(lake, table)
        seconds[table] = read_s(lake, table)
        print(
            f"{when:34} {table:18} {size.live_files:7,} {size.files:8,} {size.snapshots:9,} "
            f"{size.bytes / 2**20:8.1f} {seconds[table]:7.2f}"
        )
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--checkpoints", type=int, default=600)
    parser.add_argument("--rate", type=int, default=2_000, help="events per second")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "features.py").write_text(FEATURES)
        (root / "paimon-features.toml").write_text('[project]\nname = "bench"\n')
        project = Project.open(root)
        project.apply()
        run(project, arguments.checkpoints, arguments.rate)
        tables = [project.generation(project.view("spend")).table, "events_purchases"]
        print(
            f"{'':34} {'table':18} {'live':>7} {'files':>8} {'snapshots':>9} {'MiB':>8} "
            f"{'read s':>7}"
        )
        before = show(project.lake, "without maintain", tables)
        for name, keep in (("maintain", None), ("maintain --keep-newest 20", 20)):
            began = time.perf_counter()
            maintain(project, keep_newest=keep)
            spent = time.perf_counter() - began
            after = show(project.lake, f"{name} ({spent:.0f} s)", tables)
        for table in tables:
            print(
                f"reading {table}: {before[table] / after[table]:.2f} times as fast after maintain"
            )


if __name__ == "__main__":
    main()
