"""How important a feature is to a fitted model: how much its loss rises without it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from paimon_features.core.types.array_types import Ints
from trainer_bridge.training import evaluation
from trainer_bridge.training.config import TrainConfig
from trainer_bridge.training.encoded_table import EncodedPart
from trainer_bridge.training.encoding import Arrays, FeatureEncoder
from trainer_bridge.training.evaluation import EvaluatedRows
from trainer_bridge.training.fitted_model import FittedModel
from trainer_bridge.training.report import Importance

_ROWS = 2_000


def feature_importance(
    fitted: FittedModel, config: TrainConfig, encoder: FeatureEncoder, test: EncodedPart
) -> list[Importance]:
    """Return how much the first loss rises when a feature is permuted among the rows, the most
    important feature first."""
    rows = min(_ROWS, len(test.labels))
    order = np.random.default_rng(config.seed).permutation(rows)
    arrays = {name: array[:rows] for name, array in test.arrays.items()}
    labels = test.labels[:rows].astype(np.float64)
    weights = None if test.weights is None else test.weights[:rows]
    task = config.objective.task
    loss = "mse" if task == "regression" else "log_loss"

    def loss_of(changed: Arrays) -> float:
        predictions = fitted.predict(changed)
        about = EvaluatedRows(weights=weights)
        return evaluation.evaluate(task, labels, predictions, config.seed, about)[loss].value

    before = loss_of(arrays)
    importance = [
        Importance(output, loss_of({**arrays, **permuted}) - before)
        for output, permuted in _permuted(encoder, arrays, order)
    ]
    return sorted(importance, key=lambda entry: -entry.increase)


def _permuted(encoder: FeatureEncoder, arrays: Arrays, order: Ints) -> Iterator[tuple[str, Arrays]]:
    """Yield (output, the array that it is part of, with its values permuted)."""
    for group in encoder.groups:
        numbers, columns = arrays["numbers"].copy(), list(group.indices)
        numbers[:, columns] = numbers[order][:, columns]
        yield group.output, {"numbers": numbers}
    for name, kind in (("codes", "text_list"), ("values", "number_list")):
        for index, feature in enumerate(f for f in encoder.features if f.kind == kind):
            values = arrays[name].copy()
            values[:, index] = values[order][:, index]
            yield feature.output, {name: values}
