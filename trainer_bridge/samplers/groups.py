"""Rows by group: by class, or by where a row stands among all scores. 4 bytes per row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from paimon_features.array_types import Array, Ints
from trainer_bridge.order.permutation import permute

_PIECE = 1 << 17


@dataclass(frozen=True, slots=True)
class Groups:
    """The rows of group g are ``rows[starts[g]:starts[g + 1]]``, ascending."""

    rows: npt.NDArray[Any]
    starts: Ints

    @property
    def sizes(self) -> Ints:
        """Rows of each group."""
        return np.diff(self.starts)

    def take(self, groups: Ints, numbers: Ints) -> Ints:
        """The ``numbers[i]``-th row of ``groups[i]``."""
        return self.rows[self.starts[groups] + numbers].astype(np.int64)


def group_rows(codes: Array, num_groups: int) -> Groups:
    """The rows of each code.

    >>> groups = group_rows(np.array([1, 0, 1], dtype=np.uint8), 2)
    >>> groups.rows.tolist(), groups.starts.tolist()
    ([1, 0, 2], [0, 1, 3])
    """
    counts = np.zeros(num_groups, dtype=np.int64)
    for start in range(0, len(codes), _PIECE):
        counts += np.bincount(codes[start : start + _PIECE], minlength=num_groups)
    return _group(counts, lambda start, stop: codes[start:stop])


def split_by_score(scores: npt.NDArray[Any], sizes: Sequence[int], key: int) -> Groups:
    """Groups of these sizes, from the least scores up; chance decides between equal scores.

    Chance, because rows of one score that stand together in a table are often of one kind.
    At most 16 bytes per row, the scores (8) included.

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
    borders = np.unique(ordered[inner])  # the least score beyond each border
    del ordered
    # Of the rows at a border score: how many are less, and how many equal it.
    below, equal = np.zeros((2, len(borders)), dtype=np.int64)
    for start in range(0, len(scores), _PIECE):
        where = _Borders(borders, scores[start : start + _PIECE])
        below += np.cumsum(np.bincount(where.place, minlength=len(borders) + 1))[:-1]
        equal += np.bincount(where.place[where.equal], minlength=len(borders))[: len(borders)]
        below -= np.bincount(where.place[where.equal], minlength=len(borders))[: len(borders)]
    seen = np.zeros(len(borders), dtype=np.int64)

    def codes(start: int, stop: int) -> Array:
        where = _Borders(borders, scores[start:stop])
        # The rank of a row that is not at a border is known as well as it has to be.
        rank = np.append(below, len(scores))[where.place] - 1
        for border in np.unique(where.place[where.equal]):
            ties = np.flatnonzero(where.equal & (where.place == border))
            numbers = seen[border] + np.arange(len(ties))
            rank[ties] = below[border] + permute(numbers, int(equal[border]), key)
            seen[border] += len(ties)
        return np.searchsorted(ends, rank, side="right")

    return _group(counts, codes)


class _Borders:
    """``place``: index of the first border at or above each score; ``equal``: it is that."""

    def __init__(self, borders: npt.NDArray[Any], scores: npt.NDArray[Any]) -> None:
        self.place = np.searchsorted(borders, scores, side="left")
        self.equal = np.append(borders, borders[-1])[self.place] == scores
        self.equal &= self.place < len(borders)


def _group(counts: Ints, codes: Callable[[int, int], Array]) -> Groups:
    """Counting sort, piece by piece; ``codes`` is asked once for each, in order."""
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    size, num_groups = int(starts[-1]), len(counts)
    rows = np.empty(size, dtype=np.uint32 if size <= 1 << 32 else np.int64)
    following = starts[:-1].copy()
    small = np.min_scalar_type(num_groups - 1)
    pieces = [(start, min(start + _PIECE, size)) for start in range(0, size, _PIECE)]
    for start, stop in pieces:
        # of up to 16 bits this is a radix sort, many times as fast as another
        found = codes(start, stop).astype(small)
        order = np.argsort(found, kind="stable")
        grouped = found[order].astype(np.int64)
        own = np.bincount(grouped, minlength=num_groups)
        # the i-th of the piece: how far it is behind the first of its group in the piece
        behind = np.arange(len(order)) - (np.cumsum(own) - own)[grouped]
        rows[following[grouped] + behind] = order + start
        following += own
    return Groups(rows, starts)
