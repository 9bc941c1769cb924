"""How wrong a prediction was: losses by the task of a model, and what is known of their size."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from paimon_features.core.errors import RequestError, unknown_name
from paimon_features.core.types.array_types import Floats
from paimon_features.models.clustered_means import PossibleOutcomes

LEAST = 1e-6
"""Probabilities are cut to [LEAST, 1 - LEAST] in the log loss: one row must not decide alone."""


@dataclass(frozen=True)
class OutcomeLoss:
    """A loss of rows; ``is_binary``: of probabilities, by labels 0 and 1."""

    name: str
    of: Callable[[Floats, Floats], Floats]
    is_binary: bool

    def possible(self, labels: Floats, predictions: Floats) -> PossibleOutcomes:
        """Return the losses by each label that a row could have: 0 and 1, or the ends of their
        range."""
        ends = (0.0, 1.0) if self.is_binary else (labels.min(), labels.max())
        values = np.column_stack([self.of(np.full(len(labels), end), predictions) for end in ends])
        if not self.is_binary:
            return PossibleOutcomes(values)
        chances = np.column_stack([1 - predictions, predictions])
        return PossibleOutcomes(values, chances, (labels > 0.5).astype(np.int64))


def _brier(labels: Floats, predictions: Floats) -> Floats:
    losses: Floats = (predictions - labels) ** 2
    return losses


def _log_loss(labels: Floats, predictions: Floats) -> Floats:
    cut = np.clip(predictions, LEAST, 1 - LEAST)
    losses: Floats = -(labels * np.log(cut) + (1 - labels) * np.log1p(-cut))
    return losses


def _absolute(labels: Floats, predictions: Floats) -> Floats:
    losses: Floats = np.abs(predictions - labels)
    return losses


LOSSES: Mapping[str, tuple[OutcomeLoss, ...]] = {
    "binary": (OutcomeLoss("brier", _brier, True), OutcomeLoss("log_loss", _log_loss, False)),
    "regression": (
        OutcomeLoss("squared_error", _brier, False),
        OutcomeLoss("absolute_error", _absolute, False),
    ),
}
"""By the task; a comparison is decided by the first one if nothing else is said."""


def losses_of(task: str, metric: str | None) -> list[OutcomeLoss]:
    """Return the losses of a task, the one that decides first.

    Raises
    ------
    RequestError
        For a task that has none, or another metric.
    """
    losses = LOSSES.get(task)
    if losses is None:
        raise RequestError(
            f"models of the task {task!r} cannot be compared by outcomes; expected one number per "
            f"prediction: {', '.join(LOSSES)}"
        )
    names = [loss.name for loss in losses]
    if metric is not None and metric not in names:
        raise RequestError(unknown_name("metric", metric, names))
    return sorted(losses, key=lambda each: each.name != (metric or names[0]))
