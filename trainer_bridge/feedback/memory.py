"""What a feedback writer remembers of each sample: was it right when it came last."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from paimon_features.array_types import Bools, Ints, Words
from trainer_bridge.order.global_order import mix64

_STEP = np.array([0x9E3779B97F4A7C15], dtype=np.uint64)
_GROWTH = 4


def key_hashes(keys: Sequence[pa.Array]) -> Words:
    """A 64-bit hash per row of one or more key columns of equal length, without nulls.

    >>> one, other = key_hashes([pa.array([1, 2])]), key_hashes([pa.array([2, 1])])
    >>> bool(one[0] == other[1])
    True
    """
    total: Words | None = None
    for column in keys:
        if pa.types.is_integer(column.type) or pa.types.is_boolean(column.type):
            words = column.cast(pa.int64()).to_numpy(zero_copy_only=False).view(np.uint64)
        else:
            words = _text_hashes(column)
        total = mix64((words if total is None else words ^ total) + _STEP)
    assert total is not None, "a sample has at least one key column"
    return total


def _text_hashes(column: pa.Array) -> Words:
    """A hash per text: its length, and its bytes eight at a time."""
    if not pa.types.is_binary(column.type):
        column = column.cast(pa.string())
    _, offsets, data = column.buffers()
    if not len(column):
        return np.empty(0, dtype=np.uint64)
    bounds = np.frombuffer(offsets, dtype="<i4")[column.offset :][: len(column) + 1]
    bounds = bounds.astype(np.int64)
    sizes = np.diff(bounds)
    # a copy with bytes to spare, of which a word can be read at every byte
    size = int(bounds[-1] - bounds[0])
    content = (data.slice(int(bounds[0]), size).to_pybytes() if size else b"") + bytes(8)
    words: Words = np.ndarray((len(content) - 7,), dtype="<u8", buffer=content, strides=(1,))
    starts = bounds[:-1] - bounds[0]
    hashes: Words = mix64(sizes.view(np.uint64) + _STEP)
    begun = 0
    rows: Ints = np.flatnonzero(sizes)
    while len(rows):
        left = sizes[rows] - begun
        unused = (8 * (8 - np.minimum(left, 8))).astype(np.uint64)
        found = (words[starts[rows] + begun].astype(np.uint64) << unused) >> unused
        hashes[rows] = mix64((hashes[rows] ^ found) + _STEP)
        begun += 8
        rows = rows[left > 8]
    return hashes


class LastCorrect:
    """Whether each sample was right at its last presentation: 9 bytes per sample.

    Samples are told apart by a 64-bit hash (two of 10^8 share one with a chance of 1 in
    4,000). They stand in sorted arrays, each at least four times as long as the next one, as
    in a log-structured merge tree: a sample moves a few times, however many there are.

    >>> memory = LastCorrect()
    >>> a, b = key_hashes([pa.array([7, 8])])
    >>> memory.update(np.array([a, b, a]), np.array([True, False, False])).tolist()
    [False, False, True]
    >>> memory.update(np.array([a, b]), np.array([False, False])).tolist()
    [False, False]
    """

    def __init__(self) -> None:
        self._levels: list[tuple[Words, Bools]] = []

    def __len__(self) -> int:
        return sum(len(hashes) for hashes, _ in self._levels)

    def update(self, hashes: Words, right: Bools) -> Bools:
        """Take presentations in their order; tell which were forgotten.

        Forgotten: wrong now, and right when the sample came last (maybe earlier in this
        very call).
        """
        order = np.argsort(hashes)
        by_hash = hashes[order]
        again = np.zeros(len(order), dtype=np.bool_)
        again[1:] = by_hash[1:] == by_hash[:-1]
        if again.any():  # only then does it matter that equal ones stay in their order
            order = np.argsort(hashes, kind="stable")
        by_right = right[order]
        first, last = ~again, np.append(~again[1:], True)[: len(order)]
        before = np.zeros(len(order), dtype=np.bool_)
        before[1:] = by_right[:-1] & again[1:]
        before[first] = self._exchange(by_hash[first], by_right[last])
        forgot = np.empty(len(order), dtype=np.bool_)
        forgot[order] = before & ~by_right
        return forgot

    def _exchange(self, hashes: Words, right: Bools) -> Bools:
        """What is known of each sample (False of a new one); ``right`` takes its place."""
        before = np.zeros(len(hashes), dtype=np.bool_)
        new = np.arange(len(hashes))
        for known, kept in self._levels:
            place = np.minimum(np.searchsorted(known, hashes[new]), len(known) - 1)
            found = known[place] == hashes[new]
            before[new[found]] = kept[place[found]]
            kept[place[found]] = right[new[found]]
            new = new[~found]
        if len(new):
            self._levels.append((hashes[new], right[new]))
        while len(self._levels) > 1 and len(self._levels[-2][0]) < _GROWTH * len(
            self._levels[-1][0]
        ):
            self._levels.append(_merged(self._levels.pop(), self._levels.pop()))
        return before


def _merged(one: tuple[Words, Bools], other: tuple[Words, Bools]) -> tuple[Words, Bools]:
    hashes = np.concatenate([one[0], other[0]])
    order = np.argsort(hashes, kind="stable")  # two runs in order: merged, not sorted
    return hashes[order], np.concatenate([one[1], other[1]])[order]
