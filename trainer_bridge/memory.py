"""What a feedback writer remembers of each sample: was it right when it came last."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from trainer_bridge.order import Ints, Words, mix64

Bools = npt.NDArray[np.bool_]

_RECENT = 1 << 16


def key_hashes(keys: Sequence[pa.Array]) -> Words:
    """A 64-bit hash per row of one or more key columns of equal length.

    >>> one, other = key_hashes([pa.array([1, 2])]), key_hashes([pa.array([2, 1])])
    >>> bool(one[0] == other[1])
    True
    """
    total: Words | None = None
    for column in keys:
        if pa.types.is_integer(column.type) or pa.types.is_boolean(column.type):
            words = column.cast(pa.int64()).to_numpy(zero_copy_only=False).view(np.uint64)
        else:
            coded = column.dictionary_encode()
            texts = [str(value).encode() for value in coded.dictionary.to_pylist()]
            digests = [hashlib.blake2b(text, digest_size=8).digest() for text in texts]
            words = np.frombuffer(b"".join(digests), dtype="<u8").astype(np.uint64)[
                coded.indices.to_numpy()
            ]
        step = np.array([0x9E3779B97F4A7C15], dtype=np.uint64)
        total = mix64((words if total is None else words ^ total) + step)
    assert total is not None, "a sample has at least one key column"
    return total


class LastCorrect:
    """Whether each sample was right at its last presentation: 9 bytes per sample.

    Samples are told apart by a 64-bit hash (two of 10^8 share one with a chance of 1 in
    4,000). Most stand in two sorted arrays; what is new waits in a small dictionary.

    >>> memory = LastCorrect()
    >>> a, b = key_hashes([pa.array([7, 8])])
    >>> memory.update(np.array([a, b, a]), np.array([True, False, False])).tolist()
    [False, False, True]
    >>> memory.update(np.array([a, b]), np.array([False, False])).tolist()
    [False, False]
    """

    def __init__(self) -> None:
        self._hashes: Words = np.empty(0, dtype=np.uint64)
        self._right: Bools = np.empty(0, dtype=np.bool_)
        self._recent: dict[int, bool] = {}

    def __len__(self) -> int:
        self._merge()
        return len(self._hashes)

    def update(self, hashes: Words, right: Bools) -> Bools:
        """Take presentations in their order; tell which were forgotten.

        Forgotten: wrong now, and right when the sample came last (maybe earlier in this
        very call).
        """
        order: Ints = np.argsort(hashes, kind="stable").astype(np.int64)
        by_hash, by_right = hashes[order], right[order]
        again = np.zeros(len(order), dtype=np.bool_)
        again[1:] = by_hash[1:] == by_hash[:-1]
        before = np.zeros(len(order), dtype=np.bool_)
        before[1:] = by_right[:-1] & again[1:]
        first = ~again
        before[first] = self._look_up(by_hash[first])
        forgot = np.empty(len(order), dtype=np.bool_)
        forgot[order] = before & ~by_right
        last = np.append(first[1:], True)[: len(order)]
        self._store(by_hash[last], by_right[last])
        return forgot

    def _look_up(self, hashes: Words) -> Bools:
        found = np.zeros(len(hashes), dtype=np.bool_)
        if len(self._hashes):
            place = np.minimum(np.searchsorted(self._hashes, hashes), len(self._hashes) - 1)
            found = (self._hashes[place] == hashes) & self._right[place]
        if self._recent:
            get = self._recent.get
            for number, word in enumerate(hashes.tolist()):
                known = get(word)
                if known is not None:
                    found[number] = known
        return found

    def _store(self, hashes: Words, right: Bools) -> None:
        if len(self._hashes):
            place = np.minimum(np.searchsorted(self._hashes, hashes), len(self._hashes) - 1)
            known = self._hashes[place] == hashes
            self._right[place[known]] = right[known]
            hashes, right = hashes[~known], right[~known]
        self._recent.update(zip(hashes.tolist(), right.tolist(), strict=True))
        if len(self._recent) > max(_RECENT, len(self._hashes) // 16):
            self._merge()

    def _merge(self) -> None:
        if not self._recent:
            return
        count = len(self._recent)
        hashes = np.fromiter(self._recent.keys(), dtype=np.uint64, count=count)
        right = np.fromiter(self._recent.values(), dtype=np.bool_, count=count)
        self._recent.clear()
        hashes = np.concatenate([self._hashes, hashes])
        right = np.concatenate([self._right, right])
        order = np.argsort(hashes, kind="stable")
        self._hashes, self._right = hashes[order], right[order]
