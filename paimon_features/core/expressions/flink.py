"""Flink SQL of an expression (Flink 2.2, streaming or batch).

What Flink would do otherwise, and is printed around: integer literals are INT and wrap at 32
bits; ``/`` and ``MOD`` truncate towards zero; strings compare by UTF-16 units unless they are
bytes; ``x IN (0E0)`` and chains of ``x = 0E0 OR ...`` become a hash set in which -0.0 is not
0.0; SQRT is POWER(x, 0.5); ROUND goes through decimals and fails on infinities.
"""

from __future__ import annotations

from collections.abc import Callable

from paimon_features.core.expressions import alphabet, sql
from paimon_features.core.expressions.constant_folding import fold
from paimon_features.core.expressions.nodes import (
    Call,
    Expression,
    Literal,
    Name,
    quoted,
    time_text,
)
from paimon_features.core.expressions.overflow import INT64_MAX, INT64_MIN, int_range
from paimon_features.core.expressions.scaling import BEYOND, LIMIT, ROUNDER
from paimon_features.core.types.schema import DataType, Date, DecimalType, Float64, Int64
from paimon_features.core.windows import DAY_MS, MIN_TIME_MS

Quote = Callable[[str], str]


def backticks(name: str) -> str:
    """Return a Flink SQL identifier."""
    return quoted(name, "`")


def to_flink(expr: Expression, quote: Quote = backticks) -> str:
    """Return the expression in Flink SQL; its columns are written by ``quote``.

    Every column has to have the type that the expression was parsed with. The text is safe to
    stand inside any other expression.

    >>> from paimon_features.core.expressions.parse import parse
    >>> from paimon_features.core.types.schema import Int64
    >>> to_flink(parse("n + 1", {"n": Int64}))
    '(`n` + CAST(1 AS BIGINT))'
    """
    return _SqlPrinter(quote).print(fold(expr))


class _SqlPrinter:
    def __init__(self, quote: Quote) -> None:
        self._quote = quote

    def print(self, expr: Expression) -> str:
        if isinstance(expr, Literal):
            return sql.literal(expr, expr.type.flink)
        if isinstance(expr, Name):
            column = self._quote(expr.name)
            return column if expr.declared == expr.type else f"CAST({column} AS {expr.type.flink})"
        assert isinstance(expr, Call)
        args = [self.print(arg) for arg in expr.args]
        if expr.op in _INFIX:
            return f"({args[0]} {_INFIX[expr.op]} {args[1]})"
        if expr.op in _PLAIN:
            return f"{_PLAIN[expr.op]}({', '.join(args)})"
        return _SPECIAL[expr.op](expr, *args)


def _ordering(sign: str) -> Callable[..., str]:
    def special(expr: Call, a: str, b: str) -> str:
        if expr.args[0].type.text == "string":
            return f"(CAST({a} AS BYTES) {sign} CAST({b} AS BYTES))"
        return f"({a} {sign} {b})"

    return special


def _equality(sign: str) -> Callable[..., str]:
    def special(expr: Call, a: str, b: str) -> str:
        for zero, other in (expr.args[0], b), (expr.args[1], a):
            if isinstance(zero, Literal) and zero.type is Float64 and zero.value == 0:
                return f"(ABS({other}) {sign} 0E0)"
        return f"({a} {sign} {b})"

    return special


def _in(expr: Call, x: str, *items: str) -> str:
    if expr.args[0].type is not Float64:
        return f"({x} IN ({', '.join(items)}))"
    # constants are literals, so that equal values have equal texts
    others = [item for item in items if item != "0.0E0"]
    tests = [f"{x} IN ({', '.join(others)})"] if others else []
    tests += [f"ABS({x}) = 0E0"] if len(others) < len(items) else []
    return f"({' OR '.join(tests)})"


def _floordiv(expr: Call, a: str, b: str) -> str:
    constant = sql.constant_divisor(expr)
    if constant is not None:
        if constant > 0 and int_range(expr.args[0])[0] >= 0:
            return f"({a} / {b})"
        sign = "<" if constant > 0 else ">"
        below = f"MOD({a}, {b}) {sign} 0"
        return f"(CASE WHEN {below} THEN {a} / {b} - 1 ELSE {a} / {b} END)"
    lower = f"(MOD({a}, {b}) < 0 AND {b} > 0) OR (MOD({a}, {b}) > 0 AND {b} < 0)"
    return (
        f"(CASE WHEN {b} = 0 THEN CAST(NULL AS BIGINT) "
        f"WHEN {lower} THEN {a} / {b} - 1 ELSE {a} / {b} END)"
    )


