"""Tables as DuckDB relations."""

from __future__ import annotations

import os
from collections.abc import Collection

import pyarrow as pa

from paimon_features.core.errors import MissingExtraError
from paimon_features.lake.catalog import Lake
from paimon_features.lake.metadata.snapshots import SnapshotRef
from trainer_bridge.readers.scanning import TableScan

try:
    import duckdb
except ModuleNotFoundError as error:
    raise MissingExtraError.of("duckdb", "local", "trainer_bridge.adapters.duckdb") from error


def relation(
    lake: Lake,
    table: str,
    connection: duckdb.DuckDBPyConnection,
    *,
    snapshot_id: SnapshotRef | None = None,
    tag: str | None = None,
    as_of_ms: int | None = None,
    columns: Collection[str] | None = None,
    where: str | None = None,
) -> duckdb.DuckDBPyRelation:
    """Return a relation over a table snapshot; ``relation(...).query("t", "SELECT ... FROM t")``.

    An append table is scanned lazily: DuckDB reads the snapshot's files itself, only the columns
    that a query uses, and skips row groups by their statistics. It does not verify what it reads,
    so the pages of ``columns`` are verified by this call: name the columns of a wide table.

    If the files are not exactly the rows (merged keys, deleted rows, an evolved schema, a lake
    that is not a local folder), or with ``where`` (a condition in the expression language), the
    rows are read eagerly into memory: restrict them by ``columns`` and ``where``.

    The snapshot is the latest one by default, and stays pinned.

    Raises
    ------
    ConfigurationError
        If more than one of snapshot_id, tag and as_of_ms is given.
    UnknownNameError, TableError, SnapshotExpiredError
        If the table, a column, the tag or the snapshot does not exist.
    RequestError
        If ``where`` is not a condition on the table's columns.
    DamagedFileError
        If a file is not what was written.
    """
    scanned = TableScan.pin(lake, table, snapshot_id, tag, as_of_ms)
    schema = scanned.select(columns)
    files = scanned.files() if where is None else None
    if not files or not all(map(os.path.exists, files)):
        rows = list(scanned.tables(columns, where))
        return connection.from_arrow(pa.concat_tables([schema.empty_table(), *rows]))
    scanned.verify(schema.names)
    # partition folders are not columns: the files contain them
    parquet = connection.read_parquet(files, hive_partitioning=False)  # type: ignore[arg-type]
    return parquet.project(", ".join(_quoted(name) for name in schema.names))


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
