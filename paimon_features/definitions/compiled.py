"""A compiled feature view: partials, levels and features, the input of every engine."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, overload

import numpy as np

from paimon_features.core.documents.published_document import document_digest
from paimon_features.core.errors import RequestError
from paimon_features.core.expressions import Expression, parse
from paimon_features.core.expressions.evaluate import Program
from paimon_features.core.types.array_types import Ints
from paimon_features.core.types.schema import DataType
from paimon_features.core.windows import HOUR_MS, Window, floor_ms
from paimon_features.definitions.aggregates import Aggregate, Partial
from paimon_features.definitions.entity import Entity
from paimon_features.definitions.source import EventSource


@dataclass(frozen=True, slots=True)
class CompiledFeature:
    """One feature: an aggregate over one window.

    ``level`` is the index into the view's ``levels_ms`` of the cells that the window starts with:
    their step is the window's hop, for a lifetime the coarsest one. ``partials`` are names, in the
    order ``finish`` takes them.
    """

    name: str
    aggregate: Aggregate
    window: Window
    level: int
    partials: tuple[str, ...]
    type: DataType

    @property
    def window_ms(self) -> int | None:
        """The window's length; None for a lifetime and for a calendar unit."""
        return self.window.length if isinstance(self.window.length, int) else None

    @property
    def hop_ms(self) -> int:
        """The step to which the window's start is rounded down."""
        return self.window.hop_ms


@dataclass(frozen=True, slots=True)
class SkipRule:
    """An event for which ``condition`` is not true is counted and kept out of the tiles."""

    reason: str
    detail: str
    condition: Expression


class EventPrograms(NamedTuple):
    """The condition of a view followed by its skip rules, and its partials, each in order."""

    rules: Program
    partials: Program


