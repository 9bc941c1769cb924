"""What every kind of model provides to a training run: predictions and files."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from paimon_features.core.errors import ConfigurationError
from paimon_features.models import Metric
from trainer_bridge.training.config import TrainConfig
from trainer_bridge.training.encoding import Arrays, FeatureEncoder


class FittedModel:
    """What was trained: a network, or trees."""

    weights: bytes
    history: list[dict[str, float]]

    def predict(self, arrays: Arrays) -> npt.NDArray[np.float64]:
        """Predictions: of true (rows,), of each class (rows, classes), or values (rows,)."""
        raise NotImplementedError

    def export(
        self, encoder: FeatureEncoder, raw: dict[str, Any], arrays: Arrays
    ) -> tuple[dict[str, bytes], dict[str, Metric]]:
        """Return files, and how far their predictions are from those of ``predict``, on these
        rows."""
        raise NotImplementedError


def lists_refused(config: TrainConfig, encoder: FeatureEncoder) -> ConfigurationError:
    """Return the error for a model that reads no lists, where the service has some."""
    names = [f.output for f in encoder.features if f.kind in ("text_list", "number_list")]
    return ConfigurationError(
        f"model={config.model.kind} reads no lists, and the service has {', '.join(names)}: say "
        f"model=sequence_transformer, or 'data.exclude=[{','.join(names)}]'"
    )


def difference(value: float, rows: int) -> Metric:
    """Return how far two evaluations of a model are apart, as a metric."""
    return Metric(value, rows=rows, method="largest, on real rows")
