"""Means and deviations that do not lose digits: Welford's and Chan's updates.

A mean is kept as a number and the rest that rounding took from it, so that what is merged does
not depend on the order by more than a few units in the last place, also where the mean is a
billion times the deviation (Chan, Golub, LeVeque 1983; the rest is Knuth's two-sum).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paimon_features.transformers.frames import Floats

_ROWS = 1 << 14
"""Rows that are looked at together, so that they stay in the cache."""


@dataclass(frozen=True, slots=True)
class Moments:
    """Of each column: how many values, their mean, and the sum of squared distances from it.

    The mean is ``mean + rest``. All have the shape ``(columns,)``; a column without a value has
    the mean 0.
    """

    count: Floats
    mean: Floats
    rest: Floats
    squares: Floats

    @staticmethod
    def none(columns: int) -> Moments:
        """Of no rows."""
        return Moments(*(np.zeros(columns) for _ in range(4)))

    @staticmethod
    def of(matrix: Floats) -> Moments:
        """Of the rows of a matrix, index (rows, columns); NaN is no value."""
        out = Moments.none(matrix.shape[1])
        for start in range(0, len(matrix), _ROWS):
            out = out.merge(_of_block(matrix[start : start + _ROWS]))
        return out

    def merge(self, other: Moments) -> Moments:
        """Of the rows of both; the same to the bit in either order."""
        # the one with more values stays in place; of equal ones, that with the lesser mean
        swap = (other.count > self.count) | (
            (other.count == self.count)
            & ((other.mean < self.mean) | ((other.mean == self.mean) & (other.rest < self.rest)))
        )
        count = self.count + other.count
        a_count, b_count = _either(swap, self.count, other.count)
        a_mean, b_mean = _either(swap, self.mean, other.mean)
        a_rest, b_rest = _either(swap, self.rest, other.rest)
        share = np.divide(b_count, count, out=np.zeros_like(count), where=count > 0)
        # nothing is moved by a side that has no values
        apart = np.where(b_count > 0, (b_mean - a_mean) + (b_rest - a_rest), 0.0)
        mean, rest = _two_sum(a_mean, a_rest + apart * share)
        squares = (self.squares + other.squares) + apart * apart * share * a_count
        return Moments(count, mean, rest, squares)

    def join(self, other: Moments) -> Moments:
        """The columns of both, side by side."""
        return Moments(
            np.concatenate([self.count, other.count]),
            np.concatenate([self.mean, other.mean]),
            np.concatenate([self.rest, other.rest]),
            np.concatenate([self.squares, other.squares]),
        )


def _of_block(block: Floats) -> Moments:
    """Two passes, relative to the first value: a constant column has exactly no deviation."""
    known = ~np.isnan(block)
    count = known.sum(axis=0, dtype=np.float64)
    first = block[np.argmax(known, axis=0), np.arange(block.shape[1])]
    first = np.where(count > 0, first, 0.0)
    moved = block - first
    if not known.all():
        moved[~known] = 0.0
    n = np.maximum(count, 1.0)
    shift = moved.sum(axis=0) / n
    moved -= shift
    if not known.all():
        moved[~known] = 0.0
    # what is left of the sum is the error of the shift (Chan's corrected two-pass algorithm)
    left = moved.sum(axis=0)
    squares = np.maximum(np.einsum("ij,ij->j", moved, moved) - left * left / n, 0.0)
    mean, rest = _two_sum(first, shift + left / n)
    return Moments(count, mean, rest, squares)


def _two_sum(a: Floats, b: Floats) -> tuple[Floats, Floats]:
    """The rounded sum, and what rounding took from it, exactly."""
    total = a + b
    back = total - a
    return total, (a - (total - back)) + (b - back)


def _either(swap: npt.NDArray[np.bool_], left: Floats, right: Floats) -> tuple[Floats, Floats]:
    return np.where(swap, right, left), np.where(swap, left, right)
