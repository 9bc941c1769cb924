"""Cleaning and choosing against loops, in every form."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paimon_features.core.errors import TransformError
from paimon_features.transformers import FeatureNormalizer, FeatureSelector
from tests.reference import transformers as naive
from tests.transformers.forms import FORMS, put, rows_of

numbers = st.one_of(st.none(), st.integers(-4, 4).map(float), st.floats(-1e6, 1e6, width=32))
rows = st.lists(st.tuples(numbers, numbers, numbers).map(list), min_size=1, max_size=25)


def columns(table: Any) -> list[list[Any]]:
    return [list(column) for column in zip(*table, strict=True)]


def near(values: list[Any]) -> list[Any]:
    return [None if v is None else pytest.approx(v, rel=1e-9, abs=1e-9) for v in values]


@given(rows, st.sampled_from(["mean", "median", "mode", "constant", "forward"]))
def test_missing_values_are_filled_as_a_loop_fills_them(table: Any, strategy: Any) -> None:
    got = columns(FeatureNormalizer.handle_missing_values(table, strategy, 7.5))
    for own, values in zip(got, columns(table), strict=True):
        assert own == near(naive.filled(values, strategy, 7.5))


@given(rows)
def test_rows_with_a_gap_are_dropped(table: Any) -> None:
    got = FeatureNormalizer.handle_missing_values(table, "drop")
    assert got == [row for row in table if None not in row]


@given(
    rows,
    st.sampled_from(["iqr", "zscore", "winsorize"]),
    st.sampled_from([0.0, 0.5, 1.5, 3.0, 10.0, 49.0]),
)
def test_outliers_are_moved_onto_the_bounds(table: Any, method: Any, threshold: Any) -> None:
    got = columns(FeatureNormalizer.handle_outliers(table, method, threshold))
    for own, values in zip(got, columns(table), strict=True):
        expected = naive.clipped(values, method, threshold)
        assert own == [
            None if v is None else pytest.approx(v, rel=1e-7, abs=1e-5) for v in expected
        ]


@given(rows, st.integers(1, 3))
def test_the_best_columns_are_those_with_the_greatest_scores(table: Any, k: int) -> None:
    values = columns(table)
    scores = [float(naive.variance(v) or 0) for v in values]
    got = FeatureSelector.select_by_variance(table, k)
    assert len(set(got)) == k
    assert [scores[i] for i in got] == near([scores[i] for i in naive.best(scores, k)])
    target = [float(i % 5) for i in range(len(table))]
    scores = [abs(naive.correlation(v, target)) for v in values]
    got = FeatureSelector.select_by_correlation(table, target, k)
    assert [scores[i] for i in got] == [
        pytest.approx(scores[i], abs=1e-6) for i in naive.best(scores, k)
    ]


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same(form: str) -> None:
    table = [[1.0, 5.0, 0.0], [None, 5.0, 9.0], [3.0, None, -90.0], [2.0, 6.0, 1.0]]
    data = put(form, table)
    for strategy, expected in (
        ("mean", [[1, 5, 0], [2, 5, 9], [3, 16 / 3, -90], [2, 6, 1]]),
        ("drop", [[1, 5, 0], [2, 6, 1]]),
        ("forward", [[1, 5, 0], [1, 5, 9], [3, 5, -90], [2, 6, 1]]),
        ("constant", [[1, 5, 0], [0, 5, 9], [3, 0, -90], [2, 6, 1]]),
    ):
        out = FeatureNormalizer.handle_missing_values(data, strategy)
        assert type(out) is type(data)
        assert [near(row) for row in expected] == rows_of(out)
    out = FeatureNormalizer.handle_outliers(data, "winsorize", 25.0)
    assert type(out) is type(data)
    assert rows_of(out)[1][0] is None
    assert rows_of(out)[2][2] == pytest.approx(-22.5)
    assert FeatureSelector.select_by_variance(data, 2) == [2, 0]
    assert FeatureSelector.select_by_correlation(data, put(form, [[v[2]] for v in table]), 1) == [2]


def test_texts_can_be_filled_but_have_no_mean() -> None:
    words = [["b"], [None], ["a"], ["a"]]
    fill = FeatureNormalizer.handle_missing_values
    assert fill(words, "mode") == [["b"], ["a"], ["a"], ["a"]]
    assert fill(words, "forward") == [["b"], ["b"], ["a"], ["a"]]
    assert fill(words, "constant", "none") == [["b"], ["none"], ["a"], ["a"]]
    assert fill([[True], [None]], "constant", False) == [[True], [False]]
    assert fill([[None], [None]], "constant", "x") == [["x"], ["x"]]
    for call, message in (
        (lambda: fill(words), "column 0 contains strings; expected numbers"),
        (lambda: fill(words, "constant"), "column 0 contains str; fill_value=0 is of another type"),
        (
            lambda: fill([[1.0], [None]], "constant", "x"),
            "contains numbers; fill_value='x' is of another type",
        ),
        (lambda: fill(words, "zero"), "strategy='zero'; expected one of: mean, median, mode"),
        (lambda: FeatureNormalizer.handle_outliers(words), "column 0 contains strings"),
        (lambda: FeatureNormalizer.handle_outliers([[1]], "mad"), "method='mad'; expected one of"),
        (lambda: FeatureNormalizer.handle_outliers([[1]], "iqr", -1), "threshold=-1 for iqr"),
        (lambda: FeatureNormalizer.handle_outliers([[1]], "winsorize", 50), "from 0 to below 50"),
        (lambda: FeatureSelector.select_by_variance([[1, 2]], 3), "k=3; expected 1 to 2"),
        (lambda: FeatureSelector.select_by_variance([[1, 2]], 0), "k=0; expected 1 to 2"),
        (lambda: FeatureSelector.select_by_correlation([[1], [2]], [1], 1), "y has 1 rows and 1"),
    ):
        with pytest.raises(TransformError, match=message):
            call()


def test_integers_stay_integers_where_nothing_else_is_requested() -> None:
    whole = np.array([[3], [1], [90]])
    assert FeatureNormalizer.handle_missing_values(whole, "mode").dtype == whole.dtype
    assert FeatureNormalizer.handle_missing_values([[1], [None]], "constant", 0.5) == [[1.0], [0.5]]
    assert math.isnan(FeatureNormalizer.handle_missing_values(np.array([math.nan]), "mean")[0])
