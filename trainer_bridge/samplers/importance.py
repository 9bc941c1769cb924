"""Importance sampling: harder rows more often, with importance weights."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np
import numpy.typing as npt

from paimon_features.core.errors import ConfigurationError
from paimon_features.core.types.array_types import Ints
from trainer_bridge.order.permutation import derive_key, uniform
from trainer_bridge.samplers.base import AdvancedSampler
from trainer_bridge.samplers.inputs import checksum, snapshot_of
from trainer_bridge.samplers.totals import cumulate

LEAST_UNIFORM_SHARE = 0.05


class ImportanceSampler(AdvancedSampler):
    """Draws index i, with replacement, with ``P_i = (1 - uniform_share) g_i / sum(g) +
    uniform_share / N``, where ``g_i = (score_i + eps) ** exponent``; its loss weight is
    ``(N * P_i) ** -beta``. Subclasses define how scores are stored.
    """

    kind: str

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
        self._scores = self._read(scores)
        rows = len(self._scores)
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
                "every row can be drawn and loss weights stay bounded"
            )
        for name, number in (("exponent", exponent), ("eps", eps), ("beta", beta)):
            if not 0 <= number < np.inf:
                raise ConfigurationError(f"{name}={number}: expected a finite number >= 0")
        self.uniform_share, self.exponent, self.eps = uniform_share, exponent, eps
        self.beta, self.normalise = beta, normalise
        self.score_snapshot_id = snapshot_of(scores, score_snapshot_id)
        self._checksum = checksum(self._scores)
        merits = self._merits_to_add()
        # in place: no second array with 10^8 rows
        self._totals = cumulate(merits, "scores", out=merits) if merits.any() else merits

    @abstractmethod
    def _read(self, scores: Any) -> npt.NDArray[Any]:
        """Return the scores of all rows as they are stored."""

    @abstractmethod
    def _merits_to_add(self) -> npt.NDArray[np.float64]:
        """Return a new array of g of each row, or the sums of consecutive rows."""

    @abstractmethod
    def _merit(self, indices: Ints) -> npt.NDArray[np.float64]:
        """Return g of each index."""

    @abstractmethod
    def _locate(self, shares: npt.NDArray[np.float64]) -> Ints:
        """Return the indices by inverse transform sampling, for shares of the total in [0, 1)."""

    def draw(self, epoch: int, positions: Ints) -> Ints:
        key = derive_key(self.seed, epoch, 0xD1F)
        shares = uniform(key, positions)
        evenly = np.minimum((shares * self.num_rows).astype(np.int64), self.num_rows - 1)
        # If all scores and eps are 0, the distribution is uniform.
        if self._totals[-1] == 0:
            return evenly
        from_all = uniform(derive_key(key, 1), positions) < self.uniform_share
        return np.where(from_all, evenly, self._locate(shares))

    def probabilities(self, indices: Ints) -> npt.NDArray[np.float64]:
        """Return the probability of each index at every draw."""
        if (total := float(self._totals[-1])) == 0:
            return np.full(len(indices), 1 / self.num_rows)
        result: npt.NDArray[np.float64] = (1 - self.uniform_share) * self._merit(
            indices
        ) / total + self.uniform_share / self.num_rows
        return result

    def loss_weights(self, indices: Ints) -> npt.NDArray[np.float64]:
        """``(N * P_i) ** -beta``, float64; see the class for ``normalise``."""
        weights: npt.NDArray[np.float64] = (
            self.num_rows * self.probabilities(indices)
        ) ** -self.beta
        return weights * self.uniform_share**self.beta if self.normalise else weights

    def unbiased_weights(self, epoch: int, indices: Ints) -> npt.NDArray[np.float64]:
        return 1 / (self.num_rows * self.probabilities(indices))

    def identity(self) -> dict[str, Any]:
        return {
            "sampler": self.kind,
            "rows": self.num_rows,
            "num_samples": self.num_samples,
            "seed": self.seed,
            "uniform_share": self.uniform_share,
            "exponent": self.exponent,
            "eps": self.eps,
            "checksum": self._checksum,
            "score_snapshot_id": self.score_snapshot_id,
        }
