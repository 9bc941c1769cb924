"""Files laid over each other: rows of one key are folded without sorting or gathering them.

A file has each key once, and is sorted by it. If the files are in the order of their writes,
a fold needs the group of each row only, and that ascends within a file: its steps
are stored, mostly in a byte for each row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from paimon_features.core.native import CORE
from paimon_features.core.types.array_types import Ints
from trainer_bridge.blocks.folds import fold, take
from trainer_bridge.blocks.merge import KeyGroups, ascends
from trainer_bridge.blocks.overlay import lay_over


@dataclass(frozen=True)
class Layers:
    """Row ``i`` of file ``f`` is of group ``owns[f][i]``, of ``count``; the oldest file first."""

    count: int
    owns: tuple[Ints, ...]

    @classmethod
    def of(cls, groups: KeyGroups, sizes: Sequence[int]) -> Layers | None:
        """Return the layers of files with these numbers of rows; None if the groups of one do not
        ascend.

        >>> found = Layers.of(KeyGroups(rows=np.array([0, 2, 1]), starts=np.array([0, 2])), [2, 1])
        >>> [numbers.tolist() for numbers in found.owns]
        [[0, 1], [0]]
        """
        begins = np.zeros(len(groups.rows), np.bool_)
        begins[groups.starts[1:]] = True
        group_of_row = np.empty(len(groups.rows), np.int64)
        group_of_row[groups.rows] = np.cumsum(begins)
        owns = tuple(np.split(group_of_row, np.cumsum(sizes[:-1])))
        return cls(len(groups), owns) if all(map(ascends, owns)) else None

    @classmethod
    def of_keys(cls, keys: Sequence[Ints]) -> Layers | None:
        """Return the layers of files with these keys, without sorting them again.

        None if a file is not sorted, or none has most of the rows: then a sort is faster.

        >>> found = Layers.of_keys([np.array([1, 3, 5, 9]), np.array([3, 4]), np.array([0])])
        >>> found.count, [numbers.tolist() for numbers in found.owns]
        (6, [[1, 2, 4, 5], [2, 3], [0]])
        """
        base = max(keys, key=len)
        if 2 * len(base) < sum(map(len, keys)) or not ascends(base):
            return None
        # its place in one sequence is the number of keys below it: of the base, and of others
        places, other = [], [base[:0]]
        for key in keys:
            location = (np.arange(len(key)), 0) if key is base else located(base, key)
            if location is None:
                return None
            at, missing = location
            places.append(at)
            if missing:
                other.append(key[base.take(at, mode="clip") != key])
        new = np.unique(np.concatenate(other))
        if not len(new):
            return cls(len(base), tuple(places))
        above = np.bincount(np.searchsorted(base, new), minlength=len(base))
        below = np.cumsum(above[: len(base)])
        owns = (
            at + (below if k is base else np.searchsorted(new, k))
            for k, at in zip(keys, places, strict=True)
        )
        return cls(len(base) + len(new), tuple(owns))

    def pack(self) -> list[bytes]:
        """For each file the steps from group to group in 1, 2 or 4 bytes; none if it has all.

        >>> Layers(300, (np.arange(300), np.array([0, 7]), np.array([1, 299]))).pack()
        [b'', b'\\x01\\x07', b'\\x02\\x00*\\x01']
        """
        packed = []
        for numbers in self.owns:
            steps = np.diff(numbers, prepend=-1)
            kind = "<u" + str(min(np.min_scalar_type(steps.max()).itemsize, 4))
            packed.append(b"" if len(numbers) == self.count else steps.astype(kind).tobytes())
        return packed

    @classmethod
    def unpack(cls, count: int, sizes: Sequence[int], packed: Sequence[bytes]) -> Layers:
        """Return the inverse of :meth:`pack`, for files with these numbers of rows."""
        owns = []
        for rows, steps in zip(sizes, packed, strict=True):
            if rows == count:
                owns.append(np.arange(count))
                continue
            numbers = np.cumsum(np.frombuffer(steps, f"<u{len(steps) // rows}"), dtype=np.int64)
            numbers -= 1
            owns.append(numbers)
        return cls(count, tuple(owns))

    def __len__(self) -> int:
        return self.count

    @cached_property
    def first(self) -> Ints:
        """The row of the oldest write of each group, counted through all files."""
        return self.groups.first

    @cached_property
    def last(self) -> Ints:
        """The row of the newest write of each group, counted through all files."""
        newest = np.empty(self.count, np.int64)
        start = 0
        for numbers in self.owns:
            newest[numbers] = np.arange(start, start + len(numbers))
            start += len(numbers)
        return newest

    @cached_property
    def groups(self) -> KeyGroups:
        """The rows by group, for functions that need them this way."""
        group_of_row = np.concatenate(self.owns)
        rows: Ints = np.argsort(group_of_row, kind="stable")
        ordered = group_of_row[rows]
        return KeyGroups(rows, np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])))

    def take(self, parts: Sequence[pa.ChunkedArray]) -> pa.Array:
        """Return the newest value of each group; ``parts`` are the column in each file.

        Like :meth:`fold` it may overwrite their memory.
        """
        done = lay_over(self.count, self.owns, parts, "last_value")
        return take(_joined(parts), self.last) if done is None else done

    def fold(
        self, parts: Sequence[pa.ChunkedArray], function: str, delimiter: str = ","
    ) -> pa.Array:
        """Return one value for each group, as :func:`~trainer_bridge.blocks.folds.fold` has it.

        May overwrite the memory of ``parts``, which must not be shared.

        >>> layers = Layers(2, (np.array([0, 1]), np.array([0])))
        >>> layers.fold([pa.chunked_array([[5, 6]]), pa.chunked_array([[7]])], "sum").to_pylist()
        [12, 6]

        Raises
        ------
        TableError
            For a function that is unknown, does not support the type, or overflows it.
        """
        if function == "last_value":
            return self.take(parts)
        done = lay_over(self.count, self.owns, parts, function)
        return fold(self.groups, _joined(parts), function, delimiter) if done is None else done


def located(values: Ints, keys: Ints) -> tuple[Ints, int] | None:
    """Return how many of the values are below each key, and how many keys are none of them.

    Both ascend; None if the keys do not. The native core searches each key from the place of the
    one before it, in a third of the time.

    >>> located(np.array([2, 4, 6]), np.array([1, 4, 9]))
    (array([0, 1, 3]), 2)
    """
    if not len(keys):
        return None
    if CORE is not None:
        places = np.empty(len(keys), np.int64)
        counts = CORE.locate(np.ascontiguousarray(values), np.ascontiguousarray(keys), places)
        return None if counts is None or counts[1] else (places, counts[0])
    if not ascends(keys):
        return None
    places = np.searchsorted(values, keys)
    return places, int(np.count_nonzero(values.take(places, mode="clip") != keys))


def _joined(parts: Sequence[pa.ChunkedArray]) -> pa.ChunkedArray:
    return pa.chunked_array([chunk for part in parts for chunk in part.chunks], parts[0].type)
