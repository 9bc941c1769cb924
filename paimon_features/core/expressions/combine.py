"""Functions that combine values, written in those that there are: names for what models use.

``ratio(a, b, zero=0)`` is ``CASE WHEN b = 0 AND a IS NOT NULL THEN 0 ELSE a / b END`` and nothing
else, so that it needs no printer of its own and means the same in every engine. They exist in
texts alone: a tree, and its canonical text, has what they stand for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

from paimon_features.core.errors import ExpressionError
from paimon_features.core.expressions import calendar_time
from paimon_features.core.expressions.nodes import Expression, Literal
from paimon_features.core.expressions.operators import build, no_null
from paimon_features.core.types.schema import Date, Float64, Int64, String
from paimon_features.core.windows import DAY_MS

Options = Mapping[str, Expression]


@dataclass(frozen=True, slots=True)
class Combination:
    """One function: ``build`` makes the tree of its arguments and options."""

    name: str
    rule: Callable[[Sequence[Expression], Options], Expression]
    least: int
    most: int | None
    options: tuple[str, ...] = ()

    def build(self, args: Sequence[Expression], options: Options) -> Expression:
        """Return the tree.

        Raises
        ------
        ExpressionError
            If the arguments or options do not fit.
        """
        if len(args) < self.least or (self.most is not None and len(args) > self.most):
            least = f"at least {self.least}" if self.most is None else str(self.least)
            count = least if self.most in (None, self.least) else f"{least} to {self.most}"
            raise ExpressionError(f"{self.name} takes {count} arguments, got {len(args)}")
        for option, value in options.items():
            if not isinstance(value, Literal):
                raise ExpressionError(f"{self.name}: {option}= takes a constant, got {value.text}")
        return self.rule(args, options)


def _folded(op: str) -> Callable[[Sequence[Expression], Options], Expression]:
    return lambda args, _: reduce(lambda left, right: build(op, (left, right)), args)


def _plain(op: str) -> Callable[[Sequence[Expression], Options], Expression]:
    return lambda args, _: build(op, args)


def _equal(args: Sequence[Expression], _: Options) -> Expression:
    no_null("equal", args)
    return build("eq", args)


def _abs_difference(args: Sequence[Expression], _: Options) -> Expression:
    return build("abs", (build("sub", args),))


def _ratio(args: Sequence[Expression], options: Options) -> Expression:
    above, below = args
    quotient = build("div", args)
    zero = options.get("zero")
    if zero is None:
        return quotient
    if zero.type not in (Int64, Float64):
        raise ExpressionError(f"ratio: zero= takes a number, got {zero.text}")
    test = build("eq", (below, Literal(Int64, 0)))
    if not isinstance(above, Literal) or above.value is None:
        test = build("and", (test, build("isnotnull", (above,))))
    return build("case", (test, zero, quotient))


def _log_ratio(args: Sequence[Expression], options: Options) -> Expression:
    add = options.get("add")
    sums = args if add is None else [build("add", (arg, add)) for arg in args]
    above, below = (build("ln", (arg,)) for arg in sums)
    return build("sub", (above, below))


def _hash_cross(args: Sequence[Expression], options: Options) -> Expression:
    """Return each value as ``<characters>:<text>``, so that no two lists of values have one
    text."""
    if "buckets" not in options:
        raise ExpressionError("hash_cross needs buckets=, for example buckets=1000")
    parts: list[Expression] = []
    for arg in args:
        if arg.type.text not in ("string", "int64", "bool"):
            raise ExpressionError(
                f"hash_cross takes strings, integers and bools, got {arg.text} of "
                f"{arg.type.text}; for numbers with fractions write bucket({arg.text}, edges...)"
            )
        text = build("cast", (arg,), String)
        length = build("cast", (build("length", (text,)),), String)
        parts += [length, Literal(String, ":"), text]
    return build("hash_bucket", (build("concat", parts), options["buckets"]))


def _field(name: str) -> Callable[[Sequence[Expression], Options], Expression]:
    def rule(args: Sequence[Expression], _: Options) -> Expression:
        local = calendar_time.local_time(name, args[0], args[1:])
        calendar_time.check_field(name, args[0].type)
        return calendar_time.FIELDS[name](local)

    return rule


def _is_weekend(args: Sequence[Expression], _: Options) -> Expression:
    local = calendar_time.local_time("is_weekend", args[0], args[1:])
    return build("ge", (calendar_time.FIELDS["day_of_week"](local), Literal(Int64, 6)))


def _date_trunc(args: Sequence[Expression], _: Options) -> Expression:
    unit, t, *zone = args
    if not isinstance(unit, Literal) or unit.value not in calendar_time.UNITS:
        raise ExpressionError(
            f"date_trunc(unit, t, zone) needs a unit that is one of "
            f"{', '.join(map(repr, calendar_time.UNITS))}, got {unit.text}"
        )
    local = calendar_time.local_time("date_trunc", t, zone)
    if t.type is Date and unit.value in ("second", "minute", "hour", "day"):
        return t
    return calendar_time.truncated(unit.value, local)


def _age_days(args: Sequence[Expression], _: Options) -> Expression:
    first, second = (calendar_time.local_time("age_days", arg, ()) for arg in args)
    return build("floordiv", (build("sub", (second, first)), Literal(Int64, DAY_MS)))


COMBINATIONS: Mapping[str, Combination] = {
    combination.name: combination
    for combination in (
        Combination("sum", _folded("add"), 2, None),
        Combination("product", _folded("mul"), 2, None),
        Combination("difference", _plain("sub"), 2, 2),
        Combination("abs_difference", _abs_difference, 2, 2),
        Combination("ratio", _ratio, 2, 2, ("zero",)),
        Combination("log_ratio", _log_ratio, 2, 2, ("add",)),
        Combination("min", _plain("least"), 2, None),
        Combination("max", _plain("greatest"), 2, None),
        Combination("equal", _equal, 2, 2),
        Combination("hash_cross", _hash_cross, 1, None, ("buckets",)),
        *(Combination(name, _field(name), 1, 2) for name in calendar_time.FIELDS),
        Combination("is_weekend", _is_weekend, 1, 2),
        Combination("date_trunc", _date_trunc, 2, 3),
        Combination("age_days", _age_days, 2, 2),
    )
}
"""The functions by name; a text can call them."""
