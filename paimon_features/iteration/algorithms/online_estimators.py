"""The online estimators: the contribution of a batch to a version, and the next version."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from paimon_features.core.errors import DefinitionError, TransformError
from paimon_features.core.types.array_types import Floats
from paimon_features.iteration import IterationConfig
from paimon_features.iteration.algorithms.estimator import (
    PredictionEstimator,
    SupervisedEstimator,
    TrainingSource,
)
from paimon_features.iteration.algorithms.kmeans import add_closest
from paimon_features.iteration.algorithms.online_training import (
    CountCutter,
    OnlineAlgorithm,
    OnlineEstimator,
    check_batch,
    train_online,
)
from paimon_features.iteration.algorithms.parameter_checks import (
    above,
    at_least,
    initial_data,
    one_of,
    within,
    zero_or_one,
)
from paimon_features.iteration.algorithms.training_blocks import TrainingBlock
from paimon_features.transformers.flink_ml import KMeansModel, LogisticRegressionModel, Model
from paimon_features.transformers.flink_ml.kmeans_model import MEASURES
from paimon_features.transformers.flink_ml.vectors import (
    SparseRows,
    dot,
    sums,
    weighted_sum,
)


@dataclass(frozen=True, kw_only=True)
class _CountBatches(OnlineEstimator):
    """An online estimator with batches of ``global_batch_size`` rows."""

    batch_strategy: str = "count"
    global_batch_size: int = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of(self, "batch_strategy", ("count",))
        at_least(self, 1, "global_batch_size")

    def _train(
        self,
        source: TrainingSource,
        start: Any,
        online: OnlineAlgorithm,
        parallelism: int,
        config: IterationConfig | None,
    ) -> Callable[[Any], Any]:
        check_batch(type(self).__name__, self.global_batch_size, parallelism)
        cutter = CountCutter(self.global_batch_size)
        return train_online(source, start, online, cutter, parallelism, config)

    def _initial(self, initial: Model | None, required: str) -> Any:
        if initial is None:
            raise DefinitionError(
                f"{type(self).__name__}: initial= is missing; an online estimator starts from a "
                "model, that of a batch algorithm or of an earlier fit"
            )
        return initial_data(self, initial, required)


# -- logistic regression --------------------------------------------------------------------


@dataclass(frozen=True, eq=False, slots=True)
class Ftrl:
    """Coefficients, and FTRL-Proximal's accumulators: sums of gradients and of their squares."""

    coefficient: Floats
    z: Floats
    n: Floats
    version: int


@dataclass(frozen=True, kw_only=True)
class OnlineLogisticRegression(_CountBatches, SupervisedEstimator):
    """Flink ML's online logistic regression by FTRL-Proximal: a version per batch of rows.

    It starts from the coefficients of ``initial``. As in Flink ML, the gradient of a feature is
    divided by the number of points; for sparse vectors by the weights of the points that have the
    feature. The weight does not multiply the gradient itself.

    McMahan et al., Ad click prediction: a view from the trenches, KDD 2013.

    >>> start = LogisticRegressionModel({"coefficient": [0.0]})
    >>> versions = OnlineLogisticRegression(global_batch_size=2).fit(
    ...     [[1.0], [-1.0], [2.0], [-2.0]], y=[1.0, 0.0, 1.0, 0.0], initial=start
    ... )
    >>> [model.model_data["modelVersion"] for model in versions]
    [1, 2]
    """

    alpha: float = 0.1
    beta: float = 0.1
    reg: float = 0.0
    elastic_net: float = 0.0
    raw_prediction_col: str = "rawPrediction"
    model_version_col: str | None = "modelVersion"

    model = LogisticRegressionModel
    version_name = "modelVersion"

    def __post_init__(self) -> None:
        super().__post_init__()
        within(self, 0, 1, "elastic_net")
        at_least(self, 0, "reg")
        above(self, 0, "alpha", "beta")

    def _rows(self, X: Any, y: Any, sample_weight: Any) -> TrainingBlock:
        return zero_or_one(self, super()._rows(X, y, sample_weight))

    def _start(self, rows: TrainingBlock | None, initial: Model | None) -> Any:
        data = self._initial(initial, "coefficient")
        coefficient = np.asarray(data["coefficient"], np.float64)
        zeros = np.zeros_like(coefficient)
        return Ftrl(coefficient, zeros, zeros, int(data.get("modelVersion", 0)))

    def _program(
        self, source: TrainingSource, start: Any, parallelism: int, config: IterationConfig
    ) -> Callable[[Any], Any]:
        l1, l2 = self.elastic_net * self.reg, (1 - self.elastic_net) * self.reg
        online = _FtrlSteps(self.alpha, self.beta, l1, l2)
        return self._train(source, start, online, parallelism, config)


