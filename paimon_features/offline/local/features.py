"""Features computed directly from raw events, by one DuckDB join: no lake, no tiles, no levels.

For trying a definition before it is applied, and as a second reference for the point-in-time
join: windows are determined by comparing each event's time with their edges::

    start               end = q
      [------------------)
    in ^                 ^ out            start <= event time < end, for each event by itself

What it has in common with the other paths is the definition: where windows start, the texts of
partials (printed for DuckDB), and how merged partials are finished.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from paimon_features.core.columns.column import Column, one_array
from paimon_features.core.errors import RequestError, UnknownNameError
from paimon_features.core.expressions import to_duckdb
from paimon_features.core.times.utc_ms import conform
from paimon_features.core.types.array_types import Bools, Ints
from paimon_features.core.types.schema import arrow_schema
from paimon_features.core.types.statuses import STATUS_NAMES, Status
from paimon_features.definitions import CompiledFeature, CompiledView, FeatureView
from paimon_features.definitions.aggregates import EVENT_TIME, TILE_END, Merge, Reading
from paimon_features.definitions.aggregates.fold import canonical
from paimon_features.definitions.skipped import SkippedEvents, warn_of_skipped
from paimon_features.lake.duckdb_engine import DuckDBEngine, identifier
from paimon_features.offline.inputs.checked_columns import event_times, key_columns
from paimon_features.offline.inputs.row_source import arrow_table
from paimon_features.tiles.local.tiling import (
    broken_sql,
    entering_sql,
    event_columns,
    fold_lists,
    merged_sql,
)

_NUMBER, _HORIZON, _NEWEST = "__number", "__horizon", "__newest"


def features(
    view: FeatureView,
    events: Any,
    rows: Any,
    *,
    names: Sequence[str] | None = None,
    statuses: bool = False,
    memory: str | None = None,
    threads: int | None = None,
) -> pa.Table:
    """The features of each row ``(entity keys, event_time_ms)`` as of its own time.

    The same numbers as ``get_historical_features`` returns from a lake that contains these events.
    Every pair of a row and an earlier event of its entity is looked at, so it suits thousands of
    events per entity, not millions.

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
        Also give a column ``<feature>__status`` each: PRESENT, EXPIRED, MISSING, or
        ILL_CONDITIONED.
    memory, threads
        What DuckDB may use, for example ``memory="4GB"``.

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
    MissingExtraError
        If DuckDB is not installed.

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
    for feature in chosen:
        if feature.name in requested.column_names:
            raise RequestError(
                f"entity rows have a column {feature.name!r}, which is also the name of a "
                "feature; rename the column"
            )
    as_of_ms = event_times(requested)
    table = _Join(
        compiled, chosen, key_columns(requested, compiled.keys, compiled.entity.name), as_of_ms
    )
    with DuckDBEngine(memory=memory, threads=threads) as engine:
        engine.add("__events", _events(compiled, events))
        engine.add("__rows", table.rows)
        what = f"features of view {view.name!r}"
        found = engine.table(table.statement(), what)
        counts = engine.table(broken_sql(compiled, identifier("__events")), what)
    _warn_of_skipped(compiled, counts.to_pylist())
    values, reported = table.answers(found)
    for feature in chosen:
        column = values[feature.name].to_arrow(feature.type.arrow)
        requested = requested.append_column(feature.name, column)
    for feature in chosen if statuses else ():
        codes = pa.DictionaryArray.from_arrays(
            pa.array(reported[feature.name]), pa.array(STATUS_NAMES)
        )
        requested = requested.append_column(f"{feature.name}__status", codes)
    return requested


def _warn_of_skipped(view: CompiledView, counts: Sequence[Mapping[str, Any]]) -> None:
    """Issue a warning for the rows of ``broken_sql`` with a rule."""
    skipped = [
        SkippedEvents(view.skip_rules[row["rule"]], row["events"], row["example"])
        for row in counts
        if row["rule"] is not None
    ]
    warn_of_skipped(view, skipped, sum(row["events"] for row in counts), stacklevel=3)


