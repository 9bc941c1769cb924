"""Arguments of scikit-learn: weights, categories, sparse output, types, copies, markers."""

from __future__ import annotations

import json
import math
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from paimon_features.core.errors import MissingExtraError, TransformError
from paimon_features.core.types.schema import Float64, Int64, String
from paimon_features.transformers import (
    FeatureTransformer,
    Imputer,
    KBinsDiscretizer,
    MaxAbsScaler,
    MinMaxScaler,
    OneHotEncoder,
    Pipeline,
    QuantileTransformer,
    RobustScaler,
    StandardScaler,
    StoredTransformer,
)

sklearn = pytest.importorskip("sklearn.preprocessing", reason="pip install scikit-learn")
from scipy import sparse  # noqa: E402
from sklearn.impute import SimpleImputer  # noqa: E402


def tables(rounds: int, seed: int = 0) -> Iterator[tuple[Any, Any, Any]]:
    """Random tables of two columns with gaps, and weights: integers from 0, fractions."""
    dice = np.random.default_rng(seed)
    for turn in range(rounds):
        rows = int(dice.integers(2, 60))
        table = dice.normal(size=(rows, 2)) * 10.0 ** dice.integers(-3, 6, 2)
        if turn % 2:
            table = dice.integers(-3, 4, (rows, 2)).astype(float)
        if turn % 3 == 0:
            table[dice.random(table.shape) < 0.3] = math.nan
        weights = dice.integers(0, 4, rows).astype(float)
        weights[0] = 1.0
        yield table, weights, dice.uniform(0.01, 3, rows)


def again(transformer: StoredTransformer) -> FeatureTransformer:
    """The transformer by way of its JSON."""
    return FeatureTransformer.from_params(json.loads(json.dumps(transformer.to_params())))


def test_weighted_moments_are_those_of_repeated_rows_and_of_scikit_learn() -> None:
    for table, weights, fractions in tables(60):
        ours = StandardScaler().fit(table, sample_weight=weights)
        repeated = StandardScaler().fit(np.repeat(table, weights.astype(int), axis=0))
        near = {"rtol": 1e-9, "atol": 1e-9 * np.nanmax(np.abs(table), initial=1.0)}
        np.testing.assert_allclose(ours.mean_, repeated.mean_, **near)
        np.testing.assert_allclose(ours.scale_, repeated.scale_, **near)
        np.testing.assert_array_equal(ours.n_samples_seen_, repeated.n_samples_seen_)
        assert ours.rows_seen == len(table)
        mine = StandardScaler().fit(table, sample_weight=fractions)
        theirs = sklearn.StandardScaler().fit(table, sample_weight=fractions)
        np.testing.assert_allclose(mine.mean_, theirs.mean_, **near)
        np.testing.assert_allclose(mine.var_, theirs.var_, rtol=1e-9, atol=1e-12)
        half = len(table) // 2
        one = StandardScaler().fit(table[:half], sample_weight=fractions[:half])
        other = StandardScaler().fit(table[half:], sample_weight=fractions[half:])
        parts = StandardScaler().partial_fit(table[:half], sample_weight=fractions[:half])
        parts.partial_fit(table[half:], sample_weight=fractions[half:])
        for merged in (one.merge(other), parts):
            np.testing.assert_allclose(merged.mean_, mine.mean_, **near)
            np.testing.assert_allclose(merged.var_, mine.var_, rtol=1e-9, atol=1e-12)
        assert again(mine) == mine
        as_frame = pa.table({"a": table[:, 0], "b": table[:, 1]})
        of_frame = StandardScaler().fit(as_frame, sample_weight=fractions.tolist())
        np.testing.assert_array_equal(of_frame.mean_, mine.mean_)
    light = StandardScaler().fit([[1.0], [3.0]], sample_weight=[0.125, 0.125])
    assert (light.mean_.tolist(), light.var_.tolist()) == ([2.0], [1.0])


