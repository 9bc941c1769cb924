"""``SnapshotReader``: one rank's batches of a pinned table snapshot, in the global order."""

from __future__ import annotations

import copy
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from typing import Any, Never, Self, Unpack

import numpy as np
import pyarrow as pa

from paimon_features.core.errors import ConfigurationError
from paimon_features.core.process.closeable import Closeable
from paimon_features.lake.catalog import Lake
from paimon_features.lake.metadata.consumers import delete_consumer
from trainer_bridge.batches.forms import ArrowForm, Batch
from trainer_bridge.batches.numpy_form import dtypes_of, specs_of
from trainer_bridge.batches.tensor_columns import ColumnSpec
from trainer_bridge.batches.vocabulary import Vocabulary
from trainer_bridge.blocks.layout import Layout
from trainer_bridge.order.global_order import GlobalOrder
from trainer_bridge.order.quality import shuffle_quality
from trainer_bridge.order.rank_shard import RankShard
from trainer_bridge.order.reader_state import ReaderState
from trainer_bridge.readers.autotune import Autotune, Choices, most_threads
from trainer_bridge.readers.block_store import BlockStore
from trainer_bridge.readers.by_index import refuse_index, refuse_random_split
from trainer_bridge.readers.epoch_rows import EpochRows, OrderedRows, RowSampler, SampledRows
from trainer_bridge.readers.loops import Loop, Loops
from trainer_bridge.readers.loss_weights import with_loss_weights
from trainer_bridge.readers.opened_snapshot import OpenedSnapshot
from trainer_bridge.readers.read_plan import ReaderKeywords, ReadPlan
from trainer_bridge.readers.read_session import CHUNK_ROWS, ReadSession
from trainer_bridge.readers.read_stats import ReadStats
from trainer_bridge.readers.state_checks import check_state, sampler_of


