"""A table spec as Flink creates it, and the rows of its files before they are merged."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from paimon_features.lake import Lake
from paimon_features.lake.ddl import literal, quote
from paimon_features.lake.reading.deltas import live_files, read_file
from paimon_features.lake.specs import TableSpec


def create_table_sql(spec: TableSpec, database: str, catalog: str | None = None) -> str:
    """Flink DDL of the table in a Paimon catalog; does nothing if the table exists."""
    lines = [
        f"  {quote(name)} {kind.flink}{' NOT NULL' if name in spec.primary_key else ''}"
        for name, kind in spec.columns.items()
    ]
    if spec.primary_key:
        lines.append(f"  PRIMARY KEY ({', '.join(map(quote, spec.primary_key))}) NOT ENFORCED")
    path = ".".join(quote(part) for part in (catalog, database, spec.name) if part is not None)
    text = f"CREATE TABLE IF NOT EXISTS {path} (\n" + ",\n".join(lines) + "\n)"
    if spec.partition_by:
        text += f" PARTITIONED BY ({', '.join(map(quote, spec.partition_by))})"
    if spec.options:
        options = ",\n".join(
            f"  {literal(key)} = {literal(value)}" for key, value in spec.options.items()
        )
        text += f" WITH (\n{options}\n)"
    return text


def raw_bucket(
    lake: Lake, name: str, bucket: int, snapshot_id: int, columns: Sequence[str]
) -> pa.Table:
    """All rows of one bucket at a snapshot, from every live file, of which several have one key."""
    files = live_files(lake, name, snapshot_id, [bucket])
    schema = lake.schema(name)
    wanted = pa.schema([schema.field(column).with_nullable(True) for column in columns])
    tables = [read_file(file, columns).cast(wanted) for file in files]
    return pa.concat_tables(tables) if tables else wanted.empty_table()
