"""Windows, decay and interactions of values at hand, against plain loops."""

from __future__ import annotations

import datetime as dt
import math
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paimon_features.core.errors import (
    DefinitionError,
    ExpressionError,
    RequestError,
    UnknownNameError,
)
from paimon_features.core.types.schema import Float64, Int64
from paimon_features.definitions import (
    Definitions,
    Entity,
    EventSource,
    FeatureService,
    FeatureView,
    Interaction,
    RequestSource,
    Selection,
)
from paimon_features.definitions.aggregates import Count, DecayedMean
from paimon_features.online_features import (
    InteractionFeatureBuilder,
    OnlineFeatureComputer,
    SlidingWindowAggregator,
    TimeDecayFeatureBuilder,
)
from paimon_features.testing.reference.aggregates import WindowEvents, reference_value

VIEW = FeatureView(
    "v",
    source=EventSource("s", schema={"id": Int64, "t": Int64}, event_time="t"),
    entity=Entity("e", keys={"id": Int64}),
    features=[Count()],
)
PROJECT = Definitions.of([VIEW])
VIEW_REFS = FeatureService("all", [VIEW]).items()

NUMBERS = st.one_of(st.none(), st.integers(-1000, 1000), st.floats(-1e6, 1e6))

# -- sliding windows -----------------------------------------------------------------------


@given(st.lists(st.integers(-50, 50), max_size=30), st.integers(1, 8), st.integers(1, 5))
def test_every_full_window_is_aggregated_once(values: list[int], size: int, step: int) -> None:
    windows = SlidingWindowAggregator(size, {"sum": np.sum, "last": lambda v: v[-1]}, step)
    expected = [
        {"sum": sum(values[i : i + size]), "last": values[i + size - 1]}
        for i in range(len(values))
        if i % step == 0 and i + size <= len(values)
    ]
    assert windows.aggregate(values) == windows.aggregate(np.array(values, np.int64)) == expected
    newest = values[-size:]
    assert windows.compute(values) == (
        {"sum": sum(newest), "last": newest[-1]} if len(values) >= size else {}
    )


@pytest.mark.parametrize(
    "values",
    [[1.0, None], np.array([1.0, np.nan]), pa.array([1, None]), pd.Series([1.0, None]),
     pl.Series([1, None]), pa.chunked_array([[1.0], [None]])],
    ids=lambda v: type(v).__name__,
)  # fmt: skip
def test_windows_of_any_column_are_numpy_arrays_with_nan_for_null(values: Any) -> None:
    windows = SlidingWindowAggregator(2, {"known": lambda v: int(np.isfinite(v).sum())})
    assert windows.aggregate(values) == [{"known": 1}]


def test_an_invalid_window_is_rejected() -> None:
    for size, step, functions, message in (
        (0, 1, {"a": sum}, "window_size=0"), (1, 0, {"a": sum}, "step_size=0"),
        (1, 1, {}, "agg_functions is empty"), (1, 1, {"a": 3}, r"agg_functions\['a'\] is 3"),
    ):  # fmt: skip
        with pytest.raises(DefinitionError, match=message):
            SlidingWindowAggregator(size, functions, step)  # type: ignore[arg-type]


# -- decay ---------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(NUMBERS, st.integers(0, 200)), max_size=20),
    st.floats(0.01, 1.0),
    st.booleans(),
)
def test_weights_are_the_factor_to_the_age(
    rows: list[tuple[float | None, int]], factor: float, timed: bool
) -> None:
    values = [value for value, _ in rows]
    times = [ts for _, ts in rows] if timed else list(range(len(rows)))
    pairs = [
        (factor ** (max(times) - ts), value)
        for value, ts in zip(values, times, strict=True)
        if value is not None
    ]
    total = math.fsum(w for w, _ in pairs)
    size = math.fsum(w * abs(v) for w, v in pairs)
    weighted = math.fsum(w * v for w, v in pairs)
    given_times = times if timed else None
    got = TimeDecayFeatureBuilder(factor, "weighted_sum").build(values, given_times)
    assert got["count"] == len(pairs)
    assert got["weight_sum"] == pytest.approx(total, rel=1e-12, abs=1e-300)
    assert got["weighted_sum"] == pytest.approx(weighted, abs=1e-12 * size + 1e-300)
    mean = TimeDecayFeatureBuilder(factor).build(values, given_times)["weighted_mean"]
    std = TimeDecayFeatureBuilder(factor, "weighted_std").build(values, given_times)["weighted_std"]
    if total == 0:
        assert mean is None
        assert std is None
    else:
        assert mean == pytest.approx(weighted / total, abs=1e-12 * size / total)
        spread = math.fsum(w * (v - weighted / total) ** 2 for w, v in pairs) / total
        assert std == pytest.approx(math.sqrt(spread), rel=1e-6, abs=1e-6)


