"""Ingestion of files by the local engine: rows a second from Parquet, CSV and JSON lines.

    python -m benchmarks.ingest --rows 2000000 --days 305 --rounds 3
    python -m benchmarks.ingest --flink --rounds 2

Each round is a call of ``ingest --engine local`` without the start of Python: hash, leases, ledger,
conversion, validation, data files per day, both commits. The rows are sales of seven columns (an
integer key, three texts, an integer, a price, a time), in the order of their time or shuffled; the
time of a CSV is a text like ``2010-12-01 08:26:30.125``. With ``--flink`` the Flink engine and the
local one take turns with one Parquet file; Flink's JVM runs by then, and has run two small jobs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc_csv
import pyarrow.parquet as pq

from benchmarks.tile_job import jvm_cpu_s
from paimon_features.core.types.schema import Float64, Int32, Int64, String
from paimon_features.core.windows import DAY_MS
from paimon_features.definitions import EventSource
from paimon_features.ingest.file_ingestion import SHORT_LIVED_BYTES
from paimon_features.ingest.local.files import ingest_files
from paimon_features.lake import Lake
from paimon_features.lake.specs import events_spec, rejected_spec

SOURCE = EventSource(
    "sales",
    schema={
        "customer_id": Int64,
        "stock_code": String,
        "description": String,
        "quantity": Int32,
        "unit_price": Float64,
        "country": String,
        "at_ms": Int64,
    },
    event_time="at_ms",
)
START_MS = 14_900 * DAY_MS


def sales(rows: int, days: int, *, shuffled: bool = False) -> pa.Table:
    """Sales at any time of some days."""
    rng = np.random.default_rng(1)
    at_ms = START_MS + rng.integers(0, days * DAY_MS, rows)
    if not shuffled:
        at_ms.sort()
    items = pa.array(rng.integers(0, 4_000, rows))
    countries = pa.array(["United Kingdom", "France", "EIRE"])
    return pa.table(
        {
            "customer_id": rng.integers(10_000, 20_000, rows),
            "stock_code": pa.array([f"S{n:05d}" for n in range(4_000)]).take(items),
            "description": pa.array([f"ITEM {n} OF THE SHOP" for n in range(4_000)]).take(items),
            "quantity": rng.integers(1, 100, rows).astype(np.int32),
            "unit_price": np.round(rng.random(rows) * 20, 2),
            "country": countries.take(pa.array(rng.integers(0, 3, rows))),
            "at_ms": at_ms,
        }
    )


def _write_csv(rows: pa.Table, path: Path) -> None:
    place = rows.column_names.index("at_ms")
    times = rows["at_ms"].cast(pa.timestamp("ms")).cast(pa.string())
    pc_csv.write_csv(rows.set_column(place, "at_ms", times), path)


def _write_json(rows: pa.Table, path: Path) -> None:
    with path.open("w") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows.to_pylist())


WRITERS: Mapping[str, Callable[[pa.Table, Path], None]] = {
    "parquet": lambda rows, path: pq.write_table(rows, path, compression="zstd"),
    "csv": _write_csv,
    "jsonl": _write_json,
}


def ingest_once(folder: Path, path: Path) -> tuple[float, float, int]:
    """Ingest a file into a new lake: seconds, of processor time, and rows that were accepted."""
    lake = Lake.open(str(folder / "lake"), "bench")
    lake.create(events_spec(SOURCE.table, SOURCE.schema))
    lake.create(rejected_spec(SOURCE.rejected_table))
    began, busy = time.perf_counter(), time.process_time()
    result = ingest_files(lake, SOURCE, [path], state_dir=folder / "state")
    return time.perf_counter() - began, time.process_time() - busy, result.accepted


def ingest_by_flink(folder: Path, path: Path, state_dir: Path) -> tuple[float, float, int]:
    """``ingest_once`` by Flink in this process's JVM, whose processor time counts as well."""
    from paimon_features.ingest.flink.files import ingest_files as by_flink

    lake = Lake.open(str(folder / "lake"), "bench")
    lake.create(events_spec(SOURCE.table, SOURCE.schema))
    lake.create(rejected_spec(SOURCE.rejected_table))
    began, busy = time.perf_counter(), time.process_time() + jvm_cpu_s(state_dir)
    result = by_flink(lake, SOURCE, [path], state_dir=state_dir)
    busy = time.process_time() + jvm_cpu_s(state_dir) - busy
    return time.perf_counter() - began, busy, result.accepted


def run_flink(rows: int, days: int, rounds: int) -> None:
    """Print a line for the Flink engine beside the local one, of the same file, in turns."""
    from paimon_features.flink.gateway import start_gateway

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        few, path = folder / "few.parquet", folder / "sales.parquet"
        WRITERS["parquet"](sales(1_000, 1), few)
        WRITERS["parquet"](sales(rows, days), path)
        # with the compilers that a run of the large file would choose
        start_gateway(folder / "state", short_lived=path.stat().st_size <= SHORT_LIVED_BYTES)
        for number in range(2):  # the first run starts all of Flink, the second shows a job's cost
            took, used, _ = ingest_by_flink(folder / f"start{number}", few, folder / "state")
            print(f"a thousand rows: {took:.1f} s, {used:.1f} s of processor time", flush=True)
        engines: dict[str, Callable[[Path], tuple[float, float, int]]] = {
            "flink": lambda lake: ingest_by_flink(lake, path, folder / "state"),
            "local": lambda lake: ingest_once(lake, path),
        }
        times: dict[str, list[float]] = {engine: [] for engine in engines}
        busy: dict[str, list[float]] = {engine: [] for engine in engines}
        for number in range(rounds):
            for engine, ingest in engines.items():
                took, used, accepted = ingest(folder / f"{engine}{number}")
                assert accepted == rows, (accepted, rows)
                times[engine].append(took)
                busy[engine].append(used)
        for engine, seconds in times.items():
            each = ", ".join(f"{rows / one:,.0f}" for one in seconds)
            print(
                f"{engine:>8} {rows:,} rows of Parquet  {days} days  "
                f"{rows / statistics.median(seconds):>10,.0f} rows/s behind its start ({each})  "
                f"{rows / statistics.median(busy[engine]):>10,.0f} per second of processor time"
            )


def run(rows: int, days: int, rounds: int) -> None:
    """Print a line for each form of file."""
    for form, shuffled in (("parquet", False), ("parquet", True), ("csv", False), ("jsonl", False)):
        count = rows if form == "parquet" else rows // 2 if form == "csv" else rows // 10
        times, busy = [], []
        with tempfile.TemporaryDirectory() as name:
            path = Path(name) / f"sales.{form}"
            WRITERS[form](sales(count, days, shuffled=shuffled), path)
            for number in range(rounds):
                elapsed, used, accepted = ingest_once(Path(name) / str(number), path)
                assert accepted == count, (accepted, count)
                times.append(elapsed)
                busy.append(used)
        order = "shuffled" if shuffled else "in order"
        rate, by_processor = (count / statistics.median(each) for each in (times, busy))
        print(
            f"{form:>8} {order}  {count:>10,} rows  {days} days  {rate:>10,.0f} rows/s  "
            f"{by_processor:>10,.0f} per second of processor time",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ingest")
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--days", type=int, default=305)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--flink", action="store_true", help="the Flink engine beside the local")
    args = parser.parse_args()
    (run_flink if args.flink else run)(args.rows, args.days, args.rounds)


if __name__ == "__main__":
    main()
