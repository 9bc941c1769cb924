"""Reading a primary-key table: merging by NumPy, pypaimon's readers, and decoding alone.

A table of one key column and columns of floats gets a first load and then commits that write some
keys again, so that nearly every file overlaps others. Every contender reads the same columns; all
but "decoding" give the merged rows, and have to come to the same sum. They take turns; the
figures are medians and ratios within this run, by the clock and by processor time.

    python -m benchmarks.merge --key text --engines aggregation

``--fast`` leaves out pypaimon's readers, which take most of the time.
"""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from paimon_features.core.types.schema import DataType, Float64, Int64, String
from paimon_features.lake.catalog import Lake
from paimon_features.lake.reading.deltas import live_files
from paimon_features.lake.reading.table_reader import latest_snapshot, read_arrow, read_route
from paimon_features.lake.specs import TableSpec
from paimon_features.lake.writing.table_writer import append_arrow
from trainer_bridge.blocks.open_layout import read_layout
from trainer_bridge.readers.snapshot_reader import SnapshotReader

BATCH = 8_192
TABLE, SMALL = "keyed", "small"
ENGINES = ("deduplicate", "partial-update", "aggregation")
KEYS: dict[str, DataType] = {"int": Int64, "text": String}


def make_table(
    lake: Lake,
    name: str,
    engine: str,
    key: str,
    rows: int,
    columns: int,
    commits: int,
    share: float,
    buckets: int,
) -> None:
    """A load of ``rows`` keys, then ``commits`` that each rewrite a ``share`` of them."""
    values = [f"f{number}" for number in range(columns)]
    options = {"merge-engine": engine, "bucket": str(buckets)}
    if engine == "aggregation":
        options |= {f"fields.{value}.aggregate-function": "sum" for value in values}
    types = {"id": KEYS[key], **dict.fromkeys(values, Float64)}
    lake.create(TableSpec(name, types, primary_key=("id",), options=options))
    dice = np.random.default_rng(0)
    for commit in range(commits + 1):
        ids = np.arange(rows) if not commit else dice.choice(rows, int(rows * share), replace=False)
        # quarters, so that sums are exact in every order
        data: dict[str, Any] = {v: dice.integers(0, 4_000, len(ids)) / 4 for v in values}
        names = ids * 7 if key == "int" else pa.array([f"customer-{i:09d}" for i in ids])
        append_arrow(lake, name, pa.table({"id": names, **data}))


def decoding(lake: Lake, name: str, columns: list[str]) -> tuple[int, float]:
    """Each file's columns, decoded and left as they are: no merge, so more rows than there are."""
    newest = latest_snapshot(lake, name)
    assert newest is not None
    rows, total = 0, 0.0
    for file in live_files(lake, name, newest.id):
        table = pq.ParquetFile(file.path, memory_map=True).read(columns, use_threads=False)
        total += pc.sum(table.column(columns[-1])).as_py()
        rows += table.num_rows
    return rows, total


def pypaimon(lake: Lake, name: str, columns: list[str], **options: Any) -> tuple[int, float]:
    """pypaimon's merged rows, by its native reader or its Python one."""
    table = read_arrow(lake, name, columns, **options)
    return table.num_rows, pc.sum(table.column(columns[-1])).as_py()


def merging(lake: Lake, name: str, columns: list[str], cache: Path) -> tuple[int, float]:
    """The snapshot opened, and its blocks decoded one by one: merged rows as Arrow."""
    newest = latest_snapshot(lake, name)
    assert newest is not None
    schema = pa.schema([lake.schema(name).field(column).with_nullable(True) for column in columns])
    layout = read_layout(lake, name, newest.id, 65_536, cache=cache)
    rows, total = 0, 0.0
    for number in range(len(layout.blocks)):
        table = layout.decode(number, schema)
        total += pc.sum(table.column(columns[-1])).as_py()
        rows += table.num_rows
    return rows, total


def reading(lake: Lake, name: str, columns: list[str], cache: Path) -> tuple[int, float]:
    """The reader, shuffled, to matrices of all but the key: opening, merging, gathering."""
    rows, total = 0, 0.0
    settings: dict[str, Any] = {"columns": columns[1:], "batch_size": BATCH, "cache": cache}
    with SnapshotReader(lake, name, threads=2, **settings) as reader:
        for batch in reader:
            total += float(batch[columns[-1]].sum())
            rows += len(batch)
    return rows, total


