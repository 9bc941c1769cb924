"""Where an expression can leave int64 or the finite floats, and the test that it does not.

int64 has no value for an overflow: engines wrap, raise or give NULL. So the rows on which an
integer step overflows are found by a guard and excluded before anyone uses the value. The guard
also finds the rows on which a float step becomes infinite or NaN and this can no longer be seen
in the result (``a * b > 0``): the engines order NaN differently. An infinity that stays visible
in a float result is left to ``finite``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import reduce

from paimon_features.core.expressions.nodes import Call, Expression, Literal, Name
from paimon_features.core.expressions.operators import build
from paimon_features.core.types.schema import Bool, Float64, Int64
from paimon_features.core.windows import MAX_TIME_MS, MIN_TIME_MS

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1

Range = tuple[int, int]
_FULL: Range = (INT64_MIN, INT64_MAX)

_TRUE = Literal(Bool, True)
_INT_STEPS = {
    "add": "fits_add", "sub": "fits_sub", "mul": "fits_mul", "neg": "fits_neg",
    "abs": "fits_neg", "floordiv": "fits_floordiv",
}  # fmt: skip
_SHOWS_INFINITY = (
    "add", "sub", "mul", "div", "neg", "abs", "floor", "ceil", "round",
    "case", "coalesce", "isnull", "isnotnull", "finite",
)  # fmt: skip
"""Calls whose float result is infinite or NaN if an argument that they use is."""


def values_of(call: Call) -> tuple[Expression, ...]:
    """Return the arguments of CASE that can be its value."""
    return (*call.args[1:-1:2], call.args[-1])


def int_range(expr: Expression) -> Range:
    """Return inclusive bounds of an integer expression where none of its steps overflows."""
    low, high = _exact_range(expr)
    return _FULL if overflows(expr) else (low, high)


def overflows(expr: Expression) -> bool:
    """Return whether the last step of this integer expression can leave int64."""
    low, high = _exact_range(expr)
    return low < INT64_MIN or high > INT64_MAX


def _exact_range(expr: Expression) -> Range:
    """Return bounds of the exact result of the last step, which may lie outside int64."""
    if isinstance(expr, Literal):
        return (0, 0) if expr.value is None else (expr.value, expr.value)
    if isinstance(expr, Name):
        return (-(2**31), 2**31 - 1) if expr.declared.text == "int32" else _FULL
    assert isinstance(expr, Call)
    op = expr.op
    if op in ("case", "coalesce", "least", "greatest"):
        ranges = [int_range(a) for a in (values_of(expr) if op == "case" else expr.args)]
        lows, highs = zip(*ranges, strict=True)
        if op == "least":
            return min(lows), min(highs)
        return (max(lows) if op == "greatest" else min(lows)), max(highs)
    if op == "local_ms":
        return 0, MAX_TIME_MS - MIN_TIME_MS
    if op == "truncated":
        return MIN_TIME_MS, MAX_TIME_MS
    if op in ("bool_to_int", "length"):
        return 0, (1 if op == "bool_to_int" else 2**31 - 1)
    if op in ("bucket", "hash_bucket"):
        last = expr.args[-1]
        assert isinstance(last, Literal)
        return 0, (len(expr.args) - 1 if op == "bucket" else last.value - 1)
    if op not in (*_INT_STEPS, "mod"):
        return _FULL
    return _step_range(op, [int_range(arg) for arg in expr.args])


def _step_range(op: str, args: list[Range]) -> Range:
    (low, high), (low2, high2) = args[0], args[-1]
    if op == "add":
        return low + low2, high + high2
    if op == "sub":
        return low - high2, high - low2
    if op == "mul":
        products = [a * b for a in (low, high) for b in (low2, high2)]
        return min(products), max(products)
    if op == "neg":
        return -high, -low
    if op == "abs":
        return (0 if low <= 0 <= high else min(abs(low), abs(high))), max(abs(low), abs(high))
    if op == "mod":
        return min(low2 + 1, 0), max(high2 - 1, 0)
    # floor division by any divisor that is not zero; the absolute value never grows
    if low2 <= -1 <= high2:
        return min(low, -high), max(high, -low)
    return min(low, 0, -high - 1 if low2 < 0 else low), max(high, 0, -low if low2 < 0 else high)


def magnitude(expr: Expression) -> float:
    """Return an upper bound of the absolute value of a float expression, inf if unbounded."""
    if isinstance(expr, Literal):
        return abs(float(expr.value or 0.0))
    if isinstance(expr, Name):
        return math.nextafter(math.inf, 0)
    assert isinstance(expr, Call)
    op, args = expr.op, expr.args
    if op == "to_float":
        return float(max(map(abs, int_range(args[0]))))
    if op in ("add", "sub"):
        return magnitude(args[0]) + magnitude(args[1])
    if op == "mul":
        return magnitude(args[0]) * magnitude(args[1])
    if op == "div":
        divisor = args[1].value if isinstance(args[1], Literal) else None
        return math.inf if divisor is None else magnitude(args[0]) / abs(float(divisor))
    if op == "case":
        return max(map(magnitude, values_of(expr)))
    if op in ("coalesce", "neg", "abs"):
        return max(map(magnitude, args))
    if op in ("floor", "ceil", "round"):
        return magnitude(args[0]) + 1.0
    return math.inf if op in ("exp", "exp2", "power") else math.nextafter(math.inf, 0)


def overflow_guard(expr: Expression) -> Expression | None:
    """Return the test that no step of ``expr`` leaves its type; never NULL, None if always true.

    It is true on a row exactly where no relevant integer step leaves int64 and no relevant float
    step hides an infinity or NaN from later steps. Relevant are the branches taken of CASE and
    the arguments of COALESCE up to the first that is not NULL; of AND and OR both sides. Where
    the guard is true, and the value finite if it is a float, all engines agree.

    >>> from paimon_features.core.expressions.parse import parse
    >>> from paimon_features.core.types.schema import Float64, Int32, Int64
    >>> columns = {"small": Int32, "big": Int64, "price": Float64}
    >>> overflow_guard(parse("small * small + 1", columns)) is None
    True
    >>> overflow_guard(parse("big + 1 > 0", columns)).text
    'fits_add(big, 1)'
    >>> overflow_guard(parse("price * price > 2", columns)).text
    'coalesce(finite(price * price), TRUE)'
    """
    return _guard(expr)


def _guard(expr: Expression) -> Expression | None:
    if not isinstance(expr, Call):
        return None
    if expr.op == "case":
        return _case_guard(expr.args)
    if expr.op == "coalesce":
        return _coalesce_guard(expr.args)
    tests = [_guard(arg) for arg in expr.args]
    if expr.type is Int64 and expr.op in _INT_STEPS and overflows(expr):
        tests.append(build(_INT_STEPS[expr.op], expr.args))
    if expr.op not in _SHOWS_INFINITY:
        tests.extend(_finite(arg) for arg in expr.args)
    if expr.op == "div":
        tests.append(_finite(expr.args[1]))
    return _all(tests)


def _finite(expr: Expression) -> Expression | None:
    if expr.type is not Float64 or magnitude(expr) < math.inf:
        return None
    return build("coalesce", (build("finite", (expr,)), _TRUE))


def _all(tests: Iterable[Expression | None]) -> Expression | None:
    unique = list(dict.fromkeys(test for test in tests if test is not None))
    return reduce(lambda a, b: build("and", (a, b)), unique) if unique else None


def _case_guard(args: tuple[Expression, ...]) -> Expression | None:
    if len(args) == 1:
        return _guard(args[0])
    condition, value, *rest = args
    return _all([_guard(condition), _choice(condition, _guard(value), _case_guard(tuple(rest)))])


def _coalesce_guard(args: tuple[Expression, ...]) -> Expression | None:
    first, *rest = args
    later = _coalesce_guard(tuple(rest)) if rest else None
    return _all([_guard(first), _choice(build("isnotnull", (first,)), None, later)])


def _choice(
    condition: Expression, then: Expression | None, otherwise: Expression | None
) -> Expression | None:
    if then is None and otherwise is None:
        return None
    return build("case", (condition, then or _TRUE, otherwise or _TRUE))
