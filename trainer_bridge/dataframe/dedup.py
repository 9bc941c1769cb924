"""Deduplicated columns, stored once per user and block of rows: reading and restoring.

A stored row is a *block* of rows. A deduplicated column contains the block's unique values, an
index column contains for each row of the block the index of its value.

>>> uniques = Ragged(np.array([1, 2, 3]), (np.array([0, 1, 3]),))
>>> once = Deduplicated(uniques, np.array([0, 1, 0]))
>>> once.restore().to_lists()
[[1], [2, 3], [1]]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paimon_features.core.errors import RequestError
from paimon_features.core.types.array_types import Array, Ints
from trainer_bridge.batches.ragged import Ragged, Rows, concat_rows, ends, runs, take_rows


@dataclass(frozen=True, slots=True, eq=False)
class Deduplicated:
    """The unique rows of a column, and the index of the value of each row.

    For embedding lookups: look ``values`` up once and gather by ``inverse``
    (``KeyedJaggedTensor.inverse_indices``).
    """

    values: Rows
    inverse: Ints

    def __len__(self) -> int:
        return len(self.inverse)

    def __getitem__(self, rows: slice) -> Deduplicated:
        """Select rows; all values are kept."""
        return Deduplicated(self.values, self.inverse[rows])

    def restore(self) -> Rows:
        """Return the rows, in order."""
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
        """Return a copy of these blocks, in this order."""
        lengths = self.lengths.take(blocks)
        splits = ends(lengths)
        return Blocks(take_rows(self.rows, runs(self.splits.take(blocks), splits, lengths)), splits)


def concat_deduplicated(parts: Sequence[Deduplicated]) -> Deduplicated:
    """Concatenate the parts; adjacent parts that share their values keep them once."""
    values: list[Rows] = []
    inverses, before, count = [], 0, 0
    for part in parts:
        if not values or part.values is not values[-1]:
            before, count = count, count + len(part.values)
            values.append(part.values)
        inverses.append(part.inverse + before)
    return Deduplicated(concat_rows(values), np.concatenate(inverses))


def concat_blocks(parts: Sequence[Blocks]) -> Blocks:
    """Concatenate the blocks of the parts."""
    lengths = np.concatenate([part.lengths for part in parts])
    return Blocks(concat_rows([part.rows for part in parts]), ends(lengths))


def inverse_of(index: Blocks, uniques: Blocks, where: str) -> Ints:
    """Return for each row of all blocks its position in ``uniques.rows``.

    Raises
    ------
    RequestError
        If an index is out of range for its block; names column and block.
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
            f"has {int(limits[row])} unique values; the index column belongs to a different "
            f"column, or "
            "the data was deduplicated incorrectly"
        )
    return index.rows + np.repeat(uniques.splits[:-1], index.lengths)


def as_stored(column: Blocks, where: str, masked: bool) -> Ragged:
    """Convert blocks to lists of rows, as they are stored.

    ``masked``: null lists are marked by a separate mask column, and are empty here.

    Raises
    ------
    RequestError
        If they contain null lists: a mask cannot be nested in lists.
    """
    if isinstance(column.rows, Ragged):
        if column.rows.mask is not None and not masked:
            raise RequestError(
                f"{where} has a null list inside a block; read rows by rebatch(n), where null "
                f"lists "
                "can be masked, or declare the column in masks=, or omit it"
            )
        return Ragged(column.rows.values, (column.splits, *column.rows.splits))
    return Ragged(column.rows, (column.splits,))