Contender = Callable[[], tuple[int, float]]
Rates = dict[str, list[tuple[float, float]]]
"""Per contender and turn: merged rows per second, and per second of processor time."""


def measure(contenders: dict[str, Contender], merged: int, repeats: int) -> Rates:
    """Each contender in turn; mere decoding is as fast as it brings about the merged rows."""
    rates: Rates = {name: [] for name in contenders}
    for _ in range(repeats):
        for name, read in contenders.items():
            started, worked = time.perf_counter(), time.process_time()
            rows, _ = read()
            wall_s, cpu_s = time.perf_counter() - started, time.process_time() - worked
            rows = merged if name == "decoding" else rows
            rates[name].append((rows / wall_s, rows / cpu_s))
    return rates


def report(rates: Rates) -> Iterator[str]:
    """A line per contender, with its ratios to mere decoding, which is the first."""
    medians = {
        name: [statistics.median(side) for side in zip(*turns, strict=True)]
        for name, turns in rates.items()
    }
    base = next(iter(medians.values()))
    yield f"{'':34} {'rows/s':>11} {'ratio':>6} {'rows/cpu s':>11} {'ratio':>6}"
    for name, (wall, cpu) in medians.items():
        yield f"{name:34} {wall:11,.0f} {wall / base[0]:6.3f} {cpu:11,.0f} {cpu / base[1]:6.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--columns", type=int, default=20)
    parser.add_argument("--commits", type=int, default=8)
    parser.add_argument("--share", type=float, default=0.1)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--engines", nargs="*", default=list(ENGINES))
    parser.add_argument("--slow-rows", type=int, default=50_000, help="for pypaimon's Python")
    parser.add_argument("--buckets", type=int, default=4)
    parser.add_argument("--key", default="int", choices=list(KEYS))
    parser.add_argument("--fast", action="store_true", help="without pypaimon's readers")
    run(**vars(parser.parse_args()))


def run(
    rows: int,
    columns: int,
    commits: int,
    share: float,
    repeats: int,
    engines: list[str],
    key: str,
    slow_rows: int,
    buckets: int,
    fast: bool = False,
) -> None:
    """Make a table for each engine, time all contenders, print the figures."""
    wanted = ["id", *(f"f{number}" for number in range(columns))]
    for engine in engines:
        with tempfile.TemporaryDirectory() as folder:
            lake, kept = Lake.open(Path(folder), "bench"), Path(folder) / "kept"
            make_table(lake, TABLE, engine, key, rows, columns, commits, share, buckets)
            make_table(lake, SMALL, engine, key, slow_rows, columns, commits, share, buckets)
            print(f"\n{engine}, key {key}, pypaimon {read_route(lake, TABLE)}", flush=True)

            def opened_again(
                read: Callable[[Lake, str, list[str], Path], tuple[int, float]], lake: Lake = lake
            ) -> tuple[int, float]:
                with tempfile.TemporaryDirectory() as empty:
                    return read(lake, TABLE, wanted, Path(empty))

            contenders: dict[str, Contender] = {
                "decoding": partial(decoding, lake, TABLE, wanted),
                "merge, reopened": partial(opened_again, merging),
                "merge, opened before": partial(merging, lake, TABLE, wanted, kept),
                "reader, shuffled, reopened": partial(opened_again, reading),
                "pypaimon, native": partial(pypaimon, lake, TABLE, wanted),
                "pypaimon, Python (fewer)": partial(pypaimon, lake, SMALL, wanted, native=False),
            }
            if fast:
                contenders = {n: c for n, c in contenders.items() if not n.startswith("pypaimon")}
            check(contenders, rows)
            for line in report(measure(contenders, rows, repeats)):
                print(line, flush=True)


def check(contenders: dict[str, Contender], rows: int) -> None:
    """Whoever merges the whole table has the same number of rows and the same sum."""
    found = {name: read() for name, read in contenders.items() if name != "decoding"}
    _, total = next(iter(found.values()))
    for name, (count, own) in found.items():
        if "fewer" in name:
            continue
        if count != rows or not math.isclose(own, total, rel_tol=1e-9):
            raise AssertionError(f"{name}: {count} rows, sum {own}; expected {rows}, {total}")


if __name__ == "__main__":
    main()
