"""Quantiles over declared edges: never further off than they say, and the same however learnt."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paimon_features.core.errors import TransformError
from paimon_features.testing.reference import numeric as naive
from paimon_features.transformers import (
    FeatureTransformer,
    Imputer,
    KBinsDiscretizer,
    QuantileTransformer,
    RobustScaler,
)
from paimon_features.transformers.bin_grid import METHODS, GridCounts

numbers = st.one_of(
    st.floats(-1e6, 1e6), st.sampled_from([0.0, -0.0, 1.0, 2.0, 2.5, -3.0]), st.integers(-5, 5)
).map(float)
edges = st.lists(numbers, min_size=1, max_size=12).map(
    lambda found: sorted({e + 0.0 for e in found})
)
percents = st.lists(
    st.one_of(st.floats(0, 100), st.sampled_from([0.0, 25.0, 50.0, 100.0])), min_size=1, max_size=5
)


def counted(values: Any, grid: Any) -> GridCounts:
    return GridCounts.of([np.array(values, float)], [np.array(grid)])


@given(st.lists(numbers, min_size=1, max_size=40), edges, percents, st.sampled_from(METHODS))
def test_no_quantile_is_further_off_than_its_bound(
    values: Any, grid: Any, requested: Any, method: str
) -> None:
    counts = counted(values, grid)
    found = counts.quantiles(np.array(requested), method)[:, 0]
    bounds = counts.errors(np.array(requested), method)[:, 0]
    widest = max(
        np.diff([min(values), *(e for e in grid if min(values) < e < max(values)), max(values)])
    )
    for percent, value, bound in zip(requested, found, bounds, strict=True):
        exact = naive.percentile(values, percent, method)
        assert abs(value - exact) <= bound * (1 + 1e-12) + 1e-9
        assert bound <= widest * (1 + 1e-12)
        assert float(np.percentile(values, percent, method=method)) == pytest.approx(
            exact, rel=1e-12, abs=1e-9
        )
        again = naive.grid_percentile(
            grid, counts.counts[0].tolist(), counts.low[0], counts.high[0], percent, method
        )
        assert value == pytest.approx(again, rel=1e-12, abs=1e-9)


@given(st.lists(st.lists(numbers, max_size=15), min_size=1, max_size=5), edges, st.randoms())
def test_counts_do_not_depend_on_parts_or_their_order(parts: Any, grid: Any, rng: Any) -> None:
    whole = counted([v for part in parts for v in part], grid)
    pieces = [counted(part, grid) for part in parts]
    rng.shuffle(pieces)
    merged = pieces[0]
    for piece in pieces[1:]:
        assert merged.merge(piece).to_params() == piece.merge(merged).to_params()
        merged = merged.merge(piece)
    assert merged.to_params() == whole.to_params()
    assert GridCounts.from_params(whole.to_params(), tuple(grid), "x").to_params() == (
        whole.to_params()
    )
    known = sorted(v for part in parts for v in part)
    expected = [0] * (len(grid) + 1)
    for value in known:
        expected[sum(1 for edge in grid if value >= edge)] += 1
    assert whole.counts[0].tolist() == expected


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=settings().max_examples // 5)
def test_what_is_fitted_over_a_grid_is_within_its_bound_of_what_fit_learns(seed: int) -> None:
    dice = np.random.default_rng(seed)
    table = dice.normal(size=(int(dice.integers(1, 300)), 2)) * [1, 50]
    table[dice.random(table.shape) < 0.2] = math.nan
    grid = [np.linspace(-4, 4, 81).tolist(), [-100.0, -10.0, 0.0, 3.0, 40.0]]
    for make in (
        lambda **kw: RobustScaler(quantile_range=(5, 70), **kw),
        lambda **kw: QuantileTransformer(n_quantiles=21, subsample=None, **kw),
        lambda **kw: KBinsDiscretizer(4, subsample=None, **kw),
    ):
        exact, over = make().fit(table), make(grid=grid).fit(table)
        off, bound = np.abs(exact._quantiles - over._quantiles), over.quantile_errors_
        assert (np.isnan(off) == np.isnan(bound)).all()
        assert not (off > bound * (1 + 1e-12) + 1e-12).any()
        assert not (bound[:, 0] > 0.1 * (1 + 1e-12)).any()  # its bins are all that wide
        assert not exact.quantile_errors_.any()
    exact_median = Imputer("median").fit(table).statistics_
    for column, (one, other) in enumerate(
        zip(exact_median, Imputer("median", grid=grid).fit(table).statistics_, strict=True)
    ):
        assert (one is None) == (other is None)
        if one is not None:
            assert abs(one - other) <= [0.1 * (1 + 1e-12), 100.0][column]  # type: ignore[operator]


def test_a_grid_is_checked_when_it_is_declared_and_when_data_come() -> None:
    for wrong in ([], [1.0, 1.0], [2.0, 1.0], [0.0, math.inf], [math.nan], [[0.0], []]):
        for make in (RobustScaler, QuantileTransformer, KBinsDiscretizer):
            with pytest.raises(TransformError, match="finite, strictly ascending"):
                make(grid=wrong).fit([[1.0]])
    with pytest.raises(TransformError, match="the grid is of 2 columns, the data have 1"):
        RobustScaler(grid=[[0.0], [1.0]]).fit([[1.0]])
    one, other = RobustScaler(grid=[0.0]).fit([[1.0]]), RobustScaler(grid=[1.0]).fit([[1.0]])
    with pytest.raises(TransformError, match="cannot be merged with one with"):
        one.merge(other)
    with pytest.raises(TransformError, match="over different grids cannot be merged"):
        counted([1.0], [0.0]).merge(counted([1.0], [1.0]))
    with pytest.raises(TransformError, match="do not match the bins of the grid"):
        FeatureTransformer.from_params({**one.to_params(), "counts": [[1]]})
    with pytest.raises(TransformError, match="quantile_method='weibull'; expected one of over a g"):
        KBinsDiscretizer(quantile_method="weibull", grid=[0.0]).fit([[1.0]])
    with pytest.raises(TransformError, match="bins of equal width need no grid"):
        KBinsDiscretizer(strategy="uniform", grid=[0.0]).fit([[1.0]])
    with pytest.raises(TransformError, match="the range of column 0 exceeds float64"):
        RobustScaler(grid=[0.0]).fit([[-1.7e308], [1.7e308], [1e308], [0.0]])
    with pytest.raises(TransformError, match="the range of column 0 exceeds float64"):
        RobustScaler().fit([[-1.7e308], [1.7e308], [1.7e308], [-1.7e308]])


def test_other_wrong_settings_are_reported() -> None:
    for make, message in (
        (lambda: RobustScaler(quantile_range=(75, 25)), "two percentages, ascending"),
        (lambda: RobustScaler(quantile_range=(0, 75), unit_variance=True), "between 0 and 100"),
        (lambda: QuantileTransformer(n_quantiles=0), "n_quantiles=0; expected 1 or more"),
        (
            lambda: QuantileTransformer(n_quantiles=9, subsample=5),
            "n_quantiles=9 exceeds subsample=5",
        ),
        (lambda: QuantileTransformer(output_distribution="beta"), "expected one of: uniform, norm"),
        (lambda: QuantileTransformer(subsample=0), "subsample=0; expected 1 or more, or None"),
        (lambda: QuantileTransformer(random_state=-1), "random_state=-1; expected 0 to"),
        (lambda: KBinsDiscretizer(1), "n_bins=1; expected 2 or more"),
        (lambda: KBinsDiscretizer(strategy="trees"), "strategy='trees'; expected one of: unif"),
        (lambda: KBinsDiscretizer(encode="hot"), "encode='hot'; expected one of: onehot, onehot-d"),
        (lambda: KBinsDiscretizer([3, 4]).fit([[1.0]]), r"n_bins=\[3, 4\] for 1 columns"),
    ):
        with pytest.raises(TransformError, match=message):
            make().fit([[1.0]])
    bins = KBinsDiscretizer(3, encode="ordinal", strategy="uniform").fit([[0.0], [3.0]])
    with pytest.raises(TransformError, match="row 1 has the bin 3 of 3 bins"):
        bins.inverse_transform([[0.0], [3.0]])
    hot = KBinsDiscretizer(3, strategy="uniform").fit([[0.0], [3.0]])
    with pytest.raises(TransformError, match="row 0 has no bin; expected a 1 among its columns"):
        hot.inverse_transform([[0.0, 0.0, 0.0]])
    with pytest.raises(TransformError, match="got 1 columns; expected 3"):
        hot.inverse_transform([[1.0]])
    assert hot.inverse_transform([[None, None, None], [0, 1, 0]]) == [[None], [1.5]]
    assert hot.inverse_transform([]) == []
