"""The one-hot encoder against a loop, against scikit-learn, and under the laws of merging."""

from __future__ import annotations

import json
import math
import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paimon_features.core.errors import TransformError
from paimon_features.testing.reference.fitted import row_of
from paimon_features.transformers import FeatureTransformer, OneHotEncoder
from tests.reference import transformers as naive

sklearn = pytest.importorskip("sklearn.preprocessing", reason="pip install scikit-learn")

texts = st.one_of(st.none(), st.sampled_from(["", "a", "b", "ä", "x y"]))
whole = st.one_of(st.none(), st.integers(-3, 3))
rows_of_both = st.lists(st.tuples(texts, whole).map(list), min_size=1, max_size=20)


@given(rows_of_both, rows_of_both)
def test_it_is_what_a_loop_over_the_categories_makes(seen: Any, requested: Any) -> None:
    encoder = OneHotEncoder("ignore").fit(seen)
    among = [naive.categories(list(column)) for column in zip(*seen, strict=True)]
    assert encoder.categories_ == among
    expected = [
        [x for v, each in zip(row, among, strict=True) for x in naive.hot(v, each)]
        for row in requested
    ]
    assert encoder.transform(requested) == expected
    strict = OneHotEncoder().fit(seen)
    unknown = [
        [v for v, each in zip(row, among, strict=True) if v not in each] for row in requested
    ]
    if any(unknown):
        with pytest.raises(TransformError, match="unknown category .*; it was fitted on: "):
            strict.transform(requested)
    else:
        assert strict.transform(requested) == expected
        assert strict.inverse_transform(expected) == requested
    back = encoder.inverse_transform(expected)
    for row, got in zip(requested, back, strict=True):
        known = [v if v in each else None for v, each in zip(row, among, strict=True)]
        assert got == known


@given(rows_of_both, rows_of_both, st.sampled_from(["error", "ignore"]))
def test_it_is_that_of_scikit_learn(seen: Any, requested: Any, handle: Any) -> None:
    def arrays(rows: Any) -> Any:
        return np.array([*rows, [None, None]], object)[:-1]

    theirs = sklearn.OneHotEncoder(handle_unknown=handle, sparse_output=False).fit(arrays(seen))
    ours = OneHotEncoder(handle).fit(arrays(seen))
    assert [list(each) for each in theirs.categories_] == ours.categories_
    assert theirs.get_feature_names_out(["a", "b"]).tolist() == ours.names_out(["a", "b"])
    try:
        expected = theirs.transform(arrays(requested))
    except ValueError:
        with pytest.raises(TransformError, match="unknown category"):
            ours.transform(arrays(requested))
        return
    got = ours.transform(arrays(requested))
    assert (got == expected).all()
    assert ours.inverse_transform(got).tolist() == theirs.inverse_transform(expected).tolist()


rules = st.fixed_dictionaries(
    {},
    optional={
        "min_frequency": st.sampled_from([2, 4, 0.2]),
        "max_categories": st.integers(1, 4),
        "drop": st.sampled_from(["first", "if_binary"]),
    },
)


@given(rows_of_both, rows_of_both, rules,
       st.sampled_from(["error", "ignore", "infrequent_if_exist"]))  # fmt: skip
def test_infrequent_and_dropped_categories_are_those_of_scikit_learn(
    seen: Any, requested: Any, rule: Any, handle: Any
) -> None:
    def arrays(rows: Any) -> Any:
        return np.array([*rows, [None, None]], object)[:-1]

    theirs = sklearn.OneHotEncoder(handle_unknown=handle, sparse_output=False, **rule)
    theirs.fit(arrays(seen))
    ours = OneHotEncoder(handle, **rule).fit(arrays(seen))
    names = [name.replace("infrequent_sklearn", "infrequent")
             for name in theirs.get_feature_names_out(["a", "b"])]  # fmt: skip
    assert ours.names_out(["a", "b"]) == names
    if "min_frequency" in rule or "max_categories" in rule:
        rare = [c if c is None else list(c) for c in theirs.infrequent_categories_]
        assert ours.infrequent_categories_ == rare
    params = json.loads(json.dumps(ours.to_params()))
    assert FeatureTransformer.from_params(params) == ours
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns of unknown categories
        try:
            expected = theirs.transform(arrays(requested))
        except ValueError:
            assert [row for row in requested if row_of(params, row)[1]]
            return
    got = ours.transform(arrays(requested))
    assert got.shape == expected.shape
    assert (got == expected).all()
    assert got.tolist() == [row_of(params, row)[0] for row in requested]
    # a category comes back, and null where several could have been there
    for row, back in zip(requested, ours.inverse_transform(got).tolist(), strict=True):
        for value, own, among, rare_ones in zip(
            row, back, ours.categories_, ours.infrequent_categories_, strict=True
        ):
            dropped = [c for c in among if rule.get("drop") and c not in (rare_ones or ())][:1]
            assert own in ([value] if value in among and value not in (rare_ones or ()) else
                           [None, *dropped])  # fmt: skip


