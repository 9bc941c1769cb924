"""Commits from Python: serialised per table, exactly once.

Two pypaimon processes that commit to one table concurrently can lose an acknowledged commit, so
each commit holds a file lock here. The lock works between processes of one host (and of hosts that
share the folder with working locks); a lease excludes other writers.
"""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import Any
from urllib.parse import quote

import numpy as np
import pyarrow as pa

from paimon_features.core.columns.column import one_array
from paimon_features.core.errors import (
    PaimonFeaturesError,
    TableError,
    UnknownNameError,
    unknown_name,
)
from paimon_features.core.repeated_items import duplicates as repeated
from paimon_features.core.times.partition_days import choose_partition_days, first_days
from paimon_features.core.times.utc_ms import ceil_times
from paimon_features.core.times.utc_ms import conform as in_milliseconds
from paimon_features.core.types.array_types import Ints
from paimon_features.core.windows import DAY_MS
from paimon_features.definitions.source import EventSource
from paimon_features.lake import table_options
from paimon_features.lake.catalog import Lake
from paimon_features.lake.events.event_ids import duplicates, identity_columns
from paimon_features.lake.events.rejects import (
    DEFAULT_MAX_SKEW_MS,
    DUPLICATE,
    TIME_IN_FUTURE,
    Verdict,
    judge,
    time_ms,
)
from paimon_features.lake.marked_records import Record
from paimon_features.lake.metadata import table_history
from paimon_features.lake.metadata.snapshots import (
    BATCH_IDENTIFIER,
    Snapshot,
    latest_snapshot,
    read_snapshot_file,
    snapshot_ids,
    tagged,
)
from paimon_features.lake.ownership.lease import committing
from paimon_features.lake.specs import EVENT_DAY, INGEST_TIME_MS, rejected_spec
from paimon_features.lake.storage.json_files import read_json
from paimon_features.lake.storage.write_errors import write_errors
from paimon_features.lake.writing.append_files import AppendFiles
from paimon_features.lake.writing.checksums import complete_files


def append_arrow(
    lake: Lake,
    name: str,
    table: pa.Table,
    *,
    commit_user: str | None = None,
    commit_identifier: int | None = None,
    properties: Mapping[str, str] | None = None,
) -> int:
    """Append rows in one atomic commit and return its snapshot id.

    With a ``commit_user`` and a ``commit_identifier`` (increasing for this user) the call is
    idempotent: a commit that exists already is not repeated, and the id of the newest snapshot is
    returned. Columns may be in any order; missing columns are null. An empty table commits
    nothing. ``properties`` are stored in the snapshot.

    Raises
    ------
    TableError
        If the columns do not match the table, or another process holds the commit lock.
    LeaseLostError
        If this process acquired the table's lease, and another owner has taken it over.
    """
    if (commit_user is None) != (commit_identifier is None):
        raise TableError(
            f"table {name!r}: commit_user and commit_identifier must be given together, got "
            f"{commit_user!r} and {commit_identifier!r}"
        )
    rows = conform(lake, name, table)
    with committing(lake, name, f"committing to table {name!r}") as check:
        newest = latest_snapshot(lake, name)
        if commit_user is not None and commit_identifier is not None:
            done = committed_identifiers(lake, name, commit_user)
            if newest is not None and done is not None and commit_identifier <= done:
                return newest.id
        if rows.num_rows == 0:
            return 0 if newest is None else newest.id
        identifier = BATCH_IDENTIFIER if commit_identifier is None else commit_identifier
        return _committed(lake, name, newest, (rows,), commit_user, identifier, properties, check)


def append_stream(
    lake: Lake,
    name: str,
    tables: Iterable[pa.Table],
    *,
    file_bytes: int = 64 << 20,
    commit_user: str | None = None,
    properties: Mapping[str, str] | None = None,
) -> int:
    """Append the rows of many tables in one atomic commit and return its snapshot id.

    Rows are buffered until they fill a file of about ``file_bytes`` (in memory, uncompressed), so
    that memory is bounded. The lock is held while the tables are produced. An error while producing
    them commits nothing. ``commit_user`` and ``properties`` are stored in the snapshot;
    ``committed_snapshot`` finds the commit of a ``commit_user`` also when that has expired.

    Raises
    ------
    TableError
        As ``append_arrow``; also for zero tables.
    """
    with committing(lake, name, f"committing to table {name!r}") as check:
        newest = latest_snapshot(lake, name)
        conformed = (conform(lake, name, table) for table in tables)
        options = {"target-file-size": f"{file_bytes} b"}
        return _committed(
            lake, name, newest, conformed, commit_user, BATCH_IDENTIFIER, properties, check, options
        )


