"""Skewness and Kurtosis: exact for integers, as accurate as the sums allow for floats.

With ``scale`` (or on integers and decimals) the sums of powers are kept exactly. A value ``v``
of up to 2^30 units has ``v^2 = h * 2^30 + l`` with ``0 <= l < 2^30``; its third power follows from
``v * h`` and ``v * l``, its fourth from ``h * h``, ``h * l`` and ``l * l``. Each of these
products fits a BIGINT, and so do the sums of their upper and lower 30 bits over a billion
events. The finished value is one fraction of integers.

Floats are shifted by ``center``. The absolute error of a skewness grows with ``(S2 / M2)^1.5``, of
a kurtosis with ``(S2 / M2)^2``, where S2 is the sum of squares around the center and M2 that around
the mean; where this leaves fewer than about six digits, the value is null and flagged.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from paimon_features.core.columns.column import Column
from paimon_features.core.types.array_types import Floats, Ints
from paimon_features.core.types.schema import Float64, Int64
from paimon_features.definitions.aggregates.base import (
    Finished,
    Guard,
    Merge,
    Partial,
    Reading,
    Scope,
)
from paimon_features.definitions.aggregates.basic import bound_guard, or_zero
from paimon_features.definitions.aggregates.moments import Centered
from paimon_features.definitions.aggregates.rounding import root_of_fraction

HALF = 2**30
"""Weight of a limb, and the greatest number of units of a value."""
POWERS = {2: 2, 3: 3, 4: 4}
"""How many limbs the sum of each power has."""


@dataclass(frozen=True)
class _Shape(Centered):
    """Shared by Skewness and Kurtosis."""

    center: float = field(default=0.0, kw_only=True)

    highest: ClassVar[int]
    max_condition: ClassVar[float]
    float_bound: ClassVar[float]

    @property
    def _powers(self) -> range:
        return range(2, self.highest + 1)

    def partials(self, scope: Scope) -> tuple[Partial, ...]:
        scale = self.scale_of(scope)
        if scale is None:
            return (*self._float_partials(), self._count_partial())
        self._check_no_center(scale)
        name = f"{self.column}" + (f"_s{scale}" if scale else "")
        limbs = _limbs(f"scaled_int({self.column}, {scale})")
        guards = (self._unit_guard(scope, scale),)
        return (
            self._value_partial(scope, Merge.SUM, "sum"),
            *(
                self._partial(f"power{power}_{limb}_{name}", Int64, Merge.SUM, text, guards=guards)
                for power in self._powers
                for limb, text in enumerate(limbs[power])
            ),
            self._count_partial(),
        )

    def _float_partials(self) -> tuple[Partial, ...]:
        shifted, name = self._shifted()
        bound = self.float_bound if self.bound is None else min(self.bound, self.float_bound)
        guards = (bound_guard(shifted, bound),)
        names = ["shifted", "square", "cube", "fourth"]
        return tuple(
            self._partial(
                f"{names[power - 1]}_{name}",
                Float64,
                Merge.SUM,
                " * ".join([shifted] * power),
                guards=guards,
            )
            for power in range(1, self.highest + 1)
        )

    def _unit_guard(self, scope: Scope, scale: int) -> Guard:
        if self._numeric_type(scope).is_integer and scale == 0:
            return bound_guard(f"{self.column}", HALF, floating=False)
        return bound_guard(f"CAST({self.column} AS float64)", HALF / 10**scale)

    def finish(self, scope: Scope, merged: Sequence[Column], reading: Reading) -> Finished:
        sums = [or_zero(column) for column in merged]
        count = sums[-1].astype(np.int64)
        if self.scale_of(scope) is None:
            return self._from_floats(sums[:-1], count)
        values, seen = np.zeros(len(count)), np.zeros(len(count), np.bool_)
        for row in np.flatnonzero(count > 0):
            value = self.exact(int(count[row]), self._power_sums(sums, row))
            if value is not None:
                values[row], seen[row] = value, True
        return Finished(Column(values, seen))

    def _power_sums(self, sums: Sequence[Ints], row: int) -> list[int]:
        """Return the sums of the first, second, ... powers of one row's values."""
        out, at = [int(sums[0][row])], 1
        for power in self._powers:
            limbs = [int(column[row]) for column in sums[at : at + POWERS[power]]]
            out.append(sum(limb * HALF**place for place, limb in enumerate(limbs)))
            at += POWERS[power]
        return out

    def _from_floats(self, sums: Sequence[Floats], count: Ints) -> Finished:
        n = np.where(count > 0, count, 1).astype(np.float64)
        mean = sums[0] / n
        m2 = sums[1] - sums[0] * mean
        # one value, or all of them equal to the center: they have no shape
        none = (count <= 1) | (sums[1] == 0)
        reliable = m2 * self.max_condition >= sums[1]
        good = ~none & reliable & (m2 > 0)
        values = np.zeros(len(n))
        if good.any():
            chosen = [column[good] for column in sums]
            values[good] = self.shape(n[good], mean[good], m2[good], chosen)
        return Finished(Column(values, good), ~none & ~good)

    def exact(self, n: int, sums: Sequence[int]) -> float | None:
        """Return the value from the exact sums of powers; None if all values are equal."""
        raise NotImplementedError

    def shape(self, n: Floats, mean: Floats, m2: Floats, sums: Sequence[Floats]) -> Floats:
        """Return the value from ``n``, mean, ``M2`` and the sums of powers around the center."""
        raise NotImplementedError


