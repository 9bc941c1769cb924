"""DuckDB SQL of an expression (DuckDB 1.3 and newer, for TRY).

What DuckDB would do otherwise, and is printed around: integer overflow and division by zero
raise; a CAST from float rounds; NaN equals itself and is above all; least, greatest and concat
leave NULLs out; ``ln(0)`` is -inf.
"""

from __future__ import annotations

from collections.abc import Callable

from paimon_features.core.expressions import alphabet, sql
from paimon_features.core.expressions.nodes import Call, Expression, Literal, Name, quoted
from paimon_features.core.expressions.overflow import INT64_MAX, INT64_MIN, int_range, overflows
from paimon_features.core.expressions.scaling import BEYOND, LIMIT, ROUNDER
from paimon_features.core.types.schema import DataType, Date, DecimalType, Float64, Int64
from paimon_features.core.windows import DAY_MS, MIN_TIME_MS

_TYPES = {"string": "VARCHAR", "timestamp": "TIMESTAMP_MS", "bytes": "BLOB"}


def to_duckdb(expr: Expression) -> str:
    """Return the expression in DuckDB SQL; column names are in double quotes.

    It raises for no input: where an integer step overflows (see ``overflow_guard``) it is NULL.

    >>> from paimon_features.core.expressions.parse import parse
    >>> from paimon_features.core.types.schema import Int64
    >>> to_duckdb(parse("n < 1", {"n": Int64}))
    '("n" < CAST(1 AS BIGINT))'
    """
    if isinstance(expr, Literal):
        return sql.literal(expr, _type(expr.type))
    if isinstance(expr, Name):
        column = quoted(expr.name, '"')
        return column if expr.declared == expr.type else f"CAST({column} AS {_type(expr.type)})"
    assert isinstance(expr, Call)
    args = [to_duckdb(arg) for arg in expr.args]
    if expr.op in _INFIX:
        text = f"({args[0]} {_INFIX[expr.op]} {args[1]})"
    elif expr.op in _PLAIN:
        text = f"{_PLAIN[expr.op]}({', '.join(args)})"
    else:
        text = _SPECIAL[expr.op](expr, *args)
    return f"TRY({text})" if expr.type is Int64 and overflows(expr) and expr.op in _STEPS else text


def _type(kind: DataType) -> str:
    return _TYPES.get(kind.text, kind.flink)


def _floordiv(expr: Call, a: str, b: str) -> str:
    constant = sql.constant_divisor(expr)
    if constant is not None:
        if constant > 0 and int_range(expr.args[0])[0] >= 0:
            return f"({a} // {b})"
        sign = "<" if constant > 0 else ">"
        return f"({a} // {b} - CASE WHEN {_remainder(constant, a, b)} {sign} 0 THEN 1 ELSE 0 END)"
    lower = f"({a} % {b} < 0 AND {b} > 0) OR ({a} % {b} > 0 AND {b} < 0)"
    return (
        f"(CASE WHEN {b} = -1 THEN -{a} WHEN {b} <> 0 THEN "
        f"{a} // {b} - CASE WHEN {lower} THEN 1 ELSE 0 END END)"
    )


def _remainder(constant: int, a: str, b: str) -> str:
    # the smallest int64 by -1 overflows in DuckDB's remainder
    return f"({a} - {a})" if constant == -1 else f"({a} % {b})"


def _mod(expr: Call, a: str, b: str) -> str:
    constant = sql.constant_divisor(expr)
    if constant is not None:
        if constant > 0 and int_range(expr.args[0])[0] >= 0:
            return f"({a} % {b})"
        sign, rest = "<" if constant > 0 else ">", _remainder(constant, a, b)
        return f"(CASE WHEN {rest} {sign} 0 THEN {rest} + {b} ELSE {rest} END)"
    lower = f"({a} % {b} < 0 AND {b} > 0) OR ({a} % {b} > 0 AND {b} < 0)"
    return (
        f"(CASE WHEN {b} = -1 THEN {a} - {a} WHEN {b} <> 0 THEN "
        f"{a} % {b} + CASE WHEN {lower} THEN {b} ELSE 0 END END)"
    )


def _extreme(expr: Call, *args: str) -> str:
    not_null = " AND ".join(f"{arg} IS NOT NULL" for arg in args)
    return sql.where(not_null, f"{expr.op}({', '.join(args)})")


