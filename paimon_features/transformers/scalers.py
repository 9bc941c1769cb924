"""Scalers that follow scikit-learn: each column is shifted and scaled by its statistics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np

from paimon_features.core.errors import TransformError
from paimon_features.core.types.array_types import Floats
from paimon_features.transformers.base import Params
from paimon_features.transformers.column_moments import Moments, extremes_of
from paimon_features.transformers.column_statistics import ColumnStatistics, Statistic
from paimon_features.transformers.frames import Frame, infinite
from paimon_features.transformers.from_statistics import extremes_from, moments_from
from paimon_features.transformers.json_values import null_for_nan, same_length
from paimon_features.transformers.numeric_base import (
    EPS,
    CenteringScaler,
    Columns,
    ColumnwiseTransformer,
    finite_columns,
    float_columns,
)
from paimon_features.transformers.setting_checks import flag, pair, wrong


class StandardScaler(CenteringScaler):
    """Subtracts the mean of a column and divides by its standard deviation (ddof 0).

    A constant column is only shifted; so is one whose deviation does not exceed the rounding of
    its values (``min(n, 10)`` units in the last place of the mean). A column without values has
    mean and deviation NaN. ``with_mean`` and ``with_std`` disable a step; both statistics are
    fitted anyway. ``fit(X, sample_weight=)`` counts rows with weights. ``partial_fit`` and
    ``merge`` equal a single ``fit``: the mean within 4 units in the last place of the largest
    value, the variance within a relative 1e-12.

    >>> scaler = StandardScaler().fit([[1.0, 5.0], [3.0, 5.0]])
    >>> scaler.transform([[2.0, 6.0], [None, 5.0]])
    [[0.0, 1.0], [None, 0.0]]
    >>> scaler.mean_.tolist(), scaler.scale_.tolist()
    ([2.0, 5.0], [1.0, 1.0])
    >>> scaler.merge(StandardScaler().fit([[5.0, 5.0]])).mean_.tolist()
    [3.0, 5.0]
    """

    kind = "standard_scaler"
    optional_settings = frozenset({"copy", "with_mean", "with_std"})
    requestable: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "fit": ("sample_weight",),
        "partial_fit": ("sample_weight",),
    }
    _moments: Moments = Moments.none(0)

    def __init__(self, *, copy: bool = True, with_mean: bool = True, with_std: bool = True) -> None:
        self.with_mean, self.with_std = with_mean, with_std
        self.copy = copy

    @property
    def width(self) -> int:
        return len(self._moments.count)

    @property
    def n_samples_seen_(self) -> Any:
        """Number of values of each column; with weights their sum."""
        self._check_fitted()
        count = self._moments.count
        return count.astype(np.int64) if (count == np.floor(count)).all() else count

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Fit on ``X`` alone; null and NaN are skipped, infinite values rejected.

        ``y`` is ignored. ``sample_weight`` is one weight per row, or None for 1.
        """
        return self._fit_more(self._fit_data(X), sample_weight)

    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Fit on ``X`` in addition to earlier data; returns itself."""
        return self._fit_more(X, sample_weight)

    def _absorb(self, other: Self) -> None:
        self._take(self._moments.merge(other._moments) if self.width else other._moments)

    def _fitted_params(self) -> Params:
        moments = self._moments
        return {
            **self._stored_settings(),
            "count": [int(n) if n == int(n) else n for n in moments.count.tolist()],
            "mean": moments.mean.tolist(),
            "mean_rest": moments.rest.tolist(),
            "squares": moments.squares.tolist(),
        }

    @classmethod
    def _from_params(cls, params: Mapping[str, Any]) -> Self:
        out = cls._from_settings(params)
        count, *rest = same_length(params, "count", "mean", "mean_rest", "squares")
        out._take(Moments(count, *rest))
        return out

    @property
    def required_statistics(self) -> frozenset[Statistic]:
        return frozenset({"moments"})

    def _fit_statistics(self, columns: Sequence[ColumnStatistics], rows: int) -> None:
        self._take(moments_from(columns))

    def _partial_fit(self, frame: Frame) -> None:
        with np.errstate(over="ignore", invalid="ignore"):
            self._include(moments_in(frame), frame)

    def _fit_weighted(self, frame: Frame, weights: Floats) -> None:
        matrix = frame.matrix
        values = np.column_stack(float_columns(frame)) if matrix is None else matrix
        with np.errstate(over="ignore", invalid="ignore"):
            self._include(Moments.of_weighted(values, weights), frame)

    def _include(self, fitted: Moments, frame: Frame) -> None:
        if self.width:
            fitted = self._moments.merge(fitted)
        beyond = ~np.isfinite(fitted.squares) | ~np.isfinite(fitted.mean)
        if beyond.any():
            index = int(np.flatnonzero(beyond)[0])
            finite_columns(frame)  # reports infinite values
            raise TransformError(
                f"{frame.label(index)} has values whose squares exceed float64; divide it by "
                "its unit first"
            )
        self._take(fitted)

    def _settings(self) -> Params:
        return {
            "with_mean": flag(self, "with_mean", self.with_mean),
            "with_std": flag(self, "with_std", self.with_std),
        }

    def _take(self, moments: Moments) -> None:
        self._moments = moments
        none = moments.count == 0
        n = np.where(none, 1.0, moments.count)
        self.mean_ = np.where(none, np.nan, moments.mean)
        self.var_ = np.where(none, np.nan, moments.squares / n)
        noise = np.minimum(n, 10.0) * EPS * moments.mean
        constant = moments.squares / n <= noise * noise
        scale = np.where(none, np.nan, np.where(constant, 1.0, np.sqrt(moments.squares / n)))
        self.scale_ = scale if self.settings_.with_std else None

    @property
    def _center(self) -> Floats | None:
        return self.mean_ if self.settings_.with_mean else None


class MinMaxScaler(ColumnwiseTransformer):
    """Scales a column to ``feature_range``: minimum to ``[0]``, maximum to ``[1]``.

    Values outside of the fitted range exceed it; ``clip`` limits them to its ends. A constant
    column (a range below ten units in the last place of 1) is only shifted, to the lower end. A
    column without values results in NaN. ``partial_fit`` and ``merge``, in any order, equal a
    single ``fit`` bit for bit.

    >>> scaler = MinMaxScaler().fit([[1.0, 7.0], [3.0, 7.0]])
    >>> scaler.transform([[2.0, 7.0], [5.0, None]])
    [[0.5, 0.0], [2.0, None]]
    """

    kind = "min_max_scaler"
    optional_settings = frozenset({"copy", "clip"})

    def __init__(
        self, feature_range: tuple[float, float] = (0, 1), *, copy: bool = True, clip: bool = False
    ) -> None:
        self.copy = copy
        self.feature_range, self.clip = feature_range, clip

    @property
    def width(self) -> int:
        return len(vars(self).get("data_min_", ()))

    @property
    def n_samples_seen_(self) -> int:
        """Number of rows that it was fitted on."""
        self._check_fitted()
        return self._rows

    def _absorb(self, other: Self) -> None:
        self._include(other.data_min_, other.data_max_)

    def _settings(self) -> Params:
        ends = pair(self.feature_range)
        if ends is None or not ends[0] < ends[1]:
            raise wrong(
                self, "feature_range", self.feature_range, "two numbers, the smaller one first"
            )
        return {"feature_range": list(ends), "clip": flag(self, "clip", self.clip)}

    def _fitted_params(self) -> Params:
        return {
            **self._stored_settings(),
            "min": null_for_nan(self.data_min_),
            "max": null_for_nan(self.data_max_),
        }

    @classmethod
    def _from_params(cls, params: Mapping[str, Any]) -> Self:
        out = cls._from_settings(params)
        out._include(*same_length(params, "min", "max"))
        return out

    @property
    def required_statistics(self) -> frozenset[Statistic]:
        return frozenset({"range"})

    def _fit_statistics(self, columns: Sequence[ColumnStatistics], rows: int) -> None:
        self._take(*extremes_from(columns))

    def _partial_fit(self, frame: Frame) -> None:
        low, high = extremes_in(frame)
        self._include(low, high)

    def _include(self, low: Floats, high: Floats) -> None:
        if self.width:
            low, high = np.fmin(self.data_min_, low), np.fmax(self.data_max_, high)
        self._take(low, high)

    def _take(self, low: Floats, high: Floats) -> None:
        self.data_min_, self.data_max_ = low, high
        with np.errstate(over="ignore"):
            self.data_range_ = high - low
        if np.isinf(self.data_range_).any():
            raise TransformError("the range of a column exceeds float64; divide it first")
        start, end = self.settings_.feature_range
        constant = self.data_range_ < 10 * EPS
        self.scale_ = (end - start) / np.where(constant, 1.0, self.data_range_)
        self.min_ = start - low * self.scale_

    def _forward(self, values: Floats, columns: Columns, out: Floats) -> None:
        np.multiply(values, self.scale_[columns], out=out)
        np.add(out, self.min_[columns], out=out)
        if self.settings_.clip:
            low, high = self.settings_.feature_range
            np.clip(out, low, high, out=out)

    def _backward(self, values: Floats, columns: Columns, out: Floats) -> None:
        np.subtract(values, self.min_[columns], out=out)
        np.divide(out, self.scale_[columns], out=out)


class MaxAbsScaler(ColumnwiseTransformer):
    """Divides a column by its maximum absolute value, so zeros stay zeros.

    Values outside of the fitted range exceed -1 and 1; ``clip`` limits them. A column of zeros
    (of values below ten units in the last place of 1) is unchanged; a column without values
    results in NaN. ``partial_fit`` and ``merge``, in any order, equal a single ``fit`` bit for bit.

    >>> scaler = MaxAbsScaler().fit([[1.0, 0.0], [-4.0, 0.0]])
    >>> scaler.transform([[2.0, 3.0], [None, 0.0]])
    [[0.5, 3.0], [None, 0.0]]
    """

    kind = "max_abs_scaler"
    optional_settings = frozenset({"copy", "clip"})

    def __init__(self, *, copy: bool = True, clip: bool = False) -> None:
        self.copy = copy
        self.clip = clip

    @property
    def width(self) -> int:
        return len(vars(self).get("max_abs_", ()))

    @property
    def n_samples_seen_(self) -> int:
        """Number of rows that it was fitted on."""
        self._check_fitted()
        return self._rows

    def _absorb(self, other: Self) -> None:
        self._include(other.max_abs_)

    def _settings(self) -> Params:
        return {"clip": flag(self, "clip", self.clip)}

    def _fitted_params(self) -> Params:
        return {**self._stored_settings(), "max_abs": null_for_nan(self.max_abs_)}

    @classmethod
    def _from_params(cls, params: Mapping[str, Any]) -> Self:
        out = cls._from_settings(params)
        (most,) = same_length(params, "max_abs")
        out._include(most)
        return out

    @property
    def required_statistics(self) -> frozenset[Statistic]:
        return frozenset({"range"})

    def _fit_statistics(self, columns: Sequence[ColumnStatistics], rows: int) -> None:
        low, high = extremes_from(columns)
        self._take(np.maximum(np.abs(low), np.abs(high)))

    def _partial_fit(self, frame: Frame) -> None:
        low, high = extremes_in(frame)
        self._include(np.maximum(np.abs(low), np.abs(high)))

    def _include(self, most: Floats) -> None:
        self._take(np.fmax(self.max_abs_, most) if self.width else most)

    def _take(self, most: Floats) -> None:
        self.max_abs_ = most
        self.scale_ = np.where(most < 10 * EPS, 1.0, most)

    def _forward(self, values: Floats, columns: Columns, out: Floats) -> None:
        np.divide(values, self.scale_[columns], out=out)
        if self.settings_.clip:
            np.clip(out, -1.0, 1.0, out=out)

    def _backward(self, values: Floats, columns: Columns, out: Floats) -> None:
        np.multiply(values, self.scale_[columns], out=out)


def extremes_in(frame: Frame) -> tuple[Floats, Floats]:
    """Return minimum and maximum of each column; NaN for a column without values.

    Raises
    ------
    TransformError
        For strings and infinite values.
    """
    if frame.matrix is not None:
        low, high = extremes_of([frame.matrix])
    else:
        low, high = extremes_of([column[:, None] for column in float_columns(frame)])
    beyond = np.isinf(low) | np.isinf(high)
    if beyond.any():
        raise infinite(frame.label(int(np.flatnonzero(beyond)[0])))
    return low, high


def moments_in(frame: Frame) -> Moments:
    """Return the moments of each column; not finite if a value or its square is not."""
    if frame.matrix is not None:
        return Moments.of(frame.matrix)
    return Moments.of_columns(float_columns(frame))
