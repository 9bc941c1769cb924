"""The event of a request: what a read of features as of an event adds to the stored events.

A service with ``request=`` is read with one event of a source. The read is as of the event's time
``t``, so stored events at ``t`` or later are not counted, the event itself included where it has
been ingested already. It is counted from the request instead, as one more row of partials of the
views over its source: once, however often it is sent, ingested or read. Its age is 0, so it has
weight 1 in decayed aggregates, also in those of hop windows, which end before ``t``.

Online reads and point-in-time joins both add it here, to the merged partials of a window.
"""

from __future__ import annotations

import decimal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from paimon_features.core._arrow import pa
from paimon_features.core.columns.column import Column
from paimon_features.core.errors import DefinitionError, RequestError, shortened, unknown_name
from paimon_features.core.expressions import evaluate, parse
from paimon_features.core.types.array_types import Bools, Ints
from paimon_features.core.types.schema import DataType, Timestamp
from paimon_features.core.windows import MAX_TIME_MS, MIN_TIME_MS
from paimon_features.definitions.aggregates import EVENT_TIME, TILE_END, Merge, Partial
from paimon_features.definitions.aggregates.fold import Columns, decay_to, merge_rows
from paimon_features.definitions.compiled import CompiledView
from paimon_features.definitions.event_partials import event_columns
from paimon_features.definitions.request import is_input_type, request_columns
from paimon_features.definitions.request_values import parser_of_text, text_form
from paimon_features.definitions.selection import Selection
from paimon_features.definitions.skipped import NO_RULE, is_true, verdicts
from paimon_features.definitions.source import EventSource
from paimon_features.definitions.table_view import CompiledTable


@dataclass(frozen=True, eq=False)
class EventReads:
    """How the features of a service are read with an event of ``source``.

    ``keys`` are the columns with the entity keys, by the name of the key, and ``needed`` all
    columns that the read uses.
    """

    source: EventSource
    keys: Mapping[str, str]
    needed: frozenset[str]
    columns_of: dict[str, Sequence[str]] = field(default_factory=dict, repr=False)
    """The columns that a view needs, by its fingerprint, as they were found."""

    @classmethod
    def of(
        cls,
        source: EventSource,
        renamed: Mapping[str, str],
        views: Iterable[CompiledView | CompiledTable],
        inputs: Mapping[str, DataType],
    ) -> EventReads:
        """Return how these views and request inputs are read; ``renamed`` keys have another column.

        Raises
        ------
        DefinitionError
            For a key or an input that is no column of the source, or of another type, and for a
            view over the source whose windows do not end at the time of an event.
        """
        keys: dict[str, str] = {}
        needed = {source.event_time}
        for view in views:
            for key, kind in view.keys.items():
                keys[key] = column = renamed.get(key, key)
                _check_column(source, column, kind, f"key {key!r} of view {view.name!r}")
                if column != key and view.source.name == source.name:
                    raise DefinitionError(
                        f"keys={dict(renamed)}: view {view.name!r} is over the request's source "
                        f"{source.name!r}, so its key {key!r} is the column of this name"
                    )
            if view.source.name != source.name or not isinstance(view, CompiledView):
                continue
            if not view.ends_at_any_time:
                raise DefinitionError(
                    f"view {view.name!r} cannot be read as of an event of its source: its online "
                    "cells are longer than a millisecond, so events after the one of the request "
                    "would be counted. Give the view tile='1ms' (single events are kept for a "
                    "short time) or kind='hop' (windows end at the last hop)"
                )
            needed.update(event_columns(view))
        for key in renamed.keys() - keys.keys():
            raise DefinitionError(f"keys={dict(renamed)}: {unknown_name('entity key', key, keys)}")
        for name, kind in inputs.items():
            _check_column(source, name, kind, f"request input {name!r}")
        return cls(source, keys, frozenset(needed.union(keys.values(), inputs)))

    def parse(self, event: Mapping[str, object]) -> RequestEvents:
        """Return an event given as a value per column.

        Raises
        ------
        RequestError
            For a column that the source does not have, a needed one that is missing, a value of
            another type, a number that is not finite, no time, or a retraction.
        """
        source = self.source
        if not hasattr(event, "keys"):
            raise RequestError(
                f"event is a {type(event).__name__}; expected a mapping of each column of source "
                f"{source.name!r} to its value"
            )
        for name in event:
            if name not in source.schema:
                message = unknown_name("column", name, source.schema, f"source {source.name!r}")
                raise RequestError(f"event: {message}")
        names = [name for name in source.schema if name in self.needed or name in event]
        for name in names:
            if name not in event:
                raise RequestError(
                    f"the event has no column {name!r}, which the features use "
                    f"({source.schema[name]!r}; null where it is unknown)"
                )
        kinds = {name: source.schema[name] for name in names}
        for name in source.time_columns.intersection(names):
            if not isinstance(event[name], int):
                kinds[name] = Timestamp  # the same number, from a text or a datetime
        events = RequestEvents(self, _columns(kinds, event))
        events.check()
        return events


