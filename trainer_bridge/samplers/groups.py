"""Rows grouped by class, or by score quantile. 4 bytes per row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from paimon_features.core.types.array_types import Array, Ints
from trainer_bridge.order.permutation import permute

_PIECE = 1 << 17


@dataclass(frozen=True, slots=True)
class Groups:
    """The rows of group g are ``rows[starts[g]:starts[g + 1]]``, ascending."""

    rows: npt.NDArray[Any]
    starts: Ints

    @property
    def sizes(self) -> Ints:
        """Number of rows of each group."""
        return np.diff(self.starts)

    def take(self, groups: Ints, numbers: Ints) -> Ints:
        """Return the ``numbers[i]``-th row of ``groups[i]``."""
        return self.rows[self.starts[groups] + numbers].astype(np.int64)


def group_rows(codes: Array, num_groups: int) -> Groups:
    """Group rows by code.

    >>> groups = group_rows(np.array([1, 0, 1], dtype=np.uint8), 2)
    >>> groups.rows.tolist(), groups.starts.tolist()
    ([1, 0, 2], [0, 1, 3])
    """
    counts = np.zeros(num_groups, dtype=np.int64)
    for start in range(0, len(codes), _PIECE):
        counts += np.bincount(codes[start : start + _PIECE], minlength=num_groups)
    return _group(counts, lambda start, stop: codes[start:stop])


def split_by_score(scores: npt.NDArray[Any], sizes: Sequence[int], key: int) -> Groups:
    """Split rows into groups of the given sizes, by ascending score; ties are random.

    Random, because adjacent rows of a table with equal scores are often similar. At most 16
    bytes per row, including the scores (8).

    >>> split_by_score(np.array([5.0, 1.0, 9.0, 3.0]), [2, 2], key=1).rows.tolist()
    [1, 3, 0, 2]
    """
    counts = np.asarray(sizes, dtype=np.int64)
    ends = np.cumsum(counts)
    inner = np.unique(ends[:-1][(ends[:-1] > 0) & (ends[:-1] < len(scores))])
    if not len(inner):
        groups = np.searchsorted(ends, np.zeros(1), side="right")
        return _group(counts, lambda start, stop: np.repeat(groups, stop - start))
    ordered = np.array(scores)
    ordered.partition(inner)
    borders = np.unique(ordered[inner])  # the smallest score beyond each border
    del ordered
    # For each border score: how many rows are below it, and how many equal it.
    below, equal = np.zeros((2, len(borders)), dtype=np.int64)
    for start in range(0, len(scores), _PIECE):
        where = _Borders(borders, scores[start : start + _PIECE])
        below += np.cumsum(np.bincount(where.place, minlength=len(borders) + 1))[:-1]
        equal += np.bincount(where.place[where.equal], minlength=len(borders))[: len(borders)]
        below -= np.bincount(where.place[where.equal], minlength=len(borders))[: len(borders)]
    seen = np.zeros(len(borders), dtype=np.int64)

    def codes(start: int, stop: int) -> Array:
        where = _Borders(borders, scores[start:stop])
        # For rows that are not at a border the group is already determined.
        rank = np.append(below, len(scores))[where.place] - 1
        for border in np.unique(where.place[where.equal]):
            ties = np.flatnonzero(where.equal & (where.place == border))
            numbers = seen[border] + np.arange(len(ties))
            rank[ties] = below[border] + permute(numbers, int(equal[border]), key)
            seen[border] += len(ties)
        return np.searchsorted(ends, rank, side="right")

    return _group(counts, codes)


class _Borders:
    """``place``: index of the first border >= each score; ``equal``: whether they are equal."""

    def __init__(self, borders: npt.NDArray[Any], scores: npt.NDArray[Any]) -> None:
        self.place = np.searchsorted(borders, scores, side="left")
        self.equal = np.append(borders, borders[-1])[self.place] == scores
        self.equal &= self.place < len(borders)


def _group(counts: Ints, codes: Callable[[int, int], Array]) -> Groups:
    """Sort by counting, in chunks; ``codes`` is called once per chunk, in order."""
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    size, num_groups = int(starts[-1]), len(counts)
    rows = np.empty(size, dtype=np.uint32 if size <= 1 << 32 else np.int64)
    following = starts[:-1].copy()
    small = np.min_scalar_type(num_groups - 1)
    pieces = [(start, min(start + _PIECE, size)) for start in range(0, size, _PIECE)]
    for start, stop in pieces:
        # up to 16 bits this is a radix sort, many times faster than comparison sorts
        chunk = codes(start, stop).astype(small)
        order = np.argsort(chunk, kind="stable")
        grouped = chunk[order].astype(np.int64)
        chunk_counts = np.bincount(grouped, minlength=num_groups)
        # offset of each row of the chunk from the first of its group in the chunk
        behind = np.arange(len(order)) - (np.cumsum(chunk_counts) - chunk_counts)[grouped]
        rows[following[grouped] + behind] = order + start
        following += chunk_counts
    return Groups(rows, starts)
