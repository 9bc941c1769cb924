"""Evaluation of expressions with NumPy, over a whole batch at once.

Each step returns a ``Column`` of ``rows`` values, or of one value for all rows. The values of null
slots are undefined, so steps are computed on them too unless their values are objects.
"""

from __future__ import annotations

import decimal
import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from paimon_features.core.columns.column import Column, numpy_type
from paimon_features.core.errors import ExpressionError
from paimon_features.core.expressions import alphabet, calendar_time
from paimon_features.core.expressions.items import digest_of, encode_items, sketch_of
from paimon_features.core.expressions.nodes import Call, Expression, Literal, Name
from paimon_features.core.expressions.ordered import encode_ordered
from paimon_features.core.expressions.overflow import INT64_MAX, INT64_MIN
from paimon_features.core.expressions.scaling import BEYOND, LIMIT
from paimon_features.core.types.array_types import Array, Bools, Ints
from paimon_features.core.types.schema import DataType, Date, Float64, Int64
from paimon_features.core.windows import DAY_MS, MIN_TIME_MS

_EXACT = decimal.Context(prec=80, rounding=decimal.ROUND_HALF_EVEN)


def evaluate(expr: Expression, columns: Mapping[str, Column], rows: int) -> Column:
    """Return the value of ``expr`` on each of ``rows`` rows, as its ``expr.type``.

    ``columns`` contains at least the columns of ``expr.columns``, each of length ``rows``. Integer
    overflow wraps (see ``overflow_guard``); NumPy warnings are silenced. The given columns are
    not changed, but the result may share memory with them.

    Raises
    ------
    ExpressionError
        If a column that the expression needs is missing.
    """
    return _program(expr).run(columns, rows)[0]


class Program:
    """Expressions compiled to steps, once, to be evaluated often.

    Equal subexpressions are one step. Safe to share between threads.

    >>> from paimon_features.core.expressions.parse import parse
    >>> from paimon_features.core.types.schema import Int64
    >>> both = Program([parse(text, {"n": Int64}) for text in ("n + 1", "(n + 1) * 2")])
    >>> [column.values.tolist() for column in both.run({"n": Column(np.array([1, 2]))}, rows=2)]
    [[2, 3], [4, 6]]
    """

    def __init__(self, expressions: Sequence[Expression]) -> None:
        self.expressions = tuple(expressions)
        self.columns = frozenset[str]().union(*(expr.columns for expr in self.expressions))
        self._known: list[Column | None] = []
        self._steps: list[tuple[int, Expression, tuple[int, ...]]] = []
        places: dict[Expression, int] = {}
        self._results = [self._place(expr, places) for expr in self.expressions]

    def _place(self, expr: Expression, places: dict[Expression, int]) -> int:
        """Return the slot of a node's value; its arguments are computed before it."""
        existing_place = places.get(expr)
        if existing_place is not None:
            return existing_place
        args = expr.args if isinstance(expr, Call) else ()
        needs = tuple(self._place(arg, places) for arg in args)
        place = places[expr] = len(self._known)
        self._known.append(_constant(expr) if isinstance(expr, Literal) else None)
        if not isinstance(expr, Literal):
            self._steps.append((place, expr, needs))
        return place

    def run(self, columns: Mapping[str, Column], rows: int) -> list[Column]:
        """Return the value of each expression on each row; see ``evaluate``."""
        missing = self.columns - columns.keys()
        if missing:
            text = next(e.text for e in self.expressions if e.columns & missing)
            raise ExpressionError(
                f"{text!r} needs the columns {', '.join(sorted(missing))}; "
                f"got {', '.join(sorted(columns)) or 'none'}"
            )
        values: list[Any] = [*self._known]
        with np.errstate(all="ignore"):
            for place, expr, needs in self._steps:
                if isinstance(expr, Name):
                    values[place] = _input(expr, columns[expr.name])
                else:
                    assert isinstance(expr, Call)
                    values[place] = _STEPS[expr.op](expr, *[values[need] for need in needs])
        return [_whole(values[place], rows) for place in self._results]


def without_overflow(
    kind: DataType, column: Column, guard: Column | None
) -> tuple[Column, Bools | None]:
    """Return the column with overflowed values as null, and where they were (None: nowhere).

    ``guard`` is the value of the ``overflow_guard`` of the same expression. Engines do not agree on
    an integer beyond int64, or a float that became infinite or NaN: it is null.
    """
    fits = None if guard is None else guard.values
    if kind is Float64:
        finite = np.isfinite(column.values)
        if column.valid is not None:
            finite |= ~column.valid
        fits = finite if fits is None else fits & finite
    if fits is None or fits.all():
        return column, None
    return Column(column.values, column.mask & fits), ~fits


