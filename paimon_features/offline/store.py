"""The offline store: features as they were at past times, from pinned snapshots of the lake."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from paimon_features.buckets import bucket_of
from paimon_features.columns import Column
from paimon_features.definitions import CompiledFeature, CompiledView, FeatureRef
from paimon_features.errors import RequestError, UnknownNameError
from paimon_features.offline.point_in_time import STATUSES, PointInTimeJoin
from paimon_features.offline.rows import arrow_table, event_times, key_columns
from paimon_features.tables import Lake, iter_batches, latest_snapshot, snapshot
from paimon_features.tables.generations import GenerationRecord
from paimon_features.tables.snapshots import snapshot_as_of
from paimon_features.tables.specs import EVENT_DAY, TILE_DAY, TILE_START
from paimon_features.windows import DAY_MS

Progress = Callable[[int, int], None]
"""Called with the number of (row, view) pairs answered and of all of them."""

GROUP_TILES = 8_000_000
"""Tiles that are in memory at a time, roughly: buckets are read in groups of this size."""
CHUNK_ROWS = 1_000_000
"""Rows of a table that are worked on at a time."""
FEW_ENTITIES = 1_000
"""Up to so many entities their keys are given to the scan, which skips files by them."""


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
        refs: Sequence[FeatureRef],
        reads: Sequence[_ViewRead],
        as_of: int | None,
    ) -> None:
        self.lake, self.refs, self.reads, self.as_of = lake, tuple(refs), tuple(reads), as_of
        names = [ref.feature for ref in refs]
        self.columns = {
            ref: f"{ref.view}__{ref.feature}" if names.count(ref.feature) > 1 else ref.feature
            for ref in refs
        }

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
        done, total = 0, len(q_ms) * len(self.reads)
        found: dict[FeatureRef, tuple[pa.Array, pa.Array]] = {}
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
                found[FeatureRef(read.view.name, feature.name)] = (
                    answers.columns[feature.name].to_arrow(feature.type.arrow),
                    pa.DictionaryArray.from_arrays(
                        pa.array(answers.statuses[feature.name]), pa.array(STATUSES)
                    ),
                )
        for ref in self.refs:
            rows = rows.append_column(self.columns[ref], found[ref][0])
        for ref in self.refs if statuses else ():
            rows = rows.append_column(f"{self.columns[ref]}__status", found[ref][1])
        return rows

    def _events(self, read: _ViewRead, join: PointInTimeJoin) -> Iterator[pa.Table]:
        """The events of the days in which rows have a head."""
        days = join.head_days
        if read.events.snapshot_id is None or not len(days):
            return
        table, time = read.events.table, read.view.source.event_time
        first, last = int(days[0]), int(days[-1])
        if EVENT_DAY in self.lake.schema(table).names:
            filters: dict[str, Any] = {"partitions": {EVENT_DAY: (first, last + 1)}}
            if last - first + 1 > len(days):
                filters["where"] = {EVENT_DAY: days.tolist()}
        else:
            filters = {"partitions": {time: (first * DAY_MS, (last + 1) * DAY_MS)}}
        pinned = read.events.snapshot_id
        yield from _chunks(iter_batches(self.lake, table, join.event_columns, pinned, **filters))

    def _tile_groups(self, read: _ViewRead, join: PointInTimeJoin) -> Iterator[Iterator[pa.Table]]:
        """The tiles that can matter, all tiles of an entity in one group."""
        low, high = join.tile_range
        if read.tiles.snapshot_id is None or high <= low or not join.entities.count:
            return
        entities = join.entities.columns()
        kinds = list(read.view.keys.values())
        buckets = np.unique(bucket_of(entities, kinds, read.record.buckets)).tolist()
        where = None
        if join.entities.count <= FEW_ENTITIES:
            where = {
                key: Column(values).to_arrow(kind.arrow).unique().to_pylist()
                for (key, kind), values in zip(read.view.keys.items(), entities, strict=True)
            }
        pinned = snapshot(self.lake, read.tiles.table, read.tiles.snapshot_id)
        per_bucket = max(1, pinned.total_records // read.record.buckets)
        size = max(1, GROUP_TILES // per_bucket)
        for start in range(0, len(buckets), size):
            batches = iter_batches(
                self.lake,
                read.tiles.table,
                join.tile_columns,
                read.tiles.snapshot_id,
                partitions={
                    TILE_DAY: (low // DAY_MS, (high - 1) // DAY_MS + 1),
                    TILE_START: (low, high),
                },
                where=where,
                buckets=buckets[start : start + size],
            )
            yield _chunks(batches)


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
        refs: Sequence[FeatureRef],
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
            The features, in the order of the result's columns.
        rows
            An Arrow table, a pandas or Polars DataFrame, or anything with an Arrow stream:
            the keys of every view, and ``event_time_ms`` (int64 UTC milliseconds or a
            timestamp). Duplicates are fine; a row with a null key gets nulls.
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

    def pin(self, refs: Sequence[FeatureRef], *, as_of: int | None = None) -> PinnedRead:
        """Choose the snapshots of a read: the newest, or those of a time.

        Raises
        ------
        RequestError
            For no feature at all, or one that is named twice.
        """
        double = sorted({str(ref) for ref in refs if list(refs).count(ref) > 1})
        if double or not refs:
            raise RequestError(
                f"the feature {double[0]!r} is asked for twice"
                if double
                else "no feature is asked for; name some as 'view:feature', or a service"
            )
        events: dict[str, Pin] = {}
        reads = []
        for name in dict.fromkeys(ref.view for ref in refs):
            view = self._view(name)
            features = tuple(_feature(view, ref.feature) for ref in refs if ref.view == name)
            record = self._generation(view)
            # tiles first: the events are then at least as new as what the tiles hold
            tiles = Pin(record.table, self._pinned(record.table, as_of), record.incarnation)
            source = view.source.table
            if source not in events:
                events[source] = Pin(source, self._pinned(source, as_of))
            reads.append(_ViewRead(view, features, record, tiles, events[source]))
        return PinnedRead(self.lake, refs, reads, as_of)

    def _pinned(self, table: str, as_of: int | None) -> int | None:
        found = (
            latest_snapshot(self.lake, table)
            if as_of is None
            else snapshot_as_of(self.lake, table, as_of)
        )
        return None if found is None else found.id


def _chunks(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Batches put together to large ones: looking entities up has a cost per call."""
    held: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        held.append(batch)
        rows += batch.num_rows
        if rows >= CHUNK_ROWS:
            yield pa.Table.from_batches(held)
            held, rows = [], 0
    if held:
        yield pa.Table.from_batches(held)


def _feature(view: CompiledView, name: str) -> CompiledFeature:
    feature = view.feature(name)
    if feature is None:
        known = [f.name for f in view.features]
        raise UnknownNameError.of(f"feature of view {view.name!r}", name, known)
    return feature