def bounds(feature: CompiledFeature, as_of_ms: Ints) -> tuple[Ints, Ints]:
    """Start (inclusive) and end (exclusive) of a feature's window read at each ``q``."""
    return feature.window.bounds(as_of_ms)


class _Join:
    """One statement over ``__rows`` and ``__events``, and its result as features."""

    def __init__(
        self,
        view: CompiledView,
        chosen: Sequence[CompiledFeature],
        keys: pa.Table,
        as_of_ms: Ints,
    ) -> None:
        self.view, self.chosen, self.as_of_ms = view, chosen, as_of_ms
        self.windows: list[tuple[Ints, Ints]] = []
        self.members: list[list[CompiledFeature]] = []  # by window
        for feature in chosen:
            edges = bounds(feature, as_of_ms)
            for known, sharing in zip(self.windows, self.members, strict=True):
                if all(map(np.array_equal, known, edges)):
                    sharing.append(feature)
                    break
            else:
                self.windows.append(edges)
                self.members.append([feature])
        # whether an entity is known does not depend on the requested features
        self.horizon = view.horizon(as_of_ms)
        columns = {_NUMBER: np.arange(len(as_of_ms)), _HORIZON: self.horizon}
        for i, (start, end) in enumerate(self.windows):
            columns |= {f"__start{i}": start, f"__end{i}": end}
        self.rows = pa.table({**{name: keys.column(name) for name in keys.column_names}, **columns})

    def statement(self) -> str:
        """One row per requested row whose entity has an event before its time.

        A decayed partial of a window is brought to the end of the window's newest tile before it
        is added, so that neither very old nor very new events leave the range of a float.
        """
        number, newest = identifier(_NUMBER), identifier(_NEWEST)
        time, tile_end = identifier(EVENT_TIME), identifier(TILE_END)
        keys = [identifier(key) for key in self.view.keys]
        pairs = " AND ".join(
            [*(f"r.{key} = e.{key}" for key in keys), f"e.{time} < r.{identifier(_HORIZON)}"]
        )
        edges = [name for name in self.rows.column_names if name not in self.view.keys]
        used = [p for p in self.view.partials if any(p.name in f.partials for f in self.chosen)]
        partials = "".join(
            f",\n      {to_duckdb(self.view.expressions[p.name])} AS {identifier(p.name)}"
            for p in used
        )
        inside = [
            f"{time} >= {identifier(f'__start{i}')} AND {time} < {identifier(f'__end{i}')}"
            for i in range(len(self.windows))
        ]
        ends = "".join(
            f", max({tile_end}) FILTER (WHERE {inside[i]}) AS {identifier(f'__newest{i}')}"
            for i in range(len(self.windows))
        )
        merged = []
        for i, members in enumerate(self.members):
            for partial in used:
                if not any(partial.name in f.partials for f in members):
                    continue
                value = identifier(partial.name)
                if partial.merge is Merge.DECAYED_SUM:
                    age = f"CAST({tile_end} - {identifier(f'__newest{i}')} AS DOUBLE)"
                    value = f"{value} * pow(2E0, {age} / {partial.half_life_ms})"
                name = identifier(f"{partial.name}@{i}")
                merged.append(f",\n  {merged_sql(partial, value, inside[i])} AS {name}")
            merged.append(
                f",\n  any_value({identifier(f'__newest{i}')}) AS {identifier(f'__newest{i}')}"
            )
        return (
            f"WITH pairs AS (\n  SELECT {', '.join(f'r.{identifier(n)}' for n in edges)}, e.*\n"
            f'  FROM "__rows" r JOIN (\n'
            f"    SELECT {', '.join([*keys, time, tile_end])}"
            f"{partials}\n    FROM {entering_sql(self.view, identifier('__events'))}\n  ) e\n"
            f"  ON {pairs}\n"
            f"), newest AS (\n"
            f"  SELECT {number}, max({time}) AS {newest}{ends}\n  FROM pairs GROUP BY {number}\n"
            f")\nSELECT {number}, any_value({newest}) AS {newest}{''.join(merged)}\n"
            f"FROM pairs JOIN newest USING ({number})\nGROUP BY {number}"
        )

    def _merged(self, found: pa.Table, partial: str, window: int) -> Column:
        column = found.column(f"{partial}@{window}").combine_chunks()
        if isinstance(column, pa.ChunkedArray):  # of no rows
            column = pa.array([], column.type)
        known = self.view.partial[partial]
        merged = fold_lists(known, column, self.view.tile_ms)
        return canonical([known], {partial: Column.from_arrow(merged)})[partial]

    def answers(self, found: pa.Table) -> tuple[dict[str, Column], dict[str, npt.NDArray[np.int8]]]:
        """Features and statuses (``Status``) of all rows."""
        count = len(self.as_of_ms)
        number = found.column(_NUMBER).to_numpy()
        newest = found.column(_NEWEST).to_numpy()
        status = np.full(count, Status.MISSING, np.int8)
        known = newest >= self.view.known_from(self.as_of_ms)[number]
        status[number[known]] = Status.PRESENT
        if self.view.ttl_ms is not None:
            status[number[known & (newest < self.horizon[number] - self.view.ttl_ms)]] = (
                Status.EXPIRED
            )
        present = status == Status.PRESENT
        values, reported = {}, {}
        for i, members in enumerate(self.members):
            ends = _spread(Column.from_arrow(found.column(f"__newest{i}")), number, count)
            for feature in members:
                read_ms = feature.window.read_time(self.as_of_ms)
                since_ms = np.where(ends.mask, read_ms - ends.values, 0)
                reading = Reading(read_ms, since_ms, feature.window_ms)
                merged = [
                    _spread(self._merged(found, name, i), number, count)
                    for name in feature.partials
                ]
                done = feature.aggregate.finish(self.view.scope, merged, reading)
                values[feature.name] = Column(done.column.values, done.column.mask & present)
                reported[feature.name] = _with(status, done.ill_conditioned, present)
        return values, reported