@given(st.lists(rows_of_both, min_size=1, max_size=4), st.randoms())
def test_counts_of_categories_add_up(parts: Any, rng: Any) -> None:
    def new() -> OneHotEncoder:
        return OneHotEncoder("ignore", min_frequency=0.3, max_categories=3)

    whole, stepwise, merged = new().fit([row for part in parts for row in part]), new(), new()
    for part in parts:
        stepwise.partial_fit(part)
    for part in rng.sample(parts, len(parts)):
        merged = merged.merge(new().fit(part))
    assert whole == stepwise == merged


@given(st.lists(rows_of_both, min_size=1, max_size=4), st.randoms())
def test_neither_parts_nor_the_order_of_merging_matter(parts: Any, rng: Any) -> None:
    whole_ = OneHotEncoder().fit([row for part in parts for row in part])
    stepwise = OneHotEncoder()
    for part in parts:
        stepwise.partial_fit(part)
    fitted = [OneHotEncoder().fit(part) for part in parts]
    rng.shuffle(fitted)
    merged = OneHotEncoder()
    for each in fitted:
        merged = merged.merge(each)
    assert whole_ == stepwise == merged == merged.merge(OneHotEncoder())
    assert fitted[0].merge(fitted[-1]) == fitted[-1].merge(fitted[0]) or len(fitted) == 1
    text = json.dumps(whole_.to_params(), allow_nan=False)
    assert FeatureTransformer.from_params(json.loads(text)) == whole_


def test_null_and_nan_are_one_category_the_last() -> None:
    encoder = OneHotEncoder().fit(np.array([[2.0], [math.nan], [1.5]]))
    assert encoder.categories_ == [[1.5, 2, None]]
    assert encoder.transform([[None], [2]]) == [[0, 0, 1], [0, 1, 0]]
    assert encoder.transform(np.array([[math.nan]])).tolist() == [[0, 0, 1]]
    assert np.isnan(encoder.inverse_transform(np.array([[0, 0, 1]]))).all()
    without = OneHotEncoder().fit([[1.0]])
    with pytest.raises(TransformError, match="column 0 has the unknown category None in row 1"):
        without.transform([[1.0], [None]])
    assert OneHotEncoder("ignore").fit([[1.0]]).transform([[1.0], [None]]) == [[1.0], [0.0]]


def test_truth_values_numbers_and_texts_are_kept_apart() -> None:
    flags = OneHotEncoder().fit([[True], [False], [True]])
    assert flags.categories_ == [[False, True]]
    assert flags.inverse_transform([[0, 1]]) == [[True]]
    with pytest.raises(TransformError, match="column 0 contains numbers; .* fitted on booleans"):
        flags.transform([[1]])
    with pytest.raises(TransformError, match="contains numbers and strings; expected one of them"):
        OneHotEncoder().fit([[1]]).partial_fit([["a"]])
    with pytest.raises(TransformError, match="contains strings; it was fitted on numbers"):
        OneHotEncoder().fit([[1]]).transform([["1"]])


def test_wrong_use_is_rejected() -> None:
    with pytest.raises(TransformError, match="handle_unknown='warn'; expected one of: error, ign"):
        OneHotEncoder("warn").fit([["a"]])
    for settings, message in (
        ({"min_frequency": 0}, "min_frequency=0; expected a number of rows from 1, or a share"),
        ({"min_frequency": 1.0}, "min_frequency=1.0; expected a number of rows"),
        ({"max_categories": 0}, "max_categories=0; expected 1 or more"),
        ({"drop": "last"}, "drop='last'; expected None, 'first' or 'if_binary'"),
    ):
        with pytest.raises(TransformError, match=message):
            OneHotEncoder(**settings).fit([["a"]])  # type: ignore[arg-type]
    encoder = OneHotEncoder().fit([["a"], ["b"]])
    with pytest.raises(TransformError, match="row 1 has no category"):
        encoder.inverse_transform([[1, 0], [0, 0]])
    with pytest.raises(TransformError, match="got 1 columns; expected 2"):
        encoder.inverse_transform([[1]])
    with pytest.raises(
        TransformError, match="with handle_unknown='error' cannot be merged with one with"
    ):
        encoder.merge(OneHotEncoder("ignore").fit([["a"]]))
    for wrong in ({"categories": [["b", "a"]]}, {"categories": [["a", "a"]]}, {"categories": []}):
        with pytest.raises(TransformError, match="not distinct and ascending|no column"):
            FeatureTransformer.from_params({**encoder.to_params(), **wrong})
