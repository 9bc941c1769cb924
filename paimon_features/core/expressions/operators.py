"""The operators and functions of the language: their types and how calls are built.

``build`` is the only way to make a call: it checks the argument types, converts arguments that
may be converted (int64 to float64, decimals to wider ones, literals to match other operands)
and folds what the canonical text could not distinguish. Its errors name no position: the parser
adds it.
"""

from __future__ import annotations

import decimal
from collections.abc import Callable, Sequence
from itertools import pairwise

from paimon_features.core.errors import ExpressionError
from paimon_features.core.expressions import calendar_time
from paimon_features.core.expressions.nodes import Call, Expression, Literal, promoted
from paimon_features.core.types.schema import (
    Bool,
    Bytes,
    DataType,
    Date,
    Decimal,
    DecimalType,
    Float64,
    Int64,
    ListType,
    String,
    Timestamp,
)

NULL = DataType("null", "NULL")
"""Type of a bare NULL until its context decides; never the type of a complete expression."""

MAX_SCALE = 9
"""Greatest number of decimal digits that ``scaled_int`` keeps."""
MAX_DECIMAL_SCALE = 18
"""Maximum scale of a decimal argument of ``scaled_int``."""
MAX_BUCKETS = 2**31
"""Greatest number of buckets of ``hash_bucket``: with a hash of 48 bits all are equally likely."""

MAX_POSITION = 2**31 - 1
"""Greatest position in a list whose length is not declared."""

_MAX_DIGITS = 38  # of a decimal, in Arrow, Flink and DuckDB alike
_INT_DIGITS = 19
_FLOAT_TEXT_DIGITS = 15  # up to here a float literal still is the decimal that was written

Rule = Callable[[Sequence[Expression], DataType | None], Expression]


def build(op: str, args: Sequence[Expression], kind: DataType | None = None) -> Expression:
    """Return the type-checked call of ``op``; ``kind`` is its type where arguments leave it open.

    Raises
    ------
    ExpressionError
        If the arguments do not fit; the message states what was found and what is expected.
    """
    return RULES[op](args, kind)


def is_null(expr: Expression) -> bool:
    """Return whether this is a NULL literal."""
    return isinstance(expr, Literal) and expr.value is None


def no_null(what: str, args: Sequence[Expression]) -> None:
    """Raise ExpressionError if a text compares with NULL, which is never true: it means IS NULL."""
    if not any(map(is_null, args)):
        return
    other = next((arg.text for arg in args if not is_null(arg)), "x")
    raise ExpressionError(
        f"{what} with NULL is always NULL, never true; write {other} IS NULL, or {other} IS NOT "
        "NULL"
    )


def _types(args: Sequence[Expression]) -> str:
    return " and ".join(arg.type.text for arg in args)


def _digits(expr: Expression) -> tuple[int, int] | None:
    """Return the digits before and after the point of an exact number; None for all others."""
    if isinstance(expr, Literal) and expr.value is not None and expr.type.is_numeric:
        value = decimal.Decimal(repr(expr.value) if expr.type.is_float else expr.value)
        _, digits, exponent = value.as_tuple()
        if not isinstance(exponent, int) or (
            expr.type.is_float and len(digits) > _FLOAT_TEXT_DIGITS
        ):
            return None
        return max(len(digits) + exponent, 1), max(-exponent, 0)
    if isinstance(expr.type, DecimalType):
        return expr.type.precision - expr.type.scale, expr.type.scale
    return (_INT_DIGITS, 0) if expr.type is Int64 else None


def _common_decimal(what: str, args: Sequence[Expression]) -> DataType:
    sizes = []
    for arg in args:
        if is_null(arg) and arg.type is NULL:
            continue
        size = _digits(arg)
        if size is None:
            raise ExpressionError(
                f"{what}: {arg.text} of type {arg.type.text} does not mix with decimals; write "
                "CAST(... AS float64) around the decimal, or DECIMAL '...' for an exact literal"
            )
        sizes.append(size)
    integer_digits, scale = max(size[0] for size in sizes), max(size[1] for size in sizes)
    if integer_digits + scale > _MAX_DIGITS:
        raise ExpressionError(
            f"{what}: {_types(args)} together need {integer_digits + scale} digits, but "
            f"at most {_MAX_DIGITS} are supported; write CAST(... AS float64)"
        )
    return Decimal(integer_digits + scale, scale)


