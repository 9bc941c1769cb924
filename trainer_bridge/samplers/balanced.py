"""Class-balanced batches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from paimon_features.core.errors import ConfigurationError
from paimon_features.core.types.array_types import Ints
from trainer_bridge.order.permutation import derive_key, keys_of, permute
from trainer_bridge.samplers.base import PIECE, AdvancedSampler
from trainer_bridge.samplers.groups import group_rows
from trainer_bridge.samplers.inputs import as_labels, checksum
from trainer_bridge.samplers.stratified import shuffled


class BalancedBatchSampler(AdvancedSampler):
    """Batches of ``batch_size`` rows with ``batch_size / classes`` of each class.

    If ``batch_size`` is not divisible by the number of classes, the classes take turns at one
    extra row, so that over as many batches as there are classes all have the same number. The
    rows of a class are drawn in a permutation, and in a new one when it is exhausted: rows of a
    rare class are drawn several times an epoch, those of a common one at most once and not all
    of them in one epoch. Within a batch the order is random.

    Batches are assigned to ranks round-robin, the same number to each: if the number of batches
    is not divisible by the world size, the last round is filled up by the same rule. ``len()``
    counts the batches of the epoch over all ranks.

    With ``SnapshotReader.with_sampler`` every *global* batch is balanced; the reader's global
    batch has to be a multiple of ``batch_size``.

    Parameters
    ----------
    labels
        The class of each row, as in :class:`StratifiedSampler`.
    batch_size
        Rows per batch.
    num_batches
        Batches per epoch over all ranks; by default enough for the number of rows.
    seed, rank, world_size
        See :class:`~trainer_bridge.samplers.AdvancedSampler`.

    Raises
    ------
    ConfigurationError
        If a label is null, or a batch would have no rows.

    Examples
    --------
    >>> labels = [0] * 97 + [1] * 3
    >>> sampler = BalancedBatchSampler(labels, batch_size=10)
    >>> len(sampler), {sum(labels[i] for i in batch) for batch in sampler}
    (10, {5})
    """

    def __init__(
        self,
        labels: Any,
        batch_size: int,
        *,
        num_batches: int | None = None,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        if batch_size < 1:
            raise ConfigurationError(f"batch_size={batch_size}: expected at least 1")
        encoded = as_labels(labels)
        rows = len(encoded.codes)
        self.num_batches = int(max(rows // batch_size, 1) if num_batches is None else num_batches)
        super().__init__(
            rows, self.num_batches * batch_size, seed=seed, rank=rank, world_size=world_size
        )
        self.batch_size = self.batch_multiple = int(batch_size)
        self.classes = encoded.classes
        self._codes = encoded.codes
        self._checksum = checksum(encoded.codes)
        self._groups = group_rows(encoded.codes, len(encoded.classes))

    def draw(self, epoch: int, positions: Ints) -> Ints:
        key = derive_key(self.seed, epoch, 0xBA1)
        many = len(self.classes)
        quota, extra = divmod(self.batch_size, many)
        batches, offsets = np.divmod(positions, self.batch_size)
        places = permute(offsets, self.batch_size, keys_of(derive_key(key, 2), batches))
        # Positions: `each` rounds of all classes, then the classes whose turn it is.
        turns = batches * extra
        classes = np.where(places < quota * many, places, turns + places - quota * many) % many
        had = (turns + many - 1 - classes) // many  # extra rows of the class in earlier batches
        numbers = batches * quota + had + places // many
        return shuffled(self._groups, classes, numbers, key)

    def unbiased_weights(self, epoch: int, indices: Ints) -> npt.NDArray[np.float64]:
        many = len(self.classes)
        quota, extra = divmod(self.batch_size, many)
        turns = self.num_batches * extra
        drawn = self.num_batches * quota + (turns + many - 1 - np.arange(many)) // many
        with np.errstate(divide="ignore"):  # a class that occurs in no batch of the epoch
            weights = self._groups.sizes / self.num_rows * (self.num_samples / drawn)
        result: npt.NDArray[np.float64] = weights[self._codes[indices]]
        return result

    def identity(self) -> dict[str, Any]:
        return {
            "sampler": "balanced",
            "rows": self.num_rows,
            "batch_size": self.batch_size,
            "num_batches": self.num_batches,
            "seed": self.seed,
            "checksum": self._checksum,
        }

    def __len__(self) -> int:
        return self.num_batches

    @property
    def rank_len(self) -> int:
        """Number of batches of this rank in an epoch; the same on every rank."""
        return -(-self.num_batches // self.world_size)

    # A torch batch sampler yields lists, where a sampler yields integers.
    def _next_items(self, end: int) -> Iterable[tuple[int, list[int]]] | None:
        if self._position >= self.num_samples:
            return None
        world, size = self.world_size, self.batch_size
        # continue from this position, whichever rank saved it
        first = self._position // size
        rounds = min(self._items_from(self.epoch, self._position), max(PIECE // size, 1))
        batches = first + self.rank + world * np.arange(rounds, dtype=np.int64)
        positions = (batches[:, None] * size + np.arange(size)).reshape(-1)
        drawn = self.draw(self.epoch, positions).reshape(-1, size)
        following = (batches - self.rank + world) * size
        return zip(following.tolist(), drawn.tolist(), strict=True)

    def _items_from(self, epoch: int, position: int) -> int:
        return -(-(self.num_batches - position // self.batch_size) // self.world_size)

    def _step(self) -> int:
        return self.batch_size * self.world_size
