"""What transformers of numbers share: how they learn from data, and how data pass through them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np

from paimon_features.array_types import Floats
from paimon_features.columns import Column
from paimon_features.errors import TransformError
from paimon_features.schema import DataType
from paimon_features.transformers.base import Applied, StoredTransformer
from paimon_features.transformers.frames import Frame, as_float, floats, numbers
from paimon_features.transformers.matrix_blocks import run_blocks

EPS = float(np.finfo(np.float64).eps)
ALL = slice(None)
Columns = int | slice


class NumericTransformer(StoredTransformer):
    """Numbers to numbers: by blocks of a matrix, or by columns where there are nulls.

    A subclass has ``block`` and ``apply``, which give the same numbers to the bit, ``_learn`` and
    ``_forget``.
    """

    _rows: int = 0

    @property
    def rows_seen(self) -> int:
        return self._rows

    @property
    def supports_matrix(self) -> bool:
        return True

    def accepts(self, index: int, kind: DataType) -> bool:
        return kind.is_numeric or kind.text == "bool"

    def check(self, frame: Frame) -> None:
        checked_columns(frame)

    def fit(self, X: Any) -> Self:
        """Learn from ``X`` alone; null and NaN are skipped, infinite values refused."""
        self.names, self._rows = None, 0
        self._forget()
        return self.partial_fit(X)

    def partial_fit(self, X: Any) -> Self:
        """Learn from ``X`` besides what was learnt before; returns itself."""
        frame = self._to_learn(X)
        if frame.width:
            self._learn(frame)
        self._rows += frame.rows
        return self

    def transform(self, X: Any) -> Any:
        """``X`` transformed; null stays null and NaN stays NaN, unless it says otherwise."""
        self._check_fitted()
        frame = self._checked(X)
        names = self.names_out(frame.names) if frame.names else None
        if self.supports_matrix and frame.matrix is not None and frame.rows:
            return run_blocks(frame, [self.block], self.width_out, names)
        if not frame.width:
            return frame.like([])
        self.check(frame)
        flat = frame.is_flat and self.width_out == 1
        return frame.like(self.apply(frame.columns).columns, names=names, flat=flat)

    @abstractmethod
    def _forget(self) -> None:
        """Be as one that was never fitted."""

    @abstractmethod
    def _learn(self, frame: Frame) -> None:
        """Learn from a frame besides what was learnt before; its width is that of before."""


class ColumnwiseTransformer(NumericTransformer):
    """One output column for each input column, by a formula of its own, null where it is null."""

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
        """``X`` as it was before ``transform``, up to rounding."""
        self._check_fitted()
        frame = self._checked(X)
        if frame.matrix is not None and frame.rows:
            return run_blocks(frame, [self._block_back], self.width, frame.names)
        return frame.like(_mapped(checked_columns(frame), self._backward))

    def _block_back(self, values: Floats) -> Floats:
        self._backward(values, ALL, values)
        return values

    @abstractmethod
    def _forward(self, values: Floats, columns: Columns, out: Floats) -> None:
        """Write into ``out``, which may be ``values``, what these columns' values become.

        ``values`` are of one column, shape ``(rows,)``, or for all columns ``(rows, columns)``.
        """

    def _backward(self, values: Floats, columns: Columns, out: Floats) -> None:
        """As ``_forward``, the other way."""
        raise TransformError(f"{type(self).__name__} has no inverse")


def checked_columns(frame: Frame) -> list[Column]:
    """The columns of a frame as finite numbers; NaN also where they are null."""
    return [
        Column(numbers(column, frame.label(index)), column.valid)
        for index, column in enumerate(frame.columns)
    ]


def learnt_columns(frame: Frame) -> list[Floats]:
    """The columns of a frame as float64, NaN for null, to learn from; infinite values are there."""
    return [floats(column, frame.label(index)) for index, column in enumerate(frame.columns)]


def _mapped(
    columns: Sequence[Column], step: Callable[[Floats, Columns, Floats], None]
) -> list[Column]:
    made = []
    for index, column in enumerate(columns):
        values = as_float(column)
        out = np.empty(len(values))
        step(values, index, out)
        made.append(Column(out, column.valid))
    return made
