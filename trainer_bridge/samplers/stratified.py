"""Every class in its share, or as many of each."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from paimon_features.array_types import Ints
from paimon_features.errors import ConfigurationError
from trainer_bridge.order.permutation import derive_key, permute
from trainer_bridge.samplers.base import AdvancedSampler
from trainer_bridge.samplers.groups import Groups, group_rows
from trainer_bridge.samplers.inputs import as_labels, checksum
from trainer_bridge.samplers.interleave import LIMIT, Interleave
from trainer_bridge.samplers.keys import keys_of


class StratifiedSampler(AdvancedSampler):
    """All classes, spread evenly over the order, each in its share or as many of each.

    - ``proportional`` (the default): all rows, each once. In any window of the order a class
      has its share of the rows, less than 2 off where there are two classes and at most 4
      otherwise; from the start of the epoch on it is less than 1 off (at most 2 otherwise).
      See :mod:`trainer_bridge.samplers.interleave`.
    - ``num_samples_per_class``: that many rows of each class, in equal shares in the same
      sense. A class that has fewer gives each row once before it repeats one.
    - neither (``proportional=False``): as many of each class as the smallest one has.

    Which rows of a class come when is a new permutation in each epoch. 5 bytes per row for
    up to 256 classes, besides the labels themselves.

    Parameters
    ----------
    labels
        The class of each row: integers, strings, booleans or anything with an order; list,
        NumPy, Arrow, pandas, Polars.
    num_samples_per_class
        Draws per epoch and class, over all ranks.
    seed, rank, world_size
        See :class:`~trainer_bridge.samplers.AdvancedSampler`.

    Raises
    ------
    ConfigurationError
        For labels that are null, or more than 2^31 draws.

    Examples
    --------
    >>> labels = ["ham"] * 6 + ["spam"] * 2
    >>> order = [labels[i] for i in StratifiedSampler(labels)]
    >>> [order[:4].count("spam"), order[4:].count("spam")]
    [1, 1]
    >>> sampler = StratifiedSampler(labels, num_samples_per_class=3)
    >>> sorted(labels[i] for i in sampler)
    ['ham', 'ham', 'ham', 'spam', 'spam', 'spam']
    """

    def __init__(
        self,
        labels: Any,
        num_samples_per_class: int | None = None,
        proportional: bool = True,
        *,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        if num_samples_per_class is not None and num_samples_per_class < 1:
            raise ConfigurationError(
                f"num_samples_per_class={num_samples_per_class}: expected at least 1"
            )
        found = as_labels(labels)
        self.classes = found.classes
        self._codes = found.codes
        self._checksum = checksum(found.codes)
        self._groups = group_rows(found.codes, len(found.classes))
        sizes = self._groups.sizes
        if num_samples_per_class is not None:
            counts = np.full(len(sizes), num_samples_per_class, dtype=np.int64)
        elif proportional:
            counts = sizes
        else:
            counts = np.full(len(sizes), sizes.min(), dtype=np.int64)
        self.num_samples_per_class, self.proportional = num_samples_per_class, proportional
        self._counts = counts
        super().__init__(
            len(found.codes), int(counts.sum()), seed=seed, rank=rank, world_size=world_size
        )
        if self.num_samples > LIMIT:
            raise ConfigurationError(
                f"{self.num_samples} draws of {len(sizes)} classes: at most {LIMIT} can be spread"
            )
        self._interleave = Interleave(counts)

    def draw(self, epoch: int, positions: Ints) -> Ints:
        key = derive_key(self.seed, epoch, 0x57A)
        classes, numbers = self._interleave.locate(positions, key)
        return shuffled(self._groups, classes, numbers, key)

    def unbiased_weights(self, epoch: int, indices: Ints) -> npt.NDArray[np.float64]:
        share = self._groups.sizes / self.num_rows
        result: npt.NDArray[np.float64] = (share / (self._counts / self.num_samples))[
            self._codes[indices]
        ]
        return result

    def identity(self) -> dict[str, Any]:
        return {
            "sampler": "stratified",
            "rows": self.num_rows,
            "num_samples": self.num_samples,
            "proportional": self.num_samples_per_class is None and self.proportional,
            "seed": self.seed,
            "checksum": self._checksum,
        }


def shuffled(groups: Groups, classes: Ints, numbers: Ints, key: int) -> Ints:
    """The row that is the ``numbers[i]``-th to come of class ``classes[i]``.

    Each class is gone through in a permutation, and when it is used up in another one.
    """
    sizes = groups.sizes[classes]
    cycles, places = np.divmod(numbers, sizes)
    keys = keys_of(derive_key(key, 1), classes, cycles)
    return groups.take(classes, permute(places, sizes, keys))
