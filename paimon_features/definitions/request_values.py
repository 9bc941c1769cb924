"""Plain values of a request as columns of their types, without Arrow.

Entity keys and request inputs mostly arrive as lists of Python values, from JSON or from a caller.
They are checked here; nothing is parsed, and nothing loses a digit. What this module does not know
(a pandas series, an Arrow array) is left to Arrow.
"""

from __future__ import annotations

import datetime as dt
import decimal
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from paimon_features.core.columns.column import Column, numpy_type
from paimon_features.core.types.schema import DataType, DecimalType

_PLAIN = frozenset(
    (bool, int, float, str, bytes, decimal.Decimal, dt.date, dt.datetime, type(None))
)
_SIZES = {"int32": 2**31, "int64": 2**63}
_EXACT = {"float32": 2**24, "float64": 2**53}
"""Integers up to this are exact as floats."""
_FLOAT32_MAX = float(np.finfo(np.float32).max)
_EPOCH = dt.datetime(1970, 1, 1)
_FIRST_DAY = dt.date(1970, 1, 1)
_MS = dt.timedelta(milliseconds=1)
_CONTEXT = decimal.Context(prec=100)


def plain_list(values: object) -> list[Any] | None:
    """Return the values of a list, tuple or NumPy array as Python values; None for anything else.

    >>> plain_list(np.array([1, 2])), plain_list((1.5, None)), plain_list({1})
    ([1, 2], [1.5, None], None)
    """
    if isinstance(values, np.ndarray):
        if values.ndim != 1 or values.dtype.kind not in "biufUO":
            return None
        values = values.tolist()
    if type(values) not in (list, tuple):
        return None
    assert isinstance(values, list | tuple)
    out = list(values)
    if not _PLAIN.issuperset(map(type, out)):
        out = [v.item() if _is_plain_scalar(v) else v for v in out]
        if not _PLAIN.issuperset(map(type, out)):
            return None
    return out


def _is_plain_scalar(value: object) -> bool:
    # to NumPy, a duration is an integer
    plain = isinstance(value, np.number | np.bool_ | np.str_)
    return plain and not isinstance(value, np.timedelta64)


def parser_of_text(kind: DataType) -> Callable[[str], object] | None:
    """Return the parser of a type that JSON has no form for; None for other types.

    >>> from paimon_features.core.types.schema import Date
    >>> parser_of_text(Date)("2011-12-09")
    datetime.date(2011, 12, 9)
    """
    return decimal.Decimal if kind.is_decimal else _FROM_TEXT.get(kind.text)


def text_form(kind: DataType) -> str:
    """Return what such a text looks like."""
    if kind.is_decimal:
        return "a decimal such as '12.50'"
    form = "'2011-12-09'" if kind.text == "date" else "'2011-12-09T12:50:00'"
    return f"ISO 8601, such as {form}"


def key_values(kind: DataType, values: Sequence[Any]) -> list[Any]:
    """Return the values of an entity key as Python values of its type; None stays.

    Raises
    ------
    TypeError, ValueError
        For a value of another type, or beyond the range of its type.
    """
    convert = _KEYS.get(kind.text)
    if convert is None:
        raise TypeError(f"an entity key cannot be {kind!r}")
    return [None if value is None else convert(value, kind) for value in values]


def input_column(kind: DataType, values: Sequence[Any]) -> Column:
    """Return the values of a request input as a column of its type.

    Raises
    ------
    TypeError, ValueError
        For a value of another type, one that would be rounded, or a float that is not finite.
    """
    convert = _INPUTS["decimal" if kind.is_decimal else kind.text]
    valid = np.array([value is not None for value in values], np.bool_)
    converted = np.zeros(len(values), numpy_type(kind))
    for row, value in enumerate(values):
        if value is not None:
            try:
                converted[row] = convert(value, kind)
            except (TypeError, ValueError) as error:
                raise type(error)(f"{error} in row {row}") from None
        elif kind.is_float:
            converted[row] = np.nan
        elif converted.dtype == np.object_:
            converted[row] = None
    return Column(converted, None if valid.all() else valid)


def _integer(value: Any, kind: DataType) -> int:
    if isinstance(value, decimal.Decimal) and value == value.to_integral_value():
        value = int(value)
    if type(value) is not int:
        raise TypeError(f"got {value!r}")
    bound = _SIZES[kind.text]
    if not -bound <= value < bound:
        raise ValueError(f"{value} is not in range: {-bound} to {bound - 1}")
    return value


