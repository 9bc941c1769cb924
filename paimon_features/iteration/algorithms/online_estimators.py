"""The online algorithms: what a batch adds to a version, and the next version of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from paimon_features.array_types import Floats
from paimon_features.errors import DefinitionError, TransformError
from paimon_features.iteration import IterationConfig
from paimon_features.iteration.algorithms.estimator import (
    Estimator,
    TrainingSource,
    labelled,
    names_of,
)
from paimon_features.iteration.algorithms.kmeans import MEASURES, add_closest
from paimon_features.iteration.algorithms.online_training import (
    CountCutter,
    ModelVersions,
    check_batch,
    in_turn,
    train_online,
)
from paimon_features.iteration.algorithms.parameter_checks import (
    at_least,
    finite,
    one_of,
    started_from,
    within,
    zero_or_one,
)
from paimon_features.iteration.algorithms.training_blocks import TrainingBlock, in_order
from paimon_features.transformers.flink_ml import KMeansModel, LogisticRegressionModel, Model
from paimon_features.transformers.flink_ml.vectors import SparseRows, dot, sums, weighted_sum


@dataclass(frozen=True, kw_only=True)
class _ByCount(Estimator):
    """An online algorithm whose batches are ``global_batch_size`` rows."""

    batch_strategy: str = "count"
    global_batch_size: int = 32

    def __post_init__(self) -> None:
        one_of(self, "batch_strategy", ("count",))
        at_least(self, 1, "global_batch_size")

    def _blocks(self, rows: TrainingBlock, parallelism: int) -> list[TrainingBlock]:
        return in_order(rows)

    def _online(
        self,
        source: TrainingSource,
        start: Any,
        online: Any,
        parallelism: int,
        config: IterationConfig | None,
    ) -> Callable[[Any], Any]:
        check_batch(type(self).__name__, self.global_batch_size, parallelism)
        cutter = CountCutter(self.global_batch_size)
        return train_online(source, start, online, cutter, parallelism, config)

    def _initial(self, initial: Model | None, needed: str) -> Any:
        if initial is None:
            raise DefinitionError(
                f"{type(self).__name__}: initial= is missing; an online model starts from one, "
                "of a batch algorithm or of an earlier fit"
            )
        return started_from(self, initial, needed)


# -- logistic regression --------------------------------------------------------------------


@dataclass(frozen=True, eq=False, slots=True)
class Ftrl:
    """Coefficients, and what FTRL-Proximal keeps of each: sums of gradients and of squares."""

    coefficient: Floats
    z: Floats
    n: Floats
    version: int


@dataclass(frozen=True, kw_only=True)
class OnlineLogisticRegression(_ByCount):
    """Logistic regression by FTRL-Proximal, a version for each batch of rows.

    Starts from the coefficients of ``initial``. As in Flink ML, the gradient of a feature is
    divided by the number of points, of sparse vectors by the weights of those that have it; the
    weight is not in the gradient itself.

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
    features_col: str | tuple[str, ...] = "features"
    label_col: str = "label"
    weight_col: str | None = None
    prediction_col: str = "prediction"
    raw_prediction_col: str = "rawPrediction"
    model_version_col: str | None = "version"

    def __post_init__(self) -> None:
        super().__post_init__()
        within(self, 0, 1, "elastic_net")
        at_least(self, 0, "reg", "beta")
        if not self.alpha > 0:
            raise DefinitionError(f"OnlineLogisticRegression: alpha={self.alpha}; expected above 0")

    def _rows(self, X: Any, y: Any, sample_weight: Any) -> TrainingBlock:
        columns = (self.features_col, self.label_col, self.weight_col)
        return zero_or_one(self, finite(self, labelled(X, y, sample_weight, columns)))

    def _names(self, X: Any) -> tuple[str, ...] | None:
        return names_of(self.features_col, X)

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
        return self._online(source, start, online, parallelism, config)

    def _model(self, found: list[Any], rows: int, names: tuple[str, ...] | None) -> Any:
        return ModelVersions(
            [
                LogisticRegressionModel(
                    data,
                    rows=rows,
                    names=names,
                    features_col=self.features_col,
                    prediction_col=self.prediction_col,
                    raw_prediction_col=self.raw_prediction_col,
                    model_version_col=self.model_version_col,
                )
                for data in in_turn(found, "modelVersion")
            ]
        )


