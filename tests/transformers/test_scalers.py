"""Scalers against exact arithmetic, against scikit-learn, and under the laws of merging."""

from __future__ import annotations

import itertools
import json
import math
import random
import warnings
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from paimon_features.core.errors import TransformError
from paimon_features.testing.sizes import every_seed
from paimon_features.transformers import FeatureTransformer, MinMaxScaler, StandardScaler
from tests.reference import transformers as naive

sklearn = pytest.importorskip("sklearn.preprocessing", reason="pip install scikit-learn")

EPS = 2.0**-52
finite = st.floats(-1e9, 1e9, width=32)
tables = hnp.arrays(
    np.float64,
    st.tuples(st.integers(1, 30), st.integers(1, 4)),
    elements=st.one_of(finite, st.just(math.nan), st.sampled_from([0.0, 1.0, 0.1, -3.0])),
)


def columns(matrix: Any) -> list[list[Any]]:
    return [[None if math.isnan(v) else v for v in column] for column in matrix.T.tolist()]


def nulls(matrix: Any) -> list[list[Any]]:
    return [[None if math.isnan(v) else v for v in row] for row in matrix.tolist()]


@given(tables)
def test_a_standard_scaler_is_the_exact_one_up_to_rounding(matrix: Any) -> None:
    out = StandardScaler().fit_transform(nulls(matrix))
    for index, values in enumerate(columns(matrix)):
        variance, mean = naive.variance(values), naive.mean(values)
        # the mean is rounded to float64, which a small deviation shows
        error = 4 * EPS * abs(float(mean)) / math.sqrt(variance) if variance and mean else 0.0
        if error > 0.1:
            continue  # the deviation is rounding: another test
        for row, value in enumerate(naive.standardized(values, values)):
            assert out[row][index] == (
                None if value is None else pytest.approx(value, rel=1e-12, abs=1e-9 + error)
            )


@given(tables, st.sampled_from([(0, 1), (-1, 1), (2.5, 30.0)]))
def test_a_min_max_scaler_is_the_exact_one_up_to_rounding(matrix: Any, to: Any) -> None:
    out = MinMaxScaler(to).fit_transform(nulls(matrix))
    for index, values in enumerate(columns(matrix)):
        there = naive.known(values) or [0.0]
        reach = max(there) - min(there)
        if 0 < reach < 1e-14:
            continue  # taken for constant
        error = 1e-15 * max(map(abs, there)) * (to[1] - to[0]) / (reach or 1.0)
        for row, value in enumerate(naive.stretched(values, values, *map(float, to))):
            assert out[row][index] == (
                None if value is None else pytest.approx(value, rel=1e-12, abs=1e-12 + error)
            )


