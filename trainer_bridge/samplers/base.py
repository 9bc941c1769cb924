"""Base class of samplers: a pure function from (epoch, position) to an index, and a position."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from paimon_features.array_types import Ints
from paimon_features.errors import ConfigurationError, RequestError
from trainer_bridge.order.reader_state import check_numbers, other_seed
from trainer_bridge.order.wrappers import refuse_sharded_again

PIECE = 65_536
"""Number of draws or rows processed at a time."""
VERSION = 1


class AdvancedSampler(ABC):
    """Yields indices ``0 <= index < num_rows`` of a dataset, for one of several ranks.

    All ranks together draw ``num_samples`` indices per epoch; rank r of W yields those at
    positions ``r, r + W, ...``, so ranks differ by at most one (a ``SnapshotReader`` shards
    evenly). ``len()`` counts the indices of all ranks, :attr:`rank_len` those of this rank.

    Iterating continues from the current position to the end of the epoch, and then advances to
    the start of the next one. The class follows the protocol of a torch ``Sampler`` without
    importing torch; ``trainer_bridge.adapters.torch.as_sampler`` converts it to an instance.
    """

    batch_multiple: int = 1
    """The sampler's guarantees per batch need a global batch size that is a multiple of this."""

    def __init__(
        self, num_rows: int, num_samples: int, *, seed: int = 0, rank: int = 0, world_size: int = 1
    ) -> None:
        if not 0 <= rank < world_size:
            raise ConfigurationError(
                f"rank {rank} of world size {world_size}: expected 0 <= rank < world_size"
            )
        if num_rows < 1 or num_samples < 1 or num_samples != int(num_samples):
            raise ConfigurationError(
                f"{num_samples} samples of {num_rows} rows: expected integers of at least 1"
            )
        # plain integers: NumPy's are not JSON-serializable
        self.num_rows, self.num_samples = int(num_rows), int(num_samples)
        self.seed, self.rank, self.world_size = int(seed), int(rank), int(world_size)
        self.epoch = 0
        self._position = 0

    @abstractmethod
    def draw(self, epoch: int, positions: Ints) -> Ints:
        """Return the indices at global positions ``0 <= position < epoch_size(epoch)``; pure."""

    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """Return all that the draws depend on besides epoch and position, as small JSON."""

    def epoch_size(self, epoch: int) -> int:
        """Return the draws of an epoch over all ranks; ``num_samples`` unless it is random."""
        return self.num_samples

    def loss_weights(self, indices: Ints) -> npt.NDArray[np.float64] | None:
        """Return the importance weights of indices; None if the sampler has none."""
        return None

    def unbiased_weights(self, epoch: int, indices: Ints) -> npt.NDArray[np.float64]:
        """Return the factor for each drawn loss that makes the mean over all rows unbiased.

        The expected sum of the weighted losses of an epoch is ``num_samples`` times the mean
        loss of all rows, whatever the probabilities of the draws (Horvitz and Thompson).

        Raises
        ------
        RequestError
            If some rows have probability 0, which no weights can correct.
        """
        raise RequestError(f"{type(self).__name__} has no weights that make the mean unbiased")

    def __len__(self) -> int:
        return self.epoch_size(self.epoch)

    @property
    def rank_len(self) -> int:
        """Number of indices that this rank yields in a complete epoch."""
        return len(range(self.rank, self._end(self.epoch, 0), self.world_size))

    def _end(self, epoch: int, position: int) -> int:
        """Where dealing ends that begins at a position; beyond the epoch it starts over in it."""
        return self.epoch_size(epoch)

    def __iter__(self) -> Iterator[int]:
        refuse_sharded_again("sampler", self.rank, self.world_size)
        epoch, world = self.epoch, self.world_size
        size, end = self.epoch_size(epoch), self._end(epoch, self._position)
        while self.epoch == epoch and (first := self._position + self.rank) < end:
            stop = min(end, self._position + PIECE * world)
            positions = np.arange(first, stop, world, dtype=np.int64)
            drawn = self.draw(epoch, positions % size if stop > size else positions)
            for position, index in zip(positions.tolist(), drawn.tolist(), strict=True):
                # What is yielded counts as read, so the position advances first.
                self._position = position - self.rank + world
                yield index
        if self.epoch == epoch:
            self.set_epoch(epoch + 1)

    def set_epoch(self, epoch: int) -> None:
        """Move to the start of an epoch; no effect within that epoch."""
        if epoch != self.epoch:
            self.epoch, self._position = epoch, 0

    def state_dict(self) -> dict[str, Any]:
        """Return the position as small JSON; O(1), equal on all ranks that are in step."""
        if self._position and self._position >= self.epoch_size(self.epoch):
            self.set_epoch(self.epoch + 1)
        return {
            "version": VERSION,
            "epoch": self.epoch,
            "position": self._position,
            "identity": self.identity(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a position saved on any rank of any world size; the seed is that of the state.

        Raises
        ------
        RequestError
            If it was saved by a sampler with other weights, scores or arguments.
        """
        seed = other_seed(state.get("identity"), self.identity())
        if state.get("version") != VERSION or seed is None:
            raise RequestError(
                f"the state does not fit this sampler: it is of version {state.get('version')!r}, "
                f"{state.get('identity')}; expected version {VERSION}, {self.identity()}"
            )
        check_numbers(state, {"epoch": 0, "position": 0}, "a sampler's state")
        if seed != self.seed:
            self.reseed(seed)
        self.epoch, self._position = int(state["epoch"]), int(state["position"])

    def reseed(self, seed: int) -> None:
        """Take another seed, that of a state; a sampler that keeps what follows from the seed
        computes it again."""
        self.seed = seed
