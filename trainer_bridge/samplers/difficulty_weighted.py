"""Importance sampling by difficulty, with the loss weights that keep the mean unbiased."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from paimon_features.core.types.array_types import Ints
from trainer_bridge.samplers.importance import ImportanceSampler
from trainer_bridge.samplers.inputs import as_numbers
from trainer_bridge.samplers.totals import locate


class DifficultyWeightedSampler(ImportanceSampler):
    """Draws hard samples more often, with replacement, and provides importance weights.

    Index i is drawn with probability ``P_i = (1 - uniform_share) * g_i / sum(g) +
    uniform_share / N`` where ``g_i = (scores[i] + eps) ** exponent``; its loss weight is
    ``(N * P_i) ** -beta``. At ``beta=1`` the weighted mean of the losses is that of all
    rows, in expectation (Horvitz and Thompson); ``beta=0`` trains on the harder mix itself.

    Parameters
    ----------
    scores
        Difficulty per row, >= 0: list, NumPy, Arrow, pandas, Polars, or a ``Difficulty``.
    num_samples
        Draws per epoch over all ranks; as many as rows by default.
    uniform_share
        Lambda, the share drawn uniformly from all rows: at least 0.05, so that every row is
        drawn and no weight exceeds ``uniform_share ** -beta``, and at most 1.
    normalise
        Divide the weights by that maximum; off by default.
    score_snapshot_id
        Snapshot the scores were read at; part of the state, so that runs are reproducible.
        That of the ``Difficulty`` by default.

    Raises
    ------
    ConfigurationError
        If a score is negative or not finite, or an argument out of bounds.

    Examples
    --------
    >>> sampler = DifficultyWeightedSampler([0.0, 0.0, 6.0], uniform_share=0.5, eps=0.0)
    >>> [round(float(p), 4) for p in sampler.probabilities(np.arange(3))]
    [0.1667, 0.1667, 0.6667]
    >>> [round(float(w), 4) for w in sampler.loss_weights(np.arange(3))]
    [2.0, 2.0, 0.5]
    """

    kind = "difficulty"

    def _read(self, scores: Any) -> npt.NDArray[Any]:
        return as_numbers(scores, "scores")

    def _merits_to_add(self) -> npt.NDArray[np.float64]:
        return self._merits(self._scores)

    def _merit(self, indices: Ints) -> npt.NDArray[np.float64]:
        return self._merits(self._scores[indices])

    def _locate(self, shares: npt.NDArray[np.float64]) -> Ints:
        return locate(self._totals, shares)

    def _merits(self, scores: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        merits = np.add(scores, self.eps, dtype=np.float64)
        # in place, to avoid a third array with 10^8 rows
        return np.power(merits, self.exponent, out=merits)
