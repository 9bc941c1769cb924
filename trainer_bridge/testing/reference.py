"""Naive twins of the trainer bridge, and small tables to compare them on."""

from __future__ import annotations

import gc
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import reduce
from itertools import accumulate, groupby, pairwise
from math import isqrt
from typing import Any

import numpy as np
import pyarrow as pa

from paimon_features.schema import Bool, Float64, Int64, String
from paimon_features.tables.catalog import Lake
from paimon_features.tables.specs import TableSpec
from paimon_features.tables.writer import append_arrow
from trainer_bridge.batches.columns import ColumnSpec
from trainer_bridge.readers.snapshot_reader import SnapshotReader
from trainer_bridge.testing.sampler_contract import SamplerContract as SamplerContract

_M = (1 << 64) - 1
_G, _C1, _C2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def reference_order(block_rows: list[int], streams: int, seed: int, epoch: int) -> list[int]:
    """The global order of an epoch: row numbers by position, in plain loops.

    >>> sorted(reference_order([2, 3], streams=2, seed=0, epoch=0))
    [0, 1, 2, 3, 4]
    """

    def mix(z: int) -> int:
        z = (z ^ z >> 30) * _C1 & _M
        z = (z ^ z >> 27) * _C2 & _M
        return z ^ z >> 31

    def key_of(*parts: int) -> int:
        return reduce(lambda key, part: mix((key ^ part & _M) + _G & _M), parts, 0)

    def permute(x: int, n: int, key: int) -> int:
        radix = (isqrt(n - 1) + 1, -(-n // (isqrt(n - 1) + 1)))
        while True:
            half = list(divmod(x, radix[1]))
            for k in range(16 if n < 1024 else 6):  # a hash of one half moves the other
                h = (half[1 - k % 2] + key + k * _G) * _C1 & _M
                h = ((h ^ h >> 29) * _C2 & _M) >> 32
                half[k % 2] = (half[k % 2] + (h * radix[k % 2] >> 32)) % radix[k % 2]
            x = half[0] * radix[1] + half[1]
            if x < n:
                return x

    key, ends = key_of(seed, epoch), list(accumulate(block_rows))
    blocks = sorted(range(len(ends)), key=lambda j: mix(j * _G + key_of(key, 1) & _M))
    slots = [(j, row) for j in blocks for row in range(ends[j] - block_rows[j], ends[j])]
    cuts = [v * (len(slots) // streams) + min(v, len(slots) % streams) for v in range(streams + 1)]
    shuffled: list[int] = []
    for v in range(streams):
        for _, group in groupby(slots[cuts[v] : cuts[v + 1]], key=lambda slot: slot[0]):
            piece, piece_key = list(group), mix(len(shuffled) * _G + key_of(key, 2) & _M)
            shuffled += [piece[permute(i, len(piece), piece_key)][1] for i in range(len(piece))]
    return [shuffled[cuts[p % streams] + p // streams] for p in range(len(slots))]


def reference_batches(
    order: list[int], global_batch_size: int, world_size: int, rank: int, position: int, last: str
) -> Iterator[list[int]]:
    """The batches of one rank from a position on; ``last`` is drop, pad or short."""
    while position < len(order):
        left = len(order) - position
        if left < global_batch_size and last == "drop":
            return
        size = global_batch_size
        if last == "short":
            size = max(min(left, size), world_size)
        whole = [order[p % len(order)] for p in range(position, position + size)]
        yield whole[rank::world_size]
        position += global_batch_size


def reference_stream(
    commits: Mapping[int, list[int]],
    streams: Mapping[int, int],
    seed: int,
    global_batch_size: int,
    world_size: int,
    rank: int,
) -> Iterator[tuple[int, list[int]]]:
    """What a rank gets of commits, as (snapshot, numbers within its commit) for each batch.

    ``commits`` has the rows of each block of a commit, by snapshot id; ``streams`` their number.

    >>> commits = {3: [2, 3], 5: [1]}
    >>> [snapshot for snapshot, _ in reference_stream(commits, {3: 2, 5: 1}, 0, 4, 1, 0)]
    [3, 3, 5]
    """
    for snapshot_id in sorted(commits):
        order = reference_order(commits[snapshot_id], streams[snapshot_id], seed, snapshot_id)
        for batch in reference_batches(order, global_batch_size, world_size, rank, 0, "short"):
            yield snapshot_id, batch


def naive_rows(
    column: pa.ChunkedArray,
    spec: ColumnSpec,
    fill: float | None = None,
    words: Sequence[str] = (),
) -> list[Any]:
    """A column's rows as tensors hold them, value by value, as Python lists.

    Null lists are None, other nulls ``fill``; fixed dimensions of a null are full of ``fill``.

    >>> column = pa.chunked_array([[[1, None], None, []]])
    >>> naive_rows(column, ColumnSpec("x", np.dtype(np.int64), 1), fill=7)
    [[1, 7], None, []]
    """
    filler = fill or 0

    def full(shape: Sequence[int]) -> Any:
        return [full(shape[1:]) for _ in range(shape[0])] if shape else filler

    def row(value: pa.Scalar, level: int) -> Any:
        fixed = spec.shape[level - spec.ragged_rank :] if level >= spec.ragged_rank else None
        if pa.types.is_dictionary(value.type):
            value = value.dictionary[value.index.as_py()] if value.is_valid else value
        if not value.is_valid:
            if fixed is not None:
                return full(fixed)
            return [] if level else None
        if pa.types.is_nested(value.type):
            return [row(item, level + 1) for item in value.values]
        return number(value)

    def number(value: pa.Scalar) -> Any:
        kind = value.type
        if pa.types.is_timestamp(kind) or pa.types.is_time(kind) or pa.types.is_duration(kind):
            per_second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[kind.unit]
            return value.value * 1000 // per_second
        if pa.types.is_date(kind):
            return value.value // (86_400_000 if pa.types.is_date64(kind) else 1)
        if pa.types.is_decimal(kind):
            return int(value.as_py().scaleb(kind.scale))
        found = value.as_py()
        return list(words).index(found) if isinstance(found, str) else found

    return [row(value, 0) for value in column]


def naive_item_mask(column: pa.ChunkedArray, spec: ColumnSpec) -> list[Any]:
    """Which items of a column of lists are there, value by value; ``spec`` is the mask's.

    >>> column = pa.chunked_array([[[1, None], None, []]])
    >>> naive_item_mask(column, ColumnSpec("x_present_1", np.dtype(bool), 1))
    [[True, False], [], []]
    """
    levels = spec.ragged_rank + len(spec.shape)

    def absent(shape: Sequence[int]) -> Any:
        return [absent(shape[1:]) for _ in range(shape[0])] if shape else False

    def row(value: pa.Scalar, level: int) -> Any:
        if level == levels:
            return value.is_valid
        if value.is_valid:
            return [row(item, level + 1) for item in value.values]
        return absent(spec.shape[level - spec.ragged_rank :]) if level >= spec.ragged_rank else []

    return [row(value, 0) for value in column]


def reference_mix(shares: Sequence[int], classes: int, count: int) -> list[tuple[int, int]]:
    """Source and source position at the first positions of a mixture, in plain loops.

    >>> reference_mix([2, 1], classes=2, count=6)
    [(1, 0), (0, 1), (0, 0), (1, 1), (0, 2), (0, 3)]
    """
    pattern = [
        i
        for _, i in sorted(
            (Fraction(2 * k + 1, 2 * share), i)
            for i, share in enumerate(shares)
            for k in range(share)
        )
    ]
    taken: Counter[tuple[int, int]] = Counter()
    found = []
    for position in range(count):
        turn, of_class = divmod(position, classes)
        first = ((of_class + 1) * _G & _M) >> 32
        source = pattern[(turn + (first * len(pattern) >> 32)) % len(pattern)]
        found.append((source, of_class + classes * taken[source, of_class]))
        taken[source, of_class] += 1
    return found


def own_threads() -> int:
    """Threads of readers and pipelines; others, TensorFlow's say, come and go as they like."""
    names = ("snapshot-", "data-frame", "prefetch", "table-scan", "batch-ahead")
    return sum(thread.name.startswith(names) for thread in threading.enumerate())


def kept_each_time(work: Callable[[], object], times: int = 4) -> int:
    """The file descriptors that work leaves open whenever it runs.

    What leaks grows with every run. What a library's thread opens meanwhile, or what work
    opens once for good, does not: so the smallest growth from one run to the next counts.

    >>> kept = []
    >>> kept_each_time(lambda: kept.extend(open("/dev/null") for _ in range(9))) > 5
    True
    >>> for file in kept:
    ...     file.close()
    """
    counts = []
    for _ in range(times):
        work()
        gc.collect()
        counts.append(len(os.listdir("/proc/self/fd")))
    return min(after - before for before, after in pairwise(counts))


def shared_memory(pid: int) -> list[str]:
    """What a process made there: other programs of this machine use it as well."""
    return sorted(name for name in os.listdir("/dev/shm") if str(pid) in name)


def sample_rows(first: int, count: int) -> pa.Table:
    """Rows whose column x counts from ``first`` on; the other columns follow from x."""
    numbers = np.arange(first, first + count)
    return pa.table(
        {
            "x": numbers,
            "y": numbers / 2,
            "flag": numbers % 2 == 0,
            "name": [f"row {n}" for n in numbers],
        }
    )


def make_samples(lake: Lake, sizes: Sequence[int]) -> str:
    """Make the append table ``samples``, with one commit and one file for each of the sizes."""
    lake.create(TableSpec("samples", {"x": Int64, "y": Float64, "flag": Bool, "name": String}))
    first = 0
    for size in sizes:
        append_arrow(lake, "samples", sample_rows(first, size))
        first += size
    return "samples"


def x_by_row_number(lake: Lake, table: str) -> list[int]:
    """The value of x in each row, by the row's number in the newest snapshot."""
    with SnapshotReader(lake, table, columns=["x"], batch_size=10**6, shuffle=False) as reader:
        found: list[int] = np.concatenate([batch["x"] for batch in reader]).tolist()
    return found
