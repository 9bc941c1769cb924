"""Values as they are given, in lists, NumPy, Arrow, pandas or Polars, and as columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from paimon_features.core.columns.column import Column, one_array
from paimon_features.core.errors import RequestError
from paimon_features.core.types.foreign_types import plain_array, plain_column, plain_type
from paimon_features.core.types.schema import (
    Bool,
    DataType,
    Date,
    Float64,
    Int64,
    String,
    Timestamp,
)

TYPES: Mapping[str, DataType] = {
    "bool": Bool, "int": Int64, "float": Float64, "string": String, "date": Date,
    "timestamp": Timestamp,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Values:
    """One feature as it was given, and as a column."""

    given: Any
    single: bool
    type: DataType
    column: Column

    @classmethod
    def of(cls, name: str, given: Any) -> Values:
        single = given is None or isinstance(given, str | bool | int | float | np.generic)
        array = as_arrow([given] if single else given)
        kind = kind_of(name, array.type)
        return cls(given, single, kind, Column.from_arrow(array.cast(kind.arrow)))

    def like(self, array: pa.Array) -> Any:
        """Return the result in the form in which this feature was given."""
        if self.single:
            return array[0].as_py()
        if isinstance(self.given, pa.Array | pa.ChunkedArray):
            return array
        if isinstance(self.given, np.ndarray):
            return array.to_numpy(zero_copy_only=False)
        package = type(self.given).__module__.partition(".")[0]
        if package == "polars":
            import polars

            return polars.Series(array)
        if package == "pandas":
            return array.to_pandas().set_axis(self.given.index)
        return array.to_pylist()


def as_arrow(values: Any) -> pa.Array:
    """Return the values as one Arrow array; NaN is null."""
    try:
        if hasattr(values, "to_arrow"):  # Polars
            values = values.to_arrow()
        if not isinstance(values, pa.Array | pa.ChunkedArray):
            values = pa.array(values, from_pandas=True)
    except (pa.ArrowException, TypeError, OverflowError) as error:
        raise RequestError(
            f"values of type {type(values).__name__} cannot be a column: {error}"
        ) from error
    try:
        if isinstance(values, pa.ChunkedArray):
            values = one_array(plain_column(values))
        values = plain_array(values)
    except pa.ArrowException as error:
        raise RequestError(str(error)) from error
    if pa.types.is_floating(values.type) and pc.any(pc.is_nan(values)).as_py():
        return pc.if_else(pc.is_nan(values), None, values)  # Arrow and Polars distinguish them
    return values


def kind_of(name: str, kind: pa.DataType) -> DataType:
    """Return the type in which such values take part in an expression.

    Raises
    ------
    RequestError
        For lists, bytes, decimals and whatever else none does.
    """
    is_a = pa.types
    kind = plain_type(kind)
    for test, type_name in (
        (is_a.is_boolean, "bool"), (is_a.is_integer, "int"), (is_a.is_floating, "float"),
        (is_a.is_null, "float"), (is_a.is_string, "string"),
        (is_a.is_date, "date"), (is_a.is_timestamp, "timestamp"),
    ):  # fmt: skip
        if test(kind):
            return TYPES[type_name]
    raise RequestError(f"{name} is {kind}; expected numbers, strings, bools, dates or timestamps")


def as_numpy(values: Any) -> npt.NDArray[Any]:
    """Return the values as a NumPy array; nulls of numbers are NaN."""
    if isinstance(values, np.ndarray):
        return values
    array: npt.NDArray[Any] = as_arrow(values).to_numpy(zero_copy_only=False)
    return array


def as_numbers(what: str, values: Any) -> Column:
    """Return numbers as a float64 column; RequestError for anything else."""
    array = as_arrow(values)
    kind = kind_of(what, array.type)
    if kind not in (Int64, Float64, Bool):
        raise RequestError(f"{what} are {kind!r}; expected numbers")
    return Column.from_arrow(array.cast(Float64.arrow))
