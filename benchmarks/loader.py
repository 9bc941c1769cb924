"""Reading an append table to contiguous float32 blocks, compared with plain pyarrow and pypaimon.

Every contender reads the same Parquet files to matrices of shape (batch, columns) and adds
up their first column, so that nobody returns early. They take turns; the rates are those of
each one's best turn (what else runs on the machine only ever slows one). Ratios are those of the
best turns, and medians of the ratios turn by turn, by the clock and by processor time. Plain
pyarrow does not verify the checksums of pages, as our reader does; "pages verified" is pyarrow that
does.

In addition: what a state costs, how soon a reader resumes at 90 % of an epoch, and what memory
the order of 10^8 rows takes.

    python -m benchmarks.loader --rows 2000000 --columns 20 --repeats 5

``--hold 10`` prints instead, for one thread in order and shuffled, the ratios to plain pyarrow of
ten runs, each of the best of ``--repeats`` turns, and the least of them; also to pyarrow that
verifies pages:

    python -m benchmarks.loader --hold 10 --repeats 3
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from paimon_features.core.types.schema import Float32
from paimon_features.lake.catalog import Lake
from paimon_features.lake.specs import TableSpec
from paimon_features.lake.writing.table_writer import append_arrow
from trainer_bridge.order.global_order import GlobalOrder
from trainer_bridge.readers.snapshot_reader import SnapshotReader

BATCH = 4_096
TABLE = "samples"
PLAIN, VERIFIED = "pyarrow, one thread", "pyarrow, one thread, pages verified"

Seen = tuple[int, float]
"""How many rows were read, and the sum of their first column."""


def make_table(lake: Lake, rows: int, columns: int, files: int) -> None:
    """An append table of random floats, one commit a file."""
    names = [f"f{number}" for number in range(columns)]
    lake.create(TableSpec(TABLE, dict.fromkeys(names, Float32)))
    dice = np.random.default_rng(0)
    for part in np.array_split(np.arange(rows), files):
        data = {name: dice.random(len(part), dtype=np.float32) for name in names}
        append_arrow(lake, TABLE, pa.table(data))


def to_block(table: pa.Table) -> np.ndarray[Any, Any]:
    """All columns of a table as one contiguous matrix."""
    block = np.empty((table.num_rows, table.num_columns), dtype=np.float32)
    for place, column in enumerate(table.columns):
        start = 0
        for chunk in column.chunks:
            block[start : start + len(chunk), place] = chunk.to_numpy()
            start += len(chunk)
    return block


def plain_pyarrow(paths: list[str], threads: bool = False, verify: bool = False) -> Seen:
    """File by file into one block each, cut into batches."""
    rows, total = 0, 0.0
    for path in paths:
        file = pq.ParquetFile(path, memory_map=True, page_checksum_verification=verify)
        block = to_block(file.read(use_threads=threads))
        for start in range(0, len(block), BATCH):
            batch = block[start : start + BATCH]
            total += float(batch[:, 0].sum())
            rows += len(batch)
    return rows, total


def snapshot_reader(lake: Lake, **options: Any) -> Seen:
    """The reader of this project."""
    rows, total = 0, 0.0
    with SnapshotReader(lake, TABLE, batch_size=BATCH, **options) as reader:
        for batch in reader:
            block = batch.blocks["float32"]
            total += float(block[:, 0].sum())
            rows += len(block)
    return rows, total


def torch_loader(lake: Lake, **options: Any) -> Seen:
    """The reader through its torch adapter, as one matrix a batch."""
    from trainer_bridge.adapters.torch import loader

    rows, total = 0, 0.0
    with SnapshotReader(lake, TABLE, batch_size=BATCH, **options) as reader:
        names = list(reader.column_dtypes())
        for batch in loader(reader, stack={"x": names}):
            total += float(batch["x"][:, 0].sum())
            rows += len(batch["x"])
    return rows, total


def pypaimon_rows(lake: Lake, limit: int) -> Seen:
    """pypaimon's row path, row by row into a matrix."""
    builder = lake.table(TABLE).new_read_builder()
    splits = builder.new_scan().plan().splits()
    rows, total, held = 0, 0.0, []
    for row in builder.new_read().to_iterator(splits):
        held.append([row.get_field(place) for place in range(len(row))])
        if len(held) == BATCH:
            block = np.array(held, dtype=np.float32)
            total += float(block[:, 0].sum())
            rows += len(held)
            held = []
            if rows >= limit:
                break
    return rows, total


