"""Models of Flink ML's algorithms: stored to the bit, served as they transform, edges refused."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from scipy.sparse import csr_array

from paimon_features.core.columns.column import Column
from paimon_features.core.errors import TransformError
from paimon_features.core.types.schema import Float64, Int64, List, String
from paimon_features.definitions import (
    Definitions,
    Entity,
    EventSource,
    FeatureView,
    Fitted,
    Transformed,
)
from paimon_features.definitions.aggregates import Count, Sum
from paimon_features.testing.reference.fitted import row_of
from paimon_features.testing.sizes import seeds
from paimon_features.transformers import FittedVersion
from paimon_features.transformers.fitted_version import read_version, write_version
from paimon_features.transformers.flink_ml import (
    ImputerModel,
    InteractionModel,
    KBinsDiscretizerModel,
    KMeansModel,
    LinearRegressionModel,
    LinearSVCModel,
    LogisticRegressionModel,
    MaxAbsScalerModel,
    MinMaxScalerModel,
    Model,
    OneHotEncoderModel,
    RobustScalerModel,
    SparseRows,
    SparseVector,
    StandardScalerModel,
)

WIDTH = 3


def all_models(seed: int) -> list[Model]:
    """One of each kind, of three columns, with random contents."""
    rng = np.random.default_rng(seed)

    def numbers() -> Any:
        return rng.choice([0.0, 1.0, -2.5, 1e9, 1e-9, 0.1], WIDTH) * rng.choice([1.0, 1 / 3])

    low = numbers()
    edges = [np.unique(rng.normal(size=4)), [], np.array([-1.0, 0.5])]
    centroids = rng.normal(size=(4, WIDTH))
    return [
        LogisticRegressionModel({"coefficient": numbers()}, names=("a", "b", "c"), rows=7),
        LogisticRegressionModel({"coefficient": numbers(), "modelVersion": 3}, rows=7),
        LinearSVCModel({"coefficient": numbers()}, threshold=float(rng.normal())),
        LinearRegressionModel({"coefficient": numbers()}),
        *(
            KMeansModel({"centroids": centroids, "weights": np.ones(4)}, distance_measure=measure)
            for measure in ("euclidean", "manhattan", "cosine")
        ),
        StandardScalerModel({"mean": numbers(), "std": numbers()}, with_mean=bool(seed % 2)),
        StandardScalerModel(
            {"mean": numbers(), "std": numbers(), "version": 4, "timestamp": 2999}, with_std=False
        ),
        MinMaxScalerModel(
            {"minVector": low, "maxVector": low + np.array([0, 1e-6, 5])}, min=-1.0, max=3.0
        ),
        MaxAbsScalerModel({"maxVector": np.abs(numbers())}),
        RobustScalerModel({"medians": numbers(), "ranges": numbers()}, with_centering=True),
        ImputerModel({"surrogates": numbers()}),
        ImputerModel({"surrogates": numbers()}, missing_value=1.0),
        KBinsDiscretizerModel({"binEdges": edges}),
        OneHotEncoderModel({"maxIndex": [1, 0, 3]}),
        OneHotEncoderModel({"maxIndex": [1, 0, 3]}, drop_last=False),
        InteractionModel({"sizes": [1, 2]}, input_cols=("a", "b")),
    ]


def rows_for(model: Model, seed: int) -> list[list[float | None]]:
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(40, WIDTH)) * rng.choice([1.0, 1e6, 1e-6], (40, 1))
    if isinstance(model, OneHotEncoderModel):
        values = rng.choice([0.0, 1.0, 2.0, 3.0, 4.0, 0.5, -1.0], (40, WIDTH))
    values[:10] = rng.choice([0.0, -0.0, 1.0, -2.5, 0.5], (10, WIDTH))
    values[11, 1] = math.nan
    rows: list[list[float | None]] = values.tolist()
    rows[12][0] = rows[13][2] = None
    return rows


def columns_of(rows: list[list[float | None]]) -> list[Column]:
    columns = []
    for j in range(WIDTH):
        values = [row[j] for row in rows]
        valid = np.array([v is not None for v in values])
        plain = np.array([7.0 if v is None else v for v in values])
        columns.append(Column(plain, None if valid.all() else valid))
    return columns


def same(left: Any, right: Any) -> bool:
    """Equal to the bit; NaN is NaN."""
    return left == right or (left != left and right != right)


@pytest.mark.parametrize("seed", seeds(4))
def test_columns_come_out_as_a_loop_over_the_stored_parameters_tells(seed: int) -> None:
    for model in all_models(seed):
        rows = rows_for(model, seed)
        applied = model.apply(columns_of(rows))
        assert len(applied.columns) == model.width_out == len(model.names_out(["a", "b", "c"]))
        for i, row in enumerate(rows):
            expected, refused = row_of(json.loads(json.dumps(model.to_params())), row)
            assert bool(applied.failed is not None and applied.failed[i]) == refused, (model, row)
            if not refused:
                got = [c.values[i] if c.mask[i] else None for c in applied.columns]
                assert all(map(same, got, expected)), (model, row, got, expected)


@pytest.mark.parametrize("seed", seeds(3))
def test_one_row_of_a_request_gives_what_the_row_gives_among_many(seed: int) -> None:
    for model in all_models(seed):
        columns = columns_of(rows_for(model, seed))
        whole = model.apply(columns)
        for i in range(0, 40, 7):
            one = model.apply([column.part(slice(i, i + 1)) for column in columns])
            for left, right in zip(one.columns, whole.columns, strict=True):
                assert left.mask[0] == right.mask[i]
                assert not left.mask[0] or same(left.values[0], right.values[i])


def test_what_is_stored_and_read_is_the_same_model(tmp_path: Path) -> None:
    for number, model in enumerate(all_models(1), 1):
        version = FittedVersion("model", number, model, 5, {"rows": 1})
        write_version(tmp_path, version)
        again = read_version(tmp_path, "model", number)
        assert again == version
        assert again.digest == version.digest
        assert type(again.transformer) is type(model)


@pytest.mark.parametrize("seed", seeds(2))
def test_transform_of_an_array_is_apply_of_its_columns(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for model in all_models(seed):
        data = rng.normal(size=(50, WIDTH))
        if isinstance(model, OneHotEncoderModel):
            data = np.column_stack([rng.integers(0, m + 1, 50) for m in (1, 0, 3)]).astype(float)
        made = model.transform(data)
        applied = model.apply([Column(column) for column in data.T])
        expected = np.column_stack([column.values for column in applied.columns])
        assert np.array_equal(made if made.ndim == 2 else made[:, None], expected)


FORMS: dict[str, Callable[[pa.Table], Any]] = {
    "arrow": lambda table: table,
    "batch": lambda table: table.combine_chunks().to_batches()[0],
    "pandas": lambda table: table.to_pandas(),
    "polars": lambda table: pl.from_arrow(table),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_table_gets_the_columns_of_flink_ml_and_stays_what_it_was(form: str) -> None:
    table = pa.table({"id": [1, 2], "features": [[1.0, 2.0], [3.0, -1.0]]})
    given = FORMS[form](table)
    model = LogisticRegressionModel(
        {"coefficient": [1.0, 0.0], "modelVersion": 4}, model_version_col="version"
    )
    made = model.transform(given)
    assert type(made) is type(given)
    plain = (
        made
        if form in ("arrow", "batch")
        else pa.table(
            pa.Table.from_pandas(made) if isinstance(made, pd.DataFrame) else made.to_arrow()
        )
    )
    assert plain.schema.names == ["id", "features", "prediction", "rawPrediction", "version"]
    assert plain.column("prediction").to_pylist() == [1.0, 1.0]
    assert [len(raw) for raw in plain.column("rawPrediction").to_pylist()] == [2, 2]
    assert plain.column("version").to_pylist() == [4, 4]


def test_columns_of_numbers_are_as_good_as_a_column_of_vectors() -> None:
    table = pa.table({"a": [1.0, 3.0], "b": [2, -1], "features": [[1.0, 2.0], [3.0, -1.0]]})
    data = {"centroids": [[0.0, 0.0], [3.0, 0.0]], "weights": [1.0, 1.0]}
    by_vector = KMeansModel(data).transform(table)["prediction"]
    by_columns = KMeansModel(data, features_col=("a", "b")).transform(table)["prediction"]
    assert by_vector.type == pa.int32()
    assert by_vector.to_pylist() == by_columns.to_pylist() == [0, 1]


def test_sparse_vectors_give_what_dense_ones_give_and_stay_sparse_where_zeros_stay() -> None:
    rng = np.random.default_rng(5)
    dense = np.where(rng.random((30, 6)) < 0.3, rng.normal(size=(30, 6)), 0.0)
    dense[3] = 0.0
    rows = [
        SparseVector(6, np.flatnonzero(row).tolist(), row[np.flatnonzero(row)].tolist())
        for row in dense
    ]
    sparse = SparseRows.of(rows)
    numbers = rng.normal(size=6)
    models: list[Model] = [
        LogisticRegressionModel({"coefficient": numbers}),
        KMeansModel({"centroids": rng.normal(size=(3, 6)), "weights": np.ones(3)}),
        StandardScalerModel({"mean": numbers, "std": np.abs(numbers)}, with_mean=True),
        KBinsDiscretizerModel({"binEdges": [[-1.0, 0.0, 1.0]] * 6}),
    ]
    for model in models:
        expected = model.transform(dense)
        for form in (sparse, rows, csr_array(dense)):
            assert np.array_equal(model.transform(form), expected)
    scaled = MaxAbsScalerModel({"maxVector": np.abs(numbers)}).transform(sparse)
    assert isinstance(scaled, SparseRows)
    assert len(scaled.values) == len(sparse.values)
    assert np.array_equal(scaled.dense(), dense * (1 / np.abs(numbers)))
    table = pa.table({"input": pa.array([_struct(row) for row in rows])})
    made = StandardScalerModel({"mean": numbers, "std": np.abs(numbers)}).transform(table)
    assert pa.types.is_struct(made["output"].type)
    assert made["output"][0]["indices"].as_py() == list(rows[0].indices)


def _struct(row: SparseVector) -> dict[str, Any]:
    return {"size": row.size, "indices": list(row.indices), "values": list(row.values)}


def test_sparse_rows_are_cut_and_taken_like_the_rows_that_they_are() -> None:
    rng = np.random.default_rng(2)
    dense = np.where(rng.random((20, 5)) < 0.3, rng.normal(size=(20, 5)), 0.0)
    csr = csr_array(dense)
    sparse = SparseRows.checked(csr.indptr, csr.indices, csr.data, 5)
    assert np.array_equal(sparse.part(3, 9).dense(), dense[3:9])
    rows = np.array([19, 0, 0, 7])
    assert np.array_equal(sparse.take(rows).dense(), dense[rows])


@pytest.mark.parametrize(
    ("vectors", "reported"),
    [
        ([SparseVector(2, [2], [1.0])], "ascend from 0 below its size 2"),
        ([SparseVector(3, [1, 1], [1.0, 2.0])], "ascend"),
        ([SparseVector(3, [1], [1.0, 2.0])], "1 indices of 2 values"),
        ([SparseVector(3, [1], [1.0]), SparseVector(2, [1], [1.0])], r"sizes \[2, 3\]"),
    ],
)
def test_sparse_vectors_that_are_none_are_refused(
    vectors: list[SparseVector], reported: str
) -> None:
    with pytest.raises(TransformError, match=reported):
        SparseRows.of(vectors)


@pytest.mark.parametrize(
    ("wrong", "reported"),
    [
        (lambda: MaxAbsScalerModel({"max": [1.0]}), "model data .* are maxVector; got max"),
        (lambda: MaxAbsScalerModel({"maxVector": [1.0]}, k=3),
         "unknown setting of a MaxAbsScalerModel 'k'; available: input_col"),
        (lambda: MinMaxScalerModel({"minVector": [0.0], "maxVector": []}), "number per feature"),
        (lambda: KMeansModel({"centroids": [[1.0]], "weights": []}), r"expected \(k, width\)"),
        (lambda: KBinsDiscretizerModel({"binEdges": [[1.0, 1.0]]}), "two or more ascending"),
        (lambda: KBinsDiscretizerModel({"binEdges": [[0.0, math.inf]]}), "ascending finite"),
        (lambda: MaxAbsScalerModel({"maxVector": [1.0]}).fit([[1.0]]),
         r"MaxAbsScalerStage\(\).fit"),
        (lambda: MaxAbsScalerModel({"maxVector": [1.0]}).transform([[1.0, 2.0]]),
         "number of features must be 1 but got 2"),
        (lambda: MaxAbsScalerModel({"maxVector": [1.0]}).transform([["x"]]), "not a matrix of num"),
        (lambda: MaxAbsScalerModel({"maxVector": [1.0]}).transform(pa.table({"a": [[1.0]]})),
         "unknown column 'input'; available: a"),
        (lambda: MaxAbsScalerModel({"maxVector": [1.0]}).transform(pa.table({"input": [[None]]})),
         "vectors with nulls"),
        (lambda: MaxAbsScalerModel({"maxVector": [1.0]}).transform(pa.table({"input": [None]})),
         "1 nulls"),
        (lambda: MaxAbsScalerModel({"maxVector": [1.0]}, output_col="input").transform(
            pa.table({"input": [[1.0]]})), "has a column 'input' already"),
        (lambda: OneHotEncoderModel({"maxIndex": [2]}).transform([[0.0], [0.5]]),
         r"row 1: \[.*0.5.*\] cannot be parsed as indices"),
        (lambda: KMeansModel({"centroids": [[1.0]], "weights": [1.0]}, distance_measure="cosine")
         .transform([[1.0], [0.0]]), "row 1: the cosine distance of a vector of zeros"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_reported(wrong: Callable[[], Any], reported: str) -> None:
    with pytest.raises(TransformError, match=reported):
        wrong()


SHOP = EventSource(
    "shop",
    schema={"user": Int64, "t": Int64, "amount": Float64, "word": String},
    event_time="t",
)
SPEND = FeatureView(
    "spend",
    source=SHOP,
    entity=Entity("user", keys={"user": Int64}),
    features=[Sum("amount", windows=["1d"], scale=2), Count(windows=["1d"])],
)
OF = ["spend:sum_amount_1d", "spend:count_1d"]


def test_a_service_pins_a_model_by_its_version(tmp_path: Path) -> None:
    churn = LogisticRegressionModel({"coefficient": [0.5, -1.0]}, names=("a", "b"), rows=9)
    group = KMeansModel({"centroids": [[0.0, 0.0], [9.0, 9.0]], "weights": [1.0, 1.0]})
    write_version(tmp_path, FittedVersion("churn", 3, churn, 0))
    write_version(tmp_path, FittedVersion("group", 1, group, 0))
    definitions = Definitions.of(
        [
            SPEND,
            Transformed("score", OF, Fitted("churn", version=3)),
            Transformed("group", OF, Fitted("group", version=1)),
        ],
        fitted=tmp_path,
    )
    score, of_group = (definitions.transformation(name) for name in ("score", "group"))
    assert (score.type, of_group.type) == (List(Float64, 3), Float64)
    sums = Column(np.array([2.0, 20.0, 0.0]), np.array([True, True, False]))
    counts = Column(np.array([1, 4, 1]))
    value, failed = score.apply([sums, counts])
    assert failed is None
    assert [value.values[i] if value.mask[i] else None for i in range(2)] == [
        [1.0, 0.5, 0.5],
        churn.transform([[20.0, 4.0]]).tolist()[0],
    ]
    assert not value.mask[2]
    value, _ = of_group.apply([sums, counts])
    assert value.values[:2].tolist() == [0.0, 1.0]
