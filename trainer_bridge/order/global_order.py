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
(a Feistel network on mixed radices with cycle walking; Black and Rogaway, "Ciphers with
arbitrary finite domains", CT-RSA 2002). ``trainer_bridge.testing.reference.reference_order`` is
the naive twin.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from paimon_features.array_types import Ints, Words

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MUL1 = 0xBF58476D1CE4E5B9
_MUL2 = 0x94D049BB133111EB
# Rounds until pairs of neighbours land anywhere equally often, as far as 400,000 keys can
# tell; halves of a few values need more of them.
_ROUNDS, _ROUNDS_SMALL, _SMALL = 6, 16, 1_024
# Positions at a time: what is computed for them stays in the processor's cache.
_SLICE = 8_192
# A constant as a one-item array: uint64 arrays wrap around in silence, which is what
# hashing wants, while NumPy scalars warn.
_W = {value: np.array([value], dtype=np.uint64) for value in (_GOLDEN, _MUL1, _MUL2)}


def mix64(words: npt.ArrayLike) -> Words:
    """A well spread 64-bit hash of each word (the finaliser of SplitMix64).

    >>> [hex(word) for word in mix64([0, 1])]
    ['0x0', '0x5692161d100b05e5']
    """
    z = np.atleast_1d(np.asarray(words, dtype=np.uint64))
    z = (z ^ (z >> np.uint64(30))) * _W[_MUL1]
    z = (z ^ (z >> np.uint64(27))) * _W[_MUL2]
    return z ^ (z >> np.uint64(31))


def derive_key(*parts: int) -> int:
    """A 64-bit key from integers; another order or number of parts gives another key.

    >>> derive_key(1, 2) == derive_key(2, 1)
    False
    """
    key = 0
    for part in parts:
        key = int(mix64([((key ^ (part & _MASK)) + _GOLDEN) & _MASK])[0])
    return key


def uniform(key: int, numbers: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """One float in [0, 1) per number, a pure function of key and number.

    >>> bool((uniform(7, [3, 4]) == [uniform(7, 3)[0], uniform(7, 4)[0]]).all())
    True
    """
    counters = np.atleast_1d(np.asarray(numbers)).astype(np.uint64)
    words = mix64(counters * _W[_GOLDEN] + np.array([key & _MASK], dtype=np.uint64))
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53


def radices(sizes: npt.ArrayLike) -> tuple[Words, Words]:
    """For each size n >= 1 the pair (a, b) with a = ceil(sqrt(n)), b = ceil(n / a)."""
    n = np.atleast_1d(np.asarray(sizes)).astype(np.int64)
    a = np.ceil(np.sqrt(n.astype(np.float64))).astype(np.int64)
    # A float root can be one off near a square: put it right in integers.
    a = np.where((a - 1) * (a - 1) >= n, a - 1, a)
    a = np.maximum(np.where(a * a < n, a + 1, a), 1)
    return a.astype(np.uint64), (-(-n // a)).astype(np.uint64)


def permute(numbers: npt.ArrayLike, sizes: npt.ArrayLike, keys: npt.ArrayLike) -> Ints:
    """A keyed permutation of ``range(size)``, computed for each number alone.

    Arguments broadcast: every number may have its own size (1 <= size < 2^62) and key.

    >>> [int(x) for x in sorted(permute(range(5), 5, 99))]
    [0, 1, 2, 3, 4]
    >>> bool(permute([3], [5], [99])[0] == permute(range(5), 5, 99)[3])
    True
    """
    n, size, key = (
        np.array(part) if part.ndim == 0 else part
        for part in np.broadcast_arrays(
            np.atleast_1d(np.asarray(numbers)).astype(np.uint64),
            np.atleast_1d(np.asarray(sizes)).astype(np.uint64),
            np.atleast_1d(np.asarray(keys)).astype(np.uint64),
        )
    )
    a, b = radices(size)
    return _permute(n, size, a, b, key)


def _permute(x: Words, size: Words, a: Words, b: Words, key: Words) -> Ints:
    """:func:`permute` with the radices given; all of one shape."""
    small = size < _SMALL
    if small.all():
        return _walk(x, size, a, b, key, _ROUNDS_SMALL).astype(np.int64)
    if not small.any():
        return _walk(x, size, a, b, key, _ROUNDS).astype(np.int64)
    out = np.empty(x.shape, dtype=np.int64)
    for part, rounds in ((small, _ROUNDS_SMALL), (~small, _ROUNDS)):
        out[part] = _walk(x[part], size[part], a[part], b[part], key[part], rounds)
    return out


def _walk(x: Words, size: Words, a: Words, b: Words, key: Words, rounds: int) -> Words:
    out = _feistel(x, a, b, key, rounds)
    while (outside := out >= size).any():
        # Cycle walking: apply again to those that fell outside; about 1 in sqrt(n) do.
        out[outside] = _feistel(out[outside], a[outside], b[outside], key[outside], rounds)
    return out


def _feistel(x: Words, a: Words, b: Words, key: Words, rounds: int) -> Words:
    left, right = np.divmod(x, b)
    for k in range(rounds):
        source, target, radix = (right, left, a) if k % 2 == 0 else (left, right, b)
        h = (source + key + np.array([k * _GOLDEN & _MASK], dtype=np.uint64)) * _W[_MUL1]
        h ^= h >> np.uint64(29)
        h *= _W[_MUL2]
        h >>= np.uint64(32)
        h *= radix  # multiply and shift: a number in [0, radix) without a division
        h >>= np.uint64(32)
        h += target
        np.minimum(h, h - radix, out=h)  # below the radix the difference wraps around, upwards
        left, right = (h, right) if k % 2 == 0 else (left, h)
    return left * b + right


class GlobalOrder:
    """The order of the rows of one snapshot in one epoch.

    Parameters
    ----------
    block_rows
        Rows of each block, in the order of the row numbers: block j holds the rows
        ``[sum(block_rows[:j]), sum(block_rows[:j+1]))``.
    streams
        Number V of canonical streams, 1 <= V <= number of rows.
    seed, epoch
        Key of the permutations.
    shuffle
        False gives the rows in their own order, as one stream.

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
            # Sorting hashes is the best shuffle there is, and blocks are few.
            order_key = np.array([derive_key(key, 1)], dtype=np.uint64)
            hashes = mix64(blocks.astype(np.uint64) * _W[_GOLDEN] + order_key)
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
        self._keys: Words = mix64(starts.astype(np.uint64) * _W[_GOLDEN] + piece_key)
        self._radix_a, self._radix_b = radices(self._sizes)

    def __len__(self) -> int:
        return self.num_rows

    def rows(self, positions: npt.ArrayLike) -> Ints:
        """Row numbers at the given positions, each in ``[0, len(self))``."""
        p = np.asarray(positions, dtype=np.int64)
        if not self.shuffle:
            return p
        if len(p) <= _SLICE:
            return self._rows(p)
        return np.concatenate([self._rows(p[i : i + _SLICE]) for i in range(0, len(p), _SLICE)])

    def _rows(self, p: Ints) -> Ints:
        slots = self._cuts[p % self.streams] + p // self.streams
        piece = np.searchsorted(self._starts, slots, side="right") - 1
        offset = _permute(
            (slots - self._starts[piece]).astype(np.uint64),
            self._sizes[piece].astype(np.uint64),
            self._radix_a[piece],
            self._radix_b[piece],
            self._keys[piece],
        )
        return self._first_row[piece] + offset

    def open_blocks(self, start: int, stop: int, streams: Ints | None = None) -> Ints:
        """Blocks that the positions ``[start, stop)`` of these streams can touch.

        Includes the whole of each piece that is begun, so a block leaves this set only
        when nothing of the piece is left to come. ``streams=None`` means all of them.
        """
        own = np.arange(self.streams, dtype=np.int64) if streams is None else streams
        last = self._cuts[own + 1] - 1
        low = np.minimum(self._cuts[own] + start // self.streams, last)
        high = np.minimum(self._cuts[own] + max(stop - 1, start) // self.streams, last)
        first = np.searchsorted(self._starts, low, side="right") - 1
        until = np.searchsorted(self._starts, high, side="right") - 1
        spans = [np.arange(f, u + 1) for f, u in zip(first, until, strict=True) if u > f]
        return np.unique(self._blocks[np.concatenate([first, *spans]).astype(np.int64)])

    def next_blocks(self, position: int, most: int, streams: Ints | None = None) -> list[int]:
        """Blocks that these streams come to after the ones open at ``position``: at most so many,
        in the order in which they are needed. ``streams=None`` means all of them.

        >>> order = GlobalOrder([3, 3, 3, 3], streams=2, seed=1, epoch=0, shuffle=True)
        >>> opened = order.open_blocks(0, 1).tolist()
        >>> sorted(opened + order.next_blocks(0, 4)) == [0, 1, 2, 3]
        True
        """
        own = np.arange(self.streams, dtype=np.int64) if streams is None else streams
        slots = np.minimum(self._cuts[own] + position // self.streams, self._cuts[own + 1] - 1)
        piece = np.searchsorted(self._starts, slots, side="right") - 1
        each = -(-most // len(own)) + 1
        # axes: (stream, piece after the one that is open)
        after = piece[:, None] + np.arange(1, each + 1)
        inside = after < np.searchsorted(self._starts, self._cuts[own + 1])[:, None]
        found, (home, _) = after[inside], np.nonzero(inside)
        first = (self._starts[found] - self._cuts[own[home]]) * self.streams + own[home]
        ordered = self._blocks[found[np.argsort(first, kind="stable")]]
        blocks: list[int] = ordered[:most].tolist()
        return blocks


def choose_streams(block_sizes: Sequence[int] | Ints, limit: int, open_bytes: int) -> int:
    """Number of canonical streams of a table: the largest divisor of ``limit`` that fits.

    Fits: at most one stream per block, and one open block per stream within
    ``open_bytes`` (block sizes in bytes). A function of the snapshot and of what is
    declared, never of the machine or the number of ranks.

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


def shuffle_quality(order: Any, classes: npt.ArrayLike | None = None) -> dict[str, float]:
    """How well an order mixes, in two numbers; both cost O(rows) time and memory.

    ``neighbours_kept``: share of consecutive positions whose rows are neighbours in the
    table (1 unshuffled, about ``2 / rows`` in a perfect shuffle). ``class_spread`` (with
    ``classes``, one label per row): spread of the class shares over ten equal parts of
    the epoch, over the spread that chance alone gives; about 1 is perfect.
    """
    rows = order.rows(np.arange(len(order)))
    kept = float(np.mean(np.abs(np.diff(rows)) == 1)) if len(rows) > 1 else 0.0
    if classes is None:
        return {"neighbours_kept": kept}
    _, labels = np.unique(np.asarray(classes), return_inverse=True)
    parts = np.array_split(labels[rows], min(10, max(len(rows), 1)))
    shares = np.bincount(labels) / len(labels)
    # axes: (part, class)
    counts = np.stack([np.bincount(part, minlength=len(shares)) for part in parts])
    expected = np.outer([len(part) for part in parts], shares)
    chance = (len(parts) - 1) * max(len(shares) - 1, 1)
    spread = float(((counts - expected) ** 2 / expected).sum() / chance)
    return {"neighbours_kept": kept, "class_spread": spread**0.5}
