"""Memory and speed of historical features while the number of rows grows.

Entity rows come from a Parquet file and go, with thirty windows of six aggregates, to another
one. Each number of rows is read by a process of its own, whose peak memory is printed.

    python -m benchmarks.bounded --rows 1000000 3000000 10000000 --memory-mb 1024
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.point_in_time import BUCKETS, SOURCE, make_lake, tiles_of
from paimon_features.core.types.schema import Int64
from paimon_features.core.windows import DAY_MS
from paimon_features.definitions import CompiledView, Entity, FeatureRef, FeatureView
from paimon_features.definitions.aggregates import Count, DecayedSum, Max, Mean, Min, Sum
from paimon_features.lake import Lake
from paimon_features.lake.side_folder.generations import GenerationRecord
from paimon_features.offline.feature_file import write_result
from paimon_features.offline.store import OfflineStore

WINDOWS = ("1h", "6h", "1d", "7d", "30d")
BEGIN_MS = 15_000 * DAY_MS
DAYS = 60


def view_of(windows: tuple[str, ...] = WINDOWS) -> FeatureView:
    """Six aggregates over each of these windows."""
    return FeatureView(
        "spend",
        source=SOURCE,
        entity=Entity("customer", keys={"customer_id": Int64}),
        derive={"amount": "quantity * unit_price"},
        features=[
            Sum("amount", windows=windows, scale=2),
            Count(windows=windows),
            Mean("unit_price", windows=windows),
            Min("unit_price", windows=windows),
            Max("quantity", windows=windows),
            DecayedSum("amount", half_life="1d", windows=windows),
        ],
    )


def purchases(events: int, customers: int, dice: np.random.Generator) -> pa.Table:
    """Events of customers of whom few are frequent, over two months."""
    who = (customers * dice.random(events) ** 3).astype(np.int64)
    return pa.table(
        {
            "customer_id": who,
            "invoice_time_ms": np.sort(dice.integers(0, DAYS * DAY_MS, events)) + BEGIN_MS,
            "quantity": dice.integers(1, 20, events),
            "unit_price": np.round(dice.random(events) * 100, 2),
        }
    )


def write_rows(path: Path, rows: int, customers: int, dice: np.random.Generator) -> None:
    """Entity rows with a label, a million at a time."""
    schema = pa.schema({"customer_id": pa.int64(), "event_time_ms": pa.int64(), "y": pa.float64()})
    with pq.ParquetWriter(path, schema) as writer:
        for start in range(0, rows, 1_000_000):
            count = min(rows - start, 1_000_000)
            who = (customers * dice.random(count) ** 3).astype(np.int64)
            times = dice.integers(30 * DAY_MS, DAYS * DAY_MS, count) + BEGIN_MS
            table = pa.table([who, times, dice.random(count)], schema=schema)
            writer.write_table(table, 1 << 17)


def open_store(folder: Path, view: CompiledView) -> OfflineStore:
    """The store over a lake that ``make_lake`` made."""
    record = GenerationRecord(view.name, 1, view.table(1), view.fingerprint, BUCKETS)
    return OfflineStore(Lake.open(folder, "features"), lambda _: view, lambda _: record)


def read_once(folder: Path, rows: Path, memory_mb: float) -> None:
    """In a process of its own: read, write, and print figures as JSON."""
    view = view_of().compiled
    store = open_store(folder, view)
    refs = [FeatureRef(view.name, f.name) for f in view.features]
    before = peak_mb()
    begin = time.perf_counter()
    pinned = store.pin(refs)
    entity_rows = pinned.check_rows(rows, memory_mb=memory_mb)
    taken = time.perf_counter()
    result = pinned.join(entity_rows, memory_mb=memory_mb)
    computed = time.perf_counter()
    count = write_result(result, rows.with_suffix(".out.parquet"))
    end = time.perf_counter()
    rows.with_suffix(".out.parquet").unlink()
    print(
        json.dumps(
            {
                "rows": count,
                "chunks": entity_rows.chunks,
                "before_mb": before,
                "peak_mb": peak_mb(),
                "seconds": [taken - begin, computed - taken, end - computed],
            }
        )
    )


def peak_mb() -> float:
    """The most memory that this process has held, in MiB."""
    status = Path("/proc/self/status")
    if status.exists():  # the other figure counts what the parent held when it started this one
        return int(status.read_text().partition("VmHWM:")[2].split()[0]) / 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / (1 << 20)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000, 3_000_000, 10_000_000])
    parser.add_argument("--events", type=int, default=3_000_000)
    parser.add_argument("--customers", type=int, default=200_000)
    parser.add_argument("--memory-mb", type=float, default=1024)
    parser.add_argument("--read", nargs=2, metavar=("LAKE", "ROWS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.read:
        read_once(Path(options.read[0]), Path(options.read[1]), options.memory_mb)
        return
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        dice = np.random.default_rng(7)
        events = purchases(options.events, options.customers, dice)
        view = view_of().compiled
        tiles = tiles_of(view, events)
        make_lake(folder, view, events, tiles)
        print(
            f"{events.num_rows:,} events, {tiles.num_rows:,} tiles, {len(view.features)} windows, "
            f"memory_mb={options.memory_mb:g}"
        )
        for count in options.rows:
            path = folder / "rows.parquet"
            write_rows(path, count, options.customers, dice)
            command = [sys.executable, "-m", "benchmarks.bounded", "--read", text, str(path)]
            command += ["--memory-mb", str(options.memory_mb)]
            shown = json.loads(subprocess.check_output(command).splitlines()[-1])
            total = sum(shown["seconds"])
            steps = ", ".join(f"{s:.1f}" for s in shown["seconds"])
            print(
                f"{count:12,} rows in {shown['chunks']:3} chunks: "
                f"peak {shown['peak_mb']:6,.0f} MiB ({shown['before_mb']:,.0f} before), "
                f"{total:6.1f} s ({steps}), {count / total:10,.0f} rows/s",
                flush=True,
            )


if __name__ == "__main__":
    main()
