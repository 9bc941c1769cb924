"""Variance and StdDev: exact for integers, as accurate as the sums allow for floats.

With ``scale`` (or on integers and decimals) the sum of squares is kept exactly: a value
``v = a * 2^16 + b`` with ``0 <= b < 2^16`` has ``v^2 = a^2 * 2^32 + a*b * 2^17 + b^2``, three
integers whose sums fit a BIGINT. Floats are shifted by ``center`` and the textbook formula
``(S2 - S1^2 / n) / (n - ddof)`` is used; where its cancellation would leave fewer than about
six correct digits, the value is null and flagged, never clamped. See Chan, Golub and LeVeque,
"Algorithms for computing the sample variance" (1983), for the condition number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from paimon_features.core.columns.column import Column
from paimon_features.core.errors import DefinitionError
from paimon_features.core.types.array_types import Bools, Floats, Ints
from paimon_features.core.types.schema import DataType, Float64, Int64
from paimon_features.definitions.aggregates.base import (
    Finished,
    Guard,
    Merge,
    Partial,
    Reading,
    Scope,
)
from paimon_features.definitions.aggregates.basic import EXACT_FLOAT, Numeric, bound_guard, or_zero
from paimon_features.definitions.aggregates.rounding import root_of_fraction, roots_of_fractions

MAX_CONDITION = 2.0**34
"""Largest ``S2 / (S2 - S1^2/n)`` at which a float variance is still returned (6 digits left)."""
SQUARE_BOUND = 1e145
"""Default bound of ``|value - center|``: its square, summed, stays finite."""
LIMB = 2**16
SQUARE_UNITS = 2**47
"""Greatest number of units of an exact variance's value: its square's upper limb fits a BIGINT."""
FLOATS_LEAVE_ROUNDING = (
    "its condition number does not account for the rounding errors that retracted floats leave; "
    "give scale=, so that the sums are exact"
)


class Centered(Numeric):
    """Shared by the aggregates of moments, whose float sums are of the distances from ``center``.

    The field itself is each subclass's own: its place among the others is part of the digests of
    definitions.
    """

    center: float

    def __post_init__(self) -> None:
        super().__post_init__()
        if not np.isfinite(self.center):
            raise DefinitionError(
                f"{self.kind}({self.column!r}): center={self.center!r} is not finite"
            )

    def _shifted(self) -> tuple[str, str]:
        """Return the distance from the center as an expression, and its name."""
        value, name = f"CAST({self.column} AS float64)", f"{self.column}"
        if self.center == 0:
            return value, name
        number = repr(float(self.center))
        safe = number.replace("-", "m").replace(".", "p").replace("+", "")
        return f"({value} - ({number}))", f"{name}_c{safe}"

    def _check_no_center(self, scale: int) -> None:
        if self.center != 0:
            raise DefinitionError(
                f"{self.kind}({self.column!r}): center= is for floats; "
                f"this column is summed exactly (scale {scale}) and needs none"
            )

    def why_not_retractable(self, scope: Scope) -> str | None:
        return None if self.scale_of(scope) is not None else FLOATS_LEAVE_ROUNDING

    def output_type(self, scope: Scope) -> DataType:
        return Float64

    def accuracy(self, scope: Scope) -> str:
        exact = "the float nearest to the exact value"
        return "six digits, or ILL_CONDITIONED" if self.scale_of(scope) is None else exact


@dataclass(frozen=True)
class Variance(Centered):
    """Variance with ``ddof`` (0: of the population); null for ``n <= ddof`` values.

    ``center`` is a number near the mean of a float column; the nearer, the better the
    condition. It is part of the tiles: another center is another generation. For integers and
    with ``scale``, values of more than 2^47 units go to the side table, whatever ``bound`` is.

    >>> import paimon_features as pf
    >>> events = [{"amount": 2.0}, {"amount": None}, {"amount": 5.0}]
    >>> pf.evaluate(pf.Variance("amount"), events)
    2.25
    >>> pf.evaluate(pf.Variance("amount", ddof=1), events)
    4.5
    >>> pf.evaluate(pf.Variance("amount", ddof=1), events[:1]) is None
    True
    """

    kind: ClassVar[str] = "variance"
    max_condition: ClassVar[float] = MAX_CONDITION
    ddof: int = field(default=0, kw_only=True)
    center: float = field(default=0.0, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ddof not in (0, 1):
            raise DefinitionError(
                f"{self.kind}({self.column!r}): ddof={self.ddof!r}; expected 0, 1"
            )

    def partials(self, scope: Scope) -> tuple[Partial, ...]:
        scale = self.scale_of(scope)
        if scale is None:
            shifted, name = self._shifted()
            guards = (bound_guard(shifted, SQUARE_BOUND if self.bound is None else self.bound),)
            return (
                self._partial(f"shifted_{name}", Float64, Merge.SUM, shifted, guards=guards),
                self._partial(f"square_{name}", Float64, Merge.SUM, f"{shifted} * {shifted}"),
                self._count_partial(),
            )
        self._check_no_center(scale)
        total = self._value_partial(scope, Merge.SUM, "sum")
        unit = f"scaled_int({self.column}, {scale})"
        high, low = f"({unit} // {LIMB})", f"({unit} % {LIMB})"
        name = f"{self.column}" + (f"_s{scale}" if scale else "")
        limit = self.units_bound(scale)
        square_guards: tuple[Guard, ...] = ()
        if limit > SQUARE_UNITS:
            limit = SQUARE_UNITS
            square_guards = (bound_guard(f"CAST({self.column} AS float64)", limit / 10**scale),)
        top = limit // LIMB + 1
        return (
            total,
            self._partial(
                f"high2_{name}",
                Int64,
                Merge.SUM,
                f"{high} * {high}",
                guards=square_guards,
                largest=top * top,
            ),
            self._partial(f"cross_{name}", Int64, Merge.SUM, f"{high} * {low}"),
            self._partial(f"low2_{name}", Int64, Merge.SUM, f"{low} * {low}"),
            self._count_partial(),
        )

    def finish(self, scope: Scope, merged: Sequence[Column], reading: Reading) -> Finished:
        count = or_zero(merged[-1]).astype(np.int64)
        seen = count > self.ddof
        scale = self.scale_of(scope)
        if scale is None:
            return self._from_floats(or_zero(merged[0]), or_zero(merged[1]), count, seen)
        sums = [or_zero(column) for column in merged[:-1]]
        values = self._exact(sums, count, seen, scale)
        # negative only where events were retracted that never arrived: no such variance exists
        real = values >= 0
        return Finished(Column(np.where(real, values, 0.0), seen & real))

    def _exact(self, sums: Sequence[Ints], count: Ints, seen: Bools, scale: int) -> Floats:
        """Return the value of ``(n * S2 - S1^2) / (n * (n - ddof))`` in units of ``10^-scale``.

        It is rounded once; below zero it is some number below zero.
        """
        total, high2, cross, low2 = sums
        unit2 = 10 ** (2 * scale)
        size = (np.abs(cross) + 1.0) * 2.0**17 + np.abs(high2) * 2.0**32 + np.abs(low2)
        below = np.maximum(count, 1) * np.maximum(count - self.ddof, 1).astype(np.float64) * unit2
        # rows below 2^53 in every step are exact in int64 and as floats
        small = seen & (count * size < EXACT_FLOAT) & (below < EXACT_FLOAT)
        small &= total.astype(np.float64) ** 2 < EXACT_FLOAT
        n, s1 = count[small], total[small]
        s2 = (high2[small] << 32) + (cross[small] << 17) + low2[small]
        values = np.zeros(len(count))
        values[small] = self._of_fractions(n * s2 - s1 * s1, n * (n - self.ddof) * unit2)
        for i in np.flatnonzero(seen & ~small):
            k = int(count[i])
            square = (int(high2[i]) << 32) + (int(cross[i]) << 17) + int(low2[i])
            above = k * square - int(total[i]) ** 2
            values[i] = self._of_fraction(above, k * (k - self.ddof) * unit2)
        return values

    def _from_floats(self, s1: Floats, s2: Floats, count: Ints, seen: Bools) -> Finished:
        n = np.where(count > 0, count, 1).astype(np.float64)
        m2 = s2 - s1 * s1 / n
        # one value, or all of them equal to the center: the variance is zero by definition
        plain = (count == 1) | (s2 == 0)
        reliable = plain | (m2 * self.max_condition >= s2)
        values = np.where(plain, 0.0, m2 / np.where(seen, n - self.ddof, 1.0))
        good = seen & reliable
        return Finished(
            Column(self._of_floats(np.where(good, values, 0.0)), good), seen & ~reliable
        )

    def _of_fraction(self, numerator: int, denominator: int) -> float:
        """Return the value of a variance that is this fraction; below zero, a number below zero."""
        return numerator / denominator

    def _of_fractions(self, numerators: Ints, denominators: Ints) -> Floats:
        """Return ``_of_fraction`` of each pair, all of them below 2^53."""
        quotients: Floats = numerators / denominators
        return quotients

    def _of_floats(self, variances: Floats) -> Floats:
        return variances


@dataclass(frozen=True)
class StdDev(Variance):
    """Square root of the variance, with the same ``ddof``, ``center`` and rules.

    For integers and with ``scale`` it is the float nearest to the root of the exact variance.

    >>> import paimon_features as pf
    >>> pf.evaluate(pf.StdDev("amount"), [{"amount": 2.0}, {"amount": None}, {"amount": 5.0}])
    1.5
    """

    kind: ClassVar[str] = "stddev"

    def _of_fraction(self, numerator: int, denominator: int) -> float:
        return -1.0 if numerator < 0 else root_of_fraction(numerator, denominator)

    def _of_fractions(self, numerators: Ints, denominators: Ints) -> Floats:
        roots = roots_of_fractions(np.maximum(numerators, 0), denominators)
        return np.where(numerators < 0, -1.0, roots)

    def _of_floats(self, variances: Floats) -> Floats:
        return np.sqrt(variances)
