"""Values as the text that Flink writes: ``CAST(... AS STRING)``, and JSON.

Flink uses Java's ``Double.toString``. Java before 19 writes some doubles with one digit more than
needed (2 ** -44 ends with 015 instead of 02); here the shortest digits are written, as by Java from
19 on. Either text is the same number.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from paimon_features.core.times.durations import MAX_TIME_MS, MIN_TIME_MS

_CONTROL = re.compile(r"\\u00([0-9a-f]{2})")


def double_text(value: float, *, single: bool = False) -> str:
    """Return a double, or with ``single`` a float of four bytes.

    >>> [double_text(x) for x in (12.0, 0.001, 1e7, -1.5e-5, 123456.789, 5e-324)]
    ['12.0', '0.001', '1.0E7', '-1.5E-5', '123456.789', '4.9E-324']
    >>> double_text(0.1, single=True), double_text(float("-inf"))
    ('0.1', '-Infinity')
    """
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "Infinity" if value > 0 else "-Infinity"
    written = str(np.float32(value)) if single else repr(float(value))
    sign, digits, exponent = Decimal(written).as_tuple()
    if sum(map(bool, digits)) == 1:
        # Java writes two digits, the nearest ones: 4.9E-324
        nearest = f"{value:.1e}"
        if (np.float32(nearest) if single else float(nearest)) == value:
            sign, digits, exponent = Decimal(nearest).as_tuple()
    minus = "-" if sign else ""
    text = "".join(map(str, digits)).rstrip("0") or "0"
    if text == "0":
        return f"{minus}0.0"
    # the number is 0.text * 10 ** point
    assert isinstance(exponent, int)
    point = len(digits) + exponent
    if -3 < point <= 7:
        text = "0" * (1 - point) + text if point <= 0 else text.ljust(point + 1, "0")
        point = max(point, 1)
        return f"{minus}{text[:point]}.{text[point:]}"
    return f"{minus}{text[0]}.{text[1:] or '0'}E{point - 1}"


def texts_of(values: pa.Array) -> list[str | None]:
    """Return ``CAST(... AS STRING)`` of each value: a number, boolean, date, timestamp or text."""
    kind = values.type
    if pa.types.is_timestamp(kind):
        return [_time_text(ms) for ms in values.cast(pa.int64()).to_pylist()]
    if pa.types.is_date(kind):
        # Python has no days after 9999
        texts: list[str | None] = values.cast(pa.date32()).cast(pa.string()).to_pylist()
        return texts
    write = _writer(kind)
    return [None if value is None else write(value) for value in _python(values)]


def _python(values: pa.Array) -> list[Any]:
    items: list[Any] = values.to_pylist()
    return items


def _writer(kind: pa.DataType) -> Callable[[Any], str]:
    if pa.types.is_floating(kind):
        single = bool(pa.types.is_float32(kind))
        return lambda value: double_text(value, single=single)
    if pa.types.is_boolean(kind):
        return lambda value: "TRUE" if value else "FALSE"
    if pa.types.is_decimal(kind):
        return lambda value: format(value, "f")
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return lambda value: bytes(value).decode("utf-8", "replace")
    return str


def _time_text(ms: int | None) -> str | None:
    """Return a timestamp with three digits after the second.

    >>> _time_text(-1), _time_text(0)
    ('1969-12-31 23:59:59.999', '1970-01-01 00:00:00.000')
    """
    if ms is None or not MIN_TIME_MS <= ms <= MAX_TIME_MS:
        return None if ms is None else str(ms)
    at = dt.datetime(1970, 1, 1) + dt.timedelta(milliseconds=ms)
    return f"{at.year:04d}-{at:%m-%d %H:%M:%S}.{at.microsecond // 1000:03d}"


def json_object(values: Mapping[str, Any]) -> str:
    """Return ``JSON_OBJECT`` of values: keys in order, characters unescaped where JSON permits it.

    >>> json_object({"b": 1e10, "a": "é\\x1f", "c": None})
    '{"a":"é\\\\u001F","b":1.0E+10,"c":null}'
    """
    pairs = (f"{_string(key)}:{_json(values[key])}" for key in sorted(values, key=utf16))
    return "{" + ",".join(pairs) + "}"


def utf16(key: str) -> bytes:
    """Return what Java compares texts by."""
    return key.encode("utf-16-be", "surrogatepass")


def _json(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, bytes):
        return _string(base64.b64encode(value).decode())
    if isinstance(value, float):
        text = double_text(value)
        if not text[-1].isdigit():
            return _string(text)
        # through a BigDecimal, which has neither a negative zero nor Java's exponents
        return str(Decimal(text)).removeprefix("-" if value == 0 else "+")
    return format(value, "f") if isinstance(value, Decimal) else str(value)


def _string(text: str) -> str:
    written = json.dumps(text, ensure_ascii=False)
    return _CONTROL.sub(lambda match: f"\\u00{match[1].upper()}", written)
