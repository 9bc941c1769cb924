"""The global order, its batches, and mixtures of several readers, in plain loops."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from functools import reduce
from itertools import accumulate, groupby
from math import isqrt

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
    """The batches of a rank of commits, as (snapshot, numbers within its commit) for each batch.

    ``commits`` has the rows of each block of a commit, by snapshot id; ``streams`` their number.

    >>> commits = {3: [2, 3], 5: [1]}
    >>> [snapshot for snapshot, _ in reference_stream(commits, {3: 2, 5: 1}, 0, 4, 1, 0)]
    [3, 3, 5]
    """
    for snapshot_id in sorted(commits):
        order = reference_order(commits[snapshot_id], streams[snapshot_id], seed, snapshot_id)
        for batch in reference_batches(order, global_batch_size, world_size, rank, 0, "short"):
            yield snapshot_id, batch


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
