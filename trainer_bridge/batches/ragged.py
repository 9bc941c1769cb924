"""Columns of lists as flat values and row splits, and functions that move their rows.

A list of any depth is stored as its items, one after the other, and for each level where the
lists of that level end. Nothing here loops over rows.

>>> tags = Ragged(np.array([7, 8, 9]), (np.array([0, 2, 2, 3]),))
>>> tags.to_lists()
[[7, 8], [], [9]]
>>> tags.take(np.array([2, 0])).to_lists()
[[9], [7, 8]]
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from paimon_features.core.errors import RequestError
from paimon_features.core.native import CORE
from paimon_features.core.types.array_types import Array, Bools, Ints


class SparseValue(NamedTuple):
    """Items with their places, as ``tf.SparseTensor`` has them.

    ``indices`` is int64 of shape ``(items, dimensions)``, ascending; ``dense_shape`` int64.
    """

    indices: Ints
    values: Array
    dense_shape: Ints


@dataclass(frozen=True, slots=True, eq=False)
class Ragged:
    """Rows of lists of any length, nested to any depth.

    Attributes
    ----------
    values
        All items, shape ``(items, *shape)``; ``shape`` is that of the fixed dimensions inside.
    splits
        For each level, outermost first, int64: list ``i`` of a level is the part of the next
        level from ``splits[i]`` to ``splits[i + 1]`` (exclusive). The first one is 0, the last one
        the size of the next level.
    mask
        Shape ``(rows,)``: False if the list of a row is null (it is empty then). None if
        no list is.

    Examples
    --------
    >>> nested = Ragged(np.array([1, 2, 3]), (np.array([0, 2, 2, 3]), np.array([0, 1, 3, 3])))
    >>> nested.to_lists()
    [[[1], [2, 3]], [], [[]]]
    >>> nested.ragged_rank, nested.lengths.tolist()
    (2, [2, 0, 1])
    >>> nested.to_sparse().indices.tolist()
    [[0, 0, 0], [0, 1, 0], [0, 1, 1]]
    >>> nested[1:].to_lists()
    [[], [[]]]
    >>> nested.to_dense(pad=-1)[0].tolist()
    [[1, -1], [2, 3]]
    """

    values: Array
    splits: tuple[Ints, ...]
    mask: Bools | None = None

    def __len__(self) -> int:
        return len(self.splits[0]) - 1

    def __getitem__(self, rows: slice) -> Ragged:
        """Return the rows of a slice with step 1; the values are a view."""
        start, stop, step = rows.indices(len(self))
        if step != 1:
            raise RequestError(f"a slice of ragged rows with step {step}: expected step 1")
        stop = max(start, stop)
        mask = None if self.mask is None else self.mask[start:stop]
        splits = []
        for level in self.splits:
            part = level[start : stop + 1]
            start, stop = int(part[0]), int(part[-1])
            splits.append(part - start if start else part)
        return Ragged(self.values[start:stop], tuple(splits), mask)

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.values.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The fixed dimensions of an item; empty where items are numbers."""
        return self.values.shape[1:]

    @property
    def ragged_rank(self) -> int:
        """How many levels of lists there are above the items."""
        return len(self.splits)

    @property
    def lengths(self) -> Ints:
        """How long the list of each row is; 0 for null."""
        return np.diff(self.splits[0])

    @property
    def nbytes(self) -> int:
        mask = 0 if self.mask is None else self.mask.nbytes
        return self.values.nbytes + sum(level.nbytes for level in self.splits) + mask

    def with_values(self, values: Array) -> Ragged:
        """Return the same lists of other items."""
        return Ragged(values, self.splits, self.mask)

    @property
    def inner(self) -> Array | Ragged:
        """The items of all rows, one after the other: without the outermost level."""
        return self.values if len(self.splits) == 1 else Ragged(self.values, self.splits[1:])

    def take(self, rows: Array) -> Ragged:
        """Return a copy of these rows, in this order; a row may occur several times."""
        # axes: (wanted row)
        starts = self.splits[0].take(rows)
        lengths = self.splits[0].take(rows + 1) - starts
        splits = ends(lengths)
        items = runs(starts, splits, lengths)
        mask = None if self.mask is None else self.mask.take(rows)
        return wrap(take_rows(self.inner, items), splits, mask)

    def to_lists(self) -> list[Any]:
        """Return rows as Python lists, null ones as None."""
        lists = self.values.tolist()
        for level in reversed(self.splits):
            lists = [lists[low:high] for low, high in itertools.pairwise(level.tolist())]
        if self.mask is not None:
            lists = [row if valid else None for row, valid in zip(lists, self.mask, strict=True)]
        return lists

    def to_sparse(self) -> SparseValue:
        """Return the items with their places, in the order of rows and lists."""
        # axes: (item, dimension), a column at a time
        places = [np.arange(len(self), dtype=np.int64)]
        for level in self.splits:
            lengths = np.diff(level)
            position = runs(np.zeros(len(lengths), np.int64), level, lengths)
            places = [*(np.repeat(place, lengths) for place in places), position]
        longest = [int(np.diff(level).max(initial=0)) for level in self.splits]
        width = math.prod(self.shape)
        inner = np.indices(self.shape, dtype=np.int64).reshape(len(self.shape), width)
        indices = np.stack(
            [
                *(np.repeat(place, width) for place in places),
                *(np.tile(place, len(self.values)) for place in inner),
            ],
            axis=1,
        )
        dense_shape = np.array([len(self), *longest, *self.shape], dtype=np.int64)
        return SparseValue(indices, self.values.reshape(-1), dense_shape)

    def to_dense(self, pad: Any = 0, lengths: Sequence[int | None] | None = None) -> Array:
        """Shape ``(rows, longest, ..., *shape)``, padded at the end of each list.

        ``lengths`` sets dimensions, one for each level from the outermost (None: the longest).

        Raises
        ------
        RequestError
            If a list is longer than ``lengths`` allows, or ``pad`` does not fit the type.
        """
        sizes: list[int] = []
        wanted = [*(lengths or ()), *[None] * self.ragged_rank][: self.ragged_rank]
        for number, (level, size) in enumerate(zip(self.splits, wanted, strict=True)):
            longest = int(np.diff(level).max(initial=0))
            if size is not None and longest > size:
                raise RequestError(
                    f"a list of {longest} items at level {number} does not fit a dense array "
                    f"of {size}; allow more, or cut the lists before"
                )
            sizes.append(longest if size is None else size)
        with np.errstate(invalid="ignore"):
            filler = np.asarray(pad).astype(self.dtype)
        if not (filler == pad or filler != filler):
            raise RequestError(
                f"pad={pad!r}: items are {self.dtype.name}, which cannot represent that"
            )
        out = np.full((len(self), *sizes, *self.shape), filler)
        # place of each item, were all lists as long as the longest
        place = np.arange(len(self), dtype=np.int64)
        for level, size in zip(self.splits, sizes, strict=True):
            place = runs(place * size, level, np.diff(level))
        out.reshape(-1, *self.shape)[place] = self.values
        return out


