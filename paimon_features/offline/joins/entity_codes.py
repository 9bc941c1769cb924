"""Entities as dense integers, and (entity, time) pairs as integers that sort like them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from paimon_features.core.columns.column import Column
from paimon_features.core.native import CORE
from paimon_features.core.types.array_types import Array, Ints

_ROOM = 2**62
_TABLE_SIZE = 1 << 16
_TABLE_SHARE = 64
"""Limits of a table of codes by integer: entries, or entries for each entity."""
_SPARSE = 16
"""Bits for each entity in the table of those that may be there."""
_MANY = 4_096
"""So many numbers are sorted to be searched."""
_COUNTED = 8_000_000
"""Up to this range, distinct numbers are found by counting, which is faster than sorting."""
_MOST_BITS = 22
"""A larger table would not fit into the processor's caches."""
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
"""Knuth's: the upper bits of a product depend on all bits of the number."""


class EntityCodes:
    """The distinct entities of a table of rows, as dense codes from 0.

    ``codes`` has one code per row, -1 where one of its keys is null.

    >>> rows = pa.table({"user": ["b", "a", None, "b"], "shop": [1, 1, 1, 1]})
    >>> entities = EntityCodes(rows, ["user", "shop"])
    >>> entities.codes.tolist(), entities.count
    ([0, 1, -1, 0], 2)
    >>> entities.codes_of(pa.table({"user": ["a", "c"], "shop": [1, 1]})).tolist()
    [1, -1]
    """

    def __init__(self, rows: pa.Table, keys: Iterable[str]) -> None:
        self.keys = tuple(keys)
        self._dictionaries: list[pa.Array] = []
        self._pairs: list[pa.Array] = []
        codes: Ints | None = None
        for key in self.keys:
            column_codes, dictionary = _encode(rows.column(key))
            self._dictionaries.append(dictionary)
            if codes is None:
                codes, self.count = column_codes, len(dictionary)
            else:
                # dense again after each column, so that the product of two counts fits
                codes, pairs = _encode(_paired(codes, column_codes, len(dictionary)))
                self._pairs.append(pairs)
                self.count = len(pairs)
        if codes is None:  # without keys all rows belong to one entity
            codes, self.count = np.zeros(rows.num_rows, np.int64), 1
        self.codes = codes
        self._rows = rows
        self._finders = [_finder(values) for values in (*self._dictionaries, *self._pairs)]
        self._sorted: Ints | None = None

    def codes_of(self, table: pa.Table) -> Ints:
        """Return the codes of another table's rows; -1 for entities that are not in this table."""
        codes: Ints | None = None
        find, pairs = iter(self._finders), iter(self._finders[len(self.keys) :])
        for key, dictionary in zip(self.keys, self._dictionaries, strict=True):
            column_codes = next(find)(table.column(key))
            if codes is None:
                codes = column_codes
            else:
                codes = next(pairs)(_paired(codes, column_codes, len(dictionary)))
        return np.zeros(table.num_rows, np.int64) if codes is None else codes

    def rows_of(self, table: pa.Table) -> Ints:
        """Return positions of the rows of another table that belong to entities of this one."""
        return np.flatnonzero(self.codes_of(table) >= 0)

    def may_have(self, least: Any, greatest: Any) -> bool:
        """Return True if an entity may have a first key between two values, both inclusive.

        True where that is not known: only integers are compared.
        """
        if type(least) is not int or type(greatest) is not int:
            return True
        if self._sorted is None:
            values = self._dictionaries[0]
            if not pa.types.is_signed_integer(values.type):
                return True
            self._sorted = np.sort(values.to_numpy().astype(np.int64))
        low = np.searchsorted(self._sorted, least)
        return bool(low < len(self._sorted) and self._sorted[low] <= greatest)

    def columns(self) -> list[Array]:
        """Return the key columns of the distinct entities, in the order of their codes."""
        first = np.zeros(self.count, np.int64)
        present = np.flatnonzero(self.codes >= 0)[::-1]
        first[self.codes[present]] = present  # the last write wins, which is the first row
        entities = self._rows.select(self.keys).take(pa.array(first))
        return [Column.from_arrow(entities.column(key)).values for key in self.keys]


