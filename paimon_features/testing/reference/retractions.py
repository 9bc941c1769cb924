"""Reference implementation of retractions: which events remain, and what unmatched ones change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal as PyDecimal
from fractions import Fraction
from typing import Any

from paimon_features.core.expressions import parse
from paimon_features.definitions import FeatureView
from paimon_features.definitions import aggregates as agg
from paimon_features.testing.reference.aggregates import (
    WindowEvents,
    exact,
    nearest_root,
    reference_value,
)
from paimon_features.testing.reference.expressions import evaluate_row

Row = Mapping[str, Any]


def standing(view: FeatureView, rows: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """Return the events that are not retracted, and the retractions without an event."""
    column, withdrawal = view.source.retraction, view.source.withdrawal
    if column is None or withdrawal is None:
        return [*rows], []
    condition = parse(withdrawal, view.source.schema)
    kept: dict[str, list[Row]] = {}
    unmet: dict[str, list[Row]] = {}
    for row in rows:
        content = repr([(name, value) for name, value in row.items() if name != column])
        mine, other = (unmet, kept) if evaluate_row(condition, row) is True else (kept, unmet)
        if other.get(content):
            other[content].pop()
        else:
            mine.setdefault(content, []).append(row)
    return [r for some in kept.values() for r in some], [r for some in unmet.values() for r in some]


LESSENED = (
    agg.Count, agg.Sum, agg.Mean, agg.Variance, agg.DecayedSum, agg.DecayedCount
)  # fmt: skip
"""The aggregates that ``lessened`` supports."""


def lessened(aggregate: agg.Aggregate, seen: WindowEvents, unmet: WindowEvents) -> Any:
    """Return the aggregate with unmatched retractions, each of which counts as minus one event."""
    if isinstance(aggregate, agg.Count | agg.DecayedSum | agg.DecayedCount):
        return reference_value(aggregate, seen) - reference_value(aggregate, unmet)
    assert isinstance(aggregate, agg.Sum | agg.Mean | agg.Variance), (
        f"{aggregate.kind}: not supported"
    )
    scale = aggregate.scale_of(seen.scope)
    signed = [(1, exact(value, scale)) for value in seen.values(aggregate.column)]
    signed += [(-1, exact(value, scale)) for value in unmet.values(aggregate.column)]
    n = sum(sign for sign, _ in signed)
    total = sum((sign * x for sign, x in signed), Fraction(0))
    if isinstance(aggregate, agg.Mean):
        return float(total / n) if n > 0 else None
    if isinstance(aggregate, agg.Variance):
        squares = sum((sign * x * x for sign, x in signed), Fraction(0))
        spread = n * squares - total**2
        if n <= aggregate.ddof or spread < 0:
            return None
        variance = spread / (n * (n - aggregate.ddof))
        return nearest_root(variance) if isinstance(aggregate, agg.StdDev) else float(variance)
    if aggregate.as_decimal:
        assert scale is not None
        return PyDecimal(int(total * 10**scale)).scaleb(-scale)
    return int(total) if aggregate.output_type(seen.scope).is_integer else float(total)