def test_weighted_bins_are_those_of_repeated_rows_and_of_scikit_learn() -> None:
    for table, weights, fractions in tables(40, seed=1):
        for settings in (
            {"strategy": "quantile"}, {"strategy": "uniform"},
            {"strategy": "quantile", "quantile_method": "inverted_cdf"},
        ):  # fmt: skip
            ours = KBinsDiscretizer(4, subsample=None, **settings)
            ours.fit(table, sample_weight=weights)
            repeated = np.repeat(table, weights.astype(int), axis=0)
            expected = KBinsDiscretizer(4, subsample=None, **settings).fit(repeated)
            for own, other in zip(ours.bin_edges_, expected.bin_edges_, strict=True):
                np.testing.assert_array_equal(own, other)
            assert again(ours) == ours
        if np.isnan(table).any():
            continue  # which scikit-learn refuses
        ours = KBinsDiscretizer(3, subsample=None).fit(table, sample_weight=fractions)
        theirs = sklearn.KBinsDiscretizer(
            3, subsample=None, quantile_method="averaged_inverted_cdf"
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of bins that are too small
            theirs.fit(table, sample_weight=fractions)
        for own, other in zip(ours.bin_edges_, theirs.bin_edges_, strict=True):
            if len(other) > 2:
                np.testing.assert_allclose(own, other)


def test_wrong_weights_are_refused() -> None:
    rows = [[1.0], [2.0]]
    for weights, message in (
        ([1.0], "has 1 weights for 2 rows"),
        ([[1.0], [1.0]], "has 2 dimensions"),
        ([0.0, 0.0], "is zero in every row"),
        ([1.0, -1.0], "no finite number from 0"),
        ([1.0, math.inf], "no finite number from 0"),
        ("ab", "expected one number per row"),
    ):
        for one in (StandardScaler(), KBinsDiscretizer()):
            with pytest.raises(TransformError, match=message):
                one.fit(rows, sample_weight=weights)
    for bins, message in (
        (KBinsDiscretizer(strategy="kmeans"), "sample_weight is for quantiles without a grid"),
        (KBinsDiscretizer(grid=[1.0]), "sample_weight is for quantiles without a grid"),
        (KBinsDiscretizer(quantile_method="hazen"), "expected one of with sample_weight: aver"),
        (KBinsDiscretizer(subsample=1), "2 rows with weights exceed subsample=1"),
    ):
        with pytest.raises(TransformError, match=message):
            bins.fit(rows, sample_weight=[1.0, 2.0])
    assert StandardScaler().fit(rows, sample_weight=3).n_samples_seen_.tolist() == [6]


CATEGORIES: list[Any] = [["c", "a", "b"], [1, 2, 5]]


@pytest.mark.parametrize("handle", ["error", "ignore", "infrequent_if_exist"])
@pytest.mark.parametrize("rule", [{}, {"drop": "first"}, {"min_frequency": 2},
                                  {"max_categories": 2, "drop": "if_binary"}], ids=str)  # fmt: skip
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int8, "bool"], ids=str)
def test_declared_categories_sparse_and_typed_outputs_are_those_of_scikit_learn(
    handle: str, rule: dict[str, Any], dtype: Any
) -> None:
    dice = np.random.default_rng(4)
    for _ in range(4):
        rows = int(dice.integers(2, 12))
        seen = pd.DataFrame({"w": dice.choice(["a", "b"], rows), "n": dice.choice([1, 5], rows)})
        seen["w"] = seen["w"].astype(object)
        categories = [np.array(CATEGORIES[0], object), np.array(CATEGORIES[1])]
        options = {"handle_unknown": handle, "categories": categories, **rule}
        theirs = sklearn.OneHotEncoder(**options, dtype=np.dtype(dtype)).fit(seen)
        expected = theirs.transform(seen)
        ours = OneHotEncoder(**options, dtype=dtype, sparse_output=True).fit(seen)
        got = ours.transform(seen)
        assert type(got) is type(expected)
        assert got.dtype == expected.dtype
        np.testing.assert_array_equal(got.toarray(), expected.toarray())
        if handle == "error" and not rule:  # what is infrequent or unknown comes back as null
            back = ours.inverse_transform(got)
            assert back.tolist() == theirs.inverse_transform(expected).tolist()
        dense = OneHotEncoder(**options, dtype=dtype).fit(seen.to_numpy())
        out = dense.transform(seen.to_numpy())
        assert out.dtype == np.dtype(dtype)
        np.testing.assert_array_equal(out, expected.toarray())
        names = [n.replace("infrequent_sklearn", "infrequent")
                 for n in theirs.get_feature_names_out()]  # fmt: skip
        assert ours.get_feature_names_out().tolist() == names
        assert again(ours) == ours
        np.testing.assert_array_equal(again(ours).transform(seen).toarray(), got.toarray())
        halves = [OneHotEncoder(**options).partial_fit(seen[:1]),
                  OneHotEncoder(**options).partial_fit(seen[1:])]  # fmt: skip
        together = OneHotEncoder(**options).fit(seen)
        assert halves[0].merge(halves[1]) == together == halves[1].merge(halves[0])


