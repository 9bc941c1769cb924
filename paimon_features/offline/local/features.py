"""Features computed directly from raw events, in this process: no lake, no engine.

For trying a definition before it is applied. Each event is a tile of its own, and the point-in-time
join does the rest::

    events -> those that enter a tile -> partials of each -> point-in-time join -> features
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from paimon_features.core.columns.column import Column
from paimon_features.core.errors import RequestError
from paimon_features.core.types.statuses import STATUS_NAMES
from paimon_features.core.windows import floor_ms
from paimon_features.definitions import CompiledFeature, CompiledView, FeatureView
from paimon_features.definitions.event_partials import event_columns, partials_of
from paimon_features.definitions.skipped import entering_rows
from paimon_features.lake.specs import TILE_START
from paimon_features.offline.inputs.checked_columns import (
    check_event_columns,
    event_table,
    event_times,
    key_columns,
)
from paimon_features.offline.inputs.row_source import arrow_table
from paimon_features.offline.joins.point_in_time import PointInTimeJoin
from paimon_features.offline.store import check_free, named_feature


def features(
    view: FeatureView,
    events: Any,
    rows: Any,
    *,
    names: Sequence[str] | None = None,
    statuses: bool = False,
) -> pa.Table:
    """Return the features of each row ``(entity keys, event_time_ms)`` as of its own time.

    The same numbers as ``get_historical_features`` returns from a lake that contains these events.
    All events are in memory, and those of the requested entities as partials.

    Parameters
    ----------
    view
        Any definition, applied or not.
    events
        An Arrow table, a pandas or Polars DataFrame, or the path of a Parquet file or folder
        with the columns of the view's source; others are passed over. Rows may come in any
        order; those that are no members or break a rule of the view are left out, the latter with
        a warning.
    rows
        As for ``get_historical_features``.
    names
        Features, in the order of the result; all by default.
    statuses
        Also add a column ``<feature>__status`` each: PRESENT, EXPIRED, MISSING, or
        ILL_CONDITIONED.

    Warns
    -----
    SkippedEventsWarning
        If events are in no feature, such as one with a value beyond the ``bound`` of an aggregate:
        how many, why, an example, and what can be done.

    Raises
    ------
    RequestError
        If a column is missing or of another type.
    UnknownNameError
        For a feature that the view does not have.

    Examples
    --------
    >>> from paimon_features import Entity, EventSource, FeatureView, Int64, Sum
    >>> view = FeatureView(
    ...     "clicks",
    ...     source=EventSource(
    ...         "clicks", schema={"user": Int64, "t": Int64, "n": Int64}, event_time="t"
    ...     ),
    ...     entity=Entity("user", keys={"user": Int64}),
    ...     features=[Sum("n", windows=["10min"])],
    ... )
    >>> events = {"user": [7, 7], "t": [0, 60_000], "n": [1, 2]}
    >>> rows = {"user": [7, 7, 8], "event_time_ms": [60_000, 60_001, 0]}
    >>> features(view, events, rows).column("sum_n_10min").to_pylist()
    [1, 3, None]
    """
    compiled = view.compiled
    chosen = _chosen(compiled, names)
    requested = arrow_table(rows)
    check_free(requested.schema, [feature.name for feature in chosen])
    as_of_ms = event_times(requested)
    keys = key_columns(requested, compiled.keys, compiled.entity.name)
    join = PointInTimeJoin(compiled, chosen, keys, as_of_ms)
    table = _events(compiled, events)
    columns = {name: Column.from_arrow(table.column(name)) for name in table.column_names}
    entering = entering_rows(compiled, columns, table.num_rows, stacklevel=2)
    event_rows = entering[join.entities.codes_of(table)[entering] >= 0]
    used_events = table.take(pa.array(event_rows))
    join.add_events(used_events)
    join.join_tiles(
        [_tile_of_each(join, used_events, {n: c.take(event_rows) for n, c in columns.items()})]
    )
    results = join.results()
    for feature in chosen:
        column = results.columns[feature.name].to_arrow(feature.type.arrow)
        requested = requested.append_column(feature.name, column)
    for feature in chosen if statuses else ():
        codes = pa.DictionaryArray.from_arrays(
            pa.array(results.statuses[feature.name]), pa.array(STATUS_NAMES)
        )
        requested = requested.append_column(f"{feature.name}__status", codes)
    return requested


def _tile_of_each(join: PointInTimeJoin, events: pa.Table, columns: dict[str, Column]) -> pa.Table:
    """Return a row of the tile table for each event; the join merges those of one tile."""
    view = join.view
    times_ms = columns[view.source.event_time].values
    partials = partials_of(view, join.partials, columns, times_ms)
    tile_columns = {
        **{key: events.column(key) for key in view.keys},
        TILE_START: pa.array(floor_ms(times_ms, view.tile_ms)),
        **{p.name: partials[p.name].to_arrow(p.type.arrow) for p in join.partials},
    }
    return pa.table(tile_columns)


def _chosen(view: CompiledView, names: Sequence[str] | None) -> list[CompiledFeature]:
    if names is None:
        return list(view.features)
    chosen = [named_feature(view.name, name, view.features) for name in names]
    if not names or len(set(names)) < len(names):
        raise RequestError(f"names={list(names)!r}; expected one or more features, each once")
    return chosen


def _events(view: CompiledView, events: Any) -> pa.Table:
    """Return the columns that the view needs, in their declared types."""
    if isinstance(events, str | Path):
        dataset = pq.ParquetDataset(events, partitioning=None)
        check_event_columns(view, dataset.schema.names)
        events = dataset.read(columns=event_columns(view))
    return event_table(view, arrow_table(events))
