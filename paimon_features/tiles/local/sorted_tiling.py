"""Tiles from sorted events: faster than ``tile_sql`` where few events share a tile.

A hash table with a group for nearly each event is larger than the processor's caches, and its rows
are sorted afterwards anyway. Here DuckDB only sorts: the events of a tile come one after another,
and runs of equal keys are merged by NumPy and Arrow. Expressions of partials are computed behind
the sort, so that it moves the columns of the source, however many features they have::

    user  tile  amount            user  tile  p_rows  p_sum  p_max
    7     100   3.0    \\
    7     100   5.0    /     ->   7     100   2       8.0    5.0
    7     101   1.0          ->   7     101   1       1.0    1.0

``tile_sql`` is the reference: the tests compare the two on any view and any events.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from paimon_features.core.columns.column import Column, one_array
from paimon_features.core.errors import JobError
from paimon_features.core.expressions import to_duckdb
from paimon_features.core.times.partition_days import first_days
from paimon_features.core.types.array_types import Ints
from paimon_features.core.types.schema import Int64
from paimon_features.core.windows import DAY_MS
from paimon_features.definitions import CompiledView
from paimon_features.definitions.aggregates import Merge, Partial
from paimon_features.definitions.aggregates.fold import fold
from paimon_features.lake.duckdb_engine import SUM_TOO_LARGE, identifier
from paimon_features.tiles.local.tiling import (
    ONE_SQL,
    TILE,
    entering_sql,
    fold_values,
    is_merged_by_sql,
    order_sql,
    placed,
)


def sorted_sql(view: CompiledView, events: str, *, partition_days: int | None = 1) -> str:
    """Return the statement that returns the events of tiles in the tiles' order, for
    ``merged_tiles``.

    Arguments and order are those of ``tile_sql``. Columns: number of the tile, keys, and each
    different expression of a partial (``v0``, ``v1``, ...), except that for the number of events.
    """
    values = "".join(f', {sql} AS "v{n}"' for n, sql in enumerate(_expressions(view)))
    keys = "".join(f", {identifier(key)}" for key in view.keys)
    ordered = f"{entering_sql(view, events)}\nORDER BY {order_sql(view, partition_days)}"
    return f"SELECT {identifier(TILE)}{keys}{values}\nFROM (SELECT * FROM {ordered})"


def merged_tiles(
    view: CompiledView,
    batches: Iterable[pa.RecordBatch],
    partition_days: int = 1,
    *,
    several: bool = True,
) -> Iterator[pa.RecordBatch]:
    """Yield rows of the tile table, each once and in its order, from batches of ``sorted_sql``.

    ``several`` says that the rows are in the order of partitions first. A tile may continue in
    the next batch.

    Raises
    ------
    JobError
        If a sum of integers leaves 64 bits, or the events are in another order.
    """
    order = partition_days if several else None
    held: pa.RecordBatch | None = None
    for batch in batches:
        if not batch.num_rows:
            continue
        rows = _merge_runs(view, _event_partials(view, batch), order)
        if held is not None:
            joint = pa.Table.from_batches([held, rows.slice(0, 1)]).combine_chunks()
            before = _merge_runs(view, joint.to_batches()[0], order)
            rows = rows.slice(1)
            if not rows.num_rows:
                held = before.slice(before.num_rows - 1)
                before = before.slice(0, before.num_rows - 1)
            if before.num_rows:
                yield placed(view, before, partition_days)
        if rows.num_rows:
            held = rows.slice(rows.num_rows - 1)
            if rows.num_rows > 1:
                yield placed(view, rows.slice(0, rows.num_rows - 1), partition_days)
    if held is not None:
        yield placed(view, held, partition_days)


def _expressions(view: CompiledView) -> list[str]:
    """Return the SQL of each different value that partials merge."""
    texts = (to_duckdb(view.expressions[partial.name]) for partial in view.partials)
    return [text for text in dict.fromkeys(texts) if text != ONE_SQL]


def _event_partials(view: CompiledView, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return one row of partials for each event."""
    names = {text: f"v{number}" for number, text in enumerate(_expressions(view))}
    columns = {name: batch.column(name) for name in (TILE, *view.keys)}
    for partial in view.partials:
        name = names.get(to_duckdb(view.expressions[partial.name]))
        column = pa.array(np.ones(batch.num_rows, np.int64)) if name is None else batch.column(name)
        kind = partial.type.arrow
        columns[partial.name] = column if column.type == kind else column.cast(kind)
    return pa.RecordBatch.from_pydict(columns)


