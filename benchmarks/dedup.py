"""Features of users stored once per block of rows, compared with lists stored with every row.

After HybridBackend's ``data_benchmark_deduplication.py``: 20 columns of lists of int64, blocks of
1,000 rows, batches of 64,000 rows, read with one thread. Its users are two in each block
(``--users 2 --items 2``); here by default 20, with lists of 10 items on average. Every contender
adds up the items of one column, as often as they come in its rows.

    python -m benchmarks.dedup --batches 10 --repeats 5
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

from trainer_bridge.batches.ragged import Ragged
from trainer_bridge.dataframe import Dataset, write_deduplicated_parquet

BLOCK = 1_000
BATCH = 64_000

Seen = tuple[int, int]
"""Rows, and the sum over them of all items of the last column."""


def make_files(folder: Path, batches: int, columns: int, users: int, items: int) -> list[str]:
    """``lists.parquet`` and ``once.parquet`` with the same rows; the columns of lists."""
    dice = np.random.default_rng(0)
    count = batches * BATCH
    user = np.repeat(np.arange(count // BLOCK), BLOCK) * users + dice.integers(0, users, count)
    everyone = count // BLOCK * users
    features = {}
    for number in range(columns):
        lengths = dice.integers(0, 2 * items + 1, everyone)
        splits = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        values = dice.integers(0, 1 << 40, splits[-1])
        features[f"f{number}"] = pa.ListArray.from_arrays(pa.array(splits), pa.array(values))
    taken = pa.array(user)
    rows = pa.table({"user": taken, **{n: lists.take(taken) for n, lists in features.items()}})
    pq.write_table(rows, folder / "lists.parquet", compression="zstd", row_group_size=BATCH)
    names = list(features)
    parts = (rows.slice(at, BATCH) for at in range(0, count, BATCH))
    write_deduplicated_parquet(parts, folder / "once.parquet", BLOCK, ["user", *names])
    return names


def lists(folder: Path, names: list[str]) -> Seen:
    """Lists of every row, as values and row splits."""
    rows, total = 0, 0
    for batch in Dataset.from_parquet(folder / "lists.parquet", names).batch(BATCH):
        rows += len(batch[names[-1]])
        total += int(batch[names[-1]].values.sum())
    return rows, total


def restored(folder: Path, names: list[str]) -> Seen:
    """Lists of every row, from what is stored once."""
    rows, total = 0, 0
    for batch in once(folder, names, restore=True).batch(BATCH // BLOCK):
        rows += len(batch[names[-1]])
        total += int(batch[names[-1]].values.sum())
    return rows, total


def kept(folder: Path, names: list[str]) -> Seen:
    """What is stored once, and the inverse: the sums of users are weighted by their rows."""
    rows, total = 0, 0
    for batch in once(folder, names, restore=False).batch(BATCH // BLOCK):
        column = batch[names[-1]]
        found: Ragged = column.values
        times = np.bincount(column.inverse, minlength=len(found))
        rows += len(column)
        total += int((found.values * np.repeat(times, found.lengths)).sum())
    return rows, total


def once(folder: Path, names: list[str], restore: bool) -> Dataset:
    return Dataset.from_parquet(
        folder / "once.parquet",
        names,
        key_idx_field_names=["user_index"],
        value_field_names=[names],
        restore=restore,
    )


def run(batches: int, columns: int, users: int, items: int, repeats: int) -> None:
    """Make the files, time all contenders in turn, print medians and ratios."""
    contenders: dict[str, Callable[[Path, list[str]], Seen]] = {
        "lists": lists,
        "deduplicated, restored": restored,
        "deduplicated, (values, inverse)": kept,
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        names = make_files(folder, batches, columns, users, items)
        for file in ("lists", "once"):
            print(f"{file}.parquet: {(folder / f'{file}.parquet').stat().st_size:,} bytes")
        found = {name: read(folder, names) for name, read in contenders.items()}
        if len(set(found.values())) != 1:
            raise AssertionError(f"contenders differ: {found}")
        spent: dict[str, list[float]] = {name: [] for name in contenders}
        for _ in range(repeats):
            for name, read in contenders.items():
                started = time.process_time()
                read(folder, names)
                spent[name].append(time.process_time() - started)
        rows = batches * BATCH
        base = statistics.median(spent["lists"])
        print(f"{'':34} {'rows/cpu s':>12} {'ratio':>6}")
        for name, turns in spent.items():
            took = statistics.median(turns)
            print(f"{name:34} {rows / took:12,.0f} {base / took:6.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--batches", type=int, default=10)
    parser.add_argument("--columns", type=int, default=20)
    parser.add_argument("--users", type=int, default=20, help="different users in a block")
    parser.add_argument("--items", type=int, default=10, help="items of a list on average")
    parser.add_argument("--repeats", type=int, default=5)
    run(**vars(parser.parse_args()))


if __name__ == "__main__":
    main()
