"""What a feedback writer remembers of each sample: was it right when it came last."""

from __future__ import annotations

import numpy as np

from paimon_features.array_types import Bools, Words

_STEP = np.array([0x9E3779B97F4A7C15], dtype=np.uint64)
_GROWTH = 4


class LastCorrect:
    """Whether each sample was right at its last presentation: 9 bytes per sample.

    Samples are told apart by a 64-bit hash (two of 10^8 share one with a chance of 1 in
    4,000). They stand in sorted arrays, each at least four times as long as the next one, as
    in a log-structured merge tree: a sample moves a few times, however many there are.

    >>> import pyarrow as pa
    >>> from trainer_bridge.order.key_hashes import key_hashes
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