@functools.lru_cache(maxsize=1024)
def _program(expr: Expression) -> Program:
    return Program([expr])


def _input(name: Name, column: Column) -> Column:
    if name.declared == name.type and column.values.dtype == numpy_type(name.type):
        return column
    return Column(column.values.astype(numpy_type(name.type)), column.valid)


def _whole(column: Column, rows: int) -> Column:
    """Return the column with one value for each row."""
    values, valid = column.values, column.valid
    if values.shape != (rows,):
        values = np.broadcast_to(values, (rows,)).copy()
    if valid is not None:
        valid = np.broadcast_to(valid, (rows,)).copy() if valid.shape != (rows,) else valid
        valid = None if valid.all() else valid
    return Column(values, valid)


def _constant(literal: Literal) -> Column:
    values = np.zeros(1, numpy_type(literal.type))
    if literal.value is None:
        return Column(values, np.zeros(1, np.bool_))
    values[0] = literal.value
    return Column(values)


def _both(*columns: Column) -> Bools | None:
    """Return where none of the columns is null; None for everywhere."""
    mask: Bools | None = None
    for column in columns:
        if column.valid is not None:
            mask = column.valid if mask is None else mask & column.valid
    return mask


ColumnFunction = Callable[..., Column]


def _plain(function: Callable[..., Any]) -> ColumnFunction:
    """Return a function of arrays that is defined for all numbers."""
    return lambda _, *args: Column(function(*(arg.values for arg in args)), _both(*args))


def _objects(function: Callable[..., Any], result: Any) -> ColumnFunction:
    """Return a function of arrays of objects, called on the rows where none is null."""

    def step(_: Call, *args: Column) -> Column:
        valid = _both(*args)
        arrays: list[Array] = [*np.broadcast_arrays(*(arg.values for arg in args))]
        if valid is None:
            return Column(np.asarray(function(*arrays)).astype(result, copy=False))
        mask = np.broadcast_to(valid, np.broadcast_shapes(valid.shape, arrays[0].shape))
        values = np.zeros(mask.shape, result)
        if mask.any():
            values[mask] = function(*(np.broadcast_to(a, mask.shape)[mask] for a in arrays))
        return Column(values, mask)

    return step


def _comparison(function: Callable[..., Any]) -> ColumnFunction:
    plain, objects = _plain(function), _objects(function, np.bool_)
    return lambda expr, a, b: (objects if a.values.dtype == object else plain)(expr, a, b)


def _defined(function: Callable[..., Any], domain: Callable[..., Any]) -> ColumnFunction:
    """Return a function that is NULL outside of its domain."""

    def step(_: Call, *args: Column) -> Column:
        arrays = [arg.values for arg in args]
        inside, valid = domain(*arrays), _both(*args)
        return Column(function(*arrays), inside if valid is None else inside & valid)

    return step


def _map_text(function: Callable[[str], Any], result: Any) -> ColumnFunction:
    def mapped(texts: Array) -> Array:
        out = np.empty(len(texts), result)
        out[:] = [function(text) for text in texts]
        return out

    return _objects(mapped, result)


def _and(_: Call, a: Column, b: Column) -> Column:
    if a.valid is None and b.valid is None:
        return Column(a.values & b.values)
    true = a.values & a.mask & b.values & b.mask
    return Column(true, true | (~a.values & a.mask) | (~b.values & b.mask))


def _or(_: Call, a: Column, b: Column) -> Column:
    if a.valid is None and b.valid is None:
        return Column(a.values | b.values)
    true = (a.values & a.mask) | (b.values & b.mask)
    return Column(true, true | (a.mask & b.mask))


def _in(_: Call, x: Column, *items: Column) -> Column:
    is_member = np.zeros(x.values.shape, np.bool_)
    for item in items:
        is_member |= np.equal(x.values, item.values).astype(np.bool_)
    return Column(is_member, x.valid)


def _chosen(is_true: Bools, then: Column, otherwise: Column) -> Column:
    values = np.where(is_true, then.values, otherwise.values)
    if then.valid is None and otherwise.valid is None:
        return Column(values)
    return Column(values, np.where(is_true, then.mask, otherwise.mask))


def _case(_: Call, *args: Column) -> Column:
    result = args[-1]
    for condition, value in zip(args[-3::-2], args[-2::-2], strict=True):
        is_true = (
            condition.values if condition.valid is None else condition.values & condition.valid
        )
        result = _chosen(is_true, value, result)
    return result


def _coalesce(_: Call, *args: Column) -> Column:
    result = args[-1]
    for arg in args[-2::-1]:
        result = arg if arg.valid is None else _chosen(arg.valid, arg, result)
    return result


