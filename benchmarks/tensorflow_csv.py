"""HybridBackend's workload in ``tf.data``, compared with TensorFlow's own CSV pipeline.

Steps of 20,000 rows of 200 columns come as a dict of 200 tensors, as ``decode_csv`` gives them,
or as one matrix; next to them the reader's own blocks, and torch. TensorFlow, torch and Arrow are
held to one thread each; with two threads a thread of the reader decodes the next step. The
contenders take turns; the figures are medians, and ratios turn by turn to TensorFlow's pipeline,
to plain pyarrow, which reads the table's files without verifying pages, and to pyarrow that
verifies them as our reader does.
The table holds the rows of the CSV file several times over, so that beginning a pass (TensorFlow
makes its functions ready each time) weighs as little as in training.

    python -m benchmarks.tensorflow_csv --steps 2 --copies 20 --repeats 5
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from benchmarks import _hybrid_backend as workload
from benchmarks._hybrid_backend import Data, Seen
from benchmarks.loader import measure
from paimon_features.lake.writing.table_writer import append_arrow
from trainer_bridge.readers.snapshot_reader import SnapshotReader

CSV = "TextLineDataset + decode_csv"
ARROW, MATRIX = "plain pyarrow, columns", "plain pyarrow, matrices"
VERIFIED = "pyarrow, columns, pages verified"


def columns(made: Any, names: list[str]) -> Seen:
    """One pass over a dataset of dicts: a tensor for each column."""
    rows, total = 0, 0
    for found in made:
        total += workload.ends_sum(found[names[0]].numpy(), found[names[-1]].numpy())
        rows += len(found[names[0]])
    return rows, total


def matrix(made: Any) -> Seen:
    """One pass over a dataset of matrices of shape (rows, columns)."""
    rows, total = 0, 0
    for found in made:
        block = found.numpy()
        total += workload.ends_sum(block[:, 0], block[:, -1])
        rows += len(block)
    return rows, total


def plain_pyarrow(paths: list[str], as_matrix: bool = False, verify: bool = False) -> Seen:
    """The table's files to Arrow columns, or to a matrix each."""
    rows, total = 0, 0
    for path in paths:
        file = pq.ParquetFile(path, memory_map=True, page_checksum_verification=verify)
        table = file.read(use_threads=False)
        if as_matrix:
            block = np.empty((table.num_rows, table.num_columns), np.int64)
            for place, column in enumerate(table.columns):
                block[:, place] = column.to_numpy()
            total += workload.ends_sum(block[:, 0], block[:, -1])
        else:
            ends = table.column(0).to_numpy(), table.column(-1).to_numpy()
            total += workload.ends_sum(*ends)
        rows += table.num_rows
    return rows, total


def make_dataset(data: Data, batch: int, threads: int, output: Any, **options: Any) -> Any:
    """The table as a dataset that uses this many threads."""
    import tensorflow as tf

    from trainer_bridge.tensorflow import dataset

    reader = SnapshotReader(
        data.lake,
        workload.TABLE,
        batch_size=batch,
        block_rows=batch,  # a block is a step: nothing is joined up
        shuffle=False,
        threads=threads - 1,
        output=output,
    )
    one = tf.data.Options()
    one.threading.private_threadpool_size = 1
    one.threading.max_intra_op_parallelism = 1
    return dataset(reader, prefetch=0, **options).with_options(one)


def set_up_ms(data: Data, batch: int, times: int = 5) -> float:
    """Processor time of making reader and dataset; the median, without the first."""
    found = []
    for _ in range(times + 1):
        began = time.process_time()
        make_dataset(data, batch, 1, "arrow")
        found.append((time.process_time() - began) * 1e3)
    return statistics.median(found[1:])


def contenders(data: Data, batch: int) -> dict[str, Callable[[], Seen]]:
    """TensorFlow's pipeline first: it is what the others are compared with."""
    with SnapshotReader(data.lake, workload.TABLE, batch_size=batch, shuffle=False) as reader:
        paths = [span.path for block in reader.layout.blocks for span in block.spans]
    named: dict[str, Callable[[], Seen]] = {
        CSV: lambda: workload.tensorflow_csv(data, batch),
        ARROW: lambda: plain_pyarrow(paths),
        VERIFIED: lambda: plain_pyarrow(paths, verify=True),
        MATRIX: lambda: plain_pyarrow(paths, as_matrix=True),
        "NumPy blocks, one thread": lambda: workload.blocks(data, batch),
        "torch, one thread": lambda: workload.torch_tensors(data, batch),
    }
    for threads, label in ((1, "one thread"), (2, "two threads")):
        by_column = make_dataset(data, batch, threads, "arrow")
        of_blocks = make_dataset(data, batch, threads, "numpy")
        as_matrix = make_dataset(
            data, batch, threads, "numpy", stack={"x": data.names}, features="x"
        )
        named |= {
            f"Arrow columns, {label}": lambda made=by_column: columns(made, data.names),  # type: ignore[misc]
            f"one matrix, {label}": lambda made=as_matrix: matrix(made),  # type: ignore[misc]
            f"columns of blocks, {label}": lambda made=of_blocks: columns(made, data.names),  # type: ignore[misc]
        }
    return named


def run(
    steps: int,
    copies: int,
    repeats: int,
    batch: int = workload.BATCH,
    width: int = workload.COLUMNS,
) -> None:
    """Make the files, check that all read the same, time them, print the figures."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    workload.one_thread()
    with tempfile.TemporaryDirectory() as folder:
        data = workload.make_data(Path(folder), steps, width, batch)
        for _ in range(copies - 1):
            with pq.ParquetFile(data.parquet) as file:
                for number in range(file.num_row_groups):
                    append_arrow(data.lake, workload.TABLE, file.read_row_group(number))
        print(f"set-up of a dataset of columns: {set_up_ms(data, batch):.0f} ms of processor time")
        named = contenders(data, batch)
        for name, read in named.items():
            times = 1 if name == CSV else copies
            expected = (data.seen[0] * times, data.seen[1] * times)
            if (found := read()) != expected:
                raise AssertionError(f"{name} read {found}; expected {expected}")
        rates = measure(named, repeats)
    for base in (ARROW, VERIFIED, MATRIX):
        print(f"{'of ' + base:32} {'median of turns':>16} {'by cpu time':>12}")
        for name, turns in rates.items():
            both = [list(pair) for pair in zip(turns, rates[base], strict=True)]
            clock, cpu_time = (
                statistics.median(own[side] / of[side] for own, of in both) for side in (0, 1)
            )
            print(f"{name:32} {clock:16.2f} {cpu_time:12.2f}")
    print(f"{'of ' + CSV:32} {'rows/s':>9} {'ratios by turn':>24} {'by cpu time':>24}")
    for name, turns in rates.items():
        wall, cpu = (
            " ".join(
                f"{turn[side] / other[side]:.1f}"
                for turn, other in zip(turns, rates[CSV], strict=True)
            )
            for side in (0, 1)
        )
        print(
            f"{name:32} {statistics.median(turn[0] for turn in turns):9,.0f} {wall:>24} {cpu:>24}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--steps", type=int, default=2, help="of the CSV file")
    parser.add_argument("--copies", type=int, default=20, help="of its rows in the table")
    parser.add_argument("--repeats", type=int, default=5)
    run(**vars(parser.parse_args()))


if __name__ == "__main__":
    main()
