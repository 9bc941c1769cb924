"""Numeric transformers compared with scikit-learn's: fit, transform and inverse."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

from paimon_features.core.errors import TransformError
from paimon_features.transformers import (
    Imputer,
    InteractionFeatures,
    KBinsDiscretizer,
    MaxAbsScaler,
    MinMaxScaler,
    QuantileTransformer,
    RobustScaler,
    StandardScaler,
)

sklearn = pytest.importorskip("sklearn.preprocessing", reason="pip install scikit-learn")
from sklearn.impute import SimpleImputer  # noqa: E402


def tables(rounds: int, gaps: bool = True, seed: int = 0) -> Iterator[Any]:
    """Random tables of four columns: ties, constants, one row, columns without a value."""
    dice = np.random.default_rng(seed)
    for turn in range(rounds):
        rows = int(dice.integers(1, 50))
        table = dice.normal(size=(rows, 4)) * 10.0 ** dice.integers(-3, 9, 4)
        if turn % 2:
            table = dice.integers(-3, 4, (rows, 4)).astype(float)
        if turn % 3 == 0:
            table[:, 1] = dice.choice([0.0, 0.1, -7e5])
        if turn % 5 == 0:
            table[:, 3] = 1.0 + dice.integers(0, 3, rows) * 2.0**-52
        if gaps:
            table[dice.random(table.shape) < dice.choice([0.0, 0.3, 0.8])] = math.nan
            if turn % 7 == 0:
                table[:, 2] = math.nan
        yield table


def around(table: Any) -> Any:
    """The rows and others near them and beyond."""
    return np.concatenate([table, table + 0.5, table - 1e-9, table * 3, -table])


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scikit-learn warns of columns without a value
        yield


def test_a_max_abs_scaler_is_equal_to_the_bit() -> None:
    for table in tables(60):
        ours, theirs = MaxAbsScaler().fit(table), sklearn.MaxAbsScaler().fit(table)
        np.testing.assert_array_equal(ours.max_abs_, theirs.max_abs_)
        np.testing.assert_array_equal(ours.scale_, theirs.scale_)
        requested = around(table)
        np.testing.assert_array_equal(ours.transform(requested), theirs.transform(requested))
        np.testing.assert_array_equal(
            ours.inverse_transform(requested), theirs.inverse_transform(requested)
        )


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (StandardScaler, "StandardScaler"),
        (partial(StandardScaler, with_mean=False), "StandardScaler"),
        (partial(StandardScaler, with_std=False), "StandardScaler"),
        (partial(StandardScaler, with_mean=False, with_std=False), "StandardScaler"),
        (partial(MinMaxScaler, (-2, 3), clip=True), "MinMaxScaler"),
        (partial(MaxAbsScaler, clip=True), "MaxAbsScaler"),
    ],
    ids=str,
)
def test_scalers_with_their_settings_are_equal(ours: Any, theirs: str) -> None:
    settings = getattr(ours, "keywords", {})
    if theirs == "MinMaxScaler":
        settings = {**settings, "feature_range": (-2, 3)}
    within = 1e-9 if theirs == "StandardScaler" else 0.0
    for table in tables(40):
        table[:, 3] = np.round(table[:, 3], 3)  # a deviation that is rounding: see the docs
        mine, other = ours().fit(table), getattr(sklearn, theirs)(**settings).fit(table)
        requested = around(table)
        made = other.transform(requested)
        np.testing.assert_allclose(mine.transform(requested), made, rtol=within, atol=within)
        np.testing.assert_allclose(
            mine.inverse_transform(made), other.inverse_transform(made), rtol=within, atol=within
        )
        half = len(table) // 2
        if half:
            merged = ours().fit(table[:half]).merge(ours().fit(table[half:]))
            np.testing.assert_allclose(merged.transform(requested), made, rtol=1e-7, atol=1e-7)
    if settings:
        with pytest.raises(TransformError, match="cannot be merged with one"):
            mine.merge(type(mine)().fit(table))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"quantile_range": (0.0, 100.0)},
        {"quantile_range": (10.0, 80.5)},
        {"quantile_range": (50.0, 50.0)},
        {"with_centering": False},
        {"with_scaling": False},
        {"with_scaling": False, "with_centering": False},
        {"unit_variance": True},
        {"unit_variance": True, "quantile_range": (1.0, 99.9)},
    ],
    ids=str,
)
def test_a_robust_scaler_is_equal_to_the_bit(settings: Any) -> None:
    # two implementations of the normal distribution round differently
    rtol = 4e-15 if "unit_variance" in settings else 0.0
    for table in tables(40):
        ours, theirs = RobustScaler(**settings).fit(table), sklearn.RobustScaler(**settings)
        theirs.fit(table)
        for name in ("center_", "scale_"):
            if getattr(theirs, name) is None:
                assert getattr(ours, name) is None
            else:
                np.testing.assert_allclose(getattr(ours, name), getattr(theirs, name), rtol=rtol)
        requested = around(table)
        np.testing.assert_allclose(
            ours.transform(requested), theirs.transform(requested), rtol=rtol
        )
        np.testing.assert_allclose(
            ours.inverse_transform(requested),
            theirs.inverse_transform(requested),
            rtol=rtol,
            atol=1e-15,
        )


@pytest.mark.parametrize("distribution", ["uniform", "normal"])
@pytest.mark.parametrize(
    "settings",
    [{}, {"n_quantiles": 5}, {"n_quantiles": 1}, {"n_quantiles": 4, "subsample": 9}],
    ids=str,
)
def test_a_quantile_transformer_is_equal(settings: Any, distribution: str) -> None:
    settings = {**settings, "output_distribution": distribution, "random_state": 3}
    for table in tables(25):
        if len(table) == 1 or settings.get("n_quantiles") == 1:
            # of one quantile alone scikit-learn makes 0 of what is no value
            table = np.nan_to_num(table, nan=2.0)
        ours = QuantileTransformer(**settings).fit(table)
        theirs = sklearn.QuantileTransformer(**settings).fit(table)
        assert ours.n_quantiles_ == theirs.n_quantiles_
        np.testing.assert_array_equal(ours.quantiles_, theirs.quantiles_)
        np.testing.assert_array_equal(ours.references_, theirs.references_)
        requested = around(table)
        made = theirs.transform(requested)
        if distribution == "uniform":
            np.testing.assert_array_equal(ours.transform(requested), made)
        np.testing.assert_allclose(ours.transform(requested), made, rtol=4e-15, atol=0)
        largest = np.nanmax(np.abs(table), initial=0.0)
        np.testing.assert_allclose(
            ours.inverse_transform(made), theirs.inverse_transform(made), atol=1e-13 * largest
        )


def test_the_default_draws_ten_thousand_rows_as_scikit_learn_does() -> None:
    table = np.random.default_rng(2).normal(size=(10_500, 2))
    ours = QuantileTransformer().fit(table)
    theirs = sklearn.QuantileTransformer(random_state=0).fit(table)
    np.testing.assert_array_equal(ours.quantiles_, theirs.quantiles_)
    every = QuantileTransformer(subsample=None).fit(table)
    np.testing.assert_array_equal(
        every.quantiles_, np.percentile(table, np.linspace(0, 1, 1000) * 100, axis=0)
    )
    assert not np.array_equal(every.quantiles_, ours.quantiles_)
    drawn = KBinsDiscretizer(4, subsample=500, random_state=6).fit(table)
    other = sklearn.KBinsDiscretizer(4, subsample=500, random_state=6).fit(table)
    np.testing.assert_array_equal(drawn.bin_edges_, list(other.bin_edges_))


@pytest.mark.parametrize("encode", ["ordinal", "onehot-dense", "onehot"])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"n_bins": 2},
        {"n_bins": [2, 9, 3, 4]},
        {"quantile_method": "linear"},
        {"n_bins": 7, "quantile_method": "inverted_cdf"},
        {"quantile_method": "median_unbiased"},
        {"strategy": "uniform"},
        {"strategy": "uniform", "n_bins": [2, 9, 3, 4]},
        {"strategy": "uniform", "subsample": 9, "random_state": 1},
        {"subsample": 9, "random_state": 1},
    ],
    ids=str,
)
def test_bins_are_equal_to_the_bit(settings: Any, encode: str) -> None:
    for table in tables(20, gaps=False):
        ours = KBinsDiscretizer(encode=encode, **settings).fit(table)
        try:
            theirs = sklearn.KBinsDiscretizer(encode=encode, **settings).fit(table)
        except IndexError:
            theirs = None
        if theirs is None or 0 in theirs.n_bins_:
            # values within 1e-8: scikit-learn has no bin left, or fails, we have one
            assert 1 in ours.n_bins_
            continue
        assert ours.n_bins_.tolist() == theirs.n_bins_.tolist()
        for mine, other in zip(ours.bin_edges_, theirs.bin_edges_, strict=True):
            np.testing.assert_array_equal(mine, other)
        requested = around(table)
        made = theirs.transform(requested)
        made = made.toarray() if encode == "onehot" else made
        np.testing.assert_array_equal(ours.transform(requested), made)
        np.testing.assert_array_equal(ours.inverse_transform(made), theirs.inverse_transform(made))
        names = [f"x{index}" for index in range(4)]
        assert ours.names_out(names) == [
            name.removesuffix(".0") for name in theirs.get_feature_names_out(names)
        ]


def of_k_means(rounds: int) -> Iterator[Any]:
    """Random columns: ties, few distinct values, centres that lose all of theirs, a far mean."""
    dice = np.random.default_rng(11)
    for turn in range(rounds):
        rows = int(dice.integers(6, 40 if turn % 4 else 900))
        yield [
            dice.normal(size=rows),
            dice.integers(-5, 9, rows).astype(float),
            dice.lognormal(0, 2, rows),
            1e9 + 1e-3 * dice.normal(size=rows),
            dice.choice([0.0, 1.0, 5.0, 100.0], rows),
            np.full(rows, 7.5),
        ][turn % 6][:, None]


def test_bins_around_the_centres_of_k_means_are_equal_to_the_bit() -> None:
    threads = pytest.importorskip("threadpoolctl")
    for turn, table in enumerate(of_k_means(120)):
        settings: dict[str, Any] = {"strategy": "kmeans", "encode": "ordinal"}
        if turn % 5 == 0:
            settings |= {"subsample": 6, "random_state": turn}
        count = 2 + turn % 5
        ours = KBinsDiscretizer(count, **settings).fit(table)
        with threads.threadpool_limits(1):  # of several each adds up a part of the values
            theirs = sklearn.KBinsDiscretizer(count, **settings).fit(table)
        np.testing.assert_array_equal(ours.bin_edges_[0], theirs.bin_edges_[0])
        requested = around(table)
        np.testing.assert_array_equal(ours.transform(requested), theirs.transform(requested))
        made = theirs.transform(table)
        np.testing.assert_array_equal(ours.inverse_transform(made), theirs.inverse_transform(made))


def test_k_means_of_columns_each_with_its_number_of_bins_gaps_and_few_values() -> None:
    dice = np.random.default_rng(5)
    table = np.column_stack([dice.normal(size=50), dice.normal(size=50), np.full(50, math.nan)])
    table[::3, 1] = math.nan
    ours = KBinsDiscretizer([4, 2, 3], strategy="kmeans").fit(table)
    for column, count in ((0, 4), (1, 2)):
        known = table[~np.isnan(table[:, column]), column][:, None]
        theirs = sklearn.KBinsDiscretizer(count, strategy="kmeans").fit(known)
        np.testing.assert_array_equal(ours.bin_edges_[column], theirs.bin_edges_[0])
    assert ours.n_bins_.tolist() == [4, 2, 1]
    assert np.isnan(ours.transform(table)[:, -1]).all()
    # of fewer values than bins scikit-learn finds no centres, here each value is one
    few = KBinsDiscretizer(5, encode="ordinal", strategy="kmeans").fit([1.0, 9.0, 2.0, 2.0])
    assert few.bin_edges_[0].tolist() == [1.0, 1.5, 5.5, 9.0]
    assert few.transform([1.0, 2.0, 5.6]) == [0.0, 1.0, 2.0]
    with pytest.raises(TransformError, match="column 0 has values whose squares exceed"):
        KBinsDiscretizer(2, strategy="kmeans").fit([-1e155, 1e155, 0.0])
    with pytest.raises(TransformError, match="k-means cannot be fitted on counts"):
        KBinsDiscretizer(strategy="kmeans", grid=[0.0, 1.0]).fit([1.0, 2.0])


@pytest.mark.parametrize("strategy", ["mean", "median", "most_frequent", "constant"])
@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("indicator", [False, True])
def test_an_imputer_is_equal(strategy: str, keep: bool, indicator: bool) -> None:
    options: dict[str, Any] = {"keep_empty_features": keep, "add_indicator": indicator}
    if strategy == "constant" and keep:
        options["fill_value"] = 2.5
    for table in tables(40):
        ours = Imputer(strategy, **options).fit(table)
        theirs = SimpleImputer(strategy=strategy, **options).fit(table)
        requested = np.concatenate([table, np.full((2, 4), math.nan)])
        made = theirs.transform(requested).astype(float)
        if not made.shape[1]:
            continue
        # sums are rounded in another order
        error = 1e-14 * np.nanmax(np.abs(table), initial=0.0) if strategy == "mean" else 0.0
        np.testing.assert_allclose(ours.transform(requested), made, rtol=0, atol=error)
        names = ["a", "b", "c", "d"]
        assert ours.names_out(names) == theirs.get_feature_names_out(names).tolist()
        if indicator and not np.isnan(table).all(axis=0).any():
            np.testing.assert_array_equal(
                ours.inverse_transform(made), theirs.inverse_transform(made)
            )


def test_products_of_pairs_are_the_polynomial_features() -> None:
    for table in tables(20, gaps=False):
        theirs = sklearn.PolynomialFeatures(2, interaction_only=True, include_bias=False)
        np.testing.assert_array_equal(
            InteractionFeatures().fit_transform(table), theirs.fit_transform(table)
        )
