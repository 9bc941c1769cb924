"""Which rows come at the positions of an epoch, and which blocks that takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from paimon_features.core.types.array_types import Array, Ints
from trainer_bridge.order.global_order import GlobalOrder
from trainer_bridge.order.rank_shard import RankShard
from trainer_bridge.readers.chunks import ChunkRequest


class RowSampler(Protocol):
    """What ``with_sampler`` needs; every sampler of ``trainer_bridge.samplers`` has it."""

    num_rows: int
    batch_multiple: int

    def epoch_size(self, epoch: int) -> int:
        """Return how many rows are drawn in an epoch."""

    def draw(self, epoch: int, positions: Ints) -> Ints:
        """Row numbers at global positions of an epoch: a pure function."""

    def loss_weights(self, indices: Ints) -> Array | None:
        """Weight of each row's loss, or None."""

    def identity(self) -> dict[str, Any]:
        """Return what the draws depend on, as small JSON."""


class EpochRows(Protocol):
    """The rows of one epoch by position, for one rank.

    Positions from ``num_positions`` on are padding and stand for ``p % num_positions``.
    """

    @property
    def num_positions(self) -> int: ...

    @property
    def plans_blocks(self) -> bool:
        """Whether :meth:`open_blocks` knows the blocks of a request before its rows are read."""

    def rows(self, positions: Ints) -> Ints:
        """Return the row numbers at positions."""

    @property
    def opens_touched(self) -> bool:
        """Whether a request reads rows of each block that :meth:`open_blocks` names for it."""

    def open_blocks(self, request: ChunkRequest) -> Ints:
        """Return the blocks that a request touches, and those that will be touched again after
        it."""

    def next_blocks(self, request: ChunkRequest) -> list[int]:
        """Return the blocks that are needed after those, to be decoded ahead while there is
        room."""


@dataclass(frozen=True)
class OrderedRows:
    """All rows, in the global order.

    ``streams`` are the canonical streams that this rank reads (None: all). As many blocks as
    there are streams and ``ahead`` more are decoded before they are needed; none if it is 0.
    """

    order: GlobalOrder
    shard: RankShard
    streams: Ints | None
    ahead: int
    plans_blocks: bool = True

    @property
    def num_positions(self) -> int:
        return self.shard.num_rows

    @property
    def opens_touched(self) -> bool:
        # every position of these streams is read by this rank
        return self.streams is not None or self.shard.world_size == 1

    def rows(self, positions: Ints) -> Ints:
        return self.order.rows(positions)

    def open_blocks(self, request: ChunkRequest) -> Ints:
        return self.order.open_blocks(request.starts[0], self._end(request), self.streams)

    def next_blocks(self, request: ChunkRequest) -> list[int]:
        if not self.ahead:
            return []
        streams = self.order.streams if self.streams is None else len(self.streams)
        return self.order.next_blocks(self._end(request) - 1, streams + self.ahead, self.streams)

    def _end(self, request: ChunkRequest) -> int:
        return min(request.starts[-1] + self.shard.global_batch_size, self.shard.num_rows)


@dataclass(frozen=True)
class SampledRows:
    """The rows that a sampler draws in an epoch."""

    sampler: RowSampler
    epoch: int
    num_positions: int
    plans_blocks: bool = False
    opens_touched: bool = False

    def rows(self, positions: Ints) -> Ints:
        return self.sampler.draw(self.epoch, positions)

    def open_blocks(self, request: ChunkRequest) -> Ints:
        return np.empty(0, dtype=np.int64)

    def next_blocks(self, request: ChunkRequest) -> list[int]:
        return []