Rows = Array | Ragged
"""A column's rows: an array of shape ``(rows, *shape)``, or lists."""


def wrap(inner: Rows, splits: Ints, mask: Bools | None = None) -> Ragged:
    """Return one level of lists over rows."""
    if isinstance(inner, Ragged):
        return Ragged(inner.values, (splits, *inner.splits), mask)
    return Ragged(inner, (splits,), mask)


def take_rows(rows: Rows, wanted: Array) -> Rows:
    """Return a copy of these rows, in this order; the caller has checked the numbers."""
    if isinstance(rows, Ragged):
        return rows.take(wanted)
    if rows.ndim == 1 or not rows.flags.c_contiguous or rows[:1].nbytes == 0:
        return rows.take(wanted, axis=0, mode="clip")
    out = np.empty((len(wanted), *rows.shape[1:]), rows.dtype)
    items(out)[:] = items(rows).take(wanted, mode="clip")
    return out


def concat_rows(parts: Sequence[Rows]) -> Rows:
    """Return a copy of all rows of the parts (at least one, all of a kind), one after the other."""
    first = parts[0]
    if len(parts) == 1:
        return first
    lists = [part for part in parts if isinstance(part, Ragged)]
    if not isinstance(first, Ragged) or len(lists) != len(parts):
        return np.concatenate([part for part in parts if not isinstance(part, Ragged)])
    splits = []
    for level in range(first.ragged_rank):
        lengths = [np.diff(part.splits[level]) for part in lists]
        splits.append(ends(np.concatenate(lengths)))
    return Ragged(
        np.concatenate([part.values for part in lists]), tuple(splits), _joined_masks(lists)
    )


def scatter_rows(parts: Sequence[Rows], places: Sequence[Array], size: int) -> Rows:
    """Return rows by place: row ``i`` of part ``p`` becomes row ``places[p][i]`` of ``size``."""
    back = np.empty(size, dtype=np.int64)
    back[np.concatenate(places)] = np.arange(size)
    return take_rows(concat_rows(parts), back)


def items(rows: Array) -> Array:
    """Return each row of a contiguous array as one item: moving items is three times as fast as
    rows."""
    width = math.prod(rows.shape[1:])
    cells = np.dtype((np.void, width * rows.itemsize))
    return rows.reshape(len(rows), width).view(cells)[:, 0]


def move_items(source: Array, rows: Array, out: Array, places: Array) -> None:
    """``out[places] = source[rows]``, of ``items``; the caller has checked the numbers."""
    if CORE is None or not len(source):
        out[places] = source.take(rows, mode="clip")
        return
    numbers = [np.ascontiguousarray(integers, np.int64) for integers in (rows, places)]
    # as bytes: there are types that have no buffer
    flat = [array.view(np.uint8) for array in (source, out)]
    CORE.move(flat[0], numbers[0], source.itemsize, flat[1], numbers[1])


def ends(lengths: Ints) -> Ints:
    """Row splits of lists with these lengths."""
    splits = np.empty(len(lengths) + 1, dtype=np.int64)
    splits[0] = 0
    np.cumsum(lengths, out=splits[1:])
    return splits


def runs(starts: Ints, splits: Ints, lengths: Ints) -> Ints:
    """``start, start + 1, ...`` for each list, one after the other."""
    indices = np.repeat(starts - splits[:-1], lengths)
    indices += np.arange(len(indices))
    return indices


def _joined_masks(parts: Sequence[Ragged]) -> Bools | None:
    if all(part.mask is None for part in parts):
        return None
    return np.concatenate(
        [np.ones(len(part), bool) if part.mask is None else part.mask for part in parts]
    )
