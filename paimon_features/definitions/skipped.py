"""Events that break a rule of a view, and are therefore in none of its features: which, and why.

The engines of tiles count such events in the table ``skipped_<view>_g<N>``; where values are
computed straight from events (``evaluate``, ``offline.local.features``) they are reported by a
``SkippedEventsWarning``, and ``plan`` reports those of the events that exist.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from paimon_features.core.columns.column import Column
from paimon_features.core.errors import SkippedEventsWarning, shortened
from paimon_features.core.types.array_types import Bools, Ints
from paimon_features.definitions.aggregates import Aggregate
from paimon_features.definitions.compiled import CompiledView, SkipRule

NO_RULE = -1
"""Stands for the number of the rule that an event breaks where it breaks none."""
_SHOWN = 60
"""Characters of a value in a message."""
_GREATEST_BOUND = 2.0**62
_ADVICE: Mapping[str, str] = {
    "null_key": "an event without a key belongs to no entity",
    "absurd_time": "the event time has to be UTC milliseconds within the years 1 to 9999",
    "bad_retraction": "the row is neither an event nor a retraction",
    "overflow": "CAST its columns AS float64, or exclude such events with the view's where=",
}


@dataclass(frozen=True, slots=True)
class SkippedEvents:
    """How many events a rule is the first to exclude, and the columns of one of them."""

    rule: SkipRule
    events: int
    example: Mapping[str, Any]


def verdicts(view: CompiledView, columns: Mapping[str, Column], rows: int) -> tuple[Bools, Ints]:
    """Return which rows are members of the view, and the number of the rule that each breaks first.

    ``columns`` are those of the source; a member that breaks no rule has ``NO_RULE``.
    """
    members, *held = map(is_true, view.programs.rules.run(columns, rows))
    broken = np.full(rows, NO_RULE)
    for number in range(len(held) - 1, -1, -1):
        broken[~held[number]] = number
    return members, broken


def is_true(condition: Column) -> Bools:
    """Return the mask of rows for which a condition is true, so neither false nor null."""
    true: Bools = condition.values.astype(np.bool_)
    return true if condition.valid is None else condition.valid & true


def skipped_events(
    view: CompiledView, columns: Mapping[str, Column], members: Bools, broken: Ints
) -> list[SkippedEvents]:
    """Return the members that break a rule, by rule, from what ``verdicts`` returned."""
    skipped = []
    for number, rule in enumerate(view.skip_rules):
        rows = np.flatnonzero(members & (broken == number))
        if len(rows):
            names = [name for name in view.source.schema if name in columns]
            skipped.append(SkippedEvents(rule, len(rows), _row(columns, names, int(rows[0]))))
    return skipped


def entering_rows(
    view: CompiledView, columns: Mapping[str, Column], rows: int, stacklevel: int
) -> Ints:
    """Return the positions of the events that enter the view's tiles.

    Issues a ``SkippedEventsWarning`` for members of the view that do not.
    """
    members, broken = verdicts(view, columns, rows)
    skipped = skipped_events(view, columns, members, broken)
    warn_of_skipped(view, skipped, int(members.sum()), stacklevel + 1)
    return np.flatnonzero(members & (broken == NO_RULE))


def merged(parts: Iterable[SkippedEvents]) -> list[SkippedEvents]:
    """Return one entry per reason and detail, as a lake counts them, with the first example."""
    by_rule: dict[tuple[str, str], SkippedEvents] = {}
    for part in parts:
        rule = (part.rule.reason, part.rule.detail)
        counted = by_rule.get(rule)
        events = part.events + (0 if counted is None else counted.events)
        by_rule[rule] = replace(counted or part, events=events)
    return list(by_rule.values())


def warn_of_skipped(
    view: CompiledView, skipped: Sequence[SkippedEvents], events: int, stacklevel: int
) -> None:
    """Issue a ``SkippedEventsWarning`` if events were skipped; ``events`` is how many there are."""
    if skipped:
        total = sum(one.events for one in skipped)
        lines = (f"\n  {describe_skipped(view, one)}" for one in merged(skipped))
        message = (
            f"feature view {view.name!r}: {total:,} of {events:,} events are in none of its "
            f"features:{''.join(lines)}"
        )
        warnings.warn(message, SkippedEventsWarning, stacklevel=stacklevel + 1)


def describe_skipped(view: CompiledView, skipped: SkippedEvents) -> str:
    """Return a line: how many events, why, an example, and what can be done."""
    rule, example = skipped.rule, skipped.example
    reasons = {
        "null_key": "{} is null",
        "absurd_time": "{} is null or not in the years 1 to 9999",
        "bad_retraction": "{} that is not a kind of change",
        "overflow": "{} beyond 64 bits or the finite floats",
    }
    why = reasons.get(rule.reason, "{}").format(rule.detail)
    where_from = [name for name in (*view.keys, view.source.event_time) if name in example]
    values = [n for n in example if n in rule.condition.columns and n not in where_from]
    shown = ", ".join(
        f"{name}={shortened(repr(example[name]), _SHOWN)}" for name in (*values, *where_from)
    )
    infinite = any(map(_is_infinite, map(example.get, values)))
    return f"{skipped.events:,} with {why} (for example {shown}): {_advice(view, rule, infinite)}"


def _is_infinite(value: Any) -> bool:
    """Return True if a value, or an item of a list, is NaN or an infinity."""
    if isinstance(value, list):
        return any(map(_is_infinite, value))
    return isinstance(value, float) and not math.isfinite(value)


def _advice(view: CompiledView, rule: SkipRule, infinite: bool) -> str:
    """Return what can be done about events that break a rule; ``infinite``: NaN or an infinity."""
    advice = _ADVICE.get(rule.reason)
    if advice is not None:
        return advice
    aggregates = {
        feature.aggregate.stem: feature.aggregate
        for feature in view.features
        if rule.detail in _details(feature.aggregate, view)
    }
    names = ", ".join(aggregates)
    alone = (
        f"where= of {names} excludes such values there and keeps the event in the other features"
    )
    if infinite:
        return f"NaN and infinities are no valid input, write null instead; {alone}"
    if not any(_bound_decides(aggregate, view, rule.detail) for aggregate in aggregates.values()):
        return alone
    return f"if they are right, give {names} a larger bound=; {alone}"


def _bound_decides(aggregate: Aggregate, view: CompiledView, detail: str) -> bool:
    """Return True if a larger ``bound`` of the aggregate lets such values in."""
    return detail not in _details(replace(aggregate, bound=_GREATEST_BOUND), view)


def _details(aggregate: Aggregate, view: CompiledView) -> set[str]:
    return {g.detail for partial in aggregate.partials(view.scope) for g in partial.guards}


def _row(columns: Mapping[str, Column], names: Sequence[str], row: int) -> dict[str, Any]:
    return {
        name: columns[name].values[row : row + 1].tolist()[0] if columns[name].mask[row] else None
        for name in names
    }
