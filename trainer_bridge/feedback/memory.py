"""Per-sample memory of a feedback writer: whether the last prediction was correct."""

from __future__ import annotations

import numpy as np

from paimon_features.core.types.array_types import Bools, Words

_GROWTH = 4


class LastCorrect:
    """Whether each sample was correct at its last presentation; 9 bytes per sample.

    Samples are identified by a 64-bit hash (among 10^8 the probability of a collision is 1 in
    4,000). They are stored in sorted arrays, each at least four times as long as the next one,
    as in a log-structured merge tree: each sample is moved only a few times.

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
        """Record presentations in order; return which samples were forgotten.

        Forgotten: incorrect now, and correct at the previous presentation (possibly earlier
        in the same call).
        """
        order = np.argsort(hashes)
        by_hash = hashes[order]
        again = np.zeros(len(order), dtype=np.bool_)
        again[1:] = by_hash[1:] == by_hash[:-1]
        if again.any():  # only then must the sort be stable
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
        """Return the recorded value per sample (False if new) and replace it by ``right``."""
        before = np.zeros(len(hashes), dtype=np.bool_)
        new = np.arange(len(hashes))
        for stored, kept in self._levels:
            place = np.minimum(np.searchsorted(stored, hashes[new]), len(stored) - 1)
            is_stored = stored[place] == hashes[new]
            before[new[is_stored]] = kept[place[is_stored]]
            kept[place[is_stored]] = right[new[is_stored]]
            new = new[~is_stored]
        if len(new):
            self._levels.append((hashes[new], right[new]))
        while len(self._levels) > 1 and len(self._levels[-2][0]) < _GROWTH * len(
            self._levels[-1][0]
        ):
            self._levels.append(_merged(self._levels.pop(), self._levels.pop()))
        return before


def _merged(one: tuple[Words, Bools], other: tuple[Words, Bools]) -> tuple[Words, Bools]:
    hashes = np.concatenate([one[0], other[0]])
    order = np.argsort(hashes, kind="stable")  # two sorted runs: merged, not sorted again
    return hashes[order], np.concatenate([one[1], other[1]])[order]
