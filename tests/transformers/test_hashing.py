"""Hashed categories against scikit-learn, the same on every host, and by themselves."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paimon_features.core.errors import TransformError
from paimon_features.core.types.schema import Bool, Decimal, Float64, Int64, List, String
from paimon_features.testing.reference.fitted import row_of
from paimon_features.transformers import FeatureTransformer, HashingEncoder
from paimon_features.transformers.murmur import hash_text, hash_texts
from tests.transformers.forms import put, rows_of

extraction = pytest.importorskip("sklearn.feature_extraction", reason="pip install scikit-learn")

words = st.text(max_size=20)


@given(st.lists(words, min_size=17, max_size=60), st.integers(1, 40), st.booleans())
def test_it_is_the_feature_hasher_of_scikit_learn(texts: Any, size: int, signed: bool) -> None:
    theirs = extraction.FeatureHasher(size, input_type="string", alternate_sign=signed)
    ours = HashingEncoder(size, alternate_sign=signed).fit(texts)
    assert ours.transform(texts) == theirs.transform([[t] for t in texts]).toarray().tolist()
    lists = [texts[i : i + 3] for i in range(0, len(texts), 3)]
    column = pa.table({"tags": pa.array(lists, pa.list_(pa.string()))})
    got = ours.fit(column).transform(column)
    assert rows_of(got) == theirs.transform(lists).toarray().tolist()


@given(st.lists(words, max_size=40))
def test_whole_columns_are_hashed_as_single_texts_are(texts: Any) -> None:
    many = texts + ["pad"] * 17  # beyond what is hashed one by one
    assert hash_texts(np.array(many, object)).tolist() == [hash_text(t) for t in many]


def test_the_hash_stays_as_it_is() -> None:
    """Of the published test vectors of MurmurHash3_x86_32, seed 0."""
    known = {
        "": 0, "test": 0xBA6BD213, "Hello, world!": 0xC0363E43,
        "The quick brown fox jumps over the lazy dog": 0x2E4FF723,
    }  # fmt: skip
    for text, expected in known.items():
        assert hash_text(text) % 2**32 == expected
    encoder = HashingEncoder(1000, output="index").fit([["ä", 7, True]])
    assert encoder.transform([["ä", 7, True], ["日本", -7, False]]) == [
        [732.0, 328.0, 370.0],
        [838.0, 564.0, 825.0],
    ]


mixed = st.lists(
    st.tuples(st.none() | words, st.none() | st.integers(-99, 99)).map(list),
    min_size=1, max_size=25,
)  # fmt: skip


@given(mixed, st.sampled_from(["vector", "index"]), st.booleans())
def test_it_is_what_its_parameters_say(rows: Any, output: str, signed: bool) -> None:
    encoder = HashingEncoder(6, output=output, alternate_sign=signed).fit([["a", 1]])
    params = json.loads(json.dumps(encoder.to_params()))
    assert FeatureTransformer.from_params(params) == encoder
    assert encoder.transform(rows) == [row_of(params, row)[0] for row in rows]


@pytest.mark.parametrize("form", ["lists", "numpy", "table", "batch", "pandas", "polars"])
def test_every_form_gives_the_same_places(form: str) -> None:
    rows = [["a", "x"], [None, "y"], ["c", None]]
    expected = HashingEncoder(5).fit_transform(rows)
    got = HashingEncoder(5).fit_transform(put(form, rows))
    assert rows_of(got) == expected
    whole = np.array([[3.0], [np.nan], [-2.0]])
    assert HashingEncoder(9).fit_transform(whole).tolist() == HashingEncoder(9).fit_transform(
        [3, None, -2]
    )


def test_parts_and_merges_have_seen_all_rows() -> None:
    parts = HashingEncoder(4).partial_fit([["a"]]).partial_fit([["b"], ["c"]])
    merged = HashingEncoder(4).fit([["a"]]).merge(HashingEncoder(4).fit([["b"], ["c"]]))
    assert parts == merged == HashingEncoder(4).fit([["a"], ["b"], ["c"]])
    assert not parts.is_stateful
    with pytest.raises(
        TransformError, match="with n_features=4 cannot be merged with one with n_features=5"
    ):
        parts.merge(HashingEncoder(5).fit([["a"]]))


def test_what_services_may_give_it() -> None:
    vector, index = HashingEncoder(4).fit(["a"]), HashingEncoder(4, output="index").fit(["a"])
    for kind in (String, Bool, Int64):
        assert vector.accepts(0, kind)
    for kind in (Float64, Decimal(5, 2), List(Float64)):
        assert not vector.accepts(0, kind)
    assert vector.accepts(0, List(String))
    assert not index.accepts(0, List(String))
    assert index.is_scalar
    assert not vector.is_scalar
    assert index.names_out(["city"]) == ["city_hash"]
    assert vector.names_out(["city"]) == ["city_0", "city_1", "city_2", "city_3"]


def test_wrong_use_is_rejected() -> None:
    def reported(call: Any) -> str:
        with pytest.raises(TransformError) as error:
            call()
        return str(error.value)

    assert "n_features=0; expected 1 to 2147483647" in reported(
        lambda: HashingEncoder(0).fit(["a"])
    )
    assert "output='x'; expected one of: vector, index" in reported(
        lambda: HashingEncoder(3, output="x").fit(["a"])
    )
    assert "column 0 contains 1.5; expected strings, integers" in reported(
        lambda: HashingEncoder(3).fit([1.5])
    )
    assert "column 0 contains lists, which have no single index" in reported(
        lambda: HashingEncoder(3, output="index").fit([[["a"]]])
    )
    assert "expected lists of strings, integers or booleans" in reported(
        lambda: HashingEncoder(3).fit([[[1.5]]])
    )
    assert "is not fitted" in reported(lambda: HashingEncoder(3).transform(["a"]))
    assert "got no columns" in reported(
        lambda: FeatureTransformer.from_params(
            {**HashingEncoder(3).fit(["a"]).to_params(), "width": 0}
        )
    )
