"""Which rows to read: an expression, applied to bounds of files and to rows.

``where`` is written in the project's expression language. Rows are kept if it is true,
not if it is false or NULL.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Mapping
from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa

from paimon_features.core.columns.column import Column
from paimon_features.core.errors import ExpressionError, RequestError
from paimon_features.core.expressions import Expression, evaluate, parse
from paimon_features.core.expressions.nodes import Call, Literal, Name
from paimon_features.core.types.array_types import Bools
from paimon_features.core.types.schema import Bool, Float64
from paimon_features.lake.reading.snapshot_content import Bounds
from trainer_bridge.blocks.expression_columns import data_type_of

Outcomes = frozenset[bool | None]
_ANY: Outcomes = frozenset({True, False, None})
_COMPARISONS = {"eq", "ne", "lt", "le", "gt", "ge"}
_MIRRORED = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le", "eq": "eq", "ne": "ne"}
_WIDENED = {"to_float", "to_decimal"}


class RowFilter:
    """A condition on the rows of a table.

    >>> schema = pa.schema([("n", pa.int64()), ("country", pa.string())])
    >>> keep = RowFilter("n > 3 AND country = 'UK'", schema, table="sales")
    >>> keep.mask(pa.table({"n": [1, 5, 9], "country": ["UK", "UK", None]})).tolist()
    [False, True, False]

    Bounds of a file can rule it out; an unknown bound rules out nothing:

    >>> keep.can_hold({"n": Bounds(0, 3, nulls=0)}), keep.can_hold({"n": Bounds(0, 4, nulls=0)})
    (False, True)

    Raises
    ------
    RequestError
        If the text is not a condition on the table's columns.
    """

    def __init__(self, text: str, schema: pa.Schema, *, table: str) -> None:
        kinds = {field.name: data_type_of(field.type) for field in schema}
        usable = {name: kind for name, kind in kinds.items() if kind is not None}
        try:
            expression = parse(text, usable)
        except ExpressionError as error:
            raise RequestError(f"table {table!r}, where={text!r}: {error}") from error
        if expression.type != Bool:
            raise RequestError(
                f"table {table!r}, where={text!r}: it is {expression.type.text}, "
                "expected a condition (bool)"
            )
        self.expression: Expression = expression
        self.columns = tuple(name for name in schema.names if name in expression.columns)

    @property
    def text(self) -> str:
        """The canonical text, the same for equal conditions."""
        return self.expression.text

    def can_hold(self, bounds: Mapping[str, Bounds]) -> bool:
        """Return True if it can be true for a row within the bounds.

        Other columns can have any value.
        """
        plain = {name: _plain_bounds(limits) for name, limits in bounds.items()}
        return True in _outcomes(self.expression, plain)

    def must_hold(self, bounds: Mapping[str, Bounds]) -> bool:
        """Return True if it is true for every row within the bounds."""
        plain = {name: _plain_bounds(limits) for name, limits in bounds.items()}
        return _outcomes(self.expression, plain) == {True}

    def mask(self, rows: pa.Table) -> Bools:
        """Return True for each row to keep; ``rows`` has at least ``columns``."""
        columns = {name: Column.from_arrow(rows.column(name)) for name in self.columns}
        result = evaluate(self.expression, columns, rows.num_rows)
        values: Bools = result.values.astype(bool)
        return values if result.valid is None else values & result.valid


def _outcomes(expr: Expression, bounds: Mapping[str, Bounds]) -> Outcomes:
    """Return all that a condition can be for some row within the bounds, or more than that."""
    if not expr.columns:
        return frozenset({_constant(expr)})
    if not isinstance(expr, Call):
        return _ANY
    if expr.op in ("and", "or"):
        sides = [_outcomes(arg, bounds) for arg in expr.args]
        decisive = expr.op == "or"
        return frozenset(_join(decisive, left, right) for left, right in product(*sides))
    if expr.op == "not":
        return frozenset(None if x is None else not x for x in _outcomes(expr.args[0], bounds))
    if expr.op in ("isnull", "isnotnull") and isinstance(expr.args[0], Name):
        return _null_outcomes(expr, bounds.get(expr.args[0].name))
    if expr.op in _COMPARISONS:
        left, right = expr.args
        if not right.columns and _named(left) is not None:
            return _compared(expr.op, left, [_constant(right)], bounds)
        if not left.columns and _named(right) is not None:
            return _compared(_MIRRORED[expr.op], right, [_constant(left)], bounds)
    if expr.op == "in" and _named(expr.args[0]) is not None:
        return _compared("in", expr.args[0], [_constant(arg) for arg in expr.args[1:]], bounds)
    return _ANY


def _join(decisive: bool, left: bool | None, right: bool | None) -> bool | None:
    """AND (``decisive`` False) or OR (True) of three-valued conditions."""
    if left is decisive or right is decisive:
        return decisive
    return None if left is None or right is None else not decisive


def _null_outcomes(expr: Call, found: Bounds | None) -> Outcomes:
    is_null = {True, False}
    if found is not None and found.nulls == 0:
        is_null = {False}
    elif found is not None and found.nulls and found.least is None:
        is_null = {True}
    return frozenset(value is (expr.op == "isnull") for value in is_null)


def _compared(
    op: str, side: Expression, constants: list[Any], bounds: Mapping[str, Bounds]
) -> Outcomes:
    name = _named(side)
    assert name is not None
    limits = bounds.get(name.name)
    if limits is None:
        return _ANY
    nulls: set[bool | None] = set() if limits.nulls == 0 else {None}
    if limits.least is None:
        # all null, or nothing is known of the values
        return frozenset({None}) if limits.nulls else _ANY
    if None in constants:  # only of a comparison: IN takes none
        return frozenset({None})
    least, greatest = limits.least, limits.greatest
    if side.type is Float64:
        least, greatest = float(least), float(greatest)
        if math.isnan(least) or math.isnan(greatest):
            return _ANY
        # bounds leave NaN out, and what is compared with NaN is false (or, by <>, true)
        nulls = {*nulls, op == "ne"}
    try:
        return frozenset({*nulls, *_between(op, least, greatest, constants)})
    except TypeError:  # bounds of another kind than the constant
        return _ANY


def _between(op: str, least: Any, greatest: Any, constants: list[Any]) -> set[bool]:
    """Return the possible results for a value in [least, greatest]."""
    if op == "in":
        inside = any(least <= value <= greatest for value in constants)
        return ({True} if inside else set()) | (
            set() if least == greatest and least in constants else {False}
        )
    (value,) = constants
    if op in ("eq", "ne"):
        equal = ({True} if least <= value <= greatest else set()) | (
            set() if least == greatest == value else {False}
        )
        return equal if op == "eq" else {not x for x in equal}
    tests = {
        "lt": lambda x: x < value,
        "le": lambda x: x <= value,
        "gt": lambda x: x > value,
        "ge": lambda x: x >= value,
    }
    return {bool(tests[op](least)), bool(tests[op](greatest))}


def _named(expr: Expression) -> Name | None:
    """Return the column that a side of a comparison is, under a conversion that keeps its order."""
    while isinstance(expr, Call) and expr.op in _WIDENED:
        expr = expr.args[0]
    return expr if isinstance(expr, Name) else None


def _constant(expr: Expression) -> Any:
    if isinstance(expr, Literal):
        return expr.value
    result = evaluate(expr, {}, 1)
    if not result.mask[0]:
        return None
    value = result.values[0]
    return value.item() if isinstance(value, np.generic) else value


_EPOCH = dt.datetime(1970, 1, 1)


def _plain_bounds(found: Bounds) -> Bounds:
    return Bounds(_plain(found.least), _plain(found.greatest), found.nulls)


def _plain(value: Any) -> Any:
    """Return a bound as the expression language stores it: times in ms, dates in days."""
    if isinstance(value, dt.datetime):
        naive = value if value.tzinfo is None else value.astimezone(dt.UTC).replace(tzinfo=None)
        return (naive - _EPOCH) // dt.timedelta(milliseconds=1)
    if isinstance(value, dt.date):
        return (value - _EPOCH.date()).days
    return value
