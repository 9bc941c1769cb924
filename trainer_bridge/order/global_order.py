"""The global order of an epoch: a pure function from position to row number.

``rows(position)`` depends on the seed, the epoch and the blocks of the pinned snapshot,
and on nothing else: not on ranks, workers or threads, nor on what was read before.

::

    blocks of the snapshot    [ A  ][ B ][  C   ][ D ]        whole row groups
    keyed order of blocks     [  C   ][ A  ][ D ][ B ]        "slots" 0 .. N-1
    V = 2 canonical streams   |--- stream 0 --|-- stream 1 -| equal shares, cut at N*v/V
    inside each piece         rows in a keyed permutation
    position p                stream p mod V, its slot p div V

Nothing of size N is kept: a few numbers per block, and a permutation that is computed
(:mod:`trainer_bridge.order.permutation`). The reference implementation is
``reference_order`` in ``tests/reference/order.py``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from paimon_features.core.native import CORE
from paimon_features.core.types.array_types import Ints, Words
from trainer_bridge.order.permutation import (
    GOLDEN,
    WORD,
    derive_key,
    mix64,
    permute_with,
    radices,
)

# Positions at a time: what is computed for them stays in the processor's cache.
_SLICE = 8_192


class GlobalOrder:
    """The order of the rows of one snapshot in one epoch.

    Parameters
    ----------
    block_rows
        Rows of each block, in the order of the row numbers: block j has the rows
        ``[sum(block_rows[:j]), sum(block_rows[:j+1]))``.
    streams
        Number V of canonical streams, 1 <= V <= number of rows.
    seed, epoch
        Key of the permutations.
    shuffle
        False keeps the rows in their own order, as one stream.

    Examples
    --------
    >>> order = GlobalOrder([3, 2, 4], streams=2, seed=1, epoch=0)
    >>> sorted(order.rows(range(9)).tolist())
    [0, 1, 2, 3, 4, 5, 6, 7, 8]
    >>> GlobalOrder([3, 2, 4], streams=1, seed=1, epoch=0, shuffle=False).rows([8, 0]).tolist()
    [8, 0]
    """

    def __init__(
        self,
        block_rows: Sequence[int] | Ints,
        *,
        streams: int,
        seed: int,
        epoch: int,
        shuffle: bool = True,
    ) -> None:
        sizes = np.asarray(block_rows, dtype=np.int64)
        first_row = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        self.num_rows = int(first_row[-1])
        self.streams = streams if shuffle else 1
        self.shuffle = shuffle
        key = derive_key(seed, epoch)
        blocks = np.arange(len(sizes), dtype=np.int64)
        if shuffle:
            # Sorting by hashes is the best shuffle, and blocks are few.
            order_key = np.array([derive_key(key, 1)], dtype=np.uint64)
            hashes = mix64(blocks.astype(np.uint64) * WORD[GOLDEN] + order_key)
            blocks = np.argsort(hashes, kind="stable").astype(np.int64)
        slot = np.concatenate([[0], np.cumsum(sizes[blocks])]).astype(np.int64)
        share, extra = divmod(self.num_rows, self.streams)
        number = np.arange(self.streams + 1, dtype=np.int64)
        self._cuts: Ints = number * share + np.minimum(number, extra)
        # A piece is what a stream owns of one block, and the unit of the inner shuffle.
        starts = np.unique(np.concatenate([slot[:-1], self._cuts[:-1]]))
        starts = starts[starts < self.num_rows]
        home = np.searchsorted(slot, starts, side="right") - 1
        self._starts: Ints = starts
        self._sizes: Ints = np.diff(np.append(starts, self.num_rows))
        self._blocks: Ints = blocks[home]
        self._first_row: Ints = first_row[self._blocks] + starts - slot[home]
        piece_key = np.array([derive_key(key, 2)], dtype=np.uint64)
        self._keys: Words = mix64(starts.astype(np.uint64) * WORD[GOLDEN] + piece_key)
        self._radix_a, self._radix_b = radices(self._sizes)
        self._pieces = (
            self._starts,
            self._sizes,
            self._radix_a,
            self._radix_b,
            self._keys,
            self._first_row,
        )

    def __len__(self) -> int:
        return self.num_rows

    def rows(self, positions: npt.ArrayLike) -> Ints:
        """Row numbers at the given positions, each in ``[0, len(self))``; ValueError for others."""
        p = np.asarray(positions, dtype=np.int64)
        if p.size and (p.min() < 0 or p.max() >= self.num_rows):
            raise ValueError(
                f"expected positions from 0 to {self.num_rows - 1}, got {p.min()} to {p.max()}"
            )
        if not self.shuffle:
            return p
        if CORE is not None and p.ndim == 1:
            numbers = np.empty(len(p), np.int64)
            CORE.order(np.ascontiguousarray(p), self.streams, self._cuts, self._pieces, numbers)
            return numbers
        if len(p) <= _SLICE:
            return self._rows(p)
        return np.concatenate([self._rows(p[i : i + _SLICE]) for i in range(0, len(p), _SLICE)])

    def _rows(self, p: Ints) -> Ints:
        slots = self._cuts[p % self.streams] + p // self.streams
        piece = np.searchsorted(self._starts, slots, side="right") - 1
        offset = permute_with(
            (slots - self._starts[piece]).astype(np.uint64),
            self._sizes[piece].astype(np.uint64),
            self._radix_a[piece],
            self._radix_b[piece],
            self._keys[piece],
        )
        return self._first_row[piece] + offset

    def open_blocks(self, start: int, stop: int, streams: Ints | None = None) -> Ints:
        """Blocks that the positions ``[start, stop)`` of these streams can touch.

        Includes every piece that is begun to its end, so a block leaves this set only
        when nothing of the piece is left. ``streams=None`` means all of them.
        """
        picks = np.arange(self.streams, dtype=np.int64) if streams is None else streams
        last = self._cuts[picks + 1] - 1
        low = np.minimum(self._cuts[picks] + start // self.streams, last)
        high = np.minimum(self._cuts[picks] + max(stop - 1, start) // self.streams, last)
        first = np.searchsorted(self._starts, low, side="right") - 1
        until = np.searchsorted(self._starts, high, side="right") - 1
        spans = [np.arange(f, u + 1) for f, u in zip(first, until, strict=True) if u > f]
        return np.unique(self._blocks[np.concatenate([first, *spans]).astype(np.int64)])

    def next_blocks(self, position: int, most: int, streams: Ints | None = None) -> list[int]:
        """At most ``most`` blocks that these streams read after the ones open at ``position``,
        in the order in which they are needed. ``streams=None`` means all of them.

        >>> order = GlobalOrder([3, 3, 3, 3], streams=2, seed=1, epoch=0, shuffle=True)
        >>> opened = order.open_blocks(0, 1).tolist()
        >>> sorted(opened + order.next_blocks(0, 4)) == [0, 1, 2, 3]
        True
        """
        picks = np.arange(self.streams, dtype=np.int64) if streams is None else streams
        slots = np.minimum(self._cuts[picks] + position // self.streams, self._cuts[picks + 1] - 1)
        piece = np.searchsorted(self._starts, slots, side="right") - 1
        per_stream = -(-most // len(picks)) + 1
        # axes: (stream, piece after the one that is open)
        after = piece[:, None] + np.arange(1, per_stream + 1)
        inside = after < np.searchsorted(self._starts, self._cuts[picks + 1])[:, None]
        pieces, (home, _) = after[inside], np.nonzero(inside)
        first = (self._starts[pieces] - self._cuts[picks[home]]) * self.streams + picks[home]
        ordered = self._blocks[pieces[np.argsort(first, kind="stable")]]
        blocks: list[int] = ordered[:most].tolist()
        return blocks


def choose_streams(block_sizes: Sequence[int] | Ints, limit: int, open_bytes: int) -> int:
    """Return the number of streams of a table: the largest divisor of ``limit`` that fits.

    Fits: at most one stream per block, and one open block per stream within
    ``open_bytes`` (block sizes in bytes). A function of the snapshot and of the
    arguments, never of the machine or the number of ranks.

    >>> choose_streams([100] * 10_000, limit=960, open_bytes=10**9)
    960
    >>> choose_streams([100] * 50, limit=960, open_bytes=10**9)
    48
    >>> choose_streams([2**20] * 50, limit=960, open_bytes=2**24)
    16
    """
    sizes = np.asarray(block_sizes, dtype=np.float64)
    room = min(len(sizes), int(open_bytes // max(sizes.mean(), 1.0))) if len(sizes) else 1
    return max((d for d in _divisors(limit) if d <= room), default=1)


def _divisors(number: int) -> list[int]:
    return [d for d in range(1, number + 1) if number % d == 0]
