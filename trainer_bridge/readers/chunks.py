"""Chunks: consecutive batches of one rank that are gathered at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from paimon_features.core.types.array_types import Ints
from trainer_bridge.blocks.layout import Block
from trainer_bridge.order.rank_shard import RankShard


@dataclass(frozen=True, slots=True)
class ChunkRequest:
    """Consecutive batches of this rank: where each starts, its size, and all positions."""

    starts: tuple[int, ...]
    sizes: tuple[int, ...]
    positions: Ints


@dataclass(slots=True)
class Chunk:
    """The rows of a request; ``viewed`` is the block that they are a view of, if they are one."""

    request: ChunkRequest
    rows: Any
    row_numbers: Ints
    nbytes: int
    viewed: int | None = None


def chunk_requests(
    shard: RankShard, starts: range, batches_per_chunk: Callable[[], int], cuts: Iterable[int] = ()
) -> Iterator[ChunkRequest]:
    """Yield requests for the batches at ``starts``, in order.

    Parameters
    ----------
    batches_per_chunk
        Called for each request, just before it is made.
    cuts
        Indices of batches before which a new chunk begins in any case.
    """
    low = 0
    for end in sorted({*cuts, len(starts)}):
        while low < end:
            high = min(low + batches_per_chunk(), end)
            part = starts[low:high]
            positions = [shard.positions(start) for start in part]
            yield ChunkRequest(tuple(part), tuple(map(len, positions)), np.concatenate(positions))
            low = high


def block_cuts(blocks: Sequence[Block], starts: range) -> Iterator[int]:
    """Cuts before and after each batch that begins in one block and ends in another.

    Without shuffling, a chunk within one block is a view of it; so batches across the end of
    a block get chunks of their own.
    """
    for block in blocks[1:]:
        number = (block.first_row - starts.start - 1) // starts.step
        if 0 <= number < len(starts):
            yield from (number, number + 1)