def append_files(
    lake: Lake,
    name: str,
    files: AppendFiles,
    commit_user: str,
    *,
    identifier: int = BATCH_IDENTIFIER,
) -> int | None:
    """Commit what was written to ``files``, and return the snapshot id; None without rows.

    ``commit_user`` must be that of the files. The lock is held during the commit only.

    Raises
    ------
    TableError
        If another process holds the commit lock, or committed without it.
    OwnershipError, LeaseLostError
        If another owner has the table.
    """
    messages = files.messages()
    if not messages:
        return None
    with committing(lake, name, f"committing to table {name!r}") as check:
        newest = latest_snapshot(lake, name)

        def commit() -> None:
            builder: Any = lake.table(name).new_stream_write_builder()
            table_commit = builder._with_commit_user(commit_user).new_commit()
            try:
                check()
                # from here on, the files may be part of a snapshot
                files.release()
                table_commit.commit(messages, identifier)
            finally:
                table_commit.close()

        return published(lake, name, newest, commit, commit_user, identifier).id


def _committed(
    lake: Lake,
    name: str,
    newest: Snapshot | None,
    tables: Iterable[pa.Table],
    commit_user: str | None,
    identifier: int,
    properties: Mapping[str, str] | None,
    check: Callable[[], None],
    options: Mapping[str, str] | None = None,
) -> int:
    """Commit rows and return the snapshot id; the caller holds the lock.

    The last commit of a ``commit_user`` is recorded, because its snapshot will expire.
    """
    user = commit_user or str(uuid.uuid4())

    def commit() -> None:
        _commit(lake, name, tables, user, identifier, properties, check, options)

    snapshot = published(lake, name, newest, commit, user, identifier)
    if commit_user is not None:
        mark = table_history.mark(lake, name)
        content = {"identifier": snapshot.commit_identifier, "id": snapshot.id, "history": mark}
        _record(lake, name, commit_user).write(content)
    return snapshot.id


def published(
    lake: Lake,
    name: str,
    newest: Snapshot | None,
    commit: Callable[[], None],
    user: str,
    identifier: int,
) -> Snapshot:
    """Call ``commit`` and return its snapshot; the caller holds the lock."""
    after = 0 if newest is None else newest.id
    try:
        with write_errors(f"table {name!r} cannot be written"):
            commit()
    except Exception as error:
        # an error after the snapshot was published is not a failure: check before raising
        if _find(lake, name, user, identifier, after) is None:
            if not isinstance(error, PaimonFeaturesError):
                _check_not_preceded(lake, name, after, error)
            raise
    published = _find(lake, name, user, identifier, after)
    if published is None:
        raise TableError(
            f"table {name!r}: the commit {identifier} of {user} was acknowledged but does not "
            "exist; another process commits to this table without the lock"
        )
    return published


def _check_not_preceded(lake: Lake, name: str, after: int, error: Exception) -> None:
    """Raise TableError if a commit failed because another preceded it: see ``commit_guard``."""
    now = latest_snapshot(lake, name)
    guarded = lake.storage.is_remote or lake.rest is not None
    if guarded and now is not None and now.id > after:
        raise TableError(
            f"table {name!r}: nothing was committed, because another process committed snapshot "
            f"{after + 1} meanwhile ({now.commit_user}), without the table's lock or after it took "
            "it over from this one; repeat the call"
        ) from error


