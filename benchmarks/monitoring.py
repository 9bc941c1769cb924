"""Fits and reports from a table of tiles, compared with DuckDB sums of the same columns.

Events of many users are tiled by the local engine. A ``fit`` of a ``StandardScaler`` merges the
tiles of all users; a report merges those of two ranges of time. DuckDB reads the same Parquet
files and computes the same sums, least and greatest values and counts of bins, without what a fit
does in addition (snapshots, which events enter a tile, conditions of sums).

    python -m benchmarks.monitoring --events 1000000
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from benchmarks.transformers import alternating
from paimon_features.core.windows import DAY_MS
from paimon_features.lake import EventWriter
from paimon_features.project import Project
from paimon_features.project.monitoring.fitting import fit_columns
from paimon_features.project.monitoring.monitored_columns import of_columns
from paimon_features.project.monitoring.time_ranges import TimeRange
from paimon_features.transformers import ColumnStatistics, StandardScaler

DAYS = 30
BEGIN = 15_000 * DAY_MS
SPLIT = BEGIN + (DAYS - 7) * DAY_MS
DEFINITIONS = """
import paimon_features as pf

sales = pf.EventSource(
    "sales", schema={"user": pf.Int64, "t": pf.Int64, "x": pf.Float64}, event_time="t"
)
spend = pf.FeatureView(
    "spend", source=sales, entity=pf.Entity("user", keys={"user": pf.Int64}), tile="5min",
    features=[
        pf.StdDev("x", windows=["7d"], scale=2), pf.Min("x", windows=["7d"]),
        pf.Max("x", windows=["7d"]), pf.Count("x", windows=["7d"]),
        pf.Histogram("x", windows=["7d"], edges=pf.linear_edges(0, 20, 1)),
    ],
)
"""


def tiled(folder: Path, events: int, users: int) -> Project:
    """A project with the tiles of random events."""
    (folder / "paimon-features.toml").write_text('[project]\nname = "bench"\n')
    (folder / "features.py").write_text(DEFINITIONS)
    project = Project.open(folder)
    project.apply()
    dice = np.random.default_rng(0)
    times = np.sort(BEGIN + dice.integers(0, DAYS * DAY_MS, events))
    table = pa.table(
        {
            "user": dice.integers(0, users, events),
            "t": times,
            "x": np.round(dice.gamma(4.0, 2.0, events), 2),
        }
    )
    source = project.definitions.source("sales")
    EventWriter.of(project.lake, source, clock=lambda: BEGIN + 2 * DAYS * DAY_MS).write(table)
    project.jobs.backfill("spend")
    return project


def by_duckdb(project: Project) -> tuple[Callable[[str], Any], int, int]:
    """Merges the partials of tiles where a condition holds; how many rows the files have, bytes."""
    table = project.generation(project.view("spend")).table
    files = [str(p) for p in Path(project.lake.path(table)).rglob("*.parquet")]
    how = {"min": "min", "max": "max"}
    wanted = [p.name for p in project.view_reader("spend").tile_columns(["x"])[0].partials]
    merged = ", ".join(f'{how.get(name.split("_")[1], "sum")}("{name}")' for name in wanted)
    connection = duckdb.connect()
    connection.execute("set threads = 1")

    def run(where: str) -> Any:
        query = f"select {merged} from read_parquet($1) where {where}"
        found = connection.execute(query, [files]).fetchone()
        assert found is not None
        return dict(zip(wanted, found, strict=True))

    counted = connection.execute("select count(*) from read_parquet($1)", [files]).fetchone()
    assert counted is not None
    return run, counted[0], sum(Path(file).stat().st_size for file in files)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--events", type=int, default=300_000)
    parser.add_argument("--users", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        project = tiled(Path(folder), given.events, given.users)
        print(f"{given.events:,} events tiled in {time.perf_counter() - started:.1f} s")
        run, rows, size = by_duckdb(project)
        found: dict[str, Any] = {}
        ranges = TimeRange(SPLIT, None), TimeRange(None, SPLIT)

        def fit(origin: Any) -> StandardScaler:
            reader = project.view_reader("spend")
            made = fit_columns(reader, StandardScaler(), ["x"], origin=origin).transformer
            assert isinstance(made, StandardScaler)
            return made

        contenders: dict[str, Callable[[], Any]] = {
            "DuckDB, all tiles": lambda: run("true"),
            "fit from tiles": lambda: fit("tiles"),
            "fit from events": lambda: fit("events"),
            "DuckDB, two ranges": lambda: [
                run(f"tile_start >= {SPLIT}"), run(f"tile_start < {SPLIT}")
            ],
            "monitor from tiles": lambda: of_columns(project.view_reader("spend"), ["x"], ranges),
        }  # fmt: skip

        def call(name: str) -> None:
            found[name] = contenders[name]()

        took = alternating({name: lambda name=name: call(name) for name in contenders},  # type: ignore[misc]
                           given.repeats)  # fmt: skip
        print(f"{rows:,} tiles, {size:,} bytes")
        for name, turns in took.items():
            base = (
                "DuckDB, two ranges" if "monitor" in name or "two" in name else "DuckDB, all tiles"
            )
            clock, worked = (statistics.median(turn[i] for turn in turns) for i in (0, 1))
            ratio = statistics.median(
                other[0] / own[0] for own, other in zip(turns, took[base], strict=True)
            )
            many = given.events if "events" in name else rows
            print(
                f"{name:22} {clock:8.3f} s, {worked:7.3f} s of processor  {many / clock:12,.0f} "
                f"rows/s  {ratio:6.2f} of DuckDB's speed"
            )
        check(found, given.events)


def check(found: dict[str, Any], events: int) -> None:
    """All have reported the same numbers."""
    partials = found["DuckDB, all tiles"]
    for name in ("fit from tiles", "fit from events"):
        assert found[name].n_samples_seen_.tolist() == [events]
    total = partials["p_sum_x_s2"] / 100 / events
    assert abs(found["fit from tiles"].mean_[0] - total) < 1e-9
    (column,) = found["monitor from tiles"].columns
    for side, sums in zip(
        (column.current, column.reference), found["DuckDB, two ranges"], strict=True
    ):
        assert isinstance(side, ColumnStatistics)
        assert side.count == sums["p_count_x"]
        assert (side.low, side.high) == (sums["p_min_x"], sums["p_max_x"])


if __name__ == "__main__":
    main()
