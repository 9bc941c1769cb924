"""What is read for one view: its join, its two tables, and the relevant parts of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from paimon_features.core.columns.column import Column, numpy_type
from paimon_features.core.types.array_types import Bools, Ints
from paimon_features.core.types.schema import DataType
from paimon_features.core.windows import DAY_MS, MAX_TIME_MS, MIN_TIME_MS, floor_ms
from paimon_features.definitions import CompiledFeature, CompiledTable, CompiledView, TableFeature
from paimon_features.definitions.event_partials import event_columns
from paimon_features.definitions.own_events import EventReads, OwnEvents
from paimon_features.lake.side_folder.generations import GenerationRecord
from paimon_features.offline.inputs.checked_columns import event_table, key_columns
from paimon_features.offline.joins.entity_codes import EntityCodes, distinct
from paimon_features.offline.joins.newest_version import NewestVersionJoin
from paimon_features.offline.joins.point_in_time import PointInTimeJoin, tile_range
from paimon_features.offline.joins.window_edges import edge_tiles
from paimon_features.offline.reading.entity_hash import KeyFilter
from paimon_features.offline.reading.pinning import Pin
from paimon_features.offline.reading.uncut_days import UncutDays
from paimon_features.tiles.rollups import Rollups

_OWN = "event column "
"""Begins the names of the columns of a row's own event, behind its keys."""
_OBJECT_BYTES = 80
"""Bytes of a text or decimal as a Python object, with its reference."""
_SORTED_BYTES = 140
"""Bytes per row of a join in addition to its results: keys, orders, times, edge cells."""


class ViewJoin(Protocol):
    """Features of one view for rows in memory; see ``PointInTimeJoin``."""

    entities: EntityCodes

    @property
    def held_tiles(self) -> int:
        """Tiles of requested entities that are in memory."""
        ...

    @property
    def held_events(self) -> int:
        """The same of events."""
        ...

    @property
    def event_columns(self) -> list[str]:
        """Required columns of the events table."""
        ...

    @property
    def tile_columns(self) -> list[str]:
        """Required columns of the tile table."""
        ...

    def add_events(self, events: pa.Table) -> None:
        """Add the relevant events; before any tiles."""
        ...

    def join_tiles(self, tables: Iterable[pa.Table]) -> int:
        """Compute the rows of these tiles' entities; returns their number."""
        ...

    def table(self) -> pa.Table:
        """Return a column per feature, then a status column (codes) per feature."""
        ...


class ReadRequirements(ABC):
    """Which parts of a view's tables rows need; ``observe`` all rows first.

    With ``memory_bytes`` it also keeps a filter of requested entities and tiles, so that other
    data are skipped.
    """

    def __init__(self, memory_bytes: int = 0) -> None:
        self.first_ms, self.last_ms = MAX_TIME_MS, MIN_TIME_MS
        self.requested = KeyFilter(memory_bytes) if memory_bytes else None

    @property
    def none(self) -> bool:
        """Whether no row has a non-null entity."""
        return self.first_ms > self.last_ms

    def observe(self, as_of_ms: Ints, hashes: Ints) -> None:
        """Record rows with an entity: their times, and entity hashes (used by the filter)."""
        if len(as_of_ms):
            self.first_ms = min(self.first_ms, int(as_of_ms.min()))
            self.last_ms = max(self.last_ms, int(as_of_ms.max()))
            if self.requested is not None:
                self.requested.add(hashes, np.zeros(len(hashes), np.int64))

    @abstractmethod
    def needs_events(self, days: range | None) -> bool:
        """Return True if events of any of these days are relevant (None: the table has no days)."""

    @abstractmethod
    def tile_days(self) -> tuple[int, int] | None:
        """First and last day (both inclusive) of relevant tiles; None if there are none."""

    @abstractmethod
    def events(self, hashes: Ints, time_ms: Ints) -> Bools:
        """Return the mask of events that may be relevant, by entity and time; needs the filter."""

    def is_uncut(self, first_day: int, end_day: int) -> bool:
        """Return True if the tiles of these days (end exclusive) may be read rolled up, one per
        entity."""
        return False

    def entities(self, hashes: Ints) -> Bools:
        """Return the mask of entities that may have been requested; needs the filter."""
        assert self.requested is not None
        return self.requested.has(hashes, np.zeros(len(hashes), np.int64))


