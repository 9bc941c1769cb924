"""Reference implementation of the expression language: row by row in plain Python.

It evaluates lazily, as the text reads: only the branch taken of CASE, only the arguments of
COALESCE that are needed. It raises where ``overflow_guard`` must be false.
"""

from __future__ import annotations

import decimal
import hashlib
import math
import operator
import struct
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from paimon_features.core.expressions.nodes import (
    Call,
    Expression,
    Literal,
    Name,
    date_text,
    time_text,
)
from paimon_features.core.types.schema import DataType, DecimalType, Float64, Int64
from paimon_features.core.windows import DAY_MS, MIN_TIME_MS
from paimon_features.testing.reference import clocks

BEYOND_SCALE = 2**51
"""From here on ``scaled_int`` guarantees only its sign and that it is at least this large."""


_COMPARISONS: Mapping[str, Callable[[Any, Any], bool]] = {
    "eq": operator.eq, "ne": operator.ne, "lt": operator.lt,
    "le": operator.le, "gt": operator.gt, "ge": operator.ge,
}  # fmt: skip


class UnsafeStepError(ArithmeticError):
    """An integer step left int64, or a float step hid an infinity or NaN."""


def evaluate_row(expr: Expression, row: Mapping[str, Any]) -> Any:
    """Return the value on one row of Python values; None is null, times and dates are integers.

    Raises
    ------
    UnsafeStepError
        Where a step that counts overflows.
    """
    if isinstance(expr, Literal):
        return expr.value
    if isinstance(expr, Name):
        return row[expr.name]
    assert isinstance(expr, Call)
    if expr.op == "case":
        for condition, value in zip(expr.args[:-1:2], expr.args[1::2], strict=True):
            if evaluate_row(condition, row) is True:
                return evaluate_row(value, row)
        return evaluate_row(expr.args[-1], row)
    if expr.op == "coalesce":
        for arg in expr.args:
            value = evaluate_row(arg, row)
            if value is not None:
                return value
        return None
    args = [evaluate_row(arg, row) for arg in expr.args]
    if expr.op in ("isnull", "isnotnull"):
        return (args[0] is None) == (expr.op == "isnull")
    if expr.op in ("and", "or"):
        return _logic(expr.op, *args)
    if expr.op.startswith("fits_"):
        return None in args or -(2**63) <= _step(expr.op[5:], *args) < 2**63
    _check_hidden(expr, args)
    if expr.op == "item":
        return None if args[-1] is None else _item(args, [arg.type for arg in expr.args])
    if expr.op == "element":
        items, position = args
        return None if items is None or position > len(items) else items[position - 1]
    result = None if None in args else _apply(expr, *args)
    if isinstance(result, int) and not -(2**63) <= result < 2**63:
        raise UnsafeStepError(f"{expr.text} is {result}")
    return result


def _check_hidden(expr: Call, args: list[Any]) -> None:
    shown = expr.op in ("add", "sub", "mul", "neg", "abs", "floor", "ceil", "round", "finite")
    watched = [] if shown else args[1:] if expr.op == "div" else args
    for arg in watched:
        if isinstance(arg, float) and not math.isfinite(arg):
            raise UnsafeStepError(f"{expr.text} hides {arg}")


def _logic(op: str, left: bool | None, right: bool | None) -> bool | None:
    decisive = op == "or"
    if left is decisive or right is decisive:
        return decisive
    return None if left is None or right is None else not decisive


def _step(op: str, a: Any, b: Any = None) -> Any:
    """Return the result of a step: exact for integers, IEEE for floats."""
    if op == "add":
        return a + b
    if op == "sub":
        return a - b
    if op == "mul":
        return a * b
    if op == "neg":
        return -a
    return a // b if b else 0


def _float(function: Any, *args: float) -> float:
    """Return a float function that overflows to infinity where Python raises."""
    try:
        return float(function(*args))
    except OverflowError:
        return math.inf


def _apply(expr: Call, *args: Any) -> Any:
    """Return the value of a call of which no argument is null."""
    op, a, b = expr.op, args[0], args[-1]
    if op in ("add", "sub", "mul", "neg"):
        return _step(op, *args)
    if op in _COMPARISONS:
        return _COMPARISONS[op](a, b)
    if op == "in":
        return a in args[1:]
    if op == "not":
        return not a
    if op in ("div", "floordiv", "mod"):
        if b == 0:
            return None
        return _float(lambda: a / b) if op == "div" else a // b if op == "floordiv" else a % b
    if op in ("least", "greatest"):
        return min(args) if op == "least" else max(args)
    if op in ("lower", "upper"):
        return "".join(_letter(op, letter) for letter in a)
    if op == "concat":
        return "".join(args)
    if op == "bucket":
        return sum(1 for edge in args[1:] if edge <= a)
    if op == "hash_bucket":
        return int(hashlib.md5(a.encode()).hexdigest()[:12], 16) % b
    if op == "scaled_int":
        return _scaled_int(a, b)
    if op in ("local_ms", "truncated"):
        return _clock(expr, *args)
    if op == "ordered":
        return _ordered(a, b, expr.args[1].type)
    return _function(op, a, b)