def committed_identifiers(lake: Lake, name: str, commit_user: str) -> int | None:
    """Return the highest identifier committed by this user, None before the first commit.

    For commits of ``append_arrow`` it survives the expiry of snapshots; for a Flink job it is
    read from
    the existing snapshots and tags.

    Raises
    ------
    RecordLostError
        If its record was lost, and no snapshot names its last commit.
    """
    record = _record(lake, name, commit_user)
    content = read_json(record.path)
    recorded, since = (None, 0) if content is None else (content["identifier"], content["id"])
    folder = f"{lake.path(name)}/snapshot"
    ids = snapshot_ids(lake, name)
    if recorded is not None:
        remembered = read_snapshot_file(lake, folder, since) if since in ids else None
        undone = (not ids or since > ids[-1]) or (
            remembered is not None
            and (remembered.commit_user, remembered.commit_identifier) != (commit_user, recorded)
        )
        # an expired snapshot does not show whose it was
        mark = None if content is None else content.get("history")
        undone = undone or (
            mark is not None and not table_history.continues(lake, name, mark, since)
        )
        if undone:  # the table was rolled back or recreated since
            recorded, since = None, 0
    candidates = [read_snapshot_file(lake, folder, i) for i in ids if i > since]
    has_retained = any(s is not None and s.commit_user == commit_user for s in candidates)
    # a tag may be of an older commit than those whose snapshots have expired
    seen = since + 1 if content is not None else 1
    if not has_retained and (not ids or ids[0] > seen) and record.is_lost():
        raise record.error()
    if recorded is None:
        candidates += tagged(lake, name).values()
    identifiers = [
        s.commit_identifier for s in candidates if s is not None and s.commit_user == commit_user
    ]
    return max([*identifiers, *([recorded] if recorded is not None else [])], default=None)


def committed_snapshot(lake: Lake, name: str, commit_user: str) -> int | None:
    """Return the snapshot of the last commit of a user, None before the first; it may have expired.

    Raises
    ------
    RecordLostError
        As ``committed_identifiers``.
    """
    if committed_identifiers(lake, name, commit_user) is None:
        return None
    folder = f"{lake.path(name)}/snapshot"
    retained = (read_snapshot_file(lake, folder, i) for i in reversed(snapshot_ids(lake, name)))
    retained_id = next(
        (s.id for s in retained if s is not None and s.commit_user == commit_user), None
    )
    content = read_json(_record(lake, name, commit_user).path)
    return retained_id if retained_id is not None or content is None else int(content["id"])


def _record(lake: Lake, name: str, user: str) -> Record:
    quoted = quote(user, safe="")
    return Record(lake, "commits", f"{lake.database}.{name}/{quoted}.json", quoted, name)


def _find(lake: Lake, name: str, user: str, identifier: int, after: int) -> Snapshot | None:
    # numbers have no gaps; a listing of an object store costs more, and may be older than a file
    folder = f"{lake.path(name)}/snapshot"
    newest = None
    for snapshot_id in count(after + 1):
        snapshot = read_snapshot_file(lake, folder, snapshot_id)
        if snapshot is None:
            return newest
        if (snapshot.commit_user, snapshot.commit_identifier) == (user, identifier):
            newest = snapshot
    raise AssertionError("unreachable: there is always a number without a snapshot")


def _commit(
    lake: Lake,
    name: str,
    tables: Iterable[pa.Table],
    user: str,
    identifier: int,
    properties: Mapping[str, str] | None,
    check: Callable[[], None],
    options: Mapping[str, str] | None,
) -> None:
    table = lake.table(name)
    if options is not None:
        table = table.copy(dict(options))  # affects only this handle
    builder: Any = table.new_stream_write_builder()._with_commit_user(user)
    write, commit = builder.new_write(), builder.new_commit()
    try:
        try:
            for rows in tables:
                write.write_arrow(rows)
            messages = write.prepare_commit(identifier)
            complete_files(table, messages)
            check()
        except BaseException:
            with suppress(Exception):  # the original error is more specific
                write.abort()  # files of uncommitted rows
            raise
        commit.commit(messages, identifier, dict(properties) if properties else None)
    finally:
        write.close()
        commit.close()


def conform(lake: Lake, name: str, table: pa.Table, schema: pa.Schema | None = None) -> pa.Table:
    """Return rows with the columns and types of a table, whose ``schema`` is read if it is not
    given.

    Raises
    ------
    TableError
        For an unknown column, two of one name, a value that does not fit, and a null in a key
        column.
    """
    schema = lake.schema(name) if schema is None else schema
    given = dict(zip(_distinct_names(name, table), table.columns, strict=True))
    names = set(schema.names)
    unknown = [column for column in given if column not in names]
    if unknown:
        raise TableError(unknown_name("column", unknown[0], names, f"table {name!r}"))
    arrays = []
    for field in schema:
        if field.name not in given:
            arrays.append(pa.nulls(table.num_rows, field.type))
            continue
        try:
            arrays.append(_as_stored(given[field.name], field.type))
        except pa.ArrowException as error:
            raise TableError(f"table {name!r}: column {field.name!r}: {error}") from error
        if not field.nullable and arrays[-1].null_count:
            raise TableError(
                f"table {name!r}: the key column {field.name!r} is null in "
                f"{arrays[-1].null_count} of {table.num_rows} rows"
            )
    return pa.Table.from_arrays(arrays, schema=schema)