class ViewRead(ABC):
    """One view at pinned snapshots: how it is joined, and the memory that takes."""

    name: str
    view: CompiledView | CompiledTable
    keys: Mapping[str, DataType]
    entity: str
    types: Mapping[str, DataType]
    """The type of each requested feature, in order."""
    event_time: str
    buckets: int
    tiles: Pin | None
    events: Pin
    rollups: Rollups | None = None
    """Rolled-up tiles of complete days, if any."""

    @property
    def row_columns(self) -> Mapping[str, DataType]:
        """Columns of the entity rows that the join uses: the keys, and those of their events."""
        return self.keys

    def typed_rows(self, rows: pa.Table) -> pa.Table:
        """Return the ``row_columns`` of entity rows; RequestError for one of another type."""
        return key_columns(rows, self.keys, self.entity)

    def of_events(self, reads: EventReads) -> ViewRead:
        """Return this read for entity rows that are events of a request's source."""
        return self

    @abstractmethod
    def join(self, keys: pa.Table, as_of_ms: Ints) -> ViewJoin:
        """Return the join of these rows, which are their ``row_columns``."""

    @abstractmethod
    def needs(self, memory_bytes: int = 0) -> ReadRequirements:
        """Return the requirements of rows; observe them next."""

    @abstractmethod
    def definition(self, feature: str) -> Mapping[str, Any]:
        """Return everything that determines a feature's values, apart from the tables."""

    @property
    def pins(self) -> tuple[Pin, ...]:
        """The tables that are read."""
        return (self.events,) if self.tiles is None else (self.tiles, self.events)

    @property
    def row_bytes(self) -> int:
        """Approximate bytes per row during the join."""
        keys = sum(3 * width(kind) for kind in self.row_columns.values())
        return _SORTED_BYTES + keys + self.result_bytes + sum(map(width, self.types.values()))

    @property
    def result_bytes(self) -> int:
        """Approximate bytes of the results of one row."""
        return sum(width(kind) + 2 for kind in self.types.values())

    @abstractmethod
    def table_bytes(self) -> tuple[int, int]:
        """Return the approximate bytes per tile and per event during the join."""


class FeatureViewRead(ViewRead):
    """A feature view: tiles, and raw events where a window starts or ends within a tile.

    ``counts_rows`` is true where the entity rows are events of the view's source, each of which
    counts itself (``own_events``).
    """

    view: CompiledView

    def __init__(
        self,
        view: CompiledView,
        features: Sequence[CompiledFeature],
        record: GenerationRecord,
        tiles: Pin,
        events: Pin,
        rollups: Rollups | None = None,
    ) -> None:
        self.counts_rows = False
        self.view, self.features, self.buckets = view, tuple(features), record.buckets
        self.name, self.keys, self.entity = view.name, view.keys, view.entity.name
        self.types = {f.name: f.type for f in features}
        self.event_time = view.source.event_time
        self.tiles, self.events, self.rollups = tiles, events, rollups

    def of_events(self, reads: EventReads) -> FeatureViewRead:
        out = copy(self)
        out.counts_rows = reads.source.name == self.view.source.name
        return out

    @property
    def row_columns(self) -> Mapping[str, DataType]:
        if not self.counts_rows:
            return self.keys
        schema = self.view.source.schema
        return {**self.keys, **{_OWN + name: schema[name] for name in event_columns(self.view)}}

    def typed_rows(self, rows: pa.Table) -> pa.Table:
        keys = super().typed_rows(rows)
        if not self.counts_rows:
            return keys
        events = event_table(self.view, rows)
        for name in events.column_names:
            keys = keys.append_column(_OWN + name, events.column(name))
        return keys

    def untyped_rows(self, rows: pa.Table) -> pa.Table:
        """Return entity rows of which ``typed_rows`` returns these."""
        names = {name.removeprefix(_OWN): name for name in self.row_columns}
        return rows.select(list(names.values())).rename_columns(list(names))

    def own_events(self, rows: pa.Table) -> OwnEvents | None:
        """Return the events of rows (their ``row_columns``); None where they are not counted."""
        if not self.counts_rows:
            return None
        columns = {
            name: Column.from_arrow(rows.column(_OWN + name)) for name in event_columns(self.view)
        }
        return OwnEvents(self.view, columns, columns[self.event_time].values)

    def join(self, keys: pa.Table, as_of_ms: Ints) -> ViewJoin:
        own_events = self.own_events(keys)
        return _FeatureViewJoin(
            self.view, self.features, keys.select(list(self.keys)), as_of_ms, own_events
        )

    def needs(self, memory_bytes: int = 0) -> ReadRequirements:
        return _TileRequirements(self, memory_bytes)

    def definition(self, feature: str) -> Mapping[str, Any]:
        compiled = next(f for f in self.features if f.name == feature)
        return {
            "tiles": self.view.fingerprint,
            "aggregate": repr(compiled.aggregate),
            "window": compiled.window.to_document(),
            "ttl_ms": self.view.ttl_ms,
            **({"counts_own_event": True} if self._counts_own(compiled) else {}),
        }

    def _counts_own(self, feature: CompiledFeature) -> bool:
        return self.counts_rows and feature.aggregate.counts_own_event

    def table_bytes(self) -> tuple[int, int]:
        needed = {name for f in self.features for name in f.partials}
        partials = sum(width(self.view.partial[name].type) for name in needed)
        keys = sum(width(kind) for kind in self.keys.values())
        # read, concatenated, sorted, summed or laid out as a tree
        return 4 * partials + 3 * keys + 60, 4 * partials + 2 * keys + 80


class _FeatureViewJoin(PointInTimeJoin):
    def table(self) -> pa.Table:
        """Return the results in Arrow."""
        return self.results().table(self.features)


