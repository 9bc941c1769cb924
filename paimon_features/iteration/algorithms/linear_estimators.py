"""Linear models fitted by stochastic gradient descent; without intercept, as in Flink ML."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from paimon_features.iteration import IterationConfig
from paimon_features.iteration.algorithms.estimator import SupervisedEstimator, TrainingSource
from paimon_features.iteration.algorithms.parameter_checks import (
    above,
    at_least,
    initial_data,
    one_of,
    within,
    zero_or_one,
)
from paimon_features.iteration.algorithms.sgd import LOSSES, Descent, descend
from paimon_features.iteration.algorithms.training_blocks import TrainingBlock
from paimon_features.transformers.flink_ml import (
    LinearRegressionModel,
    LinearSVCModel,
    LogisticRegressionModel,
    Model,
)


@dataclass(frozen=True, kw_only=True)
class _LinearEstimator(SupervisedEstimator):
    max_iter: int = 20
    learning_rate: float = 0.1
    global_batch_size: int = 32
    tol: float = 1e-6
    reg: float = 0.0
    elastic_net: float = 0.0

    loss: ClassVar[str]
    """A key of ``LOSSES``."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 1, "max_iter", "global_batch_size")
        above(self, 0, "learning_rate")
        at_least(self, 0, "tol", "reg")
        within(self, 0, 1, "elastic_net")

    def _start(self, rows: TrainingBlock | None, initial: Model | None) -> Any:
        if initial is not None:
            data = initial_data(self, initial, "coefficient")
            return np.asarray(data["coefficient"], np.float64)
        return None if rows is None else np.zeros(rows.width)

    def _program(
        self, source: TrainingSource, start: Any, parallelism: int, config: IterationConfig
    ) -> Callable[[Any], Any]:
        descent = Descent(
            LOSSES[self.loss],
            self.max_iter,
            self.learning_rate,
            self.global_batch_size,
            self.tol,
            self.reg,
            self.elastic_net,
        )
        return descend(source, start, descent, parallelism, config)

    def _model_data(self, output: Any) -> Any:
        return {"coefficient": output}


@dataclass(frozen=True, kw_only=True)
class LinearRegression(_LinearEstimator):
    """Flink ML's linear regression: least squares.

    >>> rows = [[2.0, 1.0], [3.0, 2.0], [1.0, 2.0]]
    >>> model = LinearRegression(max_iter=500, tol=0.0).fit(rows, y=[4.0, 7.0, 5.0])
    >>> model.model_data["coefficient"].round(6).tolist()
    [1.0, 2.0]
    """

    model = LinearRegressionModel
    loss = "least_square"


@dataclass(frozen=True, kw_only=True)
class _LinearClassifier(_LinearEstimator):
    raw_prediction_col: str = "rawPrediction"

    def _rows(self, X: Any, y: Any, sample_weight: Any) -> TrainingBlock:
        return zero_or_one(self, super()._rows(X, y, sample_weight))


@dataclass(frozen=True, kw_only=True)
class LogisticRegression(_LinearClassifier):
    """Flink ML's logistic regression, on labels 0 and 1.

    >>> model = LogisticRegression().fit([[1.0], [-1.0]], y=[1.0, 0.0])
    >>> model.transform([[3.0], [-3.0]])[:, 0].tolist()
    [1.0, 0.0]
    """

    multi_class: str = "auto"

    model = LogisticRegressionModel
    loss = "logistic"

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of(self, "multi_class", ("auto", "binomial"))


@dataclass(frozen=True, kw_only=True)
class LinearSVC(_LinearClassifier):
    """Flink ML's linear support vector classifier (hinge loss), on labels 0 and 1.

    >>> model = LinearSVC().fit([[1.0], [-1.0]], y=[1.0, 0.0])
    >>> model.transform([[3.0], [-3.0]])[:, 0].tolist()
    [1.0, 0.0]
    """

    threshold: float = 0.0

    model = LinearSVCModel
    loss = "hinge"