def test_declared_categories_are_checked_in_fit() -> None:
    for categories, message in (
        ("some", "expected 'auto', or a list of categories per column"),
        (["ab"], "expected 'auto', or a list of categories per column"),
        ([["a", "a"]], "predefined categories contain duplicate elements"),
        ([[2, 1]], "Unsorted categories are not supported for numerical categories"),
        ([[None, "a"]], "null should be the last"),
        ([["a", 1]], "expected one of them"),
        ([["b"]], r"Found unknown categories \['a'\] in column 0 during fit"),
        ([["a"], ["b"]], "categories of 2 columns; the data have 1"),
    ):
        with pytest.raises(TransformError, match=message):
            OneHotEncoder(categories=categories).fit([["a"]])
    with_null = OneHotEncoder(categories=[["b", "a", math.nan]]).fit([["a"]])
    assert with_null.categories_ == [["b", "a", None]]
    assert with_null.transform([[None], ["b"]]) == [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]
    assert with_null.accepts(0, String)
    assert not with_null.accepts(0, Int64)
    ignoring = OneHotEncoder("ignore", categories=[["b"]]).fit([["a"], ["b"]])
    assert ignoring.transform([["a"], ["b"]]) == [[0.0], [1.0]]
    with pytest.raises(TransformError, match="dtype='x'; expected a NumPy type of numbers"):
        OneHotEncoder(dtype="x").fit([["a"]])


def test_sparse_output_is_for_transform_alone_and_names_what_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    encoder = OneHotEncoder(sparse_output=True).fit([["a"], ["b"]])
    assert sparse.issparse(encoder.transform([["a"]]))
    with pytest.raises(TransformError, match="pandas output does not support sparse data"):
        encoder.set_output(transform="pandas").transform([["a"]])
    steps = Pipeline([("hot", OneHotEncoder(sparse_output=True)), ("scale", StandardScaler())])
    assert steps.fit([["a"], ["b"]]).transform([["a"]]) == [[1.0, -1.0]]
    monkeypatch.setitem(sys.modules, "scipy.sparse", None)
    with pytest.raises(MissingExtraError, match="sparse_output=True needs the package scipy"):
        OneHotEncoder(sparse_output=True).fit([["a"]]).transform([["a"]])


def test_bins_have_the_type_that_is_set() -> None:
    data = np.array([[1.0], [2.0], [3.0], [math.nan]])
    for encode in ("onehot", "ordinal"):
        bins = KBinsDiscretizer(2, encode=encode, dtype=np.float32).fit(data)
        out = bins.transform(data)
        assert out.dtype == np.float32
        np.testing.assert_array_equal(out, KBinsDiscretizer(2, encode=encode).fit_transform(data))
        assert again(bins) == bins
    assert KBinsDiscretizer(2, dtype="float64").fit_transform(data).dtype == np.float64
    with pytest.raises(TransformError, match="expected float32, float64 or None"):
        KBinsDiscretizer(dtype=np.int64).fit(data)


