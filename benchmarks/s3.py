"""Reading an append table from an S3-compatible store, compared with pyarrow and the same objects.

The store is moto's, in a process of its own on this machine. Every contender reads the same
objects to float32 matrices of shape (batch, columns) and adds up their first column; "bytes
alone" fetches the objects and decodes nothing, which is what store and connection can do. They
take turns; rates are those of each one's best turn, ratios to pyarrow are medians turn by turn.
The store's CPU time shows how much of the machine it takes from the reader.

    python -m benchmarks.s3 --rows 1000000 --columns 20 --repeats 5
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from benchmarks.loader import BATCH, TABLE, Seen, check, make_table, snapshot_reader, to_block
from paimon_features.lake.catalog import Lake
from tests.servers.object_store import object_store
from trainer_bridge.readers.snapshot_reader import SnapshotReader

BASE = "pyarrow, file by file"


def serve(channel: Connection) -> None:
    """A store until the channel is closed; answers each message with its processor time."""
    with object_store("bucket") as store:
        channel.send(store.options)
        while channel.recv() is not None:
            channel.send(time.process_time())


@contextmanager
def running_store() -> Iterator[tuple[dict[str, str], Callable[[], float]]]:
    """How to reach a store in another process, and the processor seconds it has taken."""
    context = multiprocessing.get_context("spawn")
    channel, other = context.Pipe()
    process = context.Process(target=serve, args=(other,), daemon=True)
    process.start()

    def worked() -> float:
        channel.send("time")
        found: float = channel.recv()
        return found

    try:
        yield channel.recv(), worked
        channel.send(None)
    finally:
        process.join(10)
        process.kill()


def fetch(files: pafs.FileSystem, places: list[str], at_once: int) -> int:
    """The objects' bytes, which nobody decodes."""

    def one(place: str) -> int:
        with files.open_input_file(place) as source:
            return len(source.read())

    with ThreadPoolExecutor(at_once) as pool:
        return sum(pool.map(one, places))


def plain_pyarrow(files: pafs.FileSystem, places: list[str], at_once: int) -> Seen:
    """Each object into one block, cut into batches; several objects at a time."""

    def one(place: str) -> np.ndarray[Any, Any]:
        with files.open_input_file(place) as source:
            return to_block(pq.ParquetFile(source, pre_buffer=True).read(use_threads=False))

    rows, total = 0, 0.0
    with ThreadPoolExecutor(at_once) as pool:
        for block in map(one, places) if at_once == 1 else pool.map(one, places):
            for start in range(0, len(block), BATCH):
                batch = block[start : start + BATCH]
                total += float(batch[:, 0].sum())
                rows += len(batch)
    return rows, total


def run(rows: int, columns: int, files: int, repeats: int) -> None:
    """Make the table, check that all read the same, time them, print the figures."""
    with tempfile.TemporaryDirectory() as folder, running_store() as (options, worked):
        lake = Lake.open("s3://bucket/lake", "bench", options=options, side_folder=Path(folder))
        make_table(lake, rows, columns, files)
        with SnapshotReader(lake, TABLE, batch_size=BATCH) as reader:
            spans = [span for block in reader.layout.blocks for span in block.spans]
        store: Any = lake.storage
        places = [store.place(path) for path in dict.fromkeys(span.path for span in spans)]
        size = sum(store.filesystem.get_file_info(place).size for place in places)
        print(f"{len(places)} objects of {size:,} bytes; {4 * columns * rows:,} as matrices")
        readers: dict[str, Callable[[], Seen]] = {
            BASE: lambda: plain_pyarrow(store.filesystem, places, 1),
            "pyarrow, two files at once": lambda: plain_pyarrow(store.filesystem, places, 2),
            "reader, in order, no threads": lambda: snapshot_reader(lake, shuffle=False, threads=0),
            "reader, in order, 2 threads": lambda: snapshot_reader(lake, shuffle=False, threads=2),
            "reader, in order, auto": lambda: snapshot_reader(lake, shuffle=False, threads="auto"),
            "reader, shuffled, 2 threads": lambda: snapshot_reader(lake, threads=2),
        }
        check(readers)
        contenders: dict[str, Callable[[], Any]] = {
            **readers,
            "bytes alone, one by one": lambda: fetch(store.filesystem, places, 1),
            "bytes alone, two at once": lambda: fetch(store.filesystem, places, 2),
        }
        # axes: (turn, (wall seconds, processor seconds here, those of the store))
        turns: dict[str, list[tuple[float, float, float]]] = {name: [] for name in contenders}
        for _ in range(repeats):
            for name, read in contenders.items():
                began = time.perf_counter(), time.process_time(), worked()
                read()
                ended = time.perf_counter(), time.process_time(), worked()
                turns[name].append(tuple(b - a for a, b in zip(began, ended, strict=True)))  # type: ignore[arg-type]
    print(
        f"{'':30} {'rows/s':>10} {'MB/s':>6} {'ratio':>6} {'own s':>6} {'ratio':>6} {'store s':>8}"
    )
    for name, times in turns.items():
        best = min(wall for wall, _, _ in times)
        wall, own = (
            statistics.median(b[side] / a[side] for a, b in zip(times, turns[BASE], strict=True))
            for side in (0, 1)
        )
        spent = [statistics.median(turn[side] for turn in times) for side in (1, 2)]
        print(
            f"{name:30} {rows / best:10,.0f} {size / best / 1e6:6,.0f} {wall:6.2f} "
            f"{spent[0]:6.2f} {own:6.2f} {spent[1]:8.2f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--columns", type=int, default=20)
    parser.add_argument("--files", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=5)
    run(**vars(parser.parse_args()))


if __name__ == "__main__":
    main()
