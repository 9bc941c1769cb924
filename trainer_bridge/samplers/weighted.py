"""Weighted sampling, with and without replacement."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from paimon_features.core.errors import ConfigurationError, RequestError
from paimon_features.core.types.array_types import Ints
from trainer_bridge.order.permutation import derive_key, permute, uniform
from trainer_bridge.samplers.base import AdvancedSampler
from trainer_bridge.samplers.inputs import as_numbers, checksum
from trainer_bridge.samplers.totals import cumulate, locate

_PIECE = 1 << 17


class WeightedRandomSampler(AdvancedSampler):
    """Draws indices in proportion to weights.

    With replacement each draw is independent: index i has probability
    ``weights[i] / sum(weights)``, drawn by bisection in the cumulative sums (8 bytes per
    weight; an alias table would take 16 and a loop to build). Without replacement, the
    indices with the ``num_samples`` smallest keys ``log E - log w``, E exponential, are taken
    (Efraimidis and Spirakis, "Weighted random sampling with a reservoir", 2006, in log
    space): the same distribution of sets as successive draws, in an order independent of the
    weights, so that the batches of an epoch are alike. ``WeightedReservoir`` draws the same
    sets from weights distributed over several ranks.

    Works beyond 2^24 weights, where ``torch.multinomial`` does not; at most 16 bytes per
    weight, including ``weights`` itself.

    Parameters
    ----------
    weights
        One number >= 0 per row: list, NumPy, Arrow, pandas, Polars, or a ``Difficulty``.
    num_samples
        Draws per epoch, over all ranks.
    seed, rank, world_size
        See :class:`~trainer_bridge.samplers.AdvancedSampler`.

    Raises
    ------
    ConfigurationError
        If a weight is negative or not finite, or all are 0; without replacement, if there are
        fewer positive weights than samples.

    Examples
    --------
    >>> sampler = WeightedRandomSampler([0.0, 1.0, 3.0], num_samples=8, seed=1)
    >>> set(sampler) <= {1, 2}
    True
    >>> sorted(WeightedRandomSampler([5, 1, 1], 3, replacement=False))
    [0, 1, 2]
    """

    def __init__(
        self,
        weights: Any,
        num_samples: int,
        replacement: bool = True,
        *,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        array = as_numbers(weights, "weights")
        super().__init__(len(array), num_samples, seed=seed, rank=rank, world_size=world_size)
        self.replacement = replacement
        self._checksum = checksum(array)
        positive = int(np.count_nonzero(array))
        self._complete = positive == len(array)
        self._chosen: tuple[int, npt.NDArray[Any], float] | None = None
        if replacement:
            self._totals = cumulate(array, "weights")
            return
        self._weights = array
        if num_samples > positive:
            raise ConfigurationError(
                f"num_samples={num_samples} without replacement: "
                f"only {positive} weights are positive"
            )

    def draw(self, epoch: int, positions: Ints) -> Ints:
        key = derive_key(self.seed, epoch, 0x5E1)
        if self.replacement:
            return locate(self._totals, uniform(key, positions))
        places = permute(positions, self.num_samples, derive_key(key, 1))
        return self._choose(epoch)[0][places].astype(np.int64)

    def unbiased_weights(self, epoch: int, indices: Ints) -> npt.NDArray[np.float64]:
        """See the base class. Without replacement, probabilities are conditional on the first key
        that was not drawn (Cohen and Kaplan, "Summarizing data using bottom-k sketches", 2007)."""
        if not self._complete:
            raise RequestError("rows of weight 0 are never drawn, which no weights can correct")
        if self.replacement:
            weights = self._totals[indices] - np.where(indices > 0, self._totals[indices - 1], 0.0)
            chances = self.num_samples * weights / self._totals[-1]
        else:
            with np.errstate(divide="ignore"):
                logs = np.log(self._weights[indices].astype(np.float64))
            chances = -np.expm1(-np.exp(self._choose(epoch)[1] + logs))
        result: npt.NDArray[np.float64] = self.num_samples / self.num_rows / chances
        return result

    def reseed(self, seed: int) -> None:
        super().reseed(seed)
        self._chosen = None

    def identity(self) -> dict[str, Any]:
        return {
            "sampler": "weighted",
            "rows": self.num_rows,
            "num_samples": self.num_samples,
            "replacement": self.replacement,
            "seed": self.seed,
            "checksum": self._checksum,
        }

    def _choose(self, epoch: int) -> tuple[npt.NDArray[Any], float]:
        """Return the indices drawn in an epoch, ascending, and the smallest key beyond them."""
        if self._chosen is not None and self._chosen[0] == epoch:
            return self._chosen[1:]
        self._chosen = None
        key = derive_key(self.seed, epoch, 0x5E1)
        keys = np.empty(self.num_rows + 1, dtype=np.float64)
        keys[-1] = np.inf
        for start in range(0, self.num_rows, _PIECE):
            keys[start : min(start + _PIECE, self.num_rows)] = self._keys(key, start)
        keys.partition([self.num_samples - 1, self.num_samples])
        bound, beyond = float(keys[self.num_samples - 1]), float(keys[self.num_samples])
        del keys  # 8 bytes per weight; recomputed below in chunks
        chosen = np.empty(
            self.num_samples, dtype=np.uint32 if self.num_rows <= 1 << 32 else np.int64
        )
        count = 0
        for start in range(0, self.num_rows, _PIECE):
            # ties at the bound could select one too many
            part = np.flatnonzero(self._keys(key, start) <= bound)[: self.num_samples - count]
            chosen[count : count + len(part)] = part + start
            count += len(part)
        self._chosen = (epoch, chosen, beyond)
        return chosen, beyond

    def _keys(self, key: int, start: int) -> npt.NDArray[np.float64]:
        weights = self._weights[start : start + _PIECE]
        return exponential_keys(key, np.arange(start, start + len(weights)), weights)


def exponential_keys(key: int, rows: Ints, weights: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Return ``log E - log w`` per row, E exponential by a hash; infinite for a weight of 0."""
    shares = uniform(key, rows)
    with np.errstate(divide="ignore"):
        # log1p of a share below 1 is finite; a share of 0 results in -inf, the smallest key
        keys: npt.NDArray[np.float64] = np.log(-np.log1p(-shares))
        keys -= np.log(weights.astype(np.float64))
    keys[weights == 0] = np.inf
    return keys