def _mod(expr: Call, a: str, b: str) -> str:
    constant = sql.constant_divisor(expr)
    if constant is not None and constant > 0 and int_range(expr.args[0])[0] >= 0:
        return f"MOD({a}, {b})"
    if constant is not None and 0 < constant <= 2**62:
        return f"MOD(MOD({a}, {b}) + {b}, {b})"
    if constant is not None:
        sign = "<" if constant > 0 else ">"
        return f"(CASE WHEN MOD({a}, {b}) {sign} 0 THEN MOD({a}, {b}) + {b} ELSE MOD({a}, {b}) END)"
    lower = f"(MOD({a}, {b}) < 0 AND {b} > 0) OR (MOD({a}, {b}) > 0 AND {b} < 0)"
    return (
        f"(CASE WHEN {b} = 0 THEN CAST(NULL AS BIGINT) "
        f"WHEN {lower} THEN MOD({a}, {b}) + {b} ELSE MOD({a}, {b}) END)"
    )


def _to_int(_: Call, x: str) -> str:
    inside = f"{x} >= -9.223372036854775808E18 AND {x} < 9.223372036854775808E18"
    return f"(CASE WHEN {inside} THEN CAST({x} AS BIGINT) ELSE CAST(NULL AS BIGINT) END)"


def _power(_: Call, x: str, y: str) -> str:
    defined = f"{x} > 0E0 OR ({x} < 0E0 AND {y} = FLOOR({y})) OR {y} >= 0E0 AND ABS({x}) = 0E0"
    return sql.where(defined, f"POWER({x}, {y})")


def _scaled_int(expr: Call, x: str, _: str) -> str:
    value, scale = expr.args[0], expr.args[1].value  # type: ignore[attr-defined]
    if value.type is Float64:
        return f"CAST(({x} * {10.0**scale!r}E0 + {ROUNDER}) - {ROUNDER} AS BIGINT)"
    bound = LIMIT // 10**scale
    if value.type is Int64:
        exact = f"{x} * CAST({10**scale} AS BIGINT)"
        low, high = int_range(value)
        if scale == 0 or (-bound <= low and high <= bound):
            return f"({exact})"
    else:
        exact = _scaled_decimal(x, value.type, scale)
    return (
        f"(CASE WHEN {x} > {bound} THEN CAST({BEYOND} AS BIGINT) "
        f"WHEN {x} < -{bound} THEN CAST(-{BEYOND} AS BIGINT) ELSE {exact} END)"
    )


def _scaled_decimal(x: str, kind: object, scale: int) -> str:
    """Return the half-even rounding of x * 10^scale, for |x| up to LIMIT // 10^scale."""
    assert isinstance(kind, DecimalType)
    whole = len(str(LIMIT)) - scale
    narrow = f"CAST({x} AS DECIMAL({whole + kind.scale}, {kind.scale}))"
    product = f"({narrow} * CAST({10**scale} AS DECIMAL({scale + 1}, 0)))"
    if scale >= kind.scale:
        return f"CAST({product} AS BIGINT)"
    floor = f"CAST(FLOOR({product}) AS BIGINT)"
    rest = f"({product} - FLOOR({product}))"
    return (
        f"({floor} + CASE WHEN {rest} > 0.5 OR ({rest} = 0.5 AND MOD({floor}, 2) <> 0) "
        "THEN CAST(1 AS BIGINT) ELSE CAST(0 AS BIGINT) END)"
    )


def _float_bits(x: str) -> str:
    """Return the IEEE 754 bits of |x| as BIGINT, by exact arithmetic: Flink has no function for it.

    With e = floor(log2 |x|) and the significand m = |x| * 2^(52 - e) in [2^52, 2^53) the bits are
    (e + 1022) * 2^52 + m. The logarithm is taken a trace too low, so that e is right or one too
    small; then m is twice as large, and the lesser of m and m / 2 + 2^52 corrects both terms.
    Denormals are those with e fixed at -1022. Powers of two and products with them are exact.
    """
    low = "2.2250738585072014E-308"
    e = f"GREATEST(FLOOR(LOG2(GREATEST(ABS({x}), {low})) - 1E-9), -1022E0)"
    m = f"ABS({x}) * POWER(2E0, -{e})"
    unit = f"CAST({2**52} AS BIGINT)"
    return (
        f"(CAST({e} + 1022E0 AS BIGINT) * {unit} + LEAST("
        f"CAST({m} * {float(2**52)!r}E0 AS BIGINT), "
        f"CAST({m} * {float(2**51)!r}E0 AS BIGINT) + {unit}))"
    )


def _ordered(expr: Call, ts: str, x: str) -> str:
    kind = expr.args[1].type
    time = f"LPAD(CAST({ts} - CAST({MIN_TIME_MS} AS BIGINT) AS STRING), 15, '0')"
    if kind is Int64:
        value = sql.signed_text(f"{x} < 0", x, f"({x} + CAST({INT64_MAX} AS BIGINT)) + 1")
    else:
        value = x if kind.text == "string" else _ordered_value(kind, x)
    return _or_null(x, f"{time} || {value}")


