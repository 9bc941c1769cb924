"""Importance sampling by difficulty, with the loss weights that keep the mean unbiased."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from paimon_features.errors import ConfigurationError
from trainer_bridge.order import Ints, derive_key, uniform
from trainer_bridge.samplers.base import (
    AdvancedSampler,
    Floats,
    as_weights,
    checksum,
    cumulate,
    locate,
)

LEAST_UNIFORM_SHARE = 0.05


class DifficultyWeightedSampler(AdvancedSampler):
    """Draws hard samples more often, with replacement, and says by how much to weigh them less.

    Index i comes with probability ``P_i = (1 - uniform_share) * g_i / sum(g) +
    uniform_share / N`` where ``g_i = (scores[i] + eps) ** exponent``; its loss weight is
    ``(N * P_i) ** -beta``. At ``beta=1`` the weighted mean of the losses is that of all
    rows, in expectation (Horvitz and Thompson); ``beta=0`` trains on the harder mix itself.

    Parameters
    ----------
    scores
        Difficulty per row, >= 0: NumPy, Arrow, list.
    num_samples
        Draws per epoch over all ranks; as many as rows by default.
    uniform_share
        Lambda, the share drawn from all rows alike: from 0.05, so that no row is forgotten
        and no weight exceeds ``uniform_share ** -beta``, to 1.
    normalise
        Divide the weights by that greatest possible one; else (by default) leave them.
    score_snapshot_id
        Snapshot the scores were read at; part of the state, so that a run can be repeated.

    Raises
    ------
    ConfigurationError
        For scores that are negative or not finite, or an argument out of its bounds.

    Examples
    --------
    >>> sampler = DifficultyWeightedSampler([0.0, 0.0, 6.0], uniform_share=0.5, eps=0.0)
    >>> [round(float(p), 4) for p in sampler.probabilities(np.arange(3))]
    [0.1667, 0.1667, 0.6667]
    >>> [round(float(w), 4) for w in sampler.loss_weights(np.arange(3))]
    [2.0, 2.0, 0.5]
    """

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
        array = as_weights(scores, "scores")
        rows = len(array)
        super().__init__(
            rows,
            rows if num_samples is None else num_samples,
            seed=seed,
            rank=rank,
            world_size=world_size,
        )
        if not LEAST_UNIFORM_SHARE <= uniform_share <= 1:
            raise ConfigurationError(
                f"uniform_share={uniform_share}: expected {LEAST_UNIFORM_SHARE} to 1, so that "
                "every row keeps coming and loss weights stay bounded"
            )
        for name, number in (("exponent", exponent), ("eps", eps), ("beta", beta)):
            if not 0 <= number < np.inf:
                raise ConfigurationError(f"{name}={number}: expected a finite number >= 0")
        self.uniform_share, self.exponent, self.eps = uniform_share, exponent, eps
        self.beta, self.normalise, self.score_snapshot_id = beta, normalise, score_snapshot_id
        self._scores = array
        self._checksum = checksum(array)
        merits = self._merits(array)
        # Where nothing is hard (all scores and eps are 0), all rows are alike.
        self._totals = None if not merits.any() else cumulate(merits, "scores", out=merits)

    def draw(self, epoch: int, positions: Ints) -> Ints:
        key = derive_key(self.seed, epoch, 0xD1F)
        shares = uniform(key, positions)
        evenly = np.minimum((shares * self.num_rows).astype(np.int64), self.num_rows - 1)
        if self._totals is None:
            return evenly
        from_all = uniform(derive_key(key, 1), positions) < self.uniform_share
        return np.where(from_all, evenly, locate(self._totals, shares))

    def probabilities(self, indices: Ints) -> npt.NDArray[np.float64]:
        """Probability of each index at every draw."""
        if self._totals is None:
            return np.full(len(indices), 1 / self.num_rows)
        own = self._merits(self._scores[indices]) / self._totals[-1]
        result: npt.NDArray[np.float64] = (
            1 - self.uniform_share
        ) * own + self.uniform_share / self.num_rows
        return result

    def loss_weights(self, indices: Ints) -> npt.NDArray[np.float64]:
        """``(N * P_i) ** -beta``, float64; see the class for ``normalise``."""
        weights: npt.NDArray[np.float64] = (
            self.num_rows * self.probabilities(indices)
        ) ** -self.beta
        return weights * self.uniform_share**self.beta if self.normalise else weights

    def identity(self) -> dict[str, Any]:
        return {
            "sampler": "difficulty",
            "rows": self.num_rows,
            "num_samples": self.num_samples,
            "seed": self.seed,
            "uniform_share": self.uniform_share,
            "exponent": self.exponent,
            "eps": self.eps,
            "checksum": self._checksum,
            "score_snapshot_id": self.score_snapshot_id,
        }

    def _merits(self, scores: Floats) -> npt.NDArray[np.float64]:
        merits = np.add(scores, self.eps, dtype=np.float64)
        # in place: 10^8 rows must not need a third array
        return np.power(merits, self.exponent, out=merits)
