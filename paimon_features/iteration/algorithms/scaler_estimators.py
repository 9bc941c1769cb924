"""Flink ML's scalers that need one pass over the rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from paimon_features.array_types import Floats
from paimon_features.errors import TransformError
from paimon_features.iteration import IterationConfig
from paimon_features.iteration.algorithms.estimator import TrainingSource, VectorEstimator
from paimon_features.iteration.algorithms.one_pass import aggregate
from paimon_features.iteration.algorithms.training_blocks import TrainingBlock
from paimon_features.transformers.column_moments import Moments
from paimon_features.transformers.flink_ml import (
    MaxAbsScalerModel,
    MinMaxScalerModel,
    StandardScalerModel,
)
from paimon_features.transformers.flink_ml.vectors import SparseRows, dense

Seen = tuple[int, Moments]
"""Number of rows, and the moments of their columns."""


class Spread:
    """Mean and deviation, merged without loss (Chan, Golub and LeVeque 1983).

    Flink ML adds squares up, which loses a deviation that is small beside the mean.
    """

    def of(self, block: TrainingBlock) -> Seen:
        return len(block), Moments.of(dense(block.features))

    def merge(self, left: Seen, right: Seen) -> Seen:
        return left[0] + right[0], left[1].merge(right[1])

    def finish(self, whole: Seen) -> dict[str, Any]:
        rows, moments = whole
        if (moments.count < rows).any():
            column = int(np.flatnonzero(moments.count < rows)[0])
            raise TransformError(f"feature {column} has NaN; impute missing values first")
        std = np.sqrt(moments.squares / max(rows - 1, 1))
        return {"mean": moments.mean, "std": std}


class Extremes:
    """Least and greatest value of each column."""

    def of(self, block: TrainingBlock) -> tuple[Floats, Floats]:
        rows = dense(block.features)
        return rows.min(axis=0), rows.max(axis=0)

    def merge(self, left: Any, right: Any) -> tuple[Floats, Floats]:
        return np.minimum(left[0], right[0]), np.maximum(left[1], right[1])

    def finish(self, whole: tuple[Floats, Floats]) -> dict[str, Any]:
        return {"minVector": whole[0], "maxVector": whole[1]}


class Largest:
    """Greatest absolute value of each column."""

    def of(self, block: TrainingBlock) -> Floats:
        if isinstance(block.features, SparseRows):
            out = np.zeros(block.width)
            np.maximum.at(out, block.features.indices, np.abs(block.features.values))
            return out
        return np.abs(block.features).max(axis=0)

    def merge(self, left: Floats, right: Floats) -> Floats:
        return np.maximum(left, right)

    def finish(self, whole: Floats) -> dict[str, Any]:
        return {"maxVector": whole}


@dataclass(frozen=True, kw_only=True)
class StandardScaler(VectorEstimator):
    """Mean and deviation (of n - 1); ``with_mean`` subtracts, ``with_std`` divides.

    >>> model = StandardScaler(with_mean=True).fit([[1.0], [3.0], [5.0]])
    >>> model.transform([[7.0]]).tolist()
    [2.0]
    """

    with_mean: bool = False
    with_std: bool = True

    def _program(
        self, source: TrainingSource, start: Any, parallelism: int, config: IterationConfig
    ) -> Callable[[Any], Any]:
        return aggregate(source, Spread(), parallelism, config)

    def _model(self, found: list[Any], rows: int, names: tuple[str, ...] | None) -> Any:
        return StandardScalerModel(
            self._only(found),
            rows=rows,
            names=names,
            input_col=self.input_col,
            output_col=self.output_col,
            with_mean=self.with_mean,
            with_std=self.with_std,
        )


@dataclass(frozen=True, kw_only=True)
class MinMaxScaler(VectorEstimator):
    """Stretches each column to ``[min, max]``.

    >>> MinMaxScaler().fit([[0.0], [200.0]]).transform([[50.0]]).tolist()
    [0.25]
    """

    min: float = 0.0
    max: float = 1.0

    def _program(
        self, source: TrainingSource, start: Any, parallelism: int, config: IterationConfig
    ) -> Callable[[Any], Any]:
        return aggregate(source, Extremes(), parallelism, config)

    def _model(self, found: list[Any], rows: int, names: tuple[str, ...] | None) -> Any:
        return MinMaxScalerModel(
            self._only(found),
            rows=rows,
            names=names,
            input_col=self.input_col,
            output_col=self.output_col,
            min=float(self.min),
            max=float(self.max),
        )


@dataclass(frozen=True, kw_only=True)
class MaxAbsScaler(VectorEstimator):
    """Divides each column by its greatest absolute value; sparse vectors stay sparse.

    >>> MaxAbsScaler().fit([[-4.0], [2.0]]).transform([[1.0]]).tolist()
    [0.25]
    """

    def _program(
        self, source: TrainingSource, start: Any, parallelism: int, config: IterationConfig
    ) -> Callable[[Any], Any]:
        return aggregate(source, Largest(), parallelism, config)

    def _model(self, found: list[Any], rows: int, names: tuple[str, ...] | None) -> Any:
        return MaxAbsScalerModel(
            self._only(found),
            rows=rows,
            names=names,
            input_col=self.input_col,
            output_col=self.output_col,
        )
