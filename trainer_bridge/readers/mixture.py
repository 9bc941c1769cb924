"""Which row of which reader comes at each position of a mixture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd, lcm
from typing import Any

import numpy as np
import numpy.typing as npt

from paimon_features.core.errors import ConfigurationError
from paimon_features.core.types.array_types import Array, Ints
from trainer_bridge.order.global_order import GlobalOrder
from trainer_bridge.order.source_interleave import SourceInterleave
from trainer_bridge.readers.chunks import ChunkRequest
from trainer_bridge.readers.epoch_rows import RowSampler
from trainer_bridge.readers.snapshot_reader import SnapshotReader
from trainer_bridge.samplers.poisson import PoissonSampler


class Mixture:
    """The rows of several readers by position; to a mixed reader it is the sampler.

    Rows are numbered through the sources: those of source i begin at ``first_rows[i]``.
    """

    def __init__(
        self, sources: Sequence[SnapshotReader], shares: tuple[int, ...], num_samples: int | None
    ) -> None:
        self.sources = [SourceRows(reader) for reader in sources]
        rows = [source.length for source in self.sources]
        # fewer classes if a round would be longer than a small table
        whole = lcm(*(source.streams for source in self.sources))
        fitting = [
            d
            for d in range(1, whole + 1)
            if whole % d == 0 and all(d * a <= n for a, n in zip(shares, rows, strict=True))
        ]
        self.interleave = SourceInterleave(shares, max(fitting, default=1))
        per_round = [self.interleave.classes * share for share in shares]
        rounds = min(n // count for n, count in zip(rows, per_round, strict=True))
        self.num_samples = num_samples or max(rounds, 1) * self.interleave.round_rows
        tables = [source.reader.num_rows for source in self.sources]
        self.first_rows: Ints = np.concatenate([[0], np.cumsum(tables)]).astype(np.int64)
        self.num_rows = int(self.first_rows[-1])
        self.batch_multiple = 1
        blocks = [len(source.reader.layout.blocks) for source in self.sources]
        self._first_blocks: Ints = np.concatenate([[0], np.cumsum(blocks)]).astype(np.int64)

    def epoch_size(self, epoch: int) -> int:
        """Return the rows of an epoch: the same number in each."""
        return self.num_samples

    def draw(self, epoch: int, positions: Ints) -> Ints:
        """Row numbers at positions of an epoch: a pure function."""
        numbers = np.empty(len(positions), dtype=np.int64)
        for number, source, where, own_positions in self._split(epoch, positions):
            numbers[where] = source.rows(own_positions) + self.first_rows[number]
        return numbers

    def loss_weights(self, indices: Ints) -> npt.NDArray[np.float32] | None:
        """Weights by the sources' samplers, 1 for rows of one without; None if none has any."""
        home = np.searchsorted(self.first_rows, indices, side="right") - 1
        weights = np.ones(len(indices), dtype=np.float32)
        some = False
        for number, source in enumerate(self.sources):
            mask = home == number
            weights_of_source = source.loss_weights(indices[mask] - self.first_rows[number])
            if weights_of_source is not None:
                weights[mask], some = weights_of_source, True
        return weights if some else None

    def identity(self) -> dict[str, Any]:
        """Return what the order depends on in addition to the sources, as small JSON."""
        return {
            "shares": list(self.interleave.shares),
            "classes": self.interleave.classes,
            "rows": self.num_samples,
        }

    def open_blocks(self, epoch: int, request: ChunkRequest, step: int) -> Ints:
        """Return the blocks that a request touches, and those that will be touched again after it.

        All positions of the rank are equal modulo ``step``.
        """
        opened = []
        positions = request.positions[request.positions < self.num_samples]
        for number, source, _, own_positions in self._split(epoch, positions):
            common = gcd(step, self.interleave.classes)
            opened.append(source.open_blocks(own_positions, common) + self._first_blocks[number])
        return np.concatenate(opened)

    def _split(self, epoch: int, positions: Ints) -> list[tuple[int, SourceRows, Ints, Ints]]:
        """For each source that occurs: its number, itself, where it occurs, its positions there."""
        home, source_positions = self.interleave.split(positions + epoch * self.num_samples)
        parts = []
        for number, source in enumerate(self.sources):
            where = np.flatnonzero(home == number)
            if len(where):
                parts.append((number, source, where, source_positions[where]))
        return parts


