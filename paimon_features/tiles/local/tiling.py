"""Tiles as DuckDB SQL: the counterpart of the Flink tile job, for a finite set of events.

Flink turns one event into one row of partials and lets the lake merge. Here one statement does
both: events that enter a tile are grouped by entity and tile, and each partial is merged by the
DuckDB aggregate that does what the lake's function does (``merged_sql``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from paimon_features.core.columns.column import Column
from paimon_features.core.expressions import to_duckdb
from paimon_features.core.expressions.nodes import Literal, quoted
from paimon_features.core.times.partition_days import PARTITION_DAYS, first_days
from paimon_features.core.types.array_types import Ints
from paimon_features.core.types.schema import DataType, Int64
from paimon_features.core.windows import DAY_MS, MAX_TIME_MS, MIN_TIME_MS
from paimon_features.definitions import CompiledView
from paimon_features.definitions.aggregates import EVENT_TIME, TILE_END, Partial
from paimon_features.definitions.aggregates.fold import fold
from paimon_features.definitions.compiled import SkipRule
from paimon_features.definitions.event_partials import event_columns
from paimon_features.lake.duckdb_engine import identifier, literal
from paimon_features.lake.specs import TILE_DAY, TILE_START, UNKNOWN_DAY

TILE = "__tile"
"""The column with the number of an event's tile since 1970."""

ONE_SQL = to_duckdb(Literal(Int64, 1))

_TILE = quoted(TILE, '"')


def tile_sql(view: CompiledView, events: str, *, partition_days: int | None = 1) -> str:
    """Return the statement that returns the tiles of ``events``, each once, for ``tile_rows`` to
    finish.

    ``events`` is the operand of FROM: a table, or a call of ``read_parquet``. The rows come
    in the order of partition, keys and tile; without ``partition_days`` in that of keys and tile
    alone, which is the same for one partition and a shorter sort.
    """
    keys = "".join(f"{identifier(key)}, " for key in view.keys)
    merged = ",\n  ".join(
        f"{merged_sql(p, to_duckdb(view.expressions[p.name]))} AS {identifier(p.name)}"
        for p in view.partials
    )
    return (
        f"SELECT {_TILE}, {keys}\n  {merged}\nFROM {entering_sql(view, events)}\n"
        f"GROUP BY {keys}{_TILE}\nORDER BY {order_sql(view, partition_days)}"
    )


def order_sql(view: CompiledView, partition_days: int | None) -> str:
    """Return the order of tiles, for ORDER BY; see ``tile_sql``."""
    first = ""
    if partition_days is not None:
        # the sum within the floor of a long partition leaves the 32 bits of most tiles' numbers
        number = _TILE if partition_days <= PARTITION_DAYS[-1] else f"CAST({_TILE} AS BIGINT)"
        first = f"{floor_sql(number, partition_days * DAY_MS // view.tile_ms)}, "
    keys = "".join(f"{identifier(key)}, " for key in view.keys)
    return f"{first}{keys}{_TILE}"


def tile_rows(view: CompiledView, rows: pa.RecordBatch, partition_days: int = 1) -> pa.RecordBatch:
    """Return rows of the tile table, with its columns in its order, from rows of ``tile_sql``."""
    partials = (fold_lists(p, rows.column(p.name), view.tile_ms) for p in view.partials)
    names = [TILE, *view.keys]
    columns = [*(rows.column(name) for name in names), *partials]
    names += [p.name for p in view.partials]
    return placed(view, pa.RecordBatch.from_arrays(columns, names), partition_days)