@dataclass(frozen=True, eq=False)
class RequestEvents:
    """Events of requests, one per row of a read: columns of their source."""

    reads: EventReads
    columns: Mapping[str, Column]

    @classmethod
    def concat(cls, parts: Sequence[RequestEvents]) -> RequestEvents:
        """Return the events of several requests of one source, in sequence."""
        if len(parts) == 1:
            return parts[0]
        names = [name for name in parts[0].columns if all(name in p.columns for p in parts)]
        columns = {name: Column.concat([part.columns[name] for part in parts]) for name in names}
        return cls(parts[0].reads, columns)

    def __len__(self) -> int:
        return len(self.times_ms)

    @property
    def source(self) -> EventSource:
        """The source of the events."""
        return self.reads.source

    @property
    def times_ms(self) -> Ints:
        """The event times, UTC ms."""
        return self.columns[self.source.event_time].values

    @cached_property
    def values(self) -> Mapping[str, list[Any]]:
        """The Python values of each column."""
        schema = self.source.schema
        return {name: column.to_pylist(schema[name]) for name, column in self.columns.items()}

    @property
    def entities(self) -> dict[str, object]:
        """The values of each entity key."""
        return {key: self.values[column] for key, column in self.reads.keys.items()}

    def inputs(self, selection: Selection) -> dict[str, object] | None:
        """Return the request inputs of a selection, which are columns of these names."""
        return {name: self.values[name] for name in selection.inputs} or None

    def of_view(self, view: CompiledView) -> OwnEvents | None:
        """Return the events as rows of a view; None for a view of another source."""
        if view.source.name != self.source.name:
            return None
        names = self.reads.columns_of.get(view.fingerprint)
        if names is None:
            names = self.reads.columns_of[view.fingerprint] = event_columns(view)
        return OwnEvents(view, {name: self.columns[name] for name in names}, self.times_ms)

    def check(self) -> None:
        """Raise RequestError for an event without a valid time, and for a retraction."""
        source, time = self.source, self.columns[self.source.event_time]
        times = time.values
        if not time.mask.all() or ((times < MIN_TIME_MS) | (times > MAX_TIME_MS)).any():
            given = times[0].item() if time.mask.all() else None
            raise RequestError(
                f"event: {source.event_time!r} is {given}; expected UTC milliseconds within the "
                "years 1 to 9999"
            )
        if source.retraction is not None and source.retraction in self.columns:
            assert source.withdrawal is not None
            retracted = parse(source.withdrawal, source.schema)
            if is_true(evaluate(retracted, self.columns, len(self))).any():
                raise RequestError(
                    f"event: {source.retraction!r} says that it is a retraction; the event of a "
                    "request is added"
                )


def _check_column(source: EventSource, column: str, kind: DataType, what: str) -> None:
    if column not in source.schema:
        message = unknown_name("column", column, source.schema, f"source {source.name!r}")
        raise DefinitionError(f"{what}: {message}; keys= maps an entity key to another column")
    if source.schema[column] != kind:
        raise DefinitionError(
            f"{what} is {kind!r}, and column {column!r} of source {source.name!r} is "
            f"{source.schema[column]!r}"
        )


