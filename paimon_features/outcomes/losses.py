"""How wrong a prediction was: losses by the task of a model, and what is known of their size."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from paimon_features.array_types import Floats
from paimon_features.errors import RequestError
from paimon_features.outcomes.sequences import ConfidenceSequence, any_mean, bounded_mean

LEAST = 1e-6
"""Probabilities are cut to [LEAST, 1 - LEAST] in the log loss: one row must not decide alone."""


@dataclass(frozen=True)
class OutcomeLoss:
    """A loss of rows; ``is_bounded``: it is in [0, 1], and its intervals hold at every length."""

    name: str
    of: Callable[[Floats, Floats], Floats]
    is_bounded: bool

    @property
    def method(self) -> str:
        """How its intervals are computed."""
        return "empirical Bernstein" if self.is_bounded else "asymptotic"

    def mean_difference(self, differences: Floats, alpha: float) -> ConfidenceSequence:
        """The sequence for the mean of differences of losses."""
        if not self.is_bounded:
            return any_mean(differences, alpha)
        return bounded_mean((differences + 1) / 2, alpha).scaled(2.0, -1.0)


def _brier(labels: Floats, predictions: Floats) -> Floats:
    found: Floats = (predictions - labels) ** 2
    return found


def _log_loss(labels: Floats, predictions: Floats) -> Floats:
    cut = np.clip(predictions, LEAST, 1 - LEAST)
    found: Floats = -(labels * np.log(cut) + (1 - labels) * np.log1p(-cut))
    return found


def _absolute(labels: Floats, predictions: Floats) -> Floats:
    found: Floats = np.abs(predictions - labels)
    return found


LOSSES: Mapping[str, tuple[OutcomeLoss, ...]] = {
    "binary": (OutcomeLoss("brier", _brier, True), OutcomeLoss("log_loss", _log_loss, False)),
    "regression": (
        OutcomeLoss("squared_error", _brier, False),
        OutcomeLoss("absolute_error", _absolute, False),
    ),
}
"""By the task; a comparison is decided by the first one if nothing else is said."""


def losses_of(task: str, metric: str | None) -> list[OutcomeLoss]:
    """The losses of a task, the one that decides first.

    Raises
    ------
    RequestError
        For a task that has none, or another metric.
    """
    known = LOSSES.get(task)
    if known is None:
        raise RequestError(
            f"models of the task {task!r} cannot be compared by outcomes; expected one number per "
            f"prediction: {', '.join(LOSSES)}"
        )
    names = [each.name for each in known]
    if metric is not None and metric not in names:
        raise RequestError(f"metric {metric!r}; expected one of: {', '.join(names)}")
    return sorted(known, key=lambda each: each.name != (metric or names[0]))