def pypaimon_torch(lake: Lake, limit: int) -> Seen:
    """pypaimon's torch data set in a DataLoader, stacked into a matrix."""
    import torch
    from torch.utils.data import DataLoader

    builder = lake.table(TABLE).new_read_builder()
    splits = builder.new_scan().plan().splits()
    data = builder.new_read().to_torch(splits, streaming=True)
    rows, total = 0, 0.0
    for batch in DataLoader(data, batch_size=BATCH):
        block = torch.stack([column.to(torch.float32) for column in batch.values()], dim=1)
        total += float(block[:, 0].sum())
        rows += len(block)
        if rows >= limit:
            break
    return rows, total


def state_costs(lake: Lake) -> tuple[float, float]:
    """Milliseconds of taking a state as JSON, and of going to one; medians of 200."""
    taken, restored = [], []
    with SnapshotReader(lake, TABLE, batch_size=BATCH) as reader:
        for number in range(200):
            began = time.perf_counter()
            text = json.dumps(reader.state_dict())
            taken.append(time.perf_counter() - began)
            state = {**json.loads(text), "position": number * BATCH % reader.num_rows}
            began = time.perf_counter()
            reader.load_state_dict(state)
            restored.append(time.perf_counter() - began)
    return statistics.median(taken) * 1e3, statistics.median(restored) * 1e3


def resume_seconds(lake: Lake, share: float = 0.9) -> float:
    """From nothing but a state to the batch that follows it, in the middle of an epoch."""
    with SnapshotReader(lake, TABLE, batch_size=BATCH) as reader:
        state = reader.state_after(int(share * len(reader)))
    began = time.perf_counter()
    with SnapshotReader(lake, TABLE, batch_size=BATCH) as reader:
        reader.load_state_dict(state)
        next(iter(reader))
        return time.perf_counter() - began