def _extreme(function: Callable[..., Any]) -> ColumnFunction:
    def step(_: Call, *args: Column) -> Column:
        values = args[0].values
        for arg in args[1:]:
            values = function(values, arg.values)
        return Column(values, _both(*args))

    return step


def _concat(*texts: Array) -> Array:
    out = texts[0]
    for text in texts[1:]:
        out = out + text
    return out


def _inside_int64(x: Array) -> Bools:
    inside: Bools = (x >= float(INT64_MIN)) & (x < -float(INT64_MIN))
    return inside


def _to_int(x: Array) -> Array:
    return np.where(_inside_int64(x), x, 0.0).astype(np.int64)


def _to_decimal(values: Array) -> Array:
    out = np.empty(len(values), object)
    out[:] = [v if isinstance(v, decimal.Decimal) else decimal.Decimal(int(v)) for v in values]
    return out


def _power_domain(x: Array, y: Array) -> Bools:
    inside: Bools = (x > 0) | ((x < 0) & (y == np.floor(y))) | ((x == 0) & (y >= 0))
    return inside


def _scaled_int(expr: Call, x: Column, _: Column) -> Column:
    value, scale = expr.args[0], expr.args[1].value  # type: ignore[attr-defined]
    if value.type is Float64:
        rounded = np.rint(x.values * 10.0**scale)
        rounded[np.isnan(rounded)] = 0.0
        return Column(np.clip(rounded, -float(BEYOND), float(BEYOND)).astype(np.int64), x.valid)
    bound = LIMIT // 10**scale
    if value.type is Int64:
        scaled = np.where(x.values > bound, BEYOND, x.values * 10**scale)
        return Column(np.where(x.values < -bound, -BEYOND, scaled), x.valid)

    def one(number: decimal.Decimal) -> int:
        if number.copy_abs() > bound:
            return BEYOND if number > 0 else -BEYOND
        return int(_EXACT.scaleb(number, scale).to_integral_value(context=_EXACT))

    return _map_text(one, np.int64)(expr, x)  # type: ignore[arg-type]


def _bucket(_: Call, x: Column, *edges: Column) -> Column:
    ends = np.concatenate([edge.values for edge in edges])
    return Column(np.searchsorted(ends, x.values, side="right"), x.valid)


def _hash_bucket(expr: Call, texts: Column, buckets: Column) -> Column:
    number = int(buckets.values[0])

    def one(text: str) -> int:
        digest = hashlib.md5(text.encode(), usedforsecurity=False).digest()
        return int.from_bytes(digest[:6], "big") % number

    return _map_text(one, np.int64)(expr, texts)


def _ordered(expr: Call, ts: Column, x: Column) -> Column:
    kind = expr.args[1].type
    return _objects(lambda t, v: encode_ordered(t, v, kind), object)(expr, ts, x)


def _item(expr: Call, *parts: Column) -> Column:
    shape = np.broadcast_shapes(*(part.values.shape for part in parts))
    wide = [
        Column(np.broadcast_to(part.values, shape), np.broadcast_to(part.mask, shape))
        for part in parts
    ]
    mask = wide[-1].mask
    values = np.full(shape, "", object)
    rows = np.flatnonzero(mask)
    if len(rows):
        kinds = [arg.type for arg in expr.args]
        values[rows] = encode_items([part.take(rows) for part in wide], kinds)
    return Column(values, None if mask.all() else mask)


def _element(expr: Call, lists: Column, position: Column) -> Column:
    at, kind = int(position.values[0]) - 1, numpy_type(expr.type)
    values, valid = np.zeros(len(lists), kind), lists.mask.copy()
    for row in np.flatnonzero(valid):
        items = lists.values[row]
        item = items[at] if at < len(items) else None
        if item is None:
            valid[row] = False
        else:
            values[row] = item
    return Column(values, valid)


def _times(kind: DataType, column: Column) -> Ints:
    """Return times as UTC ms."""
    values: Ints = column.values.astype(np.int64, copy=False)
    return values * DAY_MS if kind is Date else values


def _local_ms(expr: Call, t: Column, *_: Column) -> Column:
    times, zone = _times(expr.args[0].type, t), calendar_time.transitions_of(expr.args[1:])
    first, last = calendar_time.bounds(zone)
    inside = (times >= first) & (times <= last)
    local = times - MIN_TIME_MS
    if any(zone.offsets):
        places = np.searchsorted(np.array(zone.changes, np.int64), times, side="right")
        local += np.array(zone.offsets)[places]
    return Column(local, inside if t.valid is None else inside & t.valid)


