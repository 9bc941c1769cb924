"""What a path gave beside what the oracle says: exact where that is promised, else a bound.

Counts, extremes, last values and sums of integers and decimals have to be equal. Sums of floats
may differ by ``n * eps * sum(|v|)``, because engines add in different orders; decayed ones also
by the rounding of their weights.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from paimon_features.aggregates import (
    DecayedCount,
    DecayedMean,
    DecayedSum,
    Mean,
    StdDev,
    Sum,
    Variance,
)
from paimon_features.aggregates.basic import Numeric
from paimon_features.aggregates.moments import MAX_CONDITION
from paimon_features.definitions import CompiledFeature, FeatureView
from paimon_features.expressions import parse
from paimon_features.testing.naive import Answer, Entered, Event, entered
from paimon_features.testing.naive_expressions import evaluate_row
from paimon_features.testing.naive_windows import members, read_time

EPS = 2.0**-52
TINY = 1e-150
"""Sizes below which squares and weighted values may have become zeros."""
FADED = 1000
"""Half-lives after which a value may count as nothing."""


def differences(
    view: FeatureView,
    events: Sequence[Event],
    q_ms: int,
    expected: Answer,
    values: Mapping[str, Any],
    statuses: Mapping[str, str] | None = None,
    online: bool = False,
) -> list[str]:
    """What is wrong with ``values``; empty where all is right.

    ``events`` are all events of the entity, ``expected`` is the oracle's answer from them.
    ``statuses``, where given, hold the status of each feature.
    """
    wrong = []
    rows = entered(view, events)
    for feature in view.compiled.features:
        seen, newest = _window(view, feature, rows, q_ms, online)
        got, wanted = values[feature.name], expected.values[feature.name]
        faded = isinstance(feature.aggregate, DecayedMean) and _faded(feature, seen, newest)
        ill = feature.name in expected.ill_conditioned
        status = "ILL_CONDITIONED" if ill else expected.status
        if statuses is not None and statuses[feature.name] != status:
            if not _on_the_edge(feature, seen):
                wrong.append(f"{feature.name}: status {statuses[feature.name]}, expected {status}")
            continue
        if ill or ((got is None or wanted is None) and got is not wanted):
            if got is not wanted and not faded and not _on_the_edge(feature, seen):
                wrong.append(f"{feature.name}: got {got!r}, expected {wanted!r}")
            continue
        if got is None and wanted is None:
            continue
        bound = _bound(view, feature, seen, read_time(feature.window, q_ms))
        if bound == 0:
            if type(got) is not type(wanted) or got != wanted:
                wrong.append(f"{feature.name}: got {got!r}, expected exactly {wanted!r}")
        elif not faded and not _close(feature, got, wanted, bound):
            wrong.append(f"{feature.name}: got {got!r}, expected {wanted!r} ± {bound!r}")
    return wrong


def _window(
    view: FeatureView, feature: CompiledFeature, rows: Entered, q_ms: int, online: bool
) -> tuple[list[tuple[int, Any]], int]:
    """The (time, value) pairs of the window, nulls left out, and the time of its newest event."""
    times = [row[view.source.event_time] for row in rows]
    chosen = [rows[i] for i in members(times, q_ms, feature.window, online=online)]
    newest = max((row[view.source.event_time] for row in chosen), default=0)
    aggregate = feature.aggregate
    if aggregate.where is not None:
        where = parse(aggregate.where, view.compiled.scope)
        chosen = [row for row in chosen if evaluate_row(where, row) is True]
    column = aggregate.column
    pairs = [(row[view.source.event_time], 1 if column is None else row[column]) for row in chosen]
    return [(ts, value) for ts, value in pairs if value is not None], newest


def _bound(
    view: FeatureView, feature: CompiledFeature, seen: Sequence[tuple[int, Any]], q_ms: int
) -> float:
    """How far the value may be from the oracle's; 0 where it has to be equal."""
    aggregate, n = feature.aggregate, len(seen)
    if isinstance(aggregate, DecayedSum | DecayedCount | DecayedMean):
        half_life = aggregate.half_life_ms
        back = max((abs(q_ms - ts) for ts, _ in seen), default=0) / half_life
        newest = max((ts for ts, _ in seen), default=0)
        base = newest if isinstance(aggregate, DecayedMean) else q_ms
        weights = [2.0 ** ((ts - base) / half_life) for ts, _ in seen]
        counted = isinstance(aggregate, DecayedCount)
        sizes = [1.0 if counted else abs(float(value)) for _, value in seen]
        total = math.fsum(w * v for w, v in zip(weights, sizes, strict=True))
        bound = (2 * n + 100 + 2 * back) * EPS * total
        if isinstance(aggregate, DecayedMean) and n:
            bound /= math.fsum(weights)
        # a tile's weights go down to 2^-500, below which the smallest values are zeros
        return bound + 1e-300 * math.fsum(sizes) + n * TINY
    assert isinstance(aggregate, Numeric) or aggregate.kind in ("count", "last")
    if not isinstance(aggregate, Numeric) or aggregate.scale_of(view.compiled.scope) is not None:
        return 0.0
    values = [Fraction(value) for _, value in seen]
    if isinstance(aggregate, Variance):
        squares = sum(((v - Fraction(aggregate.center)) ** 2 for v in values), Fraction(0))
        return float((n + 8) * 4 * Fraction(EPS) * squares / max(n - aggregate.ddof, 1)) + 1e-300
    if isinstance(aggregate, Sum | Mean):
        total = float(sum(map(abs, values), Fraction(0)) * n * Fraction(EPS))
        return total / n if isinstance(aggregate, Mean) and n else total
    return 0.0


def _close(feature: CompiledFeature, got: float, wanted: float, bound: float) -> bool:
    if isinstance(feature.aggregate, StdDev):
        # the bound is that of the variance
        return abs(Fraction(got) ** 2 - Fraction(wanted) ** 2) <= Fraction(bound) + abs(
            Fraction(wanted) ** 2 * Fraction(8 * EPS)
        )
    return abs(Fraction(got) - Fraction(wanted)) <= Fraction(bound)


def _faded(feature: CompiledFeature, seen: Sequence[tuple[int, Any]], newest_ms: int) -> bool:
    """Whether all values are so much older than the newest event that they may be nothing."""
    aggregate = feature.aggregate
    assert isinstance(aggregate, DecayedMean)
    return all(newest_ms - ts > FADED * aggregate.half_life_ms for ts, _ in seen)


def _on_the_edge(feature: CompiledFeature, seen: Sequence[tuple[int, Any]]) -> bool:
    """Whether rounding decides if a float variance is told or ill-conditioned."""
    aggregate = feature.aggregate
    if not isinstance(aggregate, Variance) or len(seen) < 2:
        return False
    values = [Fraction(value) for _, value in seen]
    mean = sum(values, Fraction(0)) / len(values)
    spread = sum(((v - mean) ** 2 for v in values), Fraction(0))
    squares = sum(((v - Fraction(aggregate.center)) ** 2 for v in values), Fraction(0))
    edge = spread * Fraction(MAX_CONDITION)
    if 0 < squares < Fraction(TINY):
        return True
    return squares * Fraction(9, 10) <= edge <= squares * Fraction(11, 10)
