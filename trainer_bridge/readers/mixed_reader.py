"""Several readers as one, in given shares: hard examples and fresh data, tables of two sources.

The blocks of all of them are those of one reader, and a
:class:`~trainer_bridge.readers.mixture.Mixture` decides which row comes when, as a sampler does.
What the shares mean for the order is described in ``trainer_bridge.order.source_interleave``.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np
import pyarrow as pa

from paimon_features.core.errors import ConfigurationError, RequestError
from paimon_features.core.types.array_types import Ints
from trainer_bridge.order.rank_shard import RankShard
from trainer_bridge.order.reader_state import check_numbers, check_position
from trainer_bridge.order.source_interleave import shares_of
from trainer_bridge.readers.epoch_rows import EpochRows, RowSampler
from trainer_bridge.readers.mixed_snapshot import check_same_columns, mixed_snapshot
from trainer_bridge.readers.mixture import MixedRows, Mixture
from trainer_bridge.readers.read_plan import ReadPlan
from trainer_bridge.readers.snapshot_reader import SnapshotReader

VERSION = 1


def mix(
    readers: Sequence[SnapshotReader], weights: Sequence[float], rows_per_epoch: int | None = None
) -> MixedReader:
    """Return one reader of the rows of several, in the shares given by the weights.

    Every batch has about these shares (within a few rows), on every rank. Each reader is read
    through its own epochs, one after the other, each of them once and, to a round, in its own
    order; an epoch of the mixture continues where the previous one ended, so
    every row of a reader occurs equally often in the long run.

    Parameters
    ----------
    readers
        At least two, with the same columns. Batch size, rank, threads, budget and the handling of
        the last rows are those of the first one; each keeps its seed, snapshot, shuffle and
        sampler, but not its position. A reader may come from ``with_sampler``.
    weights
        One number > 0 per reader. They are rounded to thousandths of their sum.
    rows_per_epoch
        Rows of an epoch of the mixture, over all ranks. By default as many complete rounds as the
        reader that ends first has rows for: then no row occurs twice in epoch 0. A round
        is the sum of the shares times the classes (``trainer_bridge.order.source_interleave``).

    Raises
    ------
    ConfigurationError
        For readers that do not fit together, or weights that are not shares.
    """
    return MixedReader(readers, weights, rows_per_epoch)


class MixedReader(SnapshotReader):
    """The reader that :func:`mix` makes: like any other, of the rows of several.

    ``batch.row_numbers`` count through the readers; :meth:`source_of` returns whose rows they are.
    If one of the readers has a sampler with loss weights, batches carry ``sample_weight``, 1
    for the rows of the others.
    """

    def __init__(
        self,
        readers: Sequence[SnapshotReader],
        weights: Sequence[float],
        rows_per_epoch: int | None = None,
    ) -> None:
        if len(readers) < 2 or len(weights) != len(readers):
            raise ConfigurationError(
                f"{len(readers)} readers and {len(weights)} weights: expected at least two "
                "readers, and a weight for each"
            )
        if rows_per_epoch is not None and rows_per_epoch < 1:
            raise ConfigurationError(f"rows_per_epoch={rows_per_epoch}: expected at least 1")
        for reader in readers:
            if isinstance(reader, MixedReader):
                raise ConfigurationError("a mixture of mixtures: mix all their readers in one")
            check_same_columns(readers[0].snapshot, reader.snapshot)
        self._lent = tuple(readers)
        # how to read is taken from the first one
        plan = readers[0].plan.without_consumer()
        place = (readers[0].epoch, 0)
        self._compose(plan, readers, shares_of(weights), rows_per_epoch, place)
        self._check()

    def _compose(
        self,
        plan: ReadPlan,
        readers: Sequence[SnapshotReader],
        shares: tuple[int, ...],
        rows_per_epoch: int | None,
        place: tuple[int, int],
    ) -> None:
        """Set up a mixture of copies of the readers."""
        self._shares, self._rows_per_epoch = shares, rows_per_epoch
        self._sources = [copy.copy(reader) for reader in readers]
        self._mixture = Mixture(self._sources, shares, rows_per_epoch)
        snapshot = mixed_snapshot([source.snapshot for source in self._sources])
        state = replace(
            self._sources[0]._state,
            table=snapshot.table,
            rows=snapshot.layout.num_rows,
            epoch=place[0],
            position=place[1],
        )
        self._set_up(plan, snapshot, state, self._mixture)

    def _derived(self, plan: ReadPlan) -> Self:
        other = type(self).__new__(type(self))
        other._lent = ()
        other._compose(plan, self._sources, self._shares, self._rows_per_epoch, self._place)
        return other

    def __reduce__(self) -> tuple[Any, ...]:
        plan = self._plan.without_consumer()
        arguments = (plan, self._sources, self._shares, self._rows_per_epoch, self._place)
        return _restored, arguments

    def source_of(self, row_numbers: Ints) -> tuple[Ints, Ints]:
        """Return each row's reader, by number, and its row number in that reader's snapshot."""
        first_rows = self._mixture.first_rows
        source = np.searchsorted(first_rows, row_numbers, side="right") - 1
        return source, row_numbers - first_rows[source]

    def state_dict(self) -> dict[str, Any]:
        """Return the position, and the seeds and snapshots of all readers. O(1)."""
        epoch, position = self._place
        return {
            "version": VERSION,
            "mixture": self._mixture.identity(),
            "epoch": epoch,
            "position": position,
            "sources": [
                {**source.state_dict(), "epoch": 0, "position": 0} for source in self._sources
            ],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to where a state was taken, on any rank of any world size.

        Seeds and snapshots are those of the state; weights and samplers have to be the same.

        Raises
        ------
        RequestError
            For the state of something else.
        SnapshotExpiredError
            If one of its snapshots has expired.
        """
        state = self._checked_state(state)
        if len(state["sources"]) != len(self._sources):
            raise RequestError(
                f"a state of {len(state['sources'])} readers; this mixture has {len(self._sources)}"
            )
        self._loops.end("moved by load_state_dict()")
        sources = [copy.copy(source) for source in self._sources]
        for source, source_state in zip(sources, state["sources"], strict=True):
            source.load_state_dict(source_state)
        mixture = Mixture(sources, self._shares, self._rows_per_epoch)
        if state["mixture"] != mixture.identity():
            raise RequestError(
                f"the state is of a mixture of {state['mixture']}, this one is of "
                f"{mixture.identity()}: make it with the same weights and "
                "rows_per_epoch, or start a new epoch"
            )
        position = int(state["position"])
        check_position(position, mixture.num_samples, "a state of a mixture")
        before, self._sources = self._sources, sources
        self._mixture = self._sampler = mixture
        if [source.layout.files for source in before] != [s.layout.files for s in sources]:
            self._use(mixed_snapshot([source.snapshot for source in sources]))
            self._origin = replace(self._origin, rows=self.layout.num_rows)
        self._place = (int(state["epoch"]), position)

    def _checked_state(self, state: Mapping[str, Any]) -> dict[str, Any]:
        if state.get("version") != VERSION or "mixture" not in state:
            raise RequestError(
                f"not a state of a mixture of version {VERSION}: it has {', '.join(sorted(state))}"
            )
        check_numbers(state, {"epoch": 0, "position": 0}, "a state of a mixture")
        return dict(state)

    def _row_source(self, shard: RankShard) -> EpochRows:
        divides = shard.global_batch_size % shard.world_size == 0
        return MixedRows(self._mixture, self.epoch, shard.world_size if divides else 1)

    def with_sampler(self, sampler: RowSampler) -> SnapshotReader:
        raise ConfigurationError("a mixture takes samplers by its readers: reader.with_sampler")

    def read_columns(self, columns: Sequence[str]) -> pa.Table:
        """Return columns of all sources by row number; see ``SnapshotReader.read_columns``."""
        return pa.concat_tables([source.read_columns(columns) for source in self._sources])

    def close(self) -> None:
        super().close()
        for reader in self._lent:
            reader.close()

    def describe(self, quality: bool = False) -> dict[str, Any]:
        """Return what is read and in which shares; see ``SnapshotReader.describe``."""
        return {
            "table": self.table,
            "rows": self.num_rows,
            "blocks": len(self.layout.blocks),
            "rows_per_epoch": self._mixture.num_samples,
            "round_rows": self._mixture.interleave.round_rows,
            "shares": [share / self._mixture.interleave.slots for share in self._shares],
            "global_batch_size": self.global_batch_size,
            "batches": len(self),
            "sources": [source.describe(quality) for source in self._sources],
        }

    def _shown_snapshot(self) -> str:
        return ", ".join(f"{source.table}: {source.snapshot_id}" for source in self._sources)


def _restored(
    plan: ReadPlan,
    sources: Sequence[SnapshotReader],
    shares: tuple[int, ...],
    rows_per_epoch: int | None,
    place: tuple[int, int],
) -> MixedReader:
    reader = MixedReader.__new__(MixedReader)
    reader._lent = ()
    reader._compose(plan, sources, shares, rows_per_epoch, place)
    return reader