def _truncated(expr: Call, t: Column, elapsed: Column, *_: Column) -> Column:
    kind, zone = expr.type, calendar_time.transitions_of(expr.args[3:])
    times, unit = _times(kind, t), expr.args[2].value  # type: ignore[attr-defined]
    starts = times - elapsed.values
    units = calendar_time.changed_units(unit, zone)
    if units:
        begins, ends = np.array(units).T
        places = np.searchsorted(begins, times, side="right") - 1
        starts = np.where((places >= 0) & (times < ends[places]), begins[places], starts)
    inside, valid = times >= calendar_time.first_start(unit, zone), elapsed.valid
    if kind is Date:
        starts = (starts // DAY_MS).astype(np.int32)
    return Column(starts, inside if valid is None else inside & valid)


def _not_null(function: Callable[..., Any]) -> ColumnFunction:
    """Return a test that is true where an argument is null."""

    def step(_: Call, *args: Column) -> Column:
        inside, valid = function(*(arg.values for arg in args)), _both(*args)
        return Column(inside if valid is None else inside | ~valid)

    return step


def _fits_add(a: Array, b: Array) -> Bools:
    total = a + b
    inside: Bools = ((a ^ total) & (b ^ total)) >= 0
    return inside


def _fits_sub(a: Array, b: Array) -> Bools:
    rest = a - b
    inside: Bools = ((a ^ b) & (a ^ rest)) >= 0
    return inside


def _fits_mul(a: Array, b: Array) -> Bools:
    a, b = np.broadcast_arrays(a, b)
    size = np.abs(a.astype(np.float64) * b.astype(np.float64))
    inside: Bools = size < 2.0**62
    for row in np.flatnonzero(~inside & (size < 2.0**64)):  # so near that floats cannot distinguish
        inside[row] = INT64_MIN <= int(a[row]) * int(b[row]) <= INT64_MAX
    return inside


_STEPS: dict[str, ColumnFunction] = {
    "and": _and, "or": _or, "not": _plain(np.logical_not),
    "eq": _comparison(np.equal), "ne": _comparison(np.not_equal),
    "lt": _comparison(np.less), "le": _comparison(np.less_equal),
    "gt": _comparison(np.greater), "ge": _comparison(np.greater_equal),
    "isnull": lambda _, x: Column(~x.mask), "isnotnull": lambda _, x: Column(x.mask),
    "in": _in, "case": _case, "coalesce": _coalesce,
    "add": _plain(np.add), "sub": _plain(np.subtract), "mul": _plain(np.multiply),
    "neg": _plain(np.negative), "abs": _plain(np.abs),
    "div": _defined(np.divide, lambda _, b: b != 0),
    "floordiv": _defined(np.floor_divide, lambda _, b: b != 0),
    "mod": _defined(np.remainder, lambda _, b: b != 0),
    "to_float": _plain(lambda x: x.astype(np.float64)),
    "decimal_to_float": _map_text(float, np.float64),
    "to_decimal": _objects(_to_decimal, object),
    "to_int": _defined(_to_int, _inside_int64),
    "bool_to_int": _plain(lambda x: x.astype(np.int64)),
    "int_to_string": _plain(lambda x: x.astype("U20").astype(object)),
    "bool_to_string": _plain(lambda x: np.where(x, "true", "false").astype(object)),
    "least": _extreme(np.minimum), "greatest": _extreme(np.maximum),
    "floor": _plain(np.floor), "ceil": _plain(np.ceil), "round": _plain(np.rint),
    "sqrt": _defined(np.sqrt, lambda x: x >= 0), "ln": _defined(np.log, lambda x: x > 0),
    "exp": _plain(np.exp), "exp2": _plain(np.exp2),
    "power": _defined(np.power, _power_domain), "finite": _plain(np.isfinite),
    "lower": _map_text(alphabet.lower, object), "upper": _map_text(alphabet.upper, object),
    "length": _map_text(len, np.int64), "concat": _objects(_concat, object),
    "bucket": _bucket, "hash_bucket": _hash_bucket,
    "scaled_int": _scaled_int, "ordered": _ordered, "item": _item,
    "md5": _map_text(digest_of, object), "distinct_item": _map_text(sketch_of, object),
    "element": _element, "size": _map_text(len, np.int64),
    "local_ms": _local_ms, "truncated": _truncated,
    "fits_add": _not_null(_fits_add), "fits_sub": _not_null(_fits_sub),
    "fits_mul": _not_null(_fits_mul), "fits_neg": _not_null(lambda a: a != INT64_MIN),
    "fits_floordiv": _not_null(lambda a, b: (a != INT64_MIN) | (b != -1)),
}  # fmt: skip