@given(tables)
def test_scalers_are_those_of_scikit_learn(matrix: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of columns without a value
        theirs = sklearn.StandardScaler().fit(matrix)
        other = sklearn.MinMaxScaler((-2, 5)).fit(matrix)
        mapped, stretched = theirs.transform(matrix), other.transform(matrix)
    ours = StandardScaler().fit(matrix)
    # both sum up to 30 values
    error = len(matrix) * EPS * np.nanmax(np.abs(matrix), initial=0.0)
    np.testing.assert_allclose(ours.mean_, theirs.mean_, rtol=0, atol=error)
    np.testing.assert_allclose(ours.var_, theirs.var_, rtol=1e-6, atol=1e-9)
    for index in range(matrix.shape[1]):
        # between n and ten units in the last place of the mean we still stretch (docs)
        if len(matrix) <= 10 or theirs.scale_[index] != 1.0 or ours.scale_[index] == 1.0:
            near = 1e-6 + 2 * error / np.nan_to_num(ours.scale_[index], nan=1.0)
            np.testing.assert_allclose(
                ours.transform(matrix)[:, index], mapped[:, index], rtol=1e-6, atol=near
            )
    exact = MinMaxScaler((-2, 5)).fit(matrix)
    np.testing.assert_array_equal(exact.transform(matrix), stretched)
    for name in ("data_min_", "data_max_", "data_range_", "scale_", "min_"):
        np.testing.assert_array_equal(getattr(exact, name), getattr(other, name), name)
    np.testing.assert_allclose(
        exact.inverse_transform(stretched), other.inverse_transform(stretched)
    )
    back = ours.inverse_transform(ours.transform(matrix))
    np.testing.assert_allclose(back, matrix, rtol=1e-9, atol=1e-6)


@pytest.mark.parametrize("value", [0.0, 0.1, 1e9, -7e5, 1 / 3])
@pytest.mark.parametrize("rows", [1, 2, 7, 1000, 40_000])
def test_a_constant_column_is_moved_and_not_stretched(value: float, rows: int) -> None:
    data = np.full((rows, 1), value)
    scaler = StandardScaler().fit(data)
    assert (scaler.mean_[0], scaler.var_[0], scaler.scale_[0]) == (value, 0.0, 1.0)
    assert scaler.transform([[value], [value + 2]]) == [[0.0], [value + 2 - value]]
    assert MinMaxScaler((3, 4)).fit(data).transform(data[:1]).tolist() == [[3.0]]
    noisy = np.where(np.arange(rows)[:, None] % 2, np.nextafter(value, 1e10), data)
    assert StandardScaler().fit(noisy).scale_[0] == 1.0 or value == 0.0
    assert sklearn.StandardScaler().fit(noisy).scale_[0] == 1.0 or value == 0.0


def test_a_mean_of_a_billion_and_a_deviation_of_a_thousandth_lose_nothing() -> None:
    rng = np.random.default_rng(3)
    data = 1e9 + rng.normal(scale=1e-3, size=(50_000, 2))
    mean, variance = naive.mean(data[:, 0].tolist()), naive.variance(data[:, 0].tolist())
    assert mean is not None
    assert variance is not None
    whole = StandardScaler().fit(data)
    parts = StandardScaler()
    for part in np.array_split(data, 37):
        parts.partial_fit(part)
    merged = StandardScaler()
    for part in np.array_split(data, 23)[::-1]:
        merged = StandardScaler().fit(part).merge(merged)
    for scaler in (whole, parts, merged):
        assert scaler.var_[0] == pytest.approx(float(variance), rel=1e-12)
        assert scaler.mean_[0] == float(mean)
    # scikit-learn takes such a deviation for rounding, and does not stretch the column
    assert sklearn.StandardScaler().fit(data).scale_[0] == 1.0
    assert float(np.std(whole.transform(data)[:, 0])) == pytest.approx(1.0, rel=1e-9)


@given(st.lists(tables.map(lambda t: t[:, :1]), min_size=1, max_size=5), st.randoms())
def test_neither_parts_nor_the_order_of_merging_matter(parts: list[Any], rng: Any) -> None:
    whole = np.concatenate(parts)
    for make in (StandardScaler, MinMaxScaler):
        at_once = make().fit(whole)
        stepwise = make()
        for part in parts:
            stepwise.partial_fit(part)
        fitted = [make().fit(part) for part in parts]
        rng.shuffle(fitted)
        while len(fitted) > 1:
            left, right = fitted.pop(rng.randrange(len(fitted))), fitted.pop()
            one, other = left.merge(right), right.merge(left)
            assert one.to_params() == other.to_params()
            fitted.append(one)
        assert fitted[0].merge(make()) == fitted[0] == make().merge(fitted[0])
        for scaler in (stepwise, fitted[0]):
            if make is MinMaxScaler:
                assert scaler.to_params() == at_once.to_params()
                continue
            assert scaler.rows_seen == len(whole)
            assert scaler.n_samples_seen_.tolist() == at_once.n_samples_seen_.tolist()
            largest = np.nanmax(np.abs(whole), initial=0.0)
            np.testing.assert_allclose(scaler.mean_, at_once.mean_, rtol=0, atol=4 * EPS * largest)
            np.testing.assert_allclose(scaler.var_, at_once.var_, rtol=1e-12, atol=1e-300)


@given(tables)
def test_parameters_are_json_and_give_the_same_scaler_back(matrix: Any) -> None:
    for scaler in (StandardScaler().fit(matrix), MinMaxScaler((0.5, 2)).fit(matrix)):
        text = json.dumps(scaler.to_params(), allow_nan=False)
        again = FeatureTransformer.from_params(json.loads(text))
        assert type(again) is type(scaler)
        assert again == scaler
        np.testing.assert_array_equal(again.transform(matrix), scaler.transform(matrix))
        assert json.dumps(again.to_params()) == text
        assert again.partial_fit(matrix).rows_seen == 2 * len(matrix)


def test_a_second_fit_forgets_and_a_merge_changes_neither() -> None:
    left, right = StandardScaler().fit([[1.0], [2.0]]), StandardScaler().fit([[6.0]])
    before = left.to_params(), right.to_params()
    assert left.merge(right).mean_.tolist() == [3.0]
    assert (left.to_params(), right.to_params()) == before
    assert left.fit([[7.0], [9.0]]).mean_.tolist() == [8.0]
    for other, message in (
        (StandardScaler().fit([[1.0, 2.0]]), "of 1 columns cannot be merged with one of 2"),
        (MinMaxScaler().fit([[1.0]]), "cannot be merged with a MinMaxScaler"),
    ):
        with pytest.raises(TransformError, match=message):
            left.merge(other)  # type: ignore[arg-type]
    with pytest.raises(
        TransformError,
        match=r"feature_range=\[0.0, 1.0\] cannot be merged with one with .*=\[0.0, 2.0\]",
    ):
        MinMaxScaler().fit([[1.0]]).merge(MinMaxScaler((0, 2)).fit([[1.0]]))
    for wrong in ((1, 1), (2, 1), (0, math.inf)):
        with pytest.raises(TransformError, match="expected two numbers, the smaller one first"):
            MinMaxScaler(wrong).fit([[1.0]])


@pytest.mark.parametrize("scaler", [StandardScaler(), MinMaxScaler()])
def test_parameters_that_are_not_whole_are_refused(scaler: Any) -> None:
    params = scaler.fit([[1.0, 2.0], [2.0, 4.0]]).to_params()
    for key in params:
        broken = {k: v for k, v in params.items() if k != key}
        with pytest.raises(TransformError, match="not complete|of kind 'None'"):
            FeatureTransformer.from_params(broken)
    key = next(k for k in ("mean", "min") if k in params)
    with pytest.raises(TransformError, match="expected one each"):
        FeatureTransformer.from_params({**params, key: [1.0]})
    with pytest.raises(TransformError, match="1 names for 2 columns"):
        FeatureTransformer.from_params({**params, "names": ["a"]})
    with pytest.raises(TransformError, match="of kind 'magic'; available: .*standard_scaler"):
        FeatureTransformer.from_params({**params, "kind": "magic"})


@every_seed(3)
def test_every_grouping_of_parts_gives_one_scaler(seed: int) -> None:
    rng = random.Random(seed)
    parts = [
        [[rng.choice([1e9, 0.0]) + rng.gauss(0, 1)] for _ in range(rng.randrange(1, 6))]
        for _ in range(4)
    ]
    found = set()
    for order in itertools.permutations(parts):
        merged = StandardScaler()
        for part in order:
            merged = merged.merge(StandardScaler().fit(part))
        found.add(float(merged.var_[0]))
    assert max(found) - min(found) <= 1e-12 * max(found)


def exactly(values: list[float]) -> tuple[Fraction, Fraction]:
    """Mean and variance as fractions: the same as the naive ones, in integers."""
    ratios = [value.as_integer_ratio() for value in values]
    whole = max(below for _, below in ratios)
    scaled = [above * (whole // below) for above, below in ratios]
    n, total, squares = len(scaled), sum(scaled), sum(v * v for v in scaled)
    return Fraction(total, whole * n), Fraction(squares * n - total * total, (whole * n) ** 2)


@pytest.mark.parametrize("far", [0.0, 1.0, 1e3, 1e6, 1e9, 1e12, -1e12])
@pytest.mark.parametrize("form", ["matrix", "columns", "parts"])
def test_a_variance_keeps_its_digits_at_every_condition_number(far: float, form: str) -> None:
    # the condition number of a variance is about |mean| / deviation
    dice = np.random.default_rng(int(abs(far)) % 1000)
    data = far + dice.normal(size=(20_000, 3)) * [1.0, 1e-2, 1e-3] + [0.0, 0.0, far]
    data[0] += [1e4, 0.0, 3.0]  # the first value is no good place to measure from
    data[dice.random(data.shape) < 0.01] = math.nan
    scaler = StandardScaler()
    if form == "matrix":
        scaler.fit(data)
    elif form == "columns":
        scaler.fit(pa.table({name: data[:, j] for j, name in enumerate("abc")}))
    else:
        for part in np.array_split(data, 71):
            scaler.partial_fit(part)
    for column in range(3):
        mean, variance = exactly([v for v in data[:, column].tolist() if v == v])
        # an error of the mean shows in a deviation that is not much more than its rounding
        largest = float(np.nanmax(np.abs(data[:, column])))
        assert abs(scaler.mean_[column] - float(mean)) <= 4 * EPS * largest
        assert scaler.var_[column] == pytest.approx(float(variance), rel=1e-12)


def test_values_that_nearly_overflow_and_whole_numbers_are_fitted() -> None:
    big = np.array([[1e150], [-1e150], [0.0]])
    assert StandardScaler().fit(big).var_[0] == pytest.approx(2e300 / 3)
    whole = np.arange(100_000, dtype=np.int64)[:, None] + 2**52
    assert StandardScaler().fit(whole).var_[0] == pytest.approx((100_000**2 - 1) / 12, rel=1e-12)
    flags = np.tile([[True], [False]], (30_000, 1))
    assert StandardScaler().fit(flags).mean_.tolist() == [0.5]
    assert StandardScaler().fit(flags).var_[0] == pytest.approx(0.25, rel=1e-12)