@dataclass(frozen=True, slots=True)
class _FtrlSteps:
    alpha: float
    beta: float
    l1: float
    l2: float

    def partial(self, state: Ftrl, part: TrainingBlock, parallelism: int) -> tuple[Floats, Floats]:
        """Return the gradient of each feature, and its divisor."""
        if part.width != len(state.coefficient):
            raise TransformError(
                f"vectors of {part.width} features; the model has {len(state.coefficient)}"
            )
        assert part.labels is not None
        with np.errstate(over="ignore"):
            errors = 1 / (1 + np.exp(-dot(part.features, state.coefficient))) - part.labels
        gradient = weighted_sum(part.features, errors)
        if not isinstance(part.features, SparseRows):
            return gradient, np.full(part.width, float(len(part)))
        weights = np.ones(len(part)) if part.weights is None else part.weights
        present = np.repeat(weights, np.diff(part.features.starts))
        return gradient, sums(part.features.indices, present, part.width)

    def combine(self, state: Ftrl, partials: Sequence[Any], end_ms: int | None) -> Ftrl:
        """Return the state after applying the gradient of the complete batch."""
        gradient, divisor = partials[0]
        for other, number in partials[1:]:
            gradient, divisor = gradient + other, divisor + number
        g = np.where(divisor != 0, gradient / np.where(divisor != 0, divisor, 1.0), gradient)
        n = state.n + g * g
        sigma = (np.sqrt(n) - np.sqrt(state.n)) / self.alpha
        z = state.z + g - sigma * state.coefficient
        step = (self.beta + np.sqrt(n)) / self.alpha + self.l2
        towards = np.where(z < 0, -1.0, 1.0) * self.l1 - z
        coefficient = np.where(np.abs(z) <= self.l1, 0.0, towards / step)
        return Ftrl(coefficient, z, n, state.version + 1)

    def model_data(self, state: Ftrl) -> dict[str, Any]:
        """Return the coefficients and the version number."""
        return {"coefficient": state.coefficient, "modelVersion": state.version}


# -- k-means --------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class OnlineKMeans(_CountBatches, PredictionEstimator):
    """Flink ML's online k-means: a version per batch of rows; older data decay.

    It starts from the centroids and weights of ``initial``. A new centroid is the mean of the old
    one, with its weight times ``decay_factor`` (0: it is forgotten), and of the points of the
    batch that are closest to it. A centroid without any weight keeps its position. ``k``, if
    given, must be the number of the centroids.

    >>> start = KMeansModel({"centroids": [[0.0], [9.0]], "weights": [1.0, 1.0]})
    >>> versions = OnlineKMeans(global_batch_size=2).fit([[1.0], [8.0]], initial=start)
    >>> versions.model_data["centroids"].tolist()
    [[1.0], [8.0]]
    """

    k: int | None = None
    decay_factor: float = 0.0
    distance_measure: str = "euclidean"
    seed: int = 0

    model = KMeansModel
    version_name = "version"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.k is not None:
            at_least(self, 2, "k")
        within(self, 0, 1, "decay_factor")
        one_of(self, "distance_measure", MEASURES)

    def _start(self, rows: TrainingBlock | None, initial: Model | None) -> Any:
        data = self._initial(initial, "centroids")
        if self.k not in (None, len(data["centroids"])):
            raise DefinitionError(
                f"OnlineKMeans: k={self.k}, but initial= has {len(data['centroids'])} centroids; "
                "omit k, or pass a model of as many"
            )
        return data["centroids"], data["weights"], 0

    def _program(
        self, source: TrainingSource, start: Any, parallelism: int, config: IterationConfig
    ) -> Callable[[Any], Any]:
        online = _KMeansSteps(self.decay_factor, self.distance_measure)
        return self._train(source, start, online, parallelism, config)


@dataclass(frozen=True, slots=True)
class _KMeansSteps:
    decay_factor: float
    measure: str

    def partial(self, state: Any, part: TrainingBlock, parallelism: int) -> tuple[Floats, Floats]:
        """Return sums and counts of the points closest to each centroid."""
        centroids = state[0]
        totals, counts = np.zeros_like(centroids), np.zeros(len(centroids))
        add_closest(part.features, centroids, self.measure, totals, counts)
        return totals, counts

    def combine(self, state: Any, partials: Sequence[Any], end_ms: int | None) -> Any:
        """Return centroids and weights after the complete batch."""
        centroids, weights, version = state
        totals = np.sum([part[0] for part in partials], axis=0)
        counts = np.sum([part[1] for part in partials], axis=0)
        decayed = self.decay_factor * weights
        total = decayed + counts
        weighted = total > 0
        moved = centroids.copy()
        sums_with_old = decayed[:, None] * centroids + totals
        moved[weighted] = sums_with_old[weighted] / total[weighted, None]
        return moved, total, version + 1

    def model_data(self, state: Any) -> dict[str, Any]:
        """Return centroids, their weights, and the version number."""
        return {"centroids": state[0], "weights": state[1], "version": state[2]}
