"""The typed syntax tree of an expression: literals, column names and calls.

Nodes are frozen and hashable; equal expressions have equal trees. A node is built with
``operators.build``, which checks types and makes every conversion an explicit call, so
that printers and the evaluator never convert implicitly.
"""

from __future__ import annotations

import datetime as dt
import decimal
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from paimon_features.core.types.schema import DataType, Float64, Int64

KEYWORDS = (
    "and", "or", "not", "is", "null", "true", "false", "between", "in",
    "case", "when", "then", "else", "end", "cast", "as",
)  # fmt: skip
"""Words that cannot name a column without double quotes."""

EPOCH_DATE = dt.date(1970, 1, 1)
EPOCH_TIME = dt.datetime(1970, 1, 1)

_LOOSEST, _OR, _AND, _NOT, _COMPARE, _ADD, _MULTIPLY, _NEGATE, _TIGHTEST = range(9)

_INFIX = {
    "or": ("OR", _OR), "and": ("AND", _AND),
    "eq": ("=", _COMPARE), "ne": ("<>", _COMPARE), "lt": ("<", _COMPARE),
    "le": ("<=", _COMPARE), "gt": (">", _COMPARE), "ge": (">=", _COMPARE),
    "add": ("+", _ADD), "sub": ("-", _ADD), "mul": ("*", _MULTIPLY), "div": ("/", _MULTIPLY),
    "floordiv": ("//", _MULTIPLY), "mod": ("%", _MULTIPLY),
}  # fmt: skip
_CASTS = {
    "to_float": "float64", "decimal_to_float": "float64", "to_int": "int64",
    "bool_to_int": "int64", "int_to_string": "string", "bool_to_string": "string",
}  # fmt: skip


def promoted(kind: DataType) -> DataType:
    """Return the type of a column within an expression: always 64 bits."""
    if kind.is_integer:
        return Int64
    return Float64 if kind.is_float else kind


@dataclass(frozen=True, slots=True)
class Expression:
    """A typed expression; made by ``parse``, read by the printers and by ``evaluate``.

    >>> from paimon_features.core.expressions import parse
    >>> from paimon_features.core.types.schema import Float64, Int32
    >>> columns = {"quantity": Int32, "price": Float64}
    >>> amount = parse("quantity*price", columns)
    >>> amount.type, sorted(amount.columns), amount.text
    (Float64, ['price', 'quantity'], 'quantity * price')
    """

    type: DataType

    @property
    def text(self) -> str:
        """Canonical text: parsing it with the same columns returns an equal expression."""
        return _text(self, _LOOSEST)

    @property
    def columns(self) -> frozenset[str]:
        """Names of the columns that the value depends on."""
        return frozenset(node.name for node in walk(self) if isinstance(node, Name))

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Literal(Expression):
    """A constant: int, float, bool, str, Decimal, days or milliseconds since 1970, or None."""

    value: Any


@dataclass(frozen=True, slots=True)
class Name(Expression):
    """A column; ``declared`` is its type in the schema, ``type`` the 64-bit one."""

    name: str
    declared: DataType


@dataclass(frozen=True, slots=True)
class Call(Expression):
    """An operator or function of ``operators.RULES`` with its arguments."""

    op: str
    args: tuple[Expression, ...]


def walk(expr: Expression) -> Iterator[Expression]:
    """Yield every node of the tree, parents first."""
    yield expr
    if isinstance(expr, Call):
        for arg in expr.args:
            yield from walk(arg)


def quoted(text: str, mark: str) -> str:
    """Return ``text`` between marks, with marks inside doubled, as in all three SQL dialects."""
    return mark + text.replace(mark, mark * 2) + mark


def date_text(days: int) -> str:
    """Return ``YYYY-MM-DD`` of days since 1970."""
    return (EPOCH_DATE + dt.timedelta(days=days)).isoformat()


