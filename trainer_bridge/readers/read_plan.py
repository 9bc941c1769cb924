"""What a reader reads and how: a frozen plan, which opens a snapshot."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, Protocol, TypedDict, Unpack

import pyarrow as pa

from paimon_features.core.errors import ConfigurationError, RequestError, TableError
from paimon_features.lake.catalog import Lake
from paimon_features.lake.metadata.consumers import register_consumer
from paimon_features.lake.metadata.snapshots import SnapshotRef
from paimon_features.lake.table_folders import merge_folder
from trainer_bridge.batches.forms import Form
from trainer_bridge.batches.vocabulary import Vocabulary
from trainer_bridge.blocks.layout import Layout, OnBadFile, select_schema
from trainer_bridge.blocks.open_layout import read_layout
from trainer_bridge.order.global_order import choose_streams
from trainer_bridge.order.reader_state import ReaderState
from trainer_bridge.readers.opened_snapshot import OpenedSnapshot
from trainer_bridge.readers.options import Ordering, OutputOptions, ReadOptions, Sharding
from trainer_bridge.readers.pins import pinned_snapshot


class BlockPreparation(Protocol):
    """What is done to blocks as they are decoded; ``trainer_bridge.preprocess`` implements it."""

    @property
    def form(self) -> Form:
        """How finished rows are stored in memory."""

    def layout(self, layout: Layout) -> Layout:
        """Return the blocks of a snapshot as they are afterwards."""


class BlockKeywords(TypedDict, total=False):
    """The keywords of ``SnapshotReader`` that concern neither columns, batches nor ranks."""

    pad_last: bool
    canonical_streams: int
    block_rows: int
    open_bytes: int
    consumer: str | None
    on_bad_file: OnBadFile
    cache: str | Path | None


class UnthreadedKeywords(BlockKeywords, total=False):
    """The keywords of ``SnapshotReader`` except ``threads``."""

    snapshot_id: SnapshotRef | None
    tag: str | None
    as_of_ms: int | None
    columns: Collection[str] | None
    where: str | None
    batch_size: int | None
    global_batch_size: int | None
    rank: int | None
    world_size: int | None
    seed: int
    epoch: int
    shuffle: bool
    drop_last: bool
    output: Literal["numpy", "arrow"]
    fill: Mapping[str, float] | None
    masks: Collection[str]
    item_masks: Collection[str]
    float_dtype: str | None
    shapes: Mapping[str, Sequence[int]] | None
    codes: Collection[str] | Mapping[str, Vocabulary | Sequence[str]]
    scaled: Collection[str]
    byte_budget: int
    prepare: BlockPreparation | None


class ReaderKeywords(UnthreadedKeywords, total=False):
    """The keywords of :class:`trainer_bridge.SnapshotReader`; documented there."""

    threads: int | Literal["auto"]


_GROUPS: dict[str, type[Any]] = {
    "sharding": Sharding,
    "ordering": Ordering,
    "batches": OutputOptions,
    "reading": ReadOptions,
}


@dataclass(frozen=True)
class ReadPlan:
    """A table, a snapshot of it, columns and rows, and how they come.

    Examples
    --------
    >>> import tempfile
    >>> from trainer_bridge.testing.sample_tables import make_samples
    >>> lake = Lake.open(tempfile.mkdtemp(), "shop")
    >>> plan = ReadPlan.of(lake, make_samples(lake, [30, 20]), columns=["x"], batch_size=8)
    >>> plan.sharding.global_rows, plan.ordering.seed
    (8, 0)
    >>> plan.open().layout.num_rows
    50
    """

    lake: Lake
    table: str
    sharding: Sharding
    snapshot_id: SnapshotRef | None = None
    tag: str | None = None
    as_of_ms: int | None = None
    columns: Collection[str] | None = None
    where: str | None = None
    ordering: Ordering = field(default_factory=Ordering)
    batches: OutputOptions = field(default_factory=OutputOptions)
    reading: ReadOptions = field(default_factory=ReadOptions)
    prepare: BlockPreparation | None = None

    def __post_init__(self) -> None:
        columns = self.columns
        if columns is not None and (isinstance(columns, str) or not len(columns)):
            raise ConfigurationError(f"columns={columns!r}: expected a list of at least one name")

    @classmethod
    def of(cls, lake: Lake, table: str, **keywords: Unpack[ReaderKeywords]) -> ReadPlan:
        """Return the plan for the keywords of a ``SnapshotReader``.

        Raises
        ------
        TypeError
            For an unknown keyword.
        ConfigurationError
            For values that do not fit together.
        """
        left: dict[str, Any] = dict(keywords)
        groups: dict[str, Any] = {}
        for group, kind in _GROUPS.items():
            names = [option.name for option in fields(kind) if option.name in left]
            groups[group] = kind(**{name: left.pop(name) for name in names})
        names_of_plan = {option.name for option in fields(cls)} - _GROUPS.keys()
        for name in left:
            if name not in names_of_plan:
                raise TypeError(f"SnapshotReader() got an unexpected keyword argument {name!r}")
        if left.get("prepare") is not None and groups["batches"] != OutputOptions():
            named = ", ".join(item.name for item in fields(OutputOptions) if item.name in keywords)
            raise ConfigurationError(f"{named}: with prepare= the pipeline makes the batches")
        return cls(lake, table, **groups, **left)

    def without_consumer(self) -> ReadPlan:
        """Return the same plan for a derived reader, which does not hold the snapshot itself."""
        return replace(self, reading=replace(self.reading, consumer=None))

    def open(
        self,
        state: ReaderState | None = None,
        previous: OpenedSnapshot | None = None,
        layout: Layout | None = None,
    ) -> OpenedSnapshot:
        """Open the snapshot of the plan, or that of a state.

        Reads manifests and, for ``where`` and tables with a primary key, the columns that decide
        which rows there are. Registers the consumer, if there is one.

        Parameters
        ----------
        state
            Its snapshot and ``block_rows`` are used, and its rows have to be there still.
        previous
            Another snapshot of the same plan, whose columns and form are taken over.
        layout
            The blocks to read, where they are not all those of the snapshot.

        Raises
        ------
        RequestError
            If the snapshot has other rows than ``state`` says.
        TableError, SnapshotExpiredError, UnknownNameError, ConfigurationError
            See :class:`trainer_bridge.SnapshotReader`.
        """
        vocabularies = self.batches.declared_vocabularies
        collected = self.batches.collected_vocabularies
        schema, form = (
            self.columns_and_form() if previous is None else (previous.schema, previous.form)
        )
        if layout is not None:
            snapshot_id = layout.snapshot_id
        elif state is not None:  # its files are compared below
            snapshot_id = state.snapshot_id
        else:
            snapshot_id = pinned_snapshot(
                self.lake, self.table, self.snapshot_id, self.tag, self.as_of_ms
            ).id
        if self.reading.consumer is not None:
            register_consumer(self.lake, self.table, self.reading.consumer, snapshot_id)
        if layout is None:
            block_rows = self.ordering.block_rows if state is None else state.block_rows
            layout = self.layout(snapshot_id, block_rows)
        self._check_rows(layout, snapshot_id, state)
        # at least a number a row: files of equal values are small, and large when decoded
        sizes = [max(block.size, 8 * block.rows) for block in layout.blocks]
        streams = choose_streams(sizes, self.ordering.canonical_streams, self.ordering.open_bytes)
        if collected:
            vocabularies |= {name: _all_texts(layout, schema, name) for name in collected}
            form = self._form(schema, vocabularies)
        return OpenedSnapshot(
            self.lake, self.table, snapshot_id, schema, layout, form, vocabularies, streams
        )

    def columns_and_form(self) -> tuple[pa.Schema, Form]:
        """Return the columns to read, as the table has them today, and their form in batches.

        Reads no rows. Where texts are collected their vocabulary is a stand-in, so that what does
        not fit is reported before reading.

        Raises
        ------
        UnknownNameError, ConfigurationError, RequestError
            For columns that do not exist or have no such form.
        """
        names = None if self.columns is None else list(self.columns)
        schema = select_schema(self.lake.schema(self.table), names, self.table)
        schema = pa.schema([column.with_nullable(True) for column in schema])
        collected = dict.fromkeys(self.batches.collected_vocabularies, _NO_WORDS)
        return schema, self._form(schema, {**self.batches.declared_vocabularies, **collected})

    def layout(self, snapshot_id: int, block_rows: int) -> Layout:
        """Return the blocks of the rows of a snapshot.

        See ``trainer_bridge.blocks.open_layout``.
        """
        cache = self.reading.cache
        layout = read_layout(
            self.lake,
            self.table,
            snapshot_id,
            block_rows,
            where=self.where,
            on_bad_file=self.reading.on_bad_file,
            cache=merge_folder(self.lake, self.table) if cache is None else Path(cache),
        )
        return layout if self.prepare is None else self.prepare.layout(layout)

    def start(self, snapshot: OpenedSnapshot) -> ReaderState:
        """Return where a new reader of the snapshot begins."""
        ordering, layout = self.ordering, snapshot.layout
        return ReaderState(
            table=self.table,
            snapshot_id=snapshot.snapshot_id,
            rows=layout.num_rows,
            files=layout.files,
            seed=ordering.seed,
            epoch=ordering.epoch,
            shuffle=ordering.shuffle,
            streams=snapshot.streams,
            block_rows=ordering.block_rows,
            position=0,
            where=layout.where,
        )

    def _form(self, schema: pa.Schema, vocabularies: Mapping[str, Vocabulary]) -> Form:
        if self.prepare is not None:
            return self.prepare.form
        return self.batches.form(schema, self.table, vocabularies)

    def _check_rows(self, layout: Layout, snapshot_id: int, state: ReaderState | None) -> None:
        """Raise unless there are rows, and the ones that a state was taken with."""
        table = self.table
        if state is not None and (layout.files, layout.num_rows) != (state.files, state.rows):
            raise RequestError(
                f"table {table!r}, snapshot {snapshot_id} has other files than when the "
                f"state was taken ({layout.num_rows} rows, then {state.rows}); it was rolled back "
                "or created again: start a new epoch"
            )
        if not layout.blocks:
            which = "" if self.where is None else f" where {self.where}"
            raise TableError(f"table {table!r} has no rows at snapshot {snapshot_id}{which}")


_NO_WORDS = Vocabulary.of([])


def _all_texts(layout: Layout, schema: pa.Schema, column: str) -> Vocabulary:
    column_schema = pa.schema([schema.field(column)])
    blocks = range(len(layout.blocks))
    return Vocabulary.collected(layout.decode(number, column_schema).column(0) for number in blocks)
