"""``SnapshotReader``: one rank's batches of a pinned table snapshot, in the global order."""

from __future__ import annotations

import copy
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, replace
from typing import Any, Self, Unpack

from paimon_features.core.process.closeable import Closeable
from paimon_features.lake.catalog import Lake
from paimon_features.lake.metadata.consumers import delete_consumer
from trainer_bridge.batches.forms import Batch
from trainer_bridge.order.rank_shard import RankShard
from trainer_bridge.order.reader_state import ReaderState
from trainer_bridge.readers.decoding_resources import DecodingResources
from trainer_bridge.readers.epoch_rows import EpochRows, OrderedRows, RowSampler, SampledRows
from trainer_bridge.readers.loops import Loop, Loops
from trainer_bridge.readers.loss_weights import with_loss_weights
from trainer_bridge.readers.opened_snapshot import OpenedSnapshot
from trainer_bridge.readers.positioned_read import PositionedRead
from trainer_bridge.readers.read_plan import ReaderKeywords, ReadPlan
from trainer_bridge.readers.read_session import ReadSession
from trainer_bridge.readers.read_stats import ReadStats
from trainer_bridge.readers.state_checks import check_sampler, check_state, sampler_of


class SnapshotReader(PositionedRead, Closeable):
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
            reader._resources.continue_from(previous._resources)
        reader._check()
        return reader

    def _set_up(
        self,
        plan: ReadPlan,
        snapshot: OpenedSnapshot,
        state: ReaderState,
        sampler: RowSampler | None = None,
    ) -> None:
        PositionedRead.__init__(self, plan, snapshot, state, sampler)
        self._resources = DecodingResources(plan, snapshot)
        self._loops: Loops[Batch] = Loops(f"reader of table {state.table!r}")

    @property
    def stats(self) -> ReadStats:
        """What was read so far."""
        return self._resources.stats

    # --- position and state ---

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch; does nothing if the reader is in that epoch already."""
        if epoch != self.epoch:
            self._loops.end("moved by set_epoch()")
            self._place = (epoch, 0)

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
        target = ReaderState.from_dict(dict(state))
        sampler = sampler_of(self._sampler, target)
        check_state(target, self.table, self.layout.where, sampler)
        self._loops.end("moved by load_state_dict()")
        is_same_snapshot = all(
            getattr(target, name) == getattr(self._origin, name)
            for name in ("snapshot_id", "block_rows", "files", "rows")
        )
        if not is_same_snapshot:
            self._use(self._plan.open(target, previous=self._snapshot))
        self._sampler, self._state = sampler, target
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
        check_sampler(sampler, self)
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

    def close(self) -> None:
        """End what is running, free memory, delete the consumer. Can be repeated."""
        self._loops.end()
        self._resources.store.clear()
        if (consumer := self._plan.reading.consumer) is not None:
            delete_consumer(self.lake, self.table, consumer)

    def describe(self, quality: bool = False) -> dict[str, Any]:
        """Return what is read and at what cost; see :meth:`PositionedRead.describe`.

        With ``threads="auto"``, ``autotune`` has the current choices and their history.
        """
        description, tuner = super().describe(quality), self._resources.tuner
        if tuner is not None:
            description["autotune"] = {**asdict(tuner.choices), "history": list(tuner.history)}
        return description

    # --- private ---

    def _use(self, snapshot: OpenedSnapshot) -> None:
        """Read this snapshot from now on."""
        self._snapshot = snapshot
        self._resources.use(snapshot)

    def _row_source(self, shard: RankShard) -> EpochRows:
        """Return the rows of the current epoch."""
        if self._sampler is not None:
            return SampledRows(self._sampler, self.epoch, shard.num_rows)
        streams = shard.streams(self._place[1], self.num_streams)
        return OrderedRows(self.order(self.epoch), shard, streams, self._resources.threads)

    def _batches(self, worker: int, num_workers: int, skip: int) -> Generator[Batch, None, None]:
        epoch, begin = self._place
        shard = self._shard(epoch)
        step, next_epoch = shard.global_batch_size, (epoch + 1, 0)
        starts = range(begin, begin + shard.num_batches(begin) * step, step)
        starts = starts[worker::num_workers][skip:]
        if not starts:
            self._place = next_epoch
            return
        sampler, resources = self._sampler, self._resources
        session = ReadSession(
            resources.store,
            self._row_source(shard),
            shard,
            epoch,
            resources.threads,
            resources.tuner,
            keep_views=sampler is None and not self._origin.shuffle,
        )
        with closing(session.batches(starts)) as batches:
            for start, batch in batches:
                if sampler is not None:
                    batch = with_loss_weights(batch, sampler)
                # What is handed out counts as read, so the place moves before.
                self._place = (epoch, start + step) if start != starts[-1] else next_epoch
                resources.stats.rows_delivered += len(batch)
                yield batch


def _restored(
    plan: ReadPlan, snapshot: OpenedSnapshot, state: ReaderState, sampler: RowSampler | None
) -> SnapshotReader:
    reader = SnapshotReader.__new__(SnapshotReader)
    reader._set_up(plan, snapshot, state, sampler)
    return reader
