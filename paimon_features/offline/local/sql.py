"""SQL over the tables of a lake: DuckDB, which reads what a query needs and nothing else.

::

    SELECT customer_id, sum(amount) FROM events_retail GROUP BY 1      the newest snapshot
    SELECT count(*) FROM "events_retail@12"                            snapshot 12

The files of an append table in a local folder are scanned by DuckDB itself: only the columns and
row groups of the query. Tables with keys, whose rows are merged, and those of an object store are
read into memory, only the columns that the query uses. All tables of a query are pinned first,
and the pages of the columns that it uses are verified, as in every other read.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from paimon_features.core.errors import RequestError, UnknownNameError
from paimon_features.lake import Lake, Snapshot, latest_snapshot, read_arrow
from paimon_features.lake.duckdb_engine import DuckDBEngine
from paimon_features.lake.metadata.snapshots import pinned
from paimon_features.lake.reading.deltas import live_files, verify_files

BATCH_ROWS = 65_536
MEMORY_MB = 1_024.0


def query(
    lake: Lake,
    statement: str,
    parameters: Sequence[Any] | Mapping[str, Any] | None = None,
    *,
    memory_mb: float = MEMORY_MB,
) -> pa.RecordBatchReader:
    """Return the rows of one SELECT over tables of the lake, as a stream.

    ``parameters`` are the values of ``?`` or ``$name`` in it. DuckDB takes about ``memory_mb``
    MiB and spills the rest; the tables that are read eagerly (see above) come in addition. The
    statement cannot read other files, write, or change a setting.

    Raises
    ------
    RequestError
        For anything else than one query, or one that cannot be.
    UnknownNameError
        For a table that does not exist.
    SnapshotExpiredError, DamagedFileError
        If a snapshot is gone, or a file is not what was written.
    JobError
        If DuckDB cannot compute it, here or from the stream.
    """
    engine = DuckDBEngine(memory=f"{memory_mb:.0f}MB")
    try:
        schema, rows = _start(engine, lake, statement, parameters)
    except BaseException:
        engine.close()
        raise

    def batches() -> Iterator[pa.RecordBatch]:
        with engine, contextlib.closing(rows):  # type: ignore[type-var]
            yield from rows

    return pa.RecordBatchReader.from_batches(schema, batches())


def _start(
    engine: DuckDBEngine, lake: Lake, statement: str, parameters: Any
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    names = _names(engine, statement)
    tables = _tables(lake, names)
    files = {
        name: table_files for name, table in tables.items() if (table_files := table.plain_files())
    }
    # before any part of the statement is bound: a reader of files opens them even then
    engine.confine([path for paths in files.values() for path in paths])
    for name, table in tables.items():
        if name in files:
            engine.add_files(name, files[name])
        else:
            engine.add(name, table.schema.empty_table())
    try:
        plan = engine.plan_text(statement, parameters)
    except RequestError as error:
        missing = next((n for n in names if f"name {n} does not exist" in str(error)), None)
        if missing is None:
            raise
        raise UnknownNameError.of("table", missing, lake.list()) from error
    # every column that is used has its name in the plan; others may have, which is harmless
    words = set(re.findall(r"\w+", plan))
    for name, table in tables.items():
        needed = [column for column in table.schema.names if words & {*re.findall(r"\w+", column)}]
        if name in files:
            table.verify(needed)
        else:
            engine.remove(name)
            engine.add(name, table.read(needed))
    return engine.query(statement, parameters, BATCH_ROWS)


class _PinnedTable:
    """A table of the lake at one snapshot; None where it has none yet."""

    def __init__(self, lake: Lake, name: str, snapshot: Snapshot | None) -> None:
        self.lake, self.name, self.snapshot = lake, name, snapshot
        self.schema: pa.Schema = pa.schema([f.with_nullable(True) for f in lake.schema(name)])

    def plain_files(self) -> list[str]:
        """Return the local files whose rows are exactly those of the table.

        Empty if it is not so.
        """
        table = self.lake.table(self.name)
        deletes = table.options.deletion_vectors_enabled()
        if self.snapshot is None or table.primary_keys or deletes:
            return []
        today = table.table_schema.id
        data_files = live_files(self.lake, self.name, self.snapshot.id)
        plain = all(file.schema_id == today and os.path.isfile(file.path) for file in data_files)
        return [file.path for file in data_files] if plain else []

    def verify(self, columns: Sequence[str]) -> None:
        """Verify the pages of these columns, which DuckDB does not."""
        assert self.snapshot is not None
        if columns:
            verify_files(live_files(self.lake, self.name, self.snapshot.id), columns)

    def read(self, columns: Sequence[str]) -> pa.Table:
        """Return all rows; other columns than these are null, so that ``*`` means what it meant."""
        read = list(columns) or self.schema.names[:1]
        ref = None if self.snapshot is None else self.snapshot.id
        rows = read_arrow(self.lake, self.name, read, ref)
        return pa.table(
            [
                rows[field.name] if field.name in read else pa.nulls(len(rows), field.type)
                for field in self.schema
            ],
            schema=self.schema,
        )


def _names(engine: DuckDBEngine, statement: str) -> list[str]:
    """Return the names of tables in a query, and of its common table expressions.

    Raises
    ------
    RequestError
        For anything else than one query.
    """
    tree = engine.syntax_tree(statement)
    if tree["error"]:
        reason = tree["error_message"]
        if "Only SELECT" in reason:
            reason = "expected SELECT: tables are read, not written, and settings stay"
        raise RequestError(f"SQL: {reason}")
    if len(tree["statements"]) != 1:
        raise RequestError(f"SQL: expected one statement, got {len(tree['statements'])}")
    table_names: dict[str, None] = {}
    waiting: list[Any] = [tree["statements"]]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            if node.get("type") == "BASE_TABLE":
                table_names[node["table_name"]] = None
            waiting.extend(node.values())
        elif isinstance(node, list):
            waiting.extend(node)
    return list(table_names)


def _tables(lake: Lake, names: Sequence[str]) -> dict[str, _PinnedTable]:
    existing = set(lake.list())
    tables = {}
    for name in names:
        table, at, ref = name.partition("@")
        if table not in existing:
            if not at:
                continue  # a name that the query defines, or DuckDB's error
            raise UnknownNameError.of("table", table, existing)
        if not at:
            tables[name] = _PinnedTable(lake, table, latest_snapshot(lake, table))
            continue
        pin = int(ref) if ref.isdecimal() else ref
        tables[name] = _PinnedTable(lake, table, pinned(lake, table, pin))
    return tables
