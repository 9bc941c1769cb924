"""Weighted sampling without replacement from distributed parts."""

from __future__ import annotations

from typing import Any

import numpy as np

from paimon_features.core.errors import RequestError
from paimon_features.core.types.array_types import Ints
from trainer_bridge.order.permutation import derive_key
from trainer_bridge.samplers.inputs import as_numbers
from trainer_bridge.samplers.weighted import exponential_keys


class WeightedReservoir:
    """Keeps the ``num_samples`` rows of smallest key among all added; 16 bytes per row kept.

    Rows may be added in any parts and order, on any number of ranks: merging is exact, and the
    sample equals that of ``WeightedRandomSampler(weights, num_samples, replacement=False,
    seed=seed)`` for the same epoch over all weights.

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
        """Add rows (row numbers in the complete dataset, each once) with their weights."""
        numbers = as_numbers(weights, "weights")
        if len(rows) != len(numbers):
            raise RequestError(f"{len(rows)} rows with {len(numbers)} weights")
        keys = exponential_keys(derive_key(self.seed, self.epoch, 0x5E1), rows, numbers)
        possible = keys < np.inf
        self._keep(keys[possible], np.asarray(rows, dtype=np.int64)[possible])

    def merge(self, other: WeightedReservoir) -> WeightedReservoir:
        """Merge with a reservoir of other rows; neither is modified.

        Raises
        ------
        RequestError
            If seed, epoch or size differ.
        """
        identity = (self.num_samples, self.seed, self.epoch)
        if identity != (got := (other.num_samples, other.seed, other.epoch)):
            raise RequestError(
                f"a reservoir of (num_samples, seed, epoch) {got} cannot be merged with {identity}"
            )
        merged = WeightedReservoir(self.num_samples, seed=self.seed, epoch=self.epoch)
        for part in (self, other):
            merged._keep(part._keys, part._rows)
        return merged

    def rows(self) -> Ints:
        """Return the rows of the sample, ascending; fewer if fewer have a positive weight."""
        return np.sort(self._rows)

    def _keep(self, keys: Any, rows: Ints) -> None:
        keys, rows = np.concatenate([self._keys, keys]), np.concatenate([self._rows, rows])
        # equal keys: the smaller row number wins, as in a single pass
        best = np.lexsort((rows, keys))[: self.num_samples]
        self._keys, self._rows = keys[best], rows[best]
