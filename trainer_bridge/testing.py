"""Naive twins of the trainer bridge, and small tables to compare them on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from itertools import accumulate, groupby
from math import isqrt

import numpy as np
import pyarrow as pa

from paimon_features.schema import Bool, Float64, Int64, String
from paimon_features.tables.catalog import Lake
from paimon_features.tables.specs import TableSpec
from paimon_features.tables.writer import append_arrow
from trainer_bridge.reader import SnapshotReader

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