def placed(view: CompiledView, rows: pa.RecordBatch, partition_days: int) -> pa.RecordBatch:
    """Return the same for rows with merged partials.

    Day and start follow from the number of the tile: carried through a sort, they would cost
    more than they do here.
    """
    numbers = rows.column(TILE).to_numpy().astype(np.int64)
    days = first_days(numbers // (DAY_MS // view.tile_ms), partition_days)
    columns = {
        TILE_DAY: pa.array(days),
        **{key: rows.column(key) for key in view.keys},
        TILE_START: pa.array(numbers * view.tile_ms),
        **{p.name: rows.column(p.name) for p in view.partials},
    }
    return pa.RecordBatch.from_pydict(columns)


def skipped_sql(view: CompiledView, events: str) -> str:
    """Return the statement that counts, by day, reason and detail, the members that enter no tile.

    Its columns are those of the table of skipped rows. An event counts under the first rule
    that it breaks.
    """
    reason = _first_broken(view, lambda rule: literal(rule.reason))
    detail = _first_broken(view, lambda rule: _detail_sql(view, rule))
    columns = f'{identifier(TILE_DAY)}, "reason", "detail"'
    return (
        f'SELECT {columns}, CAST(count(*) AS BIGINT) AS "p_rows"\nFROM (\n'
        f"  SELECT {_day_or_unknown_sql(view)} AS {identifier(TILE_DAY)},\n"
        f'    {reason} AS "reason",\n    {detail} AS "detail"\n'
        f"  FROM {_columns_sql(view, events)}\n"
        f"  WHERE {_member_sql(view)} AND NOT ({_unbroken_sql(view)})\n)\nGROUP BY {columns}"
    )


def entering_sql(view: CompiledView, events: str) -> str:
    """Return the events that enter a tile, as an operand of FROM.

    Columns: those that the view uses, in their declared types, the others in expressions of
    partials (event time, end of the tile), and the number of the tile.
    """
    time = identifier(view.source.event_time)
    # four bytes where they are enough: a tenth less time to group and to sort
    kind = "INTEGER" if MAX_TIME_MS // view.tile_ms < 2**31 else "BIGINT"
    number = f"CAST({floor_sql(time, view.tile_ms)} // {view.tile_ms} AS {kind})"
    return (
        f"(\n    SELECT *, {time} AS {identifier(EVENT_TIME)}, "
        f"CAST({_TILE} AS BIGINT) * {view.tile_ms} + {view.tile_ms} AS {identifier(TILE_END)}\n"
        f"    FROM (\n      SELECT *, {number} AS {_TILE}\n"
        f"      FROM {_columns_sql(view, events)}\n"
        f"      WHERE {_member_sql(view)} AND {_unbroken_sql(view)}\n    )\n  )"
    )


def floor_sql(time: str, step_ms: int) -> str:
    """Return SQL of ``windows.floor_ms``: the remainder takes the sign of the dividend.

    >>> floor_sql("t", 300000)
    '(t - ((t % 300000) + 300000) % 300000)'
    """
    return f"({time} - (({time} % {step_ms}) + {step_ms}) % {step_ms})"


def merged_sql(partial: Partial, value: str) -> str:
    """Return the SQL aggregate that merges a partial, given the SQL of one event's value.

    NULLs change nothing, and where there is nothing else the result is NULL, as in the lake. A
    partial for which DuckDB has no such aggregate is a list of its values, for ``fold_lists``.
    """
    build = _MERGES.get(partial.merge.paimon)
    if build is not None:
        return build(value, partial.type)
    return f"list({value}) FILTER (WHERE {value} IS NOT NULL)"


def is_merged_by_sql(partial: Partial) -> bool:
    """Return True if ``merged_sql`` merges a partial, instead of listing its values."""
    return partial.merge.paimon in _MERGES


def fold_lists(partial: Partial, column: pa.Array, tile_ms: int) -> pa.Array:
    """Return what ``merged_sql`` gave for a partial, with lists merged by NumPy, one row each."""
    if is_merged_by_sql(partial):
        return column
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    return fold_values(partial, pc.list_flatten(column), offsets, tile_ms)


def fold_values(partial: Partial, values: pa.Array, offsets: Ints, tile_ms: int) -> pa.Array:
    """Return the values ``offsets[i]:offsets[i + 1]`` of a partial, merged to row ``i`` by
    NumPy."""
    # like the lake, which keeps all items of a list, however few a feature wants
    whole = replace(partial, limit=None)
    rows = {partial.name: Column.from_arrow(values)}
    return fold([whole], rows, offsets, tile_ms)[partial.name].to_arrow(partial.type.arrow)


def _sum(value: str, kind: DataType) -> str:
    if value == ONE_SQL:
        return "count(*)"  # an eighth of the time of grouping
    total = f"sum({value})"
    # DuckDB adds integers at 128 bits. What leaves 64 is an error here, for the lake would wrap
    return f"CAST({total} AS BIGINT)" if kind is Int64 else total


_MERGES: Mapping[str, Callable[[str, DataType], str]] = {
    "sum": _sum,
    # DuckDB compares text by its UTF-8 bytes, as Paimon does: that is by code point
    "min": lambda value, _: f"min({value})",
    "max": lambda value, _: f"max({value})",
    # the lake joins by commas, in any order, and keeps what comes twice
    "listagg": lambda value, _: f"string_agg({value}, ',')",
}
"""DuckDB's aggregate by the name of Paimon's; arguments: value, type."""


def _columns_sql(view: CompiledView, events: str) -> str:
    """Return the needed columns.

    Times in the unit of the expressions, whatever that of the file.
    """
    columns = [
        f"CAST({identifier(name)} AS TIMESTAMP_MS) AS {identifier(name)}"
        if view.source.schema[name].text == "timestamp"
        else identifier(name)
        for name in event_columns(view)
    ]
    return f"(SELECT {', '.join(columns)} FROM {events})"


def _member_sql(view: CompiledView) -> str:
    return "TRUE" if view.where is None else f"({to_duckdb(view.where)}) IS TRUE"


def _unbroken_sql(view: CompiledView) -> str:
    tests = [f"({to_duckdb(rule.condition)}) IS TRUE" for rule in view.skip_rules]
    return " AND ".join(tests) or "TRUE"


def _first_broken(view: CompiledView, sql: Callable[[SkipRule], str]) -> str:
    cases = [
        f"WHEN ({to_duckdb(rule.condition)}) IS NOT TRUE THEN {sql(rule)}"
        for rule in view.skip_rules
    ]
    return f"CASE {' '.join(cases)} END"


def _detail_sql(view: CompiledView, rule: SkipRule) -> str:
    if rule.reason == "null_key":
        return literal(rule.detail)
    # key and time identify the row
    parts = [literal(f"{rule.detail} |")]
    for name in (*view.keys, view.source.event_time):
        text = f"CAST({identifier(name)} AS VARCHAR)"
        if view.source.schema[name].text == "bool":
            text = f"upper({text})"  # as Flink writes it
        parts += [literal(f" {name}="), f"coalesce({text}, 'null')"]
    return " || ".join(parts)


def _day_or_unknown_sql(view: CompiledView) -> str:
    time = identifier(view.source.event_time)
    in_range = f"{time} >= {MIN_TIME_MS} AND {time} <= {MAX_TIME_MS}"
    day = f"CAST({floor_sql(time, DAY_MS)} // {DAY_MS} AS INTEGER)"
    return f"CASE WHEN {in_range} THEN {day} ELSE {UNKNOWN_DAY} END"