def _common(what: str, args: Sequence[Expression]) -> DataType:
    """Return the type that represents all arguments without a change of value or meaning."""
    kinds = {arg.type for arg in args if arg.type is not NULL}
    if kinds == {Bytes} and what in ("CASE", "coalesce"):
        return Bytes
    for kind in kinds:
        if not kind.is_scalar:
            raise ExpressionError(
                f"{what}: {kind.text} columns can only be taken as they are, or with IS NULL"
            )
    if not kinds:
        raise ExpressionError(f"{what}: NULL alone has no type; write CAST(NULL AS int64)")
    if len(kinds) == 1:
        return kinds.pop()
    if kinds == {Int64, Float64}:
        return Float64
    if all(kind.is_numeric for kind in kinds):
        return _common_decimal(what, args)
    raise ExpressionError(f"{what} needs values of one type, got {_types(args)}")


def coerce(expr: Expression, kind: DataType) -> Expression:
    """Return ``expr`` converted to ``kind``, the result of ``_common``."""
    if expr.type == kind:
        return expr
    if isinstance(expr, Literal):
        value = expr.value
        if value is not None and kind is Float64:
            value = float(value)
        elif value is not None and kind.is_decimal:
            value = decimal.Decimal(repr(value) if isinstance(value, float) else value)
        return Literal(kind, value)
    return Call(kind, "to_float" if kind is Float64 else "to_decimal", (expr,))


def _coerced(what: str, args: Sequence[Expression]) -> tuple[DataType, tuple[Expression, ...]]:
    kind = _common(what, args)
    return kind, tuple(coerce(arg, kind) for arg in args)


def _expect(what: str, args: Sequence[Expression], *kinds: DataType) -> tuple[Expression, ...]:
    """Return each argument converted to the type expected at its position."""
    if len(args) != len(kinds):
        raise ExpressionError(f"{what} takes {len(kinds)} arguments, got {len(args)}")
    out = []
    for arg, kind in zip(args, kinds, strict=True):
        if arg.type in (kind, NULL) or (arg.type is Int64 and kind is Float64):
            out.append(coerce(arg, kind))
        else:
            raise ExpressionError(f"{what} needs {kind.text}, got {arg.text} of {arg.type.text}")
    return tuple(out)


def _fixed(op: str, result: DataType, *kinds: DataType) -> Rule:
    """Return a function of arguments of these types."""
    return lambda args, _: Call(result, op, _expect(op, args, *kinds))


def _logic(op: str) -> Rule:
    return lambda args, _: Call(Bool, op, _expect(op.upper(), args, *[Bool] * len(args)))


def _comparison(op: str, sign: str) -> Rule:
    def rule(args: Sequence[Expression], _: DataType | None) -> Expression:
        kind, operands = _coerced(sign, args)
        if kind is Bool and op not in ("eq", "ne"):
            raise ExpressionError(f"{sign}: bool has no order; use =, <>, AND, OR, NOT")
        return Call(Bool, op, operands)

    return rule


def _arithmetic(op: str, sign: str) -> Rule:
    def rule(args: Sequence[Expression], _: DataType | None) -> Expression:
        kind, operands = _coerced(sign, args)
        _no_decimals(sign, operands)
        if not kind.is_numeric:
            raise ExpressionError(f"{sign} needs numbers, got {_types(args)}")
        return Call(kind, op, operands)

    return rule


def _no_decimals(what: str, args: Sequence[Expression]) -> None:
    if any(arg.type.is_decimal for arg in args):
        raise ExpressionError(
            f"{what} is not defined for decimals (they can be compared, stand in CASE and COALESCE "
            "and be given to scaled_int); write CAST(... AS float64)"
        )


def _divide(args: Sequence[Expression], _: DataType | None) -> Expression:
    _no_decimals("/", args)
    operands = _expect("/", args, Float64, Float64)
    _no_zero("/", operands[1])
    return Call(Float64, "div", operands)


def _no_zero(sign: str, divisor: Expression) -> None:
    if isinstance(divisor, Literal) and divisor.value == 0:
        raise ExpressionError(f"{sign} by the constant 0 is always NULL")


def _whole(op: str, sign: str) -> Rule:
    def rule(args: Sequence[Expression], _: DataType | None) -> Expression:
        if any(arg.type not in (Int64, NULL) for arg in args):
            raise ExpressionError(
                f"{sign} needs integers, got {_types(args)}; for floats write floor(a / b)"
            )
        operands = _expect(sign, args, Int64, Int64)
        _no_zero(sign, operands[1])
        return Call(Int64, op, operands)

    return rule