class SnapshotReader(Closeable):
    """Batches of a table at one snapshot: sharded, shuffled, resumable.

    Iterating continues from the reader's position to the end of the epoch; the reader is then
    at the start of the next one. The batches are a function of the seed, the epoch, the snapshot
    and the position alone (``docs/how-to/training/loading.md``); every rank gets the same number
    of batches.

    Parameters
    ----------
    lake, table
        The table. Of a table with a primary key each key is one row, as its merge engine has it.
    snapshot_id, tag, as_of_ms
        Which snapshot: by its number, by the tag that keeps it, or the newest that was
        committed at or before a time (UTC ms); the newest at the time of the call by default.
    columns
        Which columns, in which order; all by default. They are those that the table has
        today, whichever snapshot is read: a column that is younger than a file is null there.
    where
        A condition in the expression language: rows for which it is not true are left out, and
        have no row number. Part of the order.
    batch_size
        Rows per rank and batch; the global batch is ``batch_size * world_size``.
    global_batch_size
        Rows of all ranks together, instead of ``batch_size``: the batches are then the same
        for every world size.
    rank, world_size
        This process among those that train together; alone (0 of 1) by default.
    seed, epoch, shuffle
        Key of the order. ``shuffle=False`` yields the rows by partition, bucket, commit and row.
    drop_last, pad_last
        How the rows that do not fill a global batch are handled: dropped, filled up with
        the first rows of the epoch (``Batch.num_padding`` counts them), or by default a
        smaller batch.
    canonical_streams
        Maximum number of streams of the order (V); the largest divisor of it that fits the table
        is taken, so world sizes that divide it read each block once.
    block_rows
        Row groups smaller than this are read together, up to 256 MiB. Part of the order.
    open_bytes
        Maximum bytes of files (at least 8 per row) of the blocks that are open at once over
        all ranks; bounds the streams. Part of the order.
    output
        ``"numpy"`` (one contiguous array per dtype) or ``"arrow"``.
    fill, masks, item_masks, float_dtype, shapes, scaled
        See :class:`trainer_bridge.batches.numpy_form.NumpyForm`; only with ``output="numpy"``.
    codes
        Columns of texts that become int32 codes: by names, for codes of all texts in the
        snapshot in the order of their bytes (which are read once, when the reader is made), or
        ``{"city": Vocabulary.of([...])}``, or short a list of texts, for declared ones.
    threads
        Decoding threads; 0 does everything in the calling thread, when a batch is requested;
        ``"auto"`` finds threads, chunk size and prefetch depth while it reads
        (:mod:`trainer_bridge.readers.autotune`).
    byte_budget
        Maximum bytes of decoded rows, including those in flight.
    consumer
        Name of the consumer that protects the snapshot from expiry until :meth:`close`.
    on_bad_file
        ``"error"``, or ``"skip"``: a file that is missing or broken when the snapshot is
        opened is left out (with those that contain other rows of its keys), and the rows of one
        that breaks later are replaced by others. :meth:`describe` and ``stats`` report both.
    cache
        Folder for the results of merging keys and evaluating ``where``; next to the lake's
        tables by default. It can be deleted at any time.
    prepare
        What a :class:`trainer_bridge.preprocess.PreprocessPipeline` does to the blocks;
        ``output`` and its options are then its own.

    Attributes
    ----------
    stats
        What was read so far.

    Raises
    ------
    ConfigurationError
        For arguments that do not fit together, and if the open blocks alone exceed
        the budget.
    TableError, SnapshotExpiredError, UnknownNameError
        If the table, snapshot or a column does not exist or cannot be read.
    RequestError
        For a column that has no tensor form, or a null that nothing was declared for.
    """

    stats: ReadStats

    def __init__(self, lake: Lake, table: str, **keywords: Unpack[ReaderKeywords]) -> None:
        plan = ReadPlan.of(lake, table, **keywords)
        snapshot = plan.open()
        self._set_up(plan, snapshot, plan.start(snapshot))
        self._check()

    @classmethod
    def of(
        cls,
        plan: ReadPlan,
        snapshot: OpenedSnapshot | None = None,
        *,
        position: int = 0,
        previous: SnapshotReader | None = None,
    ) -> SnapshotReader:
        """Return a reader of a plan.

        Parameters
        ----------
        snapshot
            What the plan has opened already; opened now by default.
        position
            Where it begins, in rows of the epoch over all ranks.
        previous
            A reader whose statistics and tuning are continued.
        """
        snapshot = plan.open() if snapshot is None else snapshot
        reader = SnapshotReader.__new__(SnapshotReader)
        state = replace(plan.start(snapshot), position=position)
        reader._set_up(plan, snapshot, state)
        if previous is not None:
            reader.stats = reader._store.stats = previous.stats
            reader._tuner = previous._tuner
        reader._check()
        return reader

    def _set_up(
        self,
        plan: ReadPlan,
        snapshot: OpenedSnapshot,
        state: ReaderState,
        sampler: RowSampler | None = None,
    ) -> None:
        self._plan = plan
        self._sampler = sampler
        self._state = state
        self._loops: Loops[Batch] = Loops(f"reader of table {state.table!r}")
        self.stats = ReadStats()
        self._tuner: Autotune | None = None
        threads = plan.reading.threads
        if threads == "auto":
            threads = most_threads(plan.lake.storage.is_remote)
            self._tuner = Autotune(Choices(threads, 4 * CHUNK_ROWS, 8))
        self._threads: int = threads
        self._use(snapshot)

    def _use(self, snapshot: OpenedSnapshot) -> None:
        self._snapshot = snapshot
        budget = self._plan.reading.byte_budget
        self._store = BlockStore(
            snapshot.layout, snapshot.schema, snapshot.form, budget, self.stats
        )

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

    # --- position and state ---

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

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch; does nothing if the reader is in that epoch already."""
        if epoch != self.epoch:
            self._loops.end("moved by set_epoch()")
            self._place = (epoch, 0)

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

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to where a state was taken: on any rank, for any world size and batch size.

        Seed (also the sampler's), epoch, snapshot, shuffle and streams are those of the state,
        whatever this reader was made with. O(1) for the same snapshot, else its manifests are
        read; none of the rows before the position is.

        Raises
        ------
        RequestError
            For the state of another table or sampler, one that was damaged, or if the snapshot
            has other rows now.
        SnapshotExpiredError
            If its snapshot has expired.
        ConfigurationError
            If the blocks that have to be open there exceed the budget.
        """
        found = ReaderState.from_dict(dict(state))
        sampler = sampler_of(self._sampler, found)
        check_state(found, self.table, self.layout.where, sampler)
        self._loops.end("moved by load_state_dict()")
        mine, snapshot = self._origin, self._snapshot
        same = all(
            getattr(found, name) == getattr(mine, name)
            for name in ("snapshot_id", "block_rows", "files", "rows")
        )
        if not same:
            self._use(self._plan.open(found, previous=snapshot))
        self._sampler, self._state = sampler, found
        self._check()

    # --- derived readers ---

    def with_sampler(self, sampler: RowSampler) -> SnapshotReader:
        """Return a reader of the rows that a sampler draws, in its order, epoch after epoch.

        The sampler's indices are row numbers of this snapshot, drawn over all ranks
        (its own rank does not matter: the reader shards). It is taken as it is now: later
        changes of its scores need a new reader. A ``consumer`` stays with this
        reader: close it last. If the sampler has loss weights, each
        batch carries them as the float32 column ``sample_weight``. Draws go all over the
        table: one that exceeds the byte budget is decoded again chunk by chunk.

        Raises
        ------
        ConfigurationError
            For a sampler of another number of rows, or whose batches do not divide the reader's.
        """
        if sampler.num_rows != self.num_rows:
            raise ConfigurationError(
                f"the sampler draws from {sampler.num_rows} rows, table {self.table!r} has "
                f"{self.num_rows} at snapshot {self.snapshot_id}"
            )
        if self.global_batch_size % sampler.batch_multiple:
            raise ConfigurationError(
                f"the sampler makes batches of {sampler.batch_multiple} rows, the reader global "
                f"batches of {self.global_batch_size}: make that the same, or a multiple"
            )
        sampler = copy.copy(sampler)
        other = self._derived(self._plan.without_consumer())
        other._sampler = sampler
        other._state = replace(self._state, position=0, sampler=sampler.identity())
        other._check()
        return other

    def with_rank(self, rank: int, world_size: int) -> Self:
        """Return a reader for one rank, at the same position; a ``batch_size`` stays that of a
        rank.

        Raises
        ------
        ConfigurationError
            As the constructor does.
        """
        sharding = self._plan.sharding.with_rank(rank, world_size)
        other = self._derived(replace(self._plan, sharding=sharding))
        other._check()
        return other

    def __copy__(self) -> Self:
        """Return a reader at the same position of the same opened snapshot, with blocks and
        statistics of its own; the ``consumer`` stays with the original."""
        return self._derived(self._plan.without_consumer())

    def __reduce__(self) -> tuple[Any, ...]:
        """For worker processes: the opened snapshot and a position, nothing that is running."""
        plan = self._plan.without_consumer()
        return _restored, (plan, self._snapshot, self._state, self._sampler)

    def _derived(self, plan: ReadPlan) -> Self:
        other = type(self).__new__(type(self))
        other._set_up(plan, self._snapshot, self._state, self._sampler)
        return other

    # --- reading ---

    def __iter__(self) -> Iterator[Batch]:
        return self.iterate()

    def iterate(self, worker: int = 0, num_workers: int = 1, skip: int = 0) -> Loop[Batch]:
        """Return the batches from here on, or every ``num_workers``-th of them from ``worker`` on.

        ``skip`` leaves out the first of those, without reading them: a worker that is
        resumed had them already. The reader advances with each batch and is at the
        start of the next epoch after the worker's last. One iteration runs at a time: a new one
        ends the previous one, whose next step raises RequestError.
        """
        return self._loops.start(self._batches(worker, num_workers, skip))

    def order(self, epoch: int) -> GlobalOrder:
        """Return the order of the rows in an epoch, without a sampler."""
        return self._snapshot.order(self._origin, epoch)

    def read_columns(self, columns: Sequence[str]) -> pa.Table:
        """Return columns of all rows of the snapshot by row number, for a sampler's labels or
        scores."""
        return self._snapshot.read_columns(columns)

    def close(self) -> None:
        """End what is running, free memory, delete the consumer. Can be repeated."""
        self._loops.end()
        self._store.clear()
        if (consumer := self._plan.reading.consumer) is not None:
            delete_consumer(self.lake, self.table, consumer)

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
        ``quality=True`` adds how well the epoch is shuffled; that costs O(rows). With
        ``threads="auto"``, ``autotune`` has the current choices and their history.
        """
        streams = self._shard(self.epoch).streams(self._place[1], self.num_streams)
        own = self.num_streams if streams is None else len(streams)
        layout = self.layout
        result = {
            "table": self.table,
            "snapshot_id": self.snapshot_id,
            "rows": self.num_rows,
            "blocks": len(layout.blocks),
            "streams": self.num_streams,
            "global_batch_size": self.global_batch_size,
            "batches": len(self),
            "ranks_per_block": own * self.world_size / self.num_streams,
            "reads_each_block_once": own * self.world_size == self.num_streams,
            "where": layout.where,
            "not_read": dict(layout.selection.counts),
            "files_left_out": dict(layout.left_out),
            "blocks_replaced": dict(layout.replaced),
        }
        if self._tuner is not None:
            chosen = {**asdict(self._tuner.choices), "history": list(self._tuner.history)}
            result["autotune"] = chosen
        return {**result, **(shuffle_quality(self.order(self.epoch)) if quality else {})}

    # --- private ---

    def _shown_snapshot(self) -> str:
        return str(self.snapshot_id)

    @property
    def _state(self) -> ReaderState:
        epoch, position = self._place
        return replace(self._origin, epoch=epoch, position=position)

    @_state.setter
    def _state(self, state: ReaderState) -> None:
        # The place alone changes with every batch: a pair of numbers, to be quick.
        self._origin, self._place = state, (state.epoch, state.position)

    @property
    def num_streams(self) -> int:
        """Canonical streams of the order; 1 without shuffling."""
        return self._origin.streams if self._origin.shuffle else 1

    def _shard(self, epoch: int) -> RankShard:
        sampler = self._sampler
        rows = self._origin.rows if sampler is None else sampler.epoch_size(epoch)
        return self._plan.sharding.shard(rows)

    def _row_source(self, shard: RankShard) -> EpochRows:
        """Return the rows of the current epoch."""
        if self._sampler is not None:
            return SampledRows(self._sampler, self.epoch, shard.num_rows)
        streams = shard.streams(self._place[1], self.num_streams)
        return OrderedRows(self.order(self.epoch), shard, streams, self._threads)

    def _checked_state(self, state: Mapping[str, Any]) -> dict[str, Any]:
        return ReaderState.from_dict(dict(state)).to_dict()

    def _check(self) -> None:
        """Raise ConfigurationError where not even one batch can be read."""
        shard = self._shard(self.epoch)
        if not shard.num_batches(0):
            raise ConfigurationError(
                f"table {self.table!r} has {shard.num_rows} rows, less than one global batch of "
                f"{self.global_batch_size}, and drop_last would leave them all out"
            )
        form = self._snapshot.form
        if self._sampler is not None or not form.size_known:
            return  # neither needs its blocks together, or knows their size beforehand
        own = shard.streams(self._place[1], self.num_streams)
        at = min(self._place[1], shard.num_rows - 1)
        opened = self.order(self.epoch).open_blocks(at, at + 1, own)
        rows = sum(self.layout.blocks[number].rows for number in opened)
        needed, budget = int(rows * form.row_bytes), self._plan.reading.byte_budget
        if needed > budget:
            raise ConfigurationError(
                f"table {self.table!r}: {len(opened)} blocks have to be open at once, which takes "
                f"{needed:,} bytes; byte_budget is {budget:,}. Raise it, read fewer "
                "columns, or lower open_bytes (another order), or write smaller row groups"
            )

    def _batches(self, worker: int, num_workers: int, skip: int) -> Generator[Batch, None, None]:
        epoch, begin = self._place
        shard = self._shard(epoch)
        step, next_epoch = shard.global_batch_size, (epoch + 1, 0)
        starts = range(begin, begin + shard.num_batches(begin) * step, step)
        starts = starts[worker::num_workers][skip:]
        if not starts:
            self._place = next_epoch
            return
        sampler = self._sampler
        keep_views = sampler is None and not self._origin.shuffle
        session = ReadSession(
            self._store,
            self._row_source(shard),
            shard,
            epoch,
            self._threads,
            self._tuner,
            keep_views,
        )
        with closing(session.batches(starts)) as batches:
            for start, batch in batches:
                if sampler is not None:
                    batch = with_loss_weights(batch, sampler)
                # What is handed out counts as read, so the place moves before.
                self._place = (epoch, start + step) if start != starts[-1] else next_epoch
                self.stats.rows_delivered += len(batch)
                yield batch


def _restored(
    plan: ReadPlan, snapshot: OpenedSnapshot, state: ReaderState, sampler: RowSampler | None
) -> SnapshotReader:
    reader = SnapshotReader.__new__(SnapshotReader)
    reader._set_up(plan, snapshot, state, sampler)
    return reader