def _hash_bucket(_: Call, x: str, n: str) -> str:
    """Return the first 12 digits of the MD5.

    Flink reads no hexadecimal numbers, so each by itself.
    """
    digits = [
        f"CAST(INSTR('123456789abcdef', SUBSTRING(MD5({x}), {at + 1}, 1)) AS BIGINT) "
        f"* CAST({16 ** (11 - at)} AS BIGINT)"
        for at in range(12)
    ]
    return f"MOD({' + '.join(digits)}, {n})"


def _ordered_value(kind: DataType, x: str) -> str:
    """Return the order-preserving text of a value that is neither an integer nor a text."""
    if kind is Float64:
        bits = _float_bits(x)
        return sql.signed_text(f"{x} < 0E0", bits, f"(CAST({INT64_MAX} AS BIGINT) - {bits}) + 1")
    if isinstance(kind, DecimalType):
        return sql.decimal_text(x, kind, f"CAST(ABS({x}) AS STRING)")
    if kind.text == "bool":
        return f"CASE WHEN {x} THEN '1' ELSE '0' END"
    # years have four digits, so that dates and times sort as their texts
    return f"CAST({x} AS STRING)"


def _or_null(x: str, text: str) -> str:
    # a CASE of several tests is not null where all of them are
    return f"(CASE WHEN {x} IS NOT NULL THEN {text} ELSE CAST(NULL AS STRING) END)"


def _element(expr: Call, x: str, _: str) -> str:
    position = expr.args[1]
    assert isinstance(position, Literal)
    return f"CAST({x}[{position.value}] AS {expr.type.flink})"


def _utc_ms(kind: DataType, x: str) -> str:
    """Return a time as UTC ms: EXTRACT is wrong before 1970."""
    if kind is Int64:
        return x
    if kind is Date:
        return f"CAST(TIMESTAMPDIFF(DAY, DATE '1970-01-01', {x}) AS BIGINT) * {DAY_MS}"
    # days are truncated, not rounded down, so they count from the year 1
    return (
        f"CAST(TIMESTAMPDIFF(DAY, {_YEAR_1}, {x}) AS BIGINT) * {DAY_MS} - {-MIN_TIME_MS} "
        f"+ TIMESTAMPDIFF(SECOND, FLOOR({x} TO DAY), {x}) * 1000 "
        f"+ CAST(SUBSTRING(CAST({x} AS STRING), 21, 3) AS INT)"
    )


def _local_ms(expr: Call, x: str, *_: str) -> str:
    return sql.local_ms(expr, x, _utc_ms(expr.args[0].type, x))


def _truncated(expr: Call, x: str, elapsed: str, *_: str) -> str:
    kind = expr.type
    start = sql.truncated(expr, x, f"{_utc_ms(kind, x)} - {elapsed}")
    if kind is Int64:
        return start
    if kind is Date:
        return f"TIMESTAMPADD(DAY, CAST({start} / {DAY_MS} AS INT), DATE '1970-01-01')"
    seconds = f"({start} + {-MIN_TIME_MS}) / 1000"
    return f"CAST(TIMESTAMPADD(SECOND, {seconds}, {_YEAR_1}) AS TIMESTAMP(3))"


_YEAR_1 = f"TIMESTAMP '{time_text(MIN_TIME_MS)}'"
_LOW, _HIGH = f"CAST({INT64_MIN} AS BIGINT)", f"CAST({INT64_MAX} AS BIGINT)"


def _fits(inside: Callable[[str, str], str], op: str) -> Callable[..., str]:
    """Return a test that is true for NULL.

    By bounds of the other operand where one is a constant.
    """

    def special(expr: Call, a: str, b: str) -> str:
        left, right = expr.args
        constant = right if isinstance(right, Literal) else left
        if not isinstance(constant, Literal):
            return f"COALESCE({inside(a, b)}, TRUE)"
        bounds = _fitting(op, constant.value, first=constant is left)
        if bounds is None:
            return "TRUE"
        other = b if constant is left else a
        low, high = (f"CAST({bound} AS BIGINT)" for bound in bounds)
        return f"COALESCE({other} >= {low} AND {other} <= {high}, TRUE)"

    return special


