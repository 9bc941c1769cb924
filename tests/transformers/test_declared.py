"""Logarithms, bounds and products of columns: their edges, inverses and refusals."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paimon_features.core.columns.column import Column
from paimon_features.core.errors import TransformError
from paimon_features.transformers import Clip, InteractionFeatures, LogTransform


@given(st.lists(st.floats(-0.999, 1e300), min_size=1), st.sampled_from([1.0, 2.5, 1e-3]))
def test_logarithms_are_those_of_the_library_and_come_back(values: list[float], to: float) -> None:
    moved = [abs(v) for v in values] if to < 1 else values
    out = LogTransform(to).fit_transform(moved)
    for value, got in zip(moved, out, strict=True):
        expected = math.log1p(value) if to == 1 else math.log(value + to)
        assert got == pytest.approx(expected, rel=1e-15, abs=1e-15)
    back = LogTransform(to).fit([[1.0]]).inverse_transform(out)
    for value, got in zip(moved, back, strict=True):
        # a logarithm of x has an error of half a unit in its last place: of x as many as its size
        near = 2.0**-52 * (1 + abs(math.log(value + to)))
        assert got == pytest.approx(value, rel=2 * near, abs=2 * near * (value + to))


@given(st.lists(st.floats(-1e300, 1e300), min_size=1), st.sampled_from([1.0, 0.01, 1e6]))
def test_signed_logarithms_are_odd_and_come_back(values: list[float], to: float) -> None:
    log = LogTransform(to, signed=True).fit([1.0])
    out = log.transform(values)
    assert log.transform([-v for v in values]) == [-v for v in out]
    for value, got, back in zip(values, out, log.inverse_transform(out), strict=True):
        assert got == pytest.approx(math.copysign(math.log1p(abs(value) / to), value), rel=1e-15)
        assert back == pytest.approx(value, rel=1e-12)


def test_small_values_keep_their_digits() -> None:
    assert LogTransform().fit_transform([1e-20]) == [1e-20]
    assert LogTransform().fit([1.0]).inverse_transform([1e-20]) == [1e-20]


def test_what_has_no_logarithm_is_refused_by_name_and_marked_in_a_service() -> None:
    reported = (
        "Negative values in data passed to LogTransform: column 'b' contains -1.0; expected values "
        "above -1, or LogTransform(signed=True)"
    )
    table = pa.table({"a": [0.5, 1.0], "b": [0.0, -1.0]})
    with pytest.raises(TransformError) as error:
        LogTransform().fit(table)
    assert str(error.value) == reported
    log = LogTransform().fit([[0.5, 0.0]])
    with pytest.raises(TransformError) as error:
        log.transform(table)
    assert str(error.value) == reported
    for data in ([[1.0, 0.0], [1.0, -3.0]], np.array([[1.0, 0.0], [1.0, -3.0]])):
        with pytest.raises(
            TransformError, match=r"column 1 contains -3.0; expected values above -1"
        ):
            log.transform(data)
    known = np.array([True, True, False])
    columns = [Column(np.array([1.0, 2.0, 3.0])), Column(np.array([-1.0, 2.0, -5.0]), known)]
    applied = log.apply(columns)
    assert applied.failed is not None
    assert applied.failed.tolist() == [True, False, False]
    assert log.apply(columns[:1] * 2).failed is None
    for offset, signed in ((-1.0, False), (math.inf, False), (math.nan, True), (0.0, True)):
        with pytest.raises(TransformError, match="expected a number that is not negative"):
            LogTransform(offset, signed=signed).fit([[1.0]])
    assert LogTransform(0.0).fit_transform([1.0]) == [0.0]


def test_bounds_hold_and_nothing_else_changes() -> None:
    clip = Clip(-1, 2).fit([[0.0]])
    assert clip.transform([[-1.5], [-1.0], [0.25], [2.0], [9.0], [None]]) == [
        [-1.0], [-1.0], [0.25], [2.0], [2.0], [None],
    ]  # fmt: skip
    assert Clip(low=0).fit_transform([-1, 5]) == [0.0, 5.0]
    assert Clip(high=0).fit_transform([-1, 5]) == [-1.0, 0.0]
    assert np.isnan(Clip(0, 1).fit_transform(np.array([math.nan]))).all()
    assert Clip(1, 1).fit_transform([5.0]) == [1.0]
    for wrong in ((None, None), (2, 1), (0, math.inf), (math.nan, None)):
        with pytest.raises(
            TransformError, match="expected one or two numbers, the smaller one firs"
        ):
            Clip(*wrong).fit([[1.0]])
    with pytest.raises(TransformError, match="Clip has no inverse"):
        clip.inverse_transform([[1.0]])
    with pytest.raises(
        TransformError, match=r"a Clip with low=-1.0 cannot be merged with one with low=0.0"
    ):
        clip.merge(Clip(0, 1).fit([[0.0]]))


def test_columns_are_combined_by_name_or_place_and_nulls_stay() -> None:
    table = pa.table({"a": [6.0, None, 5.0, 0.0], "b": [2.0, 1.0, 0.0, math.nan]})
    both = InteractionFeatures([("a", "b", "ratio"), (1, 0, "difference"), ("b", "b", "product")])
    out = both.fit_transform(table)
    assert out.schema.names == ["a", "b", "a_ratio_b", "b_difference_a", "b_product_b"]
    rows = [[None if v is not None and v != v else v for v in c] for c in out.to_pydict().values()]
    assert rows[2:] == [[3.0, None, 0.0, None], [-4.0, None, -5.0, None], [4.0, 1.0, 0.0, None]]
    assert out["a_ratio_b"].null_count == 1  # NaN is not null
    null = InteractionFeatures([("a", "b", "ratio")], keep=False, zero=None).fit(table)
    assert null.transform(table)["a_ratio_b"].is_valid().to_pylist() == [True, False, False, True]
    assert np.isnan(null.transform(np.array([[1.0, 0.0]]))).all()
    assert InteractionFeatures([(0, 1, "ratio")], zero=-1.0).fit_transform([[3.0, 0.0]]) == [
        [3.0, 0.0, -1]
    ]
    assert InteractionFeatures([(0, 0, "product")], keep=False).fit_transform([3.0]) == [9.0]


def test_wrong_interactions_are_reported() -> None:
    for wrong in (("a", "b"), ("a", "b", "power"), (True, 0, "sum"), (0.5, 1, "sum")):
        with pytest.raises(
            TransformError, match=r"expected \(left, right, operation\), columns by"
        ):
            InteractionFeatures([wrong]).fit([[1.0]])  # type: ignore[list-item]
    with pytest.raises(TransformError, match="unknown column 'c'; available: a, b"):
        InteractionFeatures([("c", 0, "sum")]).fit(pa.table({"a": [1.0], "b": [1.0]}))
    with pytest.raises(TransformError, match="unknown column 'a'; available: none; use pos"):
        InteractionFeatures([("a", 0, "sum")]).fit([[1.0]])
    with pytest.raises(TransformError, match="column 2 is out of range; the data have 2 columns"):
        InteractionFeatures([(2, 0, "sum")]).fit([[1.0, 2.0]])
    with pytest.raises(TransformError, match="has no output columns"):
        InteractionFeatures([], keep=False).fit([[1.0]])
    with pytest.raises(TransformError, match="one column has no pairs"):
        InteractionFeatures(keep=False).fit([[1.0]])
    with pytest.raises(TransformError, match="zero=inf; expected a finite number or None"):
        InteractionFeatures(zero=math.inf).fit([[1.0]])
