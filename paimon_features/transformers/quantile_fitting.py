"""Fitting of quantiles: exactly from all data at once, or incrementally over a grid."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np

from paimon_features.core.errors import MissingMethodError, TransformError
from paimon_features.core.types.array_types import Floats
from paimon_features.transformers.base import Params
from paimon_features.transformers.bin_grid import (
    Grid,
    GridCounts,
    check_grid,
    edges_of,
    grid_params,
)
from paimon_features.transformers.column_statistics import ColumnStatistics, Statistic
from paimon_features.transformers.estimator import available_if
from paimon_features.transformers.frames import Frame
from paimon_features.transformers.from_statistics import grid_from
from paimon_features.transformers.json_values import nan_for_null, null_for_nan
from paimon_features.transformers.numeric_base import NumericTransformer, finite_columns
from paimon_features.transformers.setting_checks import is_integer, wrong


def exact_quantiles(columns: Sequence[Floats], percents: Floats, method: str = "linear") -> Floats:
    """Return percentiles of columns, index (percentage, column), as ``numpy.percentile``.

    NaN is skipped; the percentiles of a column without values are NaN.
    """
    out = np.full((len(percents), len(columns)), np.nan)
    for index, values in enumerate(columns):
        present = values[~np.isnan(values)]
        if len(present):
            with np.errstate(over="ignore", invalid="ignore"):
                quantiles = np.percentile(present, percents, method=method)  # type: ignore[call-overload]
            if not np.isfinite(quantiles).all():
                raise TransformError(
                    f"the range of column {index} exceeds float64; divide it by its unit first"
                )
            out[:, index] = quantiles
    return out


WEIGHTED_METHODS = ("averaged_inverted_cdf", "inverted_cdf")
"""Definitions of a quantile of which a weight is a number of rows."""


def weighted_quantiles(
    columns: Sequence[Floats], weights: Floats, percents: Floats, method: str
) -> Floats:
    """Return percentiles of rows with weights above 0, index (percentage, column).

    With integers as weights they equal those of rows that are repeated as often.
    """
    out = np.full((len(percents), len(columns)), np.nan)
    for index, values in enumerate(columns):
        present = ~np.isnan(values)
        order = np.argsort(values[present], kind="stable")
        ascending, ends = values[present][order], np.cumsum(weights[present][order])
        if not len(ascending):
            continue
        places = percents / 100 * ends[-1]
        last = len(ascending) - 1
        below = np.minimum(np.searchsorted(ends, places, side="left"), last)
        out[:, index] = ascending[below]
        if method == "averaged_inverted_cdf":
            # where the weights up to a value are exactly the share, the next one counts as well
            above = np.minimum(np.searchsorted(ends, places, side="right"), last)
            # rounded as by numpy.percentile
            out[:, index] = ascending[above] - (ascending[above] - ascending[below]) * 0.5
    return out


def sampled(
    columns: Sequence[Floats], most: int | None, replace: bool, seed: int | None
) -> list[Floats]:
    """Return a sample of rows of all columns, the one that scikit-learn draws by the seed."""
    rows = len(columns[0]) if columns else 0
    if most is None or rows <= most:
        return list(columns)
    dice = np.random.RandomState(0 if seed is None else seed)
    if replace:
        chosen = dice.choice(rows, size=most, replace=True)
    else:
        chosen = np.arange(rows)
        dice.shuffle(chosen)
        chosen = chosen[:most]
    return [column[chosen] for column in columns]


def check_subsample(of: object, subsample: Any, seed: Any) -> Params:
    """Return sample size and seed as settings; TransformError for invalid ones."""
    if subsample is not None and not (is_integer(subsample) and subsample >= 1):
        raise wrong(of, "subsample", subsample, "1 or more, or None for all")
    if seed is not None and not (is_integer(seed) and 0 <= seed < 2**32):
        raise wrong(of, "random_state", seed, "0 to 2**32 - 1, or None (0)")
    return {
        "subsample": None if subsample is None else int(subsample),
        "random_state": None if seed is None else int(seed),
    }


class QuantileLearner(NumericTransformer):
    """Base class of transformers that are fitted on the percentiles ``_percents`` of each column.

    Without a grid ``fit`` computes them exactly, and ``partial_fit`` is rejected. Over a grid they
    are computed from counts, so ``partial_fit`` and ``merge`` equal a single ``fit``.
    """

    grid: Sequence[Any] | None
    _method: str = "linear"
    _at_once: bool = False
    _grid: Grid | None = None
    _counts: GridCounts | None = None
    _quantiles: Floats = np.zeros((0, 0))

    def _bind(self) -> None:
        super()._bind()
        self._grid = check_grid(self.settings_.grid, type(self).__name__)

    @property
    def width(self) -> int:
        return int(self._quantiles.shape[1])

    @property
    def supports_partial_fit(self) -> bool:
        return self.settings_.grid is not None

    @property
    def quantile_errors_(self) -> Floats:
        """Bounds of the errors of the fitted percentiles, index (percentage, column).

        Zeros without a grid; over a grid, the width of the bin that contains the percentile.
        """
        self._check_fitted()
        if self._counts is None:
            return np.zeros_like(self._quantiles)
        return self._counts.errors(self._percents(self._rows), self._method)

    def _absorb(self, other: Self) -> None:
        if not self.width:
            self._counts = other._counts
            self._take_exact(other._quantiles)
        elif self._counts is not None and other._counts is not None:
            self._take_counts(self._counts.merge(other._counts), self._rows)
        else:
            both = self._combined(self._quantiles, other._quantiles)
            if both is None:
                raise self._no_grid("merged")
            self._take_exact(both)

    def _fitted_params(self) -> Params:
        if self._counts is not None:
            return {**self._stored_settings(), **self._counts.to_params()}
        return {
            **self._stored_settings(),
            "quantiles": [null_for_nan(row) for row in self._quantiles],
        }

    @classmethod
    def _from_params(cls, params: Mapping[str, Any]) -> Self:
        out = cls._from_settings(params)
        out._read_fitted(params)
        return out

    def _read_fitted(self, params: Mapping[str, Any]) -> None:
        if self._grid is not None:
            counts = GridCounts.from_params(params, self._grid, type(self).__name__)
            self._take_counts(counts, self._rows)
            return
        quantiles = np.array([nan_for_null(row) for row in params["quantiles"]], np.float64)
        expected = len(self._percents(self._rows))
        if quantiles.ndim != 2 or len(quantiles) != expected or not quantiles.shape[1]:
            raise TransformError(f"quantiles of shape {quantiles.shape}; expected {expected} rows")
        self._take_exact(quantiles)

    @property
    def required_statistics(self) -> frozenset[Statistic]:
        return frozenset({"bins", "range"})

    def _fit_statistics(self, columns: Sequence[ColumnStatistics], rows: int) -> None:
        self._grid, counts = grid_from(columns, self._grid, type(self).__name__)
        self.settings_.grid = grid_params(self._grid)
        self._take_counts(counts, rows)

    def fit(self, X: Any, y: Any = None) -> Self:
        """Fit on ``X`` alone; null and NaN are skipped, infinite values rejected.

        ``y`` is ignored.
        """
        frame = self._fit_data(X)
        self._at_once = True
        try:
            return self._fit_more(frame)
        finally:
            del self._at_once

    @available_if(lambda self: self._not_in_parts())
    def partial_fit(self, X: Any, y: Any = None) -> Self:
        """Fit on ``X`` in addition to earlier data; ``y`` is ignored; returns itself.

        Without a ``grid`` there is no such method: exact quantiles need all data at once.
        """
        return self._fit_more(X)

    def _not_in_parts(self) -> TransformError | None:
        return None if self.supports_partial_fit else self._no_grid("fitted in parts")

    def _partial_fit(self, frame: Frame) -> None:
        columns = [column.values for column in finite_columns(frame)]
        rows = self._rows + frame.rows
        if self._grid is None:
            quantiles = self._exact(self._drawn(columns), self._percents(rows))
            both = self._combined(self._quantiles, quantiles) if self.width else quantiles
            if both is None:
                raise self._no_grid("fitted in parts")
            self._take_exact(both)
            return
        edges = edges_of(self._grid, frame.width, type(self).__name__)
        counts = GridCounts.of(columns, edges)
        self._take_counts(counts if self._counts is None else self._counts.merge(counts), rows)

    def _take_exact(self, quantiles: Floats) -> None:
        self._quantiles = quantiles
        self._take()

    def _take_counts(self, counts: GridCounts, rows: int) -> None:
        self._counts = counts
        self._take_exact(counts.quantiles(self._percents(rows), self._method))

    def _no_grid(self, what: str) -> TransformError:
        return MissingMethodError(
            f"a {type(self).__name__} without a grid cannot be {what}: exact quantiles need all "
            "data at once; declare grid=[edges of bins]"
        )

    def _combined(self, mine: Floats, theirs: Floats) -> Floats | None:
        """Return the percentiles of both data, if those of each determine them; else None."""
        return None

    def _drawn(self, columns: Sequence[Floats]) -> Sequence[Floats]:
        """Return the rows to compute exact quantiles from."""
        return columns

    def _exact(self, columns: Sequence[Floats], percents: Floats) -> Floats:
        return exact_quantiles(columns, percents, self._method)

    @abstractmethod
    def _percents(self, rows: int) -> Floats:
        """Return the percentages to fit on this number of rows."""

    @abstractmethod
    def _take(self) -> None:
        """Update the parameters from ``self._quantiles``, which have no columns before a fit."""
