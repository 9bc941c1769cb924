"""Rewriting expressions: replacing columns by expressions, and expressions by columns."""

from __future__ import annotations

from collections.abc import Mapping

from paimon_features.core.errors import ExpressionError
from paimon_features.core.expressions.nodes import Call, Expression, Name
from paimon_features.core.expressions.operators import build


def substitute(expr: Expression, replacements: Mapping[str, Expression]) -> Expression:
    """Replace each named column by an expression of the same type; other columns stay.

    Raises
    ------
    ExpressionError
        If a replacement has another type than the column.

    >>> from paimon_features.core.expressions import parse
    >>> from paimon_features.core.types.schema import Float64
    >>> amount = parse("quantity * price", {"quantity": Float64, "price": Float64})
    >>> substitute(parse("amount > 100", {"amount": Float64}), {"amount": amount}).text
    'quantity * price > 100.0'
    """
    if isinstance(expr, Name) and expr.name in replacements:
        new = replacements[expr.name]
        if new.type != expr.type:
            raise ExpressionError(
                f"column {expr.name!r} of type {expr.type.text} cannot be replaced by "
                f"{new.text!r} of type {new.type.text}"
            )
        return new
    if isinstance(expr, Call):
        args = tuple(substitute(arg, replacements) for arg in expr.args)
        return expr if args == expr.args else build(expr.op, args, expr.type)
    return expr


def replace_nodes(expr: Expression, names: Mapping[Expression, str]) -> Expression:
    """Replace each of the given subexpressions by a column of the given name.

    >>> from paimon_features.core.expressions import parse
    >>> from paimon_features.core.types.schema import Int64
    >>> columns = {"n": Int64}
    >>> replace_nodes(parse("abs(n) + 1", columns), {parse("abs(n)", columns): "size"}).text
    'size + 1'
    """
    name = names.get(expr)
    if name is not None:
        return Name(expr.type, name, expr.type)
    if isinstance(expr, Call):
        return Call(expr.type, expr.op, tuple(replace_nodes(arg, names) for arg in expr.args))
    return expr
