"""How often categories were seen: against a loop, in parts, and for unknown ones."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paimon_features.core.errors import TransformError
from paimon_features.testing.reference.fitted import row_of
from paimon_features.transformers import FeatureTransformer, FrequencyEncoder
from tests.transformers.forms import FORMS, put, rows_of

rows_of_both = st.lists(
    st.tuples(st.sampled_from([None, "", "a", "b"]), st.none() | st.integers(-2, 2)).map(list),
    min_size=1, max_size=80,
)  # fmt: skip


@given(rows_of_both, rows_of_both, st.sampled_from(["share", "count"]),
       st.sampled_from(["zero", "null"]))  # fmt: skip
def test_it_is_what_a_loop_counts(seen: Any, requested: Any, output: str, unknown: str) -> None:
    encoder = FrequencyEncoder(output=output, handle_unknown=unknown).fit(seen)
    got = encoder.transform(requested)
    for row, made in zip(requested, got, strict=True):
        for value, column, number in zip(row, zip(*seen, strict=True), made, strict=True):
            count = column.count(value)
            if not count and unknown == "null":
                assert number is None
            else:
                assert number == (count / len(seen) if output == "share" else count)
    params = json.loads(json.dumps(encoder.to_params()))
    assert FeatureTransformer.from_params(params) == encoder
    assert got == [row_of(params, row)[0] for row in requested]


@given(st.lists(rows_of_both, min_size=1, max_size=4), st.randoms())
def test_neither_parts_nor_the_order_of_merging_matter(parts: Any, rng: Any) -> None:
    whole = FrequencyEncoder().fit([row for part in parts for row in part])
    stepwise, merged = FrequencyEncoder(), FrequencyEncoder()
    for part in parts:
        stepwise.partial_fit(part)
    for part in rng.sample(parts, len(parts)):
        merged = merged.merge(FrequencyEncoder().fit(part))
    assert whole == stepwise == merged
    assert whole.to_params() == merged.to_params()


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_shares(form: str) -> None:
    rows = [["a", "x"], [None, "x"], ["a", None], ["b", "y"]]
    got = FrequencyEncoder().fit_transform(put(form, rows))
    assert rows_of(got) == [[0.5, 0.5], [0.25, 0.5], [0.5, 0.25], [0.25, 0.25]]


def test_wrong_use_is_rejected() -> None:
    strict = FrequencyEncoder(handle_unknown="error").fit([["a"], ["b"]])
    with pytest.raises(TransformError, match="unknown category 'z' in row 1; .* on: 'a', 'b'; ha"):
        strict.transform([["a"], ["z"]])
    assert strict.frequencies_[0].tolist() == [0.5, 0.5]
    with pytest.raises(TransformError, match="output='x'; expected one of: share, count"):
        FrequencyEncoder(output="x").fit([["a"]])
    with pytest.raises(TransformError, match="handle_unknown='ignore'; expected one of: zero, nu"):
        FrequencyEncoder(handle_unknown="ignore").fit([["a"]])
    with pytest.raises(
        TransformError, match="with handle_unknown='error' cannot be merged with one with"
    ):
        strict.merge(FrequencyEncoder())
    numbers = FrequencyEncoder(handle_unknown="error").fit([[1.0], [2.0]])
    with pytest.raises(TransformError, match="there is an unknown category"):
        numbers.block(numbers.block(put("numpy", [[1.0]])) * 9)
