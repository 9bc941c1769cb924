"""What goes in comes out: the same numbers in the form in which they came."""

from __future__ import annotations

import datetime as dt
import json
import math
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from paimon_features.core.errors import TransformError
from paimon_features.transformers import (
    FeatureNormalizer,
    FeatureTransformer,
    MinMaxScaler,
    OneHotEncoder,
    StandardScaler,
)
from tests.transformers.forms import FORMS, put, rows_of

ROWS = [[1.0, None], [3.0, 10.0], [None, 30.0], [5.0, 20.0]]
TEXTS = [["a", "x"], ["b", None], ["a", "y"]]


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_numbers_in_its_own_form(form: str) -> None:
    data = put(form, ROWS)
    for transformer in (StandardScaler(), MinMaxScaler((-1, 1)), OneHotEncoder()):
        expected = transformer.fit(put("lists", ROWS))
        got = type(transformer).from_params(transformer.to_params()).fit(data)  # type: ignore[attr-defined]
        assert got.to_params() | {"names": None} == expected.to_params()
        out = got.transform(data)
        assert type(out) is type(data)
        assert rows_of(out) == rows_of(expected.transform(put("lists", ROWS)))
        back = got.inverse_transform(out)
        assert type(back) is type(data)
        for row, own in zip(rows_of(back), ROWS, strict=True):
            assert row == [None if v is None else pytest.approx(v) for v in own]


@pytest.mark.parametrize("form", FORMS)
def test_texts_are_categories_in_every_form(form: str) -> None:
    data = put(form, TEXTS)
    encoder = OneHotEncoder().fit(data)
    assert encoder.categories_ == [["a", "b"], ["x", "y", None]]
    out = encoder.transform(data)
    assert type(out) is type(data)
    assert rows_of(out) == [[1, 0, 1, 0, 0], [0, 1, 0, 0, 1], [1, 0, 0, 1, 0]]
    assert rows_of(encoder.inverse_transform(out)) == TEXTS


@pytest.mark.parametrize(
    "data",
    [
        [1.0, None, 3.0],
        np.array([1.0, math.nan, 3.0]),
        pa.array([1.0, None, 3.0]),
        pa.chunked_array([[1.0, None], [3.0]]),
        pd.Series([1.0, None, 3.0], index=[7, 8, 9], name="n"),
        pl.Series("n", [1.0, None, 3.0]),
    ],
    ids=lambda data: type(data).__name__,
)
def test_one_column_alone_is_taken_too(data: Any) -> None:
    out = StandardScaler().fit_transform(data)
    assert type(out) is type(data)
    plain = out.to_pylist() if isinstance(out, pa.ChunkedArray) else list(out)
    assert rows_of([plain]) == [[-1.0, None, 1.0]]
    if isinstance(data, pd.Series):
        assert (list(out.index), out.name) == ([7, 8, 9], "n")
    encoded = OneHotEncoder().fit_transform(data)
    assert rows_of(encoded) == [
        [1, 0, 0], [0, 0, 1], [0, 1, 0],
    ]  # fmt: skip


def test_names_and_index_of_frames_are_kept_and_encoders_name_their_columns() -> None:
    frame = pd.DataFrame({"n": [1, 2], "word": ["x", "y"]}, index=["p", "q"])
    encoded = OneHotEncoder().fit_transform(frame)
    assert list(encoded.columns) == ["n_1", "n_2", "word_x", "word_y"]
    assert list(encoded.index) == ["p", "q"]
    scaled = StandardScaler().fit_transform(pa.table({"n": [1, 2]}))
    assert scaled == pa.table({"n": [-1.0, 1.0]})
    numbered = pd.DataFrame([[1.0], [3.0]])  # its column is called 0, not "0"
    assert list(StandardScaler().fit_transform(numbered).columns) == [0]
    dropped = FeatureNormalizer.handle_missing_values(
        pd.DataFrame({"n": [1.0, None]}, index=["p", "q"]), "drop"
    )
    assert list(dropped.index) == ["p"]


def test_types_of_numbers_do_not_matter() -> None:
    table = pa.table(
        {
            "int": pa.array([1, None, 3], pa.int8()),
            "float": pa.array([1, None, 3], pa.float32()),
            "decimal": pa.array([1, None, 3]).cast(pa.decimal128(21, 2)),
            "bool": pa.array([False, None, True]),
            "none": pa.nulls(3),
        }
    )
    out = StandardScaler().fit_transform(table).to_pydict()
    assert [out[name] for name in ("int", "float", "decimal", "bool")] == [[-1.0, None, 1.0]] * 4
    assert out["none"] == [None] * 3
    assert StandardScaler().fit_transform(
        pd.DataFrame({"n": pd.array([1, None, 3], "Int64")})
    )["n"].tolist()[::2] == [-1.0, 1.0]  # fmt: skip
    assert MinMaxScaler().fit_transform(np.array([[True], [False]])).tolist() == [[1.0], [0.0]]
    words = pd.Series(["x", "y", "x"], dtype="category")
    assert OneHotEncoder().fit(words).categories_ == [["x", "y"]]
    assert OneHotEncoder().fit(pl.Series(["x"], dtype=pl.Categorical)).categories_ == [["x"]]


