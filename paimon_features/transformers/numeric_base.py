"""Base classes of numeric transformers: how they are fitted, how data pass through."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np

from paimon_features.core.columns.column import Column
from paimon_features.core.errors import TransformError
from paimon_features.core.types.array_types import Floats
from paimon_features.transformers.base import Applied, StoredTransformer
from paimon_features.transformers.frames import Frame, as_float, floats, numbers
from paimon_features.transformers.matrix_blocks import run_blocks
from paimon_features.transformers.setting_checks import flag, is_number

EPS = float(np.finfo(np.float64).eps)
ALL = slice(None)
Columns = int | slice


class NumericTransformer(StoredTransformer):
    """Transforms numbers to numbers: a matrix in blocks, or columns where there are nulls.

    A subclass defines ``block`` and ``apply``, which return the same numbers bit for bit, and
    ``_partial_fit``.
    """

    copy: bool = True
    """Whether ``transform`` leaves an array of float64 as it is, instead of overwriting it."""

    def _bind(self) -> None:
        flag(self, "copy", self.copy)
        super()._bind()

    def _target(self, X: Any, width_out: int) -> Floats | None:
        """Return the array that may be overwritten with the output; None: there is none."""
        in_place = (
            not self.copy
            and isinstance(X, np.ndarray)
            and X.dtype == np.float64
            and X.ndim == 2
            and X.shape[1] == width_out
            and X.flags.writeable
        )
        return X if in_place else None

    @property
    def supports_matrix(self) -> bool:
        return True

    def check(self, frame: Frame) -> None:
        finite_columns(frame)

    def fit(self, X: Any, y: Any = None) -> Self:
        """Fit on ``X`` alone; null and NaN are skipped, infinite values rejected.

        ``y`` is ignored.
        """
        return self._fit_more(self._fit_data(X))

    def partial_fit(self, X: Any, y: Any = None) -> Self:
        """Fit on ``X`` in addition to earlier data; ``y`` is ignored; returns itself."""
        return self._fit_more(X)

    def _fit_more(self, X: Any, sample_weight: Any = None) -> Self:
        frame = self._read_fit_data(X)
        if sample_weight is not None:
            self._fit_weighted(frame, _checked_weights(sample_weight, frame.rows))
        elif frame.width:
            self._partial_fit(frame)
        self._rows += frame.rows
        return self

    def transform(self, X: Any) -> Any:
        """Return ``X`` transformed; null and NaN are kept unless the class says otherwise."""
        self._check_fitted()
        frame = self._checked(X)
        names = self.names_out(frame.names) if frame.names else None
        if self.supports_matrix and frame.matrix is not None and frame.rows:
            target = self._target(X, self.width_out)
            return run_blocks(frame, [self.block], self.width_out, names, target)
        if not frame.width:
            return frame.like([])
        self.check(frame)
        flat = frame.is_flat and self.width_out == 1
        return frame.like(self.apply(frame.columns).columns, names=names, flat=flat)

    def _fit_weighted(self, frame: Frame, weights: Floats) -> None:
        """Fit on a frame with weights, for a transformer whose ``fit`` takes ``sample_weight``."""
        raise NotImplementedError

    @abstractmethod
    def _partial_fit(self, frame: Frame) -> None:
        """Fit on a frame in addition to earlier data; its width equals ``width``, if not 0."""


class ColumnwiseTransformer(NumericTransformer):
    """Transforms each column by a formula of its own; null stays null."""

    @property
    def width_out(self) -> int:
        return self.width

    def names_out(self, names: Sequence[str]) -> list[str]:
        return list(names)

    def block(self, values: Floats) -> Floats:
        self._forward(values, ALL, values)
        return values

    def apply(self, columns: Sequence[Column]) -> Applied:
        return Applied(_mapped(columns, self._forward))

    def inverse_transform(self, X: Any) -> Any:
        """Invert ``transform``, up to rounding."""
        self._check_fitted()
        frame = self._checked(X)
        if frame.matrix is not None and frame.rows:
            target = self._target(X, self.width)
            return run_blocks(frame, [self._block_back], self.width, frame.names, target)
        return frame.like(_mapped(finite_columns(frame), self._backward))

    def _block_back(self, values: Floats) -> Floats:
        self._backward(values, ALL, values)
        return values

    @abstractmethod
    def _forward(self, values: Floats, columns: Columns, out: Floats) -> None:
        """Write the transformed values of these columns into ``out``, which may be ``values``.

        The shape is ``(rows,)`` for one column, ``(rows, columns)`` for all columns.
        """

    def _backward(self, values: Floats, columns: Columns, out: Floats) -> None:
        """Write the inverse, as ``_forward`` does."""
        raise TransformError(f"{type(self).__name__} has no inverse")


class CenteringScaler(ColumnwiseTransformer):
    """Subtracts the center of each column, then divides by its scale; None omits a step."""

    scale_: Floats | None

    @property
    @abstractmethod
    def _center(self) -> Floats | None:
        """The number that is subtracted from each column."""

    def _forward(self, values: Floats, columns: Columns, out: Floats) -> None:
        if (center := self._center) is not None:
            values = np.subtract(values, center[columns], out=out)
        if self.scale_ is not None:
            values = np.divide(values, self.scale_[columns], out=out)
        if values is not out:
            np.copyto(out, values)

    def _backward(self, values: Floats, columns: Columns, out: Floats) -> None:
        if self.scale_ is not None:
            values = np.multiply(values, self.scale_[columns], out=out)
        if (center := self._center) is not None:
            values = np.add(values, center[columns], out=out)
        if values is not out:
            np.copyto(out, values)


def _checked_weights(sample_weight: Any, rows: int) -> Floats:
    """Return one weight per row; a number is the weight of every row.

    A row of weight 2 counts as two rows, one of weight 0 as none.

    Raises
    ------
    TransformError
        Unless they are one finite number from 0 per row, at least one of them above 0.
    """
    if is_number(sample_weight):
        sample_weight = np.full(rows, float(sample_weight))
    try:
        weights = np.asarray(sample_weight, np.float64)
    except (TypeError, ValueError) as error:
        raise TransformError(f"sample_weight: expected one number per row: {error}") from error
    if weights.ndim != 1:
        raise TransformError(
            f"sample_weight has {weights.ndim} dimensions; sample weights must be 1D array or "
            "scalar"
        )
    if len(weights) != rows:
        raise TransformError(f"sample_weight has {len(weights)} weights for {rows} rows")
    if not np.isfinite(weights).all() or (weights < 0).any():
        raise TransformError("sample_weight contains weights that are no finite number from 0")
    if rows and not weights.any():
        raise TransformError("sample_weight is zero in every row; expected a weight above 0")
    return weights


def finite_columns(frame: Frame) -> list[Column]:
    """Return the columns of a frame as finite numbers; NaN for null."""
    return [
        Column(numbers(column, frame.label(index)), column.valid)
        for index, column in enumerate(frame.columns)
    ]


def float_columns(frame: Frame) -> list[Floats]:
    """Return the columns of a frame as float64, NaN for null; infinite values are kept."""
    return [floats(column, frame.label(index)) for index, column in enumerate(frame.columns)]


def _mapped(
    columns: Sequence[Column], step: Callable[[Floats, Columns, Floats], None]
) -> list[Column]:
    mapped = []
    for index, column in enumerate(columns):
        values = as_float(column)
        out = np.empty(len(values))
        step(values, index, out)
        mapped.append(Column(out, column.valid))
    return mapped
