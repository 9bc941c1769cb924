"""The aggregates of the project under the laws that every aggregate obeys."""

from __future__ import annotations

from collections.abc import Sequence

from paimon_features.definitions import aggregates as agg
from paimon_features.definitions.aggregates import Aggregate
from paimon_features.testing.aggregate_contract import AggregateContract
from paimon_features.testing.generators import VALUE_COLUMNS

NUMBERS = ("n", "small", "x", "price", "amount", "twice")
SCALARS = [name for name, kind in VALUE_COLUMNS.items() if kind.is_scalar]
EDGES = (-100.0, -1.0, 0.0, 1.0, 10.0, 11.5, 1e9)


class TestCounts(AggregateContract):
    def aggregates(self) -> Sequence[Aggregate]:
        return [agg.Count(), agg.Count(where="n > 0"), *map(agg.Count, VALUE_COLUMNS)]


class TestSum(AggregateContract):
    def aggregates(self) -> Sequence[Aggregate]:
        return [
            *map(agg.Sum, NUMBERS),
            agg.Sum("x", scale=2),
            agg.Sum("price", scale=1),
            agg.Sum("price", as_decimal=True),
            agg.Sum("x", scale=3, as_decimal=True, where="flag"),
        ]


class TestMean(AggregateContract):
    def aggregates(self) -> Sequence[Aggregate]:
        return [
            *map(agg.Mean, NUMBERS),
            agg.Mean("x", scale=2),
            agg.Mean("n", where="x IS NOT NULL"),
        ]


class TestMinAndMax(AggregateContract):
    def aggregates(self) -> Sequence[Aggregate]:
        return [
            *map(agg.Min, dict.fromkeys((*NUMBERS, *SCALARS))),
            *map(agg.Max, dict.fromkeys((*NUMBERS, *SCALARS))),
            agg.Min("x", scale=2),
            agg.Max("price", scale=0),
            agg.Max("word", where="n > 0"),
        ]


class TestVariance(AggregateContract):
    def aggregates(self) -> Sequence[Aggregate]:
        return [
            *map(agg.Variance, NUMBERS),
            *map(agg.StdDev, NUMBERS),
            agg.Variance("x", scale=2, ddof=1),
            agg.Variance("x", center=10.0),
            agg.StdDev("amount", ddof=1, where="n < 100"),
        ]


class TestShape(AggregateContract):
    def aggregates(self) -> Sequence[Aggregate]:
        return [
            *map(agg.Skewness, NUMBERS),
            *map(agg.Kurtosis, NUMBERS),
            agg.Skewness("x", scale=2),
            agg.Kurtosis("x", scale=1, where="flag"),
            agg.Skewness("x", center=10.0, bound=100),
            agg.Kurtosis("x", center=10.0, bound=100),
        ]


class TestFirstAndLast(AggregateContract):
    def aggregates(self) -> Sequence[Aggregate]:
        return [
            one(column, tie=tie)
            for one in (agg.First, agg.Last)
            for column in SCALARS
            for tie in (None, "word", "x")
        ] + [
            agg.Last("word", where="n IS NULL"),
            agg.First("n", tie="flag", where="flag"),
            *(one("vec", tie=tie) for one in (agg.First, agg.Last) for tie in (None, "word")),
            agg.Last("pair", where="n > 0"),
            agg.First("pair", tie="x"),
        ]


class TestFirstNAndLastN(AggregateContract):
    def aggregates(self) -> Sequence[Aggregate]:
        return [
            *(agg.FirstN(column, n=2) for column in SCALARS),
            *(agg.LastN(column, n=3) for column in SCALARS),
            agg.FirstN("word", tie="n", n=1),
            agg.LastN("word", tie="day", n=100, where="n > 0"),
        ]


class TestTopKAndBottomK(AggregateContract):
    def aggregates(self) -> Sequence[Aggregate]:
        return [
            *(agg.TopK(column, n=2) for column in SCALARS),
            *(agg.BottomK(column, n=3) for column in SCALARS),
            *(agg.TopK("word", by=by, n=2) for by in SCALARS),
            agg.BottomK("x", by="word", n=50, where="flag"),
        ]


