"""The values that should have been served, from the tiles of a snapshot and from raw events.

*Tiles* of the snapshot that the store had applied are folded from scratch, without a store, a delta
or a compare-and-set in between, and read as of the same time by the same clock. This is possible
as long as the snapshot exists.

*Events* go through the oracle, which knows neither tiles nor engines. It is not recorded which
events a snapshot of the tile table contains; but each tile counts its events. If it counts all
events of its time, it contains all of them; if it counts fewer, the first ones to arrive are used.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from paimon_features.core.columns.column import Column
from paimon_features.core.types.schema import DataType
from paimon_features.core.windows import MAX_TIME_MS, floor_ms
from paimon_features.definitions import CompiledView, FeatureRef, FeatureView
from paimon_features.definitions.aggregates import ROWS, Merge
from paimon_features.definitions.event_partials import event_columns
from paimon_features.definitions.own_events import EventReads, RequestEvents
from paimon_features.lake import Lake, read_arrow
from paimon_features.lake.metadata.snapshots import ref_of
from paimon_features.lake.specs import INGEST_TIME_MS, TILE_START
from paimon_features.online.materialize.record_fold import merge, tile_delta
from paimon_features.online.store import MemoryStore
from paimon_features.online.store.codec import RecordLayout
from paimon_features.online.store.keys import ViewKeys
from paimon_features.online.store.markers import EpochContent, Marker, ViewState
from paimon_features.online.store.store import Write
from paimon_features.serving.reading.fetcher import FeatureFetcher
from paimon_features.serving.request_log.log_rows import dumps, loads, plain
from paimon_features.testing.reference.compare import differs
from paimon_features.testing.reference.features import Entered, entered
from paimon_features.testing.reference.tiler import event_rows

Key = tuple[Any, ...]
"""The keys of an entity as the log writes them: dates as days."""
MAX_EVENTS = 20_000
"""An entity with more events is only compared with its tiles: the oracle is a loop."""
_EPOCH = "1"
_PROJECT = "verify"


def key_values(kind: DataType, values: Collection[Any]) -> list[Any]:
    """Return the keys as a filter takes them."""
    if kind.text == "date":
        dates: list[Any] = pa.array(list(values), pa.int32()).view(pa.date32()).to_pylist()
        return dates
    return list(values)


def of_entities(
    lake: Lake,
    table: str,
    keys: Mapping[str, DataType],
    entities: Collection[Key],
    columns: Sequence[str],
    snapshot_id: int | None = None,
) -> pa.Table:
    """Return the rows of some entities, at a snapshot or the newest one."""
    where = {
        name: key_values(kind, {entity[i] for entity in entities})
        for i, (name, kind) in enumerate(keys.items())
    }
    ref = None if snapshot_id is None else ref_of(lake, table, snapshot_id)
    rows = read_arrow(lake, table, columns, ref, where=where)
    if len(keys) == 1:
        return rows
    row_keys = entities_of(rows, keys)
    return rows.filter(pa.array([entity in entities for entity in row_keys], pa.bool_()))


def entities_of(rows: pa.Table, keys: Mapping[str, DataType]) -> list[Key]:
    """Return the entity of each row."""
    columns = [
        plain(kind, rows.column(name).combine_chunks().cast(kind.arrow).to_pylist())
        if rows.num_rows
        else []
        for name, kind in keys.items()
    ]
    return list(zip(*columns, strict=True))


class ExpectedFromTiles:
    """Some entities of a view by the tiles of one snapshot, read at ``first_as_of_ms`` or later."""

    def __init__(
        self,
        lake: Lake,
        view: CompiledView,
        table: str,
        snapshot_id: int,
        entities: set[Key],
        first_as_of_ms: int,
    ) -> None:
        self.view = view
        self._types = {f.name: f.type for f in view.features}
        self._time_ms = first_as_of_ms
        columns = [*view.keys, TILE_START, *(p.name for p in view.partials)]
        tiles = of_entities(lake, table, view.keys, entities, columns, snapshot_id)
        self.counts: dict[Key, dict[int, int]] = {}
        """The number of events in each tile of an entity, by its start."""
        tile_keys = entities_of(tiles, view.keys)
        starts, counts = (tiles.column(name).to_pylist() for name in (TILE_START, ROWS.name))
        for entity, start, count in zip(tile_keys, starts, counts, strict=True):
            self.counts.setdefault(entity, {})[start] = count
        store = _store_of(view, snapshot_id, tiles, first_as_of_ms)
        self._fetcher = FeatureFetcher(_PROJECT, [view], store, clock=lambda: self._time_ms)

    def answer(
        self, entity: Key, features: Sequence[str], as_of_ms: int, event: pa.Table | None = None
    ) -> tuple[dict[str, Any], dict[str, str]]:
        """Return values and statuses (never STALE) at ``as_of_ms``, as an online read has them.

        ``event`` is the event of the request, one row (``event_of_row``).
        """
        self._time_ms = as_of_ms
        refs = [FeatureRef(self.view.name, name) for name in features]
        keys = {
            name: pa.array(key_values(kind, [value]), kind.arrow)
            for (name, kind), value in zip(self.view.keys.items(), entity, strict=True)
        }
        if event is None:
            got = self._fetcher.get(refs, keys, as_of_ms)
        else:
            reads = EventReads.of(self.view.source, {}, [self.view], {})
            columns = {
                name: Column.from_arrow(event.column(name).combine_chunks())
                for name in event.column_names
            }
            got = self._fetcher.get_event(refs, RequestEvents(reads, columns))
        values = {}
        for name in features:
            kind = self._types[name]
            [value] = plain(kind, got.table.column(name).combine_chunks().to_pylist())
            # in the form in which the log is read: dates in lists as days, say
            values[name] = loads(kind, json.loads(dumps(value)))
        return values, {name: got.statuses.column(name)[0].as_py() for name in features}


def event_of_row(
    view: CompiledView, entity: Key, as_of_ms: int, logged: Mapping[str, Any]
) -> pa.Table:
    """Return the event of a logged request, from its row: one row of the view's source.

    Raises
    ------
    KeyError
        For a column that the view needs and the log lacks.
    """
    schema, arrays = view.source.schema, {}
    row = {**logged, **dict(zip(view.keys, entity, strict=True)), view.source.event_time: as_of_ms}
    for name in event_columns(view):
        arrays[name] = pa.array([loads(schema[name], row[name])], schema[name].arrow)
    return pa.table(arrays)


def _store_of(view: CompiledView, snapshot: int, tiles: pa.Table, high_ms: int) -> MemoryStore:
    """Return the tiles as records of a store.

    Nothing that a read at ``high_ms`` needs is pruned.
    """
    layout, keys, store = RecordLayout(view), ViewKeys(_PROJECT, view.name), MemoryStore()
    content = EpochContent("tiles", 1, 0, view.online_fingerprint, buckets=1)
    bucket = keys.bucket(_EPOCH, 0)
    # never stale: whether it was is only known from the log
    marker = Marker(snapshot, 0, 0, high_ms, current_ms=MAX_TIME_MS, built_ms=high_ms)
    writes = [
        Write(keys.state, None, ViewState(_EPOCH, content).to_bytes()),
        Write(bucket.marker, None, marker.to_bytes()),
    ]
    rows = tile_delta(layout, [(snapshot, tiles)] if tiles.num_rows else [])
    records = merge(
        layout, [None] * len(rows.entities), rows,
        bucket=0, incarnation=0, snapshot=snapshot, high_ms=high_ms,
    )  # fmt: skip
    for entity, record in zip(rows.entities, records, strict=True):
        if record is not None:
            writes.append(Write(bucket.record_stem + entity, None, record))
    store.compare_and_set_many(writes)
    return store


@dataclass(frozen=True, slots=True)
class EventsOfTiles:
    """The events in some tiles; ``all_of_them``: there are no others."""

    events: Entered
    all_of_them: bool


class EventsBehindTiles:
    """The raw events of some entities, to find those that tiles were computed from."""

    def __init__(self, lake: Lake, view: FeatureView, entities: set[Key]) -> None:
        self._view = view
        self._why_not: dict[Key, str] = {}
        self._events: dict[Key, dict[int, list[dict[str, Any]]]] = {}
        source = view.source
        self._none = ""
        if source.retraction is not None:
            self._none = "a source with retractions"
            return
        keys = view.compiled.keys
        columns = [*source.schema, INGEST_TIME_MS]
        table = of_entities(lake, source.table, keys, entities, columns)
        by_entity: dict[Key, list[Any]] = {}
        for entity, event in zip(entities_of(table, keys), event_rows(table), strict=True):
            by_entity.setdefault(entity, []).append(event)
        tile_ms = view.compiled.tile_ms
        for entity, events in by_entity.items():
            if len(events) > MAX_EVENTS:
                self._why_not[entity] = f"entities with more than {MAX_EVENTS:,} events"
                continue
            by_tile = self._events[entity] = {}
            for event in entered(view, events):
                start = floor_ms(event[source.event_time], tile_ms)
                by_tile.setdefault(start, []).append(event)
            for of_tile in by_tile.values():
                of_tile.sort(key=lambda event: event[INGEST_TIME_MS])

    def of_tiles(self, entity: Key, counts: Mapping[int, int]) -> EventsOfTiles | str:
        """Return the events in tiles with these numbers of events, or why they cannot be
        determined."""
        if self._none or entity in self._why_not:
            return self._none or self._why_not[entity]
        by_tile = self._events.get(entity, {})
        chosen: list[dict[str, Any]] = []
        complete = by_tile.keys() <= counts.keys()
        for start, count in counts.items():
            events = by_tile.get(start, [])
            if len(events) < count:
                return "tiles of more events than there are (events dropped since?)"
            if len(events) > count:
                complete = False
                if events[count - 1][INGEST_TIME_MS] == events[count][INGEST_TIME_MS]:
                    return "tiles of some events of one moment"
            chosen += events[:count]
        return EventsOfTiles(Entered(chosen), complete)


def rounds(view: CompiledView, feature: str) -> bool:
    """Return True if a feature's value depends on the order of additions: sums of floats."""
    of = view.feature(feature)
    assert of is not None
    sums = (Merge.SUM, Merge.DECAYED_SUM)
    return any(p.type.is_float and p.merge in sums for p in view.partials if p.name in of.partials)


def same(got: Any, wanted: Any, near: bool) -> bool:
    """Return True if two values are equal: to the bit or, with ``near``, up to the order of
    additions."""
    if not near:
        return not differs(got, wanted, 0.0)
    if isinstance(got, list | tuple) and isinstance(wanted, list | tuple):
        pairs = zip(got, wanted, strict=False)
        return len(got) == len(wanted) and all(same(a, b, near) for a, b in pairs)
    if isinstance(got, float) and isinstance(wanted, float):
        return abs(got - wanted) <= 1e-9 * max(abs(got), abs(wanted), 1e-9)
    return not differs(got, wanted, 0.0)
