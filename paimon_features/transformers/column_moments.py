"""Numerically stable means and deviations by the updates of Welford and Chan; extremes.

A mean is stored as a float and its rounding error, so that merges in any order agree up to a few
units in the last place, even if the mean is a billion times the deviation (Chan, Golub, LeVeque
1983; the rounding error is that of Knuth's two-sum).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from paimon_features.core.types.array_types import Array, Floats
from paimon_features.transformers.matrix_blocks import VALUES, block_rows

_ROWS = 1 << 14
"""Rows per merge; larger than a cache block, to amortize the cost of merging."""

Number = TypeVar("Number", float, Floats)

_SHIFT_ROWS = 16
"""Rows whose mean is the shift of the first pass."""

_LOST = 16.0
"""Maximum ratio of the squares around the shift to those around the mean."""


@dataclass(frozen=True, slots=True)
class Moments:
    """Per column: number of values, mean, and sum of squared distances from the mean.

    The mean is ``mean + rest``. All have the shape ``(columns,)``; a column without values has
    the mean 0.
    """

    count: Floats
    mean: Floats
    rest: Floats
    squares: Floats

    @staticmethod
    def none(columns: int) -> Moments:
        """Return the moments of no rows."""
        return Moments(*(np.zeros(columns) for _ in range(4)))

    @staticmethod
    def of(matrix: Array) -> Moments:
        """Return the moments of a matrix of numbers, index (rows, columns); NaN is skipped."""
        out = Moments.none(matrix.shape[1])
        for start in range(0, len(matrix), _ROWS):
            out = out.merge(_of_block(matrix[start : start + _ROWS]))
        return out

    @staticmethod
    def of_columns(columns: Sequence[Floats]) -> Moments:
        """Return the moments of columns of equal length; NaN is skipped."""
        out = Moments.none(len(columns))
        for start in range(0, len(columns[0]) if columns else 0, VALUES):
            runs = [_of_run(column[start : start + VALUES]) for column in columns]
            count, mean, rest, squares = np.array(runs).T
            out = out.merge(Moments(count, mean, rest, squares))
        return out

    @staticmethod
    def of_weighted(matrix: Array, weights: Floats) -> Moments:
        """Return the moments of rows with weights; ``count`` is the sum of the weights."""
        out = Moments.none(matrix.shape[1])
        for start in range(0, len(matrix), _ROWS):
            block = matrix[start : start + _ROWS].astype(np.float64)
            out = out.merge(_of_weighted_block(block, weights[start : start + _ROWS]))
        return out

    def merge(self, other: Moments) -> Moments:
        """Return the moments of the rows of both; bit-identical in either order."""
        # the side with more values is the base; of equal ones that with the smaller mean
        swap = (other.count > self.count) | (
            (other.count == self.count)
            & ((other.mean < self.mean) | ((other.mean == self.mean) & (other.rest < self.rest)))
        )
        count = self.count + other.count
        a_count, b_count = _either(swap, self.count, other.count)
        a_mean, b_mean = _either(swap, self.mean, other.mean)
        a_rest, b_rest = _either(swap, self.rest, other.rest)
        share = np.divide(b_count, count, out=np.zeros_like(count), where=count > 0)
        # a side without values has no effect
        apart = np.where(b_count > 0, (b_mean - a_mean) + (b_rest - a_rest), 0.0)
        mean, rest = _two_sum(a_mean, a_rest + apart * share)
        squares = (self.squares + other.squares) + apart * apart * share * a_count
        return Moments(count, mean, rest, squares)

    def join(self, other: Moments) -> Moments:
        """Return the columns of both, side by side."""
        return Moments(
            np.concatenate([self.count, other.count]),
            np.concatenate([self.mean, other.mean]),
            np.concatenate([self.rest, other.rest]),
            np.concatenate([self.squares, other.squares]),
        )


def _of_block(block: Array) -> Moments:
    """Return one pass relative to a shift near the mean; two passes where that loses digits."""
    rows, width = block.shape
    # relative to the first value: a constant column has a deviation of exactly 0
    shift = block[0] + (block[:_SHIFT_ROWS] - block[0].astype(np.float64)).mean(axis=0)
    total, squares = np.zeros(width), np.zeros(width)
    size = block_rows(width)
    for start in range(0, rows, size):
        moved = np.subtract(block[start : start + size], shift)
        total += np.add.reduce(moved, axis=0)
        squares += np.einsum("ij,ij->j", moved, moved)
    around = squares - total * total / rows
    if not (squares <= _LOST * around).all():  # also for NaN
        return _of_block_twice(block.astype(np.float64))
    mean, rest = _two_sum(shift, total / rows)
    return Moments(np.full(width, float(rows)), mean, rest, around)


def _of_run(values: Floats) -> tuple[float, float, float, float]:
    """Return as ``_of_block``, for one column: count, mean, rest of the mean, squares."""
    shift = float(values[0] + (values[:_SHIFT_ROWS] - values[0]).mean())
    moved = values - shift
    total, squares = float(np.add.reduce(moved)), float(np.einsum("i,i->", moved, moved))
    around = squares - total * total / len(values)
    if not squares <= _LOST * around:
        twice = _of_block_twice(values[:, None])
        return (
            float(twice.count[0]), float(twice.mean[0]), float(twice.rest[0]),
            float(twice.squares[0]),
        )  # fmt: skip
    mean, rest = _two_sum(shift, total / len(values))
    return len(values), mean, rest, around


def _of_block_twice(block: Floats) -> Moments:
    """Return moments by two passes relative to the first value; a constant column deviates by 0."""
    present = ~np.isnan(block)
    count = present.sum(axis=0, dtype=np.float64)
    first = block[np.argmax(present, axis=0), np.arange(block.shape[1])]
    first = np.where(count > 0, first, 0.0)
    moved = block - first
    if not present.all():
        moved[~present] = 0.0
    n = np.maximum(count, 1.0)
    shift = moved.sum(axis=0) / n
    moved -= shift
    if not present.all():
        moved[~present] = 0.0
    # the remaining sum is the error of the shift (Chan's corrected two-pass algorithm)
    left = moved.sum(axis=0)
    squares = np.maximum(np.einsum("ij,ij->j", moved, moved) - left * left / n, 0.0)
    mean, rest = _two_sum(first, shift + left / n)
    return Moments(count, mean, rest, squares)


def _of_weighted_block(block: Floats, weights: Floats) -> Moments:
    """Return moments by two passes; a row of weight 0 is as one without a value."""
    present = ~np.isnan(block) & (weights > 0)[:, None]
    present_weights = np.where(present, weights[:, None], 0.0)
    count = present_weights.sum(axis=0)
    first = block[np.argmax(present, axis=0), np.arange(block.shape[1])]
    first = np.where(count > 0, first, 0.0)
    n = np.where(count > 0, count, 1.0)
    moved = np.where(present, block - first, 0.0)
    shift = (present_weights * moved).sum(axis=0) / n
    moved = np.where(present, moved - shift, 0.0)
    left = (present_weights * moved).sum(axis=0)
    squares = np.maximum(
        np.einsum("ij,ij,ij->j", present_weights, moved, moved) - left * left / n, 0.0
    )
    mean, rest = _two_sum(first, shift + left / n)
    return Moments(count, mean, rest, squares)


def _two_sum(a: Number, b: Number) -> tuple[Number, Number]:
    """Return the rounded sum and its exact rounding error."""
    total = a + b
    back = total - a
    return total, (a - (total - back)) + (b - back)


def _either(swap: npt.NDArray[np.bool_], left: Floats, right: Floats) -> tuple[Floats, Floats]:
    return np.where(swap, right, left), np.where(swap, left, right)


def extremes_of(parts: Sequence[Array]) -> tuple[Floats, Floats]:
    """Return minimum and maximum of each column of several matrices; NaN without values."""
    low, high = [], []
    for matrix in parts:
        rows, width = matrix.shape
        least, most = np.full(width, np.nan), np.full(width, np.nan)
        size = block_rows(width)
        for start in range(0, rows, size):
            block = matrix[start : start + size]
            least = np.fmin(least, np.fmin.reduce(block, axis=0))
            most = np.fmax(most, np.fmax.reduce(block, axis=0))
        low.append(least)
        high.append(most)
    # + 0.0 normalizes the sign of zero
    return np.concatenate(low) + 0.0, np.concatenate(high) + 0.0
