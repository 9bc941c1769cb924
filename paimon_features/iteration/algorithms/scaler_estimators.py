"""Flink ML's scalers: statistics of each column, computed in one pass or by exact quantiles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from paimon_features.core.errors import TransformError
from paimon_features.core.types.array_types import Floats
from paimon_features.iteration import IterationConfig
from paimon_features.iteration.algorithms.bounded_training import aggregate
from paimon_features.iteration.algorithms.estimator import TrainingSource, VectorEstimator
from paimon_features.iteration.algorithms.exact_quantiles import quantiles
from paimon_features.iteration.algorithms.parameter_checks import within
from paimon_features.iteration.algorithms.training_blocks import TrainingBlock
from paimon_features.transformers.column_moments import Moments
from paimon_features.transformers.flink_ml import (
    MaxAbsScalerModel,
    MinMaxScalerModel,
    RobustScalerModel,
    StandardScalerModel,
)
from paimon_features.transformers.flink_ml.vectors import SparseRows, dense

RowMoments = tuple[int, Moments]
"""Number of rows, and the moments of their columns."""


class MeanAndDeviation:
    """Mean and standard deviation, merged without loss (Chan, Golub and LeVeque 1983).

    Flink ML sums squares, which loses a deviation that is small compared to the mean.
    """

    def of(self, block: TrainingBlock) -> RowMoments:
        return len(block), Moments.of(dense(block.features))

    def merge(self, left: RowMoments, right: RowMoments) -> RowMoments:
        return left[0] + right[0], left[1].merge(right[1])

    def finish(self, merged: RowMoments) -> dict[str, Any]:
        rows, moments = merged
        if (moments.count < rows).any():
            column = int(np.flatnonzero(moments.count < rows)[0])
            raise TransformError(f"feature {column} has NaN; impute missing values first")
        std = np.sqrt(moments.squares / max(rows - 1, 1))
        return {"mean": moments.mean, "std": std}


class Extremes:
    """Minimum and maximum of each column."""

    def of(self, block: TrainingBlock) -> tuple[Floats, Floats]:
        rows = dense(block.features)
        return rows.min(axis=0), rows.max(axis=0)

    def merge(self, left: Any, right: Any) -> tuple[Floats, Floats]:
        return np.minimum(left[0], right[0]), np.maximum(left[1], right[1])

    def finish(self, merged: tuple[Floats, Floats]) -> dict[str, Any]:
        return {"minVector": merged[0], "maxVector": merged[1]}


class LargestMagnitude:
    """Maximum absolute value of each column."""

    def of(self, block: TrainingBlock) -> Floats:
        if isinstance(block.features, SparseRows):
            out = np.zeros(block.width)
            np.maximum.at(out, block.features.indices, np.abs(block.features.values))
            return out
        return np.abs(block.features).max(axis=0)

    def merge(self, left: Floats, right: Floats) -> Floats:
        return np.maximum(left, right)

    def finish(self, merged: Floats) -> dict[str, Any]:
        return {"maxVector": merged}


@dataclass(frozen=True, kw_only=True)
class StandardScalerStage(VectorEstimator):
    """Flink ML's standard scaler: ``with_mean`` subtracts, ``with_std`` divides (ddof 1).

    >>> model = StandardScalerStage(with_mean=True).fit([[1.0], [3.0], [5.0]])
    >>> model.transform([[7.0]]).tolist()
    [2.0]
    """

    with_mean: bool = False
    with_std: bool = True

    model = StandardScalerModel

    def _program(
        self, source: TrainingSource, start: Any, parallelism: int, config: IterationConfig
    ) -> Callable[[Any], Any]:
        return aggregate(source, MeanAndDeviation(), parallelism, config)


@dataclass(frozen=True, kw_only=True)
class MinMaxScalerStage(VectorEstimator):
    """Flink ML's min-max scaler: maps each column to ``[min, max]``.

    >>> MinMaxScalerStage().fit([[0.0], [200.0]]).transform([[50.0]]).tolist()
    [0.25]
    """

    min: float = 0.0
    max: float = 1.0

    model = MinMaxScalerModel

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "min", float(self.min))
        object.__setattr__(self, "max", float(self.max))

    def _program(
        self, source: TrainingSource, start: Any, parallelism: int, config: IterationConfig
    ) -> Callable[[Any], Any]:
        return aggregate(source, Extremes(), parallelism, config)


@dataclass(frozen=True, kw_only=True)
class MaxAbsScalerStage(VectorEstimator):
    """Flink ML's max-abs scaler: divides by the maximum absolute value; keeps sparse vectors.

    >>> MaxAbsScalerStage().fit([[-4.0], [2.0]]).transform([[1.0]]).tolist()
    [0.25]
    """

    model = MaxAbsScalerModel

    def _program(
        self, source: TrainingSource, start: Any, parallelism: int, config: IterationConfig
    ) -> Callable[[Any], Any]:
        return aggregate(source, LargestMagnitude(), parallelism, config)


@dataclass(frozen=True, kw_only=True)
class RobustScalerStage(VectorEstimator):
    """Flink ML's robust scaler: median and range between the quantiles ``lower`` and ``upper``.

    NaN is skipped. Quantiles are elements of the data, at rank ``ceil(q n)``, not interpolated,
    and exact: they satisfy any ``relative_error``, which bounds the error in Flink ML.

    >>> model = RobustScalerStage().fit([[float(v)] for v in range(9)])
    >>> model.transform([[3.0]]).tolist()
    [0.75]
    """

    lower: float = 0.25
    upper: float = 0.75
    relative_error: float = 0.001
    with_centering: bool = False
    with_scaling: bool = True

    model = RobustScalerModel
    allows_nan = True

    def __post_init__(self) -> None:
        super().__post_init__()
        within(self, 0, 1, "lower", "upper", "relative_error")

    def _program(
        self, source: TrainingSource, start: Any, parallelism: int, config: IterationConfig
    ) -> Callable[[Any], Any]:
        shares = (0.5, self.lower, self.upper)
        return quantiles(source, shares, _medians_and_ranges, parallelism, config)


def _medians_and_ranges(quantiles: Floats) -> dict[str, Any]:
    return {"medians": quantiles[:, 0], "ranges": quantiles[:, 2] - quantiles[:, 1]}