class _TileRequirements(ReadRequirements):
    def __init__(self, read: FeatureViewRead, memory_bytes: int) -> None:
        super().__init__(memory_bytes)
        self.read = read
        self._days: Ints = np.zeros(0, np.int64)
        self._cuts = None if read.rollups is None else UncutDays(read.view, read.features)

    def observe(self, as_of_ms: Ints, hashes: Ints) -> None:
        super().observe(as_of_ms, hashes)
        if self._cuts is not None:
            self._cuts.observe(as_of_ms)
        for tiles, some in edge_tiles(self.read.view, self.read.features, as_of_ms):
            self._days = np.union1d(self._days, distinct(tiles // DAY_MS))
            if self.requested is not None:
                self.requested.add(hashes[some], tiles)

    def needs_events(self, days: range | None) -> bool:
        if days is None or not len(self._days):
            return bool(len(self._days))
        place = int(np.searchsorted(self._days, days.start))
        return place < len(self._days) and int(self._days[place]) < days.stop

    def tile_days(self) -> tuple[int, int] | None:
        if self.none:
            return None
        low, high = tile_range(self.read.view, self.first_ms, self.last_ms)
        return (low // DAY_MS, (high - 1) // DAY_MS) if high > low else None

    def is_uncut(self, first_day: int, end_day: int) -> bool:
        return self._cuts is not None and self._cuts.is_uncut(first_day, end_day)

    def events(self, hashes: Ints, time_ms: Ints) -> Bools:
        assert self.requested is not None
        return self.requested.has(hashes, floor_ms(time_ms, self.read.view.tile_ms))


class TableViewRead(ViewRead):
    """A table view: the versions of a plain table."""

    view: CompiledTable

    def __init__(self, view: CompiledTable, features: Sequence[TableFeature], pin: Pin) -> None:
        self.view = view
        self.name, self.keys, self.entity = view.name, view.keys, view.entity.name
        self.types = {f.name: f.type for f in features}
        self.event_time, self.buckets = view.source.event_time, 1
        self.tiles, self.events = None, pin

    def join(self, keys: pa.Table, as_of_ms: Ints) -> ViewJoin:
        return _TableViewJoin(self.view, list(self.types), keys, as_of_ms)

    def needs(self, memory_bytes: int = 0) -> ReadRequirements:
        return _TableRequirements(self, memory_bytes)

    def definition(self, feature: str) -> Mapping[str, Any]:
        source = self.view.source
        return {
            "table": source.table,
            "event_time": source.event_time,
            "created_time": source.created_time,
            **({"known_by": source.created_time} if source.created_time else {}),
            "columns": [f.name for f in self.view.features],
            "keys": list(self.keys),
            "ttl_ms": self.view.ttl_ms,
            "closed": self.view.closed,
        }

    def table_bytes(self) -> tuple[int, int]:
        values = sum(width(f.type) for f in self.view.features)
        return 0, 2 * (values + sum(width(kind) for kind in self.keys.values())) + 80


class _TableViewJoin(NewestVersionJoin):
    tile_columns: list[str] = []  # noqa: RUF012 - nothing writes into it
    held_tiles = 0

    def join_tiles(self, tables: Iterable[pa.Table]) -> int:
        """No effect: a plain table has no tiles."""
        return 0

    def table(self) -> pa.Table:
        """Return the results in Arrow."""
        result, status = self.results()
        for name in self.features:
            result = result.append_column(f"{name}__status", pa.array(status))
        return result


class _TableRequirements(ReadRequirements):
    def __init__(self, read: TableViewRead, memory_bytes: int) -> None:
        super().__init__(memory_bytes)
        self.ttl_ms = read.view.ttl_ms

    def needs_events(self, days: range | None) -> bool:
        if days is None:
            return not self.none
        early = self.ttl_ms is not None and days.stop <= (self.first_ms - self.ttl_ms) // DAY_MS
        return not early and days.start <= self.last_ms // DAY_MS

    def tile_days(self) -> tuple[int, int] | None:
        return None

    def events(self, hashes: Ints, time_ms: Ints) -> Bools:
        inside = self.entities(hashes) & (time_ms <= self.last_ms)
        if self.ttl_ms is not None:
            inside &= time_ms >= self.first_ms - self.ttl_ms
        return inside


def width(kind: DataType) -> int:
    """Return the approximate bytes of a value of this type in NumPy."""
    if kind.text.startswith("list"):
        return 8 * (getattr(kind, "length", None) or 10)
    size = numpy_type(kind).itemsize
    return _OBJECT_BYTES if numpy_type(kind).kind == "O" else size


def arrow_width(schema: pa.Schema) -> int:
    """Return the approximate bytes of a row of this schema in Arrow."""
    total = 0
    for field in schema:
        try:
            total += max(field.type.bit_width // 8, 1)
        except ValueError:  # of variable length
            total += 32
    return total


def empty_join(read: ViewRead) -> ViewJoin:
    """Return a join without rows, to find the columns that joins of this view need."""
    schema = pa.schema([pa.field(name, kind.arrow) for name, kind in read.row_columns.items()])
    return read.join(schema.empty_table(), np.zeros(0, np.int64))