def _with(status: npt.NDArray[np.int8], ill: Bools | None, present: Bools) -> npt.NDArray[np.int8]:
    if ill is None:
        return status
    return np.where(ill & present, np.int8(Status.ILL_CONDITIONED), status)


def _spread(found: Column, number: Ints, count: int) -> Column:
    """A column of the result at the rows it belongs to, null at all others."""
    values = np.zeros(count, found.values.dtype)
    valid = np.zeros(count, np.bool_)
    values[number], valid[number] = found.values, found.mask
    return Column(values, valid)


def _chosen(view: CompiledView, names: Sequence[str] | None) -> list[CompiledFeature]:
    if names is None:
        return list(view.features)
    found = [view.feature(name) for name in names]
    for name, feature in zip(names, found, strict=True):
        if feature is None:
            known = [f.name for f in view.features]
            raise UnknownNameError.of(f"feature of view {view.name!r}", name, known)
    if not names or len(set(names)) < len(names):
        raise RequestError(f"names={list(names)!r}; expected one or more features, each once")
    return [feature for feature in found if feature is not None]


def _events(view: CompiledView, events: Any) -> pa.Table:
    """The columns that the view needs, in their declared types."""
    schema = arrow_schema({name: view.source.schema[name] for name in event_columns(view)})
    if isinstance(events, str | Path):
        there = pq.ParquetDataset(events, partitioning=None)
        _check_columns(view, schema, there.schema.names)
        table = there.read(columns=schema.names)
    else:
        table = arrow_table(events)
        _check_columns(view, schema, table.column_names)
    columns = []
    for field in schema:
        column = table.column(field.name)
        try:
            is_event_time = field.name == view.source.event_time
            columns.append(conform(one_array(column), field.type, event_time=is_event_time))
        except pa.ArrowException as error:
            raise RequestError(
                f"events: the column {field.name!r} is {column.type}; source "
                f"{view.source.name!r} has it as {field.type}: {error}"
            ) from error
    return pa.Table.from_arrays(columns, schema=schema)


def _check_columns(view: CompiledView, schema: pa.Schema, there: Sequence[str]) -> None:
    missing = [name for name in schema.names if name not in there]
    if missing:
        raise RequestError(
            f"events have no column {missing[0]!r}, which view {view.name!r} needs; they have: "
            f"{', '.join(there) or 'none'}"
        )
