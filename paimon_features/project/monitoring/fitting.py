"""Fitting a transformer on a view: on its columns, from tiles or events, or on its features."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa

from paimon_features.core.errors import RequestError, TransformError
from paimon_features.core.process.callbacks import OnProgress, ignore_progress
from paimon_features.definitions import CompiledView, FeatureRef
from paimon_features.definitions.value_definition import value_definition
from paimon_features.offline.reading.pinning import Pin
from paimon_features.project.monitoring.time_ranges import TimeRange
from paimon_features.project.monitoring.view_reader import ViewReader
from paimon_features.transformers import ColumnStatistics, StoredTransformer
from paimon_features.transformers.column_statistics import Statistic

Origin = Literal["tiles", "events"]

_DATA = (
    "view", "definition", "definitions", "columns", "features", "from", "until_ms", "at_ms", "rows",
)  # fmt: skip
"""The keys of a fit's document that identify its data, apart from snapshots."""


@dataclass(frozen=True)
class Fit:
    """A fitted transformer and its training data, as stored by ``save_fitted``.

    ``statistics`` are those of its columns, empty if it was fitted on rows.
    """

    transformer: StoredTransformer
    fitted_on: Mapping[str, Any]
    statistics: Sequence[ColumnStatistics] = ()


def can_fit(reader: ViewReader, transformer: StoredTransformer, columns: Sequence[str]) -> bool:
    """Return whether the tiles contain the statistics that the transformer requires."""
    needs = transformer.required_statistics
    return bool(needs) and all(needs <= column.available for column in reader.tile_columns(columns))


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

    ``tiles`` reads merged tiles, ``events`` every event; the default is tiles if they contain the
    required statistics. Both cover the events that enter the view's tiles.

    Raises
    ------
    RequestError
        For ``tiles`` without the required statistics (names what to declare), and for a
        transformer that is fitted on targets.
    TransformError
        If the values are invalid or ILL_CONDITIONED, or there are no events.
    """
    within = TimeRange(None, until_ms)
    if transformer.needs_target:
        raise RequestError(
            f"a {type(transformer).__name__} is also fitted on a target; fit it on a training set, "
            "whose rows have one"
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
    document = {
        "view": reader.view.name,
        "definition": reader.view.fingerprint,
        "columns": list(columns),
        "from": chosen,
        "until_ms": until_ms,
        "tables": _documents(pins),
        "distribution": {c.column: counts for c in statistics if (counts := distribution(c))},
    }
    return Fit(transformer, document, statistics)


def fit_rows(transformer: StoredTransformer, tables: Iterable[pa.Table]) -> None:
    """Fit on several tables, discarding an earlier fit; without rows it stays as it is.

    Without support for ``partial_fit`` (exact quantiles, pipelines with several stateful steps)
    all of them are concatenated in memory.
    """
    tables = (table for table in tables if table.num_rows)  # fit() refuses those without
    if not transformer.supports_partial_fit:
        parts = list(tables)
        tables = [pa.concat_tables(parts)] if parts else []
    for number, table in enumerate(tables):
        if number:
            transformer.partial_fit(table)
        else:
            transformer.fit(table)


def fit_features(
    transformer: StoredTransformer,
    view: CompiledView,
    features: Sequence[str],
    pins: Iterable[Pin],
    tables: Iterable[pa.Table],
    times: Mapping[str, Any],
) -> Fit:
    """Fit on features of a view at points in time, which the document ``times`` describes.

    The definition of each feature is recorded: a transformer is not applied to another one.

    Raises
    ------
    TransformError
        If the features are invalid, or no entity has any.
    """
    fit_rows(transformer, tables)
    if not transformer.width:
        raise TransformError(
            f"no entity of view {view.name!r} is known at that time: nothing to fit on"
        )
    views = {view.name: view}
    document = {
        "view": view.name, "features": list(features), "from": "features", **times,
        "tables": _documents(pins),
        "definitions": {f: value_definition(views, FeatureRef(view.name, f)) for f in features},
    }  # fmt: skip
    return Fit(transformer, document)


def distribution(column: ColumnStatistics) -> dict[str, Any] | None:
    """Return counts per bin or category in JSON values, for later comparison; None without."""
    if column.bins is not None and column.edges is not None:
        return {"edges": list(column.edges), "bins": list(column.bins), "nulls": column.nulls}
    if column.categories is not None:
        counts = [*column.categories.values(), column.other]
        values = [*column.categories]
        return {"categories": values, "bins": counts, "nulls": column.nulls}
    return None


def same_data(left: Mapping[str, Any], right: Mapping[str, Any]) -> bool:
    """Return whether two fits use the same columns of the same view, at any snapshots."""
    return all(left.get(key) == right.get(key) for key in _DATA)


def _documents(pins: Iterable[Pin]) -> list[dict[str, object]]:
    return [pin.to_document() for pin in pins]


def _some(rows: int, reader: ViewReader, origin: Origin) -> None:
    if not rows:
        name = reader.view.name
        advice = (
            f"; 'paimon-features backfill {name}' computes the tiles of existing events, "
            "--from events reads the events themselves"
        )
        raise TransformError(
            f"the {origin} of view {name!r} have no event in this range: nothing to fit on"
            + (advice if origin == "tiles" else "")
        )


def _lacking(reader: ViewReader, transformer: StoredTransformer, columns: Sequence[str]) -> str:
    kind, needs = type(transformer).__name__, transformer.required_statistics
    if not needs:
        return f"a {kind} is fitted on rows, not on tiles; omit --from tiles"
    lacking = [c.column for c in reader.tile_columns(columns) if not needs <= c.available]
    spelled = ", ".join(_spelled(name, needs) for name in lacking)
    return (
        f"the tiles of view {reader.view.name!r} lack the {' and '.join(sorted(needs))} of "
        f"{', '.join(lacking)}, which a {kind} requires; define "
        f"pf.statistics_view(..., {reader.view.source.name}, [{spelled}]), or omit --from tiles "
        "to read every event"
    )


def _spelled(column: str, needs: frozenset[Statistic]) -> str:
    """Return the item of a statistics view that provides the required statistics."""
    if "categories" in needs:
        return f'pf.Categories("{column}", [...])'
    return f'pf.Numbers("{column}"' + (", edges=...)" if "bins" in needs else ")")