def _power(_: Call, x: str, y: str) -> str:
    defined = f"{x} > 0E0 OR ({x} < 0E0 AND {y} = floor({y})) OR ({x} = 0E0 AND {y} >= 0E0)"
    return sql.where(defined, f"pow({x}, {y})")


def _scaled_int(expr: Call, x: str, _: str) -> str:
    value, scale = expr.args[0], expr.args[1].value  # type: ignore[attr-defined]
    if value.type is Float64:
        rounded = f"(({x} * {10.0**scale!r}E0 + {ROUNDER}) - {ROUNDER})"
        return (
            f"(CASE WHEN abs({rounded}) < {BEYOND}E0 THEN CAST({rounded} AS BIGINT) "
            f"WHEN {x} > 0E0 THEN {BEYOND} WHEN {x} < 0E0 THEN -{BEYOND} END)"
        )
    bound = LIMIT // 10**scale
    if value.type is Int64:
        exact = f"{x} * {10**scale}"
        low, high = int_range(value)
        if scale == 0 or (-bound <= low and high <= bound):
            return f"({exact})"
    else:
        exact = _scaled_decimal(x, value.type, scale)
    return (
        f"(CASE WHEN {x} > {bound} THEN {BEYOND} WHEN {x} < -{bound} THEN -{BEYOND} "
        f"ELSE TRY({exact}) END)"
    )


def _scaled_decimal(x: str, kind: DataType, scale: int) -> str:
    """Return the half-even rounding of x * 10^scale, for |x| up to LIMIT // 10^scale."""
    assert isinstance(kind, DecimalType)
    # products of decimals of up to 18 digits stay at 18 digits, so one factor has more
    digits = max(len(str(LIMIT)) - scale + kind.scale, 19)
    narrow = f"CAST({x} AS DECIMAL({digits}, {kind.scale}))"
    product = f"({narrow} * CAST({10**scale} AS DECIMAL({scale + 1}, 0)))"
    if scale >= kind.scale:
        return f"CAST({product} AS BIGINT)"
    floor = f"CAST(floor({product}) AS BIGINT)"
    rest = f"({product} - floor({product}))"
    return (
        f"({floor} + CASE WHEN {rest} > 0.5 OR ({rest} = 0.5 AND {floor} % 2 <> 0) "
        "THEN 1 ELSE 0 END)"
    )


def _ordered(expr: Call, ts: str, x: str) -> str:
    kind = expr.args[1].type
    time = f"LPAD(CAST(TRY({ts} - CAST({MIN_TIME_MS} AS BIGINT)) AS VARCHAR), 15, '0')"
    if kind is Int64:
        value = sql.signed_text(f"{x} < 0", x, f"CAST({x} AS HUGEINT) + {2**63}")
    else:
        value = x if kind.text == "string" else _ordered_value(kind, x)
    return _or_null(x, f"{time} || {value}")


def _ordered_value(kind: DataType, x: str) -> str:
    """Return the order-preserving text of a value that is neither an integer nor a text."""
    if kind is Float64:
        bits = f"CAST(CAST(CASE WHEN {x} = 0E0 THEN 0E0 ELSE ABS({x}) END AS BIT) AS BIGINT)"
        return sql.signed_text(f"{x} < 0E0", bits, f"{2**63} - CAST({bits} AS HUGEINT)")
    if isinstance(kind, DecimalType):
        return sql.decimal_text(x, kind, f"CAST(ABS({x}) AS VARCHAR)")
    if kind.text == "bool":
        return f"CASE WHEN {x} THEN '1' ELSE '0' END"
    pattern = "%Y-%m-%d" if kind.text == "date" else "%Y-%m-%d %H:%M:%S.%g"
    return f"strftime(CAST({x} AS TIMESTAMP), '{pattern}')"


def _or_null(x: str, text: str) -> str:
    return sql.where(f"{x} IS NOT NULL", text)


def _element(expr: Call, x: str, _: str) -> str:
    position = expr.args[1]
    assert isinstance(position, Literal)
    return f"CAST({x}[{position.value}] AS {_type(expr.type)})"


def _fits(sign: str) -> Callable[..., str]:
    def special(_: Call, a: str, b: str) -> str:
        exact = f"CAST({a} AS HUGEINT) {sign} CAST({b} AS HUGEINT)"
        # the optimizer may join constants of several steps, and these can leave even HUGEINT
        inside = f"COALESCE(TRY({exact} BETWEEN {INT64_MIN} AND {INT64_MAX}), FALSE)"
        return f"({a} IS NULL OR {b} IS NULL OR {inside})"

    return special