@dataclass(frozen=True, slots=True)
class _FtrlSteps:
    alpha: float
    beta: float
    l1: float
    l2: float

    def partial(self, state: Ftrl, part: TrainingBlock, parallelism: int) -> tuple[Floats, Floats]:
        """The gradient of each feature, and what it is divided by."""
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
        there = np.repeat(weights, np.diff(part.features.starts))
        return gradient, sums(part.features.indices, there, part.width)

    def combine(self, state: Ftrl, partials: Sequence[Any], end_ms: int | None) -> Ftrl:
        """The coefficients after the gradient of the whole batch."""
        gradient, seen = partials[0]
        for other, number in partials[1:]:
            gradient, seen = gradient + other, seen + number
        g = np.where(seen != 0, gradient / np.where(seen != 0, seen, 1.0), gradient)
        n = state.n + g * g
        sigma = (np.sqrt(n) - np.sqrt(state.n)) / self.alpha
        z = state.z + g - sigma * state.coefficient
        step = (self.beta + np.sqrt(n)) / self.alpha + self.l2
        towards = np.where(z < 0, -1.0, 1.0) * self.l1 - z
        # no step at all (beta 0, no gradient yet) is only reached where |z| is not above l1
        moved = towards / np.where(step > 0, step, 1.0)
        coefficient = np.where(np.abs(z) <= self.l1, 0.0, moved)
        return Ftrl(coefficient, z, n, state.version + 1)

    def model_data(self, state: Ftrl) -> dict[str, Any]:
        """The coefficients and the number of the version."""
        return {"coefficient": state.coefficient, "modelVersion": state.version}


# -- k-means --------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class OnlineKMeans(_ByCount):
    """k-means, a version for each batch of rows: what was before decays by ``decay_factor``.

    Starts from the centroids and weights of ``initial``. A new centroid is the mean of the old
    one, with its weight times ``decay_factor`` (0: it is forgotten), and of the points of the
    batch that are closest to it. One that has no weight then stays where it is.

    >>> start = KMeansModel({"centroids": [[0.0], [9.0]], "weights": [1.0, 1.0]})
    >>> versions = OnlineKMeans(global_batch_size=2).fit([[1.0], [8.0]], initial=start)
    >>> versions.model_data["centroids"].tolist()
    [[1.0], [8.0]]
    """

    decay_factor: float = 0.0
    distance_measure: str = "euclidean"
    seed: int = 0
    features_col: str | tuple[str, ...] = "features"
    prediction_col: str = "prediction"

    def __post_init__(self) -> None:
        super().__post_init__()
        within(self, 0, 1, "decay_factor")
        one_of(self, "distance_measure", MEASURES)

    def random_model(self, k: int, dim: int, weight: float = 0.0) -> KMeansModel:
        """A model to start from: centroids drawn from ``[0, 1)`` by ``seed``."""
        centroids = np.random.default_rng(self.seed).random((k, dim))
        return KMeansModel({"centroids": centroids, "weights": np.full(k, weight)})

    def _rows(self, X: Any, y: Any, sample_weight: Any) -> TrainingBlock:
        return finite(self, labelled(X, None, None, (self.features_col, None, None)))

    def _names(self, X: Any) -> tuple[str, ...] | None:
        return names_of(self.features_col, X)

    def _start(self, rows: TrainingBlock | None, initial: Model | None) -> Any:
        data = self._initial(initial, "centroids")
        return data["centroids"], data["weights"], 0

    def _program(
        self, source: TrainingSource, start: Any, parallelism: int, config: IterationConfig
    ) -> Callable[[Any], Any]:
        online = _KMeansSteps(self.decay_factor, self.distance_measure)
        return self._online(source, start, online, parallelism, config)

    def _model(self, found: list[Any], rows: int, names: tuple[str, ...] | None) -> Any:
        return ModelVersions(
            [
                KMeansModel(
                    {"centroids": data["centroids"], "weights": data["weights"]},
                    rows=rows,
                    names=names,
                    features_col=self.features_col,
                    prediction_col=self.prediction_col,
                    distance_measure=self.distance_measure,
                )
                for data in in_turn(found, "version")
            ]
        )


@dataclass(frozen=True, slots=True)
class _KMeansSteps:
    decay_factor: float
    measure: str

    def partial(self, state: Any, part: TrainingBlock, parallelism: int) -> tuple[Floats, Floats]:
        """Sums and numbers of the points closest to each centroid."""
        centroids = state[0]
        totals, counts = np.zeros_like(centroids), np.zeros(len(centroids))
        add_closest(part.features, centroids, self.measure, totals, counts)
        return totals, counts

    def combine(self, state: Any, partials: Sequence[Any], end_ms: int | None) -> Any:
        """Centroids and weights after the whole batch."""
        centroids, weights, version = state
        totals = np.sum([part[0] for part in partials], axis=0)
        counts = np.sum([part[1] for part in partials], axis=0)
        kept = self.decay_factor * weights
        total = kept + counts
        there = total > 0
        moved = centroids.copy()
        whole = kept[:, None] * centroids + totals
        moved[there] = whole[there] / total[there, None]
        return moved, total, version + 1

    def model_data(self, state: Any) -> dict[str, Any]:
        """Centroids, their weights, and the number of the version."""
        return {"centroids": state[0], "weights": state[1], "version": state[2]}
