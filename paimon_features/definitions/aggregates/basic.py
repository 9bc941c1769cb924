"""Count, Sum, Mean, Min, Max."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal as PyDecimal
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from paimon_features.core.columns.column import Column
from paimon_features.core.errors import DefinitionError
from paimon_features.core.expressions import decode_items
from paimon_features.core.types.array_types import Array, Floats, Ints
from paimon_features.core.types.schema import (
    Bool,
    DataType,
    Decimal,
    DecimalType,
    Float32,
    Float64,
    Int32,
    Int64,
    String,
)
from paimon_features.definitions.aggregates.base import (
    FLOAT_BOUND,
    INTEGER_BOUND,
    ROWS,
    Aggregate,
    Finished,
    Guard,
    Merge,
    Partial,
    Reading,
    Scope,
)

EXACT_SCALED = 2**51
"""Largest scaled unit up to which rounding a float to an integer is exact in every engine."""
UNIT_DIGITS = 15
"""Greatest number of decimal digits that ``EXACT_SCALED`` has room for."""
EXACT_FLOAT = 2**53
"""Integers up to here convert to floats exactly, so a division rounds once."""
MAX_SCALE = 9
FLOAT_SUMS = "within n * eps * sum(|v|)"
"""How far float sums may differ: each engine adds in its own order."""


@dataclass(frozen=True)
class Count(Aggregate):
    """Number of events, or of events in which a column is not null.

    An empty window of a known entity counts 0.

    >>> import paimon_features as pf
    >>> events = [{"amount": 2.0}, {"amount": None}, {"amount": 5.0}]
    >>> pf.evaluate(pf.Count(), events), pf.evaluate(pf.Count("amount"), events)
    (3, 2)
    >>> pf.Count(windows=["7d"]).feature_name(7 * 86_400_000)
    'count_7d'
    """

    kind: ClassVar[str] = "count"

    def partials(self, scope: Scope) -> tuple[Partial, ...]:
        if self.column is not None:
            self._input_type(scope)
            return (self._count_partial(),)
        if self.where is None:
            return (ROWS,)
        return (self._partial("rows", Int64, Merge.SUM, "1"),)

    def output_type(self, scope: Scope) -> DataType:
        return Int64

    def finish(self, scope: Scope, merged: Sequence[Column], reading: Reading) -> Finished:
        return Finished(Column(or_zero(merged[0])))


@dataclass(frozen=True)
class Numeric(Aggregate):
    """An aggregate of numbers, exact for integers and decimals.

    ``scale`` is the number of decimal places to keep of a float or decimal column: each value
    enters as the half-even rounding of ``value * 10^scale`` to an integer (for a float: of the IEEE
    product), and integers add exactly. A decimal column keeps its own scale by default.
    """

    scale: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.scale is not None and not 0 <= self.scale <= MAX_SCALE:
            raise DefinitionError(
                f"{self.kind}({self.column!r}): scale={self.scale!r}; expected 0 to {MAX_SCALE}"
            )

    def _number_type(self, scope: Scope) -> DataType:
        """Return the type of one number."""
        return self._numeric_type(scope)

    def scale_of(self, scope: Scope) -> int | None:
        """Return the decimal places kept by the integer partial; None for a float partial."""
        kind = self._number_type(scope)
        if self.scale is not None:
            return self.scale
        if isinstance(kind, DecimalType):
            if kind.scale > MAX_SCALE:
                raise DefinitionError(
                    f"{self.kind}({self.column!r}): the column is {kind!r}; "
                    f"give scale= (0 to {MAX_SCALE})"
                )
            return kind.scale
        return 0 if kind.is_integer else None

    def accuracy(self, scope: Scope) -> str:
        return "exact" if self.scale_of(scope) is not None else FLOAT_SUMS

    def _value_partial(
        self, scope: Scope, merge: Merge, stem: str, number: str | None = None
    ) -> Partial:
        """Return the partial that contains the value itself: a scaled integer, or a float.

        ``number`` is the expression of the value; the column by default.
        """
        kind = self._number_type(scope)
        scale = self.scale_of(scope)
        name = f"{stem}_{self.column}" if number is None else stem
        number = self.column if number is None else number
        if scale is None:
            # only sums can overflow: a minimum or a maximum can keep every number
            bound = FLOAT_BOUND if self.bound is None else self.bound
            finite: tuple[Guard, ...] = (bound_guard(f"CAST({number} AS float64)", bound),)
            if merge is not Merge.SUM and self.bound is None:
                finite = self._finite_guards(scope, self.column)
            return self._partial(name, Float64, merge, f"CAST({number} AS float64)", guards=finite)
        if kind.is_integer and scale == 0:
            bound = INTEGER_BOUND if self.bound is None else self.bound
            unbounded = merge is not Merge.SUM and self.bound is None
            guards = () if unbounded else (bound_guard(f"{number}", bound, floating=False),)
            return self._partial(
                name,
                Int64,
                merge,
                f"CAST({number} AS int64)",
                guards=guards,
                largest=math.floor(bound) if merge is Merge.SUM else None,
            )
        summed = merge is Merge.SUM
        limit = (INTEGER_BOUND if summed else EXACT_SCALED) / 10**scale
        limit = min(limit if self.bound is None else self.bound, EXACT_SCALED / 10**scale)
        unbounded = self.bound is None and not summed and fits_units(kind, scale)
        guard = bound_guard(f"CAST({number} AS float64)", limit)
        return self._partial(
            f"{name}_s{scale}",
            Int64,
            merge,
            f"scaled_int({number}, {scale})",
            guards=() if unbounded else (guard,),
            largest=round(limit * 10**scale) if summed else None,
        )

    def units_bound(self, scale: int) -> int:
        """Return the greatest absolute value, in units of ``10^-scale``, that may enter a sum."""
        return INTEGER_BOUND if self.bound is None else math.floor(self.bound * 10**scale)


@dataclass(frozen=True)
class Sum(Numeric):
    """Sum of a column; 0 for an empty window.

    Integers and decimals (and floats with ``scale``) add exactly; the finished value is then
    the float nearest to the exact sum, an Int64 for integers, or with ``as_decimal=True`` the
    decimal itself. Floats without ``scale`` agree within ``n * eps * sum(|v|)`` between paths.

    >>> import paimon_features as pf
    >>> events = [{"amount": 0.1}, {"amount": None}, {"amount": 0.2}]
    >>> pf.evaluate(pf.Sum("amount"), events), pf.evaluate(pf.Sum("amount", scale=2), events)
    (0.30000000000000004, 0.3)
    >>> pf.evaluate(pf.Sum("amount"), [], schema={"amount": pf.Float64})
    0.0
    """

    kind: ClassVar[str] = "sum"
    as_decimal: bool = field(default=False, kw_only=True)

    def partials(self, scope: Scope) -> tuple[Partial, ...]:
        if self.as_decimal and self.scale_of(scope) is None:
            raise DefinitionError(
                f"sum({self.column!r}): as_decimal=True on a float column; give scale="
            )
        return (self._value_partial(scope, Merge.SUM, "sum"),)

    def output_type(self, scope: Scope) -> DataType:
        scale = self.scale_of(scope)
        if self.as_decimal and scale is not None:
            return Decimal(38, scale)
        return Int64 if self._numeric_type(scope).is_integer and scale == 0 else Float64

    def finish(self, scope: Scope, merged: Sequence[Column], reading: Reading) -> Finished:
        total = or_zero(merged[0])
        scale = self.scale_of(scope)
        if scale is None or self.output_type(scope) is Int64:
            return Finished(Column(total))
        return Finished(
            Column(decimals(total, scale) if self.as_decimal else ratio(total, 10**scale))
        )


@dataclass(frozen=True)
class Mean(Numeric):
    """Arithmetic mean of a column; null without values.

    >>> import paimon_features as pf
    >>> events = [{"amount": 2.0}, {"amount": None}, {"amount": 5.0}]
    >>> pf.evaluate(pf.Mean("amount"), events)
    3.5
    >>> pf.evaluate(pf.Mean("amount", where="amount > 9"), events) is None
    True
    """

    kind: ClassVar[str] = "mean"

    def partials(self, scope: Scope) -> tuple[Partial, ...]:
        return (self._value_partial(scope, Merge.SUM, "sum"), self._count_partial())

    def output_type(self, scope: Scope) -> DataType:
        return Float64

    def finish(self, scope: Scope, merged: Sequence[Column], reading: Reading) -> Finished:
        total, count = or_zero(merged[0]), or_zero(merged[1])
        seen = count > 0
        scale = self.scale_of(scope)
        divisor = np.where(seen, count, 1) * (1 if scale is None else 10**scale)
        return Finished(Column(ratio(total, divisor), seen))


@dataclass(frozen=True)
class _Extreme(Numeric):
    """Shared by Min and Max: of any column whose values have an order.

    Numbers that fit are kept as numbers and booleans as 0 and 1; everything else as the texts of
    ``expressions.items``, whose order is that of the values.
    """

    merge: ClassVar[Merge]

    def accuracy(self, scope: Scope) -> str:
        return "exact"

    def partials(self, scope: Scope) -> tuple[Partial, ...]:
        kind = self._ordered_type(scope)
        if self._is_number(kind):
            return (self._value_partial(scope, self.merge, self.kind),)
        name, column = f"{self.kind}_{self.column}", str(self.column)
        if kind is Bool:
            return (self._partial(name, Int64, self.merge, f"CAST({column} AS int64)"),)
        guards: tuple[Guard, ...] = ()
        if self.bound is not None:
            guards = (bound_guard(f"CAST({column} AS float64)", self.bound),)
        return (self._partial(name, String, self.merge, f"item({column})", guards=guards),)

    def output_type(self, scope: Scope) -> DataType:
        kind = self._ordered_type(scope)
        if self.scale is None:
            return widened(kind)
        if kind.is_decimal:
            return Decimal(38, self.scale)
        return Int64 if kind.is_integer and self.scale == 0 else Float64

    def finish(self, scope: Scope, merged: Sequence[Column], reading: Reading) -> Finished:
        (column,) = merged
        kind = self.output_type(scope)
        if not self.is_numeric_in(scope):
            return Finished(self._decoded(column, kind))
        if kind is Int64:
            return Finished(column)
        scale = self.scale_of(scope)
        if scale is None:
            return Finished(Column(positive_zero(column.values), column.valid))
        units = np.where(column.mask, column.values, 0)
        values = decimals(units, scale) if kind.is_decimal else ratio(units, 10**scale)
        return Finished(Column(values, column.valid))

    def _decoded(self, column: Column, kind: DataType) -> Column:
        """Return the values of booleans and of texts."""
        if kind is Bool:
            return Column(column.values != 0, column.valid)
        out, present = Column.nulls(len(column), kind), column.mask
        out.values[present] = decode_items(column.values[present].tolist(), kind)
        return Column(out.values, present)

    def is_numeric_in(self, scope: Scope) -> bool:
        """Return whether the partial is a number: an integer, a float, or units of a decimal."""
        return self._is_number(self._ordered_type(scope))

    def _is_number(self, kind: DataType) -> bool:
        """Return True if the partial is a number: an integer, a float, or units of a decimal."""
        if not isinstance(kind, DecimalType):
            return kind.is_numeric
        return self.scale is not None or fits_units(kind, kind.scale)

    def _ordered_type(self, scope: Scope) -> DataType:
        """Return the type of the column; ``scale`` and ``bound`` are for numbers."""
        kind = self._scalar_type(scope)
        for name in ("scale", "bound"):
            if getattr(self, name) is not None and not kind.is_numeric:
                raise DefinitionError(
                    f"{self.kind}({self.column!r}): {name}={getattr(self, name)!r} is for numbers; "
                    f"the column is {kind!r}"
                )
        return kind


@dataclass(frozen=True)
class Min(_Extreme):
    """Smallest value of a column; null without values.

    The column is of any type with an order, and so is the value: texts are compared by code point,
    false is less than true, and a decimal stays a decimal. ``scale`` rounds floats and decimals.

    >>> import paimon_features as pf
    >>> pf.evaluate(pf.Min("amount"), [{"amount": 2.0}, {"amount": None}, {"amount": 5.0}])
    2.0
    >>> pf.evaluate(pf.Min("country"), [{"country": "NO"}, {"country": None}, {"country": "FR"}])
    'FR'
    """

    kind: ClassVar[str] = "min"
    merge: ClassVar[Merge] = Merge.MIN


@dataclass(frozen=True)
class Max(_Extreme):
    """Greatest value of a column, of the types of ``Min``; null without values.

    >>> import paimon_features as pf
    >>> pf.evaluate(pf.Max("amount"), [{"amount": 2.0}, {"amount": None}, {"amount": 5.0}])
    5.0
    >>> from decimal import Decimal
    >>> pf.evaluate(pf.Max("price"), [{"price": Decimal("9.90")}, {"price": Decimal("10.00")}])
    Decimal('10.00')
    """

    kind: ClassVar[str] = "max"
    merge: ClassVar[Merge] = Merge.MAX


def fits_units(kind: DataType, scale: int) -> bool:
    """Return True if every value of this type is at most 2^51 decimal units of ``10^-scale``."""
    if not isinstance(kind, DecimalType):
        return False
    return scale <= MAX_SCALE and kind.precision - kind.scale + scale <= UNIT_DIGITS


def bound_guard(expression: str, bound: float, *, floating: bool = True) -> Guard:
    """Return the guard ``|expression| <= bound``: true for null, false for NaN and infinities.

    NaN is tested explicitly, because engines rewrite the negation of a comparison.

    >>> bound_guard("units", 100, floating=False).expression
    '(units IS NULL OR (units >= -100 AND units <= 100))'
    >>> bound_guard("price", 0.5).expression
    '(price IS NULL OR (finite(price) AND price >= -0.5 AND price <= 0.5))'
    """
    limit = repr(int(bound)) if float(bound).is_integer() and bound < EXACT_FLOAT else repr(bound)
    inside = f"{expression} >= -{limit} AND {expression} <= {limit}"
    if floating:
        inside = f"finite({expression}) AND {inside}"
    shown = expression.removeprefix("CAST(").removesuffix(" AS float64)")
    return Guard(f"({expression} IS NULL OR ({inside}))", f"|{shown}| > {limit}")


def or_zero(column: Column) -> Array:
    """Return the values with 0 for null: the sum of no values."""
    values = positive_zero(column.values)
    return values if column.valid is None else np.where(column.valid, values, values.dtype.type(0))


def positive_zero(values: Array) -> Array:
    """Return the values with -0.0 as 0.0: engines differ in which of the two they keep."""
    return values + 0.0 if values.dtype.kind == "f" else values


def ratio(numerator: Array, denominator: Ints | int) -> Floats:
    """Return ``numerator / denominator``, rounded once to the nearest float.

    Integers beyond 2^53 would also be rounded before the division; those few are divided as
    Python integers, whose true division is correctly rounded.
    """
    quotient: Floats = numerator / denominator
    if numerator.dtype.kind in "iu":
        large = (np.abs(numerator) > EXACT_FLOAT) | (np.abs(denominator) > EXACT_FLOAT)
        if large.any():
            below = np.broadcast_to(np.asarray(denominator), numerator.shape)
            for i in np.flatnonzero(large):
                quotient[i] = int(numerator[i]) / int(below[i])
    return quotient


def decimals(units: Array, scale: int) -> npt.NDArray[np.object_]:
    """Return the decimals of integers that count units of ``10^-scale``."""
    out = np.empty(len(units), np.object_)
    out[:] = [PyDecimal(int(unit)).scaleb(-scale) for unit in units]
    return out


def rate(total: Array, numerator: int, denominator: int) -> Floats:
    """Return ``total * numerator / denominator``; for integers rounded once."""
    common = math.gcd(numerator, denominator)
    numerator, denominator = numerator // common, denominator // common
    if not np.issubdtype(total.dtype, np.integer):
        floats: Floats = total * (numerator / denominator)
        return floats
    small = np.abs(total.astype(np.float64)) * numerator < EXACT_FLOAT
    out = np.where(small, total, 0) * numerator / denominator
    for i in np.flatnonzero(~small):
        out[i] = int(total[i]) * numerator / denominator
    return out


def objects(values: Iterable[Any], count: int) -> npt.NDArray[np.object_]:
    """Return an object array; NumPy alone would make a matrix of lists of one length."""
    return np.fromiter(values, np.object_, count)


def widened(kind: DataType) -> DataType:
    """Return the 64-bit type in which values of this type are returned."""
    return {Int32: Int64, Float32: Float64}.get(kind, kind)