def _negate(args: Sequence[Expression], _: DataType | None) -> Expression:
    _no_decimals("-", args)
    (arg,) = args
    if not arg.type.is_numeric:
        raise ExpressionError(f"- needs a number, got {arg.text} of {arg.type.text}")
    if isinstance(arg, Literal) and arg.value is not None and arg.value != -(2**63):
        return Literal(arg.type, 0.0 if arg.value == 0 and arg.type is Float64 else -arg.value)
    return Call(arg.type, "neg", (arg,))


def _null_test(op: str) -> Rule:
    def rule(args: Sequence[Expression], _: DataType | None) -> Expression:
        if args[0].type is NULL:
            raise ExpressionError("IS NULL of NULL itself is always true")
        return Call(Bool, op, tuple(args))

    return rule


def _in(args: Sequence[Expression], _: DataType | None) -> Expression:
    if args[0].type is NULL:
        raise ExpressionError("IN of NULL itself is always NULL")
    for item in args[1:]:
        if not isinstance(item, Literal) or item.value is None:
            got = f"NULL; write {args[0].text} IS NULL" if is_null(item) else item.text
            raise ExpressionError(f"IN takes constants that are not NULL, got {got}")
    _, operands = _coerced("IN", args)
    return Call(Bool, "in", operands)


