"""Request inputs: values that a caller passes with each read, such as the amount to be paid now."""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from paimon_features.core._arrow import is_arrow_scalar, pa, pc
from paimon_features.core.columns.column import Column
from paimon_features.core.errors import DefinitionError, RequestError
from paimon_features.core.times.utc_ms import conform, is_time
from paimon_features.core.types.foreign_types import plain_array
from paimon_features.core.types.schema import DataType, check_name
from paimon_features.definitions.checks import check_types
from paimon_features.definitions.metadata import check_metadata, metadata
from paimon_features.definitions.request_values import input_column, plain_list

_TYPES = ("bool", "int32", "int64", "float32", "float64", "string", "date", "timestamp")
_SCALARS = (
    str, bytes, bool, int, float, decimal.Decimal, dt.date, np.generic, type(None),
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class RequestSource:
    """Named, typed inputs that are known only at request time.

    Interactions use them by name. Online they are passed with the call (``request=``), one value
    for all entities or one for each; offline they are columns of the entity rows.

    >>> from paimon_features.core.types.schema import Float64, String
    >>> payment = RequestSource("payment", schema={"amount": Float64, "currency": String})
    """

    name: str
    schema: Mapping[str, DataType]
    description: str = ""
    owner: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_types(f"request source {self.name!r}: schema", self.schema)
        check_metadata("request source", self)
        if not self.schema:
            raise DefinitionError(
                f"request source {self.name!r} has no inputs; expected at least one"
            )
        for name, kind in self.schema.items():
            check_name(f"request source {self.name!r}: input", name)
            if name == "event_time_ms":
                raise DefinitionError(
                    f"request source {self.name!r}: the name {name!r} is reserved for the time of "
                    "entity rows"
                )
            if not is_input_type(kind):
                raise DefinitionError(
                    f"request source {self.name!r}: input {name!r} is {kind!r}; an input is a "
                    "Bool, number, String, Date or Timestamp"
                )

    def to_document(self) -> dict[str, object]:
        """Return the canonical JSON form, as in the registry."""
        schema = {name: kind.text for name, kind in self.schema.items()}
        document = {"kind": "request_source", "name": self.name, "schema": schema}
        return {**document, **metadata(self)}


def is_input_type(kind: DataType) -> bool:
    """Return True if request inputs can have this type."""
    return kind.text in _TYPES or kind.is_decimal


def request_columns(
    inputs: Mapping[str, DataType],
    given: Mapping[str, object] | None,
    rows: int,
    kind_of_input: str = "request input",
) -> dict[str, Column]:
    """Return the inputs of an online request, one value per row; a single value is repeated.

    >>> from paimon_features.core.types.schema import Float64
    >>> request_columns({"amount": Float64}, {"amount": 9}, rows=2)["amount"].values.tolist()
    [9.0, 9.0]

    Raises
    ------
    RequestError
        For an input that is missing, unknown, of another type, not finite, or of another length.
    """
    given = given or {}
    unknown = sorted(given.keys() - inputs.keys())
    if unknown:
        raise RequestError(
            f"request input {unknown[0]!r} is used by none of the requested features; "
            f"they take: {_signature(inputs) or 'no inputs'}"
        )
    missing = [name for name in inputs if name not in given]
    if missing:
        raise RequestError(
            f"missing request input {missing[0]!r}; expected request= with: {_signature(inputs)}"
        )
    return {
        name: _of_request(f"{kind_of_input} {name!r}", kind, given[name], rows)
        for name, kind in inputs.items()
    }


def row_inputs(inputs: Mapping[str, DataType], table: pa.Table) -> dict[str, pa.Array]:
    """Return the inputs from the columns of entity rows.

    Raises
    ------
    RequestError
        For a column that is missing or of another type, or a number that is not finite.
    """
    out = {}
    for name, kind in inputs.items():
        if name not in table.column_names:
            raise RequestError(
                f"entity rows have no column {name!r}, a request input ({kind!r}); "
                f"they have: {', '.join(table.column_names) or 'none'}"
            )
        column = table.column(name).combine_chunks()
        if isinstance(column, pa.ChunkedArray):  # no rows, or too long for one chunk
            column = pa.concat_arrays(column.chunks) if column.num_chunks else column
        out[name] = _typed(f"entity rows: request input {name!r}", kind, column)
    return out


def _signature(inputs: Mapping[str, DataType]) -> str:
    return ", ".join(f"{name} ({kind!r})" for name, kind in inputs.items())


def _of_request(label: str, kind: DataType, value: Any, rows: int) -> Column:
    single = isinstance(value, _SCALARS)
    if is_arrow_scalar(value):
        value, single = value.as_py(), True
    values = [value] if single else value
    plain = plain_list(values)
    if plain is None:
        column = Column.from_arrow(_arrow_input(label, kind, values))
    else:
        try:
            column = input_column(kind, plain)
        except (TypeError, ValueError) as error:
            raise RequestError(f"{label}: expected {kind!r} values; {error}") from error
    if single:
        return column if rows == 1 else column.take(np.zeros(rows, np.int64))
    if len(column) != rows:
        raise RequestError(
            f"{label} has {len(column)} values for {rows} entities; give one for each, or a single "
            "value that is not a sequence"
        )
    return column


def _arrow_input(what: str, kind: DataType, values: Any) -> pa.Array:
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if not isinstance(values, pa.Array):
        exact = kind.is_decimal and isinstance(values, list | tuple)
        try:
            values = pa.array(values, kind.arrow if exact else None)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise RequestError(f"{what}: expected {kind!r} values; {error}") from error
        if isinstance(values, pa.ChunkedArray):
            values = values.combine_chunks()
    return _typed(what, kind, values)


def _typed(what: str, kind: DataType, array: pa.Array) -> pa.Array:
    """Return the array as ``kind``, if that is lossless."""
    given = array.type
    try:
        array = plain_array(array)
        given = array.type
        if given != kind.arrow:
            if not (pa.types.is_null(given) or _fits(given, kind)):
                raise pa.ArrowInvalid("the types differ")
            array = conform(array, kind.arrow)
    except pa.ArrowException as error:
        raise RequestError(f"{what} is {given}, expected {kind!r}: {error}") from error
    if kind.is_float and not pc.all(pc.is_finite(array)).as_py() and len(array) > array.null_count:
        row = pc.index(pc.is_finite(array), False).as_py()
        raise RequestError(f"{what} is {array[row].as_py()} in row {row}; expected finite numbers")
    return array


def _fits(given: pa.DataType, kind: DataType) -> bool:
    """Return True if values of an Arrow type are accepted for an input.

    The cast checks each of them.
    """
    integer, number = pa.types.is_integer(given), pa.types.is_floating(given)
    fitting = {
        "timestamp": is_time(given) or integer,
    }
    if kind.is_integer or kind.is_float:
        return bool(integer or number)
    if kind.is_decimal:
        return bool(integer or pa.types.is_decimal(given))
    return bool(fitting.get(kind.text, False))
