"""The values of one entity, straight from its events, with the events behind each of them.

Neither tiles nor a store are read: a view can be looked at before it is applied. The steps are
those of ``definitions.evaluate``, which every engine agrees with.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from paimon_features.core.columns.column import Column, one_array
from paimon_features.core.errors import RequestError
from paimon_features.core.notebook.markup import card, columns_table, facts, table, utc
from paimon_features.core.types.array_types import Bools, Ints
from paimon_features.core.types.statuses import Status
from paimon_features.core.windows import Window, floor_ms, parse_duration
from paimon_features.definitions import CompiledFeature, FeatureView, evaluate
from paimon_features.definitions.aggregates.fold import NEVER_MS
from paimon_features.definitions.finishing import by_window, entity_statuses
from paimon_features.definitions.skipped import NO_RULE, verdicts
from paimon_features.offline.inputs.checked_columns import event_table
from paimon_features.project.preview.preview_data import PreviewData, PreviewEvent, PreviewWindow
from paimon_features.project.preview.timeline import Picture, draw

SAMPLES = 5
"""Entities whose values are shown next to those of the chosen one."""
MAX_EVENTS = 200_000
"""Events of one entity that are looked at: the newest ones before the read."""


@dataclass(frozen=True)
class Preview(PreviewData):
    """The values of ``view`` for ``entity`` as of ``as_of_ms``, and what they are computed from.

    ``status`` is that of all values: PRESENT, EXPIRED or MISSING (they are null then). ``events``
    are in the order of time; ``samples`` has the values of some entities, by column.
    """

    def timeline(self, last: str | None = None) -> Picture:
        """Draw events, tiles and windows; ``last``, such as ``"2d"``, shows the time before the
        read only.

        Raises
        ------
        DefinitionError
            For a ``last`` that is no duration.
        """
        return draw(self, None if last is None else parse_duration(last))

    def _repr_html_(self) -> str:
        keys = ", ".join(f"{name} {value}" for name, value in self.entity.items())
        left_out: dict[str, int] = {}
        for event in self.events:
            if event.left_out is not None:
                left_out[event.left_out] = left_out.get(event.left_out, 0) + 1
        rows = [
            (w.window.name or "lifetime", w.window.kind, utc(w.start_ms), utc(w.end_ms), w.events,
             utc(w.before_ms), utc(w.first_ms), utc(w.last_ms), utc(w.after_ms))
            for w in self.windows
        ]  # fmt: skip
        head = ("window", "kind", "start (inclusive)", "end (exclusive)", "events",
                "last before it", "first in it", "last in it", "first after it")  # fmt: skip
        pictures = [self.timeline().markup]
        near = self._near_ms
        if near is not None:
            pictures.append(draw(self, near).markup)
        return card(
            f"{self.view.name} of {keys} as of {utc(self.as_of_ms)} UTC: {self.status.name}",
            facts({"events": len(self.events), **left_out}),
            table(self.values.items(), ("feature", "value")),
            *pictures,
            table(rows, head),
            columns_table(self.samples),
        )

    @property
    def _near_ms(self) -> int | None:
        """How far back the shortest window can be seen, where the longest one hides it."""
        reaches = sorted(self.as_of_ms - w.start_ms for w in self.windows if w.window.length)
        return reaches[0] * 3 // 2 if reaches and reaches[0] * 8 < reaches[-1] else None


def as_of_time(as_of: int | str | dt.datetime) -> int:
    """Return a time as UTC ms: a number of them, a text such as ``2011-12-01 08:00``, or a
    datetime.

    Times without a zone are UTC.

    >>> as_of_time("2011-12-01"), as_of_time(5), as_of_time("2011-12-01T01:00+01:00")
    (1322697600000, 5, 1322697600000)

    Raises
    ------
    RequestError
        For anything else.
    """
    if isinstance(as_of, int) and not isinstance(as_of, bool):
        return as_of
    try:
        moment = dt.datetime.fromisoformat(as_of) if isinstance(as_of, str) else as_of
        if not isinstance(moment, dt.datetime):
            raise ValueError
        moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=dt.UTC)
    except ValueError:
        raise RequestError(
            f"as_of={as_of!r}; expected UTC milliseconds, a datetime, or a text such as "
            "'2011-12-01 08:00'"
        ) from None
    return (moment - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(milliseconds=1)


def entity_of(view: FeatureView, entity: Any) -> dict[str, Any]:
    """Return the keys of an entity, given by name, or as one value where there is one key.

    Raises
    ------
    RequestError
        For other keys than those of the view, or values of another type.
    """
    keys = view.entity.keys
    given = dict(entity) if isinstance(entity, Mapping) else None
    if given is None and len(keys) == 1:
        given = {next(iter(keys)): entity}
    if given is None or set(given) != set(keys):
        example = ", ".join(f"{name!r}: ..." for name in keys)
        raise RequestError(
            f"entity={entity!r}; expected the keys of {view.entity.name!r}: {{{example}}}"
        )
    for name, value in given.items():
        try:
            pa.array([value], keys[name].arrow)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise RequestError(
                f"entity: {name}={value!r}; expected a value of type {keys[name].text}"
            ) from error
        if value is None:
            raise RequestError(f"entity: {name} is null; an event without a key has no entity")
    return {name: given[name] for name in keys}


def preview_events(
    view: FeatureView,
    events: pa.Table,
    entity: Any = None,
    as_of: int | str | dt.datetime | None = None,
) -> Preview:
    """Preview a view over these events; see ``Project.preview``.

    Raises
    ------
    RequestError
        If a column is missing or of another type, for an entity or a time that is none, or if
        there are no events to choose an entity from.
    """
    table = event_table(view.compiled, events)
    time = view.source.event_time
    if as_of is None:
        newest = pc.max(table.column(time)).as_py()
        if newest is None:
            raise RequestError(
                f"source {view.source.name!r} has no events to preview {view.name!r} with; ingest "
                "some, or pass events="
            )
        as_of_ms = newest + 1
    else:
        as_of_ms = as_of_time(as_of)
    frequent = _frequent(view, table, as_of_ms)
    if entity is None and not frequent:
        raise RequestError(
            f"no entity of view {view.name!r} has an event before {utc(as_of_ms)} UTC; "
            "pass a later as_of="
        )
    chosen = frequent[0] if entity is None else entity_of(view, entity)
    history = _History(view, table, chosen, as_of_ms)
    samples = [
        chosen,
        *(frequent_entity for frequent_entity in frequent if frequent_entity != chosen),
    ][: SAMPLES + 1]
    values = [history.values, *(_History(view, table, e, as_of_ms).values for e in samples[1:])]
    columns: dict[str, list[Any]] = {key: [e[key] for e in samples] for key in view.entity.keys}
    columns |= {f.name: [v[f.name] for v in values] for f in view.compiled.features}
    return Preview(view, chosen, as_of_ms, history.status, history.events, history.windows, columns)


class _History:
    """The events of one entity, and what each window makes of them."""

    def __init__(
        self, view: FeatureView, events: pa.Table, entity: Mapping[str, Any], as_of_ms: int
    ) -> None:
        self.view, self.as_of_ms = view, as_of_ms
        compiled, time = view.compiled, view.source.event_time
        rows = events.filter(_of_entity(events, view, entity)).sort_by(time)
        rows = rows.filter(pc.is_valid(rows.column(time)))
        before = int(np.searchsorted(rows.column(time).to_numpy(), as_of_ms))
        rows = rows.slice(max(0, before - MAX_EVENTS), MAX_EVENTS + 100)
        columns = {
            name: Column.from_arrow(one_array(rows.column(name))) for name in rows.schema.names
        }
        members, broken = verdicts(compiled, columns, rows.num_rows)
        times = rows.column(time).to_numpy().astype(np.int64)
        entering: Bools = members & (broken == NO_RULE)
        self.events = tuple(
            PreviewEvent(int(t), int(floor_ms(int(t), compiled.tile_ms)), why)
            for t, why in zip(times, self._left_out(times, members, broken, as_of_ms), strict=True)
        )
        counted = rows.filter(pa.array(entering))
        self._times: Ints = times[entering]
        self.status = self._status()
        self.values: dict[str, Any] = dict.fromkeys(f.name for f in compiled.features)
        if self.status is Status.PRESENT:
            self.values = evaluate(view, counted.to_pylist(), as_of_ms=as_of_ms)
        self.windows = tuple(
            self._window(window, members)
            for window, members in by_window(compiled.features).items()
        )

    def _left_out(
        self, times: Ints, members: Bools, broken: Ints, as_of_ms: int
    ) -> Iterable[str | None]:
        rules = self.view.compiled.skip_rules
        for time, member, number in zip(times, members, broken, strict=True):
            if not member:
                yield "left out by where"
            elif number != NO_RULE:
                yield f"skipped: {rules[number].reason} ({rules[number].detail})"
            else:
                yield "at or after the read" if time >= as_of_ms else None

    def _status(self) -> Status:
        view = self.view.compiled
        before = self._times[self._times < view.horizon(self.as_of_ms)]
        newest_ms = before[-1:] if len(before) else np.array([NEVER_MS])
        return Status(entity_statuses(view, self.as_of_ms, newest_ms)[0])

    def _window(self, window: Window, features: Sequence[CompiledFeature]) -> PreviewWindow:
        start, end = window.bounds(self.as_of_ms)
        low, high = (int(np.searchsorted(self._times, edge)) for edge in (start, end))

        def at(row: int) -> int | None:
            return int(self._times[row]) if 0 <= row < len(self._times) else None

        return PreviewWindow(
            window=window,
            start_ms=start,
            end_ms=end,
            events=high - low,
            before_ms=at(low - 1),
            first_ms=at(low) if high > low else None,
            last_ms=at(high - 1) if high > low else None,
            after_ms=at(high),
            values={feature.name: self.values[feature.name] for feature in features},
        )


def _frequent(view: FeatureView, events: pa.Table, as_of_ms: int) -> list[dict[str, Any]]:
    """Return the entities with most events before the read, within the longest window.

    Ties by key.
    """
    keys, time = list(view.entity.keys), view.source.event_time
    if not keys:
        return [{}] if events.num_rows else []
    start = view.compiled.known_from(as_of_ms)
    times = events.column(time)
    chosen = pc.and_(pc.greater_equal(times, start), pc.less(times, as_of_ms))
    for key in keys:
        chosen = pc.and_kleene(chosen, pc.is_valid(events.column(key)))
    counts = events.select(keys).filter(chosen).group_by(keys).aggregate([([], "count_all")])
    order = [("count_all", "descending"), *((key, "ascending") for key in keys)]
    chosen_keys: list[dict[str, Any]] = (
        counts.sort_by(order).slice(0, SAMPLES + 1).select(keys).to_pylist()
    )
    return chosen_keys


def _of_entity(events: pa.Table, view: FeatureView, entity: Mapping[str, Any]) -> Any:
    chosen: Any = pa.array(np.ones(events.num_rows, np.bool_))
    for key, kind in view.entity.keys.items():
        same = pc.equal(events.column(key), pa.scalar(entity[key], kind.arrow))
        chosen = pc.and_kleene(chosen, same)
    return chosen
