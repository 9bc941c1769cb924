"""The public names for TensorFlow and Keras; each is imported when it is first used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainer_bridge.adapters.tensorflow.builder import (
        DatasetPipelineBuilder as DatasetPipelineBuilder,
    )
    from trainer_bridge.adapters.tensorflow.dataset import dataset as dataset
    from trainer_bridge.adapters.tensorflow.distribute import (
        DistributedPaimonDatasetBuilder as DistributedPaimonDatasetBuilder,
    )
    from trainer_bridge.adapters.tensorflow.keras import ProgressCallback as ProgressCallback
    from trainer_bridge.adapters.tensorflow.optimize import (
        TensorFlowPipelineOptimizer as TensorFlowPipelineOptimizer,
    )
    from trainer_bridge.adapters.tensorflow.progress import TrainingProgress as TrainingProgress
    from trainer_bridge.adapters.tensorflow.strategies import (
        DistributedStrategy as DistributedStrategy,
    )

_HOMES = {
    "DatasetPipelineBuilder": "builder",
    "DistributedPaimonDatasetBuilder": "distribute",
    "DistributedStrategy": "strategies",
    "TrainingProgress": "progress",
    "ProgressCallback": "keras",
    "TensorFlowPipelineOptimizer": "optimize",
    "dataset": "dataset",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = importlib.import_module(f"trainer_bridge.adapters.tensorflow.{_HOMES[name]}")
    return getattr(home, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