@dataclass(frozen=True)
class CompiledView:
    """A feature view as the engines need it; nothing here names an engine.

    ``expressions`` are the partials of one event, by name, over the source's columns and
    ``__event_time`` and ``__tile_end``; ``where`` is the condition of the view's events (None:
    all). ``levels_ms`` are the cell sizes of the online store; the first is the tile, and each
    divides the next. ``read_behind_ms`` is how far, beyond the skew of the source, a read may lie
    before the newest event and be served online. ``partition_days`` are those of the tile table,
    None if they are chosen by the density of the events.
    """

    name: str
    source: EventSource
    entity: Entity
    tile_ms: int
    levels_ms: tuple[int, ...]
    where: Expression | None
    skip_rules: tuple[SkipRule, ...]
    partials: tuple[Partial, ...]
    expressions: Mapping[str, Expression]
    features: tuple[CompiledFeature, ...]
    scope: Mapping[str, DataType]
    buckets: int
    ttl_ms: int | None
    max_staleness_ms: int | None
    partition_days: int | None = None
    read_behind_ms: int = HOUR_MS

    @property
    def keys(self) -> Mapping[str, DataType]:
        """Entity key columns and their types, in order."""
        return self.entity.keys

    def table(self, generation: int) -> str:
        """Return the name of the tile table of a generation."""
        return f"tiles_{self.name}_g{generation}"

    def skipped_table(self, generation: int) -> str:
        """Return the name of the table that counts the events this view skipped."""
        return f"skipped_{self.name}_g{generation}"

    def feature(self, name: str) -> CompiledFeature | None:
        """Return the feature of that name, or None."""
        return next((f for f in self.features if f.name == name), None)

    @cached_property
    def partial(self) -> Mapping[str, Partial]:
        """Partials by name."""
        return {p.name: p for p in self.partials}

    @cached_property
    def programs(self) -> EventPrograms:
        """What is computed of single events, compiled once."""
        where = parse("TRUE", {}) if self.where is None else self.where
        return EventPrograms(
            Program([where, *(rule.condition for rule in self.skip_rules)]),
            Program([self.expressions[p.name] for p in self.partials]),
        )

    @cached_property
    def windows(self) -> tuple[Window, ...]:
        """The distinct windows of the features."""
        return tuple(dict.fromkeys(f.window for f in self.features))

    @cached_property
    def has_lifetime(self) -> bool:
        """Whether a feature has no start, so that no event may be dropped."""
        return any(window.length is None for window in self.windows)

    @cached_property
    def longest_ms(self) -> int | None:
        """All windows start less than this before the read; None if one has no start."""
        reaches = [window.reach_ms for window in self.windows]
        return None if None in reaches else max(r for r in reaches if r is not None)

    @cached_property
    def ends_at_any_time(self) -> bool:
        """Whether cells of the online store end where the windows do, so that no later event is in
        a read."""
        return self.tile_ms == 1 or all(window.kind == "hop" for window in self.windows)

    @cached_property
    def is_online(self) -> bool:
        """Whether the online store can serve its windows."""
        return bool(self.keys) and all(window.is_online for window in self.windows)

    def check_online(self) -> None:
        """Raise RequestError if the online store cannot serve the windows."""
        if not self.keys:
            raise RequestError(
                f"feature view {self.name!r} has no keys: it aggregates all events, for "
                "'paimon-features fit' and 'monitor'; the online store stores records of entities"
            )
        if not self.is_online:
            raise RequestError(
                f"feature view {self.name!r} has exact windows over tiles of {self.tile_ms} ms: "
                "the online store contains tiles, and exact edges lie within a tile. "
                "Read it from the lake (get_historical_features), keep single events with "
                "tile='1ms', or choose kind='hop' (the same number online and offline) or "
                "'sawtooth'"
            )

    @cached_property
    def ending_last(self) -> tuple[Window, ...]:
        """A subset of the windows, one of which ends last at any read; mostly a single one."""
        return _undominated(
            self.windows,
            lambda w, o: o.offset_ms <= w.offset_ms and w.end_step_ms % o.end_step_ms == 0,
        )

    @cached_property
    def starting_first(self) -> tuple[Window, ...]:
        """A subset of the windows, one of which starts first at any read."""
        lifetimes = [window for window in self.windows if window.length is None]
        return tuple(lifetimes[:1]) or _undominated(self.windows, _starts_first)

    @overload
    def horizon(self, as_of_ms: int) -> int: ...
    @overload
    def horizon(self, as_of_ms: Ints) -> Ints: ...
    def horizon(self, as_of_ms: int | Ints) -> int | Ints:
        """Return the end (exclusive) of the events that a read at ``as_of_ms`` uses.

        It is the end of the window that ends last: ``as_of_ms`` itself, except for hop windows, and
        where all windows have an offset.
        """
        last: int | Ints = _extreme(np.maximum, [w.end(as_of_ms) for w in self.ending_last])
        return last

    @overload
    def known_from(self, as_of_ms: int) -> int: ...
    @overload
    def known_from(self, as_of_ms: Ints) -> Ints: ...
    def known_from(self, as_of_ms: int | Ints) -> int | Ints:
        """Return the earliest time (inclusive) of the newest event of a known entity.

        Events from the horizon on do not count. It is the start of the window that starts
        first, or ``horizon - ttl`` if that is earlier: older events have left the online
        store too, so that training and serving agree on which entities are unknown.
        """
        starts = [window.start(as_of_ms) for window in self.starting_first]
        if self.ttl_ms is not None:
            starts.append(self.horizon(as_of_ms) - self.ttl_ms)
        first: int | Ints = _extreme(np.minimum, starts)
        return first

    @property
    def margin_ms(self) -> int:
        """How far a read may lie before the newest applied event and still be served online."""
        return self.source.max_skew_ms + self.read_behind_ms

    def keep_from(self, level: int, high_ms: int) -> int:
        """Return the start (inclusive) of the cells of ``level`` that an allowed read may still
        need.

        ``high_ms`` is the newest applied event time; every read at ``high_ms - margin_ms`` or later
        is served. Cells that end at or before the result can be dropped (merged into the lifetime
        cell, where the view has one and the level is the top).

        ::

            level 1   |=======|=======|=======|                 from the start
            level 0                           |===|===|         from the last border of level 1
                          start                           end
        """
        q = high_ms - self.margin_ms
        top = len(self.levels_ms) - 1
        above = self.levels_ms[min(level + 1, top)]
        # a read also needs the newest event before the horizon, wherever that is
        starts = [floor_ms(self.horizon(q), above)]
        for window, at in self._levels_of_windows:
            if at == level and window.length is not None:
                starts.append(window.start(q))
            elif at >= level:
                starts.append(floor_ms(window.end(q), above))
        return min(starts)

    @cached_property
    def _levels_of_windows(self) -> tuple[tuple[Window, int], ...]:
        return tuple(dict.fromkeys((f.window, f.level) for f in self.features))

    @cached_property
    def fingerprint(self) -> str:
        """Identifies a generation: equal if and only if the tile tables contain the same."""
        partials = [self._partial_document(p) for p in self.partials]
        document = {**self._events_of_tiles, "buckets": self.buckets, "partials": partials}
        if self.partition_days is not None:
            document["partition_days"] = self.partition_days
        return _digest(document)

    @cached_property
    def tile_contents(self) -> Mapping[str, str]:
        """Hashes of what a tile table contains: of each partial, and as "" of the events of tiles.

        Tiles of another definition can be read for the partials that have equal hashes in both,
        if the events of their tiles do too.
        """
        partials = {p.name: _digest(self._partial_document(p)) for p in self.partials}
        return {"": _digest(self._events_of_tiles), **partials}

    @property
    def _events_of_tiles(self) -> dict[str, object]:
        return {
            "source": self.source.table,
            "event_time": self.source.event_time,
            "keys": {name: kind.text for name, kind in self.keys.items()},
            "tile_ms": self.tile_ms,
            "where": None if self.where is None else self.where.text,
            "skip": sorted(rule.condition.text for rule in self.skip_rules),
        }

    def _partial_document(self, partial: Partial) -> list[str]:
        text = self.expressions[partial.name].text
        return [partial.name, partial.type.text, partial.merge.value, text]

    @cached_property
    def online_fingerprint(self) -> str:
        """Identifies a layout of online records: equal if the same cells are kept."""
        windows = [json.dumps(window.to_document()) for window in self.windows]
        limits = {p.name: p.limit for p in self.partials if p.limit is not None}
        return _digest(
            {
                **({"limits": limits} if limits else {}),
                "tiles": self.fingerprint,
                "levels_ms": self.levels_ms,
                "windows": sorted(windows),
                "ttl_ms": self.ttl_ms,
                "margin_ms": self.margin_ms,
            }
        )


def _undominated(
    windows: Iterable[Window], dominates: Callable[[Window, Window], bool]
) -> tuple[Window, ...]:
    """Return the windows without those for which another one is always as good."""
    kept: list[Window] = []
    for window in windows:
        if not any(dominates(window, other) for other in kept):
            kept = [other for other in kept if not dominates(other, window)] + [window]
    return tuple(kept)


def _starts_first(window: Window, other: Window) -> bool:
    """Return True if ``other`` never starts after ``window``, as far as a simple test shows."""
    if window.kind == "hop" or not isinstance(window.length, int):
        return False
    if not isinstance(other.length, int) or other.start_step_ms % window.start_step_ms:
        return False
    return other.length + other.offset_ms >= window.length + window.offset_ms


def _extreme(ufunc: np.ufunc, times: Sequence[int | Ints]) -> Any:
    """Return the least or greatest of one or more times, or of one or more arrays of times."""
    if isinstance(times[0], int):
        return min(times) if ufunc is np.minimum else max(times)
    return times[0] if len(times) == 1 else ufunc.reduce(times)


def _digest(document: object) -> str:
    return document_digest(document)[:16]