@pytest.mark.parametrize("strategy", ["mean", "median", "most_frequent", "constant"])
@pytest.mark.parametrize("indicator", [False, True])
def test_a_marker_is_missing_as_in_scikit_learn(strategy: str, indicator: bool) -> None:
    dice = np.random.default_rng(5)
    for _ in range(30):
        table = dice.integers(-2, 4, (int(dice.integers(2, 30)), 3)).astype(float)
        table[0] = 3.0
        options: dict[str, Any] = {"missing_values": -1, "add_indicator": indicator}
        ours = Imputer(strategy, **options).fit(table)
        theirs = SimpleImputer(strategy=strategy, **options).fit(table)
        # a gap without an indicator is an error of scikit-learn
        requested = table if indicator else np.concatenate([table, [[-1.0, -1.0, 3.0]]])
        expected = theirs.transform(requested)
        np.testing.assert_allclose(ours.transform(requested), expected, rtol=1e-14, atol=1e-14)
        in_columns = ours.transform(pa.table({f"c{j}": requested[:, j] for j in range(3)}))
        np.testing.assert_array_equal(
            np.column_stack([c.to_numpy() for c in in_columns.columns]), ours.transform(requested)
        )
        if indicator:
            np.testing.assert_array_equal(
                ours.inverse_transform(expected), theirs.inverse_transform(expected)
            )
        assert again(ours) == ours
        if strategy != "median":
            merged = (
                Imputer(strategy, **options)
                .fit(table[:1])
                .merge(Imputer(strategy, **options).fit(table[1:]))
            )
            np.testing.assert_allclose(
                merged.transform(requested), expected, rtol=1e-14, atol=1e-14
            )


def test_a_marker_among_strings_and_next_to_nulls() -> None:
    words = Imputer("most_frequent", missing_values="?").fit([["a"], ["?"], [None], ["a"]])
    assert words.transform([["?"], [None], ["b"]]) == [["a"], ["a"], ["b"]]
    numbers = Imputer(missing_values=0).fit([[0], [4], [None]])
    assert numbers.transform([[0], [None], [1]]) == [[4.0], [4.0], [1.0]]
    assert numbers.accepts(0, Float64)
    assert not numbers.required_statistics
    for same in (None, math.nan, pd.NA):
        assert Imputer(missing_values=same).fit([[1.0]]).to_params() == (
            Imputer().fit([[1.0]]).to_params()
        )
    with pytest.raises(TransformError, match="missing_values=inf; expected a finite number"):
        Imputer(missing_values=math.inf).fit([[1.0]])


def test_a_marker_is_exported() -> None:
    runtime = pytest.importorskip("onnxruntime", reason="pip install onnxruntime")
    from paimon_features.transformers.onnx_export import to_feeds, to_onnx

    data = np.array([[0.0, 2.0], [4.0, 0.0], [math.nan, 3.0], [2.0, 5.0]])
    fill = Imputer(missing_values=0, add_indicator=True).fit(data)
    model = to_onnx(fill)
    session = runtime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    got = session.run(None, to_feeds(model, data))[0]
    np.testing.assert_allclose(got, fill.transform(data), rtol=1e-6)


@pytest.mark.parametrize("rows", [3, 40_000])
@pytest.mark.parametrize(
    "kind", [StandardScaler, MinMaxScaler, MaxAbsScaler, RobustScaler, QuantileTransformer, Imputer]
)
def test_without_a_copy_an_array_of_float64_is_overwritten(kind: Any, rows: int) -> None:
    data = np.random.default_rng(0).normal(size=(rows, 2))
    plain, in_place = kind().fit(data), kind(copy=False).fit(data)
    expected, given = plain.transform(data), data.copy()
    np.testing.assert_array_equal(in_place.transform(given), expected)
    np.testing.assert_array_equal(given, expected)
    if kind is not Imputer:
        back = plain.inverse_transform(expected)
        np.testing.assert_array_equal(in_place.inverse_transform(given), back)
        np.testing.assert_array_equal(given, back)
    for other in (data.astype(np.float32), pd.DataFrame(data), data.tolist()):
        before = np.array(other)
        in_place.transform(other)
        np.testing.assert_array_equal(np.array(other), before)
    fixed = data.copy()
    fixed.flags.writeable = False
    np.testing.assert_array_equal(in_place.transform(fixed), expected)
    assert plain.to_params() == in_place.to_params()
    if hasattr(plain, "partial_fit"):
        assert in_place.merge(plain).copy is False