def _columns(kinds: Mapping[str, DataType], event: Mapping[str, object]) -> dict[str, Column]:
    out = {}
    for name, kind in kinds.items():
        value = event[name]
        parse_text = parser_of_text(kind)
        if isinstance(value, str) and parse_text is not None:
            try:
                value = parse_text(value)
            except (ValueError, decimal.InvalidOperation):
                raise RequestError(
                    f"event column {name!r}: {shortened(str(value))!r} is not a valid {kind!r}; "
                    f"expected {text_form(kind)}"
                ) from None
        if is_input_type(kind):
            out[name] = request_columns({name: kind}, {name: [value]}, 1, "event column")[name]
            continue
        try:
            out[name] = Column.from_arrow(pa.array([value], kind.arrow))
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise RequestError(f"event column {name!r}: expected {kind!r}; {error}") from error
    return out


class OwnEvents:
    """Events of requests as rows of one view, one per row of a read.

    ``member`` says which of them are counted: those that fulfil the view's ``where``, and that no
    rule of the view skips.
    """

    def __init__(self, view: CompiledView, columns: Columns, times_ms: Ints) -> None:
        self.view, self._columns, self._times_ms = view, columns, times_ms
        self._members, self._broken = verdicts(view, columns, len(times_ms))
        self.member: Bools = self._members & (self._broken == NO_RULE)
        self._known: dict[bytes, dict[str, Column]] = {}

    def part(self, rows: slice | Ints) -> OwnEvents:
        """Return some of the rows."""
        columns = {
            name: column.part(rows) if isinstance(rows, slice) else column.take(rows)
            for name, column in self._columns.items()
        }
        return OwnEvents(self.view, columns, self._times_ms[rows])

    @cached_property
    def states(self) -> list[str]:
        """How each event is handled: ``counted``, ``not a member``, or ``skipped`` with a rule."""
        rules = [f"skipped: {r.reason} ({r.detail})" for r in self.view.skip_rules]
        broken = zip(self._members.tolist(), self._broken.tolist(), strict=True)
        return [
            "not a member" if not member else "counted" if number == NO_RULE else rules[number]
            for member, number in broken
        ]

    def join(
        self,
        partials: Sequence[Partial],
        merged: Sequence[Column],
        read_ms: Ints,
        since_ms: Ints,
    ) -> tuple[list[Column], Ints]:
        """Add each row's event to its merged partials; return them and the new ``since_ms``.

        All arrays have shape ``(windows * rows,)``; ``read_ms`` and ``since_ms`` are those of
        ``Reading``. Where an event is added, decayed partials are relative to the time of the
        read, and ``since_ms`` is 0.
        """
        member = np.tile(self.member, len(since_ms) // max(1, len(self.member)))
        ages = np.where(member, since_ms, 0)
        out = []
        for partial, column in zip(partials, merged, strict=True):
            if partial.merge is Merge.DECAYED_SUM:
                assert partial.half_life_ms is not None
                column = decay_to(column, ages, partial.half_life_ms)
            out.append(merge_rows(partial, column, self._partials(partial, read_ms)))
        return out, np.where(member, 0, since_ms)

    def _partials(self, partial: Partial, read_ms: Ints) -> Column:
        """Return a partial of each event for each window, shape ``(windows * rows,)``."""
        rows = len(self.member)
        if not rows:
            return self.partials_at(read_ms)[partial.name]
        # axes: windows, rows
        times = np.asarray(read_ms, np.int64).reshape(-1, rows)
        if (times == times[0]).all():
            one = self.partials_at(times[0])[partial.name]
            windows = len(times)
            return Column(np.tile(one.values, windows), np.tile(one.mask, windows))
        return Column.concat([self.partials_at(of_window)[partial.name] for of_window in times])

    def partials_at(self, read_ms: Ints) -> dict[str, Column]:
        """Return the partials of each event, as if it happened at the time of the read."""
        partials = self._known.get(read_ms.tobytes())
        if partials is None:
            times = Column(np.ascontiguousarray(read_ms))
            columns: dict[str, Any] = {**self._columns, EVENT_TIME: times, TILE_END: times}
            values = self.view.programs.partials.run(columns, len(read_ms))
            partials = self._known[read_ms.tobytes()] = {
                partial.name: Column(column.values, column.mask & self.member)
                for partial, column in zip(self.view.partials, values, strict=True)
            }
        return partials
