"""Every numeric transformer under the same laws: loops over its parameters, forms, merges, JSON."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paimon_features.core.columns.column import Column
from paimon_features.core.errors import TransformError
from paimon_features.testing.reference.fitted import row_of
from paimon_features.testing.reference.numeric import is_inexact, near
from paimon_features.transformers import FeatureTransformer, FittedVersion, StoredTransformer
from tests.transformers.forms import FORMS, put, rows_of
from tests.transformers.numeric import IN_PARTS, MAKERS, data, nulls

ROUNDS = settings().max_examples // 8  # more where the profile has more
seeds = st.integers(0, 2**32 - 1)


def fitted(name: str, seed: int) -> tuple[StoredTransformer, Any, Any]:
    """One, the data that it was fitted on, and other data; some columns may be left out."""
    dice = np.random.default_rng([seed, *name.encode()])
    seen = data(dice, int(dice.integers(1, 40)))
    return MAKERS[name]().fit(seen), seen, np.concatenate([seen, data(dice, 10)])


def agree(params: Any, got: Any, expected: Any) -> bool:
    same = [None if v is not None and math.isnan(v) else v for v in expected]
    plain = [None if v is not None and math.isnan(v) else v for v in got]
    return near(plain, same) if is_inexact(params) else plain == same


@pytest.mark.parametrize("name", MAKERS)
@given(seed=seeds)
@settings(max_examples=ROUNDS)
def test_a_row_is_what_a_loop_makes_of_it_by_the_parameters_alone(name: str, seed: int) -> None:
    transformer, _, requested = fitted(name, seed)
    if not transformer.width_out:
        with pytest.raises(TransformError, match="no column had a value"):
            transformer.transform(requested)
        return
    params = json.loads(json.dumps(transformer.to_params(), allow_nan=False))
    by_matrix = transformer.transform(requested)
    by_lists = transformer.transform(nulls(requested))
    applied = transformer.apply([Column(column) for column in requested.T])
    assert by_matrix.shape == (len(requested), transformer.width_out)
    assert np.array_equal(
        np.column_stack([c.values for c in applied.columns]), by_matrix, equal_nan=True
    )
    for row, with_nan, with_none in zip(
        nulls(requested), by_matrix.tolist(), by_lists, strict=True
    ):
        expected, failed = row_of(params, row)
        assert not failed
        assert agree(params, with_none, expected), (row, with_none, expected)
        assert agree(params, with_nan, expected), (row, with_nan, expected)
        # null and NaN are distinguished where they are not filled
        if name not in ("interaction_ratio",):
            gaps = [v is None for v in with_none]
            assert [v is None for v in expected] == gaps


@pytest.mark.parametrize("name", MAKERS)
@given(seed=seeds)
@settings(max_examples=ROUNDS)
def test_parameters_are_json_and_give_the_same_transformer_back(name: str, seed: int) -> None:
    transformer, seen, requested = fitted(name, seed)
    text = json.dumps(transformer.to_params(), allow_nan=False)
    again = FeatureTransformer.from_params(json.loads(text))
    assert type(again) is type(transformer)
    assert again == transformer
    assert json.dumps(again.to_params()) == text
    assert again.rows_seen == len(seen)
    assert again.width_out == transformer.width_out
    version = FittedVersion("n", 1, transformer, 0)
    assert FittedVersion.from_document(json.loads(version.to_text())) == version
    if transformer.width_out:
        np.testing.assert_array_equal(again.transform(requested), transformer.transform(requested))
    # arguments are shown only if they differ from the default
    for key in set(transformer.to_params()) - {"with_mean", "with_std", "clip"}:
        broken = {k: v for k, v in transformer.to_params().items() if k != key}
        with pytest.raises(TransformError, match="not complete|of kind 'None'"):
            FeatureTransformer.from_params(broken)
    with pytest.raises(TransformError, match="names for 2 columns"):
        FeatureTransformer.from_params({**transformer.to_params(), "names": ["a"]})


@pytest.mark.parametrize("name", IN_PARTS)
@given(seed=seeds)
@settings(max_examples=ROUNDS)
def test_parts_and_merges_in_any_order_are_what_is_fitted_at_once(name: str, seed: int) -> None:
    dice = np.random.default_rng([seed, 7])
    seen = data(dice, int(dice.integers(3, 60)))
    cuts = np.sort(dice.integers(0, len(seen) + 1, 3))
    parts = np.split(seen, cuts)
    whole, stepwise = MAKERS[name]().fit(seen), MAKERS[name]()
    for part in parts:
        stepwise.partial_fit(part)
    # a part may have no rows, which fit() refuses
    pieces = [MAKERS[name]().partial_fit(part) for part in parts]
    before = [piece.to_params() for piece in pieces]
    dice.shuffle(pieces)  # type: ignore[arg-type]
    merged = MAKERS[name]()
    for piece in pieces:
        assert merged.merge(piece).to_params() == piece.merge(merged).to_params()
        merged = merged.merge(piece)
    assert sorted(map(str, before)) == sorted(str(p.to_params()) for p in pieces)
    for other in (stepwise, merged):
        assert other.rows_seen == len(seen)
        if not name.startswith(("standard", "impute_mean")):
            assert other.to_params() == whole.to_params()
        elif whole.width_out:
            np.testing.assert_allclose(
                other.transform(seen), whole.transform(seen), rtol=1e-9, atol=1e-9
            )


@pytest.mark.parametrize("name", sorted(set(MAKERS) - set(IN_PARTS)))
def test_exact_quantiles_are_not_fitted_in_parts_and_the_message_says_what_to_do(name: str) -> None:
    one = MAKERS[name]().fit([[1.0, 2.0], [3.0, 4.0]])
    assert not hasattr(MAKERS[name](), "partial_fit")
    for call in (lambda: one.partial_fit([[5.0, 6.0]]), lambda: one.merge(one)):
        with pytest.raises(TransformError, match=r"need all data at once; declare grid=|on all v"):
            call()
    empty = MAKERS[name]()
    assert one.merge(empty) == one == empty.merge(one)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", MAKERS)
def test_every_form_gives_the_same_numbers_in_its_own_form(name: str, form: str) -> None:
    rows = [[1.0, 4.0], [2.0, None], [None, 1.0], [4.0, -1.0], [4.0, 3.0]]
    expected = MAKERS[name]().fit(rows)
    table = put(form, rows)
    got = MAKERS[name]().fit(table)
    assert got.to_params() | {"names": None} == expected.to_params()
    out = got.transform(table)
    assert type(out) is type(table)
    assert rows_of(out) == rows_of(expected.transform(rows))
    if form in ("table", "batch"):
        assert out.schema.names == got.names_out(["a", "b"])
    if hasattr(type(got), "_backward") and name[:4] != "clip":
        back = got.inverse_transform(out)
        assert type(back) is type(table)
        assert rows_of(back) == rows_of(expected.inverse_transform(expected.transform(rows)))


@pytest.mark.parametrize("name", MAKERS)
def test_large_data_go_in_blocks_and_come_out_as_row_by_row(name: str) -> None:
    dice = np.random.default_rng(5)
    seen = np.column_stack([dice.normal(size=40_000), dice.integers(-2, 5, 40_000)])
    seen[dice.random(seen.shape) < 0.05] = math.nan
    transformer = MAKERS[name]().fit(seen)
    out = transformer.transform(seen)
    for rows in (slice(0, 1), slice(16_380, 16_390), slice(39_999, 40_000)):
        np.testing.assert_array_equal(transformer.transform(seen[rows]), out[rows])
    before = seen.copy()
    np.testing.assert_array_equal(transformer.transform(np.asfortranarray(seen)), out)
    np.testing.assert_array_equal(seen, before)  # what goes in is not written to
    columns = pa.table({"a": seen[:, 0], "b": seen[:, 1]})  # NaN, and memory that none may write
    again = transformer.transform(columns)
    np.testing.assert_array_equal(np.column_stack(list(map(np.asarray, again.columns))), out)
    small = seen.astype(np.float32)
    np.testing.assert_array_equal(
        transformer.transform(small), transformer.transform(small.astype(np.float64))
    )


@pytest.mark.parametrize("name", MAKERS)
def test_what_is_no_finite_number_is_refused_in_fit_and_transform(name: str) -> None:
    fine = [[1.0, 2.0], [2.0, 5.0], [0.5, 3.0]]
    for wrong in (math.inf, -math.inf):
        rows = [*fine, [1.0, wrong]]
        for form in FORMS:
            with pytest.raises(TransformError, match=r"column (1|'b') contains an infinite value"):
                MAKERS[name]().fit(put(form, rows))
            with pytest.raises(TransformError, match=r"column (1|'b') contains an infinite value"):
                MAKERS[name]().fit(put(form, fine)).transform(put(form, rows))
    with pytest.raises(TransformError, match="contains strings"):
        MAKERS[name]().fit(fine).transform([[1.0, "x"]])
    with pytest.raises(TransformError, match="is not fitted; call fit"):
        MAKERS[name]().transform(fine)
    with pytest.raises(TransformError, match="X has 1 features, but .* is expecting 2 features"):
        MAKERS[name]().fit(fine).transform([[1.0]])


@pytest.mark.parametrize("name", MAKERS)
def test_no_row_and_one_row_and_a_refit(name: str) -> None:
    one = MAKERS[name]().fit([[1.0, 2.0]])
    assert one.rows_seen == 1
    assert one.transform([]) == []
    assert one.transform(np.zeros((0, 2))).shape == (0, one.width_out)
    assert one.transform(pa.table({"a": pa.array([], pa.float64()), "b": [1.0][:0]})).num_rows == 0
    assert len(one.transform([[1.0, 2.0]])) == 1
    again = one.fit([[3.0, 0.0], [1.0, 1.0], [2.0, 5.0]])
    assert again == MAKERS[name]().fit([[3.0, 0.0], [1.0, 1.0], [2.0, 5.0]])
    with pytest.raises(TransformError, match=r"0 sample\(s\) \(shape=\(0, 2\)\) while a minimum"):
        MAKERS[name]().fit(np.zeros((0, 2)))
    if hasattr(one, "partial_fit"):  # a part may have no rows
        empty = MAKERS[name]().partial_fit(np.zeros((0, 2)))
        assert (empty.width, empty.rows_seen) == (2, 0)
        json.dumps(empty.to_params(), allow_nan=False)


@pytest.mark.parametrize("name", MAKERS)
def test_others_cannot_be_merged(name: str) -> None:
    two, three = MAKERS[name](), MAKERS["min_max" if name.startswith("max_abs") else "max_abs"]()
    two.fit([[1.0, 2.0], [2.0, 3.0]])
    with pytest.raises(TransformError, match="cannot be merged with a"):
        two.merge(three.fit([[1.0, 2.0]]))
    if name != "bins_ordinal":
        with pytest.raises(TransformError, match="of 2 columns cannot be merged with one of 3"):
            two.merge(MAKERS[name]().fit([[1.0, 2.0, 3.0]]))
