"""Fitting a transformer on a view: on its columns, from tiles or events, or on its features."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa

from paimon_features.callbacks import OnProgress, ignore_progress
from paimon_features.errors import RequestError, TransformError
from paimon_features.monitoring.time_ranges import TimeRange
from paimon_features.monitoring.view_reader import ViewReader
from paimon_features.offline.reading.pinning import Pin
from paimon_features.transformers import ColumnStatistics, StoredTransformer
from paimon_features.transformers.column_statistics import Statistic

Origin = Literal["tiles", "events"]

_DATA = ("view", "definition", "columns", "features", "from", "until_ms", "at_ms", "rows")
"""What of a fit's document says which data it is of, at whatever snapshots."""


@dataclass(frozen=True)
class Fit:
    """A fitted transformer and what it was fitted on, as ``save_fitted`` notes it.

    ``statistics`` are those of its columns, empty where it was fitted on rows.
    """

    transformer: StoredTransformer
    fitted_on: Mapping[str, Any]
    statistics: Sequence[ColumnStatistics] = ()


def can_fit(reader: ViewReader, transformer: StoredTransformer, columns: Sequence[str]) -> bool:
    """Whether the tiles hold what the transformer learns from."""
    needs = transformer.required_statistics
    return bool(needs) and all(needs <= column.tells for column in reader.kept(columns))


def fit_columns(
    reader: ViewReader,
    transformer: StoredTransformer,
    columns: Sequence[str],
    *,
    until_ms: int | None = None,
    origin: Origin | None = None,
    progress: OnProgress = ignore_progress,
) -> Fit:
    """Fit on columns of a view's events, those before ``until_ms`` (exclusive; all by default).

    ``tiles`` reads merged tiles, ``events`` every event; by default tiles where they hold what the
    transformer learns from. Either way these are the events that enter the view's tiles.

    Raises
    ------
    RequestError
        For ``tiles`` where these do not hold it; the message says what to declare. For a
        transformer that learns from targets.
    TransformError
        If the values cannot be learnt from, or are ILL_CONDITIONED; or there is no event.
    """
    within = TimeRange(None, until_ms)
    if transformer.needs_target:
        raise RequestError(
            f"a {type(transformer).__name__} learns from a target in addition; fit it on rows that "
            "have one: a training set"
        )
    fits = can_fit(reader, transformer, columns)
    if origin == "tiles" and not fits:
        raise RequestError(_lacking(reader, transformer, columns))
    chosen: Origin = origin or ("tiles" if fits else "events")
    statistics: list[ColumnStatistics] = []
    if chosen == "tiles":
        statistics = reader.statistics(columns, within, progress)
        _some(statistics[0].rows if statistics else 0, reader, chosen)
        transformer.fit_from_statistics(statistics)
        pins = (reader.tiles,) if within.split(reader.view.tile_ms)[1] == [] else (
            reader.tiles, reader.events,
        )  # fmt: skip
    else:
        fit_rows(transformer, reader.rows(columns, within, progress))
        _some(transformer.rows_seen, reader, chosen)
        pins = (reader.events,)
    told = {
        "view": reader.view.name,
        "definition": reader.view.fingerprint,
        "columns": list(columns),
        "from": chosen,
        "until_ms": until_ms,
        "tables": _documents(pins),
        "distribution": {c.column: found for c in statistics if (found := distribution(c))},
    }
    return Fit(transformer, told, statistics)


def fit_rows(transformer: StoredTransformer, tables: Iterable[pa.Table]) -> None:
    """Learn from tables one after another; the first one forgets what was learnt before.

    What cannot learn in parts (exact quantiles, a pipeline of several steps that learn) has all of
    them at once, in memory.
    """
    if not transformer.supports_partial_fit:
        found = list(tables)
        tables = [pa.concat_tables(found)] if found else []
    for number, table in enumerate(tables):
        if number:
            transformer.partial_fit(table)
        else:
            transformer.fit(table)


def fit_features(
    transformer: StoredTransformer,
    view: str,
    features: Sequence[str],
    pins: Iterable[Pin],
    tables: Iterable[pa.Table],
    told: Mapping[str, Any],
) -> Fit:
    """Fit on features of a view at points in time; ``told`` says at which.

    Raises
    ------
    TransformError
        If the features cannot be learnt from, or no entity had any.
    """
    fit_rows(transformer, tables)
    if not transformer.width:
        raise TransformError(f"no entity of view {view!r} is known at that time: nothing to fit on")
    document = {
        "view": view, "features": list(features), "from": "features", **told,
        "tables": _documents(pins),
    }  # fmt: skip
    return Fit(transformer, document)


def distribution(column: ColumnStatistics) -> dict[str, Any] | None:
    """Counts in bins or categories as JSON, to compare later events with; None without any."""
    if column.bins is not None and column.edges is not None:
        return {"edges": list(column.edges), "bins": list(column.bins), "nulls": column.nulls}
    if column.categories is not None:
        counts = [*column.categories.values(), column.other]
        values = [*column.categories]
        return {"categories": values, "bins": counts, "nulls": column.nulls}
    return None


def same_data(left: Mapping[str, Any], right: Mapping[str, Any]) -> bool:
    """Whether two fits are of the same columns of the same view, at whatever snapshots."""
    return all(left.get(key) == right.get(key) for key in _DATA)


def _documents(pins: Iterable[Pin]) -> list[dict[str, object]]:
    return [pin.to_document() for pin in pins]


def _some(rows: int, reader: ViewReader, origin: Origin) -> None:
    if not rows:
        name = reader.view.name
        advice = (
            f"; 'paimon-features backfill {name}' computes the tiles of the events that are there, "
            "--from events reads these"
        )
        raise TransformError(
            f"the {origin} of view {name!r} have no event in this range: nothing to fit on"
            + (advice if origin == "tiles" else "")
        )


def _lacking(reader: ViewReader, transformer: StoredTransformer, columns: Sequence[str]) -> str:
    kind, needs = type(transformer).__name__, transformer.required_statistics
    if not needs:
        return f"a {kind} is fitted on rows, which tiles do not hold; leave --from tiles out"
    lacking = [c.column for c in reader.kept(columns) if not needs <= c.tells]
    spelled = ", ".join(_spelled(name, needs) for name in lacking)
    return (
        f"the tiles of view {reader.view.name!r} do not tell the {' and '.join(sorted(needs))} of "
        f"{', '.join(lacking)}, which a {kind} learns from; define "
        f"pf.statistics_view(..., {reader.view.source.name}, [{spelled}]), or leave --from tiles "
        "out to read every event"
    )


def _spelled(column: str, needs: frozenset[Statistic]) -> str:
    """What of a statistics view keeps what is needed of a column."""
    if "categories" in needs:
        return f'pf.Categories("{column}", [...])'
    return f'pf.Numbers("{column}"' + (", edges=...)" if "bins" in needs else ")")
