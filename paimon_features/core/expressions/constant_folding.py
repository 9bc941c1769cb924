"""Constant folding, for a planner that fails on some constant expressions.

Flink's planner computes constant branches that are never taken (a division by a constant zero
inside CASE raises during planning) and loses nullability where constants decide a CASE
or COALESCE. Folding removes both.
"""

from __future__ import annotations

import math

from paimon_features.core.expressions.evaluate import evaluate
from paimon_features.core.expressions.nodes import Call, Expression, Literal
from paimon_features.core.expressions.overflow import overflow_guard


def fold(expr: Expression) -> Expression:
    """Return the expression with constant calls computed and constant choices made.

    Calls that would overflow are left unchanged.

    >>> from paimon_features.core.expressions.parse import parse
    >>> from paimon_features.core.types.schema import Int64
    >>> fold(parse("n + (2 + 3) * 4", {"n": Int64})).text
    'n + 20'
    """
    if not isinstance(expr, Call):
        return expr
    args = tuple(map(fold, expr.args))
    if expr.op == "case":
        return _case(expr, args)
    if expr.op == "coalesce":
        return _coalesce(expr, args)
    if expr.op in ("and", "or"):
        return _logic(expr, args)
    call = Call(expr.type, expr.op, args)
    return _computed(call) if all(isinstance(arg, Literal) for arg in args) else call


def _computed(call: Call) -> Expression:
    guard = overflow_guard(call)
    if guard is not None and not evaluate(guard, {}, 1).values[0]:
        return call
    column = evaluate(call, {}, 1)
    if not column.mask[0]:
        return Literal(call.type, None)
    (value,) = column.values.tolist()
    if isinstance(value, float) and not math.isfinite(value):
        return call
    return Literal(call.type, value or 0.0 if isinstance(value, float) else value)


def _logic(expr: Call, args: tuple[Expression, ...]) -> Expression:
    """Drop the sides that do not matter; a side that decides replaces the call."""
    decisive = expr.op == "or"
    kept = [arg for arg in args if not (isinstance(arg, Literal) and arg.value is not None)]
    if any(isinstance(arg, Literal) and arg.value is decisive for arg in args):
        return Literal(expr.type, decisive)
    if not kept:
        return Literal(expr.type, not decisive)
    call = Call(expr.type, expr.op, tuple(kept))
    if all(isinstance(arg, Literal) for arg in kept):
        return Literal(expr.type, None)
    return call if len(kept) > 1 else kept[0]


def _case(expr: Call, args: tuple[Expression, ...]) -> Expression:
    kept: list[Expression] = []
    last = args[-1]
    for condition, value in zip(args[:-1:2], args[1::2], strict=True):
        if not isinstance(condition, Literal):
            kept += [condition, value]
        elif condition.value:
            last = value
            break
    return Call(expr.type, "case", (*kept, last)) if kept else last


def _coalesce(expr: Call, args: tuple[Expression, ...]) -> Expression:
    kept: list[Expression] = []
    for arg in args:
        if isinstance(arg, Literal) and arg.value is None:
            continue
        kept.append(arg)
        if isinstance(arg, Literal):
            break
    if not kept:
        return args[0]
    return Call(expr.type, "coalesce", tuple(kept)) if len(kept) > 1 else kept[0]
