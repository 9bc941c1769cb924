"""Partials of single events in NumPy, by the expressions of the tile job."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from paimon_features.core.columns.column import Column, numpy_type
from paimon_features.core.expressions import evaluate
from paimon_features.core.types.array_types import Bools, Ints
from paimon_features.core.windows import floor_ms
from paimon_features.definitions.aggregates import EVENT_TIME, TILE_END, Partial
from paimon_features.definitions.aggregates.fold import Columns
from paimon_features.definitions.compiled import CompiledView
from paimon_features.definitions.skipped import NO_RULE, verdicts


def event_columns(view: CompiledView, partials: Iterable[Partial] | None = None) -> list[str]:
    """Return the columns of the source that these partials need, in the source's order.

    Time, keys, and the columns of ``where`` and of the skip rules are included. By default all
    partials of the view are meant.
    """
    used = view.partials if partials is None else partials
    expressions = [view.expressions[p.name] for p in used]
    expressions += [rule.condition for rule in view.skip_rules]
    if view.where is not None:
        expressions.append(view.where)
    names = {view.source.event_time, *view.keys}.union(*(e.columns for e in expressions))
    return [name for name in view.source.schema if name in names]


def enters(view: CompiledView, columns: Columns, rows: int) -> Bools:
    """Return the mask of events in the view's tiles: ``where`` holds and no skip rule applies."""
    members, broken = verdicts(view, columns, rows)
    inside: Bools = members & (broken == NO_RULE)
    return inside


def partials_of(
    view: CompiledView, partials: Sequence[Partial], events: Columns, time_ms: Ints
) -> dict[str, Column]:
    """Return the partials of single events, each relative to the end of its own tile."""
    rows = len(time_ms)
    tile_end = floor_ms(time_ms, view.tile_ms) + view.tile_ms
    columns = {**events, EVENT_TIME: Column(time_ms), TILE_END: Column(tile_end)}
    return {p.name: evaluate(view.expressions[p.name], columns, rows) for p in partials}


def concat(partial: Partial, parts: Sequence[Column]) -> Column:
    """Concatenate columns of one partial."""
    if not parts:
        return Column(np.zeros(0, numpy_type(partial.type)))
    if len(parts) == 1:
        return parts[0]
    whole = all(part.valid is None for part in parts)
    return Column(
        np.concatenate([part.values for part in parts]),
        None if whole else np.concatenate([part.mask for part in parts]),
    )
