"""Counts of values between declared edges, from which quantiles can be fitted incrementally.

Exact quantiles require all data; counts over a fixed grid add up exactly, in any order, and
determine quantiles up to the width of a bin.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self

import numpy as np

from paimon_features.core.errors import TransformError
from paimon_features.core.types.array_types import Floats, Ints
from paimon_features.transformers.json_values import nan_for_null, null_for_nan

Grid = tuple[float, ...] | tuple[tuple[float, ...], ...]
"""Edges of bins, ascending: the same for all columns, or one list per column."""

METHODS = ("linear", "averaged_inverted_cdf", "inverted_cdf")
"""Definitions of a quantile, named as in ``numpy.quantile``, that a grid supports."""


def check_grid(grid: Sequence[Any] | None, of: str) -> Grid | None:
    """Return a declared grid as tuples of floats.

    Raises
    ------
    TransformError
        Unless the edges are finite and strictly ascending.
    """
    if grid is None:
        return None
    try:
        many = len(grid) > 0 and not isinstance(grid[0], int | float | np.number)
        lists = [tuple(float(edge) for edge in edges) for edges in (grid if many else [grid])]
    except (TypeError, ValueError, KeyError) as error:
        raise TransformError(
            f"{of}: grid={grid!r}; expected the edges of bins, or a list of them per column"
        ) from error
    for edges in lists:
        if (
            not edges
            or not np.isfinite(edges).all()
            or any(low >= high for low, high in pairwise(edges))
        ):
            raise TransformError(
                f"{of}: the grid {list(edges)!r}; expected finite, strictly ascending numbers"
            )
    return tuple(lists) if many else lists[0]


def grid_params(grid: Grid | None) -> list[Any] | None:
    """Return a grid in JSON values."""
    return None if grid is None else [[*e] if isinstance(e, tuple) else e for e in grid]


def edges_of(grid: Grid, width: int, of: str) -> list[Floats]:
    """Return the edges of each column; TransformError for a grid of another width."""
    if isinstance(grid[0], tuple):
        if len(grid) != width:
            raise TransformError(f"{of}: the grid is of {len(grid)} columns, the data have {width}")
        return [np.array(edges, np.float64) for edges in grid]
    return [np.array(grid, np.float64)] * width


@dataclass(frozen=True, slots=True)
class GridCounts:
    """The counts of each column per bin, and its minimum and maximum.

    A bin includes its lower edge: ``edge <= value < next edge``. Values below the first edge and
    from the last edge on have their own bins, so a column with ``n`` edges has ``n + 1`` counts.

    >>> counts = GridCounts.of([np.array([1.0, 2.0, 2.5, 9.0])], [np.array([0.0, 2.0, 4.0])])
    >>> counts.counts[0].tolist()
    [0, 1, 2, 1]
    >>> counts.quantiles(np.array([0.0, 50.0, 100.0])).T.tolist()  # the median is 2.25
    [[1.0, 3.0, 9.0]]
    >>> counts.errors(np.array([0.0, 50.0, 100.0])).T.tolist()
    [[0.0, 2.0, 0.0]]
    """

    edges: tuple[Floats, ...]
    counts: tuple[Ints, ...]
    low: Floats
    high: Floats

    @classmethod
    def of(cls, columns: Sequence[Floats], edges: Sequence[Floats]) -> Self:
        """Return the counts of columns of values; NaN is skipped."""
        counts, low, high = [], [], []
        for values, bounds in zip(columns, edges, strict=True):
            present = values[~np.isnan(values)]
            places = np.searchsorted(bounds, present, side="right")
            counts.append(np.bincount(places, minlength=len(bounds) + 1).astype(np.int64))
            # + 0.0 normalizes the sign of zero
            low.append(present.min() + 0.0 if len(present) else np.nan)
            high.append(present.max() + 0.0 if len(present) else np.nan)
        return cls(tuple(edges), tuple(counts), np.array(low), np.array(high))

    def merge(self, other: Self) -> Self:
        """Return the counts of both: exact, in any order.

        Raises
        ------
        TransformError
            For different edges.
        """
        if [e.tolist() for e in self.edges] != [e.tolist() for e in other.edges]:
            raise TransformError("counts over different grids cannot be merged; declare one grid")
        return type(self)(
            self.edges,
            tuple(a + b for a, b in zip(self.counts, other.counts, strict=True)),
            np.fmin(self.low, other.low),
            np.fmax(self.high, other.high),
        )

    def quantiles(self, percents: Floats, method: str = "linear") -> Floats:
        """Return estimated percentiles, index (percentage, column); NaN without values.

        They are defined as in ``numpy.percentile`` with ``method``. The values of a bin are
        assumed to be evenly spaced in it; minimum and maximum are exact.
        """
        return self._read(percents, method)[0]

    def errors(self, percents: Floats, method: str = "linear") -> Floats:
        """Return the maximum errors of the estimates of ``quantiles``."""
        return self._read(percents, method)[1]

    def _read(self, percents: Floats, method: str) -> tuple[Floats, Floats]:
        values_and_widths = np.full((2, len(percents), len(self.edges)), np.nan)
        for column in range(len(self.edges)):
            n = int(self.counts[column].sum())
            if not n:
                continue
            rank, share = _ranks(n, percents / 100, method)
            with np.errstate(over="ignore", invalid="ignore"):
                below, near = self._ranked(column, rank, n), self._ranked(column, rank + 1, n)
                # axes: (value and error, percents)
                values_and_widths[:, :, column] = below + (near - below) * share
            if not np.isfinite(values_and_widths[:, :, column]).all():
                raise TransformError(
                    f"the range of column {column} exceeds float64; divide it by its unit first"
                )
        return values_and_widths[0], values_and_widths[1]

    def _ranked(self, column: int, rank: Floats, n: int) -> Floats:
        """Return the value of each rank (from 0) and the width of its bin, shape (2, ranks)."""
        counts, edges = self.counts[column], self.edges[column]
        low, high = self.low[column], self.high[column]
        rank = np.clip(rank, 0, n - 1)
        ends = np.cumsum(counts)
        bins = np.searchsorted(ends, rank, side="right")
        lower = np.maximum(np.concatenate([[low], edges])[bins], low)
        upper = np.minimum(np.concatenate([edges, [high]])[bins], high)
        place = (rank - (ends - counts)[bins] + 0.5) / counts[bins]
        value = lower + (upper - lower) * place
        value = np.where(rank == 0, low, np.where(rank == n - 1, high, value))
        is_extreme = (rank == 0) | (rank == n - 1)
        return np.stack([value, np.where(is_extreme, 0.0, upper - lower)])

    def to_params(self) -> dict[str, Any]:
        """Return counts and extremes in JSON values; the edges are a setting."""
        return {
            "counts": [counts.tolist() for counts in self.counts],
            "min": null_for_nan(self.low),
            "max": null_for_nan(self.high),
        }

    @classmethod
    def from_params(cls, params: Mapping[str, Any], grid: Grid, of: str) -> Self:
        """Return the inverse of ``to_params``.

        Raises
        ------
        TransformError
            For counts that do not match the grid.
        """
        counts = tuple(np.array(c, np.int64) for c in params["counts"])
        edges = edges_of(grid, len(counts), of)
        low, high = nan_for_null(params["min"]), nan_for_null(params["max"])
        if any(len(c) != len(e) + 1 or (c < 0).any() for c, e in zip(counts, edges, strict=True)):
            raise TransformError("the counts do not match the bins of the grid")
        if not len(counts) == len(low) == len(high) or not counts:
            raise TransformError(f"counts of {len(counts)} columns, extremes of {len(low)}")
        return cls(tuple(edges), counts, low, high)


def _ranks(n: int, shares: Floats, method: str) -> tuple[Floats, Floats]:
    """Return the rank below a quantile of n values, and its fraction of the way to the next.

    The formulas are those of NumPy, bit for bit, so that both use the same two values.
    """
    at = (n - 1) * shares if method == "linear" else n * shares - 1
    rank = np.floor(at)
    share = at - rank
    if method == "averaged_inverted_cdf":
        share = np.where(share == 0, 0.5, 1.0)
    elif method == "inverted_cdf":
        share = np.where(share == 0, 0.0, 1.0)
    return rank, share
