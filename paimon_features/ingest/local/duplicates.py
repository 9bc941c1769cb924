"""Duplicates by their event id among the rows of a run: the rule of ``ingest.flink.duplicates``.

DuckDB stores the rows, which may be more than memory, and finds those whose id has arrived within
the horizon, in the events table or in an earlier row of the run.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from paimon_features.core.windows import format_duration
from paimon_features.definitions import EventSource
from paimon_features.ingest.cells.java_text import texts_of
from paimon_features.ingest.cells.judge import Judged, rejected_rows, row_texts
from paimon_features.ingest.runs import IngestRun
from paimon_features.lake import Lake, iter_batches
from paimon_features.lake.duckdb_engine import DuckDBEngine, identifier
from paimon_features.lake.events.event_ids import identity_columns
from paimon_features.lake.events.rejects import DUPLICATE
from paimon_features.lake.specs import INGEST_TIME_MS

_ORIGIN, _EARLIER = "__origin", "__earlier"
_BATCH_ROWS = 131_072


def without_duplicates(
    lake: Lake, source: EventSource, run: IngestRun, judged: Iterator[Judged], folder: Path
) -> Iterator[Judged]:
    """Yield the rows of ``judged``, duplicates rejected; events come after all rejected rows.

    Of the rows of one id, the first by time, other columns and file is the event, so that a run
    that is finished after a crash, by any engine, chooses the same one. Rows are spilled below
    ``folder``.
    """
    rejected: list[pa.Table] = []
    columns = [(name, kind.arrow) for name, kind in source.schema.items()]
    schema = pa.schema([*columns, (_ORIGIN, pa.string())])

    def fresh() -> Iterator[pa.RecordBatch]:
        for verdict in judged:
            if verdict.rejected is not None:
                rejected.append(verdict.rejected)
            origins = pa.array([verdict.origin]).take(
                pa.array(np.zeros(verdict.events.num_rows, np.int64))
            )
            rows = verdict.events.append_column(_ORIGIN, origins).cast(schema)
            yield from rows.to_batches()

    ids = identity_columns(source.event_id or "", source.retraction, source.schema)
    with DuckDBEngine(folder=folder) as engine:
        engine.load("fresh", pa.RecordBatchReader.from_batches(schema, fresh()))
        nothing = pa.table({name: pa.array([], kind) for name, kind in columns})
        for table in rejected:
            yield Judged(nothing, table, "")
        id_schema = pa.schema([(name, source.schema[name].arrow) for name in ids])
        engine.load(
            "known", pa.RecordBatchReader.from_batches(id_schema, _known(lake, source, run))
        )
        for batch in engine.stream(_statement(source, ids), _BATCH_ROWS, "finding duplicates"):
            yield _judged(pa.Table.from_batches([batch]), source, run)


def _known(lake: Lake, source: EventSource, run: IngestRun) -> Iterator[pa.RecordBatch]:
    """Yield the ids that arrived within the horizon, without those of this run (after a crash)."""
    ids = identity_columns(source.event_id or "", source.retraction, source.schema)
    assert run.time_ms is not None
    since_ms = run.time_ms - (source.horizon_ms or 0)
    recent = {INGEST_TIME_MS: (since_ms + 1, None)}
    schema = pa.schema([(name, source.schema[name].arrow) for name in ids])
    for batch in iter_batches(lake, source.table, [*ids, INGEST_TIME_MS], partitions=recent):
        arrived = batch.column(INGEST_TIME_MS).to_numpy()
        counted = (arrived > since_ms) & (arrived != run.time_ms)
        rows = pa.Table.from_batches([batch]).filter(pa.array(counted)).select(ids)
        yield from rows.cast(schema).to_batches()


def _statement(source: EventSource, ids: list[str]) -> str:
    names = ", ".join(map(identifier, ids))
    order = [source.event_time, *(name for name in source.schema if name != source.event_time)]
    by = [
        f"{identifier(name)} ASC NULLS FIRST"
        for name in order
        if source.schema[name].text != "bytes" and name not in ids
    ]
    same = " AND ".join(f"k.{identifier(name)} = f.{identifier(name)}" for name in ids)
    return (
        f"SELECT f.*, (EXISTS (SELECT 1 FROM known k WHERE {same}) OR "
        f"row_number() OVER (PARTITION BY {names} ORDER BY {', '.join([*by, identifier(_ORIGIN)])}"
        f") > 1) AS {identifier(_EARLIER)} FROM fresh f"
    )


def _judged(rows: pa.Table, source: EventSource, run: IngestRun) -> Judged:
    names = list(source.schema)
    types = pa.schema([(name, kind.arrow) for name, kind in source.schema.items()])
    earlier = rows.column(_EARLIER)
    again = rows.filter(earlier)
    events = rows.filter(pa.compute.invert(earlier)).select(names).cast(types)
    if not again.num_rows:
        return Judged(events, None, "")
    values = again.select(names).cast(types)
    shown = texts_of(values.column(source.event_id).combine_chunks())
    within = f"came before, within {format_duration(source.horizon_ms or 0)}"
    details = [f"column {source.event_id}: {text} {within}" for text in shown]
    origins = again.column(_ORIGIN).to_pylist()
    reasons = [DUPLICATE] * len(details)
    raws = row_texts(values, source)
    return Judged(events, rejected_rows(reasons, details, raws, origins, run), "")
