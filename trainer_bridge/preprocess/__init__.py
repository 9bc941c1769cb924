"""Declarative preprocessing: a logical plan of steps, run as an optimised physical plan.

:class:`PreprocessPipeline` describes what happens to the rows of a table between the lake and the
trainer. ``explain()`` shows the plan as written and as optimised, ``open()`` runs it.
Functions take and return NumPy arrays, so one pipeline feeds torch and TensorFlow alike.
"""

from trainer_bridge.preprocess.preparation import PreparedBatches
from trainer_bridge.preprocess.preprocess_pipeline import PreprocessPipeline
from trainer_bridge.preprocess.tune import (
    Setting,
    Trial,
    Trials,
    Tuned,
    autotune,
    autotune_pipeline,
    open_with,
)

__all__ = [
    "PreparedBatches",
    "PreprocessPipeline",
    "Setting",
    "Trial",
    "Trials",
    "Tuned",
    "autotune",
    "autotune_pipeline",
    "open_with",
]