def _encode(column: pa.ChunkedArray | pa.Array) -> tuple[Ints, pa.Array]:
    """Return dense codes of a column's values (-1 for null), and the values in code order."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
        if isinstance(column, pa.ChunkedArray):
            column = pa.concat_arrays(column.chunks)
    encoded = column.dictionary_encode()
    return _numbers(encoded.indices), encoded.dictionary


def _finder(dictionary: pa.Array) -> Callable[[pa.ChunkedArray | pa.Array], Ints]:
    """Return what finds the codes of a column's values: -1 for null and what is not in the
    dictionary.

    A hash table takes most of the time where few of many rows are found. Integers that lie close
    together are looked up in a table of all between the least and the greatest instead, others
    only where a table of bits by a product of theirs says that they may be there.

    >>> find = _finder(pa.array([7, 3]))
    >>> find(pa.array([3, None, 7, -(2**63), 4])).tolist()
    [1, -1, 0, -1, -1]
    """

    def by_hash(column: pa.ChunkedArray | pa.Array) -> Ints:
        return _numbers(pc.index_in(column, value_set=dictionary, skip_nulls=True))

    if not len(dictionary) or dictionary.type != pa.int64():
        return by_hash
    values = dictionary.to_numpy()
    least = values.min()
    span = int(values.max()) - int(least) + 1
    if span <= max(_TABLE_SHARE * len(values), _TABLE_SIZE):
        table = np.full(span + 1, -1, np.int32)
        table[values - least] = np.arange(len(values), dtype=np.int32)

        def look_up(numbers: Ints) -> Ints:
            # a smaller number wraps to a large one
            places = np.minimum((numbers - least).view(np.uint64), np.uint64(span))
            codes: Ints = table[places].astype(np.int64)
            return codes

    else:
        shift = np.uint64(64 - min((_SPARSE * len(values)).bit_length(), _MOST_BITS))
        maybe = np.zeros(1 << (64 - int(shift)), np.bool_)
        maybe[(values.view(np.uint64) * _FACTOR) >> shift] = True

        def look_up(numbers: Ints) -> Ints:
            some = np.flatnonzero(maybe[(numbers.view(np.uint64) * _FACTOR) >> shift])
            if 2 * len(some) > len(numbers):
                return by_hash(pa.array(numbers))
            codes = np.full(len(numbers), -1, np.int64)
            codes[some] = by_hash(pa.array(numbers[some]))
            return codes

    def by_table(column: pa.ChunkedArray | pa.Array) -> Ints:
        if column.type != dictionary.type or column.null_count:
            return by_hash(column)
        return look_up(column.to_numpy())

    return by_table


def _numbers(indices: pa.ChunkedArray | pa.Array) -> Ints:
    """Return indices as int64, -1 for null."""
    if indices.null_count:
        indices = indices.fill_null(-1)
    codes: Ints = indices.to_numpy().astype(np.int64)
    return codes


def _paired(left: Ints, right: Ints, right_count: int) -> pa.Array:
    """Return one integer for each pair of codes; null where one of them is -1."""
    missing = (left < 0) | (right < 0)
    return pa.array(left * max(right_count, 1) + right, mask=missing)


class TimeKeys:
    """Integers that sort like (entity code, time), for binary search.

    ``times`` are all times of the sorted list, multiples of ``step_ms``. A searched time can be
    any multiple of ``step_ms``: its key finds the first listed time at or after it, of the same
    entity.

    >>> keys = TimeKeys(np.array([0, 600]), entities=2, step_ms=300)
    >>> keys.of(np.array([0, 0, 0, 1, 1]), np.array([-900, 300, 900, -900, 600])).tolist()
    [0, 1, 3, 4, 6]
    """

    def __init__(self, times: Ints, entities: int, step_ms: int) -> None:
        self._first = int(times.min()) if len(times) else 0
        self._step_ms = step_ms
        last = int(times.max()) if len(times) else 0
        self._span = (last - self._first) // step_ms + 2
        self._distinct: Ints | None = None
        if self._span * max(entities, 1) > _ROOM:
            # thousands of years in milliseconds: use ranks of the listed times instead
            self._distinct = np.unique(times)
            self._span = len(self._distinct) + 1

    def codes(self, keys: Ints) -> Ints:
        """Return the entity codes of keys."""
        return keys // self._span

    def of(self, codes: Ints, times: Ints) -> Ints:
        """Return the keys of (code, time) pairs; codes must not be negative."""
        if self._distinct is not None:
            ticks = np.searchsorted(self._distinct, times).astype(np.int64, copy=False)
        else:
            ticks = ((times - self._first) // self._step_ms).clip(0, self._span - 1)
        return codes * self._span + ticks


def distinct(numbers: Ints) -> Ints:
    """Return the distinct numbers, sorted.

    >>> distinct(np.array([3, 1, 3])).tolist()
    [1, 3]
    """
    if not len(numbers):
        return numbers
    first = int(numbers.min())
    if int(numbers.max()) - first > _COUNTED:
        return np.unique(numbers)
    present: Ints = np.flatnonzero(np.bincount(numbers - first)) + first
    return present


def sort_order(keys: Ints) -> tuple[Ints, Ints]:
    """Return positions that sort ``keys``, equal ones in their order, and the keys sorted.

    Where key and position fit into one integer, those integers are sorted, which takes a
    fraction of the time of an argsort.

    >>> order, keys = sort_order(np.array([7, 3, 7, 0]))
    >>> order.tolist(), keys.tolist()
    ([3, 1, 0, 2], [0, 3, 7, 7])
    """
    bits = len(keys).bit_length()
    if not _packs(keys):
        order = np.argsort(keys, kind="stable")
        return order, keys[order]
    packed = (keys << bits) | np.arange(len(keys))
    packed.sort()
    return packed & ((1 << bits) - 1), packed >> bits


def positions(keys: Ints, wanted: Ints) -> Ints:
    """Return how many of the sorted ``keys`` are less than each wanted number.

    Equals ``np.searchsorted(keys, wanted)``. The native core searches each of sorted numbers from
    the place of the one before it; many others are sorted for it, which still takes a third of the
    time of searches all over the keys. Without it, if there are many sorted numbers, the keys
    between the first and the last of them are looked up in the numbers instead.

    >>> positions(np.array([2, 4, 4]), np.array([0, 2, 3, 3, 4, 9])).tolist()
    [0, 0, 1, 1, 1, 3]
    """
    if CORE is not None and keys.dtype == wanted.dtype == np.int64:
        keys, places = np.ascontiguousarray(keys), np.empty(len(wanted), np.int64)
        if CORE.locate(keys, np.ascontiguousarray(wanted), places) is not None:
            return places
        if len(wanted) < _MANY or not _packs(wanted):
            return np.searchsorted(keys, wanted)
        order, ordered = sort_order(wanted)
        CORE.locate(keys, ordered, places)
        original = np.empty(len(wanted), np.int64)
        original[order] = places
        return original
    if not len(wanted) or bool((wanted[1:] < wanted[:-1]).any()):
        return np.searchsorted(keys, wanted)
    low, high = np.searchsorted(keys, wanted[[0, -1]])
    if 2 * (high - low) > len(wanted):
        return np.searchsorted(keys, wanted)
    first = np.searchsorted(wanted, keys[low:high], side="right")
    counts = np.diff(first, prepend=0, append=len(wanted))
    return np.repeat(np.arange(low, high + 1), counts)


def _packs(keys: Ints) -> bool:
    """Return True if each key and its position fit into one integer; none is negative."""
    bits = len(keys).bit_length()
    return len(keys) > 0 and int(keys.min()) >= 0 and int(keys.max()).bit_length() + bits <= 62
