"""Which positions of the global order a rank reads, batch by batch.

A global batch is ``global_batch_size`` consecutive positions. Rank r of W takes offsets
``r, r + W, r + 2W, ...`` of each, so where W does not divide the batch the first ranks
get one row more, and where W divides both the batch and the canonical streams a rank
always reads the same complete streams. Nothing here knows what a row is.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import Literal

import numpy as np

from paimon_features.core.errors import ConfigurationError
from paimon_features.core.types.array_types import Ints

Last = Literal["drop", "pad", "short"]


@dataclass(frozen=True, slots=True)
class RankShard:
    """One rank's share of every global batch.

    ``last`` says how the rows that do not fill a global batch are handled: ``drop``
    leaves them out, ``pad`` fills up with the first rows of the epoch, ``short`` makes a
    smaller batch (with at least one row for each rank). Every rank gets the same number
    of batches in each case.

    >>> shard = RankShard(num_rows=10, global_batch_size=4, rank=1, world_size=3, last="short")
    >>> [shard.positions(start).tolist() for start in (0, 4, 8)]
    [[1], [5], [9]]
    >>> shard.num_batches(0), shard.num_padding(8)
    (3, 0)
    """

    num_rows: int
    global_batch_size: int
    rank: int = 0
    world_size: int = 1
    last: Last = "drop"

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size:
            raise ConfigurationError(
                f"rank {self.rank} of world size {self.world_size}: expected 0 <= rank < world_size"
            )
        if self.global_batch_size < self.world_size:
            raise ConfigurationError(
                f"a global batch of {self.global_batch_size} rows has less than one row for "
                f"each of {self.world_size} ranks: use at least {self.world_size}"
            )
        if self.last not in ("drop", "pad", "short"):
            raise ConfigurationError(f"last={self.last!r}: expected 'drop', 'pad' or 'short'")

    def num_batches(self, position: int) -> int:
        """Batches from ``position`` (in rows) to the end of the epoch, the same on all ranks."""
        full, tail = divmod(max(self.num_rows - position, 0), self.global_batch_size)
        return full + (1 if tail and self.last != "drop" else 0)

    def size(self, start: int) -> int:
        """Return the rows of the global batch that begins at ``start``, padding included."""
        if self.last == "short":
            left = self.num_rows - start
            return max(min(left, self.global_batch_size), self.world_size)
        return self.global_batch_size

    def positions(self, start: int) -> Ints:
        """Return this rank's positions in the global batch that begins at ``start``.

        Positions at or beyond ``num_rows`` are padding: they repeat ``p % num_rows``.
        """
        return np.arange(start + self.rank, start + self.size(start), self.world_size)

    def num_padding(self, start: int) -> int:
        """Return how many of :meth:`positions` are padding; they are the last ones."""
        if start + self.global_batch_size <= self.num_rows:
            return 0
        return int(np.count_nonzero(self.positions(start) >= self.num_rows))

    def streams(self, position: int, num_streams: int) -> Ints | None:
        """Return the canonical streams this rank reads from ``position`` on; None: all of them."""
        common = gcd(num_streams, self.world_size)
        if common == 1 or self.global_batch_size % self.world_size:
            return None
        first = (position + self.rank) % common
        return np.arange(first, num_streams, common, dtype=np.int64)
