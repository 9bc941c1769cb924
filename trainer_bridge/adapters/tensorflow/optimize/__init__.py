"""Faster input pipelines: measured, tuned and explained.

- ``TensorFlowPipelineOptimizer`` adds the usual steps to any ``tf.data`` pipeline and measures it.
- ``dataset`` makes a ``tf.data.Dataset`` from a
  :class:`trainer_bridge.preprocess.PreprocessPipeline`.
- ``autotune`` looks for the best settings by short trials, within a memory limit.
"""

from trainer_bridge.adapters.tensorflow.optimize.dataset import dataset
from trainer_bridge.adapters.tensorflow.optimize.measure import benchmark
from trainer_bridge.adapters.tensorflow.optimize.optimizer import TensorFlowPipelineOptimizer
from trainer_bridge.preprocess.tune import Setting, Trial, Tuned, autotune

__all__ = [
    "Setting",
    "TensorFlowPipelineOptimizer",
    "Trial",
    "Tuned",
    "autotune",
    "benchmark",
    "dataset",
]
