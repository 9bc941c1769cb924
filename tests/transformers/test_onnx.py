"""A model that ``to_onnx`` made, run by onnxruntime, against ``transform`` of the same data."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paimon_features.core.errors import TransformError
from paimon_features.transformers import (
    Clip,
    ColumnTransformer,
    FittedVersion,
    FrequencyEncoder,
    Frozen,
    HashingEncoder,
    Imputer,
    InteractionFeatures,
    KBinsDiscretizer,
    LogTransform,
    MaxAbsScaler,
    MinMaxScaler,
    OneHotEncoder,
    Pipeline,
    QuantileTransformer,
    RobustScaler,
    StandardScaler,
    StoredTransformer,
    TargetEncoder,
)
from paimon_features.transformers.onnx_export import to_feeds, to_onnx

pytest.importorskip("onnx", reason="pip install 'paimon-features[onnx]'")
runtime = pytest.importorskip("onnxruntime", reason="pip install onnxruntime")

ROWS = 60
WITHIN = {"float64": 1e-12, "float32": 1e-6}
rng = np.random.default_rng(7)


def run(model: Any, X: Any) -> Any:
    session = runtime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return session.run(["transformed"], to_feeds(model, X))[0]


def in_float32(values: Any) -> Any:
    """Numbers that float32 has, so that both sides see the same."""
    return values.astype(np.float32).astype(np.float64)


def with_gaps(values: Any) -> list[Any]:
    return [None if rng.random() < 0.15 else v for v in values.tolist()]


def numbers(scale: float = 3.0, at: float = 1.0) -> list[Any]:
    return with_gaps(in_float32(rng.normal(at, scale, ROWS)))


def texts(among: str = "abcd") -> list[Any]:
    return with_gaps(rng.choice(list(among), ROWS))


def table(*columns: list[Any]) -> pa.Table:
    return pa.table({f"c{i}": column for i, column in enumerate(columns)})


def as_array(data: pa.Table) -> Any:
    return np.column_stack([column.to_numpy() for column in data.columns]).astype(np.float64)


NUMERIC: dict[str, Callable[[], StoredTransformer]] = {
    "standard": StandardScaler,
    "standard, no mean": lambda: StandardScaler(with_mean=False),
    "standard, neither": lambda: StandardScaler(with_mean=False, with_std=False),
    "min_max": lambda: MinMaxScaler((-1, 2)),
    "min_max, clip": lambda: MinMaxScaler((-1, 2), clip=True),
    "max_abs, clip": lambda: MaxAbsScaler(clip=True),
    "max_abs": MaxAbsScaler,
    "robust": RobustScaler,
    "robust, plain": lambda: RobustScaler(with_centering=False, with_scaling=False),
    "clip": lambda: Clip(-0.5, 2.5),
    "clip above": lambda: Clip(high=1.5),
    "log, signed": lambda: LogTransform(2.5, signed=True),
    "interaction": InteractionFeatures,
    "interactions": lambda: InteractionFeatures(
        [(0, 1, o) for o in ("sum", "difference", "abs_difference", "ratio", "min", "max")],
        keep=False,
    ),
    "ratio or null": lambda: InteractionFeatures([(0, 1, "ratio")], zero=None),
    "imputer": lambda: Imputer("median", add_indicator=True),
    "imputer, constant": lambda: Imputer("constant", fill_value=-1.5),
    "bins": lambda: KBinsDiscretizer(4),
    "bins, k-means": lambda: KBinsDiscretizer(4, encode="ordinal", strategy="kmeans"),
    "bins, ordinal": lambda: KBinsDiscretizer(3, encode="ordinal", strategy="uniform"),
    "quantiles": lambda: QuantileTransformer(n_quantiles=20),
    "quantiles, normal": lambda: QuantileTransformer(
        n_quantiles=20, output_distribution="normal"
    ),
    "frequency": FrequencyEncoder,
    "one hot": lambda: OneHotEncoder("ignore"),
    "bins, then one hot": lambda: Pipeline(
        [("bins", KBinsDiscretizer(3, encode="ordinal")), ("hot", OneHotEncoder("ignore"))]
    ),
    "six steps": lambda: Pipeline([
        ("clip", Clip(-4, 6)), ("fill", Imputer()), ("robust", RobustScaler()),
        ("log", LogTransform(signed=True)), ("scale", StandardScaler()),
        ("stretch", MinMaxScaler()),
    ]),
}  # fmt: skip


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", NUMERIC)
def test_numbers_come_out_as_transform_makes_them(name: str, dtype: str) -> None:
    data = table(numbers(), [None if v is None else round(v) for v in numbers(2.0)])
    transformer = NUMERIC[name]().fit(data)
    requested = table(numbers(8.0), [None if v is None else round(v) for v in numbers(4.0, 0.0)])
    expected = as_array(transformer.transform(requested))
    model = to_onnx(transformer, dtype=dtype)
    got = run(model, requested)
    assert got.dtype == dtype
    np.testing.assert_allclose(got, expected, rtol=WITHIN[dtype], atol=WITHIN[dtype] / 100)
    by_matrix = run(to_onnx(transformer, dtype=dtype, matrix=True), requested)
    np.testing.assert_array_equal(by_matrix, got)
    # an empty request, and a single row
    assert run(model, requested.slice(0, 0)).shape == (0, transformer.width_out)
    np.testing.assert_array_equal(run(model, requested.slice(3, 1)), got[3:4])


CATEGORIES: dict[str, Callable[[], StoredTransformer]] = {
    "one hot": lambda: OneHotEncoder("ignore"),
    "one hot, infrequent": lambda: OneHotEncoder(
        "infrequent_if_exist", max_categories=3, drop="first"
    ),
    "frequency": FrequencyEncoder,
    "counts": lambda: FrequencyEncoder(output="count", handle_unknown="null"),
    "target": lambda: TargetEncoder(target_type="continuous"),
    "classes": lambda: TargetEncoder(smooth=3.0, target_type="multiclass"),
    "hash": lambda: HashingEncoder(7),
    "hash, unsigned": lambda: HashingEncoder(5, alternate_sign=False),
    "place": lambda: HashingEncoder(1000, output="index"),
    "fill": lambda: Pipeline(
        [("fill", Imputer("constant", fill_value="none")), ("hot", OneHotEncoder("ignore"))]
    ),
    "frozen": lambda: Pipeline([("hot", OneHotEncoder("ignore")), ("scale", StandardScaler())]),
}


@pytest.mark.parametrize("name", CATEGORIES)
def test_texts_come_out_as_transform_makes_them(name: str) -> None:
    data = table(texts(), texts("xyz"))
    target = rng.choice([0, 1, 2], ROWS)
    transformer = CATEGORIES[name]()
    fitted = transformer.fit(data, target) if transformer.needs_target else transformer.fit(data)  # type: ignore[call-arg]
    # unknown ones, one of them empty, which represents a null unless it is a category
    requested = table(texts("abcdefgh"), texts(["xyz", "xyzö"][name != "fill"]))
    expected = as_array(fitted.transform(requested))
    for dtype, within in WITHIN.items():
        got = run(to_onnx(Frozen(fitted), dtype=dtype), requested)
        np.testing.assert_allclose(got, expected, rtol=within, atol=within / 100)


def test_branches_of_texts_and_numbers_nested_in_a_pipeline() -> None:
    data = pa.table(
        {"amount": numbers(), "city": texts(), "shop": texts("xyz"), "age": numbers(20.0, 40.0)}
    )
    target = in_float32(rng.normal(size=ROWS))
    inner = Pipeline([("fill", Imputer()), ("scale", StandardScaler())])
    outer = Pipeline([
        ("columns", ColumnTransformer([
            ("numbers", inner, ["amount", "age"]),
            ("city", TargetEncoder(target_type="continuous"), "city"),
            ("shop", OneHotEncoder("ignore"), ["shop"]),
            ("hash", HashingEncoder(4), ["city"]),
        ], remainder="passthrough")),
        ("stretch", MinMaxScaler()),
        ("clip", Clip(0, 1)),
    ]).fit(data, target)  # fmt: skip
    version = FittedVersion("model_inputs", 3, outer, 0)
    model = to_onnx(version, dtype="float64")
    assert [each.name for each in model.graph.input] == ["amount", "city", "shop", "age"]
    reported = {each.key: each.value for each in model.metadata_props}
    assert (reported["name"], reported["version"], reported["digest"]) == (
        "model_inputs",
        "3",
        version.digest,
    )
    assert reported["columns"].startswith(
        '["numbers__amount", "numbers__age", "city__city", "shop__'
    )
    expected = as_array(outer.transform(data))
    np.testing.assert_allclose(run(model, data), expected, rtol=1e-12, atol=1e-14)


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=settings().max_examples // 8, deadline=None)
def test_random_pipelines_of_numbers_agree(seed: int) -> None:
    choice = random.Random(seed)
    dice = np.random.default_rng(seed)
    # the last digit of a logarithm may be another, and so what comes behind: an edge, a category
    sharp = ("bins", "hot", "frequency")
    soft = ("log", "quantiles", "six steps")
    left_out = ("ratio", "interactions", *choice.choice([sharp, soft]))
    steps = [name for name in NUMERIC if not any(word in name for word in left_out)]
    data, requested = (table(*with_gaps_of(dice)) for _ in range(2))
    chosen = [choice.choice(steps) for _ in range(choice.randrange(2, 5))]
    pipeline = Pipeline([(f"s{i}", NUMERIC[name]()) for i, name in enumerate(chosen)])
    pipeline.fit(data)
    expected = as_array(pipeline.transform(requested))
    got = run(to_onnx(pipeline, dtype="float64"), requested)
    np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-9, err_msg=str(chosen))


def with_gaps_of(dice: Any) -> list[list[Any]]:
    return [
        [None if dice.random() < 0.15 else v for v in dice.normal(1, scale, ROWS).tolist()]
        for scale in (3.0, 0.5)
    ]


def test_what_transform_refuses_is_nan() -> None:
    hot = OneHotEncoder().fit([["a", "x"], ["b", "y"]])
    got = run(to_onnx(hot), [["a", "y"], ["z", "x"]])
    np.testing.assert_array_equal(got, [[1, 0, 0, 1], [np.nan, np.nan, 1, 0]])
    log = LogTransform().fit([1.0])
    np.testing.assert_array_equal(run(to_onnx(log), [0.0, -1.0, -2.0, None]).ravel(),
                                  [0, np.nan, np.nan, np.nan])  # fmt: skip
    small = run(to_onnx(log, dtype="float64"), [1e-10, 1e-300, 1e300])
    np.testing.assert_allclose(small.ravel(), np.log1p([1e-10, 1e-300, 1e300]), rtol=1e-15)


def test_null_among_texts_is_a_text_that_one_chooses() -> None:
    with_empty = OneHotEncoder("ignore").fit(["", "a", None])
    with pytest.raises(TransformError, match="category '' is what stands for null among strings"):
        to_onnx(with_empty)
    model = to_onnx(with_empty, null_text="<null>")
    assert run(model, ["", None, "a", "b"]).tolist() == [
        [1, 0, 0], [0, 0, 1], [0, 1, 0], [0, 0, 0],
    ]  # fmt: skip
    only_text = to_onnx(OneHotEncoder("ignore").fit(["", "a"]))
    assert run(only_text, ["", "a"]).tolist() == [[1, 0], [0, 1]]


def test_integers_are_hashed_as_their_text() -> None:
    encoder = HashingEncoder(50, output="index").fit([[1, "a"]])
    model = to_onnx(encoder, integer_columns=[0])
    rows = [[12345, "a"], [-7, "b"], [None, None]]
    np.testing.assert_array_equal(
        run(model, rows), np.array(encoder.transform(rows), dtype=np.float64)
    )


@pytest.mark.parametrize("signed", [False, True])
def test_lists_are_hashed_item_by_item(signed: bool) -> None:
    rows = [[["a", "b", "a"], 1.0], [None, 2.0], [["ü", None], 3.0], [[], 4.0], [["a"], None]]
    encoder = HashingEncoder(6, alternate_sign=signed)
    both = ColumnTransformer([("tags", encoder, [0]), ("n", StandardScaler(), [1])]).fit(rows)
    model = to_onnx(both, dtype="float64")
    expected = np.array(both.transform(rows), np.float64)
    np.testing.assert_allclose(run(model, rows), expected, rtol=1e-12)
    np.testing.assert_allclose(run(model, rows[1:2]), expected[1:2], rtol=1e-12)
    whole = HashingEncoder(6, alternate_sign=signed).fit([[[1, 2]], [[3, None, -4]], [None]])
    requested = [[[2, 2, -4]], [None], [[7]]]
    for settings_ in ({}, {"integer_columns": [0]}):
        got = run(to_onnx(whole, **settings_), requested)  # type: ignore[arg-type]
        np.testing.assert_array_equal(got, whole.transform(requested))
    with pytest.raises(TransformError, match="column 0 contains 'a', and the model takes lists"):
        to_feeds(model, [["a", 1.0]])
    plain = to_onnx(HashingEncoder(6).fit(["a"]))
    with pytest.raises(TransformError, match=r"contains \['a'\], and the model takes one text"):
        to_feeds(plain, [[["a"]]])
    with pytest.raises(TransformError, match="column 'x0' is strings or lists"):
        to_onnx(whole, integer_columns=[0], matrix=True)


def test_truth_values_and_integers_are_fed_as_the_texts_that_are_hashed() -> None:
    for rows in ([[True], [False], [None]], [[1], [2**60 + 1], [None]]):
        encoder = HashingEncoder(500, output="index").fit(rows)
        expected = np.array(encoder.transform(rows), np.float64)
        np.testing.assert_array_equal(run(to_onnx(encoder), rows), expected)
    with pytest.raises(TransformError, match="column 0 contains 1.5, and the model takes one text"):
        to_feeds(to_onnx(encoder), [[1.5]])


def test_a_text_that_would_be_null_and_a_null_that_would_be_a_text_are_refused() -> None:
    for fitted in (HashingEncoder(4).fit(["a"]), FrequencyEncoder().fit(["a", None])):
        with pytest.raises(
            TransformError, match="contains '', which stands for null in this model"
        ):
            to_feeds(to_onnx(fitted), ["", "a"])
        other = to_onnx(fitted, null_text="<null>")
        expected = np.reshape(fitted.transform(["", None, "a"]), (3, -1))
        np.testing.assert_allclose(run(other, ["", None, "a"]), expected, rtol=1e-6)
    own = to_onnx(OneHotEncoder("ignore").fit(["", "a"]))
    with pytest.raises(TransformError, match="column 0 is null in row 1, and this model takes ''"):
        to_feeds(own, ["", None])


def test_what_cannot_be_expressed_is_reported_with_its_step() -> None:
    def reported(transformer: StoredTransformer, **settings: Any) -> str:
        with pytest.raises(TransformError) as error:
            to_onnx(transformer, **settings)
        return str(error.value)

    class Doubled(StandardScaler):
        pass

    pipeline = Pipeline([("fill", Imputer()), ("own", Doubled())]).fit([1.0, 2.0])
    assert reported(pipeline).startswith(
        "step 'own': a Doubled cannot be expressed in ONNX; supported: "
    )
    fill = Imputer("most_frequent").fit(["a"])
    assert "'x0' that comes out is strings, and a model returns numbers" in reported(fill)
    near = OneHotEncoder().fit([16777216, 16777217])
    assert "two categories are one number in float32; use dtype='float64'" in reported(near)
    assert run(to_onnx(near, dtype="float64"), [16777217]).tolist() == [[0, 1]]
    assert "is not fitted" in reported(StandardScaler())
    assert "dtype='int8'; expected one of: float32, float64" in reported(near, dtype="int8")
    assert "matrix=True is for numbers only" in reported(OneHotEncoder().fit(["a"]), matrix=True)
    assert "unknown column in integer_columns '3'; available: x0" in reported(
        near, integer_columns=[3]
    )
    with pytest.raises(TransformError, match="got 2 columns; the model takes 1"):
        to_feeds(to_onnx(near, dtype="float64"), [[1, 2]])


def test_a_model_is_a_file_that_any_runtime_reads(tmp_path: Path) -> None:
    model = to_onnx(StandardScaler().fit(np.array([[1.0], [3.0]])))
    path = tmp_path / "scaler.onnx"
    path.write_bytes(model.SerializeToString())
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    assert session.run(None, {"x0": np.array([[5.0]], np.float32)})[0].tolist() == [[3.0]]
