"""What a reader reads, and where it is: everything about it but the reading itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Never

import numpy as np
import pyarrow as pa

from paimon_features.core.errors import ConfigurationError
from paimon_features.lake.catalog import Lake
from trainer_bridge.batches.forms import ArrowForm
from trainer_bridge.batches.numpy_form import dtypes_of, specs_of
from trainer_bridge.batches.tensor_columns import ColumnSpec
from trainer_bridge.batches.vocabulary import Vocabulary
from trainer_bridge.blocks.layout import Layout
from trainer_bridge.order.global_order import GlobalOrder
from trainer_bridge.order.quality import shuffle_quality
from trainer_bridge.order.rank_shard import RankShard
from trainer_bridge.order.reader_state import ReaderState
from trainer_bridge.readers.by_index import refuse_index, refuse_random_split
from trainer_bridge.readers.epoch_rows import RowSampler
from trainer_bridge.readers.opened_snapshot import OpenedSnapshot
from trainer_bridge.readers.read_plan import ReadPlan
from trainer_bridge.readers.state_checks import check_budget


class PositionedRead:
    """A plan, its opened snapshot, the sampler if there is one, and a position.

    The base class of :class:`trainer_bridge.SnapshotReader`, which moves the position.
    """

    def __init__(
        self,
        plan: ReadPlan,
        snapshot: OpenedSnapshot,
        state: ReaderState,
        sampler: RowSampler | None = None,
    ) -> None:
        self._plan = plan
        self._snapshot = snapshot
        self._sampler = sampler
        self._state = state

    # --- what is read ---

    @property
    def plan(self) -> ReadPlan:
        """What the reader was made with."""
        return self._plan

    @property
    def snapshot(self) -> OpenedSnapshot:
        """What it shares with all readers derived from it."""
        return self._snapshot

    @property
    def lake(self) -> Lake:
        return self._plan.lake

    @property
    def table(self) -> str:
        """The name of the table."""
        return self._origin.table

    @property
    def layout(self) -> Layout:
        """The blocks of the snapshot."""
        return self._snapshot.layout

    @property
    def vocabularies(self) -> Mapping[str, Vocabulary]:
        """The texts behind the codes, by column."""
        return self._snapshot.vocabularies

    @property
    def snapshot_id(self) -> int:
        """The pinned snapshot."""
        return self._origin.snapshot_id

    @property
    def num_rows(self) -> int:
        """Rows of the snapshot."""
        return self._origin.rows

    @property
    def rank(self) -> int:
        return self._plan.sharding.place[0]

    @property
    def world_size(self) -> int:
        return self._plan.sharding.place[1]

    @property
    def global_batch_size(self) -> int:
        """Rows of a batch over all ranks."""
        return self._plan.sharding.global_rows

    @property
    def has_rank(self) -> bool:
        """Whether ``rank`` or ``world_size`` was given, so that no adapter should choose them."""
        return self._plan.sharding.is_given

    @property
    def sampler(self) -> RowSampler | None:
        """What chooses the rows, if something does: see :meth:`with_sampler`."""
        return self._sampler

    @property
    def schema(self) -> pa.Schema:
        """The columns that are read, as the table has them."""
        return self._snapshot.schema

    @property
    def columns_read(self) -> list[str]:
        """The columns that are read of the table, in their order."""
        return list(self.schema.names)

    @property
    def output(self) -> str:
        """``"numpy"`` or ``"arrow"``: the form of batches."""
        return "arrow" if isinstance(self._snapshot.form, ArrowForm) else "numpy"

    def column_dtypes(self) -> dict[str, np.dtype[Any]]:
        """Return the dtype of each column of ``batch.columns``, without ``sample_weight``.

        Raises
        ------
        ConfigurationError
            For a reader with ``output="arrow"``.
        """
        return dtypes_of(self.column_specs())

    def column_specs(self) -> dict[str, ColumnSpec]:
        """Return the spec of each column of a batch, including lists, without ``sample_weight``.

        Raises
        ------
        ConfigurationError
            For a reader with ``output="arrow"``.
        """
        return specs_of(self._snapshot.form)

    @property
    def rows_per_batch(self) -> int | None:
        """Rows of this rank in every batch; None if the last may have fewer."""
        if self._plan.sharding.last == "short":
            return None
        return len(range(self.rank, self.global_batch_size, self.world_size))

    @property
    def weighted(self) -> bool:
        """Whether batches have ``sample_weight``: those of a sampler with loss weights."""
        first = np.zeros(1, dtype=np.int64)
        return self._sampler is not None and self._sampler.loss_weights(first) is not None

    def decoded_bytes(self) -> int:
        """About how many bytes this rank's rows of an epoch take, decoded."""
        return int(self.num_rows * self._snapshot.form.row_bytes / self.world_size)

    # --- position ---

    @property
    def epoch(self) -> int:
        """The epoch of the next batch."""
        return self._place[0]

    @property
    def place(self) -> tuple[int, int]:
        """Epoch and position (rows over all ranks) of the next batch."""
        return self._place

    def __len__(self) -> int:
        """Batches of a complete epoch: the same on every rank."""
        refuse_random_split("a reader")
        return self._shard(self.epoch).num_batches(0)

    def __getitem__(self, index: object) -> Never:
        """Raise ConfigurationError: a reader has no rows by index."""
        refuse_index("a reader")

    def remaining(self) -> int:
        """Batches from here to the end of the epoch: the same on every rank."""
        epoch, position = self._place
        return self._shard(epoch).num_batches(position)

    def state_dict(self) -> dict[str, Any]:
        """Return the reader's position: what was handed out, not what was fetched ahead. O(1)."""
        return self._state.to_dict()

    def state_after(
        self, num_batches: int, start: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return the state ``num_batches`` further on, at most at the end of the epoch.

        Counted from ``start``, a state of this reader, or from its position. For loops in
        which this object does not advance with the training: it does not move where worker
        processes read, and is ahead where something fetches in advance.
        """
        state = self.state_dict() if start is None else self._checked_state(start)
        epoch, position = state["epoch"], state["position"]
        if num_batches >= self._shard(epoch).num_batches(position):
            epoch, position = epoch + 1, 0
        else:
            position += num_batches * self.global_batch_size
        return {**state, "epoch": epoch, "position": position}

    # --- order ---

    def order(self, epoch: int) -> GlobalOrder:
        """Return the order of the rows in an epoch, without a sampler."""
        return self._snapshot.order(self._origin, epoch)

    @property
    def num_streams(self) -> int:
        """Canonical streams of the order; 1 without shuffling."""
        return self._origin.streams if self._origin.shuffle else 1

    def read_columns(self, columns: Sequence[str]) -> pa.Table:
        """Return columns of all rows of the snapshot by row number, for a sampler's labels or
        scores."""
        return self._snapshot.read_columns(columns)

    # --- for people ---

    def _repr_html_(self) -> str:
        from paimon_features.core.notebook.markup import card, facts, table

        layout = self.layout
        about = {
            "snapshot": self._shown_snapshot(),
            "rows": self.num_rows,
            "batches left": self.remaining(),
            "epoch": str(self.epoch),
            "rank": f"{self.rank} of {self.world_size}",
            "blocks": len(layout.blocks),
            "where": layout.where,
            "files left out": ", ".join(layout.left_out),
        }
        columns = table(
            ((field.name, str(field.type)) for field in self.schema), ("column", "type")
        )
        return card(f"SnapshotReader of {self.table}", facts(about), columns)

    def describe(self, quality: bool = False) -> dict[str, Any]:
        """Return what is read and at what cost, for people.

        ``reads_each_block_once`` says whether this world size assigns complete streams to each
        rank; otherwise every rank decodes the blocks of up to ``ranks_per_block``.
        ``quality=True`` adds how well the epoch is shuffled; that costs O(rows).
        """
        shard = self._shard(self.epoch)
        streams = shard.streams(self._place[1], self.num_streams)
        rank_streams = self.num_streams if streams is None else len(streams)
        layout = self.layout
        description = {
            "table": self.table,
            "snapshot_id": self.snapshot_id,
            "rows": self.num_rows,
            "blocks": len(layout.blocks),
            "streams": self.num_streams,
            "global_batch_size": self.global_batch_size,
            "batches": shard.num_batches(0),
            "ranks_per_block": rank_streams * self.world_size / self.num_streams,
            "reads_each_block_once": rank_streams * self.world_size == self.num_streams,
            "where": layout.where,
            "not_read": dict(layout.selection.counts),
            "files_left_out": dict(layout.left_out),
            "blocks_replaced": dict(layout.replaced),
        }
        return {**description, **(shuffle_quality(self.order(self.epoch)) if quality else {})}

    def _shown_snapshot(self) -> str:
        return str(self.snapshot_id)

    # --- private ---

    @property
    def _state(self) -> ReaderState:
        epoch, position = self._place
        return replace(self._origin, epoch=epoch, position=position)

    @_state.setter
    def _state(self, state: ReaderState) -> None:
        # The place alone changes with every batch: a pair of numbers, to be quick.
        self._origin, self._place = state, (state.epoch, state.position)

    def _shard(self, epoch: int) -> RankShard:
        sampler = self._sampler
        rows = self._origin.rows if sampler is None else sampler.epoch_size(epoch)
        return self._plan.sharding.shard(rows)

    def _check(self) -> None:
        """Raise ConfigurationError where not even one batch can be read."""
        shard = self._shard(self.epoch)
        if not shard.num_batches(0):
            raise ConfigurationError(
                f"table {self.table!r} has {shard.num_rows} rows, less than one global batch of "
                f"{self.global_batch_size}, and drop_last would leave them all out"
            )
        # a sampler needs no blocks together, and of other forms the size is not known beforehand
        if self._sampler is None and self._snapshot.form.size_known:
            position = self._place[1]
            check_budget(
                self._snapshot,
                self.order(self.epoch),
                min(position, shard.num_rows - 1),
                shard.streams(position, self.num_streams),
                self._plan.reading.byte_budget,
            )

    def _checked_state(self, state: Mapping[str, Any]) -> dict[str, Any]:
        return ReaderState.from_dict(dict(state)).to_dict()
