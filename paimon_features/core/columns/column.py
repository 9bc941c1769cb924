"""One column of values in NumPy: the values and which of them are not null.

Every vectorized path (expressions, folds, finishing, online reads, the point-in-time join)
uses such columns. Where a value is null its slot in ``values`` is undefined.
"""

from __future__ import annotations

import datetime as dt
import decimal
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from paimon_features.core._arrow import pa
from paimon_features.core.times.utc_ms import utc_ms
from paimon_features.core.types.array_types import Array, Bools
from paimon_features.core.types.foreign_types import is_plain, plain_array
from paimon_features.core.types.schema import DataType, DecimalType, ListType, MapType


@dataclass(frozen=True, slots=True)
class Column:
    """Values of one column, shape ``(rows,)``, and a mask that is True where a value is present.

    ``valid`` is None where no value is null. Strings and bytes are object arrays of ``str`` and
    ``bytes``, decimals object arrays of ``decimal.Decimal``, dates int32 days and timestamps
    int64 milliseconds since 1970, all others the NumPy type of that name; in floats that come
    from Arrow a null is NaN. Lists are object arrays of lists, in which a null is None, and maps
    of lists of (key, value) pairs.

    >>> column = Column.from_arrow(pa.array([1, None, 3]))
    >>> column.values[column.mask].tolist(), len(column)
    ([1, 3], 3)
    >>> column.to_arrow(pa.int64()).to_pylist()
    [1, None, 3]
    """

    values: Array
    valid: Bools | None = None

    def __len__(self) -> int:
        return len(self.values)

    @property
    def mask(self) -> Bools:
        """The validity mask; all True if no value is null."""
        return np.ones(len(self.values), np.bool_) if self.valid is None else self.valid

    def take(self, indices: npt.NDArray[np.int64]) -> Column:
        """Return the rows at ``indices``, in their order."""
        return Column(self.values[indices], None if self.valid is None else self.valid[indices])

    def part(self, rows: slice) -> Column:
        """Return a slice of the rows without copying."""
        return Column(self.values[rows], None if self.valid is None else self.valid[rows])

    @classmethod
    def from_arrow(cls, array: pa.Array | pa.ChunkedArray) -> Column:
        """Return the column of an Arrow array; zero copy for numbers without nulls."""
        if isinstance(array, pa.ChunkedArray):
            array = one_array(array)
        kind = array.type
        if pa.types.is_timestamp(kind):
            array = utc_ms(array)
        elif pa.types.is_date(kind):
            array = array.cast(pa.date32()).view(pa.int32())
        elif not is_plain(kind):
            return cls.from_arrow(plain_array(array))
        elif pa.types.is_nested(kind):
            # NumPy's own conversion turns a null in a list of floats into NaN
            items = np.fromiter(array.to_pylist(), np.object_, len(array))
            return cls(items, _validity(array))
        valid = _validity(array)
        if valid is not None and pa.types.is_floating(array.type):
            # Arrow's own conversion is three times slower
            bare = pa.Array.from_buffers(
                array.type, len(array), [None, array.buffers()[1]], offset=array.offset
            )
            values = bare.to_numpy()
            return cls(np.where(valid, values, values.dtype.type(np.nan)), valid)
        if valid is not None and (
            pa.types.is_integer(array.type) or pa.types.is_boolean(array.type)
        ):
            array = array.fill_null(False if pa.types.is_boolean(array.type) else 0)
        return cls(array.to_numpy(zero_copy_only=False), valid)

    @classmethod
    def nulls(cls, rows: int, kind: DataType) -> Column:
        """Return a column of ``rows`` nulls."""
        return cls(np.zeros(rows, numpy_type(kind)), np.zeros(rows, np.bool_))

    @classmethod
    def concat(cls, columns: Sequence[Column]) -> Column:
        """Return the rows of columns of one type, one after another; at least one column."""
        if len(columns) == 1:
            return columns[0]
        values = np.concatenate([column.values for column in columns])
        if all(column.valid is None for column in columns):
            return cls(values)
        return cls(values, np.concatenate([column.mask for column in columns]))

    def to_pylist(self, kind: DataType) -> list[Any]:
        """Return the Python values of a column of type ``kind``, as those of its Arrow array.

        >>> from paimon_features.core.types.schema import Date
        >>> Column(np.array([0, 31], np.int32), np.array([True, False])).to_pylist(Date)
        [datetime.date(1970, 1, 1), None]
        """
        values: list[Any] = self.values.tolist()
        convert = _converter(kind)
        if convert is not None:
            is_valid = self.mask.tolist()
            return [
                convert(value) if has and value is not None else None
                for value, has in zip(values, is_valid, strict=True)
            ]
        if self.valid is not None:
            for row in np.flatnonzero(~self.valid).tolist():
                values[row] = None
        return values

    def to_arrow(self, kind: pa.DataType) -> pa.Array:
        """Return the Arrow array of type ``kind`` (times and dates from their integers)."""
        values = self.values
        if self.valid is None and _plain().get(kind) == values.dtype and values.flags.c_contiguous:
            # the same bytes: no copy
            return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])
        mask = None if self.valid is None else ~self.valid
        if pa.types.is_timestamp(kind) or pa.types.is_date32(kind):
            plain = pa.int64() if pa.types.is_timestamp(kind) else pa.int32()
            return pa.array(self.values, plain, mask=mask).view(kind)
        return pa.array(self.values, kind, mask=mask)