def _fitting(op: str, constant: int | None, *, first: bool) -> tuple[int, int] | None:
    """Return inclusive bounds of x in ``x op constant`` (or ``constant op x``); None for none."""
    if constant is None or (op == "mul" and constant == 0):
        return None
    if op == "mul":
        size = abs(constant)
        ends = (-(2**63 // size), INT64_MAX // size)
        if constant < 0:
            ends = (-ends[1], -ends[0])
    elif op == "add":
        ends = (INT64_MIN - constant, INT64_MAX - constant)
    elif first:
        ends = (constant - INT64_MAX, constant - INT64_MIN)
    else:
        ends = (INT64_MIN + constant, INT64_MAX + constant)
    low, high = ends
    return max(low, INT64_MIN), min(high, INT64_MAX)


def _fits_mul(a: str, b: str) -> str:
    return (
        f"CASE WHEN {b} > 0 THEN {a} >= {_LOW} / {b} AND {a} <= {_HIGH} / {b} "
        f"WHEN {b} < -1 THEN {a} >= {_HIGH} / {b} AND {a} <= {_LOW} / {b} "
        f"WHEN {b} = -1 THEN {a} > {_LOW} ELSE TRUE END"
    )


def _fits_add(a: str, b: str) -> str:
    return f"CASE WHEN {b} >= 0 THEN {a} <= {_HIGH} - {b} ELSE {a} >= {_LOW} - {b} END"


def _fits_sub(a: str, b: str) -> str:
    return f"CASE WHEN {b} >= 0 THEN {a} >= {_LOW} + {b} ELSE {a} <= {_HIGH} + {b} END"


_INFIX = {"and": "AND", "or": "OR", "add": "+", "sub": "-", "mul": "*"}
_PLAIN = {
    "abs": "ABS", "floor": "FLOOR", "ceil": "CEIL", "least": "LEAST", "greatest": "GREATEST",
    "exp": "EXP", "length": "CHAR_LENGTH", "concat": "CONCAT", "coalesce": "COALESCE", "md5": "MD5",
}  # fmt: skip
_SPECIAL: dict[str, Callable[..., str]] = {
    "not": lambda _, a: f"(NOT {a})",
    "neg": lambda _, a: f"(-{a})",
    "eq": _equality("="), "ne": _equality("<>"),
    "lt": _ordering("<"), "le": _ordering("<="), "gt": _ordering(">"), "ge": _ordering(">="),
    "isnull": lambda _, a: f"({a} IS NULL)",
    "isnotnull": lambda _, a: f"({a} IS NOT NULL)",
    "in": _in, "case": sql.case, "floordiv": _floordiv, "mod": _mod,
    "div": lambda _, a, b: sql.where(f"ABS({b}) > 0E0", f"{a} / {b}"),
    "to_float": lambda _, a: f"CAST({a} AS DOUBLE)",
    "decimal_to_float": lambda _, a: f"CAST({a} AS DOUBLE)",
    "to_decimal": lambda expr, a: f"CAST({a} AS {expr.type.flink})",
    "to_int": _to_int,
    "bool_to_int": lambda _, a: f"CAST({a} AS BIGINT)",
    "int_to_string": lambda _, a: f"CAST({a} AS STRING)",
    "bool_to_string": lambda _, a: f"LOWER(CAST({a} AS STRING))",
    "round": lambda _, x: sql.half_even(x),
    "sqrt": lambda _, x: sql.where(f"{x} >= 0E0", f"SQRT({x})"),
    "ln": lambda _, x: sql.where(f"{x} > 0E0", f"LN({x})"),
    "exp2": lambda _, x: f"POWER(2E0, {x})",
    "power": _power,
    # zero only for finite numbers; an equality, as NOT (a <= b) would be turned into a > b
    "finite": lambda _, x: f"({x} * 0E0 = 0E0)",
    "lower": lambda _, x: f"TRANSLATE({x}, '{alphabet.UPPER}', '{alphabet.LOWER}')",
    "upper": lambda _, x: f"TRANSLATE({x}, '{alphabet.LOWER}', '{alphabet.UPPER}')",
    "bucket": sql.bucket, "hash_bucket": _hash_bucket,
    "scaled_int": _scaled_int, "ordered": _ordered,
    "item": lambda expr, *args: sql.item(expr, args, _ordered_value, _or_null),
    "distinct_item": lambda _, x: (
        f"(CASE WHEN {x} IS NOT NULL THEN UNHEX({sql.sketch_hex(x)}) ELSE CAST(NULL AS BYTES) END)"
    ),
    "element": _element,
    "local_ms": _local_ms, "truncated": _truncated,
    "size": lambda _, x: f"CAST(CARDINALITY({x}) AS BIGINT)",
    "fits_add": _fits(_fits_add, "add"), "fits_sub": _fits(_fits_sub, "sub"),
    "fits_mul": _fits(_fits_mul, "mul"),
    "fits_neg": lambda _, a: f"COALESCE({a} > {_LOW}, TRUE)",
    "fits_floordiv": lambda _, a, b: f"COALESCE({a} > {_LOW} OR {b} <> -1, TRUE)",
}  # fmt: skip
