"""Entity rows that are events of a request's source: given by the caller, or all in the lake."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from paimon_features.core.columns.column import Column, one_array
from paimon_features.core.errors import RequestError
from paimon_features.core.expressions import evaluate, parse
from paimon_features.core.types.array_types import Ints
from paimon_features.definitions import EventSource
from paimon_features.definitions.own_events import EventReads
from paimon_features.definitions.skipped import is_true
from paimon_features.lake import Lake
from paimon_features.offline.inputs.checked_columns import EVENT_TIME_MS
from paimon_features.offline.inputs.row_source import RowSource, row_source


def event_rows(rows: RowSource, reads: EventReads) -> RowSource:
    """Return events as entity rows: their time under its name there, and keys of another name.

    Raises
    ------
    RequestError
        If the rows lack a column that the features use.
    """
    names = rows.schema.names
    for name in sorted(reads.needed):
        if name not in names:
            raise RequestError(
                f"entity rows have no column {name!r} of source {reads.source.name!r}, which the "
                f"features use; they have: {', '.join(names) or 'none'}"
            )
    added = {key: column for key, column in reads.keys.items() if key not in names}
    if EVENT_TIME_MS not in names:
        added[EVENT_TIME_MS] = reads.source.event_time
    schema = rows.schema
    for name, column in added.items():
        schema = schema.append(schema.field(column).with_name(name))

    def extended(table: pa.Table) -> pa.Table:
        for name, column in added.items():
            table = table.append_column(name, table.column(column))
        return table

    if rows.table is not None:
        table = extended(rows.table)
        return RowSource(schema, lambda: iter([table]), table, reads)
    return RowSource(schema, lambda: map(extended, _tables(rows)), event_reads=reads)


def stored_events(lake: Lake, source: EventSource) -> RowSource:
    """Return all events of a source in the lake, without those that were retracted.

    An event and its retraction, which has the same columns, cancel each other; events that occur
    twice are two rows.
    """
    stored = row_source(source.table, lake)
    names = [name for name in source.schema if name in stored.schema.names]
    schema = pa.schema([stored.schema.field(name) for name in names])
    selected: Callable[[], Iterator[pa.Table]] = lambda: (  # noqa: E731
        table.select(names) for table in _tables(stored)
    )
    if source.withdrawal is None:
        return RowSource(schema, selected)
    table = pa.concat_tables([schema.empty_table(), *selected()])
    return row_source(_net(source, table))


def _net(source: EventSource, events: pa.Table) -> pa.Table:
    """Return the events that no retraction cancels, in their order."""
    assert source.withdrawal is not None
    assert source.retraction is not None
    column = Column.from_arrow(events.column(source.retraction))
    condition = parse(source.withdrawal, source.schema)
    retracted = is_true(evaluate(condition, {source.retraction: column}, events.num_rows))
    codes = _row_codes(events.drop_columns([source.retraction]))
    additions = np.flatnonzero(~retracted)
    standing = np.bincount(codes[additions], minlength=len(codes) or 1)
    standing -= np.bincount(codes[retracted], minlength=len(standing))
    order = additions[np.argsort(codes[additions], kind="stable")]
    of_order = codes[order]
    first = np.flatnonzero(np.diff(of_order, prepend=-1))
    ranks = np.arange(len(order)) - np.repeat(first, np.diff(first, append=len(order)))
    return events.take(pa.array(np.sort(order[ranks < standing[of_order]])))


def _row_codes(table: pa.Table) -> Ints:
    """Return a number for each row, equal for equal rows; a null equals a null."""
    codes: Ints = np.zeros(table.num_rows, np.int64)
    for column in table.columns:
        values = one_array(column)
        if pa.types.is_nested(values.type):
            values = pa.array([repr(value) for value in values.to_pylist()])
        encoded = pc.dictionary_encode(values, null_encoding="encode")
        pairs = codes * max(1, len(encoded.dictionary)) + encoded.indices.to_numpy()
        # dense again after each column, so that the product of two counts fits
        codes = np.unique(pairs, return_inverse=True)[1].reshape(-1)
    return codes


def _tables(rows: RowSource) -> Iterator[pa.Table]:
    chunks = rows.chunks()
    table = chunks.take(1 << 16)
    while table.num_rows:
        yield table
        table = chunks.take(1 << 16)
