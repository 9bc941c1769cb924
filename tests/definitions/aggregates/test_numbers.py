"""Where numbers get large, small or close to each other."""

from __future__ import annotations

import math
import random
import statistics
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest

from paimon_features.core.columns.column import Column
from paimon_features.core.errors import DefinitionError
from paimon_features.core.expressions import evaluate, parse
from paimon_features.core.types.schema import Decimal, Float64, Int64, List, String
from paimon_features.definitions import aggregates as agg
from paimon_features.definitions.aggregates import (
    Aggregate,
    Count,
    DecayedSum,
    Last,
    Max,
    Mean,
    Reading,
    StdDev,
    Sum,
    Variance,
)
from paimon_features.definitions.aggregates.basic import rate, ratio
from paimon_features.definitions.aggregates.moments import LIMB
from paimon_features.testing.reference.aggregates import bin_counts

SCOPE = {
    "n": Int64, "x": Float64, "price": Decimal(10, 2), "long": Decimal(38, 12), "s": String,
    "v": List(Float64, 3),
}  # fmt: skip
NOW = Reading(0, np.zeros(1, np.int64))


def exact_variance(values: list[int], ddof: int = 0) -> float | None:
    """What ``Variance`` makes of integers, from partials written down by hand."""
    variance = Variance("n", ddof=ddof)
    high, low = [v // LIMB for v in values], [v % LIMB for v in values]
    sums = (
        sum(values),
        sum(h * h for h in high),
        sum(h * lo for h, lo in zip(high, low, strict=True)),
        sum(lo * lo for lo in low),
        len(values),
    )
    columns = [Column(np.array([s], np.int64)) for s in sums]
    finished = variance.finish({"n": Int64}, columns, NOW).column
    return float(finished.values[0]) if finished.mask[0] else None


@pytest.mark.parametrize("size", [3, 1000, 10**6, 2**33])
@pytest.mark.parametrize("offset", [0, -(10**9), 2**33 - 10])
def test_a_variance_of_integers_is_the_float_nearest_to_the_exact_one(
    size: int, offset: int
) -> None:
    rng = random.Random(size + offset)
    for ddof in (0, 1):
        values = [offset + rng.randrange(-size, size) for _ in range(rng.choice((2, 5, 100)))]
        spread = statistics.pvariance([Fraction(v) for v in values])
        n = len(values)
        assert exact_variance(values, ddof) == float(Fraction(spread) * n / (n - ddof))


def test_a_variance_needs_more_values_than_ddof() -> None:
    assert exact_variance([5]) == 0.0
    assert exact_variance([5], ddof=1) is None


def test_a_float_variance_is_returned_near_its_center_and_not_far_from_it() -> None:
    values = np.array([1e9 + 1e-3, 1e9 - 1e-3])
    for center, reported in ((1e9, True), (0.0, False)):
        shifted = values - center
        sums = (shifted.sum(), (shifted * shifted).sum(), 2)
        columns = [Column(np.array([s])) for s in sums]
        finished = StdDev("x", center=center).finish(SCOPE, columns, NOW)
        assert finished.ill_conditioned is not None
        assert bool(finished.ill_conditioned[0]) is not reported
        assert bool(finished.column.mask[0]) is reported
        if reported:
            assert finished.column.values[0] == pytest.approx(1e-3, rel=1e-4)


def exact_shape(aggregate: Aggregate, values: list[int]) -> float | None:
    """Skewness or kurtosis of integers, from partials that the expressions make."""
    scope = {"n": Int64}
    partials = aggregate.partials(scope)
    columns = {"n": Column(np.array(values, np.int64))}
    merged = []
    for partial in partials:
        units = evaluate(parse(partial.expression, scope), columns, len(values)).values
        # a billion events of this size fit: a thousand times as many bits as are here
        assert max(map(abs, units.tolist()), default=0) <= 2**33
        merged.append(Column(np.array([units.sum()])))
    finished = aggregate.finish(scope, merged, NOW).column
    return float(finished.values[0]) if finished.mask[0] else None


@pytest.mark.parametrize("size", [3, 1000, 2**29])
@pytest.mark.parametrize("offset", [0, -(2**29), 2**29])
def test_shapes_of_integers_are_exact_up_to_the_greatest_units(size: int, offset: int) -> None:
    rng = random.Random(size + offset)
    values = [offset + rng.randrange(-size, size + 1) for _ in range(50)] + [offset + size]
    mean = Fraction(sum(values), len(values))
    m2, m3, m4 = (sum((v - mean) ** p for v in values) / Fraction(len(values)) for p in (2, 3, 4))
    assert exact_shape(agg.Kurtosis("n"), values) == float(m4 / m2**2 - 3)
    skewness = exact_shape(agg.Skewness("n"), values)
    assert skewness == pytest.approx(float(m3 / m2) / float(m2) ** 0.5, rel=1e-14)
    assert exact_shape(agg.Skewness("n"), [offset] * 3) is None


@pytest.mark.parametrize("kind", [agg.Skewness, agg.Kurtosis])
def test_a_float_shape_far_from_its_center_is_ill_conditioned(kind: type[agg.Skewness]) -> None:
    rng = random.Random(1)
    values = np.array([rng.gauss(1e6, 1.0) for _ in range(200)])
    for center, reported in ((1e6, True), (0.0, False)):
        aggregate = kind("x", center=center)
        shifted = values - center
        sums = [(shifted**power).sum() for power in range(1, aggregate.highest + 1)]
        columns = [Column(np.array([s])) for s in (*sums, len(values))]
        finished = aggregate.finish(SCOPE, columns, NOW)
        assert finished.ill_conditioned is not None
        assert bool(finished.column.mask[0]) is reported
        assert bool(finished.ill_conditioned[0]) is not reported


@pytest.mark.parametrize("edges", [agg.linear_edges(-5, 60, 40), agg.log_edges(0.1, 60, 0.1)])
def test_a_quantile_is_off_by_the_width_of_its_bin_at_most(edges: tuple[float, ...]) -> None:
    rng = random.Random(2)
    for _ in range(50):
        q = rng.choice((0.0, 0.01, 0.5, 0.9, 1.0))
        values = sorted(rng.lognormvariate(1, 1) for _ in range(rng.choice((1, 2, 10, 300))))
        quantile = agg.Quantile("x", q=q, edges=edges)
        counts = [Column(np.array([count])) for count in bin_counts(edges, values)]
        (got,) = quantile.finish(SCOPE, counts, NOW).column.values.tolist()
        true = values[max(math.ceil(q * len(values)) - 1, 0)]
        inside = min(max(true, edges[0]), edges[-1])
        width = next((hi - lo for lo, hi in pairwise(edges) if lo <= true < hi), 0.0)
        assert abs(got - inside) <= width
        if edges[0] > 0:
            assert abs(got - inside) <= 0.1 * inside * (1 + 1e-9)


def test_a_rate_of_totals_beyond_float_precision_is_rounded_once() -> None:
    rng = random.Random(4)
    totals = [rng.randrange(-(2**62), 2**62) for _ in range(100)] + [0, 1, 2**53 + 1]
    per, window = 3_600_000, 7 * 86_400_000
    wanted = [float(Fraction(total * per, window)) for total in totals]
    assert rate(np.array(totals), per, window).tolist() == wanted


def test_a_ratio_beyond_float_precision_is_rounded_once() -> None:
    rng = random.Random(3)
    numerators = [rng.randrange(-(2**62), 2**62) for _ in range(200)]
    denominators = [rng.randrange(1, 2**62) for _ in range(200)]
    got = ratio(np.array(numerators), np.array(denominators))
    wanted = [float(Fraction(a, b)) for a, b in zip(numerators, denominators, strict=True)]
    assert got.tolist() == wanted


@pytest.mark.parametrize(
    ("aggregate", "message"),
    [
        (lambda: Sum("s").partials(SCOPE), r"sum\('s'\): the column is String; expected a number"),
        (lambda: Sum("y").partials(SCOPE), r"unknown column 'y'; available: "),
        (lambda: Sum().partials(SCOPE), "sum needs a column"),
        (lambda: Sum("x", as_decimal=True).partials(SCOPE), "on a float column; give scale="),
        (lambda: Mean("long").partials(SCOPE), r"give scale= \(0 to 9\)"),
        (lambda: Sum("x", scale=10), "scale=10; expected 0 to 9"),
        (lambda: Variance("x", ddof=2), "ddof=2; expected 0, 1"),
        (lambda: Variance("x", center=float("nan")), "center=nan is not finite"),
        (lambda: Variance("n", center=3.0).partials(SCOPE), "center= is for floats"),
        (lambda: DecayedSum("x"), r"decayed_sum\('x'\) needs half_life="),
        (lambda: Count(windows=[]), "expected a list of durations"),
        (lambda: Count(windows="7d"), "expected a list of durations"),
        (lambda: Count(windows=["7d", "168h"]), "names a window twice"),
        (lambda: Count(name="Not a name"), "Not a name"),
        (lambda: Count(where="n + 1").check_where(SCOPE), "expected a condition"),
        (lambda: DecayedSum("x", half_life=["1h", "60min"]), "names one twice"),
        (lambda: agg.Skewness("n", center=3.0).partials(SCOPE), "center= is for floats"),
        (lambda: agg.Last("s", tie="t").partials(SCOPE), "unknown column 't'"),
        (lambda: agg.Last("v").partials({"v": List(Float64, 17)}), "expected up to 16 integers or"),
        (lambda: agg.FirstN("v").partials(SCOPE), r"a column of List\(Float64, 3\) has no order"),
        (lambda: agg.LastN("s", n=0), "n=0; expected 1 to 1000"),
        (lambda: agg.TopK("s", by="v").partials(SCOPE), "has no order"),
        (lambda: agg.CountBy("s"), r"values=\(\); expected a list of 1 to 200 categories"),
        (lambda: agg.CountBy("s", values="ab"), "expected a list of str or int or bool"),
        (lambda: agg.CountBy("s", values=["a", "a"]), "names one twice"),
        (
            lambda: agg.CountBy("s", values=["other"]),
            "is both a category and the name of all others",
        ),
        (lambda: agg.CountBy("s", values=["a", 1]).partials(SCOPE), "it cannot be 1"),
        (lambda: agg.CountBy("n", values=[True]).partials(SCOPE), "it cannot be True"),
        (lambda: agg.CountBy("x", values=[1]).partials(SCOPE), "expected a column of texts"),
        (lambda: agg.SumBy("x", values=["a"]).partials(SCOPE), "needs by="),
        (lambda: agg.TopCategories("x").partials(SCOPE), "expected texts, integers or booleans"),
        (lambda: agg.Any(), "takes a Bool column or condition=, one of them"),
        (lambda: agg.All(condition="n > 1"), "needs a name="),
        (lambda: agg.Any("n").partials(SCOPE), "n is Int64; expected a condition"),
        (lambda: agg.Rate(), "a lifetime and a calendar unit have no length to divide by"),
        (lambda: agg.Rate(per="1x", windows=["1d"]), "1x"),
        (lambda: agg.TimeSinceLast(unit="day"), "day"),
        (lambda: agg.Histogram("x"), r"expected 1 to 255 finite numbers"),
        (lambda: agg.Histogram("x", edges=[2, 1]), "each greater than the one before"),
        (lambda: agg.Quantile("x", edges=[1], q=1.5), "expected shares from 0 to 1"),
        (lambda: agg.Quantile("s", edges=[1]).partials(SCOPE), "expected a number"),
        (lambda: agg.linear_edges(2, 1, 3), "expected low < high"),
        (lambda: agg.log_edges(0, 1, 0.1), "expected 0 < low < high"),
        (lambda: agg.VectorSum("x").partials(SCOPE), r"expected List\(T, n\)"),
        (lambda: agg.ApproxCountDistinct("v").partials(SCOPE), "has no order"),
    ],
)
def test_invalid_aggregates_are_rejected(aggregate: object, message: str) -> None:
    with pytest.raises(DefinitionError, match=message):
        aggregate()  # type: ignore[operator]


@pytest.mark.parametrize(
    ("aggregate", "name"),
    [
        (Count(windows=["7d"]), "count_7d"),
        (Count("x", windows=["90min"]), "count_x_90min"),
        (Sum("x", windows=["24h"]), "sum_x_1d"),
        (Max("x"), "max_x"),
        (DecayedSum("x", half_life="36h", windows=["30d"]), "decayed_sum_x_h36h_30d"),
        (Last("s", windows=["1d"], name="newest"), "newest_1d"),
        (agg.SumBy("x", by="s", values=["a"], windows=["1d"]), "sum_x_by_s_1d"),
        (agg.Rate("x", per="24h", windows=["30d"]), "rate_x_per_1d_30d"),
        (agg.TopK("s", by="x", n=3), "top_k_s_by_x_3"),
    ],
    ids=str,
)
def test_the_name_of_a_feature_describes_it(aggregate: Aggregate, name: str) -> None:
    assert aggregate.feature_name(aggregate.lengths[0]) == name
