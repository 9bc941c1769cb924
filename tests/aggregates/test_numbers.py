"""Where numbers get large, small or close to each other."""

from __future__ import annotations

import random
import statistics
from fractions import Fraction

import numpy as np
import pytest

from paimon_features.aggregates import (
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
from paimon_features.aggregates.basic import ratio
from paimon_features.aggregates.moments import LIMB
from paimon_features.columns import Column
from paimon_features.errors import DefinitionError
from paimon_features.schema import Decimal, Float64, Int64, String

SCOPE = {"n": Int64, "x": Float64, "price": Decimal(10, 2), "long": Decimal(38, 12), "s": String}
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


def test_a_float_variance_near_its_center_is_told_and_far_from_it_is_not() -> None:
    values = np.array([1e9 + 1e-3, 1e9 - 1e-3])
    for center, told in ((1e9, True), (0.0, False)):
        shifted = values - center
        sums = (shifted.sum(), (shifted * shifted).sum(), 2)
        columns = [Column(np.array([s])) for s in sums]
        finished = StdDev("x", center=center).finish(SCOPE, columns, NOW)
        assert finished.ill_conditioned is not None
        assert bool(finished.ill_conditioned[0]) is not told
        assert bool(finished.column.mask[0]) is told
        if told:
            assert finished.column.values[0] == pytest.approx(1e-3, rel=1e-4)


def test_a_ratio_is_rounded_once_also_beyond_what_floats_hold() -> None:
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
        (lambda: Sum("y").partials(SCOPE), r"no such column; the columns are: n, x, price"),
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
    ],
)
def test_what_cannot_be_right_is_refused(aggregate: object, message: str) -> None:
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
    ],
    ids=str,
)
def test_a_feature_is_called_after_what_it_is(aggregate: Aggregate, name: str) -> None:
    assert aggregate.feature_name(aggregate.lengths[0]) == name