@dataclass(frozen=True)
class Skewness(_Shape):
    """Skewness ``m3 / m2^1.5`` of the population; null without values, or if all are equal.

    ``center`` is as for ``Variance``. With ``scale`` or on integers the value is the float nearest
    to the exact one, and values of more than 2^30 units (10.7 million at ``scale=2``) go to the
    side table.

    >>> import paimon_features as pf
    >>> skewness = pf.evaluate(pf.Skewness("amount"), [{"amount": 1}, {"amount": 1}, {"amount": 4}])
    >>> round(skewness, 6)
    0.707107
    >>> pf.evaluate(pf.Skewness("amount"), [{"amount": 1}, {"amount": 1}]) is None
    True
    """

    kind: ClassVar[str] = "skewness"
    highest: ClassVar[int] = 3
    max_condition: ClassVar[float] = 2.0**22
    float_bound: ClassVar[float] = 1e95

    def exact(self, n: int, sums: Sequence[int]) -> float | None:
        s1, s2, s3 = sums
        m2 = n * s2 - s1 * s1
        m3 = n * n * s3 - 3 * n * s1 * s2 + 2 * s1**3
        return None if m2 <= 0 else math.copysign(root_of_fraction(m3 * m3, m2**3), m3)

    def shape(self, n: Floats, mean: Floats, m2: Floats, sums: Sequence[Floats]) -> Floats:
        s1, s2, s3 = sums
        m3 = s3 - 3 * mean * s2 + 2 * mean * mean * s1
        spread = np.sqrt(m2 / n)
        values: Floats = m3 / n / spread / spread / spread
        return values


@dataclass(frozen=True)
class Kurtosis(_Shape):
    """Excess kurtosis ``m4 / m2^2 - 3`` of the population; null if all values are equal.

    Bounds and ``center`` are as for ``Skewness``; with ``scale`` or on integers the value is
    rounded once.

    >>> import paimon_features as pf
    >>> pf.evaluate(pf.Kurtosis("amount"), [{"amount": 1}, {"amount": 1}, {"amount": 4}])
    -1.5
    """

    kind: ClassVar[str] = "kurtosis"
    highest: ClassVar[int] = 4
    max_condition: ClassVar[float] = 2.0**17
    float_bound: ClassVar[float] = 1e71

    def exact(self, n: int, sums: Sequence[int]) -> float | None:
        s1, s2, s3, s4 = sums
        m2 = n * s2 - s1 * s1
        m4 = n**3 * s4 - 4 * n * n * s1 * s3 + 6 * n * s1 * s1 * s2 - 3 * s1**4
        return None if m2 <= 0 else (m4 - 3 * m2 * m2) / (m2 * m2)

    def shape(self, n: Floats, mean: Floats, m2: Floats, sums: Sequence[Floats]) -> Floats:
        s1, s2, s3, s4 = sums
        m4 = s4 - 4 * mean * s3 + 6 * mean * mean * s2 - 3 * mean * mean * mean * s1
        values: Floats = m4 / m2 * n / m2 - 3
        return values


def _limbs(unit: str) -> dict[int, tuple[str, ...]]:
    """Return expressions of the limbs of each power of an integer, the lowest first."""
    square = f"({unit} * {unit})"
    high, low = f"({square} // {HALF})", f"({square} % {HALF})"

    def split(factor: str, other: str) -> tuple[str, str]:
        return f"({factor} * {other}) // {HALF}", f"({factor} * {other}) % {HALF}"

    (vh_high, vh_low), (vl_high, vl_low) = split(unit, high), split(unit, low)
    (hh_high, hh_low), (hl_high, hl_low) = split(high, high), split(high, low)
    ll_high, ll_low = split(low, low)
    return {
        2: (low, high),
        3: (vl_low, f"{vh_low} + {vl_high}", vh_high),
        4: (ll_low, f"2 * ({hl_low}) + {ll_high}", f"{hh_low} + 2 * ({hl_high})", hh_high),
    }