def one_array(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as one array; zero copy if it has one chunk.

    >>> one_array(pa.chunked_array([[1], [2]])).to_pylist()
    [1, 2]
    """
    if column.num_chunks == 1:
        return column.chunk(0)
    return column.combine_chunks() if column.num_chunks else pa.array([], column.type)


def take_rows(table: pa.Table, rows: npt.NDArray[np.int64]) -> pa.Table:
    """Return rows of a table, by their ascending positions.

    Arrow's ``take`` is slow where columns have several chunks.

    >>> table = pa.concat_tables([pa.table({"n": [1, 2]}), pa.table({"n": [3, 4]})])
    >>> take_rows(table, np.array([1, 2]))["n"].to_pylist()
    [2, 3]
    """
    if all(column.num_chunks == 1 for column in table.columns):
        return table.take(pa.array(rows))
    chosen = np.zeros(table.num_rows, np.bool_)
    chosen[rows] = True
    return table.filter(pa.array(chosen))


def _validity(array: pa.Array) -> Bools | None:
    """Return True where there is a value; None if no value is null."""
    if not array.null_count:
        return None
    bitmap = array.buffers()[0]
    if bitmap is None:  # an array of type null has no bitmap
        return np.asarray(array.is_valid())
    first = array.offset % 8
    packed = np.frombuffer(bitmap, np.uint8, offset=array.offset // 8)
    bits = np.unpackbits(packed, count=first + len(array), bitorder="little")
    return bits[first:].view(np.bool_)


@functools.cache
def _plain() -> Mapping[pa.DataType, np.dtype[Any]]:
    """Return the Arrow types with the memory layout of NumPy."""
    return {
        pa.int32(): np.dtype("<i4"),
        pa.int64(): np.dtype("<i8"),
        pa.float32(): np.dtype("<f4"),
        pa.float64(): np.dtype("<f8"),
    }


def _converter(kind: DataType) -> Callable[[Any], Any] | None:
    """Return the function from a column's value to the Python value; None where they are equal."""
    if kind.text == "date":
        return lambda days: days if isinstance(days, dt.date) else _DAY_0 + dt.timedelta(days=days)
    if kind.text == "timestamp":
        return lambda ms: ms if isinstance(ms, dt.date) else _TIME_0 + dt.timedelta(milliseconds=ms)
    if isinstance(kind, DecimalType):
        step = decimal.Decimal(1).scaleb(-kind.scale)
        return lambda value: decimal.Decimal(value).quantize(step, context=_DIGITS)
    if isinstance(kind, ListType):
        item = _item_converter(kind.item)
        return lambda values: [None if v is None else item(v) for v in values]
    if isinstance(kind, MapType):
        entry = _item_converter(kind.item)
        return lambda pairs: [(key, None if v is None else entry(v)) for key, v in pairs]
    return None


def _item_converter(kind: DataType) -> Callable[[Any], Any]:
    """Return the same for an item of a list, which may be a number of another type."""
    if kind.text == "float32":
        return lambda value: float(np.float32(value))
    plain = {"float64": float, "int32": int, "int64": int, "bool": bool, "string": str}
    return _converter(kind) or plain[kind.text]


_DAY_0, _TIME_0 = dt.date(1970, 1, 1), dt.datetime(1970, 1, 1)
_DIGITS = decimal.Context(prec=100)


def numpy_type(kind: DataType) -> np.dtype[Any]:
    """Return the NumPy type of the values of a ``Column`` of this type."""
    names = {
        "bool": "?", "int32": "<i4", "int64": "<i8", "float32": "<f4", "float64": "<f8",
        "date": "<i4", "timestamp": "<i8",
    }  # fmt: skip
    return np.dtype(names.get(kind.text, "O"))