def test_decay_is_that_of_the_decayed_mean() -> None:
    times = [0, 60_000, 3_600_000, 7_200_000]
    values = [1.0, 5.0, -2.0, 8.0]
    rows = [{"t": t, "x": x} for t, x in zip(times, values, strict=True)]
    window = WindowEvents(rows, "t", {"x": Float64}, times[-1], newest_ms=times[-1])
    expected = reference_value(DecayedMean("x", half_life="1h"), window)
    builder = TimeDecayFeatureBuilder(0.5 ** (1 / 3_600_000))
    assert builder.build(values, times)["weighted_mean"] == pytest.approx(expected, rel=1e-9)
    moments = [dt.datetime(2011, 12, 9) + dt.timedelta(milliseconds=ts) for ts in times]
    for stamps in (moments, np.array(moments, "datetime64[us]"), pd.Series(moments)):
        assert builder.build(values, stamps) == builder.build(values, times)


def test_times_too_large_for_a_float_still_tell_ages() -> None:
    builder = TimeDecayFeatureBuilder(0.5, "weighted_sum")
    assert builder.build([1.0, 1.0], [2**60, 2**60 + 1])["weighted_sum"] == 1.5


def test_decay_without_values_is_empty() -> None:
    assert TimeDecayFeatureBuilder(0.9).build([]) == {
        "weighted_mean": None, "weight_sum": 0.0, "count": 0,
    }  # fmt: skip
    assert TimeDecayFeatureBuilder(0.9, "weighted_sum").build([None, math.nan]) == {
        "weighted_sum": 0.0, "weight_sum": 0.0, "count": 0,
    }  # fmt: skip


def test_compute_takes_values_or_values_with_times() -> None:
    builder: OnlineFeatureComputer = TimeDecayFeatureBuilder(0.5)
    assert builder.compute([1.0, 4.0]) == builder.compute(([1.0, 4.0], [7, 8]))


def test_invalid_decay_is_rejected() -> None:
    for factor in (0.0, 1.1, -1, math.nan):
        with pytest.raises(DefinitionError, match="above 0 and at most 1"):
            TimeDecayFeatureBuilder(factor)
    with pytest.raises(DefinitionError, match="'mean'; expected one of: weighted_mean, weighted_s"):
        TimeDecayFeatureBuilder(0.5, "mean")
    for values, times, message in (
        ([1.0], [1, 2], "2 timestamps for 1 values"), ([1.0], [None], "1 timestamps are null"),
        (["a"], None, "values are String; expected numbers"), ([[1.0]], None, "values is list"),
    ):  # fmt: skip
        with pytest.raises(RequestError, match=message):
            TimeDecayFeatureBuilder(0.5).build(values, times)


# -- interactions --------------------------------------------------------------------------

NAIVE = {
    "product": lambda a, b: a * b, "sum": lambda a, b: a + b, "difference": lambda a, b: a - b,
    "abs_difference": lambda a, b: abs(a - b), "ratio": lambda a, b: a / b if b else 0.0,
    "min": min, "max": max,
}  # fmt: skip


@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=12), st.sampled_from([*NAIVE]))
def test_operations_equal_python_row_by_row(
    rows: list[tuple[float | None, float | None]], operation: str
) -> None:
    left, right = [a for a, _ in rows], [b for _, b in rows]
    found = InteractionFeatureBuilder().build({"a": left, "b": right}, [("a", "b", operation)])
    expected = [None if None in row else NAIVE[operation](*row) for row in rows]
    finite = [v if v is not None and math.isfinite(v) else None for v in expected]
    assert found == {f"a_{operation}_b": finite}


