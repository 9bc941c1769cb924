"""Weighted sampling, with and without replacement."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from paimon_features.errors import ConfigurationError
from trainer_bridge.order import Ints, derive_key, permute, uniform
from trainer_bridge.samplers.base import AdvancedSampler, as_weights, checksum, cumulate, locate

_PIECE = 1 << 20


class WeightedRandomSampler(AdvancedSampler):
    """Draws indices in proportion to weights.

    With replacement each draw is independent: index i comes with probability
    ``weights[i] / sum(weights)``, found in the running totals by bisection (8 bytes per
    weight; an alias table would take 16 and a loop to build). Without replacement, the
    indices with the ``num_samples`` least keys ``log E - log w``, E exponential, are taken
    (Efraimidis and Spirakis, "Weighted random sampling with a reservoir", 2006, in log
    space): the same sets as drawing one after the other, in an order that does not depend
    on the weights, so that the batches of an epoch are alike.

    Works beyond 2^24 weights, where ``torch.multinomial`` does not; at most 16 bytes per
    weight, those of ``weights`` itself included.

    Parameters
    ----------
    weights
        One number >= 0 per row: NumPy, Arrow, list.
    num_samples
        Draws per epoch, over all ranks.
    seed, rank, world_size
        See :class:`~trainer_bridge.samplers.AdvancedSampler`.

    Raises
    ------
    ConfigurationError
        For weights that are negative, not finite or all 0; without replacement, for more
        samples than weights above 0.

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
        array = as_weights(weights, "weights")
        super().__init__(len(array), num_samples, seed=seed, rank=rank, world_size=world_size)
        self.replacement = replacement
        self._checksum = checksum(array)
        self._chosen: tuple[int, npt.NDArray[np.uint32] | Ints] | None = None
        if replacement:
            self._totals = cumulate(array, "weights")
            return
        self._weights = array
        positive = int(np.count_nonzero(array))
        if num_samples > positive:
            raise ConfigurationError(
                f"num_samples={num_samples} without replacement: "
                f"only {positive} weights are above 0"
            )

    def draw(self, epoch: int, positions: Ints) -> Ints:
        key = derive_key(self.seed, epoch, 0x5E1)
        if self.replacement:
            return locate(self._totals, uniform(key, positions))
        if self._chosen is None or self._chosen[0] != epoch:
            self._chosen = None
            self._chosen = (epoch, self._choose(key))
        places = permute(positions, self.num_samples, derive_key(key, 1))
        return self._chosen[1][places].astype(np.int64)

    def identity(self) -> dict[str, Any]:
        return {
            "sampler": "weighted",
            "rows": self.num_rows,
            "num_samples": self.num_samples,
            "replacement": self.replacement,
            "seed": self.seed,
            "checksum": self._checksum,
        }

    def _choose(self, key: int) -> npt.NDArray[np.uint32] | Ints:
        """The chosen indices, ascending."""
        keys = np.empty(self.num_rows, dtype=np.float64)
        for start in range(0, self.num_rows, _PIECE):
            keys[start : start + _PIECE] = self._keys(key, start)
        keys.partition(self.num_samples - 1)
        bound = keys[self.num_samples - 1]
        del keys  # 8 bytes per weight; made once more below, piece by piece
        small = self.num_rows < 1 << 32
        chosen: npt.NDArray[np.uint32] | Ints = (
            np.empty(self.num_samples, dtype=np.uint32)
            if small
            else np.empty(self.num_samples, dtype=np.int64)
        )
        count = 0
        for start in range(0, self.num_rows, _PIECE):
            # keys that are equal at the bound could be one too many
            part = np.flatnonzero(self._keys(key, start) <= bound)[: self.num_samples - count]
            chosen[count : count + len(part)] = part + start
            count += len(part)
        return chosen

    def _keys(self, key: int, start: int) -> npt.NDArray[np.float64]:
        weights = self._weights[start : start + _PIECE].astype(np.float64)
        shares = uniform(key, np.arange(start, start + len(weights)))
        with np.errstate(divide="ignore"):
            # log1p of a share below 1 is finite; a share of 0 gives -inf, the least key
            keys: npt.NDArray[np.float64] = np.log(-np.log1p(-shares)) - np.log(weights)
        keys[weights == 0] = np.inf
        return keys
