"""Base class of samplers: a pure function from (epoch, position) to an index, and a position."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from paimon_features.core.errors import ConfigurationError, RequestError
from paimon_features.core.types.array_types import Ints
from trainer_bridge.order.reader_state import check_numbers, other_seed
from trainer_bridge.order.wrappers import refuse_sharded_again
from trainer_bridge.samplers.drawn_ahead import DrawnAhead, drawn_by_caller

PIECE = 65_536
"""Number of draws or rows processed at a time."""
VERSION = 1


class AdvancedSampler(ABC):
    """Yields indices ``0 <= index < num_rows`` of a dataset, for one of several ranks.

    All ranks together draw ``num_samples`` indices per epoch; rank r of W yields those at
    positions ``r, r + W, ...``, so ranks differ by at most one (a ``SnapshotReader`` shards
    evenly). ``len()`` counts the indices of all ranks, :attr:`rank_len` those of this rank.

    Iterating continues from the current position to the end of the epoch, and then advances to
    the start of the next one; a loop whose sampler another loop has moved meanwhile raises
    RequestError. The position is that of the batches that a loop has had, also where a
    ``DataLoader`` draws ahead for its worker processes. The class follows the protocol of a
    torch ``Sampler`` without importing torch;
    ``trainer_bridge.adapters.torch.as_sampler`` converts it to an instance.
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
        self._ahead: DrawnAhead | None = None

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
        """Return where dealing ends that begins at a position.

        Beyond the epoch it starts over in it.
        """
        return self.epoch_size(epoch)

    @property
    def position(self) -> int:
        """Draws of the epoch so far, over all ranks that are in step."""
        return self._position

    def __iter__(self) -> Iterator[Any]:
        refuse_sharded_again("sampler", self.rank, self.world_size)
        self.epoch, self._position = self._delivered()
        self._ahead = drawn_by_caller(self)
        epoch, end = self.epoch, self._end(self.epoch, self._position)
        while self.epoch == epoch and (items := self._next_items(end)) is not None:
            for position, item in items:
                # What is yielded counts as read, so the position advances first.
                self._position = position
                yield item
                if self._position != position or self.epoch != epoch:
                    self._check_ended(epoch, position)
                    return
        if self.epoch == epoch:
            self._end_epoch()

    def _next_items(self, end: int) -> Iterable[tuple[int, Any]] | None:
        """Return some of the next items, each with the position after it; None at the end."""
        first, world, size = (
            self._position + self.rank,
            self.world_size,
            self.epoch_size(self.epoch),
        )
        if first >= end:
            return None
        stop = min(end, self._position + PIECE * world)
        positions = np.arange(first, stop, world, dtype=np.int64)
        drawn = self.draw(self.epoch, positions % size if stop > size else positions)
        return zip((positions - self.rank + world).tolist(), drawn.tolist(), strict=True)

    def _check_ended(self, epoch: int, position: int) -> None:
        """Raise RequestError if a loop that was moved had not come to the end of its epoch."""
        if position < self.epoch_size(epoch):
            raise RequestError(
                f"{type(self).__name__} was used by another loop, or moved, before this loop had "
                "come to its end, and has one position: leave the loop first, or give the other "
                "one a sampler of its own (copy.copy(sampler))"
            )

    def _items_from(self, epoch: int, position: int) -> int:
        """Return how many items this rank yields from a position to the end of the epoch."""
        return len(range(position + self.rank, self._end(epoch, position), self.world_size))

    def _step(self) -> int:
        """Return the draws by which an item advances the position."""
        return self.world_size

    def _delivered(self) -> tuple[int, int]:
        """Return epoch and position of what loops have had, of all that was drawn."""
        ahead = self._ahead
        if ahead is None or not ahead.tasks:
            return self.epoch, self._position
        if ahead.identity != self.identity():
            raise RequestError(
                f"a loop with worker processes over {type(self).__name__} was left early in epoch "
                f"{ahead.epoch}, and the scores were replaced since: say where to continue by "
                "set_epoch() or load_state_dict()"
            )
        ended = self.epoch != ahead.epoch
        if ended:
            drawn = self._items_from(ahead.epoch, ahead.start)
        else:
            drawn = (self._position - ahead.start) // self._step()
        return ahead.epoch, ahead.start + ahead.delivered(drawn, ended) * self._step()

    def _end_epoch(self) -> None:
        """Move to the next epoch, where all of this one has been drawn, perhaps ahead."""
        ahead = self._ahead
        self._ahead = None
        self.set_epoch(self.epoch + 1)
        self._ahead = ahead

    def set_epoch(self, epoch: int) -> None:
        """Move to the start of an epoch; no effect within that epoch."""
        if self._ahead is not None:
            try:
                self.epoch, self._position = self._delivered()
            except RequestError:  # it is not known, and not needed
                self._position, self.epoch = 0, self._ahead.epoch
            self._ahead = None
        if epoch != self.epoch:
            self._enter_epoch()
            self.epoch, self._position = epoch, 0

    def _enter_epoch(self) -> None:  # noqa: B027 (most samplers have nothing to do)
        """Do what waits for the start of an epoch."""

    def state_dict(self) -> dict[str, Any]:
        """Return the position as small JSON; O(1), equal on all ranks that are in step."""
        if self._position and self._position >= self.epoch_size(self.epoch):
            self._end_epoch()
        # torchdata stores what is drawn with what is under way, and gets that
        drawn = self._ahead is None or self._ahead.asks()
        epoch, position = (self.epoch, self._position) if drawn else self._delivered()
        return {
            "version": VERSION,
            "epoch": epoch,
            "position": position,
            "identity": self.identity(),
        }

    def __getstate__(self) -> dict[str, Any]:
        """For copies, which have a position of their own."""
        epoch, position = self._delivered()
        return {**vars(self), "epoch": epoch, "_position": position, "_ahead": None}

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
        self._ahead = None

    def reseed(self, seed: int) -> None:
        """Take another seed, that of a state; a sampler that keeps what follows from the seed
        computes it again."""
        self.seed = seed