def _case(args: Sequence[Expression], _: DataType | None) -> Expression:
    conditions = _expect("CASE WHEN", args[:-1:2], *[Bool] * (len(args) // 2))
    values = [*args[1::2], args[-1]]
    result, values_tuple = _coerced("CASE", values)
    pairs = zip(conditions, values_tuple[:-1], strict=True)
    flat = tuple(part for pair in pairs for part in pair)
    return Call(result, "case", (*flat, values_tuple[-1]))


def _coalesce(args: Sequence[Expression], _: DataType | None) -> Expression:
    if len(args) < 2:
        raise ExpressionError(f"coalesce takes at least 2 arguments, got {len(args)}")
    kind, operands = _coerced("coalesce", args)
    return Call(kind, "coalesce", operands)


def _nullif(args: Sequence[Expression], _: DataType | None) -> Expression:
    if len(args) != 2:
        raise ExpressionError(f"nullif takes 2 arguments, got {len(args)}")
    no_null("nullif", args)
    return build("case", (build("eq", args), Literal(NULL, None), args[0]))


def _extreme(op: str) -> Rule:
    def rule(args: Sequence[Expression], _: DataType | None) -> Expression:
        if len(args) < 2:
            raise ExpressionError(f"{op} takes at least 2 arguments, got {len(args)}")
        _no_decimals(op, args)
        kind, operands = _coerced(op, args)
        if kind not in (Int64, Float64, Date, Timestamp):
            raise ExpressionError(f"{op} needs numbers, dates or timestamps, got {kind.text}")
        return Call(kind, op, operands)

    return rule


def _numeric(op: str, *, keep_int: bool) -> Rule:
    """Return a function of one number that keeps its type.

    Integers are unchanged with ``keep_int``.
    """

    def rule(args: Sequence[Expression], _: DataType | None) -> Expression:
        if len(args) != 1:
            raise ExpressionError(f"{op} takes 1 argument, got {len(args)}")
        _no_decimals(op, args)
        if args[0].type not in (Int64, Float64):
            raise ExpressionError(f"{op} needs a number, got {args[0].text} of {args[0].type.text}")
        if keep_int and args[0].type is Int64:
            return args[0]
        return Call(args[0].type, op, tuple(args))

    return rule


def _concat(args: Sequence[Expression], _: DataType | None) -> Expression:
    if len(args) < 2:
        raise ExpressionError(f"concat takes at least 2 arguments, got {len(args)}")
    return Call(String, "concat", _expect("concat", args, *[String] * len(args)))


def _scaled_int(args: Sequence[Expression], _: DataType | None) -> Expression:
    if len(args) != 2:
        raise ExpressionError(f"scaled_int takes 2 arguments, got {len(args)}")
    value, scale = args
    if not isinstance(scale, Literal) or scale.type is not Int64:
        raise ExpressionError(f"scaled_int needs a literal scale, got {scale.text}")
    if not isinstance(scale.value, int) or not 0 <= scale.value <= MAX_SCALE:
        raise ExpressionError(f"scaled_int needs a scale of 0 to {MAX_SCALE}, got {scale.text}")
    if not value.type.is_numeric:
        raise ExpressionError(f"scaled_int needs a number, got {value.text} of {value.type.text}")
    if isinstance(value.type, DecimalType) and value.type.scale > MAX_DECIMAL_SCALE:
        raise ExpressionError(
            f"scaled_int takes decimals of up to {MAX_DECIMAL_SCALE} digits after the point, "
            f"got {value.type.text}; write CAST(... AS float64)"
        )
    return Call(Int64, "scaled_int", (value, scale))


def _ordered(args: Sequence[Expression], _: DataType | None) -> Expression:
    if len(args) != 2 or args[0].type is not Int64:
        raise ExpressionError(f"ordered takes an int64 time and a value, got {_types(args)}")
    _common("ordered", args[1:])
    return Call(String, "ordered", tuple(args))


def _bucket(args: Sequence[Expression], _: DataType | None) -> Expression:
    if len(args) < 2:
        raise ExpressionError("bucket takes a value and at least one edge")
    for edge in args[1:]:
        if not isinstance(edge, Literal) or edge.value is None:
            raise ExpressionError(f"bucket takes edges that are constants, got {edge.text}")
    _no_decimals("bucket", args)
    kind, operands = _coerced("bucket", args)
    if kind not in (Int64, Float64, Date, Timestamp):
        raise ExpressionError(f"bucket needs numbers, dates or timestamps, got {kind.text}")
    for low, high in pairwise(operands[1:]):
        if not low.value < high.value:  # type: ignore[attr-defined]
            raise ExpressionError(f"bucket needs edges that increase, got {low.text}, {high.text}")
    return Call(Int64, "bucket", operands)


def _hash_bucket(args: Sequence[Expression], _: DataType | None) -> Expression:
    text, buckets = _expect("hash_bucket", args, String, Int64)
    if not isinstance(buckets, Literal) or not 1 <= (buckets.value or 0) <= MAX_BUCKETS:
        raise ExpressionError(
            f"hash_bucket needs a constant number of buckets from 1 to 2^31, got {buckets.text}"
        )
    return Call(Int64, "hash_bucket", (text, buckets))


def _item(args: Sequence[Expression], _: DataType | None) -> Expression:
    for arg in args:
        _common("item", (arg,))
    return Call(String, "item", tuple(args))


def _list_of(what: str, arg: Expression) -> ListType:
    if not isinstance(arg.type, ListType):
        raise ExpressionError(f"{what} needs a list, got {arg.text} of {arg.type.text}")
    return arg.type


def _element(args: Sequence[Expression], _: DataType | None) -> Expression:
    if len(args) != 2:
        raise ExpressionError(f"element takes 2 arguments, a list and a position, got {len(args)}")
    kind, position = _list_of("element", args[0]), args[1]
    if not isinstance(position, Literal) or position.type is not Int64 or position.value is None:
        raise ExpressionError(f"element needs a literal position, got {position.text}")
    last = kind.length or MAX_POSITION
    if not 1 <= position.value <= last:
        raise ExpressionError(
            f"element needs a position from 1 to {last} in {args[0].text} of {kind.text}, "
            f"got {position.text}"
        )
    return Call(promoted(kind.item), "element", tuple(args))


def _size(args: Sequence[Expression], _: DataType | None) -> Expression:
    if len(args) != 1:
        raise ExpressionError(f"size takes 1 argument, got {len(args)}")
    _list_of("size", args[0])
    return Call(Int64, "size", tuple(args))


def _local_ms(args: Sequence[Expression], _: DataType | None) -> Expression:
    if not 1 <= len(args) <= 3:
        raise ExpressionError(f"local_ms takes a time and a time zone, got {len(args)} arguments")
    return calendar_time.local_time("local_ms", args[0], args[1:])


def _truncated(args: Sequence[Expression], _: DataType | None) -> Expression:
    t, elapsed, unit, *zone = args if len(args) > 2 else [*args, *[Literal(NULL, None)] * 3]
    if isinstance(unit, Literal) and unit.value in calendar_time.UNITS:
        call = calendar_time.truncated(unit.value, calendar_time.local_time("truncated", t, zone))
        if call.args[1] == elapsed:
            return call
    raise ExpressionError("truncated is what date_trunc(unit, t, zone) stands for; write that")


def _cast(args: Sequence[Expression], kind: DataType | None) -> Expression:
    """Return CAST as a call of its own for each conversion; no call is named ``cast``."""
    (arg,) = args
    assert kind is not None
    if arg.type is NULL or arg.type == kind:
        return coerce(arg, kind)
    source, target = arg.type, kind.text
    if isinstance(arg, Literal) and arg.value is None and kind in (Int64, Float64, String, Bool):
        return Literal(kind, None)
    if target == "bool" and source in (Int64, Float64):
        return build("ne", (arg, Literal(Int64, 0)))
    if target == "float64" and source is Bool:
        return coerce(build("bool_to_int", args, Int64), Float64)
    if target == "float64" and source is Int64:
        return coerce(arg, Float64)
    by_types = {
        ("float64", "int64"): "to_int", ("bool", "int64"): "bool_to_int",
        ("int64", "string"): "int_to_string", ("bool", "string"): "bool_to_string",
    }  # fmt: skip
    op = "decimal_to_float" if source.is_decimal and target == "float64" else None
    op = op or by_types.get((source.text, target))
    if op is None:
        raise ExpressionError(
            f"CAST of {source.text} to {target} is not defined the same way everywhere; casts are: "
            "int64 to float64, string, bool; float64 to int64 (towards zero), bool; "
            "bool to int64, float64, string; decimals to float64"
        )
    return Call(kind, op, tuple(args))


def _conversion(op: str) -> Rule:
    """Return a conversion made by ``coerce`` or ``cast``, rebuilt after a substitution."""

    def rule(args: Sequence[Expression], kind: DataType | None) -> Expression:
        assert kind is not None
        return coerce(args[0], kind) if op in ("to_float", "to_decimal") else _cast(args, kind)

    return rule


RULES: dict[str, Rule] = {
    "and": _logic("and"), "or": _logic("or"), "not": _logic("not"),
    "eq": _comparison("eq", "="), "ne": _comparison("ne", "<>"),
    "lt": _comparison("lt", "<"), "le": _comparison("le", "<="),
    "gt": _comparison("gt", ">"), "ge": _comparison("ge", ">="),
    "isnull": _null_test("isnull"), "isnotnull": _null_test("isnotnull"), "in": _in,
    "add": _arithmetic("add", "+"), "sub": _arithmetic("sub", "-"),
    "mul": _arithmetic("mul", "*"), "div": _divide, "neg": _negate,
    "floordiv": _whole("floordiv", "//"), "mod": _whole("mod", "%"),
    "case": _case, "cast": _cast,
    **{op: _conversion(op) for op in (
        "to_float", "to_decimal", "decimal_to_float", "to_int", "bool_to_int",
        "int_to_string", "bool_to_string")},
}  # fmt: skip
"""How each operator is type-checked and built, including ``FUNCTIONS``."""

FUNCTIONS: dict[str, Rule] = {
    "abs": _numeric("abs", keep_int=False),
    "floor": _numeric("floor", keep_int=True),
    "ceil": _numeric("ceil", keep_int=True),
    "round": _numeric("round", keep_int=True),
    "least": _extreme("least"), "greatest": _extreme("greatest"),
    "sqrt": _fixed("sqrt", Float64, Float64), "ln": _fixed("ln", Float64, Float64),
    "exp": _fixed("exp", Float64, Float64), "exp2": _fixed("exp2", Float64, Float64),
    "power": _fixed("power", Float64, Float64, Float64),
    "finite": _fixed("finite", Bool, Float64),
    "lower": _fixed("lower", String, String), "upper": _fixed("upper", String, String),
    "length": _fixed("length", Int64, String), "concat": _concat,
    "coalesce": _coalesce, "nullif": _nullif,
    "bucket": _bucket, "hash_bucket": _hash_bucket,
    "scaled_int": _scaled_int, "ordered": _ordered,
    "item": _item, "md5": _fixed("md5", String, String),
    "distinct_item": _fixed("distinct_item", Bytes, String),
    "element": _element, "size": _size,
    "local_ms": _local_ms, "truncated": _truncated,
    "fits_add": _fixed("fits_add", Bool, Int64, Int64),
    "fits_sub": _fixed("fits_sub", Bool, Int64, Int64),
    "fits_mul": _fixed("fits_mul", Bool, Int64, Int64),
    "fits_neg": _fixed("fits_neg", Bool, Int64),
    "fits_floordiv": _fixed("fits_floordiv", Bool, Int64, Int64),
}  # fmt: skip
"""Functions that a text can call by name."""

RULES.update(FUNCTIONS)
