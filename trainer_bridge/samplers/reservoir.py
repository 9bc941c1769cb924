"""A weighted sample without replacement from parts that do not stand in one place."""

from __future__ import annotations

from typing import Any

import numpy as np

from paimon_features.array_types import Ints
from paimon_features.errors import RequestError
from trainer_bridge.order.permutation import derive_key
from trainer_bridge.samplers.inputs import as_numbers
from trainer_bridge.samplers.weighted import exponential_keys


class WeightedReservoir:
    """The ``num_samples`` rows of least key of all that were shown; 16 bytes for each of them.

    Rows may come in any parts and order, on any number of ranks: merging is exact, and the
    sample is the one that ``WeightedRandomSampler(weights, num_samples, replacement=False,
    seed=seed)`` takes in that epoch from all weights at once.

    Examples
    --------
    >>> left, right = WeightedReservoir(2), WeightedReservoir(2)
    >>> left.update(np.array([0, 1]), [5.0, 0.0])
    >>> right.update(np.array([2, 3]), [0.0, 1.0])
    >>> left.merge(right).rows().tolist()
    [0, 3]
    """

    def __init__(self, num_samples: int, *, seed: int = 0, epoch: int = 0) -> None:
        self.num_samples, self.seed, self.epoch = num_samples, seed, epoch
        self._keys = np.empty(0, dtype=np.float64)
        self._rows: Ints = np.empty(0, dtype=np.int64)

    def update(self, rows: Ints, weights: Any) -> None:
        """Show rows (numbers in the whole data set, each once) and their weights."""
        known = as_numbers(weights, "weights")
        if len(rows) != len(known):
            raise RequestError(f"{len(rows)} rows with {len(known)} weights")
        keys = exponential_keys(derive_key(self.seed, self.epoch, 0x5E1), rows, known)
        possible = keys < np.inf
        self._keep(keys[possible], np.asarray(rows, dtype=np.int64)[possible])

    def merge(self, other: WeightedReservoir) -> WeightedReservoir:
        """This one and another of other rows as one; neither changes.

        Raises
        ------
        RequestError
            For another seed, epoch or size, which would be another sample.
        """
        own = (self.num_samples, self.seed, self.epoch)
        if own != (got := (other.num_samples, other.seed, other.epoch)):
            raise RequestError(
                f"a reservoir of (num_samples, seed, epoch) {got} does not merge with {own}"
            )
        merged = WeightedReservoir(self.num_samples, seed=self.seed, epoch=self.epoch)
        for part in (self, other):
            merged._keep(part._keys, part._rows)
        return merged

    def rows(self) -> Ints:
        """The rows of the sample, ascending; fewer where fewer had a weight above 0."""
        return np.sort(self._rows)

    def _keep(self, keys: Any, rows: Ints) -> None:
        keys, rows = np.concatenate([self._keys, keys]), np.concatenate([self._rows, rows])
        # equal keys: the smaller row, as in one pass over all of them
        best = np.lexsort((rows, keys))[: self.num_samples]
        self._keys, self._rows = keys[best], rows[best]
