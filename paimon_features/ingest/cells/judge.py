"""Rows as events, or as rejected rows with the reason: the rules of ``ingest.flink.ingest_sql``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from paimon_features.core.types.array_types import Bools
from paimon_features.core.types.schema import String, arrow_schema
from paimon_features.core.windows import MAX_TIME_MS, MIN_TIME_MS, format_duration
from paimon_features.definitions import EventSource
from paimon_features.definitions.source import ROW_KINDS
from paimon_features.ingest.cells.cells import CellBatch
from paimon_features.ingest.cells.converted import Converted
from paimon_features.ingest.cells.java_text import json_object, texts_of
from paimon_features.ingest.input_columns import FileGroup
from paimon_features.ingest.runs import IngestRun
from paimon_features.lake.events.rejects import (
    BAD_RETRACTION,
    MISSING_EVENT_ID,
    MISSING_TIME,
    NOT_FINITE,
    TIME_IN_FUTURE,
    TIME_OUT_OF_RANGE,
    WRONG_TYPE,
)
from paimon_features.lake.specs import INGEST_TIME_MS

SHOWN = 100
"""Characters of a bad value in a detail; the complete row is stored with it."""


@dataclass(frozen=True, slots=True)
class Judged:
    """The events among some rows, with the columns of the source, and the rows that are none.

    ``origin`` is the file of the events.
    """

    events: pa.Table
    rejected: pa.Table | None
    origin: str


@dataclass(frozen=True, slots=True)
class _Problem:
    """Rows with the same reason, and the detail of each."""

    rows: Any
    reason: str
    details: Sequence[str]


def judge(batch: CellBatch, group: FileGroup, source: EventSource, run: IngestRun) -> Judged:
    """Convert the cells of rows and decide which rows are events.

    A row is rejected for the first reason that applies: it cannot be split, then the columns in the
    source's order, then its time, its retraction, its event id.
    """
    if not batch.columns:  # nothing but rows that could not be split
        reasons, details, raws = zip(*batch.broken, strict=True)
        bad_rows = rejected_rows(reasons, details, raws, batch.origin, run)
        return Judged(arrow_schema(source.schema).empty_table(), bad_rows, batch.origin)
    names = [column.name for column in group.columns]
    converted = {
        name: batch.columns[name].convert(source.schema[name], name in source.time_columns)
        for name in names
    }
    arrays = {name: converted[name].values for name in names}
    for name in source.rounded_up & arrays.keys():
        later = pa.array(batch.columns[name].finer().astype(np.int64))
        arrays[name] = pc.add(arrays[name], later)
    values = pa.table(arrays)
    problems, bad = _problems(batch, values, converted, source, run)
    tables = []
    if batch.broken:
        reasons, details, raws = zip(*batch.broken, strict=True)
        tables.append(rejected_rows(reasons, details, raws, batch.origin, run))
    if problems:
        tables.append(_rejected(batch, values, problems, source, run))
    events = values.filter(pa.array(~bad)) if bad is not None else values
    return Judged(events, pa.concat_tables(tables) if tables else None, batch.origin)


def _problems(
    batch: CellBatch,
    values: pa.Table,
    converted: Mapping[str, Converted],
    source: EventSource,
    run: IngestRun,
) -> tuple[list[_Problem], Bools | None]:
    problems: list[_Problem] = []
    flagged: Bools | None = None

    def complain(flags: Bools | None, reason: str, details: Any) -> None:
        nonlocal flagged
        if flags is None or not flags.any():
            return
        fresh = flags if flagged is None else flags & ~flagged
        rows = np.flatnonzero(fresh)
        if len(rows):
            problems.append(_Problem(rows, reason, details(rows)))
            flagged = fresh if flagged is None else flagged | fresh

    for name, cells in converted.items():
        kind = source.schema[name]
        shown = batch.columns[name].texts

        def infinite(rows: Any, name: str = name, kind: Any = kind, shown: Any = shown) -> Any:
            text = f"column {name}: expected a finite {kind.text}, got "
            return [text + (cell or "")[:SHOWN] for cell in shown(rows)]

        def wrong(rows: Any, name: str = name, kind: Any = kind, shown: Any = shown) -> Any:
            expected = f"{kind.text} or a time" if name in source.time_columns else kind.text
            text = f"column {name}: expected {expected}, got '"
            return [f"{text}{(cell or '')[:SHOWN]}'" for cell in shown(rows)]

        complain(cells.infinite, NOT_FINITE, infinite)
        complain(cells.wrong, WRONG_TYPE, wrong)
    _check_times(values, source, run, complain)
    _check_roles(values, source, complain)
    return problems, flagged


def _check_times(values: pa.Table, source: EventSource, run: IngestRun, complain: Any) -> None:
    times = values.column(source.event_time)
    column = f"column {source.event_time}"
    if times.null_count:
        missing = np.asarray(times.is_null())
        complain(missing, MISSING_TIME, lambda rows: [f"{column} is null"] * len(rows))
        times = pc.fill_null(times, 0)
    plain = times.to_numpy()
    assert run.time_ms is not None
    greatest = run.time_ms + source.max_skew_ms
    if not len(plain) or (plain.min() >= MIN_TIME_MS and plain.max() <= min(greatest, MAX_TIME_MS)):
        return
    expected = f"{column}: expected a time"
    years = f"{expected} in the years 1 to 9999, got "
    skew = format_duration(source.max_skew_ms)
    ahead = f"{expected} that is at most {skew} ahead of the clock, got "
    complain(
        (plain < MIN_TIME_MS) | (plain > MAX_TIME_MS),
        TIME_OUT_OF_RANGE,
        lambda rows: [f"{years}{time}" for time in plain[rows].tolist()],
    )
    complain(
        plain > greatest,
        TIME_IN_FUTURE,
        lambda rows: [f"{ahead}{time}" for time in plain[rows].tolist()],
    )


def _check_roles(values: pa.Table, source: EventSource, complain: Any) -> None:
    """Reject rows whose retraction or event id is null or, for a retraction, unknown."""
    if source.retraction is not None:
        reported = values.column(source.retraction)
        valid = reported.is_valid()
        expected = "true or false"
        if source.schema[source.retraction] == String:
            valid = pc.and_(valid, pc.is_in(reported, pa.array(ROW_KINDS)))
            expected = ", ".join(ROW_KINDS)
        text = f"column {source.retraction}: expected {expected}, got "

        def details(rows: Any) -> list[str]:
            cells = texts_of(reported.take(pa.array(rows)).combine_chunks())
            return [text + ("null" if cell is None else cell[:SHOWN]) for cell in cells]

        complain(~_flags(valid), BAD_RETRACTION, details)
    if source.event_id is not None:
        text_of_id = f"column {source.event_id} is null"
        missing = _flags(values.column(source.event_id).is_null())
        complain(missing, MISSING_EVENT_ID, lambda rows: [text_of_id] * len(rows))


def _flags(array: Any) -> Bools:
    return np.asarray(array.to_numpy(zero_copy_only=False), np.bool_)


def _rejected(
    batch: CellBatch,
    values: pa.Table,
    problems: Sequence[_Problem],
    source: EventSource,
    run: IngestRun,
) -> pa.Table:
    tables = []
    for problem in problems:
        if problem.reason == TIME_IN_FUTURE:
            # a row that may be released later is stored independently of its input format
            raws: Sequence[str] = row_texts(values.take(pa.array(problem.rows)), source)
        else:
            raws = batch.raw(problem.rows.tolist())
        reasons = [problem.reason] * len(raws)
        tables.append(rejected_rows(reasons, problem.details, raws, batch.origin, run))
    return pa.concat_tables(tables)


def rejected_rows(
    reasons: Sequence[str],
    details: Sequence[str],
    raws: Sequence[str | None],
    origin: str | Sequence[str],
    run: IngestRun,
) -> pa.Table:
    """Return rows of the rejected table."""
    count = len(reasons)
    origins = [origin] * count if isinstance(origin, str) else origin
    return pa.table(
        {
            "reason": pa.array(reasons, pa.string()),
            "detail": pa.array(details, pa.string()),
            "raw": pa.array(raws, pa.string()),
            "origin": pa.array(origins, pa.string()),
            "ingest_id": pa.array([run.id] * count, pa.string()),
            INGEST_TIME_MS: pa.array([run.time_ms] * count, pa.int64()),
        }
    )


def row_texts(rows: pa.Table, source: EventSource) -> list[str]:
    """Return each row's values as one JSON object of texts, which ``ingest.release`` reads."""
    columns: dict[str, list[Any]] = {}
    for name, kind in source.schema.items():
        column = rows.column(name).combine_chunks()
        if isinstance(column, pa.ChunkedArray):
            column = column.chunk(0) if column.num_chunks else pa.array([], column.type)
        columns[name] = (
            column.to_pylist() if kind.text in ("string", "bytes") else list(texts_of(column))
        )
    return [
        json_object({name: columns[name][row] for name in columns}) for row in range(rows.num_rows)
    ]