def _utc_ms(kind: DataType, x: str) -> str:
    if kind is Date:
        return f"CAST({x} - DATE '1970-01-01' AS BIGINT) * {DAY_MS}"
    return x if kind is Int64 else f"epoch_ms({x})"


def _local_ms(expr: Call, x: str, *_: str) -> str:
    return sql.local_ms(expr, x, _utc_ms(expr.args[0].type, x))


def _truncated(expr: Call, x: str, elapsed: str, *_: str) -> str:
    kind = expr.type
    start = sql.truncated(expr, x, f"{_utc_ms(kind, x)} - {elapsed}")
    if kind is Int64:
        return start
    time = f"make_timestamp_ms({start})"
    return f"CAST({time} AS {_type(kind)})"


_STEPS = ("add", "sub", "mul", "neg", "abs", "floordiv")
_INFIX = {
    "and": "AND", "or": "OR", "add": "+", "sub": "-", "mul": "*",
    "eq": "=", "ne": "<>", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
}  # fmt: skip
_PLAIN = {
    "abs": "abs", "floor": "floor", "ceil": "ceil", "exp": "exp", "length": "length",
    "coalesce": "coalesce", "finite": "isfinite", "md5": "md5",
}  # fmt: skip
_SPECIAL: dict[str, Callable[..., str]] = {
    "not": lambda _, a: f"(NOT {a})",
    "neg": lambda _, a: f"(-{a})",
    "isnull": lambda _, a: f"({a} IS NULL)",
    "isnotnull": lambda _, a: f"({a} IS NOT NULL)",
    "in": lambda _, x, *items: f"({x} IN ({', '.join(items)}))",
    "case": sql.case, "floordiv": _floordiv, "mod": _mod,
    "div": lambda _, a, b: sql.where(f"{b} <> 0E0", f"{a} / {b}"),
    "to_float": lambda _, a: f"CAST({a} AS DOUBLE)",
    # by its text, as DuckDB's own conversion of long decimals rounds twice
    "decimal_to_float": lambda _, a: f"CAST(CAST({a} AS VARCHAR) AS DOUBLE)",
    "to_decimal": lambda expr, a: f"CAST({a} AS {expr.type.flink})",
    "to_int": lambda _, x: f"TRY_CAST(trunc({x}) AS BIGINT)",
    "bool_to_int": lambda _, a: f"CAST({a} AS BIGINT)",
    "int_to_string": lambda _, a: f"CAST({a} AS VARCHAR)",
    "bool_to_string": lambda _, a: f"(CASE WHEN {a} THEN 'true' WHEN NOT {a} THEN 'false' END)",
    "least": _extreme, "greatest": _extreme,
    "round": lambda _, x: sql.half_even(x),
    "concat": lambda _, *args: f"({' || '.join(args)})",
    "sqrt": lambda _, x: sql.where(f"{x} >= 0E0", f"sqrt({x})"),
    "ln": lambda _, x: sql.where(f"{x} > 0E0", f"ln({x})"),
    "exp2": lambda _, x: f"pow(2E0, {x})",
    "power": _power,
    "lower": lambda _, x: f"translate({x}, '{alphabet.UPPER}', '{alphabet.LOWER}')",
    "upper": lambda _, x: f"translate({x}, '{alphabet.LOWER}', '{alphabet.UPPER}')",
    "bucket": sql.bucket,
    "hash_bucket": lambda _, x, n: f"(CAST('0x' || substr(md5({x}), 1, 12) AS BIGINT) % {n})",
    "scaled_int": _scaled_int, "ordered": _ordered,
    "item": lambda expr, *args: sql.item(expr, args, _ordered_value, _or_null),
    "distinct_item": lambda _, x: sql.where(f"{x} IS NOT NULL", f"unhex({sql.sketch_hex(x)})"),
    "element": _element, "size": lambda _, x: f"len({x})",
    "local_ms": _local_ms, "truncated": _truncated,
    "fits_add": _fits("+"), "fits_sub": _fits("-"), "fits_mul": _fits("*"),
    "fits_neg": lambda _, a: f"COALESCE({a} <> {INT64_MIN}, TRUE)",
    "fits_floordiv": lambda _, a, b: f"COALESCE({a} <> {INT64_MIN} OR {b} <> -1, TRUE)",
}  # fmt: skip