def permutation(rows: int = 10**8, block_rows: int = 65_536) -> tuple[float, float]:
    """Most megabytes that the order of so many rows takes, and rows per second it computes."""
    blocks = np.full(-(-rows // block_rows), block_rows, dtype=np.int64)
    blocks[-1] -= blocks.sum() - rows
    tracemalloc.start()
    order = GlobalOrder(blocks, streams=960, seed=1, epoch=0)
    for start in range(0, rows, rows // 20):
        order.rows(np.arange(start, start + 65_536))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    began = time.perf_counter()
    for start in range(0, rows, rows // 20):
        order.rows(np.arange(start, start + 65_536))
    return peak / 1e6, 20 * 65_536 / (time.perf_counter() - began)


Rates = dict[str, list[tuple[float, float]]]
"""Per contender and turn: rows per second, and per second of processor time."""


def measure(contenders: Mapping[str, Callable[[], Seen]], repeats: int) -> Rates:
    """Each contender in turn; they were warmed up by ``check``."""
    rates: Rates = {name: [] for name in contenders}
    for _ in range(repeats):
        for name, read in contenders.items():
            started, worked = time.perf_counter(), time.process_time()
            rows, _ = read()
            wall_s, cpu_s = time.perf_counter() - started, time.process_time() - worked
            rates[name].append((rows / wall_s, rows / cpu_s))
    return rates


def report(rates: Rates, row_bytes: int) -> Iterator[str]:
    """A line per contender, with its ratios to plain pyarrow on one thread.

    MB/s are those of the matrices that come out, ``row_bytes`` a row.
    """
    base = next(iter(rates.values()))
    yield f"{'':36} {'':>11} {'':>6} {'by the clock':>14} {'':>11} {'by cpu time':>14}"
    head = f"{'best':>7} {'median':>6}"
    yield f"{'':36} {'rows/s':>11} {'MB/s':>6} {head} {'rows/cpu s':>11} {head}"
    for name, turns in rates.items():
        line = f"{name:36}"
        for side in (0, 1):
            best = max(turn[side] for turn in turns)
            ratio = best / max(turn[side] for turn in base)
            by_turn = [own[side] / other[side] for own, other in zip(turns, base, strict=True)]
            size = f" {best * row_bytes / 1e6:6,.0f}" if side == 0 else ""
            line += f" {best:11,.0f}{size} {ratio:7.3f} {statistics.median(by_turn):6.3f}"
        yield line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--columns", type=int, default=20)
    parser.add_argument("--files", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--slow-rows", type=int, default=40_960, help="rows for slow contenders")
    parser.add_argument("--hold", type=int, default=0, help="so many runs of the main ratios only")
    arguments = vars(parser.parse_args())
    if holds := arguments.pop("hold"):
        del arguments["slow_rows"]
        hold(holds, **arguments)
    else:
        run(**arguments)


def hold(runs: int, rows: int, columns: int, files: int, repeats: int) -> None:
    """Print the ratio of each of several runs, and the least, without the other contenders."""
    with tempfile.TemporaryDirectory() as folder:
        lake = Lake.open(Path(folder), "bench")
        make_table(lake, rows, columns, files)
        with SnapshotReader(lake, TABLE, batch_size=BATCH) as reader:
            spans = [span for block in reader.layout.blocks for span in block.spans]
        paths = list(dict.fromkeys(span.path for span in spans))
        contenders: dict[str, Callable[[], Seen]] = {
            PLAIN: lambda: plain_pyarrow(paths),
            VERIFIED: lambda: plain_pyarrow(paths, verify=True),
            "in order, no threads": lambda: snapshot_reader(lake, shuffle=False, threads=0),
            "shuffled, no threads": lambda: snapshot_reader(lake, threads=0),
        }
        check(contenders)
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in contenders}
        for _ in range(runs):
            for name, turns in measure(contenders, repeats).items():
                wall, cpu = (max(side) for side in zip(*turns, strict=True))
                found[name].append((wall, cpu))
    for base in (PLAIN, VERIFIED):
        print(f"of {base}")
        for name in [name for name in found if name not in (PLAIN, base)]:
            for label, side in (("by the clock", 0), ("by cpu time", 1)):
                both = zip(found[name], found[base], strict=True)
                ratios = [own[side] / of[side] for own, of in both]
                listed = " ".join(f"{ratio:.3f}" for ratio in ratios)
                middle = statistics.median(ratios)
                print(f"  {name}, {label}: {listed}; {min(ratios):.3f}, median {middle:.3f}")


def run(rows: int, columns: int, files: int, repeats: int, slow_rows: int) -> None:
    """Make the table, time all contenders, print the figures."""
    with tempfile.TemporaryDirectory() as folder:
        lake = Lake.open(Path(folder), "bench")
        make_table(lake, rows, columns, files)
        with SnapshotReader(lake, TABLE, batch_size=BATCH) as reader:
            paths = [span.path for block in reader.layout.blocks for span in block.spans]
            paths = list(dict.fromkeys(paths))
            print({**reader.describe(quality=True), "columns": columns})
        file_bytes = sum(Path(path).stat().st_size for path in paths)
        print(f"{len(paths)} files of {file_bytes:,} bytes; {4 * columns * rows:,} as matrices")
        contenders: dict[str, Callable[[], Seen]] = {
            PLAIN: lambda: plain_pyarrow(paths),
            VERIFIED: lambda: plain_pyarrow(paths, verify=True),
            "pyarrow, its threads": lambda: plain_pyarrow(paths, threads=True),
            "reader, in order, no threads": lambda: snapshot_reader(lake, shuffle=False, threads=0),
            "reader, in order, 2 threads": lambda: snapshot_reader(lake, shuffle=False, threads=2),
            "reader, shuffled, no threads": lambda: snapshot_reader(lake, threads=0),
            "reader, shuffled, 2 threads": lambda: snapshot_reader(lake, threads=2),
            "reader, in order, auto": lambda: snapshot_reader(lake, shuffle=False, threads="auto"),
            "reader, shuffled, auto": lambda: snapshot_reader(lake, threads="auto"),
            "torch adapter, in order, no threads": lambda: torch_loader(
                lake, shuffle=False, threads=0
            ),
            "torch adapter, in order, 2 threads": lambda: torch_loader(
                lake, shuffle=False, threads=2
            ),
            "torch adapter, shuffled, 2 threads": lambda: torch_loader(lake, threads=2),
            "pypaimon, rows (fewer)": lambda: pypaimon_rows(lake, slow_rows),
            "pypaimon, torch (fewer)": lambda: pypaimon_torch(lake, slow_rows),
        }
        check(contenders)
        for line in report(measure(contenders, repeats), 4 * columns):
            print(line)
        took_ms, restored_ms = state_costs(lake)
        print(f"a state: {took_ms:.3f} ms to take as JSON, {restored_ms:.3f} ms to go to")
        resumed_s = min(resume_seconds(lake) for _ in range(repeats))
        print(f"a reader made, sent to 90 % of the epoch, first batch there: {resumed_s:.3f} s")
        megabytes, rate = permutation()
        print(f"the order of 10^8 rows: {megabytes:.1f} MB at most, {rate:,.0f} positions/s")


def check(contenders: dict[str, Callable[[], Seen]]) -> None:
    """Whoever reads all rows has the same number of them and the same sum."""
    found = {name: read() for name, read in contenders.items()}
    rows, total = next(iter(found.values()))
    for name, (count, own) in found.items():
        all_read = count == rows and math.isclose(own, total, rel_tol=1e-6)
        if not all_read and "fewer" not in name:
            raise AssertionError(f"{name}: {count} rows, sum {own}; expected {rows}, {total}")


if __name__ == "__main__":
    main()
