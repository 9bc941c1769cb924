"""Two forms of a table spec: Flink SQL, and the Arrow schema for pypaimon.

>>> from paimon_features.tables.specs import registry_spec
>>> print(create_table_sql(registry_spec(), "features").splitlines()[0])
CREATE TABLE IF NOT EXISTS `features`.`registry` (
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from paimon_features.errors import TableError
from paimon_features.tables.specs import TableSpec


def quote(name: str) -> str:
    """A quoted Flink identifier: ``last``, ``value`` and ``year`` are reserved words."""
    return f"`{name.replace('`', '``')}`"


def literal(text: str) -> str:
    """A Flink string literal."""
    return "'" + text.replace("'", "''") + "'"


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


def arrow_schema(spec: TableSpec) -> pa.Schema:
    """The Arrow schema of the table; all columns except keys are nullable."""
    return pa.schema(
        [
            pa.field(name, kind.arrow, nullable=name not in spec.primary_key)
            for name, kind in spec.columns.items()
        ]
    )


def paimon_schema(spec: TableSpec) -> Any:
    """The schema object for pypaimon's catalog."""
    from pypaimon import Schema

    return Schema.from_pyarrow_schema(
        arrow_schema(spec),
        partition_keys=list(spec.partition_by),
        primary_keys=list(spec.primary_key),
        options=dict(spec.options),
    )


def paimon_schema_like(schema: pa.Schema, options: Mapping[str, str]) -> Any:
    """The schema object of an append table with the columns of an Arrow schema.

    Raises
    ------
    TableError
        For a type that tables do not support.
    """
    from pypaimon import Schema

    columns = pa.schema([field.with_nullable(True) for field in schema])
    try:
        return Schema.from_pyarrow_schema(columns, options=dict(options))
    except ValueError as error:
        raise TableError(f"unsupported columns {', '.join(map(str, schema))}: {error}") from error