def test_what_numpy_masks_is_no_value_and_long_doubles_are_doubles() -> None:
    masked = np.ma.masked_array([[1.0, 5.0], [9.0, 7.0]], [[False, False], [True, False]])
    scaler = StandardScaler().fit(masked)
    assert scaler.mean_.tolist() == [1.0, 6.0]
    np.testing.assert_array_equal(scaler.transform(masked), [[0.0, -1.0], [math.nan, 1.0]])
    assert StandardScaler().fit(np.ma.masked_array([1, 3, 99], [0, 0, 1])).mean_.tolist() == [2.0]
    texts = np.ma.masked_array(np.array([["a"], ["b"]]), [[False], [True]])
    assert OneHotEncoder().fit(texts).categories_ == [["a", None]]
    long = StandardScaler().fit(np.array([[1.5], [2.5]], np.longdouble))
    assert json.loads(json.dumps(long.to_params()))["mean"] == [2.0]


def test_what_cannot_be_taken_is_reported() -> None:
    def reported(data: Any, kind: type[FeatureTransformer] = StandardScaler) -> str:
        with pytest.raises(TransformError) as error:
            kind().fit(data)
        return str(error.value)

    assert reported({"a": [1]}) == (
        "got dict; expected lists, NumPy arrays, Arrow tables and arrays, pandas or Polars frames "
        "and series, torch tensors of numbers, strings or booleans"
    )
    assert reported([[1.0], [1.0, 2.0]]) == "row 1 has 2 values, row 0 has 1"
    assert "mixed in one list" in reported([[1.0], 2.0])
    assert reported([]).startswith(
        "Found array with 0 feature(s) (shape=(0, 0)) while a minimum of 1 is"
    )
    assert "3 dimensions" in reported(np.zeros((1, 1, 1)))
    assert reported(pa.table({"t": [dt.date(2020, 1, 1)]})) == (
        "column 't' is date32[day]; expected numbers, strings or booleans"
    )
    assert reported(put("table", TEXTS)) == "column 'a' contains strings; expected numbers"
    assert "column 0 contains values of several types" in reported([[1.0], ["x"]], OneHotEncoder)
    assert "contains an infinite value" in reported([[1.0], [math.inf]])
    assert "column 'b' contains an infinite value" in reported(
        pa.table({"a": [1.0], "b": [math.inf]}), MinMaxScaler
    )
    assert "float64" in reported([[1e300], [-1e300]])
    assert "LazyFrame" in reported(pl.LazyFrame({"a": [1]}))
    for kind in (StandardScaler, MinMaxScaler, OneHotEncoder):
        with pytest.raises(TransformError, match=f"this {kind.__name__} is not fitted; call fit"):
            kind().transform([[1.0]])  # type: ignore[operator]
        if kind is not OneHotEncoder:
            one = kind().fit([[1.0], [2.0]])  # type: ignore[operator]
            for data in ([[math.inf]], np.array([[math.inf], [math.nan]]), np.array([-math.inf])):
                with pytest.raises(TransformError, match="column 0 contains an infinite value"):
                    one.transform(data)
        fitted = kind().fit(pa.table({"a": [1.0], "b": [2.0]}))  # type: ignore[operator]
        with pytest.raises(TransformError, match="X has 1 features, but .* expecting 2 f"):
            fitted.transform([[1.0]])
        with pytest.raises(
            TransformError,
            match="got the columns b, a; .* fitted on a, b, in",
        ):
            fitted.transform(pa.table({"b": [1.0], "a": [2.0]}))


def test_a_transformer_of_ones_own_needs_fit_and_transform_only() -> None:
    class AddOne(FeatureTransformer):
        def fit(self, X: Any) -> AddOne:
            return self

        def transform(self, X: Any) -> Any:
            return X + 1

    assert AddOne().fit_transform(np.array([1])).tolist() == [2]
    for call in (
        lambda t: t.partial_fit([]),
        lambda t: t.merge(t),
        lambda t: t.inverse_transform([]),
        lambda t: t.to_params(),
    ):
        with pytest.raises(TransformError, match="AddOne"):
            call(AddOne())
