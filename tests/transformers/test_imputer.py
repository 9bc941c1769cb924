"""What an imputer does in addition to scikit-learn's: strings, parts, columns left out."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from paimon_features.core.errors import TransformError
from paimon_features.core.types.schema import Float64, Int64, String
from paimon_features.transformers import FeatureTransformer, Imputer, OneHotEncoder
from paimon_features.transformers import imputer_statistics as stats

MIXED = pa.table({"word": ["b", None, "a", "a", "b"], "n": [1, 1, None, 2, 2]})


def test_texts_get_the_most_frequent_text_of_several_the_least() -> None:
    imputer = Imputer("most_frequent").fit(MIXED)
    assert imputer.statistics_ == ["a", 1.0]
    out = imputer.transform(MIXED)
    assert out.to_pydict() == {"word": ["b", "a", "a", "a", "b"], "n": [1.0, 1.0, 1.0, 2.0, 2.0]}
    assert not imputer.numeric_output
    assert [imputer.accepts(0, String), imputer.accepts(0, Int64)] == [True, False]
    assert [imputer.accepts(1, String), imputer.accepts(1, Float64)] == [False, True]
    assert FeatureTransformer.from_params(imputer.to_params()) == imputer
    parts = Imputer("most_frequent").partial_fit(MIXED.slice(0, 2)).partial_fit(MIXED.slice(2))
    assert (
        parts
        == imputer
        == Imputer("most_frequent")
        .fit(MIXED.slice(2))
        .merge(Imputer("most_frequent").fit(MIXED.slice(0, 2)))
    )
    frame = MIXED.to_pandas()
    filled = imputer.transform(frame)
    assert isinstance(filled, pd.DataFrame)
    assert filled["word"].tolist() == ["b", "a", "a", "a", "b"]
    assert OneHotEncoder().fit_transform(filled).shape == (5, 4)


def test_a_constant_has_the_type_of_its_column() -> None:
    both = Imputer("constant").fit(MIXED)
    assert both.transform(MIXED).to_pydict() == {
        "word": ["b", "missing_value", "a", "a", "b"],
        "n": [1.0, 1.0, 0.0, 2.0, 2.0],
    }
    named = Imputer("constant", fill_value="none").fit(MIXED.select(["word"]))
    assert named.transform(MIXED.select(["word"]))["word"].to_pylist()[1] == "none"
    with pytest.raises(
        TransformError, match="column 'n' contains numbers; fill_value='none' is of another type"
    ):
        Imputer("constant", fill_value="none").fit(MIXED)
    with pytest.raises(
        TransformError, match="column 'word' contains strings; fill_value=3.0 is of another type"
    ):
        Imputer("constant", fill_value=3).fit(MIXED)
    # a part without a value says nothing of the type; the next one does
    parts = Imputer("constant").partial_fit([[None]]).partial_fit([["a"]])
    assert parts.transform([[None]]) == [["missing_value"]]
    with pytest.raises(TransformError, match="column 0 contains numbers and strings"):
        Imputer("constant").fit([["a"]]).merge(Imputer("constant").fit([[1.0]]))


def test_texts_and_numbers_are_kept_apart() -> None:
    imputer = Imputer("most_frequent").fit(MIXED)
    with pytest.raises(TransformError, match="column 0 contains numbers; it was fitted on strings"):
        imputer.transform([[1.0, 2.0]])
    with pytest.raises(TransformError, match="column 1 contains strings; it was fitted on numbers"):
        imputer.transform([["a", "b"]])
    with pytest.raises(TransformError, match="column 'word' contains strings; expected numbers"):
        Imputer().fit(MIXED)
    assert imputer.transform([[None, None]]) == [["a", 1.0]]


def test_a_column_in_which_nothing_was_seen_is_left_out_unless_kept() -> None:
    rows = [[1.0, None, 3.0], [None, None, 5.0]]
    imputer = Imputer(add_indicator=True).fit(rows)
    assert imputer.statistics_ == [1.0, None, 4.0]
    assert imputer.transform([[None, 7.0, None]]) == [[1.0, 4.0, 1.0, 0.0]]
    assert imputer.names_out(["a", "b", "c"]) == [
        "a", "c", "missingindicator_a", "missingindicator_b",
    ]  # fmt: skip
    assert imputer.inverse_transform([[1.0, 4.0, 0.0, 1.0]]) == [[1.0, None, 4.0]]
    assert Imputer(keep_empty_features=True).fit(rows).transform([[None] * 3]) == [[1.0, 0.0, 4.0]]
    later = imputer.partial_fit([[1.0, 2.0, 3.0]])
    assert later.transform([[None, None, None]])[0][:2] == [1.0, 2.0]
    nothing = Imputer().fit([[None]])
    with pytest.raises(TransformError, match="no column had a value .*; keep_empty_features=True"):
        nothing.transform([[1.0]])


def test_a_mean_keeps_its_digits_in_parts() -> None:
    data = 1e9 + np.random.default_rng(1).normal(scale=1e-3, size=(10_000, 1))
    exact = math.fsum(data[:, 0]) / len(data)
    parts = Imputer()
    for part in np.array_split(data, 33):
        parts.partial_fit(part)
    assert parts.statistics_[0] == pytest.approx(exact, rel=2.0**-52)
    assert FeatureTransformer.from_params(parts.to_params()).partial_fit(data) is not None
    # a mean needs no squares, which exceed float64 here
    large = Imputer().fit([[1e300]]).merge(Imputer().fit([[-1e300], [6e299]]))
    assert large.statistics_ == Imputer().fit([[1e300], [-1e300], [6e299]]).statistics_ == [2e299]


def test_wrong_use_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    for make, message in (
        (lambda: Imputer("mode"), "strategy='mode'; expected one of: mean, median, most_frequent"),
        (lambda: Imputer(fill_value=1), "fill_value=1 is for 'constant', not 'mean'"),
        (lambda: Imputer("mean", grid=[0.0]), "grid= is for 'median', not 'mean'"),
        (lambda: Imputer("constant", fill_value=math.inf), "expected a finite number or a text"),
        (lambda: Imputer().fit([[1.7e308], [-1.7e308]]), "column 0 has values whose range exc"),
    ):
        with pytest.raises(TransformError, match=message):
            make().fit([[1.0]])
    with pytest.raises(TransformError, match="without add_indicator=True has no inverse"):
        Imputer().fit([[1.0]]).inverse_transform([[1.0]])
    with pytest.raises(TransformError, match="got 3 columns; expected 2"):
        Imputer(add_indicator=True).fit([[1.0], [None]]).inverse_transform([[1.0, 0.0, 0.0]])
    monkeypatch.setattr(stats, "MOST_DISTINCT", 3)
    with pytest.raises(TransformError, match="column 0 has 4 distinct values; most_freque"):
        Imputer("most_frequent").fit([[1.0], [2.0], [3.0], [4.0]])
