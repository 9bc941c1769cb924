"""The change log of a table of the lake as a stream of events: the kind of a change is a column.

Paimon exposes a table's changes as its system table ``<table>$audit_log``: the row, and ``rowkind``
(``+I``, ``-U``, ``+U``, ``-D``). An update is two rows, the old one retracted and the new one
added, so that a view over them reflects the content of the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from paimon_features.core.errors import ConfigurationError, UnknownNameError
from paimon_features.core.types.schema import Bool
from paimon_features.definitions import EventSource
from paimon_features.definitions.source import RETRACTED_KINDS
from paimon_features.ingest.flink.scan_sql import InputScan, not_utf8, sql_options
from paimon_features.ingest.input_columns import (
    InputColumn,
    check_changes,
    check_mapping,
    find_columns,
)
from paimon_features.ingest.input_files import InputFile
from paimon_features.ingest.physical import TEXT, Physical, physical_type
from paimon_features.lake import Lake
from paimon_features.lake.ddl import literal, quote

ROW_KIND = "rowkind"
DISCOVERY_MS = 100
_PRODUCERS = ("input", "lookup", "full-compaction")


@dataclass(frozen=True, slots=True)
class ChangeLog:
    """The changes of a table, beginning with the state of snapshot ``from_snapshot``.

    That state is read as insertions. A run that resumes continues at its checkpoint instead.
    """

    lake: Lake
    table: str
    columns: tuple[InputColumn, ...]
    from_snapshot: int
    consumer: str

    @property
    def name(self) -> str:
        return f"{self.lake.database}.{self.table}"


def open_table(lake: Lake, name: str) -> tuple[Lake, str]:
    """Open the lake of ``database.table`` (or ``table``) in the warehouse of ``lake``.

    Raises
    ------
    UnknownNameError
        If there is no such database or table.
    """
    database, dot, table = name.rpartition(".")
    chosen = database if dot else lake.database
    if not lake.storage.is_folder(f"{lake.warehouse}/{chosen}.db"):
        names = lake.storage.names(lake.warehouse)
        databases = [name.removesuffix(".db") for name in names if name.endswith(".db")]
        raise UnknownNameError.of("database", chosen, databases)
    opened = lake.of_database(chosen)
    opened.table(table)
    return opened, table


def find_change_columns(
    lake: Lake, table: str, source: EventSource, mapping: Mapping[str, str]
) -> tuple[InputColumn, ...]:
    """Return the table's column for each column of the source; the retraction column is
    ``rowkind``.

    Raises
    ------
    ConfigurationError
        If the source has no retraction column, the table has no change log, or a column is
        missing or of an incompatible type.
    """
    name = f"{lake.database}.{table}"
    retraction = check_changes(f"table {name}", source, mapping)
    handle = lake.table(table)
    producer = handle.table_schema.options.get("changelog-producer", "none")
    if handle.primary_keys and producer not in _PRODUCERS:
        raise ConfigurationError(
            f"table {name}: its changelog-producer is {producer!r}, so it does not "
            f"contain the replaced rows; expected one of: {', '.join(_PRODUCERS)}. ALTER TABLE "
            "sets 'changelog-producer' ('input' if the writer produces complete changes, else "
            "'lookup')"
        )
    check_mapping(source, mapping)
    schema = lake.schema(table)
    flag = source.schema[retraction] == Bool
    described = InputFile(
        Path(name),
        "table",
        0,
        "",
        columns=(*schema.names, ROW_KIND),
        physical=(
            *(_physical(field.type) for field in schema),
            Physical("boolean", "BOOLEAN") if flag else TEXT,
        ),
    )
    return find_columns(described, source, {**mapping, retraction: ROW_KIND})


def change_scan(name: str, log: ChangeLog) -> InputScan:
    """Return the scan of a change log: the state of the table, then its changes."""
    options = {
        "scan.mode": "from-snapshot-full",
        "scan.snapshot-id": str(log.from_snapshot),
        "continuous.discovery-interval": f"{DISCOVERY_MS} ms",
        # as in the tile job: the consumer only prevents the expiry of unread snapshots
        "consumer-id": log.consumer,
        "consumer.expiration-time": "36500 d",
        "consumer.ignore-progress": "true",
        "consumer.mode": "at-least-once",
        "source.operator-uid.suffix": "changes",
    }
    path = ".".join(map(quote, (log.lake.database, f"{log.table}$audit_log")))
    cells = ", ".join(f"{_cell(column)} AS {quote(f'c_{column.name}')}" for column in log.columns)
    nothing = "CAST(NULL AS STRING)"
    query = (
        f"SELECT {nothing} AS `raw`, {literal(f'table:{log.name}')} AS `origin`, "
        f"{not_utf8(log.columns)} AS `broken`, {cells} "
        f"FROM {path} /*+ OPTIONS({sql_options(options)}) */"
    )
    return InputScan(None, ((f"{name}_cells", query),))


def _cell(column: InputColumn) -> str:
    if column.field != ROW_KIND or column.physical.kind != "boolean":
        return f"BTRIM({quote(column.field)})" if column.bare else quote(column.field)
    return f"({quote(ROW_KIND)} IN ({', '.join(map(literal, RETRACTED_KINDS))}))"


def _physical(kind: pa.DataType) -> Physical:
    """Return the type in which Flink reads a table's column."""
    if pa.types.is_timestamp(kind):
        return Physical("timestamp[int96]", "TIMESTAMP(9)")  # converted from its text
    return physical_type(kind)