class SourceRows:
    """The rows of one reader: its epochs, one after the other, as one sequence of positions."""

    def __init__(self, reader: SnapshotReader) -> None:
        self.reader = reader
        self.sampler: RowSampler | None = reader.sampler
        if self.sampler is not None:
            _check_sampler(self.sampler)
        self.length = reader.num_rows if self.sampler is None else self.sampler.epoch_size(0)
        self.streams = 1 if self.sampler is not None else reader.num_streams
        self._orders: dict[int, GlobalOrder] = {}

    def rows(self, positions: Ints) -> Ints:
        epochs, within = np.divmod(positions, self.length)
        numbers = np.empty(len(positions), dtype=np.int64)
        for epoch in np.unique(epochs).tolist():
            part = epochs == epoch
            numbers[part] = self._rows(epoch, within[part])
        return numbers

    def loss_weights(self, rows: Ints) -> Array | None:
        return None if self.sampler is None else self.sampler.loss_weights(rows)

    def open_blocks(self, positions: Ints, common: int) -> Ints:
        epochs, within = np.divmod(positions, self.length)
        opened = []
        for epoch in np.unique(epochs).tolist():
            own_positions = within[epochs == epoch]
            if self.sampler is not None:
                firsts = np.array([block.first_row for block in self.reader.layout.blocks])
                home = np.searchsorted(firsts, self._rows(epoch, own_positions), side="right") - 1
                opened.append(np.unique(home))
                continue
            step = gcd(common, self.streams)
            streams = np.arange(int(own_positions[0]) % step, self.streams, step, dtype=np.int64)
            low, high = int(own_positions.min()), int(own_positions.max())
            opened.append(self._order(epoch).open_blocks(low, high + 1, streams))
        return np.concatenate(opened)

    def _rows(self, epoch: int, within: Ints) -> Ints:
        if self.sampler is not None:
            return self.sampler.draw(epoch, within)
        return self._order(epoch).rows(within)

    def _order(self, epoch: int) -> GlobalOrder:
        if epoch not in self._orders:
            while len(self._orders) > 1:  # the one that ends and the one that begins
                del self._orders[min(self._orders)]
            self._orders[epoch] = self.reader.order(epoch)
        return self._orders[epoch]


def _check_sampler(sampler: RowSampler) -> None:
    """Raise ConfigurationError for a sampler whose draws cannot be mixed with those of others."""
    if isinstance(sampler, PoissonSampler):
        raise ConfigurationError(
            "a reader with a PoissonSampler has another number of rows in each epoch, and a "
            "mixture counts them: draw its rows by WeightedRandomSampler"
        )
    if sampler.batch_multiple > 1:
        raise ConfigurationError(
            f"a reader with a {type(sampler).__name__} makes complete batches, which a mixture "
            "would take apart: draw its rows by a sampler of rows, or balance by the mixture's "
            "weights"
        )


@dataclass(frozen=True)
class MixedRows:
    """The rows of an epoch of a mixture; all positions of the rank are equal modulo ``step``."""

    mixture: Mixture
    epoch: int
    step: int
    plans_blocks: bool = True
    opens_touched: bool = False

    @property
    def num_positions(self) -> int:
        return self.mixture.num_samples

    def rows(self, positions: Ints) -> Ints:
        return self.mixture.draw(self.epoch, positions)

    def open_blocks(self, request: ChunkRequest) -> Ints:
        return self.mixture.open_blocks(self.epoch, request, self.step)

    def next_blocks(self, request: ChunkRequest) -> list[int]:
        return []
