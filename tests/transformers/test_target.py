"""The target encoder against scikit-learn, against a loop, in parts, and without any leak."""

from __future__ import annotations

import json
import math
import random
import warnings
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paimon_features.core.errors import TransformError
from paimon_features.core.types.schema import Float64, Int64, String
from paimon_features.testing.reference import categorical as naive
from paimon_features.testing.reference.fitted import row_of
from paimon_features.transformers import FeatureTransformer, TargetEncoder

sklearn = pytest.importorskip("sklearn.preprocessing", reason="pip install scikit-learn")
from sklearn.model_selection import KFold, StratifiedKFold  # noqa: E402 - after the check

SMOOTH = ["auto", 0.0, 2.5]


def drawn(rng: Any, kind: str, rows: int) -> tuple[Any, Any]:
    x = np.array([rng.choice(list("abcdef"), rows), rng.choice(list("xyz"), rows)], object).T
    y = {
        "continuous": rng.normal(5, 3, rows),
        "binary": rng.choice(["no", "yes"], rows),
        "multiclass": rng.integers(0, 3, rows),
    }[kind]
    return x, y


@pytest.mark.parametrize("kind", ["continuous", "binary", "multiclass"])
def test_it_is_that_of_scikit_learn(kind: str) -> None:
    rng = np.random.default_rng(4)
    for turn in range(20):
        x, y = drawn(rng, kind, int(rng.integers(30, 90)))
        smooth, seed, shuffle = SMOOTH[turn % 3], turn, bool(turn % 2)
        parts = (KFold if kind == "continuous" else StratifiedKFold)(
            4, shuffle=shuffle, random_state=seed if shuffle else None
        )
        theirs = sklearn.TargetEncoder(smooth=smooth, cv=parts)
        ours = TargetEncoder(smooth=smooth, cv=4, shuffle=shuffle, seed=seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a class with fewer rows than folds
            expected = theirs.fit_transform(x, y)
        np.testing.assert_allclose(ours.fit_transform(x, y), expected, rtol=1e-9, atol=1e-12)
        assert ours.target_type_ == theirs.target_type_ == kind
        np.testing.assert_allclose(ours.target_mean_, theirs.target_mean_, rtol=1e-12)
        for mine, its in zip(ours.encodings_, theirs.encodings_, strict=True):
            np.testing.assert_allclose(mine, its, rtol=1e-11)
        requested = np.array([["a", "unknown"], ["unknown", "x"]], object)
        np.testing.assert_allclose(
            ours.transform(requested), theirs.transform(requested), rtol=1e-12
        )
        assert ours.names_out(["p", "q"]) == theirs.get_feature_names_out(["p", "q"]).tolist()


targets = st.one_of(
    st.lists(st.tuples(st.sampled_from(["a", "b", None]), st.floats(-1e6, 1e6) | st.none())),
    st.lists(st.tuples(st.sampled_from(["a", "b", None]), st.sampled_from(["u", "v", None]))),
)


@given(st.lists(targets.map(lambda rows: [*rows, ("a", None)]), min_size=1, max_size=4),
       st.randoms(), st.sampled_from(SMOOTH))  # fmt: skip
def test_parts_and_merges_in_any_order_are_the_same_to_the_bit(
    parts: Any, rng: Any, smooth: Any
) -> None:
    kinds = {type(y) for part in parts for _, y in part if y is not None}
    if len(kinds) > 1:
        parts = [[(x, y) for x, y in part if not isinstance(y, str)] for part in parts]
        kinds = {float}
    of = "binary" if kinds == {str} else "continuous"

    def fit(encoder: TargetEncoder, rows: Any) -> TargetEncoder:
        return encoder.partial_fit([[x] for x, _ in rows], [y for _, y in rows])

    def new() -> TargetEncoder:
        return TargetEncoder(target_type=of, smooth=smooth)

    rows = [row for part in parts for row in part]
    if not any(y is not None for _, y in rows):
        return
    whole, stepwise = fit(new(), rows), new()
    merged = new()
    for part in parts:
        fit(stepwise, part)
    shuffled = rng.sample(parts, len(parts))
    for part in shuffled:
        own = fit(new(), part)
        merged = merged.merge(own) if rng.random() < 0.5 else own.merge(merged)
    requested = [["a"], ["b"], ["new"], [None]]
    assert whole == stepwise == merged
    assert (
        whole.transform(requested) == stepwise.transform(requested) == merged.transform(requested)
    )
    params = json.loads(json.dumps(whole.to_params(), allow_nan=False))
    again = FeatureTransformer.from_params(params)
    assert again == whole
    # and what the parameters alone say, to the bit
    assert again.transform(requested) == [row_of(params, row)[0] for row in requested]


def test_numbers_far_from_zero_keep_their_digits() -> None:
    rng = np.random.default_rng(0)
    y = 1e9 + rng.normal(0, 1e-3, 400)
    x = [["a" if v > 1e9 else "b"] for v in y]
    encoder = TargetEncoder(target_type="continuous", smooth="auto").fit(x, y)
    among = list(zip(("a" if v > 1e9 else "b" for v in y), y.tolist(), strict=True))
    for value, got in zip(["a", "b"], encoder.transform(["a", "b"]), strict=True):
        expected = naive.mean_of(value, among, "auto")
        assert expected is not None
        assert got - 1e9 == pytest.approx(expected - 1e9, rel=1e-3)
    assert encoder.target_mean_ == math.fsum(y) / 400


def test_a_row_is_encoded_by_targets_that_were_known_at_its_time() -> None:
    #  times    0    10    20    30      a label is known 10 ms after its time
    #  targets  1.0  3.0   5.0   7.0
    encoder = TargetEncoder(target_type="continuous", smooth=0.0, label_delay_ms=10)
    times = [0, 10, 20, 30]
    got = encoder.fit_transform(["a"] * 4, [1.0, 3.0, 5.0, 7.0], event_time_ms=times)
    assert got == [None, 1.0, 2.0, 3.0]
    # the order of the rows does not matter; those of one time never see each other
    got = encoder.fit_transform(["a"] * 4, [7.0, 3.0, 1.0, 5.0], event_time_ms=[30, 10, 0, 20])
    assert got == [3.0, 1.0, None, 2.0]
    at_once = TargetEncoder(target_type="continuous", smooth=0.0)
    got = at_once.fit_transform(["a"] * 3, [1.0, 3.0, 8.0], event_time_ms=[5, 5, 6])
    assert got == [None, None, 2.0]
    # what serves later rows has learnt from all of them
    assert at_once.transform(["a"]) == [4.0]


@given(seed=st.integers(0, 2**32 - 1), smooth=st.sampled_from(SMOOTH),
       delay_ms=st.sampled_from([0, 1, 40]))  # fmt: skip
@settings(max_examples=settings().max_examples // 3, deadline=None)
def test_the_past_is_what_a_loop_over_all_rows_says(seed: int, smooth: Any, delay_ms: int) -> None:
    rng = random.Random(seed)
    rows = rng.randrange(1, 60)
    x = [rng.choice(["a", "b", "c", None]) for _ in range(rows)]
    y = [rng.choice([None, rng.gauss(5, 2), 1.5]) for _ in range(rows)]
    times = [rng.randrange(100) for _ in range(rows)]
    encoder = TargetEncoder(target_type="continuous", smooth=smooth, label_delay_ms=delay_ms)
    got = encoder.fit_transform(x, y, event_time_ms=times)
    expected = naive.of_the_past(x, y, times, delay_ms, smooth)
    for mine, its in zip(got, expected, strict=True):
        assert mine == (None if its is None else pytest.approx(its, rel=1e-7, abs=1e-9))


def test_no_target_of_the_same_time_or_later_changes_an_encoding() -> None:
    rng = np.random.default_rng(2)
    rows, delay_ms = 120, 7
    x = rng.choice(list("abcd"), rows).astype(object)
    times = rng.integers(0, 60, rows)
    y = rng.normal(size=rows)
    encoder = TargetEncoder(label_delay_ms=delay_ms)
    before = encoder.fit_transform(x, y, event_time_ms=times)
    for now in (0, 20, 45, 60):
        hidden = times + delay_ms > now
        other = np.where(hidden, rng.normal(1e3, 1e3, rows), y)
        # the first target of all may move, too: it is what distances are taken from
        after = TargetEncoder(label_delay_ms=delay_ms).fit_transform(x, other, event_time_ms=times)
        np.testing.assert_allclose(after[times <= now], before[times <= now], rtol=1e-9)


def test_categories_without_meaning_tell_nothing_of_the_target() -> None:
    """Each category has a few rows only, so that its mean is mostly a row's own target."""
    rng = np.random.default_rng(3)
    rows = 4000
    x = rng.integers(0, 1300, rows).astype(str).astype(object)
    y = rng.integers(0, 2, rows)
    times = np.arange(rows)

    def correlation(encoded: Any) -> float:
        known = ~np.isnan(encoded)
        return float(np.corrcoef(encoded[known], y[known])[0, 1])

    assert correlation(TargetEncoder().fit(x, y).transform(x)) > 0.4  # sees itself
    assert abs(correlation(TargetEncoder().fit_transform(x, y))) < 0.06
    by_time = TargetEncoder().fit_transform(x, y, event_time_ms=times)
    assert abs(correlation(by_time)) < 0.06


def test_the_event_time_may_be_a_column_that_is_no_feature() -> None:
    frame = pd.DataFrame({"city": ["a", "a", "b"], "t": [0, 1, 2], "shop": ["x", "x", "x"]})
    encoder = TargetEncoder(target_type="continuous", smooth=0.0, event_time="t")
    got = encoder.fit_transform(frame, [1.0, 2.0, 4.0])
    assert got["city"].tolist()[1:] == [1.0, 1.5]  # b was never seen: the mean of what was
    assert got["shop"].tolist()[1:] == [1.0, 1.5]
    assert list(got.columns) == ["city", "shop"]
    assert encoder.names == ("city", "shop")
    without = frame.drop(columns="t")
    pd.testing.assert_frame_equal(encoder.transform(frame), encoder.transform(without))
    with pytest.raises(TransformError, match="the event time 't' is not a column of the data"):
        encoder.fit_transform(without, [1.0, 2.0, 4.0])
    by_call = encoder.fit_transform(without, [1.0, 2.0, 4.0], event_time_ms=frame["t"])
    pd.testing.assert_frame_equal(by_call, got)
    again = TargetEncoder.from_params(encoder.to_params())
    assert isinstance(again, TargetEncoder)
    assert again.event_time == "t"


def test_rows_without_a_target_are_encoded_and_not_fitted() -> None:
    x, y = ["a", "a", "b", "b", "a"], [1.0, 2.0, 3.0, 5.0, None]
    encoder = TargetEncoder(target_type="continuous", smooth=0.0, cv=2, shuffle=False)
    got = encoder.fit_transform(x, y)
    assert encoder.rows_seen == 4
    assert got[4] == 1.5
    assert got[:4] == [4.0, 4.0, 1.5, 1.5]  # its category is only in its own fold


def test_services_take_what_it_was_fitted_on() -> None:
    encoder = TargetEncoder().fit([["a", 1]], [0.5])
    assert encoder.accepts(0, String)
    assert not encoder.accepts(0, Int64)
    assert encoder.accepts(1, Float64)
    assert not encoder.is_scalar
    assert TargetEncoder().fit(["a"], [0.5]).is_scalar
    with pytest.raises(TransformError, match="column 0 contains numbers; it was fitted on strings"):
        encoder.transform([[1, 1]])


def test_wrong_use_is_rejected() -> None:
    def reported(call: Any) -> str:
        with pytest.raises(TransformError) as error:
            call()
        return str(error.value)

    for wrong_settings, message in (
        ({"target_type": "x"}, "target_type='x'; expected one of: auto, continuous, binary, mult"),
        ({"smooth": -1.0}, "smooth=-1.0; expected 'auto' or a number from 0"),
        ({"cv": 1}, "cv=1; expected 2 or more"),
        ({"label_delay_ms": -1}, "label_delay_ms=-1; expected 0 or more"),
    ):
        assert message in reported(lambda s=wrong_settings: TargetEncoder(**s).fit(["a"], [1.0]))
    encoder = TargetEncoder()
    assert "requires y to be passed, but the target y is None" in reported(
        lambda: encoder.fit([["a"]])
    )
    assert "y has 2 rows and 1 columns; expected 1 and 1" in reported(
        lambda: encoder.fit([["a"]], [1, 2])
    )
    assert "1 rows with a target cannot be split into cv=5" in reported(
        lambda: encoder.fit_transform(["a"], [0.5])
    )
    assert "no class of the target has as many rows as cv=5" in reported(
        lambda: encoder.fit_transform(["a"] * 6, [1, 1, 2, 2, 3, 3])
    )
    many = list(range(101))
    assert "y has 101 distinct integers; pass target_type='continuous'" in reported(
        lambda: encoder.fit(["a"] * 101, many)
    )
    assert TargetEncoder(target_type="continuous").fit(["a"] * 101, many).transform(["a"]) == [50]
    assert "target_type='binary', but y has the classes [1, 2, 3]" in reported(
        lambda: TargetEncoder(target_type="binary").fit(["a"] * 3, [1, 2, 3])
    )
    assert "but y has the classes [1, 2]; expected 3 or more" in reported(
        lambda: TargetEncoder(target_type="multiclass").fit(["a"] * 2, [1, 2]).transform(["a"])
    )
    assert "the targets of one part are classes" in reported(
        lambda: TargetEncoder().fit(["a"], [1]).partial_fit(["a"], [1.5])
    )
    assert "y has values whose squares exceed float64" in reported(
        lambda: TargetEncoder(target_type="continuous").fit(["a"], [1.5e200])
    )
    assert "label_delay_ms=5 requires event times" in reported(
        lambda: TargetEncoder(label_delay_ms=5).fit_transform(["a"], [0.5])
    )
    timed = TargetEncoder(target_type="continuous")
    for times, message in (
        ([1], "event_time_ms has 1 rows and 1 columns; expected 2 and 1"),
        ([1, None], "event_time_ms is null in row 1; expected one time per row"),
        ([1.5, 2.5], "event_time_ms is not integers; expected milliseconds since the Unix epoch"),
    ):
        assert message in reported(
            lambda t=times: timed.fit_transform(["a", "b"], [0.5, 1.5], event_time_ms=t)
        )
    assert "with smooth='auto' cannot be merged with one with smooth=1.0" in reported(
        lambda: timed.fit(["a"], [0.5]).merge(
            TargetEncoder(target_type="continuous", smooth=1.0).fit(["a"], [0.5])
        )
    )
    assert "has no inverse" in reported(lambda: timed.inverse_transform(pa.table({"a": [1.0]})))
    params = timed.fit(["a"], [0.5]).to_params()
    for wrong in ({"targets": [[[1, "0.5", "0x1p0"]]]}, {"rows": 7}, {"categories": []}):
        with pytest.raises(TransformError):
            FeatureTransformer.from_params({**params, **wrong})