def _merge_runs(
    view: CompiledView, rows: pa.RecordBatch, partition_days: int | None
) -> pa.RecordBatch:
    """Return each run of rows of one tile as one row; checks the order."""
    offsets = _runs(view, rows, partition_days)
    lengths = np.diff(offsets)
    longer = lengths > 1
    firsts = rows
    if longer.any():
        is_first = np.zeros(rows.num_rows, np.bool_)
        is_first[offsets[:-1]] = True
        firsts = rows.filter(pa.array(is_first))
    columns = {name: firsts.column(name) for name in (TILE, *view.keys)}
    # what is merged: the rows of runs of several; all others are their own result
    some = rows if longer.all() else rows.filter(pa.array(np.repeat(longer, lengths)))
    some_offsets = np.concatenate([[0], np.cumsum(lengths[longer])])
    replaced = pa.array(longer)
    for partial in view.partials:
        name = partial.name
        if not is_merged_by_sql(partial):
            columns[name] = fold_values(partial, rows.column(name), offsets, view.tile_ms)
        elif some.num_rows:
            merged = _merged(view, partial, some.column(name), some_offsets)
            columns[name] = pc.replace_with_mask(firsts.column(name), replaced, merged)
        else:
            columns[name] = firsts.column(name)
    return pa.RecordBatch.from_pydict(columns)


def _runs(view: CompiledView, rows: pa.RecordBatch, partition_days: int | None) -> Ints:
    """Return the offsets of runs of rows with the same keys and tile."""
    order: list[pa.Array] = [*(rows.column(key) for key in view.keys), rows.column(TILE)]
    if partition_days is not None:
        numbers = rows.column(TILE).to_numpy()
        order.insert(0, pa.array(first_days(numbers // (DAY_MS // view.tile_ms), partition_days)))
    equal = np.ones(rows.num_rows - 1, np.bool_)
    rises = np.zeros(rows.num_rows - 1, np.bool_)
    for column in order:
        before, after = column.slice(0, len(column) - 1), column.slice(1)
        rises |= equal & np.asarray(pc.greater(after, before))
        equal &= np.asarray(pc.equal(after, before))
    if not (rises | equal).all():
        raise JobError(
            f"tiles of view {view.name!r}: expected events in the order of keys and tiles, got "
            "others from DuckDB; this is a defect of that release of DuckDB or of this package"
        )
    return np.concatenate([[0], np.flatnonzero(~equal) + 1, [rows.num_rows]])


def _merged(view: CompiledView, partial: Partial, column: pa.Array, offsets: Ints) -> pa.Array:
    """Return a partial of each run, merged as by ``merged_sql``."""
    if partial.type.is_numeric:
        values = Column.from_arrow(column)
        if partial.type is Int64 and partial.merge.paimon == "sum":
            _check_sums(view, values, offsets)
        # within a tile a decayed sum is a sum
        within = replace(partial, merge=Merge.SUM) if partial.half_life_ms else partial
        merged = fold([within], {partial.name: values}, offsets, 0)[partial.name]
        return merged.to_arrow(partial.type.arrow)
    if partial.merge.paimon == "listagg":
        present = np.asarray(column.is_valid())
        ends = np.concatenate([[0], np.cumsum(present)])[offsets].astype(np.int32)
        items = pa.ListArray.from_arrays(pa.array(ends), column.drop_null())
        joined = pc.binary_join(items, pa.scalar(",", column.type))
        return pc.if_else(pa.array(np.diff(ends) > 0), joined, pa.scalar(None, column.type))
    runs = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    how = partial.merge.paimon
    grouped = pa.table({"run": runs, "value": column}).group_by("run", use_threads=False)
    # in the order in which the runs come; Arrow compares text by its bytes, as DuckDB does
    return one_array(grouped.aggregate([("value", how)]).column(f"value_{how}"))


def _check_sums(view: CompiledView, values: Column, offsets: Ints) -> None:
    """Raise JobError if a sum of one of these runs leaves 64 bits, in which NumPy would wrap."""
    greatest = max(int(values.values.max()), -int(values.values.min()))
    if greatest * int(np.diff(offsets).max()) < 2**63:
        return
    starts = offsets[:-1]
    # the halves of a number, each of which 2^31 rows add up without wrapping
    high = np.add.reduceat(values.values >> 32, starts)
    low = np.add.reduceat(values.values & 0xFFFFFFFF, starts)
    high += low >> 32
    if (high != high.astype(np.int32)).any():
        raise JobError(f"tiles of view {view.name!r}: {SUM_TOO_LARGE}")
