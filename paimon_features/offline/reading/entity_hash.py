"""Entities by hash: the partition of a row, a tile or an event, and a filter of requested keys.

The hash is Paimon's, so that a partition is part of one bucket of the tile table::

    bucket         |        0        |        1        |
    partition      |  0  |  1  |  2  |  3  |  4  |  5  |     three parts per bucket
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from paimon_features.core.columns.column import Column
from paimon_features.core.hashing.buckets import bucket_of, is_fixed
from paimon_features.core.types.array_types import Bools, Ints
from paimon_features.core.types.schema import DataType
from paimon_features.offline.joins.entity_codes import EntityCodes

_HASHES = 1 << 30
"""Approximate number of hashes: somewhat fewer than positive int32 values."""


class EntityHash:
    """Hashes of entities with these keys, for a table of ``buckets`` buckets.

    >>> from paimon_features.core.types.schema import Int64
    >>> hashes = EntityHash({"customer_id": Int64}, buckets=4)
    >>> rows = pa.table({"customer_id": [12346, 12347, None, 17850]})
    >>> found = hashes.of(rows)
    >>> (found % 4).tolist(), hashes.partitions(found, parts=2).tolist()
    ([0, 1, 3, 2], [1, 3, -1, 5])
    """

    def __init__(self, keys: Mapping[str, DataType], buckets: int) -> None:
        self.keys, self.buckets = dict(keys), buckets
        self._moduli = buckets * max(_HASHES // buckets, 1)
        self._is_fixed = bool(self.keys) and all(is_fixed(kind) for kind in self.keys.values())

    def of(self, rows: pa.Table) -> Ints:
        """Return the hash of each row's entity, -1 for a null key.

        ``hash % buckets`` is its bucket.
        """
        if self._is_fixed:
            return self._each(rows)
        # texts: each is hashed once
        entities = EntityCodes(rows, self.keys)
        hashes = np.full(entities.count + 1, -1, np.int64)  # the last one for code -1
        if entities.count:
            kinds = list(self.keys.values())
            hashes[:-1] = bucket_of(entities.columns(), kinds, self._moduli)
        row_hashes: Ints = hashes[entities.codes]
        return row_hashes

    def _each(self, rows: pa.Table) -> Ints:
        """Return as ``of`` for keys of a fixed size, which are hashed faster than compared."""
        columns = [Column.from_arrow(rows.column(key)) for key in self.keys]
        values = [column.values for column in columns]
        hashes = bucket_of(values, list(self.keys.values()), self._moduli).astype(np.int64)
        for column in columns:
            if column.valid is not None:
                hashes[~column.valid] = -1
        return hashes

    def partitions(self, hashes: Ints, parts: int) -> Ints:
        """Return the partition of each hash, when every bucket has ``parts``; -1 stays -1."""
        bucket, rest = hashes % self.buckets, hashes // self.buckets
        return np.where(hashes < 0, -1, bucket * parts + rest % parts)


class KeyFilter:
    """A Bloom filter with one hash over requested (entity, time) pairs.

    An added pair is always found; another one is found with the probability of a set bit. False
    positives are dropped later.

    >>> requested = KeyFilter(1 << 20)
    >>> requested.add(np.array([7, 8]), np.array([300, 300]))
    >>> requested.has(np.array([7, 7]), np.array([300, 600])).tolist()
    [True, False]
    """

    def __init__(self, memory_bytes: int) -> None:
        self._bits = max(memory_bytes, 1 << 10).bit_length() - 1
        self._seen = np.zeros(1 << self._bits, np.bool_)

    def add(self, hashes: Ints, times: Ints) -> None:
        """Add requested pairs."""
        self._seen[self._places(hashes, times)] = True

    def has(self, hashes: Ints, times: Ints) -> Bools:
        """Return the mask of pairs that may have been requested."""
        requested: Bools = self._seen[self._places(hashes, times)]
        return requested

    def _places(self, hashes: Ints, times: Ints) -> npt.NDArray[np.uint64]:
        # multiplicative hashing: the upper bits of a product depend on all bits below
        mixed = hashes.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= times.astype(np.uint64) * np.uint64(0xC2B2AE3D27D4EB4F)
        mixed ^= mixed >> np.uint64(29)
        mixed *= np.uint64(0xBF58476D1CE4E5B9)
        places: npt.NDArray[np.uint64] = mixed >> np.uint64(64 - self._bits)
        return places
