"""The offline store: features as they were at past times, from pinned snapshots of the lake."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa

from paimon_features.buckets import bucket_of
from paimon_features.definitions import (
    CompiledFeature,
    CompiledView,
    FeatureRef,
    Output,
    Selection,
)
from paimon_features.definitions.request import row_inputs
from paimon_features.definitions.selection import Codes
from paimon_features.errors import RequestError, UnknownNameError
from paimon_features.offline.outputs import with_outputs
from paimon_features.offline.point_in_time import PointInTimeJoin
from paimon_features.offline.rows import arrow_table, event_times, key_columns
from paimon_features.tables import Lake, latest_snapshot
from paimon_features.tables.deltas import DataFile, live_files, read_file
from paimon_features.tables.generations import GenerationRecord
from paimon_features.tables.snapshots import snapshot_as_of
from paimon_features.tables.specs import EVENT_DAY, TILE_DAY
from paimon_features.windows import DAY_MS

Progress = Callable[[int, int], None]
"""Called with the number of (row, view) pairs answered and of all of them."""

GROUP_TILES = 8_000_000
"""Tiles that are in memory at a time, roughly: buckets are read in groups of this size."""
CHUNK_ROWS = 1_000_000
"""Rows of a table that are worked on at a time."""


@dataclass(frozen=True, slots=True)
class Pin:
    """One table at one snapshot; ``snapshot_id`` is None where it had no commit yet.

    ``incarnation`` tells snapshots apart that a rollback gave one number (0 for events).
    """

    table: str
    snapshot_id: int | None
    incarnation: int = 0

    def to_document(self) -> dict[str, object]:
        """Canonical JSON form."""
        return {
            "table": self.table,
            "snapshot_id": self.snapshot_id,
            "incarnation": self.incarnation,
        }


@dataclass(frozen=True, slots=True)
class _ViewRead:
    """What is read of one view: its features, its generation, its two pinned tables."""

    view: CompiledView
    features: tuple[CompiledFeature, ...]
    record: GenerationRecord
    tiles: Pin
    events: Pin


class PinnedRead:
    """A point-in-time read whose snapshots are chosen; reading it twice gives the same."""

    def __init__(
        self,
        lake: Lake,
        selection: Selection,
        reads: Sequence[_ViewRead],
        as_of: int | None,
    ) -> None:
        self.lake, self.selection, self.reads, self.as_of = lake, selection, tuple(reads), as_of

    @property
    def columns(self) -> Mapping[Output, str]:
        """What the column of each output is called, in their order."""
        return self.selection.columns

    @property
    def pins(self) -> tuple[Pin, ...]:
        """Every table that is read, each once, with its snapshot."""
        return tuple(dict.fromkeys(p for read in self.reads for p in (read.tiles, read.events)))

    def feature(self, ref: FeatureRef) -> CompiledFeature:
        """The feature that a reference names."""
        return next(
            f
            for read in self.reads
            if read.view.name == ref.view
            for f in read.features
            if f.name == ref.feature
        )

    def read(
        self, rows: pa.Table, *, statuses: bool = False, progress: Progress | None = None
    ) -> pa.Table:
        """The rows with their features; see ``OfflineStore.get_historical_features``."""
        q_ms = event_times(rows)
        keys = {read.view.name: key_columns(rows, read.view) for read in self.reads}
        taken = [name for name in self.columns.values() if name in rows.column_names]
        if taken:
            raise RequestError(
                f"entity rows have a column {taken[0]!r}, which is also the name of a feature; "
                "rename the column"
            )
        inputs = row_inputs(self.selection.inputs, rows)
        done, total = 0, len(q_ms) * len(self.reads)
        values: dict[FeatureRef, pa.Array] = {}
        codes: dict[FeatureRef, Codes] = {}
        for read in self.reads:
            join = PointInTimeJoin(read.view, read.features, keys[read.view.name], q_ms)
            for events in self._events(read, join):
                join.add_events(events)
            before = done
            for tiles in self._tile_groups(read, join):
                done += join.add_tiles(tiles)
                if progress is not None:
                    progress(done, total)
            answers = join.answers()
            done = before + len(q_ms)
            if progress is not None:
                progress(done, total)
            for feature in read.features:
                ref = FeatureRef(read.view.name, feature.name)
                values[ref] = answers.columns[feature.name].to_arrow(feature.type.arrow)
                codes[ref] = answers.statuses[feature.name]
        return with_outputs(rows, self.selection, values, inputs, codes if statuses else None)

    def _events(self, read: _ViewRead, join: PointInTimeJoin) -> Iterator[pa.Table]:
        """The events of the days in which rows have a head."""
        days = {None, *join.head_days.tolist()}  # a feedback table has no days: all is read
        if read.events.snapshot_id is None or len(days) == 1:
            return
        files = live_files(self.lake, read.events.table, read.events.snapshot_id)
        files = [f for f in files if f.partition.get(EVENT_DAY) in days]
        yield from self._tables(read.events, files, join.event_columns)

    def _tile_groups(self, read: _ViewRead, join: PointInTimeJoin) -> Iterator[Iterator[pa.Table]]:
        """The tiles that can matter, all tiles of an entity in one group.

        Files of every level hold contributions, which the join folds; so nothing is merged here.
        """
        low, high = join.tile_range
        if read.tiles.snapshot_id is None or high <= low or not join.entities.count:
            return
        kinds = list(read.view.keys.values())
        buckets = np.unique(bucket_of(join.entities.columns(), kinds, read.record.buckets))
        files = live_files(self.lake, read.tiles.table, read.tiles.snapshot_id, buckets.tolist())
        first, last = low // DAY_MS, (high - 1) // DAY_MS
        files = [f for f in files if first <= f.partition[TILE_DAY] <= last]
        for group in _groups(files):
            yield self._tables(read.tiles, group, join.tile_columns)

    def _tables(
        self, pin: Pin, files: Iterable[DataFile], columns: Sequence[str]
    ) -> Iterator[pa.Table]:
        """The rows of files, small ones put together: looking entities up has a cost per call."""
        full = self.lake.schema(pin.table)
        schema = pa.schema([full.field(column).with_nullable(True) for column in columns])
        held: list[pa.Table] = []
        rows = 0
        for file in files:
            held.append(read_file(file, columns))
            rows += held[-1].num_rows
            if rows >= CHUNK_ROWS:
                yield _concat(held, schema)
                held, rows = [], 0
        if held:
            yield _concat(held, schema)


def _concat(tables: Sequence[pa.Table], schema: pa.Schema) -> pa.Table:
    """The tables as one, in the types of ``schema``; files differ in what may be null."""
    alike = [
        table if table.schema.types == schema.types else table.cast(schema) for table in tables
    ]
    return pa.concat_tables(alike, promote_options="default").cast(schema)


def _groups(files: Sequence[DataFile]) -> Iterator[list[DataFile]]:
    """Files by bucket, as many buckets together as hold ``GROUP_TILES`` rows."""
    group: list[DataFile] = []
    rows = 0
    ordered = sorted(files, key=lambda f: f.bucket)  # stable: the order of a manifest stays
    for _, bucket in groupby(ordered, key=lambda f: f.bucket):
        own = list(bucket)
        size = sum(file.rows for file in own)
        if group and rows + size > GROUP_TILES:
            yield group
            group, rows = [], 0
        group += own
        rows += size
    if group:
        yield group


class OfflineStore:
    """Reads features at past times from the lake, without Java.

    ``view`` finds a compiled view by name, ``generation`` the generation that is read of it;
    both raise where there is none.
    """

    def __init__(
        self,
        lake: Lake,
        view: Callable[[str], CompiledView],
        generation: Callable[[CompiledView], GenerationRecord],
    ) -> None:
        self.lake = lake
        self._view = view
        self._generation = generation

    def get_historical_features(
        self,
        refs: Sequence[Output],
        rows: Any,
        *,
        as_of: int | None = None,
        statuses: bool = False,
        progress: Progress | None = None,
    ) -> pa.Table:
        """The features of each row ``(entity keys, event_time_ms)`` as of its own time.

        A feature at ``q`` is made of the events with ``window start <= ts < q``: an event at
        exactly ``q`` is not seen. Snapshots of all tables are chosen once, at the start.

        Parameters
        ----------
        refs
            The features and interactions, in the order of the result's columns.
        rows
            An Arrow table, a pandas or Polars DataFrame, or anything with an Arrow stream:
            the keys of every view, ``event_time_ms`` (int64 UTC milliseconds or a timestamp),
            and the request inputs of the interactions. Duplicates are fine; a row with a null
            key gets nulls.
        as_of
            UTC milliseconds: only what had been committed to the lake by then (inclusive) is
            seen, so that late data and backfills do not leak. The newest commits by default.
        statuses
            Also give a column ``<feature>__status`` each: PRESENT, EXPIRED, MISSING, or
            ILL_CONDITIONED.
        progress
            Called with the number of answers so far and in total.

        Returns
        -------
        The columns of ``rows`` as they are, in their order, then one column per feature, called
        like it, or ``<view>__<feature>`` where two views have a feature of that name.

        Raises
        ------
        RequestError
            If the rows lack a column, or have one of a wrong type.
        UnknownNameError, GenerationError
            For a feature that is not defined, a view that is not applied.
        SnapshotExpiredError
            If what had been committed by ``as_of`` can no longer be read.
        """
        pinned = self.pin(refs, as_of=as_of)
        return pinned.read(arrow_table(rows), statuses=statuses, progress=progress)

    def pin(self, refs: Sequence[Output], *, as_of: int | None = None) -> PinnedRead:
        """Choose the snapshots of a read: the newest, or those of a time.

        Raises
        ------
        RequestError
            For no feature at all, or one that is named twice.
        """
        selection = Selection.of(refs)
        needed = selection.refs
        events: dict[str, Pin] = {}
        reads = []
        for name in dict.fromkeys(ref.view for ref in needed):
            view = self._view(name)
            features = tuple(_feature(view, ref.feature) for ref in needed if ref.view == name)
            record = self._generation(view)
            # tiles first: the events are then at least as new as what the tiles hold
            tiles = Pin(record.table, self._pinned(record.table, as_of), record.incarnation)
            source = view.source.table
            if source not in events:
                events[source] = Pin(source, self._pinned(source, as_of))
            reads.append(_ViewRead(view, features, record, tiles, events[source]))
        return PinnedRead(self.lake, selection, reads, as_of)

    def _pinned(self, table: str, as_of: int | None) -> int | None:
        found = (
            latest_snapshot(self.lake, table)
            if as_of is None
            else snapshot_as_of(self.lake, table, as_of)
        )
        return None if found is None else found.id


def _feature(view: CompiledView, name: str) -> CompiledFeature:
    feature = view.feature(name)
    if feature is None:
        known = [f.name for f in view.features]
        raise UnknownNameError.of(f"feature of view {view.name!r}", name, known)
    return feature