def time_text(time_ms: int) -> str:
    """Return ``YYYY-MM-DD HH:MM:SS.mmm`` of milliseconds since 1970."""
    return (EPOCH_TIME + dt.timedelta(milliseconds=time_ms)).isoformat(" ", "milliseconds")


def _literal_text(literal: Literal) -> str:
    value, kind = literal.value, literal.type
    if value is None:
        return f"CAST(NULL AS {kind.text})"
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, str):
        return quoted(value, "'")
    if isinstance(value, decimal.Decimal):
        return f"DECIMAL '{value:f}'"
    if kind.text == "date":
        return f"DATE '{date_text(value)}'"
    if kind.text == "timestamp":
        return f"TIMESTAMP '{time_text(value)}'"
    return repr(value)


def _converted(expr: Expression) -> Expression:
    """Return the argument of a conversion that the parser inserts implicitly."""
    hidden = isinstance(expr, Call) and expr.op in ("to_float", "to_decimal")
    return expr.args[0] if isinstance(expr, Call) and hidden else expr


def _operands(call: Call) -> tuple[Expression, ...]:
    """Return the arguments as they are written: conversions that follow from the others are left
    out."""
    left, right = call.args
    if call.op == "div":
        return tuple(_converted(arg) if arg.type is Float64 else arg for arg in call.args)
    if left.type.is_decimal:
        return _converted(left), _converted(right)
    if _converted(left) is not left and _converted(right) is not right:
        return call.args
    return _converted(left), _converted(right)


def _text(expr: Expression, outer: int) -> str:
    if isinstance(expr, Literal):
        text = _literal_text(expr)
        return f"({text})" if outer > _NEGATE and text.startswith("-") else text
    if isinstance(expr, Name):
        plain = re.fullmatch(r"[A-Za-z_]\w*(:[A-Za-z_]\w*)?", expr.name, re.ASCII)
        plain = plain if expr.name.lower() not in KEYWORDS else None
        return expr.name if plain else quoted(expr.name, '"')
    assert isinstance(expr, Call)
    text, binding = _call_text(expr)
    return f"({text})" if binding < outer else text


def _call_text(call: Call) -> tuple[str, int]:
    """Return the text of a call and how tightly it binds."""
    op, args = call.op, call.args
    if op in _INFIX:
        sign, binding = _INFIX[op]
        left, right = _operands(call)
        # comparisons do not chain, all else groups to the left
        tighter = binding + 1
        left_text = _text(left, tighter if binding == _COMPARE else binding)
        return f"{left_text} {sign} {_text(right, tighter)}", binding
    if op == "not":
        return f"NOT {_text(args[0], _NOT)}", _NOT
    if op == "neg":
        return f"-{_text(args[0], _TIGHTEST)}", _NEGATE
    if op in ("isnull", "isnotnull"):
        word = "IS NULL" if op == "isnull" else "IS NOT NULL"
        return f"{_text(args[0], _ADD)} {word}", _COMPARE
    if op == "in":
        items = ", ".join(_text(arg, _LOOSEST) for arg in args[1:])
        return f"{_text(args[0], _ADD)} IN ({items})", _COMPARE
    if op == "case":
        return _case_text(args), _TIGHTEST
    if op in _CASTS:
        return f"CAST({_text(args[0], _LOOSEST)} AS {_CASTS[op]})", _TIGHTEST
    if op == "to_decimal":
        return _text(args[0], _TIGHTEST), _TIGHTEST
    return f"{op}({', '.join(_text(arg, _LOOSEST) for arg in args)})", _TIGHTEST


def _case_text(args: tuple[Expression, ...]) -> str:
    pairs = zip(args[:-1:2], args[1::2], strict=True)
    whens = [f"WHEN {_text(c, _LOOSEST)} THEN {_text(v, _LOOSEST)}" for c, v in pairs]
    last = args[-1]
    otherwise = "" if isinstance(last, Literal) and last.value is None else _text(last, _LOOSEST)
    return " ".join(["CASE", *whens, *([f"ELSE {otherwise}"] if otherwise else []), "END"])
