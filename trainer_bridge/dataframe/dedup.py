"""Columns that are stored once per user and block of rows: reading and restoring them.

A stored row is a *block* of rows. A deduplicated column holds the block's unique values, an
index column says for each row of the block which of them it has.

>>> uniques = Ragged(np.array([1, 2, 3]), (np.array([0, 1, 3]),))
>>> once = Deduplicated(uniques, np.array([0, 1, 0]))
>>> once.restore().to_lists()
[[1], [2, 3], [1]]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paimon_features.array_types import Array, Ints
from paimon_features.errors import RequestError
from trainer_bridge.batches.ragged import Ragged, Rows, concat_rows, ends, runs, take_rows


@dataclass(frozen=True, slots=True, eq=False)
class Deduplicated:
    """A column's unique rows, and which of them each row has.

    What an embedding lookup needs: it looks ``values`` up once, and gathers by ``inverse``
    (``KeyedJaggedTensor.inverse_indices``).
    """

    values: Rows
    inverse: Ints

    def __len__(self) -> int:
        return len(self.inverse)

    def __getitem__(self, rows: slice) -> Deduplicated:
        """Some of the rows, of all values."""
        return Deduplicated(self.values, self.inverse[rows])

    def restore(self) -> Rows:
        """The rows, in order."""
        return take_rows(self.values, self.inverse)


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """Rows in blocks: block ``i`` is ``rows[splits[i]:splits[i + 1]]``; ``splits[0]`` is 0."""

    rows: Rows
    splits: Ints

    def __len__(self) -> int:
        return len(self.splits) - 1

    def __getitem__(self, blocks: slice) -> Blocks:
        start, stop, _ = blocks.indices(len(self))
        splits = self.splits[start : stop + 1]
        return Blocks(self.rows[int(splits[0]) : int(splits[-1])], splits - splits[0])

    @property
    def lengths(self) -> Ints:
        return np.diff(self.splits)

    def take(self, blocks: Array) -> Blocks:
        """A copy of these blocks, in this order."""
        lengths = self.lengths.take(blocks)
        splits = ends(lengths)
        return Blocks(take_rows(self.rows, runs(self.splits.take(blocks), splits, lengths)), splits)


def concat_deduplicated(parts: Sequence[Deduplicated]) -> Deduplicated:
    """All rows of the parts, one after the other; values of neighbours that share them once."""
    values: list[Rows] = []
    inverses, before, count = [], 0, 0
    for part in parts:
        if not values or part.values is not values[-1]:
            before, count = count, count + len(part.values)
            values.append(part.values)
        inverses.append(part.inverse + before)
    return Deduplicated(concat_rows(values), np.concatenate(inverses))


def concat_blocks(parts: Sequence[Blocks]) -> Blocks:
    """All blocks of the parts, one after the other."""
    lengths = np.concatenate([part.lengths for part in parts])
    return Blocks(concat_rows([part.rows for part in parts]), ends(lengths))


def inverse_of(index: Blocks, uniques: Blocks, where: str) -> Ints:
    """For each row of all blocks its place in ``uniques.rows``.

    Raises
    ------
    RequestError
        If an index points at no value of its block; names column and block.
    """
    assert isinstance(index.rows, np.ndarray)
    # axes: (row of any block)
    limits = np.repeat(uniques.lengths, index.lengths)
    outside = (index.rows < 0) | (index.rows >= limits)
    if outside.any():
        row = int(np.flatnonzero(outside)[0])
        block = int(np.searchsorted(index.splits, row, side="right")) - 1
        raise RequestError(
            f"{where}: index {int(index.rows[row])} in a block (number {block} of the batch) that "
            f"has {int(limits[row])} unique values; the index column belongs to another column, or "
            "the data was deduplicated wrongly"
        )
    return index.rows + np.repeat(uniques.splits[:-1], index.lengths)


def as_stored(column: Blocks, where: str, masked: bool) -> Ragged:
    """Blocks as lists of rows, which is how they are stored.

    ``masked`` says that a column of its own tells null lists, which are empty here.

    Raises
    ------
    RequestError
        For null lists in them: within lists there is no place for a mask.
    """
    if isinstance(column.rows, Ragged):
        if column.rows.mask is not None and not masked:
            raise RequestError(
                f"{where} has a null list inside a block; read rows by rebatch(n), where a mask "
                "tells it, or declare it in masks=, or leave the column out"
            )
        return Ragged(column.rows.values, (column.splits, *column.rows.splits))
    return Ragged(column.rows, (column.splits,))