class TestDecayed(AggregateContract):
    def aggregates(self) -> Sequence[Aggregate]:
        return [
            agg.DecayedCount(half_life="1h"),
            agg.DecayedCount("word", half_life="1d"),
            *(agg.DecayedSum(name, half_life="1h") for name in NUMBERS),
            *(agg.DecayedMean(name, half_life="7d") for name in NUMBERS),
            agg.DecayedSum("x", half_life="10min", where="flag"),
        ]


class TestByCategory(AggregateContract):
    def aggregates(self) -> Sequence[Aggregate]:
        return [
            agg.CountBy("word", values=["a", "it's", ""]),
            agg.CountBy("small", values=[0, -1], other=None),
            agg.CountBy("flag", values=[False], other="rest", where="n > 0"),
            *(agg.SumBy(name, by="word", values=["a", "b"]) for name in NUMBERS),
            agg.SumBy("x", by="small", values=[0, 1], scale=2, where="flag"),
            agg.SumBy("price", by="flag", values=[True, False], other=None),
        ]


class TestTopCategories(AggregateContract):
    def aggregates(self) -> Sequence[Aggregate]:
        return [
            *(agg.TopCategories(column, n=3) for column in ("word", "small", "n", "flag")),
            agg.TopCategories("word", n=1, where="flag"),
        ]


class TestAnyAndAll(AggregateContract):
    def aggregates(self) -> Sequence[Aggregate]:
        return [
            agg.Any("flag"),
            agg.All("flag", where="n > 0"),
            agg.Any(condition="n > 2 AND flag", name="some"),
            agg.All(condition="x IS NOT NULL", name="every"),
        ]


class TestTimes(AggregateContract):
    def aggregates(self) -> Sequence[Aggregate]:
        return [
            agg.TimeSinceLast(),
            agg.TimeSinceLast("vec", unit="1d"),
            agg.TimeSinceFirst(),
            agg.TimeSinceFirst("word", unit="1h", where="flag"),
        ]


class TestRate(AggregateContract):
    def aggregates(self) -> Sequence[Aggregate]:
        # a rate needs a window: one that holds all generated events
        return [
            agg.Rate(per="1h", windows=["300000d"]),
            agg.Rate(per="30d", windows=["300000d"], where="flag"),
            *(agg.Rate(name, per="1d", windows=["300000d"]) for name in NUMBERS),
            agg.Rate("x", per="90min", windows=["300000d"], scale=2),
        ]


class TestApproxCountDistinct(AggregateContract):
    def aggregates(self) -> Sequence[Aggregate]:
        return [
            *map(agg.ApproxCountDistinct, SCALARS),
            agg.ApproxCountDistinct("amount", where="flag"),
        ]


class TestHistogramAndQuantile(AggregateContract):
    def aggregates(self) -> Sequence[Aggregate]:
        return [
            *(agg.Histogram(name, edges=EDGES) for name in NUMBERS),
            *(agg.Quantile(name, q=0.5, edges=EDGES) for name in NUMBERS),
            *(agg.Quantile("x", q=q, edges=EDGES) for q in (0.0, 0.1, 0.999, 1.0)),
            agg.Quantile("n", q=0.25, edges=[1], where="flag"),
        ]


class TestVectors(AggregateContract):
    def aggregates(self) -> Sequence[Aggregate]:
        return [
            agg.VectorSum("vec"),
            agg.VectorSum("vec", scale=2, where="flag"),
            agg.VectorSum("pair"),
            agg.VectorMean("vec"),
            agg.VectorMean("pair", where="n > 0"),
            agg.VectorMean("vec", scale=3),
        ]


def test_every_aggregate_is_under_the_laws() -> None:
    lawful = {
        type(aggregate)
        for contract in AggregateContract.__subclasses__()
        if contract.__module__ == __name__
        for aggregate in contract().aggregates()
    }
    public = {kind for name in agg.__all__ if isinstance(kind := getattr(agg, name), type)}
    aggregates = {kind for kind in public if issubclass(kind, Aggregate)} - {Aggregate}
    assert aggregates == lawful
