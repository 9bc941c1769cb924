"""The aggregates of the project under the laws that every aggregate obeys."""

from __future__ import annotations

from collections.abc import Sequence

from paimon_features.aggregates import (
    Aggregate,
    Count,
    DecayedCount,
    DecayedMean,
    DecayedSum,
    Last,
    Max,
    Mean,
    Min,
    StdDev,
    Sum,
    Variance,
)
from paimon_features.testing.aggregate_contract import AggregateContract
from paimon_features.testing.generators import VALUE_COLUMNS

NUMBERS = ("n", "small", "x", "price", "amount", "twice")


class TestCount(AggregateContract):
    def aggregates(self) -> Sequence[Aggregate]:
        return [Count(), Count(where="n > 0"), *map(Count, VALUE_COLUMNS)]


class TestSum(AggregateContract):
    def aggregates(self) -> Sequence[Aggregate]:
        return [
            *map(Sum, NUMBERS),
            Sum("x", scale=2),
            Sum("price", scale=1),
            Sum("price", as_decimal=True),
            Sum("x", scale=3, as_decimal=True, where="flag"),
        ]


class TestMean(AggregateContract):
    def aggregates(self) -> Sequence[Aggregate]:
        return [*map(Mean, NUMBERS), Mean("x", scale=2), Mean("n", where="x IS NOT NULL")]


class TestMinAndMax(AggregateContract):
    def aggregates(self) -> Sequence[Aggregate]:
        return [*map(Min, NUMBERS), *map(Max, NUMBERS), Min("x", scale=2), Max("price", scale=0)]


class TestVariance(AggregateContract):
    def aggregates(self) -> Sequence[Aggregate]:
        return [
            *map(Variance, NUMBERS),
            *map(StdDev, NUMBERS),
            Variance("x", scale=2, ddof=1),
            Variance("x", center=10.0),
            StdDev("amount", ddof=1, where="n < 100"),
        ]


class TestLast(AggregateContract):
    def aggregates(self) -> Sequence[Aggregate]:
        return [*map(Last, VALUE_COLUMNS), Last("word", where="n IS NULL")]


class TestDecayed(AggregateContract):
    def aggregates(self) -> Sequence[Aggregate]:
        return [
            DecayedCount(half_life="1h"),
            DecayedCount("word", half_life="1d"),
            *(DecayedSum(name, half_life="1h") for name in NUMBERS),
            *(DecayedMean(name, half_life="7d") for name in NUMBERS),
            DecayedSum("x", half_life="10min", where="flag"),
        ]