def _clock(expr: Call, time: int, *args: Any) -> int | None:
    day = DAY_MS if expr.args[0].type.text == "date" else 1
    if expr.op == "local_ms":
        shown = clocks.shown(time * day, args[0] if args else "UTC")
        return None if shown is None else shown - MIN_TIME_MS
    start = clocks.unit_start(args[1], time * day, args[2] if args[2:] else "UTC")
    return None if start is None else start // day


def _function(op: str, a: Any, b: Any) -> Any:
    if op in ("floor", "ceil", "round"):
        if not math.isfinite(a):
            return a
        return float(math.floor(a) if op == "floor" else math.ceil(a) if op == "ceil" else round(a))
    if op == "power":
        real = a > 0 or (a == 0 and b >= 0) or (a < 0 and b == math.floor(b))
        if not real:
            return None
        sign = -1.0 if a < 0 and b % 2 == 1 else 1.0
        return sign * _float(math.pow, abs(a), b)
    if op == "to_int":
        return int(a) if -(2.0**63) <= a < 2.0**63 else None
    simple: Mapping[str, Callable[[], Any]] = {
        "abs": lambda: abs(a), "length": lambda: len(a), "finite": lambda: math.isfinite(a),
        "sqrt": lambda: math.sqrt(a) if a >= 0 else None,
        "ln": lambda: math.log(a) if a > 0 else None,
        "exp": lambda: _float(math.exp, a), "exp2": lambda: _float(math.pow, 2.0, a),
        "to_float": lambda: float(a), "decimal_to_float": lambda: float(a),
        "to_decimal": lambda: decimal.Decimal(a), "bool_to_int": lambda: int(a),
        "size": lambda: len(a), "distinct_item": lambda: _sketch(a),
        "md5": lambda: hashlib.md5(a.encode(), usedforsecurity=False).hexdigest(),
        "int_to_string": lambda: str(a), "bool_to_string": lambda: str(a).lower(),
    }  # fmt: skip
    return simple[op]()


def _letter(op: str, letter: str) -> str:
    """Return the other case of a letter that has exactly one partner, up to U+052F."""
    other = letter.lower() if op == "lower" else letter.upper()
    back = other.upper() if op == "lower" else other.lower()
    return other if back == letter and max(ord(c) for c in letter + other) <= 0x52F else letter


def _scaled_int(value: Any, scale: int) -> int:
    exact = value * 10.0**scale if isinstance(value, float) else Fraction(value) * 10**scale
    if abs(exact) >= BEYOND_SCALE:
        return BEYOND_SCALE if exact > 0 else -BEYOND_SCALE
    return round(exact)  # half to even


def _item(values: list[Any], kinds: list[DataType]) -> str:
    """Return the parts between U+0001; commas and, before the last, control characters escaped."""
    parts = []
    for value, kind in zip(values, kinds, strict=True):
        if value is None:
            parts.append("")
        elif kind is Int64:
            digits = str(abs(value))
            if value >= 0:
                parts.append(chr(ord("a") - 1 + len(digits)) + digits)
            else:
                lowered = "".join(str(9 - int(digit)) for digit in digits)
                parts.append(chr(ord("Z") - len(digits)) + lowered)
        elif kind.text == "string":
            escapes = {"+": "+a", ",": "+b"}
            if len(parts) < len(values) - 1:
                escapes |= {"\0": "\2a", "\1": "\2b", "\2": "\2c"}
            parts.append("'" + "".join(escapes.get(letter, letter) for letter in value))
        else:
            parts.append(_ordered(MIN_TIME_MS, value, kind)[15:])
    return "\1".join(parts)


def _sketch(hexadecimal: str) -> bytes:
    """Return a roaring bitmap of one 16-bit number: 4 bits of rank between 12 bits of register."""
    digest = bytes.fromhex(hexadecimal)
    word = int.from_bytes(digest, "big") >> 100 & 0xFFFF  # the bits after the first 12
    rank = min(16 - word.bit_length() + 1, 15)
    low, high = rank << 4 | digest[0] >> 4, (digest[0] & 15) << 4 | digest[1] >> 4
    return struct.pack("<IIHHIBB", 12346, 1, 0, 0, 16, low, high)


def _ordered(ts: int, value: Any, kind: DataType) -> str:
    time = f"{ts - MIN_TIME_MS:015d}"
    if kind is Float64:
        (bits,) = struct.unpack(">q", struct.pack(">d", abs(value)))
        value, kind = (-bits if value < 0 else bits), Int64
    if kind is Int64:
        return f"{time}1{value:019d}" if value >= 0 else f"{time}0{value + 2**63:019d}"
    if isinstance(kind, DecimalType):
        digits = f"{value.copy_abs():.{kind.scale}f}".rjust(kind.precision + 2, "0")
        if value >= 0:
            return f"{time}1{digits}"
        return f"{time}0" + "".join(c if c == "." else str(9 - int(c)) for c in digits)
    if kind.text == "bool":
        return time + ("1" if value else "0")
    if kind.text == "string":
        return f"{time}{value}"
    return time + (date_text(value) if kind.text == "date" else time_text(value))
