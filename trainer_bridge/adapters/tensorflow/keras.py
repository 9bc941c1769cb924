"""What Keras is to do at each step; importing this imports Keras."""

from __future__ import annotations

from typing import Any

import keras

from trainer_bridge.adapters.tensorflow.training_progress import TrainingProgress


class ProgressCallback(keras.callbacks.Callback):
    """Keeps a :class:`TrainingProgress` in step with ``model.fit`` and ``steps_per_execution``.

    One ``fit`` reads one dataset; with ``steps_per_epoch`` that is one pass for all its epochs.
    """

    def __init__(self, progress: TrainingProgress) -> None:
        super().__init__()
        self.progress = progress
        self._had = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._had = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        # the number of the last step of those that Keras ran in one go
        self.progress.advance(batch + 1 - self._had)
        self._had = batch + 1
