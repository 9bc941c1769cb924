"""The ingest job as SQL: read, convert, validate, and write accepted and rejected rows.

::

    in_0 (csv)     -> cells -> values -> judged --.
    in_1 (parquet) -> cells -> values -> judged ---+--> ingest_rows --> events_<source>
    in_2 (json)    -> cells -> values -> judged --'               '---> rejected_<source>

For a source with an event id, duplicates are detected between ``judged`` and ``ingest_rows``. Each
step is a view. Both inserts must read ``ingest_rows`` as one Table object: then Flink plans
everything before it once, and reads the input once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paimon_features.core.expressions.flink_floors import first_day_sql
from paimon_features.core.types.schema import String
from paimon_features.core.windows import MAX_TIME_MS, MIN_TIME_MS, format_duration
from paimon_features.definitions import EventSource
from paimon_features.definitions.source import ROW_KINDS
from paimon_features.ingest.flink.cell_sql import (
    cell_value,
    finer_than_ms,
    is_not_finite,
    is_present,
    is_repeatable,
    is_value,
    now_ms_sql,
)
from paimon_features.ingest.flink.change_log_sql import ChangeLog, change_scan
from paimon_features.ingest.flink.duplicates import duplicate_views
from paimon_features.ingest.flink.kafka_sql import KafkaTopic, kafka_scan
from paimon_features.ingest.flink.scan_sql import (
    InputScan,
    file_scan,
    once,
    raw_text,
    row_text,
    sql_options,
)
from paimon_features.ingest.input_columns import FileGroup, InputColumn
from paimon_features.ingest.runs import IngestRun
from paimon_features.lake.ddl import literal, quote
from paimon_features.lake.events.rejects import (
    BAD_RETRACTION,
    MISSING_EVENT_ID,
    MISSING_TIME,
    NOT_FINITE,
    TIME_IN_FUTURE,
    TIME_OUT_OF_RANGE,
    WRONG_TYPE,
)

ROWS = "ingest_rows"
"""The view with all rows, accepted and rejected."""
_SINGLE = "ingest_judged"
"""The view with all rows, each validated by itself, before the detection of duplicates."""

_SHOWN = 100
"""Characters of a bad value in a message; the complete row is stored with it."""


@dataclass(frozen=True, slots=True)
class IngestStatements:
    """To execute in order: ``tables``, ``views`` (name, query), then both inserts as one job."""

    tables: tuple[str, ...]
    views: tuple[tuple[str, str], ...]
    events: str
    rejected: str


def file_statements(
    source: EventSource, groups: Sequence[FileGroup], run: IngestRun, partition_days: int = 1
) -> IngestStatements:
    """Return the job that ingests files; ``partition_days`` are those of the events table."""
    scans = [file_scan(f"in_{number}", group) for number, group in enumerate(groups)]
    forms = [(group.columns, raw_text(group.format, group.columns)) for group in groups]
    return _statements(source, scans, forms, run, partition_days)


def kafka_statements(
    source: EventSource, topic: KafkaTopic, run: IngestRun, partition_days: int = 1
) -> IngestStatements:
    """Return the streaming job that ingests a Kafka topic."""
    form = (topic.columns, raw_text("json", topic.columns))
    return _statements(source, [kafka_scan("in_0", topic)], [form], run, partition_days)


def change_log_statements(
    source: EventSource, log: ChangeLog, run: IngestRun, partition_days: int = 1
) -> IngestStatements:
    """Return the streaming job that ingests the change log of a table of the lake."""
    form = (log.columns, raw_text("table", log.columns))
    return _statements(source, [change_scan("in_0", log)], [form], run, partition_days)


def _statements(
    source: EventSource,
    scans: Sequence[InputScan],
    forms: Sequence[tuple[Sequence[InputColumn], str]],
    run: IngestRun,
    partition_days: int,
) -> IngestStatements:
    views: list[tuple[str, str]] = []
    for number, (scan, (columns, raw)) in enumerate(zip(scans, forms, strict=True)):
        views += [*scan.views, *_validated(number, scan.cells, columns, raw, source, run)]
    parts = [f"SELECT * FROM {quote(f'judged_{number}')}" for number in range(len(scans))]
    if source.event_id is None:
        views.append((ROWS, " UNION ALL ".join(parts)))
    else:
        views.append((_SINGLE, " UNION ALL ".join(parts)))
        views += duplicate_views(source, _SINGLE, ROWS, run.time_ms, _clock(run))
    values = [quote(f"v_{name}") for name in source.schema]
    day = first_day_sql(quote(f"v_{source.event_time}"), partition_days)
    commit = {"commit.user-prefix": run.commit_user_prefix}
    # one writer per partition, so that each gets few files
    by_day = {**commit, "partition.sink-strategy": "hash"}
    events = (
        f"INSERT INTO {quote(source.table)} /*+ OPTIONS({sql_options(by_day)}) */ "
        f"SELECT {', '.join(values)}, {day}, {_clock(run)} FROM {quote(ROWS)} "
        "WHERE `problem` IS NULL"
    )
    rejected = (
        f"INSERT INTO {quote(source.rejected_table)} /*+ OPTIONS({sql_options(commit)}) */ "
        "SELECT SPLIT_INDEX(`problem`, ':', 0), "
        "SUBSTRING(`problem`, POSITION(': ' IN `problem`) + 2), "
        f"`raw`, `origin`, {literal(run.id)}, {_clock(run)} FROM {quote(ROWS)} "
        "WHERE `problem` IS NOT NULL"
    )
    tables = tuple(scan.table for scan in scans if scan.table is not None)
    return IngestStatements(tables, tuple(views), events, rejected)


def _clock(run: IngestRun) -> str:
    return f"CAST({now_ms_sql() if run.time_ms is None else run.time_ms} AS BIGINT)"


def _validated(
    number: int,
    cells_view: str,
    columns: Sequence[InputColumn],
    raw: str,
    source: EventSource,
    run: IngestRun,
) -> list[tuple[str, str]]:
    """Return the views from cells to values, to the row's problem, to the row that both inserts
    read."""
    cells = [quote(f"c_{column.name}") for column in columns]
    values = [quote(f"v_{column.name}") for column in columns]
    computed = [
        f"{_computed(column, source)} AS {value}"
        for column, value in zip(columns, values, strict=True)
    ]
    # each step copies each text that it passes on, so one column is passed on for both
    same = [is_value(column.physical, source.schema[column.name]) for column in columns]
    other = [cell for cell, is_same in zip(cells, same, strict=True) if not is_same]
    again = "".join(
        f", {value} AS {cell}"
        for cell, value, is_same in zip(cells, values, same, strict=True)
        if is_same
    )
    cases = [("`broken` IS NOT NULL", "`broken`")]
    for column in columns:
        cases += _checks(column, source)
    cases += _time_checks(source, run)
    cases += _role_checks(source)
    problem = "CASE " + " ".join(f"WHEN {test} THEN {text}" for test, text in cases) + " END"
    kept = "`raw`, `origin`"
    return [
        (
            f"values_{number}",
            f"SELECT {kept}, `broken`, {', '.join([*cells, *computed])} FROM {quote(cells_view)}",
        ),
        (
            f"problems_{number}",
            f"SELECT {kept}, {', '.join([*other, *values])}, {once(problem)} AS `problem` "
            f"FROM {quote(f'values_{number}')}",
        ),
        (
            f"judged_{number}",
            # a row that may be released later is stored independently of its input format
            f"SELECT CASE WHEN `problem` LIKE '{TIME_IN_FUTURE}:%' THEN {row_text(source)} "
            f"WHEN `problem` IS NOT NULL THEN {raw} END AS `raw`, `origin`, "
            f"{', '.join(values)}, `problem` "
            f"FROM (SELECT *{again} FROM {quote(f'problems_{number}')})",
        ),
    ]


def _computed(column: InputColumn, source: EventSource) -> str:
    value = _value(column, source)
    return value if is_repeatable(column.physical, source.schema[column.name]) else once(value)


def _value(column: InputColumn, source: EventSource) -> str:
    kind = source.schema[column.name]
    is_time = column.name in source.time_columns
    cell = quote(f"c_{column.name}")
    value = cell_value(cell, column.physical, kind, is_time)
    finer = finer_than_ms(cell, column.physical) if column.name in source.rounded_up else None
    return value if finer is None else f"({value}) + CASE WHEN {finer} THEN 1 ELSE 0 END"


def _checks(column: InputColumn, source: EventSource) -> list[tuple[str, str]]:
    """Return the checks of a cell as (test, message); a message begins with the reason."""
    kind = source.schema[column.name]
    cell, value = quote(f"c_{column.name}"), quote(f"v_{column.name}")
    got = f"SUBSTRING(CAST({cell} AS STRING), 1, {_SHOWN})"
    cases = []
    infinite = is_not_finite(cell, column.physical, value, kind)
    present = is_present(cell, column.physical, kind)
    if infinite is not None:
        text = f"{NOT_FINITE}: column {column.name}: expected a finite {kind.text}, got "
        cases.append((f"{present} AND {infinite}", f"CONCAT({literal(text)}, {got})"))
    expected = f"{kind.text} or a time" if column.name in source.time_columns else kind.text
    text = f"{WRONG_TYPE}: column {column.name}: expected {expected}, got '"
    cases.append((f"{present} AND {value} IS NULL", f"CONCAT({literal(text)}, {got}, '''')"))
    return cases


def _time_checks(source: EventSource, run: IngestRun) -> list[tuple[str, str]]:
    time = quote(f"v_{source.event_time}")
    missing = literal(f"{MISSING_TIME}: column {source.event_time} is null")
    written = f"CAST({time} AS STRING)"
    expected = f"column {source.event_time}: expected a time"
    years = f"{TIME_OUT_OF_RANGE}: {expected} in the years 1 to 9999, got "
    skew = format_duration(source.max_skew_ms)
    ahead = f"{TIME_IN_FUTURE}: {expected} that is at most {skew} ahead of the clock, got "
    return [
        (f"{time} IS NULL", missing),
        (
            f"{time} < {MIN_TIME_MS} OR {time} > {MAX_TIME_MS}",
            f"CONCAT({literal(years)}, {written})",
        ),
        (f"{time} > {_clock(run)} + {source.max_skew_ms}", f"CONCAT({literal(ahead)}, {written})"),
    ]


def _role_checks(source: EventSource) -> list[tuple[str, str]]:
    """Return the checks of the retraction and event id columns, which must not be null."""
    cases = []
    if source.retraction is not None:
        value = quote(f"v_{source.retraction}")
        test, expected = f"{value} IS NULL", "true or false"
        if source.schema[source.retraction] == String:
            test += f" OR {value} NOT IN ({', '.join(map(literal, ROW_KINDS))})"
            expected = ", ".join(ROW_KINDS)
        text = f"{BAD_RETRACTION}: column {source.retraction}: expected {expected}, got "
        got = f"COALESCE(SUBSTRING(CAST({value} AS STRING), 1, {_SHOWN}), 'null')"
        cases.append((test, f"CONCAT({literal(text)}, {got})"))
    if source.event_id is not None:
        text = f"{MISSING_EVENT_ID}: column {source.event_id} is null"
        cases.append((f"{quote(f'v_{source.event_id}')} IS NULL", literal(text)))
    return cases
