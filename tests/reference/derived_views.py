"""Reference implementation of derived views: windows and sessions from raw events, by loops."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from paimon_features.core.expressions import parse
from paimon_features.core.windows import HOUR_MS, MINUTE_MS, CalendarUnit, Tumbling
from paimon_features.definitions import DerivedView, FeatureView, SessionView, TumblingView
from paimon_features.definitions.aggregates import Aggregate
from paimon_features.testing.reference.aggregates import (
    IllConditioned,
    WindowEvents,
    reference_value,
)
from paimon_features.testing.reference.compare import differs
from paimon_features.testing.reference.expressions import evaluate_row
from paimon_features.testing.reference.features import Event, entered
from paimon_features.testing.reference.retractions import lessened, standing
from paimon_features.testing.reference.tolerance import tolerance, undecided
from paimon_features.testing.reference.windows import unit_start

Key = tuple[Any, ...]
"""The keys of an entity, then the start of a window."""


@dataclass(frozen=True)
class ReferenceRow:
    """One window: its end, its number of events (minus retractions), and its rows."""

    end_ms: int
    count: int
    rows: Sequence[Event]


def reference_rows(derived: DerivedView, events: Iterable[Event]) -> dict[Key, ReferenceRow]:
    """Return the windows of all entities that contain an event, including open ones."""
    view = derived.view
    entities: dict[Key, list[Event]] = {}
    for row in entered(view, events):
        entities.setdefault(tuple(row[key] for key in view.entity.keys), []).append(row)
    out = {}
    for keys, rows in entities.items():
        for start, end, members in _windows(derived, rows):
            count = _count(view, members)
            if count > 0:
                out[*keys, start] = ReferenceRow(end, count, members)
    return out


def wrong_derived(
    derived: DerivedView, events: Sequence[Event], found: Sequence[Mapping[str, Any]]
) -> list[str]:
    """Return how the rows of a derived view differ from the oracle's; empty if they are equal.

    ``found`` are all of its rows, including those of open windows.
    """
    made, expected = derived.compiled, reference_rows(derived, events)
    got = {(*(row[key] for key in made.view.keys), row[made.start]): row for row in found}
    wrong = [f"{len(found) - len(got)} rows are duplicates"] if len(got) < len(found) else []
    wrong += [f"no row {key}" for key in expected.keys() - got.keys()]
    wrong += [f"row {key} is too much" for key in got.keys() - expected.keys()]
    for key in expected.keys() & got.keys():
        reference, row = expected[key], got[key]
        if row[made.end] != reference.end_ms:
            wrong.append(f"{key}: ends at {row[made.end]}, expected {reference.end_ms}")
        if made.count is not None and row[made.count] != reference.count:
            wrong.append(f"{key}: {row[made.count]} events, expected {reference.count}")
        length_ms = None if made.windows is None else made.windows.length_ms
        for feature in made.features:
            window = _window(derived.view, feature.aggregate, reference, length_ms)
            wanted = _value(derived.view, feature.aggregate, window)
            if undecided(feature.aggregate, window):
                continue
            value = row[feature.name]
            if value is None or wanted is None:
                same = value is wanted
            else:
                same = not differs(value, wanted, tolerance(feature.aggregate, window, wanted))
            if not same:
                wrong.append(f"{key} {feature.name}: got {value!r}, expected {wanted!r}")
    return wrong


def _windows(derived: DerivedView, rows: Sequence[Event]) -> Iterable[tuple[int, int, list[Event]]]:
    """Start, end and rows of each window of one entity."""
    time = derived.view.source.event_time
    if isinstance(derived, TumblingView):
        windows = derived.compiled.windows
        assert windows is not None
        cells: dict[tuple[int, int], list[Event]] = {}
        for row in rows:
            cells.setdefault(tumbling_bounds(windows, row[time]), []).append(row)
        return [(*bounds, members) for bounds, members in cells.items()]
    assert isinstance(derived, SessionView)
    gap_ms = derived.compiled.gap_ms
    assert gap_ms is not None
    by_time: dict[int, list[Event]] = {}
    for row in rows:
        by_time.setdefault(row[time], []).append(row)
    sessions: list[tuple[int, int, list[Event]]] = []
    for at in sorted(by_time):
        if _count(derived.view, by_time[at]) <= 0:
            continue
        if sessions and at < sessions[-1][1]:
            start, _, members = sessions.pop()
            sessions.append((start, at + gap_ms, members + by_time[at]))
        else:
            sessions.append((at, at + gap_ms, by_time[at]))
    return sessions


@lru_cache(maxsize=1 << 14)
def tumbling_bounds(windows: Tumbling, time_ms: int) -> tuple[int, int]:
    """Start and end of the tumbling window that a time is in.

    Of a calendar unit: its start rounded down to the step, and the next such start.
    """
    if not isinstance(windows.size, CalendarUnit):
        start = time_ms // windows.size * windows.size
        return start, start + windows.size
    unit, zone, step = windows.size, windows.time_zone, windows.step_ms
    assert zone is not None

    def rounded(at: int) -> int:
        return unit_start(unit, zone, at) // step * step

    # the next unit may have begun within the step that contains the time
    last = time_ms // step * step + step - 1
    near = [rounded(at) for at in (*range(time_ms, last, 15 * MINUTE_MS), last)]
    start = max(begin for begin in near if begin <= time_ms)
    at = time_ms
    while rounded(at) <= start:
        at += 6 * HOUR_MS
    return start, rounded(at)


def _count(view: FeatureView, rows: Sequence[Event]) -> int:
    """The number of events minus retractions."""
    kept, unmet = standing(view, rows)
    return len(kept) - len(unmet)


def _window(
    view: FeatureView, aggregate: Aggregate, row: ReferenceRow, length_ms: int | None
) -> WindowEvents:
    scope, time = view.compiled.scope, view.source.event_time
    inside = row.rows
    if aggregate.where is not None:
        where = parse(aggregate.where, scope)
        inside = [event for event in inside if evaluate_row(where, event) is True]
    newest_ms = max(event[time] for event in row.rows)
    return WindowEvents(inside, time, scope, row.end_ms, length_ms, newest_ms)


def _value(view: FeatureView, aggregate: Aggregate, window: WindowEvents) -> Any:
    kept, unmet = standing(view, window.rows)
    if unmet:
        return lessened(aggregate, replace(window, rows=kept), replace(window, rows=unmet))
    value = reference_value(aggregate, replace(window, rows=kept))
    return None if isinstance(value, IllConditioned) else value
