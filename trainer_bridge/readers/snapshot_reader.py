"""``SnapshotReader``: one rank's batches of a pinned table snapshot, in the global order."""

from __future__ import annotations

import copy
import functools
import weakref
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal, Protocol, Self

import numpy as np
import pyarrow as pa

from paimon_features.array_types import Ints
from paimon_features.errors import ConfigurationError, RequestError, TableError
from paimon_features.tables.catalog import Lake
from paimon_features.tables.consumers import delete_consumer, register_consumer
from trainer_bridge.batches.columns import ColumnSpec
from trainer_bridge.batches.forms import ArrowForm, Batch, Form, NumpyForm
from trainer_bridge.batches.vocabulary import Vocabulary
from trainer_bridge.blocks.snapshot_blocks import Layout, OnBadFile, read_layout, select_schema
from trainer_bridge.order.global_order import GlobalOrder, choose_streams, shuffle_quality
from trainer_bridge.order.shard import Last, Shard
from trainer_bridge.order.state import ReaderState, check_position, is_whole
from trainer_bridge.readers.autotune import Autotune, Choices, most_threads
from trainer_bridge.readers.pins import pinned_snapshot
from trainer_bridge.readers.read_ahead import Assembler, BlockStore, Prefetcher, ReadStats, Work

SAMPLE_WEIGHT = "sample_weight"
_CHUNK_ROWS = 65_536


class RowSampler(Protocol):
    """What ``with_sampler`` needs; every sampler of ``trainer_bridge.samplers`` has it."""

    num_rows: int
    batch_multiple: int

    def epoch_size(self, epoch: int) -> int:
        """How many rows are drawn in an epoch."""

    def draw(self, epoch: int, positions: Ints) -> Ints:
        """Row numbers at global positions of an epoch: a pure function."""

    def loss_weights(self, indices: Ints) -> np.ndarray[Any, Any] | None:
        """Weight of each row's loss, or None."""

    def identity(self) -> dict[str, Any]:
        """What the draws depend on, as small JSON."""


class Preparation(Protocol):
    """What is done to blocks as they are decoded; ``trainer_bridge.preprocess`` makes them."""

    @property
    def form(self) -> Form:
        """How finished rows are held."""

    def layout(self, layout: Layout) -> Layout:
        """The blocks of a snapshot as they are after it."""


