"""Discretization of numbers into bins: ordinal or one-hot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from paimon_features.core.columns.column import Column
from paimon_features.core.errors import MissingMethodError, TransformError
from paimon_features.core.types.array_types import Floats, Ints
from paimon_features.transformers.base import Applied, Params
from paimon_features.transformers.bin_grid import METHODS, check_grid, grid_params
from paimon_features.transformers.column_statistics import ColumnStatistics, Statistic
from paimon_features.transformers.frames import Frame, as_float, read_frame
from paimon_features.transformers.from_statistics import extremes_from
from paimon_features.transformers.kmeans_1d import centres_of
from paimon_features.transformers.numeric_base import finite_columns
from paimon_features.transformers.quantile_fitting import (
    WEIGHTED_METHODS,
    QuantileLearner,
    check_subsample,
    sampled,
    weighted_quantiles,
)
from paimon_features.transformers.setting_checks import dtype_name, is_integer, one_of, wrong

ENCODINGS = ("onehot", "onehot-dense", "ordinal")
STRATEGIES = ("uniform", "quantile", "kmeans")
QUANTILE_METHODS = (
    *METHODS, "closest_observation", "interpolated_inverted_cdf", "hazen", "weibull",
    "median_unbiased", "normal_unbiased",
)  # fmt: skip

_THINNEST = 1e-8
"""Narrower bins of quantiles or around centres are merged with the next one, as in
scikit-learn."""


def bins_between(edges: Floats, values: Floats) -> Ints:
    """Return the number of the bin ``[left, right)`` of each value; the nearest bin outside."""
    return np.searchsorted(edges[1:-1], values, side="right")


class KBinsDiscretizer(QuantileLearner):
    """Maps a value to one of ``n_bins`` fitted bins (one number for all columns, or a list).

    ``strategy``: bins with equal counts (``quantile``, as ``numpy.percentile`` defines them by
    ``quantile_method``), of equal width (``uniform``), or with edges in the middle between the
    centres of k-means (``kmeans``). Inner edges belong to the bin above; values outside of the
    fitted range to the outermost bins. ``encode``: one column of 0 and 1 per bin (``onehot``,
    dense, as ``onehot-dense``), or the index of the bin (``ordinal``). A column with one distinct
    value has one bin; a column without values results in NaN; null stays null in all its columns.

    ``fit`` on more than ``subsample`` rows draws a sample by ``random_state`` (None: 0); None uses
    all rows. ``partial_fit`` and ``merge`` are exact for uniform bins; for quantiles they need a
    ``grid`` of edges, and each quantile is within the width of its bin of the grid
    (``quantile_errors_``). k-means needs all values at once: a value that moves within a bin of a
    grid can move every centre.

    >>> bins = KBinsDiscretizer(3, encode="ordinal", strategy="uniform").fit([[0.0], [9.0]])
    >>> bins.transform([[2.0], [3.0], [99.0], [None]])
    [[0.0], [1.0], [2.0], [None]]
    >>> bins.inverse_transform([[0.0], [2.0]])
    [[1.5], [7.5]]
    >>> KBinsDiscretizer(2).fit([[1.0], [2.0], [3.0], [4.0]]).transform([[3.0]])
    [[0.0, 1.0]]
    >>> KBinsDiscretizer(2, strategy="kmeans").fit([0.0, 1.0, 2.0, 9.0]).bin_edges_[0].tolist()
    [0.0, 5.0, 9.0]
    """

    kind = "k_bins_discretizer"
    optional_settings = frozenset({"dtype"})
    requestable: ClassVar[Mapping[str, tuple[str, ...]]] = {"fit": ("sample_weight",)}

    def __init__(
        self,
        n_bins: int | Sequence[int] = 5,
        *,
        encode: str = "onehot",
        strategy: str = "quantile",
        quantile_method: str = "averaged_inverted_cdf",
        dtype: Any = None,
        subsample: int | None = 200_000,
        random_state: int | None = None,
        grid: Sequence[Any] | None = None,
    ) -> None:
        self.n_bins = n_bins
        self.encode, self.strategy = encode, strategy
        self.quantile_method = quantile_method
        self.dtype = dtype
        self.subsample, self.random_state = subsample, random_state
        self.grid = grid

    def _bind(self) -> None:
        super()._bind()
        self._method = self.settings_.quantile_method

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Fit on ``X`` alone; null and NaN are skipped, infinite values rejected.

        ``y`` is ignored. ``sample_weight`` is one weight per row, or None for 1; k-means and grids
        take none.
        """
        if sample_weight is None:
            return super().fit(X)
        return self._fit_more(self._fit_data(X), sample_weight)

    def _fit_weighted(self, frame: Frame, weights: Floats) -> None:
        settings = self.settings_
        if settings.strategy == "kmeans" or settings.grid is not None:
            raise TransformError(
                "KBinsDiscretizer: sample_weight is for quantiles without a grid and bins of equal "
                "width"
            )
        if settings.strategy == "quantile" and settings.quantile_method not in WEIGHTED_METHODS:
            raise wrong(self, "quantile_method", settings.quantile_method,
                        f"one of with sample_weight: {', '.join(WEIGHTED_METHODS)}")  # fmt: skip
        if settings.subsample is not None and frame.rows > settings.subsample:
            raise TransformError(
                f"KBinsDiscretizer: {frame.rows} rows with weights exceed subsample="
                f"{settings.subsample}; subsample=None uses all rows"
            )
        kept = np.flatnonzero(weights > 0)
        columns = [column.values[kept] for column in finite_columns(frame)]
        percents = self._percents(frame.rows)
        if settings.strategy == "uniform":
            self._take_exact(self._exact(columns, percents))
        else:
            self._take_exact(
                weighted_quantiles(columns, weights[kept], percents, settings.quantile_method)
            )

    def transform(self, X: Any) -> Any:
        """Return the bins of ``X``, as ``dtype`` if it is set; null and NaN are kept."""
        if self.settings_.dtype in (None, "float64") or isinstance(X, Frame):
            return super().transform(X)
        self._check_fitted()
        frame = self._checked(X)
        self.check(frame)
        columns = [
            Column(c.values.astype(self.settings_.dtype), c.valid)
            for c in self.apply(frame.columns).columns
        ]
        names = self.names_out(frame.names) if frame.names else None
        return frame.like(columns, names=names, flat=frame.is_flat and self.width_out == 1)

    @property
    def supports_partial_fit(self) -> bool:
        return self.settings_.strategy == "uniform" or super().supports_partial_fit

    @property
    def width_out(self) -> int:
        return self.width if self.settings_.encode == "ordinal" else int(self.n_bins_.sum())

    @property
    def is_scalar(self) -> bool:
        return self.settings_.encode == "ordinal" and self.width == 1

    def names_out(self, names: Sequence[str]) -> list[str]:
        if self.settings_.encode == "ordinal":
            return list(names)
        bins = self.n_bins_.tolist()
        return [
            f"{name}_{b}" for name, count in zip(names, bins, strict=True) for b in range(count)
        ]

    def block(self, values: Floats) -> Floats:
        out = (
            values
            if self.settings_.encode == "ordinal"
            else np.empty((len(values), self.width_out))
        )
        at = 0
        for index in range(self.width):
            count = 1 if self.settings_.encode == "ordinal" else int(self.n_bins_[index])
            self._encode(values[:, index], index, out[:, at : at + count])
            at += count
        return out

    def apply(self, columns: Sequence[Column]) -> Applied:
        out = []
        for index, column in enumerate(columns):
            count = 1 if self.settings_.encode == "ordinal" else int(self.n_bins_[index])
            encoded = np.empty((len(column), count), order="F")
            self._encode(as_float(column), index, encoded)
            out += [Column(encoded[:, j], column.valid) for j in range(count)]
        return Applied(out)

    def inverse_transform(self, X: Any) -> Any:
        """Return the middle of the bin of each value; NaN for a column of one bin, null for null.

        Raises
        ------
        TransformError
            For another number of columns, an invalid bin, or only zeros in the columns of one.
        """
        self._check_fitted()
        frame = read_frame(X)
        if frame.rows and frame.width != self.width_out:
            raise TransformError(f"got {frame.width} columns; expected {self.width_out}")
        columns = finite_columns(frame)
        if not columns:
            return frame.like([])
        out, at = [], 0
        for index in range(self.width):
            count = 1 if self.settings_.encode == "ordinal" else int(self.n_bins_[index])
            part = columns[at : at + count]
            # index: (rows, bins)
            codes = np.column_stack([column.values for column in part])
            none = np.isnan(codes).any(axis=1)
            bins = self._decoded(np.where(none[:, None], 1.0, codes), index)
            edges = self.bin_edges_[index]
            with np.errstate(invalid="ignore"):  # the single bin of a constant column has no middle
                middles = (edges[1:] + edges[:-1]) * 0.5 if len(edges) else np.array([np.nan])
            valid = np.logical_and.reduce([column.mask for column in part])
            values = np.where(none, np.nan, middles[np.where(none, 0, bins)])
            out.append(Column(values, None if valid.all() else valid))
            at += count
        names = self.names or tuple(f"x{index}" for index in range(self.width))
        return frame.like(out, names=names, flat=frame.is_flat and self.width == 1)

    def _decoded(self, codes: Floats, index: int) -> npt.NDArray[np.int64]:
        bins: npt.NDArray[np.int64]
        if self.settings_.encode != "ordinal":
            empty = ~(codes > 0).any(axis=1)
            if empty.any():
                row = int(np.flatnonzero(empty)[0])
                raise TransformError(f"row {row} has no bin; expected a 1 among its columns")
            bins = codes.argmax(axis=1)
            return bins
        bins = codes[:, 0].astype(np.int64)
        count = int(self.n_bins_[index])
        # nulls were replaced by bin 1, even in a column with a single bin
        beyond = (bins < 0) | (bins >= max(count, 2))
        if beyond.any():
            row = int(np.flatnonzero(beyond)[0])
            raise TransformError(f"row {row} has the bin {bins[row]} of {count} bins")
        return bins

    def _encode(self, values: Floats, index: int, out: Floats) -> None:
        """Write the bins of one column: indices, or 0 and 1 per bin; NaN for NaN."""
        edges = self.bin_edges_[index]
        if not len(edges):
            out[:] = np.nan
            return
        unknown = np.isnan(values)
        codes = bins_between(edges, values)
        if self.settings_.encode == "ordinal":
            out[:, 0] = codes
        else:
            np.equal(codes[:, None], np.arange(out.shape[1]), out=out, casting="unsafe")
        if unknown.any():
            out[unknown] = np.nan

    def _bins_of(self, width: int) -> list[int]:
        bins: int | list[int] = self.settings_.n_bins
        if isinstance(bins, int):
            return [bins] * width
        if width and len(bins) != width:
            raise TransformError(
                f"KBinsDiscretizer: n_bins={bins} for {width} columns; expected one each"
            )
        return bins

    def _percents(self, rows: int) -> Floats:
        if self.settings_.strategy == "uniform":
            return np.array([0.0, 100.0])
        counts = sorted(
            {self.settings_.n_bins}
            if isinstance(self.settings_.n_bins, int)
            else set(self.settings_.n_bins)
        )
        return np.concatenate([np.linspace(0, 100, count + 1) for count in counts])

    def _exact(self, columns: Sequence[Floats], percents: Floats) -> Floats:
        bins = self._bins_of(len(columns))
        if self.settings_.strategy != "kmeans":
            return super()._exact(columns, percents)
        out = np.full((len(percents), len(columns)), np.nan)
        for index, (values, count) in enumerate(zip(columns, bins, strict=True)):
            start = self._starts(bins)[count]
            present = values[~np.isnan(values)]
            if len(present):
                out[start : start + count + 1, index] = _around_centres(present, count, index)
        return out

    def _drawn(self, columns: Sequence[Floats]) -> Sequence[Floats]:
        # partial_fit uses all rows: samples of the parts are not a sample of all rows
        if not self._at_once:
            return columns
        return sampled(columns, self.settings_.subsample, True, self.settings_.random_state)

    def _combined(self, mine: Floats, theirs: Floats) -> Floats | None:
        if self.settings_.strategy != "uniform":
            return None
        low, high = np.fmin(mine[0], theirs[0]), np.fmax(mine[1], theirs[1])
        return np.array([low, high])

    @property
    def required_statistics(self) -> frozenset[Statistic]:
        if self.settings_.strategy == "quantile":
            return super().required_statistics
        return frozenset({"range"} if self.settings_.strategy == "uniform" else ())

    def _fit_statistics(self, columns: Sequence[ColumnStatistics], rows: int) -> None:
        self._bins_of(len(columns))
        if self.settings_.strategy != "uniform":
            one_of(self, "quantile_method", self._method, METHODS, " over bins")
            super()._fit_statistics(columns, rows)
            return
        self._take_exact(np.array(extremes_from(columns)))

    def _take(self) -> None:
        width = self._quantiles.shape[1]
        bins = self._bins_of(width)
        starts = self._starts(bins)
        self.bin_edges_ = [self._edges(j, bins[j], starts[bins[j]]) for j in range(width)]
        self.n_bins_ = np.array([max(1, len(e) - 1) for e in self.bin_edges_], np.int64)

    @staticmethod
    def _starts(bins: Sequence[int]) -> dict[int, int]:
        """Return the offset of the edges of each number of bins among all percentiles."""
        starts, at = {}, 0
        for count in sorted(set(bins)):
            starts[count], at = at, at + count + 1
        return starts

    def _edges(self, column: int, count: int, start: int) -> Floats:
        """Return the edges of a column: none without values, infinite ones for a single bin."""
        quantiles = self._quantiles[:, column]
        one = np.array([-np.inf, np.inf])
        if self.settings_.strategy == "uniform":
            if np.isnan(quantiles).any():
                return np.zeros(0)
            return (
                one
                if quantiles[0] == quantiles[1]
                else np.linspace(quantiles[0], quantiles[1], count + 1)
            )
        edges = quantiles[start : start + count + 1]
        if np.isnan(edges).any():
            return np.zeros(0)
        if edges[0] == edges[-1]:
            return one
        edges = edges[np.ediff1d(edges, to_begin=np.inf) > _THINNEST]
        return edges if len(edges) > 1 else one

    def _no_grid(self, what: str) -> TransformError:
        if self.settings_.strategy != "kmeans":
            return super()._no_grid(what)
        return MissingMethodError(
            f"a KBinsDiscretizer of k-means cannot be {what}: the centres depend on all values "
            "at once; fit() on all of them, or use strategy='quantile' over a grid"
        )

    def _settings(self) -> Params:
        methods, over = (QUANTILE_METHODS, "") if self.grid is None else (METHODS, " over a grid")
        strategy = one_of(self, "strategy", self.strategy, STRATEGIES)
        if self.grid is not None and strategy != "quantile":
            raise TransformError(
                "KBinsDiscretizer: bins of equal width need no grid"
                if strategy == "uniform"
                else "KBinsDiscretizer: k-means cannot be fitted on counts: a value that moves "
                "within its bin can move every centre; use strategy='quantile' over a grid"
            )
        return {
            "n_bins": self._checked_bins(),
            "encode": one_of(self, "encode", self.encode, ENCODINGS),
            "strategy": strategy,
            "quantile_method": one_of(self, "quantile_method", self.quantile_method, methods, over),
            "dtype": self._checked_dtype(),
            **check_subsample(self, self.subsample, self.random_state),
            "grid": grid_params(check_grid(self.grid, "KBinsDiscretizer")),
        }

    def _estimator_flags(self) -> Mapping[str, bool]:
        return {**super()._estimator_flags(), "fixed_dtype": self.dtype is not None}

    def _checked_dtype(self) -> str | None:
        if self.dtype is None:
            return None
        name = dtype_name(self, self.dtype)
        if name not in ("float32", "float64"):
            raise wrong(self, "dtype", self.dtype, "float32, float64 or None")
        return name

    def _checked_bins(self) -> int | list[int]:
        given: Any = self.n_bins
        many = isinstance(given, list | tuple | np.ndarray)
        numbers = list(given) if many else [given]
        if not numbers or any(not is_integer(n) or n < 2 for n in numbers):
            raise wrong(
                self, "n_bins", self.n_bins, "2 or more, or a list of such numbers, one per column"
            )
        return [int(n) for n in numbers] if many else int(numbers[0])


def _around_centres(values: Floats, count: int, column: int) -> Floats:
    """Return minimum, maximum and the middles between the centres of k-means."""
    low, high = values.min(), values.max()
    if low == high:
        return np.full(count + 1, low)
    with np.errstate(over="ignore"):
        if not np.isfinite(np.square(high - low) * len(values)):
            raise TransformError(
                f"column {column} has values whose squares exceed float64; divide it by its "
                "unit first"
            )
    # with fewer values than bins each value is a centre; scikit-learn raises here
    centres = centres_of(values, count) if len(values) >= count else np.unique(values)
    inner = (centres[1:] + centres[:-1]) * 0.5
    return np.concatenate([[low], inner, np.full(count - len(inner), high)])
