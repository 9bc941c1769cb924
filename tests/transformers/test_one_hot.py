"""The one-hot encoder against a loop, against scikit-learn, and under the laws of merging."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paimon_features.errors import TransformError
from paimon_features.testing import naive_transformers as naive
from paimon_features.transformers import FeatureTransformer, OneHotEncoder

sklearn = pytest.importorskip("sklearn.preprocessing", reason="pip install scikit-learn")

texts = st.one_of(st.none(), st.sampled_from(["", "a", "b", "ä", "x y"]))
whole = st.one_of(st.none(), st.integers(-3, 3))
rows_of_both = st.lists(st.tuples(texts, whole).map(list), min_size=1, max_size=20)


@given(rows_of_both, rows_of_both)
def test_it_is_what_a_loop_over_the_categories_makes(seen: Any, asked: Any) -> None:
    encoder = OneHotEncoder("ignore").fit(seen)
    among = [naive.categories(list(column)) for column in zip(*seen, strict=True)]
    assert encoder.categories_ == among
    expected = [
        [x for v, each in zip(row, among, strict=True) for x in naive.hot(v, each)] for row in asked
    ]
    assert encoder.transform(asked) == expected
    strict = OneHotEncoder().fit(seen)
    unknown = [[v for v, each in zip(row, among, strict=True) if v not in each] for row in asked]
    if any(unknown):
        with pytest.raises(TransformError, match="unknown category .*; it was fitted on: "):
            strict.transform(asked)
    else:
        assert strict.transform(asked) == expected
        assert strict.inverse_transform(expected) == asked
    back = encoder.inverse_transform(expected)
    for row, got in zip(asked, back, strict=True):
        known = [v if v in each else None for v, each in zip(row, among, strict=True)]
        assert got == known


@given(rows_of_both, rows_of_both, st.sampled_from(["error", "ignore"]))
def test_it_is_that_of_scikit_learn(seen: Any, asked: Any, handle: Any) -> None:
    def arrays(rows: Any) -> Any:
        return np.array([*rows, [None, None]], object)[:-1]

    theirs = sklearn.OneHotEncoder(handle_unknown=handle, sparse_output=False).fit(arrays(seen))
    ours = OneHotEncoder(handle).fit(arrays(seen))
    assert [list(each) for each in theirs.categories_] == ours.categories_
    assert theirs.get_feature_names_out(["a", "b"]).tolist() == ours.names_out(["a", "b"])
    try:
        expected = theirs.transform(arrays(asked))
    except ValueError:
        with pytest.raises(TransformError, match="unknown category"):
            ours.transform(arrays(asked))
        return
    got = ours.transform(arrays(asked))
    assert (got == expected).all()
    assert ours.inverse_transform(got).tolist() == theirs.inverse_transform(expected).tolist()


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
    with pytest.raises(TransformError, match="column 0 holds numbers; .* fitted on truth values"):
        flags.transform([[1]])
    with pytest.raises(TransformError, match="holds numbers and texts; expected one of them"):
        OneHotEncoder().fit([[1]]).partial_fit([["a"]])
    with pytest.raises(TransformError, match="holds texts; it was fitted on numbers"):
        OneHotEncoder().fit([[1]]).transform([["1"]])


def test_wrong_use_is_told() -> None:
    with pytest.raises(TransformError, match="handle_unknown='warn'; expected one of: error, ign"):
        OneHotEncoder("warn")
    encoder = OneHotEncoder().fit([["a"], ["b"]])
    with pytest.raises(TransformError, match="row 1 has no category"):
        encoder.inverse_transform([[1, 0], [0, 0]])
    with pytest.raises(TransformError, match="got 1 columns; expected 2"):
        encoder.inverse_transform([[1]])
    with pytest.raises(TransformError, match="'error' of one and 'ignore' of the other"):
        encoder.merge(OneHotEncoder("ignore").fit([["a"]]))
    for wrong in ({"categories": [["b", "a"]]}, {"categories": [["a", "a"]]}, {"categories": []}):
        with pytest.raises(TransformError, match="not distinct and ascending|no column"):
            FeatureTransformer.from_params({**encoder.to_params(), **wrong})