def _distinct_names(name: str, rows: pa.Table) -> list[str]:
    names: list[str] = rows.column_names
    if doubled := repeated(names):
        raise TableError(
            f"table {name!r}: the rows have two columns {doubled[0]!r}; rename or drop one of them"
        )
    return names


def _as_stored(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if column.type == kind:
        return column
    # a cast would reject finer ticks, and take those of other units for milliseconds
    return pa.chunked_array([in_milliseconds(part, kind) for part in column.chunks], kind)


@dataclass(frozen=True, slots=True)
class WriteReport:
    """The result of one ``EventWriter.write``.

    ``rejected`` counts by reason; ``snapshot_id`` is the newest one of the events table
    afterwards (0 if it has none).
    """

    written: int
    rejected: Mapping[str, int]
    snapshot_id: int


class EventWriter:
    """Writes events from Python into an events table; bad rows go to its rejected table.

    The rules are those of the ingest job (see ``rejects``). The writer must own the table:
    acquire the
    lease first.
    """

    def __init__(
        self,
        lake: Lake,
        table: str,
        event_time: str,
        clock: Callable[[], int],
        *,
        rejected_table: str | None = None,
        max_skew_ms: int = DEFAULT_MAX_SKEW_MS,
        origin: str = "EventWriter",
        retraction: str | None = None,
        event_id: str | None = None,
        horizon_ms: int = 0,
        rounded_up: Collection[str] = (),
    ) -> None:
        """``clock`` returns the time in UTC milliseconds; ``event_time`` is int64 ms or a
        timestamp.

        ``retraction``, ``event_id``, ``horizon_ms`` and ``rounded_up`` are those of the source;
        ``of`` takes all of them from it.

        Raises
        ------
        UnknownNameError
            If the table or column does not exist.
        """
        schema = lake.schema(table)
        self.columns = {f.name: f.type for f in schema if f.name not in (EVENT_DAY, INGEST_TIME_MS)}
        if event_time not in self.columns:
            raise UnknownNameError.of("column", event_time, self.columns, f"table {table!r}")
        self.lake, self.table, self.event_time, self.clock = lake, table, event_time, clock
        source = table.removeprefix("events_")
        self.rejected_table = rejected_table or f"rejected_{source}"
        self.max_skew_ms = max_skew_ms
        self.origin = origin
        self.retraction, self.event_id, self.horizon_ms = retraction, event_id, horizon_ms
        self.rounded_up = frozenset(rounded_up)
        self._is_first = True
        lake.create(rejected_spec(self.rejected_table))

    @classmethod
    def of(cls, lake: Lake, source: EventSource, clock: Callable[[], int]) -> EventWriter:
        """Return the writer of a source, with all of its rules."""
        return cls(
            lake,
            source.table,
            source.event_time,
            clock,
            rejected_table=source.rejected_table,
            max_skew_ms=source.max_skew_ms,
            retraction=source.retraction,
            event_id=source.event_id,
            horizon_ms=source.horizon_ms or 0,
            rounded_up=source.rounded_up,
        )

    def write(
        self,
        rows: pa.Table,
        *,
        commit_user: str | None = None,
        commit_identifier: int | None = None,
    ) -> WriteReport:
        """Write the valid rows in one commit, after the rejected ones in another.

        Idempotent for the same user and identifier. Values are cast if that is lossless.

        Raises
        ------
        TableError
            If a column is missing, not declared or there twice, which affects all rows.
        """
        given = set(_distinct_names(self.table, rows))
        missing = [column for column in self.columns if column not in given]
        unknown = [column for column in rows.column_names if column not in self.columns]
        if missing or unknown:
            raise TableError(
                f"table {self.table!r}: expected the columns {', '.join(self.columns)}; "
                f"missing: {', '.join(missing) or 'none'}, "
                f"not declared: {', '.join(unknown) or 'none'}"
            )
        for name in self.rounded_up:
            up = ceil_times(one_array(rows.column(name)))
            rows = rows.set_column(rows.column_names.index(name), name, up)
        now_ms = self.clock()
        table, verdict = judge(
            rows,
            self.columns,
            self.event_time,
            now_ms,
            self.max_skew_ms,
            self.retraction,
            self.event_id,
        )
        if self.event_id is not None and not self._done(commit_user, commit_identifier):
            columns = identity_columns(self.event_id, self.retraction, self.columns)
            since_ms = now_ms - self.horizon_ms
            again = duplicates(self.lake, self.table, columns, table, ~verdict.bad, since_ms)
            verdict.complain(again, DUPLICATE, f"column {self.event_id}: duplicate id")
        ids = {"commit_user": commit_user, "commit_identifier": commit_identifier}
        valid = table
        if verdict.bad.any():
            valid = table.filter(pa.array(~verdict.bad))
            kept = {DUPLICATE, TIME_IN_FUTURE}  # store valid rows unchanged
            raws = [
                row_text((table if verdict.reason[i] in kept else rows).slice(i, 1))
                for i in np.flatnonzero(verdict.bad).tolist()
            ]
            bad = self._rejected(raws, verdict, now_ms, f"{commit_user}:{commit_identifier}")
            append_arrow(self.lake, self.rejected_table, bad, **ids)  # type: ignore[arg-type]
        if self._is_first and valid.num_rows:
            self._is_first = False  # later commits need not look up the newest snapshot
            if undecided_partitions(self.lake, self.table):
                days = event_days(valid, self.event_time)
                table_options.set_partition_days(
                    self.lake, self.table, choose_partition_days(len(days), days)
                )
        partition_days = table_options.partition_days(self.lake, self.table)
        good = event_rows(valid, self.event_time, now_ms, partition_days)
        newest = append_arrow(self.lake, self.table, good, **ids)  # type: ignore[arg-type]
        return WriteReport(good.num_rows, verdict.counts(), newest)

    def _done(self, user: str | None, identifier: int | None) -> bool:
        """Return True if this repeats an earlier write, whose own rows are not duplicates."""
        if user is None or identifier is None:
            return False
        newest = committed_identifiers(self.lake, self.table, user)
        return newest is not None and identifier <= newest

    def _rejected(self, raws: list[str], verdict: Verdict, now_ms: int, ingest_id: str) -> pa.Table:
        indices = np.flatnonzero(verdict.bad)
        return pa.table(
            {
                "reason": [verdict.reason[i] for i in indices],
                "detail": [verdict.detail[i] for i in indices],
                "raw": raws,
                "origin": [self.origin] * len(indices),
                "ingest_id": [ingest_id] * len(indices),
                INGEST_TIME_MS: pa.array(np.full(len(indices), now_ms, np.int64)),
            }
        )


def event_rows(table: pa.Table, event_time: str, now_ms: int, partition_days: int = 1) -> pa.Table:
    """Return rows with the columns added by ingestion: event day and ingestion time.

    ``partition_days`` are those of the events table.
    """
    days = first_days(event_days(table, event_time), partition_days)
    return table.append_column(EVENT_DAY, pa.array(days, pa.int32())).append_column(
        INGEST_TIME_MS, pa.array(np.full(len(days), now_ms, np.int64))
    )


def event_days(table: pa.Table, event_time: str) -> Ints:
    """Return the day since 1970 of each event."""
    days: Ints = time_ms(table.column(event_time)).to_numpy(zero_copy_only=False) // DAY_MS
    return days


def undecided_partitions(lake: Lake, table: str) -> bool:
    """Return True if the first commit to an events table has yet to choose its partitions."""
    defined = table_options.defined_partition_days(lake, table)
    return defined is None and latest_snapshot(lake, table) is None


def row_text(row: pa.Table) -> str:
    """Return one row as JSON, as stored in the rejected table."""
    try:
        values = row.to_pylist()[0]
    except (UnicodeDecodeError, OverflowError, ValueError):
        values = {name: _cell(row.column(name)) for name in row.column_names}
    return json.dumps(values, default=_json_value, ensure_ascii=False)


def _cell(column: pa.ChunkedArray) -> Any:
    """Return the value of a column of one row; bytes that are not UTF-8 as escapes (``\\xff``), and
    the ticks of a time that Python does not have."""
    try:
        return column[0].as_py()
    except (UnicodeDecodeError, OverflowError, ValueError):
        if pa.types.is_nested(column.type):
            return "a list with texts that are not UTF-8, or times beyond the year 9999"
        if pa.types.is_temporal(column.type):
            plain = pa.int32() if column.type.bit_width == 32 else pa.int64()
            return column.chunk(0).view(plain)[0].as_py()
        return column.cast(pa.binary())[0].as_py().decode("utf-8", "backslashreplace")


def _json_value(value: Any) -> str:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)
