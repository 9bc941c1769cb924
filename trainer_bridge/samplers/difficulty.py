"""Importance sampling by difficulty, with the loss weights that keep the mean unbiased."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from paimon_features.array_types import Ints
from trainer_bridge.samplers.importance import ImportanceSampler
from trainer_bridge.samplers.inputs import as_numbers, checksum, snapshot_of
from trainer_bridge.samplers.totals import cumulate, locate


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

    def __init__(
        self,
        scores: Any,
        num_samples: int | None = None,
        *,
        uniform_share: float = 0.1,
        exponent: float = 1.0,
        eps: float = 1e-6,
        beta: float = 1.0,
        normalise: bool = False,
        score_snapshot_id: int | None = None,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        array = as_numbers(scores, "scores")
        super().__init__(
            len(array),
            num_samples,
            uniform_share=uniform_share,
            exponent=exponent,
            eps=eps,
            beta=beta,
            normalise=normalise,
            score_snapshot_id=snapshot_of(scores, score_snapshot_id),
            checksum=checksum(array),
            seed=seed,
            rank=rank,
            world_size=world_size,
        )
        self._scores = array
        merits = self._merits(array)
        self._totals = cumulate(merits, "scores", out=merits) if merits.any() else merits

    def _merit_total(self) -> float:
        return float(self._totals[-1])

    def _merit(self, indices: Ints) -> npt.NDArray[np.float64]:
        return self._merits(self._scores[indices])

    def _locate(self, shares: npt.NDArray[np.float64]) -> Ints:
        return locate(self._totals, shares)

    def _merits(self, scores: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        merits = np.add(scores, self.eps, dtype=np.float64)
        # in place, to avoid a third array with 10^8 rows
        return np.power(merits, self.exponent, out=merits)