class SnapshotReader:
    """Batches of a table at one snapshot: sharded, shuffled, resumable.

    Iterating goes on from where the reader stands to the end of the epoch; the reader then
    stands at the start of the next one. What comes is a function of the seed, the epoch,
    the snapshot and the position alone (``docs/how-to/training/loading.md``);
    every rank gets the same number of batches.

    Parameters
    ----------
    lake, table
        The table. Of one with a primary key each key comes once, as its merge engine has it.
    snapshot_id, tag, as_of_ms
        Which snapshot: by its number, by the tag that keeps it, or the newest that was
        committed at or before a time (UTC ms); the newest at the time of the call by default.
    columns
        Which columns, in which order; all by default. They are those that the table has
        today, whatever snapshot is read: a column that is younger than a file is null there.
    where
        A condition in the expression language (``docs/reference/expressions.md``): rows for
        which it is not true do not come, and have no row number. Part of the order.
    batch_size
        Rows per rank and batch; the global batch is ``batch_size * world_size``.
    global_batch_size
        Rows of all ranks together, instead of ``batch_size``: the same batches then come
        for every world size.
    rank, world_size
        This process among those that train together; alone (0 of 1) by default.
    seed, epoch, shuffle
        Key of the order. ``shuffle=False`` gives the rows by file and row.
    drop_last, pad_last
        What becomes of the rows that do not fill a global batch: left out, filled up with
        the first rows of the epoch (``Batch.num_padding`` counts them), or by default a
        smaller batch.
    canonical_streams
        Most streams of the order (V); the largest divisor of it that fits the table is
        taken, so world sizes that divide it read each block once.
    block_rows
        Row groups smaller than this are read together. Part of the order.
    open_bytes
        Most bytes of files (at least 8 per row) of the blocks that are open at once over
        all ranks; bounds the streams. Part of the order.
    output
        ``"numpy"`` (one contiguous array per dtype) or ``"arrow"``.
    fill, masks, item_masks, float_dtype, shapes, scaled
        See :class:`trainer_bridge.batches.forms.NumpyForm`; only with ``output="numpy"``.
    codes
        Columns of texts that become int32 codes: by names, for codes of all texts in the
        snapshot in the order of their bytes (which are read once, when the reader is made), or
        ``{"city": Vocabulary.of([...])}``, a list of texts for short, for declared ones.
    threads
        Decoding threads; 0 does everything in the calling thread, when it is asked for;
        ``"auto"`` finds threads, chunk size and prefetch depth while it reads
        (:mod:`trainer_bridge.readers.autotune`).
    byte_budget
        Most bytes of decoded rows, those in flight included.
    consumer
        Name under which the snapshot is held against expiry until :meth:`close`.
    on_bad_file
        ``"error"``, or ``"skip"``: a file that is missing or broken when the snapshot is
        opened is left out (with those that hold other rows of its keys), and where one breaks
        later other rows come in place of its rows. :meth:`describe` and ``stats`` tell.
    cache
        Folder for what was found out by merging keys and by ``where``; beside the lake's
        tables by default. It can be deleted at any time.
    prepare
        What a :class:`trainer_bridge.preprocess.Pipeline` does to the blocks; ``output`` and
        what goes with it are then its own.

    Attributes
    ----------
    layout
        The blocks of the snapshot.
    stats
        What was read so far.
    vocabularies
        The texts behind the codes, by column.

    Raises
    ------
    ConfigurationError
        For arguments that do not fit together, and where the open blocks alone exceed
        the budget.
    TableError, SnapshotExpiredError, UnknownNameError
        If the table, snapshot or a column is not there or cannot be read.
    RequestError
        For a column that has no tensor form, or a null that nothing was declared for.
    """

    def __init__(
        self,
        lake: Lake,
        table: str,
        *,
        snapshot_id: int | None = None,
        tag: str | None = None,
        as_of_ms: int | None = None,
        columns: Collection[str] | None = None,
        where: str | None = None,
        batch_size: int | None = None,
        global_batch_size: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        seed: int = 0,
        epoch: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
        pad_last: bool = False,
        canonical_streams: int = 960,
        block_rows: int = 65_536,
        open_bytes: int = 64 << 20,
        output: Literal["numpy", "arrow"] = "numpy",
        fill: Mapping[str, float] | None = None,
        masks: Collection[str] = (),
        item_masks: Collection[str] = (),
        float_dtype: str | None = None,
        shapes: Mapping[str, Sequence[int]] | None = None,
        codes: Collection[str] | Mapping[str, Vocabulary | Sequence[str]] = (),
        scaled: Collection[str] = (),
        threads: int | Literal["auto"] = 2,
        byte_budget: int = 1 << 30,
        consumer: str | None = None,
        on_bad_file: OnBadFile = "error",
        cache: str | Path | None = None,
        prepare: Preparation | None = None,
    ) -> None:
        self.lake = lake
        self.table = table
        for name, number in (
            ("rank", rank),
            ("world_size", world_size),
            ("batch_size", batch_size),
            ("global_batch_size", global_batch_size),
            ("seed", seed),
            ("epoch", epoch),
        ):
            if number is not None and not is_whole(number):
                raise ConfigurationError(f"{name}={number!r}: expected a whole number")
        if epoch < 0:
            raise ConfigurationError(f"epoch={epoch}: expected 0 or more")
        if rank is None and world_size not in (None, 1):
            raise ConfigurationError(
                f"world_size={world_size} without rank=: every process would read the rows of "
                "rank 0; give both"
            )
        # None where the rank is still open: an adapter may ask its framework for it
        self._given_rank = None if rank is None and world_size is None else (rank, world_size)
        self.rank, self.world_size = rank or 0, 1 if world_size is None else world_size
        self.global_batch_size = _global_size(batch_size, global_batch_size, self.world_size)
        self._rank_batch_size = batch_size if global_batch_size is None else None
        if drop_last and pad_last:
            raise ConfigurationError("drop_last and pad_last exclude each other; set one of them")
        for name, number in (
            ("canonical_streams", canonical_streams),
            ("block_rows", block_rows),
            ("open_bytes", open_bytes),
            ("byte_budget", byte_budget),
        ):
            if number < 1:
                raise ConfigurationError(f"{name}={number}: expected at least 1")
        given: Any = threads  # another text than "auto" as well
        if given != "auto" and (isinstance(given, str) or given < 0):
            raise ConfigurationError(f"threads={threads!r}: expected 0 or more, or 'auto'")
        if on_bad_file not in ("error", "skip"):
            raise ConfigurationError(f"on_bad_file={on_bad_file!r}: expected 'error' or 'skip'")
        self._on_bad_file = on_bad_file
        self._where = where
        self._cache = lake.merge_folder(table) if cache is None else Path(cache)
        self._last: Last = "drop" if drop_last else "pad" if pad_last else "short"
        self._canonical_streams = canonical_streams
        self._open_bytes = open_bytes
        self._tuner: Autotune | None = None
        if threads == "auto":
            threads = most_threads(lake.storage.is_remote)
            self._tuner = Autotune(Choices(threads, 4 * _CHUNK_ROWS, 8))
        self._threads = threads
        self._byte_budget = byte_budget
        self._consumer = consumer
        if columns is not None and (isinstance(columns, str) or not len(columns)):
            raise ConfigurationError(f"columns={columns!r}: expected a list of at least one name")
        self._columns = None if columns is None else list(columns)
        self._sampler: RowSampler | None = None
        self._running: Callable[[], Generator[Batch, None, None] | None] = _nothing
        self.stats = ReadStats()

        schema = select_schema(lake.schema(table), self._columns, table)
        self._schema = pa.schema([field.with_nullable(True) for field in schema])
        options = {
            "fill": fill,
            "masks": masks,
            "item_masks": item_masks,
            "float_dtype": float_dtype,
            "shapes": shapes,
            "scaled": scaled,
        }
        self._form_of: Callable[[Mapping[str, Vocabulary]], Form] = functools.partial(
            _form, self._schema, table, output, options
        )
        self._prepare = prepare
        if prepare is not None:
            self._form_of = lambda _: prepare.form
        self._declared = _declared(codes)
        self._collected = [] if isinstance(codes, Mapping) else list(codes)
        # a stand-in where texts are collected: what does not fit is to be told at once
        self.vocabularies = {**self._declared, **dict.fromkeys(self._collected, Vocabulary.of([]))}
        self._form = self._form_of(self.vocabularies)
        snapshot_id = pinned_snapshot(lake, table, snapshot_id, tag, as_of_ms)
        self._open(snapshot_id, block_rows, None)
        self._state = ReaderState(
            table=table,
            snapshot_id=snapshot_id,
            rows=self.layout.num_rows,
            files=self.layout.files,
            seed=seed,
            epoch=epoch,
            shuffle=shuffle,
            streams=self._streams,
            block_rows=block_rows,
            position=0,
            where=self.layout.where,
        )
        self._check()

    # --- where it stands ---

    @property
    def snapshot_id(self) -> int:
        """The pinned snapshot."""
        return self._origin.snapshot_id

    @property
    def num_rows(self) -> int:
        """Rows of the snapshot."""
        return self._origin.rows

    @property
    def epoch(self) -> int:
        """The epoch that iterating goes on with."""
        return self._place[0]

    @property
    def place(self) -> tuple[int, int]:
        """Epoch and position (rows over all ranks) that iterating goes on with."""
        return self._place

    def __len__(self) -> int:
        """Batches of a whole epoch: the same on every rank."""
        return self._shard.num_batches(0)

    def column_dtypes(self) -> dict[str, np.dtype[Any]]:
        """The dtype of each column of ``batch.columns``, without ``sample_weight``.

        Raises
        ------
        ConfigurationError
            For a reader with ``output="arrow"``.
        """
        specs = self.column_specs()
        return {name: spec.dtype for name, spec in specs.items() if not spec.ragged_rank}

    def column_specs(self) -> dict[str, ColumnSpec]:
        """What each column of a batch is, lists included, without ``sample_weight``.

        Raises
        ------
        ConfigurationError
            For a reader with ``output="arrow"``.
        """
        if not isinstance(self._form, NumpyForm):
            raise ConfigurationError("a reader with output='arrow' has no NumPy columns")
        return dict(self._form.specs)

    @property
    def schema(self) -> pa.Schema:
        """The columns that are read, as the table has them."""
        return self._schema

    @property
    def output(self) -> str:
        """``"numpy"`` or ``"arrow"``: what batches hold."""
        return "arrow" if isinstance(self._form, ArrowForm) else "numpy"

    @property
    def rows_per_batch(self) -> int | None:
        """Rows of this rank in every batch; None where the last may have fewer."""
        if self._last == "short":
            return None
        return len(range(self.rank, self.global_batch_size, self.world_size))

    @property
    def weighted(self) -> bool:
        """Whether batches have ``sample_weight``: those of a sampler with loss weights."""
        first = np.zeros(1, dtype=np.int64)
        return self._sampler is not None and self._sampler.loss_weights(first) is not None

    @property
    def columns_read(self) -> list[str]:
        """The columns that are read of the table, in their order."""
        return list(self._schema.names)

    def decoded_bytes(self) -> int:
        """About how many bytes this rank's rows of an epoch take, decoded."""
        return int(self.num_rows * self._form.row_bytes / self.world_size)

    def remaining(self) -> int:
        """Batches from here to the end of the epoch: the same on every rank."""
        return self._shard.num_batches(self._place[1])

    def state_dict(self) -> dict[str, Any]:
        """Where the reader stands: what was handed out, not what was fetched ahead. O(1)."""
        return self._state_at(*self._place)

    def state_after(
        self, num_batches: int, start: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """The state ``num_batches`` further on, at most at the end of the epoch.

        Counted from ``start``, a state of this reader, or from where it stands. For loops in
        which this object does not advance with the training: it stands still where worker
        processes read, and is ahead where something fetches in advance.
        """
        origin = self._state if start is None else ReaderState.from_dict(dict(start))
        epoch, position = origin.epoch, origin.position
        if num_batches >= self._shard.num_batches(position):
            epoch, position = epoch + 1, 0
        else:
            position += num_batches * self.global_batch_size
        return replace(origin, epoch=epoch, position=position).to_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to where a state was taken: on any rank, for any world size and batch size.

        Seed, epoch, snapshot, shuffle and streams are those of the state, whatever this
        reader was made with. O(1) for the same snapshot, else its manifests are read; none
        of the rows before the position is.

        Raises
        ------
        RequestError
            For the state of another table or sampler, one that was damaged, or if the snapshot
            has other rows now.
        SnapshotExpiredError
            If its snapshot has expired.
        ConfigurationError
            If what has to be open at once there exceeds the budget.
        """
        found = ReaderState.from_dict(dict(state))
        if found.table != self.table:
            raise RequestError(
                f"a state of table {found.table!r} does not fit a reader of {self.table!r}"
            )
        if found.where != self.layout.where:
            raise RequestError(
                f"table {self.table!r}: the state was taken with where={found.where!r}, this "
                f"reader has {self.layout.where!r}: other rows, another order; make it with the "
                "same condition, or start a new epoch"
            )
        expected = None if self._sampler is None else self._sampler.identity()
        if found.sampler != expected:
            raise RequestError(
                f"the state was taken with the sampler {found.sampler}, this reader has "
                f"{expected}: make it with the same scores, or start a new epoch"
            )
        sampler = self._sampler
        rows = found.rows if sampler is None else sampler.epoch_size(found.epoch)
        check_position(found.position, rows, f"a state of table {self.table!r}")
        self._stop()
        mine = (
            self._origin.snapshot_id,
            self._origin.block_rows,
            self._origin.files,
            self.num_rows,
        )
        if (found.snapshot_id, found.block_rows, found.files, found.rows) != mine:
            self._open(found.snapshot_id, found.block_rows, found)
        self._state = found
        self._check()

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch; stays where it is if it is in that epoch already."""
        if epoch != self._place[0]:
            self._stop()
            self._state = replace(self._state, epoch=epoch, position=0)

    def with_sampler(self, sampler: RowSampler) -> SnapshotReader:
        """A reader of the rows that a sampler draws, in its order, from epoch on epoch.

        The sampler's indices are row numbers of this snapshot, drawn for the whole world
        (its own rank does not matter: the reader shards). It is taken as it is now: later
        changes of its scores need a new reader. A ``consumer`` stays with this
        reader: close it last. Where it has loss weights, each
        batch carries them as the float32 column ``sample_weight``. Draws go all over the
        table: one that exceeds the byte budget is decoded again chunk by chunk.
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
        other = copy.copy(self)
        other._sampler = sampler
        other._state = replace(self._state, position=0, sampler=sampler.identity())
        other._check()
        return other

    @property
    def sampler(self) -> RowSampler | None:
        """What chooses the rows, if something does: see :meth:`with_sampler`."""
        return self._sampler

    @property
    def has_rank(self) -> bool:
        """Whether ``rank`` or ``world_size`` was given, so that no adapter should choose them."""
        return self._given_rank is not None

    def with_rank(self, rank: int, world_size: int) -> Self:
        """A reader for one rank, at the same place; a ``batch_size`` stays that of a rank.

        Raises
        ------
        ConfigurationError
            As the constructor does.
        """
        other = copy.copy(self)
        other._given_rank = other.rank, other.world_size = rank, world_size
        other._consumer = self._consumer
        if self._rank_batch_size is not None:
            other.global_batch_size = self._rank_batch_size * world_size
        other._check()
        return other

    def __getstate__(self) -> dict[str, Any]:
        """For copies and for worker processes: a place, and nothing of what is running there.

        A copy goes on from the same place with blocks and statistics of its own; the
        ``consumer`` stays with the original.
        """
        own = {"_running": _nothing, "stats": ReadStats(), "_consumer": None, "_store": None}
        tuner = None if self._tuner is None else Autotune(self._tuner.limits)
        return {**vars(self), **own, "_tuner": tuner}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._store = self._new_store(self.stats)

    # --- reading ---

    def __iter__(self) -> Iterator[Batch]:
        return self.iterate()

    def iterate(self, worker: int = 0, num_workers: int = 1, skip: int = 0) -> Iterator[Batch]:
        """The batches from here on, or every ``num_workers``-th of them from ``worker`` on.

        ``skip`` leaves out the first of those, without reading them: a worker that is
        resumed had them already. The reader advances with each batch and stands at the
        start of the next epoch after the worker's last; one iteration runs at a time, a new
        one ends the one before.
        """
        self._stop()
        batches = self._batches(worker, num_workers, skip)
        # Weakly, so that a loop that breaks off ends its threads at once.
        self._running = weakref.ref(batches)
        return batches

    def order(self, epoch: int) -> GlobalOrder:
        """The order of the rows in an epoch, without a sampler."""
        origin = self._origin
        return GlobalOrder(
            np.array([block.rows for block in self.layout.blocks], dtype=np.int64),
            streams=origin.streams,
            seed=origin.seed,
            epoch=epoch,
            shuffle=origin.shuffle,
        )

    def read_columns(self, columns: Sequence[str]) -> pa.Table:
        """Columns of the whole snapshot by row number, for a sampler's labels or scores."""
        schema = select_schema(self.lake.schema(self.table), columns, self.table)
        schema = pa.schema([field.with_nullable(True) for field in schema])
        blocks = range(len(self.layout.blocks))
        return pa.concat_tables([self.layout.decode(number, schema) for number in blocks])

    def close(self) -> None:
        """End what is running, free what is held, let go of the consumer. Can be repeated."""
        self._stop()
        self._store.clear()
        if self._consumer is not None:
            delete_consumer(self.lake, self.table, self._consumer)

    def __enter__(self) -> SnapshotReader:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def describe(self, quality: bool = False) -> dict[str, Any]:
        """What is read and at what cost, for people.

        ``reads_each_block_once`` tells whether this world size gives each rank whole
        streams; otherwise every rank decodes the blocks of up to ``ranks_per_block``.
        ``quality=True`` adds how well the epoch is shuffled; that costs O(rows). With
        ``threads="auto"``, ``autotune`` has what is chosen now and how it came to that.
        """
        streams = self._shard.streams(self._place[1], self._streams_in_use)
        own = self._streams_in_use if streams is None else len(streams)
        result = {
            "table": self.table,
            "snapshot_id": self.snapshot_id,
            "rows": self.num_rows,
            "blocks": len(self.layout.blocks),
            "streams": self._streams_in_use,
            "global_batch_size": self.global_batch_size,
            "batches": len(self),
            "ranks_per_block": own * self.world_size / self._streams_in_use,
            "reads_each_block_once": own * self.world_size == self._streams_in_use,
            "where": self.layout.where,
            "not_read": dict(self.layout.opened.counts),
            "files_left_out": dict(self.layout.left_out),
            "blocks_replaced": dict(self.layout.replaced),
        }
        if self._tuner is not None:
            chosen = {**asdict(self._tuner.choices), "history": list(self._tuner.history)}
            result["autotune"] = chosen
        return {**result, **(shuffle_quality(self._order()) if quality else {})}

    # --- inside ---

    def _state_at(self, epoch: int, position: int) -> dict[str, Any]:
        return replace(self._origin, epoch=epoch, position=position).to_dict()

    @property
    def _state(self) -> ReaderState:
        epoch, position = self._place
        return replace(self._origin, epoch=epoch, position=position)

    @_state.setter
    def _state(self, state: ReaderState) -> None:
        # The place alone changes with every batch: a pair of numbers, to be quick.
        self._origin, self._place = state, (state.epoch, state.position)

    @property
    def _streams_in_use(self) -> int:
        return self._origin.streams if self._origin.shuffle else 1

    def _open(self, snapshot_id: int, block_rows: int, state: ReaderState | None) -> None:
        """Read a snapshot's layout, which has to be that of ``state``, if there is one."""
        if self._consumer is not None:
            register_consumer(self.lake, self.table, self._consumer, snapshot_id)
        layout = self._read_layout(snapshot_id, block_rows)
        if self._prepare is not None:
            layout = self._prepare.layout(layout)
        if state is not None and (layout.files, layout.num_rows) != (state.files, state.rows):
            raise RequestError(
                f"table {self.table!r}, snapshot {snapshot_id} has other files than when the "
                f"state was taken ({layout.num_rows} rows, then {state.rows}); it was rolled back "
                "or made anew: start a new epoch"
            )
        if not layout.blocks:
            which = "" if self._where is None else f" where {self._where}"
            raise TableError(f"table {self.table!r} has no rows at snapshot {snapshot_id}{which}")
        # at least a number a row: files of equal values are small, and large when decoded
        sizes = [max(block.size, 8 * block.rows) for block in layout.blocks]
        self._streams = choose_streams(sizes, self._canonical_streams, self._open_bytes)
        self.layout = layout
        if self._collected:
            found = {name: self._all_texts(name) for name in self._collected}
            self.vocabularies = {**self._declared, **found}
            self._form = self._form_of(self.vocabularies)
        self._store = self._new_store(self.stats)

    def _read_layout(self, snapshot_id: int, block_rows: int) -> Layout:
        return read_layout(
            self.lake,
            self.table,
            snapshot_id,
            block_rows,
            where=self._where,
            on_bad_file=self._on_bad_file,
            cache=self._cache,
        )

    def _all_texts(self, column: str) -> Vocabulary:
        schema = pa.schema([self._schema.field(column)])
        blocks = range(len(self.layout.blocks))
        return Vocabulary.collected(self.layout.decode(i, schema).column(0) for i in blocks)

    def _new_store(self, stats: ReadStats) -> BlockStore:
        return BlockStore(self.layout, self._schema, self._form, self._byte_budget, stats)

    @property
    def _shard(self) -> Shard:
        sampler, epoch = self._sampler, self._place[0]
        rows = self._origin.rows if sampler is None else sampler.epoch_size(epoch)
        return Shard(rows, self.global_batch_size, self.rank, self.world_size, self._last)

    def _check(self) -> None:
        shard = self._shard
        if not shard.num_batches(0):
            raise ConfigurationError(
                f"table {self.table!r} gives {shard.num_rows} rows, less than one global batch of "
                f"{self.global_batch_size}, and drop_last would leave them all out"
            )
        if self._sampler is not None or not self._form.size_known:
            return  # neither needs its blocks together, or knows their size beforehand
        own = shard.streams(self._place[1], self._streams_in_use)
        at = min(self._place[1], shard.num_rows - 1)
        opened = self._order().open_blocks(at, at + 1, own)
        rows = sum(self.layout.blocks[number].rows for number in opened)
        needed = int(rows * self._form.row_bytes)
        if needed > self._byte_budget:
            raise ConfigurationError(
                f"table {self.table!r}: {len(opened)} blocks have to be open at once, which takes "
                f"{needed:,} bytes; byte_budget is {self._byte_budget:,}. Raise it, read fewer "
                "columns, or lower open_bytes (another order), or write smaller row groups"
            )

    def _order(self) -> GlobalOrder:
        return self.order(self._place[0])

    def _works(self, shard: Shard, starts: range, chunk_rows: Callable[[], int]) -> Iterator[Work]:
        size = shard.global_batch_size // shard.world_size + 1
        borders = [len(starts)]
        if self._sampler is None and not self._origin.shuffle:
            # A chunk within one block is a view of it, so those across a border stand alone.
            borders = sorted({*borders, *self._border_cuts(starts)})
        low = 0
        for border in borders:
            while low < border:
                high = min(low + self._batches_a_chunk(size, chunk_rows), border)
                part = starts[low:high]
                positions = [shard.positions(start) for start in part]
                yield Work(tuple(part), tuple(map(len, positions)), np.concatenate(positions))
                low = high

    def _batches_a_chunk(self, batch_rows: int, chunk_rows: Callable[[], int]) -> int:
        if not self._form.size_known and not self.stats.blocks_decoded:
            return 1  # until it was seen how large rows are
        fitting = int(self._byte_budget // 16 // max(self._form.row_bytes, 1.0))
        return max(1, min(chunk_rows(), fitting) // batch_rows)

    def _border_cuts(self, starts: range) -> Iterator[int]:
        """Before and after each batch that begins in one block and ends in another."""
        for block in self.layout.blocks[1:]:
            number = (block.first_row - starts.start - 1) // starts.step
            if 0 <= number < len(starts):
                yield from (number, number + 1)

    def _assembler(self, shard: Shard) -> Assembler:
        sampler, epoch = self._sampler, self._place[0]
        if sampler is not None:
            return Assembler(self._store, lambda p: sampler.draw(epoch, p), None, shard.num_rows)
        order = self._order()
        own = shard.streams(self._place[1], self._streams_in_use)

        def opened(work: Work) -> Ints:
            last = work.starts[-1] + shard.global_batch_size
            return order.open_blocks(work.starts[0], min(last, shard.num_rows), own)

        def following(work: Work) -> list[int]:
            if not self._threads:
                return []
            streams = self._streams_in_use if own is None else len(own)
            last = min(work.starts[-1] + shard.global_batch_size, shard.num_rows) - 1
            return order.next_blocks(last, streams + self._threads, own)

        return Assembler(self._store, order.rows, opened, shard.num_rows, following)

    def _batches(self, worker: int, num_workers: int, skip: int) -> Generator[Batch, None, None]:
        shard, store = self._shard, self._store
        epoch, begin = self._place
        step, following = shard.global_batch_size, (epoch + 1, 0)
        whole = range(begin, begin + shard.num_batches(begin) * step, step)
        starts = whole[worker::num_workers][skip:]
        if not starts:
            self._place = following
            return
        tuner = self._tuner
        rows_of_chunk = (lambda: _CHUNK_ROWS) if tuner is None else tuner.next_chunk_rows
        works = self._works(shard, starts, rows_of_chunk)
        chunks: Iterator[Any] = self._assembler(shard).chunks(works)
        prefetcher: Prefetcher | None = None
        if self._threads:
            store.threads = self._threads if tuner is None else tuner.choices.threads
            store.pool = ThreadPoolExecutor(self._threads, thread_name_prefix="snapshot-decode")
            prefetcher = Prefetcher(chunks, store)
            if tuner is not None:
                prefetcher.depth = tuner.choices.prefetch
                tuner.start(store.stats)
        try:
            for chunk in chunks if prefetcher is None else prefetcher:
                at = 0
                for start, size in zip(chunk.work.starts, chunk.work.sizes, strict=True):
                    batch = self._form.batch(
                        chunk.rows,
                        at,
                        at + size,
                        row_numbers=chunk.row_numbers[at : at + size],
                        epoch=epoch,
                        position=start,
                        num_padding=shard.num_padding(start),
                    )
                    if self._sampler is not None:
                        batch = _weighted(batch, self._sampler)
                    at += size
                    # What is handed out counts as read, so the place moves before.
                    self._place = (epoch, start + step) if start != starts[-1] else following
                    self.stats.rows_delivered += size
                    yield batch
                store.release(chunk)
                if tuner is not None and prefetcher is not None:
                    chosen = tuner.observe(store.stats)
                    store.threads, prefetcher.depth = chosen.threads, chosen.prefetch
        finally:
            if prefetcher is not None:
                prefetcher.close()
            store.drop_pending()
            if store.pool is not None:
                store.pool.shutdown(wait=True, cancel_futures=True)
                store.pool = None

    def _stop(self) -> None:
        running, self._running = self._running(), _nothing
        if running is not None:
            running.close()


def _nothing() -> None:
    """In place of a weak reference to an iteration, while none is running."""


def _weighted(batch: Batch, sampler: RowSampler) -> Batch:
    """The batch with the sampler's loss weights, if it has them."""
    weights = sampler.loss_weights(batch.row_numbers)
    if weights is None:
        return batch
    column = np.asarray(weights, dtype=np.float32)
    if batch.arrow is not None:
        return replace(batch, arrow=batch.arrow.append_column(SAMPLE_WEIGHT, pa.array(column)))
    return replace(batch, columns={**batch.columns, SAMPLE_WEIGHT: column})


def _global_size(batch_size: int | None, global_batch_size: int | None, world_size: int) -> int:
    if batch_size is None and global_batch_size is None:
        raise ConfigurationError("give batch_size (rows per rank) or global_batch_size")
    if global_batch_size is None:
        assert batch_size is not None
        global_batch_size = batch_size * world_size
    elif batch_size is not None and batch_size * world_size != global_batch_size:
        raise ConfigurationError(
            f"batch_size={batch_size} on {world_size} ranks is not "
            f"global_batch_size={global_batch_size}; give one of them"
        )
    if global_batch_size < 1:
        raise ConfigurationError(f"a batch of {global_batch_size} rows: expected at least 1")
    return global_batch_size


def _declared(
    codes: Collection[str] | Mapping[str, Vocabulary | Sequence[str]],
) -> dict[str, Vocabulary]:
    if not isinstance(codes, Mapping):
        return {}
    return {
        name: words if isinstance(words, Vocabulary) else Vocabulary.of(words)
        for name, words in codes.items()
    }


def _form(
    schema: pa.Schema,
    table: str,
    output: str,
    options: Mapping[str, Any],
    codes: Mapping[str, Vocabulary],
) -> Form:
    if output == "numpy":
        return NumpyForm(schema, table=table, codes=codes, **options)
    if output != "arrow":
        raise ConfigurationError(f"output={output!r}: expected 'numpy' or 'arrow'")
    if codes or any(options.values()):
        raise ConfigurationError(f"{', '.join(options)} and codes go with output='numpy' only")
    return ArrowForm(schema)