def test_a_value_of_its_own_gives_one_and_stands_for_all_beside_a_column() -> None:
    builder = InteractionFeatureBuilder()
    features = {"a": 6, "b": 4.0, "c": [1, 2], "s": "x", "t": "y", "n": None}
    got = builder.build(
        features,
        [("a", "b", "ratio"), ("a", "a", "*"), ("a", "c", "-"), ("c", "b", "+"), ("a", "n", "max"),
         ("s", "t", "concat")],
    )  # fmt: skip
    assert got == {
        "a_ratio_b": 1.5, "a_*_a": 36, "a_-_c": [5, 4], "c_+_b": [5.0, 6.0], "a_max_n": None,
        "s_concat_t": "xy",
    }  # fmt: skip
    assert type(got["a_*_a"]) is int


@pytest.mark.parametrize(
    "make", [list, np.array, pa.array, pd.Series, pl.Series], ids=lambda m: m.__name__
)
def test_results_have_the_type_of_the_inputs(make: Any) -> None:
    features = {"a": make([1.0, 3.0]), "b": make([2.0, 0.0])}
    found = InteractionFeatureBuilder().build(features, [("a", "b", "/")])["a_/_b"]
    assert type(found) is type(features["a"]) or isinstance(found, type(features["a"]))
    assert list(pa.array(found).to_pylist()) == [0.5, 0.0]


def test_a_ratio_by_zero_is_zero_by_default() -> None:
    features = {"a": [1.0, None, 0.0], "b": [0, 0, 0]}
    ratio = [("a", "b", "ratio")]
    assert InteractionFeatureBuilder().build(features, ratio) == {"a_ratio_b": [0.0, None, 0.0]}
    own = InteractionFeatureBuilder(zero=-1).build(features, ratio)
    assert own == {"a_ratio_b": [-1.0, None, -1.0]}
    null = InteractionFeatureBuilder(zero=None).build(features, ratio)
    assert null == {"a_ratio_b": [None, None, None]}


def test_results_that_are_not_numbers_are_null() -> None:
    builder = InteractionFeatureBuilder()
    features = {"big": 2**62, "huge": 1e300, "tiny": 1e-300}
    got = builder.build(
        features, [("big", "big", "*"), ("huge", "huge", "*"), ("huge", "tiny", "/")]
    )
    assert set(got.values()) == {None}


def test_errors_of_unknown_names_list_the_known_ones() -> None:
    builder = InteractionFeatureBuilder()
    with pytest.raises(UnknownNameError, match="unknown feature 'c'; available: a, b"):
        builder.build({"a": 1, "b": 2}, [("a", "c", "sum")])
    with pytest.raises(
        UnknownNameError, match=r"unknown operation 'pow'; available: \*, \+, -, /, a"
    ):
        builder.build({"a": 1}, [("a", "a", "pow")])
    with pytest.raises(RequestError, match="feature 'a' has 2 values, 'b' 3"):
        builder.build({"a": [1, 2], "b": [1, 2, 3]}, [("a", "b", "sum")])
    with pytest.raises(ExpressionError, match="needs values of one type, got int64 and string"):
        builder.build({"a": 1, "b": "x"}, [("a", "b", "sum")])
    with pytest.raises(RequestError, match="a is list<item: int64>"):
        builder.build({"a": [[1]]}, [("a", "a", "sum")])


@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=8), st.sampled_from([*NAIVE]))
def test_a_builder_and_an_interaction_of_a_project_give_one_number_to_the_bit(
    rows: list[tuple[float | None, float | None]], operation: str
) -> None:
    option = ", zero=0" if operation == "ratio" else ""
    request = RequestSource("r", {"a": Float64, "b": Float64})
    compiled = PROJECT.interaction(Interaction("x", f"{operation}(a, b{option})", request=request))
    left, right = (pa.array([*side], pa.float64()) for side in zip(*rows, strict=True))
    anchor = PROJECT.outputs(VIEW_REFS)
    computed = Selection([*anchor, compiled]).compute({}, {"a": left, "b": right}, len(rows))
    got = InteractionFeatureBuilder().build({"a": left, "b": right}, [("a", "b", operation)])
    assert got[f"a_{operation}_b"].equals(computed[compiled].values)
