"""Names and texts in Flink SQL, and table specs as schemas of Arrow and pypaimon."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from paimon_features.core.errors import TableError
from paimon_features.lake.specs import TableSpec


def quote(name: str) -> str:
    """Return a quoted Flink identifier: ``last``, ``value`` and ``year`` are reserved words."""
    return f"`{name.replace('`', '``')}`"


def literal(text: str) -> str:
    """Return a Flink string literal."""
    return "'" + text.replace("'", "''") + "'"


def arrow_schema(spec: TableSpec) -> pa.Schema:
    """Return the Arrow schema of the table; all columns except keys are nullable."""
    return pa.schema(
        [
            pa.field(name, kind.arrow, nullable=name not in spec.primary_key)
            for name, kind in spec.columns.items()
        ]
    )


def paimon_schema(spec: TableSpec) -> Any:
    """Return the schema object for pypaimon's catalog."""
    from pypaimon import Schema

    return Schema.from_pyarrow_schema(
        arrow_schema(spec),
        partition_keys=list(spec.partition_by),
        primary_keys=list(spec.primary_key),
        options=dict(spec.options),
    )


def paimon_schema_like(schema: pa.Schema, options: Mapping[str, str]) -> Any:
    """Return the schema object of an append table with the columns of an Arrow schema.

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
