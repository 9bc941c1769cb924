"""Transformers of numbers: each column is moved and stretched by what was learnt of it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import numpy as np

from paimon_features.columns import Column
from paimon_features.errors import TransformError
from paimon_features.schema import DataType
from paimon_features.transformers.base import Applied, Params, StoredTransformer
from paimon_features.transformers.frames import Floats, Frame, as_float, numbers
from paimon_features.transformers.moments import Moments

EPS = float(np.finfo(np.float64).eps)
_ALL = slice(None)
Columns = int | slice


class _Scaler(StoredTransformer):
    """One output column for each input column, null where it is null."""

    _rows: int = 0

    @property
    def width_out(self) -> int:
        return self.width

    @property
    def rows_seen(self) -> int:
        return self._rows

    def accepts(self, index: int, kind: DataType) -> bool:
        return kind.is_numeric or kind.text == "bool"

    def names_out(self, names: Sequence[str]) -> list[str]:
        return list(names)

    def apply(self, columns: Sequence[Column]) -> Applied:
        return Applied(
            [
                Column(self._forward(as_float(column), index), column.valid)
                for index, column in enumerate(columns)
            ]
        )

    def fit(self, X: Any) -> Self:
        """Learn from ``X`` alone; null and NaN are skipped, infinite values refused."""
        self.names, self._rows = None, 0
        self._forget()
        return self.partial_fit(X)

    def partial_fit(self, X: Any) -> Self:
        """Learn from ``X`` besides what was learnt before; returns itself."""
        frame = self._to_learn(X)
        self._learn(frame)
        self._rows += frame.rows
        return self

    def transform(self, X: Any) -> Any:
        """``X`` scaled; null stays null and NaN stays NaN."""
        return self._mapped(X, self._forward)

    def inverse_transform(self, X: Any) -> Any:
        """``X`` as it was before ``transform``, up to rounding."""
        return self._mapped(X, self._backward)

    def _mapped(self, X: Any, step: Callable[[Floats, Columns], Floats]) -> Any:
        self._check_fitted()
        frame = self._checked(X)
        if frame.matrix is not None:
            matrix = frame.matrix.astype(np.float64, copy=False)
            with np.errstate(over="ignore", invalid="ignore"):
                may_be_infinite = not np.isfinite(matrix.sum())
            if may_be_infinite:
                _of_numbers(frame)
            out = step(matrix, _ALL)
            return out[:, 0] if frame.is_flat else out
        return frame.like(
            [
                Column(step(numbers(column, frame.label(index)), index), column.valid)
                for index, column in enumerate(frame.columns)
            ]
        )

    @abstractmethod
    def _forget(self) -> None: ...
    @abstractmethod
    def _learn(self, frame: Frame) -> None: ...
    @abstractmethod
    def _forward(self, values: Floats, columns: Columns) -> Floats: ...
    @abstractmethod
    def _backward(self, values: Floats, columns: Columns) -> Floats: ...


class StandardScaler(_Scaler):
    """Subtracts the mean of a column and divides by its standard deviation (of ``n``, ddof 0).

    A column whose values are all the same is only moved, not stretched; so is one whose deviation
    is no more than the rounding of its values (``min(n, 10)`` units in the last place of the
    mean). A column without a value has the mean and deviation NaN. What is learnt in parts, or
    merged, is what is learnt at once: the mean within 4 units in the last place of the largest
    value, the variance within 1e-12 of itself.

    >>> scaler = StandardScaler().fit([[1.0, 5.0], [3.0, 5.0]])
    >>> scaler.transform([[2.0, 6.0], [None, 5.0]])
    [[0.0, 1.0], [None, 0.0]]
    >>> scaler.mean_.tolist(), scaler.scale_.tolist()
    ([2.0, 5.0], [1.0, 1.0])
    >>> scaler.merge(StandardScaler().fit([[5.0, 5.0]])).mean_.tolist()
    [3.0, 5.0]
    """

    kind = "standard_scaler"

    def __init__(self) -> None:
        self._take(Moments.none(0))

    @property
    def width(self) -> int:
        return len(self._moments.count)

    @property
    def n_samples_seen_(self) -> Any:
        """How many values each column had."""
        return self._moments.count.astype(np.int64)

    def merge(self, other: Self) -> Self:
        """A new one that has learnt from the data of both; the same to the bit in either order."""
        names = self._to_merge(other)
        out = type(self)()
        pair = [one for one in (self, other) if one.width]
        if pair:
            out._take(pair[0]._moments if len(pair) == 1 else self._moments.merge(other._moments))
        out.names, out._rows = names, self._rows + other._rows
        return out

    def _learnt(self) -> Params:
        moments = self._moments
        return {
            "count": [int(n) for n in moments.count],
            "mean": moments.mean.tolist(),
            "mean_rest": moments.rest.tolist(),
            "squares": moments.squares.tolist(),
        }

    @classmethod
    def _from_params(cls, params: Mapping[str, Any]) -> Self:
        out = cls()
        count, *rest = same_length(params, "count", "mean", "mean_rest", "squares")
        out._take(Moments(count, *rest))
        out.names, out._rows = names_of(params, out.width), int(params["rows"])
        return out

    def _forget(self) -> None:
        self._take(Moments.none(0))

    def _learn(self, frame: Frame) -> None:
        with np.errstate(over="ignore", invalid="ignore"):
            learnt = _moments(frame)
            if self.width:
                learnt = self._moments.merge(learnt)
        wrong = ~np.isfinite(learnt.squares) | ~np.isfinite(learnt.mean)
        if wrong.any():
            index = int(np.flatnonzero(wrong)[0])
            numbers(frame.columns[index], frame.label(index))  # tells of infinite values
            raise TransformError(
                f"{frame.label(index)} has values whose squares are beyond float64; divide it by "
                "its unit first"
            )
        self._take(learnt)

    def _take(self, moments: Moments) -> None:
        self._moments = moments
        none = moments.count == 0
        n = np.maximum(moments.count, 1.0)
        self.mean_ = np.where(none, np.nan, moments.mean)
        self.var_ = np.where(none, np.nan, moments.squares / n)
        noise = np.minimum(n, 10.0) * EPS * moments.mean
        constant = moments.squares / n <= noise * noise
        self.scale_ = np.where(none, np.nan, np.where(constant, 1.0, np.sqrt(moments.squares / n)))

    def _forward(self, values: Floats, columns: Columns) -> Floats:
        out: Floats = values - self.mean_[columns]
        out /= self.scale_[columns]
        return out

    def _backward(self, values: Floats, columns: Columns) -> Floats:
        out: Floats = values * self.scale_[columns]
        out += self.mean_[columns]
        return out


class MinMaxScaler(_Scaler):
    """Stretches a column so that its least value becomes ``feature_range[0]``, its greatest [1].

    Values beyond what was seen go beyond the range. A constant column (its range is below ten
    units in the last place of 1) is only moved: to the lower end. A column without a value gives
    NaN. Learnt in parts, or merged in any order, it is the same to the bit.

    >>> scaler = MinMaxScaler().fit([[1.0, 7.0], [3.0, 7.0]])
    >>> scaler.transform([[2.0, 7.0], [5.0, None]])
    [[0.5, 0.0], [2.0, None]]
    """

    kind = "min_max_scaler"

    def __init__(self, feature_range: tuple[float, float] = (0, 1)) -> None:
        low, high = feature_range
        if not (np.isfinite([low, high]).all() and low < high):
            raise TransformError(
                f"feature_range={feature_range!r}: expected two numbers, the lesser one first"
            )
        self.feature_range = feature_range
        self._forget()

    @property
    def width(self) -> int:
        return len(self.data_min_)

    def merge(self, other: Self) -> Self:
        """A new one that has learnt from the data of both; the same to the bit in either order."""
        names = self._to_merge(other)
        if tuple(self.feature_range) != tuple(other.feature_range):
            raise TransformError(
                f"a MinMaxScaler to {self.feature_range} cannot be merged with one to "
                f"{other.feature_range}"
            )
        out = type(self)(self.feature_range)
        for one in (self, other):
            if one.width:
                out._include(one.data_min_, one.data_max_)
        out.names, out._rows = names, self._rows + other._rows
        return out

    def _learnt(self) -> Params:
        return {
            "feature_range": [float(end) for end in self.feature_range],
            "min": _null_for_nan(self.data_min_),
            "max": _null_for_nan(self.data_max_),
        }

    @classmethod
    def _from_params(cls, params: Mapping[str, Any]) -> Self:
        low, high = params["feature_range"]
        out = cls((low, high))
        out._include(*same_length(params, "min", "max"))
        out.names, out._rows = names_of(params, out.width), int(params["rows"])
        return out

    def _forget(self) -> None:
        self._take(np.zeros(0), np.zeros(0))

    def _learn(self, frame: Frame) -> None:
        if frame.matrix is not None:
            matrix = frame.matrix.astype(np.float64, copy=False)
            low = np.fmin.reduce(matrix, axis=0, initial=np.nan)
            high = np.fmax.reduce(matrix, axis=0, initial=np.nan)
        else:
            known = [as_float(column)[column.mask] for column in _of_numbers(frame)]
            low = np.array([np.fmin.reduce(c, initial=np.nan) for c in known])
            high = np.array([np.fmax.reduce(c, initial=np.nan) for c in known])
        infinite = np.isinf(low) | np.isinf(high)
        if infinite.any():
            index = int(np.flatnonzero(infinite)[0])
            numbers(frame.columns[index], frame.label(index))
        self._include(low, high)

    def _include(self, low: Floats, high: Floats) -> None:
        if self.width:
            low, high = np.fmin(self.data_min_, low), np.fmax(self.data_max_, high)
        # of two zeros either could be the lesser: + 0.0 leaves one of them
        self._take(low + 0.0, high + 0.0)

    def _take(self, low: Floats, high: Floats) -> None:
        self.data_min_, self.data_max_ = low, high
        with np.errstate(over="ignore"):
            self.data_range_ = high - low
        if np.isinf(self.data_range_).any():
            raise TransformError("the range of a column is beyond float64; divide it first")
        start, end = self.feature_range
        constant = self.data_range_ < 10 * EPS
        self.scale_ = (end - start) / np.where(constant, 1.0, self.data_range_)
        self.min_ = start - low * self.scale_

    def _forward(self, values: Floats, columns: Columns) -> Floats:
        out: Floats = values * self.scale_[columns]
        out += self.min_[columns]
        return out

    def _backward(self, values: Floats, columns: Columns) -> Floats:
        out: Floats = values - self.min_[columns]
        out /= self.scale_[columns]
        return out


def names_of(params: Mapping[str, Any], width: int) -> tuple[str, ...] | None:
    """The names of columns in parameters; TransformError for another number of them."""
    names = params["names"]
    if names is not None and (len(names) != width or not all(isinstance(n, str) for n in names)):
        raise TransformError(f"{len(names)} names of {width} columns")
    return None if names is None else tuple(names)


def same_length(params: Mapping[str, Any], *keys: str) -> list[Floats]:
    """Lists of numbers in parameters, null being NaN; TransformError for different lengths."""
    out = [
        np.array([np.nan if v is None else float(v) for v in params[key]], np.float64)
        for key in keys
    ]
    lengths = {len(column) for column in out}
    if len(lengths) != 1 or lengths == {0}:
        raise TransformError(f"{', '.join(keys)} have {sorted(lengths)} values; expected one each")
    return out


def _null_for_nan(values: Floats) -> list[float | None]:
    return [None if np.isnan(value) else float(value) for value in values]


def _of_numbers(frame: Frame) -> Sequence[Column]:
    """The columns of a frame; TransformError where one holds texts or infinite values."""
    for index, column in enumerate(frame.columns):
        numbers(column, frame.label(index))
    return frame.columns


def _moments(frame: Frame) -> Moments:
    if frame.matrix is not None:
        return Moments.of(frame.matrix.astype(np.float64, copy=False))
    out = Moments.none(0)
    for index, column in enumerate(frame.columns):
        out = out.join(Moments.of(numbers(column, frame.label(index))[:, None]))
    return out
