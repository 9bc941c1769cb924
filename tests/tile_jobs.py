"""Reference implementation of the two tables of a tile job, and events as its input."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from paimon_features.core.times.partition_days import first_day
from paimon_features.core.windows import DAY_MS, MAX_TIME_MS, MIN_TIME_MS, floor_ms
from paimon_features.definitions import FeatureView
from paimon_features.definitions.aggregates import Merge, Partial
from paimon_features.lake import Lake, append_arrow, read_arrow, table_options
from paimon_features.lake.specs import EVENT_DAY, INGEST_TIME_MS
from paimon_features.testing.reference.expressions import evaluate_row
from paimon_features.testing.reference.features import Event, entered, holds
from paimon_features.testing.reference.merges import merged
from paimon_features.testing.reference.tiler import partial_row

Cell = tuple[Any, ...]
"""Tile day, keys, tile start."""


def append_events(lake: Lake, view: FeatureView, events: pa.Table) -> int:
    """Commit events, including those that ingestion would reject; return the snapshot's id."""
    partition_days = table_options.partition_days(lake, view.source.table)
    days = [
        first_day(time // DAY_MS, partition_days)
        if time is not None and MIN_TIME_MS <= time <= MAX_TIME_MS
        else 0
        for time in events.column(view.source.event_time).to_pylist()
    ]
    rows = events.append_column(EVENT_DAY, pa.array(days, pa.int32()))
    rows = rows.append_column(INGEST_TIME_MS, pa.array([0] * len(days), pa.int64()))
    return append_arrow(lake, view.source.table, rows)


def wrong_tiles(lake: Lake, view: FeatureView, table: str, events: Iterable[Event]) -> list[str]:
    """Return how a tile table differs from the oracle's; empty if it does not."""
    return wrong_rows(
        view, read_arrow(lake, table), events, table_options.partition_days(lake, table)
    )


def wrong_rows(
    view: FeatureView, tiles: pa.Table, events: Iterable[Event], partition_days: int = 1
) -> list[str]:
    """The same for rows of a tile table, each tile once.

    All values must be equal except float sums, whose order is arbitrary: they may differ by
    ``n * eps * sum(|v|)``, decayed ones also by the rounding of their weights.
    """
    expected = {
        (first_day(day, partition_days), *cell): columns
        for (day, *cell), columns in _expected(view, events).items()
    }
    keys = ["tile_day", *view.compiled.keys, "tile_start"]
    found = {tuple(row[k] for k in keys): row for row in tiles.to_pylist()}
    wrong = [f"{len(tiles) - len(found)} tiles are duplicates"] if len(found) < len(tiles) else []
    wrong += [f"no tile {cell}" for cell in expected if cell not in found]
    wrong += [f"tile {cell} is too much" for cell in found if cell not in expected]
    partials = {partial.name: partial for partial in unlimited(view)}
    for cell, columns in expected.items():
        for name, (value, bound) in columns.items() if cell in found else ():
            got = merged(partials[name], found[cell][name], None)
            if (got is None or value is None) and got is not value:
                wrong.append(f"{cell} {name}: got {got!r}, expected {value!r}")
            elif got != value and not (bound and abs(got - value) <= bound):
                wrong.append(f"{cell} {name}: got {got!r}, expected {value!r} ± {bound}")
    return wrong


def expected_skips(view: FeatureView, events: Iterable[Event]) -> Counter[tuple[str, str]]:
    """Return how many events each rule is the first to skip, by (reason, detail of the rule)."""
    counts: Counter[tuple[str, str]] = Counter()
    for event in events:
        if view.compiled.where is not None and evaluate_row(view.compiled.where, event) is not True:
            continue
        for rule in view.compiled.skip_rules:
            if not holds(rule.condition, event):
                counts[rule.reason, rule.detail] += 1
                break
    return counts


def counted_skips(lake: Lake, table: str) -> Counter[tuple[str, str]]:
    """Return the counts of a table of skipped rows, by (reason, detail of the rule)."""
    return counted_rows(read_arrow(lake, table))


def counted_rows(skipped: pa.Table) -> Counter[tuple[str, str]]:
    """The same for rows of such a table."""
    counts: Counter[tuple[str, str]] = Counter()
    for row in skipped.to_pylist():
        counts[row["reason"], row["detail"].split(" | ")[0]] += row["p_rows"]
    return counts


def _expected(
    view: FeatureView, events: Iterable[Event]
) -> dict[Cell, dict[str, tuple[Any, float]]]:
    members: dict[Cell, list[dict[str, Any]]] = {}
    for event in entered(view, events):
        start = floor_ms(event[view.source.event_time], view.compiled.tile_ms)
        keys = (event[key] for key in view.compiled.keys)
        members.setdefault((start // DAY_MS, *keys, start), []).append(partial_row(view, event))
    return {cell: _merged(view, rows) for cell, rows in members.items()}


def unlimited(view: FeatureView) -> list[Partial]:
    """The view's partials with unlimited lists, as in the lake."""
    return [replace(partial, limit=None) for partial in view.compiled.partials]


def _merged(view: FeatureView, rows: Sequence[dict[str, Any]]) -> dict[str, tuple[Any, float]]:
    out: dict[str, tuple[Any, float]] = {}
    for partial in unlimited(view):
        values = [row[partial.name] for row in rows]
        total = None
        for value in values:
            total = merged(partial, total, value)
        bound = 0.0
        if partial.type.is_float and partial.merge in (Merge.SUM, Merge.DECAYED_SUM):
            sizes = math.fsum(abs(value) for value in values if value is not None)
            bound = (len(values) + 8) * 2.0**-52 * sizes
        out[partial.name] = (total, bound)
    return out
