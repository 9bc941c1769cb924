"""Outputs to Paimon tables, committed by Flink's Paimon connector with checkpoints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from paimon_features.core.configuration.arguments import checked_text
from paimon_features.core.errors import ConfigurationError, DefinitionError, JobError, unknown_name
from paimon_features.core.types.foreign_types import plain_table
from paimon_features.flink.environment import (
    STANDARD_OPTIONS,
    catalog_options,
    no_python_server,
    register_lake,
)
from paimon_features.ingest.physical import FLINK_NUMBERS
from paimon_features.iteration.flink.hosts import result_values
from paimon_features.lake import Lake
from paimon_features.lake.ddl import literal, quote
from paimon_features.lake.ownership.lease import Holder, Lease, acquire

if TYPE_CHECKING:
    from pyflink.common.typeinfo import TypeInformation
    from pyflink.datastream import DataStream

_DIGITS = {"s": 0, "ms": 3, "us": 6, "ns": 9}


@dataclass(frozen=True, slots=True)
class PaimonTable:
    """Values as rows of an existing table, exactly-once: a row is visible when its checkpoint
    completes.

    A value is a row, as a mapping from columns to values (also NumPy numbers and arrays; missing
    columns are null), or several rows, as an Arrow record batch or table. Rows of a table with a
    primary key are merged by its merge engine. The job owns the table while it runs.

    Raises
    ------
    ConfigurationError
        If Flink cannot open the warehouse.
    """

    lake: Lake
    table: str

    def __post_init__(self) -> None:
        checked_text("the table of an output", self.table)
        catalog_options(self.lake)

    def attach(self, lines: DataStream, parallelism: int, uid: str) -> None:
        """Implement ``IterationOutput``.

        Raises
        ------
        UnknownNameError
            If there is no such table.
        ConfigurationError
            If a column has an unsupported type.
        """
        from pyflink.common import Types
        from pyflink.table import StreamTableEnvironment

        schema = self.lake.schema(self.table)
        chosen = ", ".join(_from_row(field) for field in schema)
        transported = [pair for field in schema for pair in _to_row(field)]
        names = [name for name, _ in transported]
        types = [kind for _, kind in transported]
        rows = lines.flat_map(
            TableRowConverter(self.table, schema), output_type=Types.ROW_NAMED(names, types)
        )
        rows.name(f"rows of {self.table}").uid(f"{uid}-rows").set_parallelism(parallelism)
        with no_python_server():  # the stream's environment has one, if it needs one
            env = StreamTableEnvironment.create(lines.get_execution_environment())
        for name, value in STANDARD_OPTIONS.items():
            if name.startswith("table."):
                env.get_config().set(name, value)
        register_lake(env, self.lake)
        view = f"{uid} of {self.table}"
        env.create_temporary_view(quote(view), rows)
        statements = env.create_statement_set()
        statements.add_insert_sql(
            f"INSERT INTO {quote(self.table)} "
            f"/*+ OPTIONS('sink.parallelism' = {literal(str(parallelism))}) */ "
            f"SELECT {chosen} FROM {quote(view)}"
        )
        statements.attach_as_datastream()


class TableRowConverter:
    """Converts values to Flink rows of a table."""

    def __init__(self, table: str, schema: pa.Schema) -> None:
        self.table = table
        self.schema = schema

    def __call__(self, line: str) -> Iterator[Any]:
        from pyflink.common import Row

        for value in result_values(line):
            columns = [
                one
                for column in self.arrow(value).columns
                for one in (_values(column), *_nulls(column))
            ]
            for row in zip(*columns, strict=True):
                yield Row(*row)

    def arrow(self, value: Any) -> pa.Table:
        """Return the rows of one value, with the columns of the table.

        Raises
        ------
        JobError
            If the value does not match the table.
        """
        if isinstance(value, pa.RecordBatch):
            value = pa.Table.from_batches([value])
        if isinstance(value, pa.Table):
            names = value.column_names
        elif isinstance(value, Mapping):
            names = list(value)
        else:
            raise JobError(
                f"an output for table {self.table!r} is a {type(value).__name__}; expected a "
                "mapping from columns to values, or a record batch: put a map before it"
            )
        unknown = [name for name in names if name not in self.schema.names]
        if unknown:
            kind = f"column of table {self.table!r}"
            raise JobError(unknown_name(kind, unknown[0], self.schema.names))
        try:
            if isinstance(value, Mapping):
                return pa.Table.from_pylist([dict(value)], self.schema)
            missing = {
                field.name: pa.nulls(value.num_rows, field.type)
                for field in self.schema
                if field.name not in names
            }
            for name, nulls in missing.items():
                value = value.append_column(name, nulls)
            return plain_table(value.select(self.schema.names)).cast(self.schema)
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
            raise JobError(
                f"an output for table {self.table!r} does not match its columns "
                f"({', '.join(f'{f.name} {f.type}' for f in self.schema)}): {error}"
            ) from error


class TableOwnership:
    """The leases of the tables that a job writes; a table has one committing owner."""

    def __init__(self, outputs: Sequence[Any], holder: Holder) -> None:
        """Acquire the leases.

        Raises
        ------
        OwnershipError
            If another job or process owns a table.
        DefinitionError
            If two outputs write the same table.
        """
        self._leases: list[Lease] = []
        tables = [output for output in outputs if isinstance(output, PaimonTable)]
        paths = [one.lake.path(one.table) for one in tables]
        for path in paths:
            if paths.count(path) > 1:
                raise DefinitionError(
                    f"sinks: two outputs write the table {path}; a table has one writer: union "
                    "them in the program"
                )
        try:
            for one in tables:
                purpose = "write the outputs of an iteration"
                self._leases.append(acquire(one.lake, one.table, holder, purpose))
        except BaseException:
            self.release()
            raise

    def hand_over(self, holder: Holder) -> None:
        """Transfer the leases to the job itself, which continues after this process."""
        for at, lease in enumerate(self._leases):
            self._leases[at] = lease.transfer(holder)

    def release(self) -> None:
        """Release the leases; harmless to repeat."""
        while self._leases:
            self._leases.pop().release()


def _flink_type(kind: pa.DataType) -> str:
    """Return the Flink SQL type of a column."""
    if kind in FLINK_NUMBERS:
        return FLINK_NUMBERS[kind]
    if pa.types.is_boolean(kind):
        return "BOOLEAN"
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return "STRING"
    if _is_bytes(kind):
        return "BYTES"
    if pa.types.is_date(kind):
        return "DATE"
    if pa.types.is_timestamp(kind):
        local = "_LTZ" if kind.tz is not None else ""
        return f"TIMESTAMP{local}({_DIGITS[kind.unit]})"
    if pa.types.is_decimal(kind):
        return f"DECIMAL({kind.precision}, {kind.scale})"
    if _is_list(kind) and not _is_list(kind.value_type):
        return f"ARRAY<{_flink_type(kind.value_type)}>"
    raise ConfigurationError(f"columns of type {kind} cannot be written by an iteration yet")


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _to_row(field: pa.Field) -> list[tuple[str, TypeInformation]]:
    """Return the fields that transport a column from Python: decimals and times as strings. Null
    arrays are not supported there, so that an additional field marks them."""
    from pyflink.common import Types

    fields = [(field.name, _python_type(field.type))]
    return [*fields, (_null_name(field), Types.BOOLEAN())] if _is_list(field.type) else fields


def _from_row(field: pa.Field) -> str:
    """Return the Flink SQL expression that restores the column."""
    expression = f"CAST({quote(field.name)} AS {_flink_type(field.type)})"
    if _is_list(field.type):
        expression = f"CASE WHEN {quote(_null_name(field))} THEN NULL ELSE {expression} END"
    return f"{expression} AS {quote(field.name)}"


def _null_name(field: pa.Field) -> str:
    return f"{field.name} is null"


def _python_type(kind: pa.DataType) -> TypeInformation:
    from pyflink.common import Types

    if pa.types.is_boolean(kind):
        return Types.BOOLEAN()
    if pa.types.is_integer(kind):
        return Types.LONG()
    if pa.types.is_floating(kind):
        return Types.DOUBLE()
    if _is_bytes(kind):
        return Types.PRIMITIVE_ARRAY(Types.BYTE())
    if _is_list(kind):
        return Types.OBJECT_ARRAY(_python_type(kind.value_type))
    return Types.STRING()


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _values(column: pa.ChunkedArray) -> list[Any]:
    absent: list[Any] | None = [] if _is_list(column.type) else None
    return [absent if value is None else _value(value) for value in column.to_pylist()]


def _nulls(column: pa.ChunkedArray) -> list[list[bool]]:
    return [column.is_null().to_pylist()] if _is_list(column.type) else []


def _value(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return value
    return [_value(one) for one in value] if isinstance(value, list) else str(value)