def _whole(value: Any, kind: DataType) -> int:
    if type(value) is float:
        if not value.is_integer():
            raise ValueError(f"{value!r} is not an integer, and would be truncated")
        value = int(value)
    return _integer(value, kind)


def _float(value: Any, kind: DataType) -> float:
    if type(value) is int:
        bound = _EXACT[kind.text]
        if not -bound <= value <= bound:
            raise ValueError(f"{value} is not in range: {-bound} to {bound}")
        return float(value)
    if type(value) is not float:
        raise TypeError(f"got {value!r}")
    if not math.isfinite(value):
        raise ValueError(f"got {value!r}; expected finite numbers")
    if kind.text == "float32" and abs(value) > _FLOAT32_MAX:
        raise ValueError(f"got {value!r}; expected finite numbers of 32 bits")
    return value


def _decimal(value: Any, kind: DataType) -> decimal.Decimal:
    if type(value) is not int and not isinstance(value, decimal.Decimal):
        raise TypeError(f"got {value!r}; expected an integer or a decimal")
    assert isinstance(kind, DecimalType)
    given = decimal.Decimal(value)
    if not given.is_finite() or abs(given.adjusted()) > 80:
        raise ValueError(f"got {value!r}; expected a decimal of {kind.precision} digits")
    out = given.quantize(decimal.Decimal(1).scaleb(-kind.scale), context=_CONTEXT)
    if out != given:
        raise ValueError(f"{value} would be rounded to {kind.scale} digits after the point")
    if len(out.as_tuple().digits) > kind.precision:
        raise ValueError(f"{value} has more than {kind.precision} digits")
    return out


def _bool(value: Any, kind: DataType) -> bool:
    if type(value) is not bool:
        raise TypeError(f"got {value!r}; expected a boolean")
    return value


def _string(value: Any, kind: DataType) -> str:
    if isinstance(value, bytes):
        return value.decode()
    if not isinstance(value, str):
        raise TypeError(f"got {value!r}; expected a string")
    value.encode()  # a text with half a surrogate pair has no UTF-8
    return value


def _text(value: Any, kind: DataType) -> str:
    if isinstance(value, bytes):
        raise TypeError(f"got {value!r}; expected a string")
    return _string(value, kind)


def _date(value: Any, kind: DataType) -> dt.date:
    if type(value) is int:
        return _FIRST_DAY + dt.timedelta(days=_integer(value, _INT32))
    if isinstance(value, dt.datetime):
        return value.date()
    if not isinstance(value, dt.date):
        raise TypeError(f"got {value!r}; expected a date")
    return value


def _days(value: Any, kind: DataType) -> int:
    if type(value) is not dt.date:
        raise TypeError(f"got {value!r}; expected a date")
    return (value - _FIRST_DAY).days


def _time_ms(value: Any, kind: DataType) -> int:
    if type(value) is int:
        return _integer(value, _INT64)
    if type(value) is dt.date:
        value = dt.datetime(value.year, value.month, value.day)
    if not isinstance(value, dt.datetime):
        raise TypeError(f"got {value!r}; expected a time")
    if value.tzinfo is not None:
        value = value.astimezone(dt.UTC).replace(tzinfo=None)
    time_ms: int = (value - _EPOCH) // _MS
    return time_ms


def _timestamp(text: str) -> dt.datetime:
    moment = dt.datetime.fromisoformat(text)
    return moment if moment.tzinfo is None else moment.astimezone(dt.UTC).replace(tzinfo=None)


_FROM_TEXT: Mapping[str, Callable[[str], object]] = {
    "date": dt.date.fromisoformat,
    "timestamp": _timestamp,
}
_INT32, _INT64 = DataType("int32", "INT"), DataType("int64", "BIGINT")
_Convert = Callable[[Any, DataType], Any]
_KEYS: Mapping[str, _Convert] = {
    "int32": _integer, "int64": _integer, "string": _string, "bool": _bool, "date": _date,
}  # fmt: skip
_INPUTS: Mapping[str, _Convert] = {
    "int32": _whole, "int64": _whole, "float32": _float, "float64": _float, "string": _text,
    "bool": _bool, "date": _days, "timestamp": _time_ms, "decimal": _decimal,
}  # fmt: skip
