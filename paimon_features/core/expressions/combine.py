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
from paimon_features.core.expressions.nodes import Expression, Literal
from paimon_features.core.expressions.operators import build, no_null
from paimon_features.core.types.schema import Float64, Int64, String

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
            exactly = "" if self.most == self.least else "at least "
            raise ExpressionError(
                f"{self.name} takes {exactly}{self.least} arguments, got {len(args)}"
            )
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
    )
}
"""The functions by name; a text can call them."""
