"""Whether the rows of a table are in the events after its change log was read.

A position in a change log does not show it: a change that was never written to the log is behind
every position. Rows that were written before the log was switched on, or by a writer that does not
write it, may be in none; rows of level 0 enter it when they are compacted. So the rows themselves
are compared: those of the table with the sum of the events, in which a retraction counts as -1.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from paimon_features.core.errors import JobError, SnapshotExpiredError
from paimon_features.definitions import EventSource
from paimon_features.definitions.source import RETRACTED_KINDS
from paimon_features.ingest.flink.change_log_sql import ROW_KIND, ChangeLog
from paimon_features.ingest.input_columns import InputColumn
from paimon_features.lake import Lake, latest_snapshot, read_arrow
from paimon_features.lake.reading.deltas import live_files

_GOAL, _AFTER, _EVENTS = "in the table", "in the table afterwards", "in the events"
_SUMS = (_GOAL, _AFTER, _EVENTS)


def check_complete(lake: Lake, source: EventSource, log: ChangeLog, goal: int) -> None:
    """Check that the rows that the table had at snapshot ``goal``, and still has, are events.

    Rows are compared by the columns that have the same type in the table and in the source.

    Raises
    ------
    JobError
        If rows are left out, or replaced rows were not retracted.
    """
    try:
        left_out, outdated = compare_rows(lake, source, log, goal)
    except SnapshotExpiredError as error:
        raise JobError(
            f"table {log.name}: its change log up to snapshot {goal} was read, but whether "
            "all rows of the table are among the events could not be checked, since that snapshot "
            "has expired meanwhile; repeat the command"
        ) from error
    left_out -= _rejected(lake, source, log)
    if left_out <= 0 and not outdated:
        return
    level_0 = sum(file.rows for file in live_files(log.lake, log.table, goal) if file.level == 0)
    keyed = log.lake.table(log.table).is_primary_key_table
    if keyed and level_0:
        remedy = (
            f"{level_0:,} of its rows are of level 0, which a compaction writes to the change log: "
            f"CALL sys.compact('{log.name}') in Flink, then repeat the command"
        )
    else:
        remedy = (
            "they were written before the change log was switched on, or by a writer without it, "
            "and will not enter it: a source under another name begins with the complete table"
        )
    parts = [f"{left_out:,} rows of the table are not among the events"] if left_out > 0 else []
    if outdated:
        parts.append(f"{outdated:,} events are of rows that were replaced, and not retracted")
    raise JobError(
        f"table {log.name}: its change log up to snapshot {goal} was read, but it is not "
        f"complete: {'; '.join(parts)}. {remedy}"
    )


def check_position(log: ChangeLog, position: int, newest: int | None) -> None:
    """Raise JobError if the next snapshot to read is behind the end of the table, whose numbers
    then begin again before it: the table was rolled back."""
    if position > (newest or 0) + 1:
        raise JobError(
            f"table {log.name}: its snapshots up to {position - 1} were read, and its "
            f"newest is {newest}: it was rolled back since, and its next changes would be left "
            "out. A source under another name begins with the complete table"
        )


def compare_rows(lake: Lake, source: EventSource, log: ChangeLog, goal: int) -> tuple[int, int]:
    """Return how many rows of the table are not among the events, and how many events are outdated.

    Outdated events have a key of the table with other values. While the table changes they are not
    counted: events may be of a snapshot after ``goal``.
    """
    assert source.retraction is not None
    columns = comparable(lake, source, log)
    names = [column.name for column in columns]
    newest = latest_snapshot(log.lake, log.table)
    unchanged = newest is None or newest.id == goal
    parts = [_rows(log, columns, goal, (1, int(unchanged), 0))]
    if not unchanged:
        parts.append(_rows(log, columns, newest.id if newest else goal, (0, 1, 0)))
    events = read_arrow(lake, source.table, columns=[*names, source.retraction])
    kind = events.column(source.retraction)
    retracted = (
        kind
        if pa.types.is_boolean(kind.type)
        else pc.is_in(kind, value_set=pa.array(RETRACTED_KINDS))
    )
    signs = pc.if_else(pc.fill_null(retracted, False), -1, 1)
    parts.append(_with_sums(events.select(names), names, (0, 0, signs)))
    sums = _summed(pa.concat_tables(parts), names)
    lasting = pc.min_element_wise(sums[_GOAL], sums[_AFTER])
    present = pc.max_element_wise(sums[_EVENTS], 0)
    missing = pc.max_element_wise(pc.subtract(lasting, present), 0)
    keys = [column.name for column in columns if column.field in _key_fields(log)]
    outdated = 0
    if unchanged and keys and len(keys) == len(_key_fields(log)):
        other = pc.if_else(pc.equal(sums[_GOAL], 0), present, 0)
        by_key = pa.table({**{k: sums[k] for k in keys}, "rows": sums[_GOAL], "other": other})
        grouped = by_key.group_by(keys).aggregate([("rows", "sum"), ("other", "sum")])
        current = grouped.filter(pc.greater(grouped["rows_sum"], 0))
        outdated = pc.sum(current["other_sum"]).as_py() or 0
    return pc.sum(missing).as_py() or 0, outdated


def comparable(lake: Lake, source: EventSource, log: ChangeLog) -> tuple[InputColumn, ...]:
    """Return the columns whose values are the same in the table and in the events."""
    theirs, ours = log.lake.schema(log.table), lake.schema(source.table)
    return tuple(
        column
        for column in log.columns
        if column.field != ROW_KIND
        and not column.bare
        and theirs.field(column.field).type == ours.field(column.name).type
        and not pa.types.is_nested(ours.field(column.name).type)
        and not pa.types.is_floating(ours.field(column.name).type)
    )


def _key_fields(log: ChangeLog) -> Sequence[str]:
    keys: Sequence[str] = log.lake.table(log.table).primary_keys
    return keys


def _rows(
    log: ChangeLog, columns: Sequence[InputColumn], snapshot: int, sums: tuple[int, int, int]
) -> pa.Table:
    """Return the rows of a snapshot of the table, by the names of the source."""
    # without a column to compare, the rows are counted
    fields = [column.field for column in columns] or [log.lake.schema(log.table).names[0]]
    rows = read_arrow(log.lake, log.table, columns=fields, snapshot_id=snapshot)
    names = [column.name for column in columns]
    renamed = rows.rename_columns(names) if names else rows
    return _with_sums(renamed.select(names), names, sums, rows.num_rows)


def _with_sums(
    table: pa.Table, names: Sequence[str], sums: tuple[object, ...], rows: int | None = None
) -> pa.Table:
    count = table.num_rows if rows is None else rows
    arrays = [_text_or_null(table.column(name)) for name in names]
    for value in sums:
        full = value if isinstance(value, pa.ChunkedArray) else pa.array([value] * count)
        arrays.append(pc.cast(full, pa.int64()))
    return pa.table(arrays, names=[*names, *_SUMS])


def _text_or_null(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return an empty text is null, as the rules of ingestion have it."""
    if not pa.types.is_string(column.type):
        return column
    return pc.if_else(pc.equal(column, ""), pa.scalar(None, column.type), column)


def _summed(table: pa.Table, names: Sequence[str]) -> pa.Table:
    grouped = table.group_by(list(names)).aggregate([(name, "sum") for name in _SUMS])
    return grouped.select([*names, *(f"{name}_sum" for name in _SUMS)]).rename_columns(
        [*names, *_SUMS]
    )


def _rejected(lake: Lake, source: EventSource, log: ChangeLog) -> int:
    """Return how many rows of the table were no valid events."""
    rejected = read_arrow(lake, source.rejected_table, columns=["origin"])
    return pc.sum(pc.equal(rejected["origin"], f"table:{log.name}")).as_py() or 0
