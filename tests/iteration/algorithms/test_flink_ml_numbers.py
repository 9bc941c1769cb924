"""The numbers that Flink ML's own tests state, at its parallelism of 4.

The tests of Apache Flink ML after 2.3 (commit 583a619, November 2024) are named after the class
that a test here is about: ``KBinsDiscretizerTest`` for ``KBinsDiscretizerStage``, and so on.
"""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from paimon_features.core.errors import TransformError
from paimon_features.iteration import algorithms
from paimon_features.iteration.algorithms import (
    CountTumblingWindows,
    EventTimeSessionWindows,
    EventTimeTumblingWindows,
    GlobalWindows,
    ImputerStage,
    InteractionStage,
    KBinsDiscretizerStage,
    KMeans,
    LinearRegression,
    LinearSVC,
    LogisticRegression,
    MaxAbsScalerStage,
    MinMaxScalerStage,
    OneHotEncoderStage,
    OnlineKMeans,
    OnlineLogisticRegression,
    OnlineStandardScaler,
    ProcessingTimeSessionWindows,
    ProcessingTimeTumblingWindows,
    RobustScalerStage,
    StandardScalerStage,
)
from paimon_features.transformers.flink_ml import (
    KMeansModel,
    LogisticRegressionModel,
    SparseRows,
    SparseVector,
)
from tests.iteration.algorithms import flink_ml_data as data

P = 4


def coefficient(estimator: Any, table: pa.Table) -> Any:
    return estimator.set_weight_col("weight").fit(table, parallelism=P).model_data["coefficient"]


def near(left: Any, right: Any, tolerance: float = 1e-7) -> bool:
    return np.allclose(left, right, rtol=0, atol=tolerance)


_VECTORS = {"input_col": "input", "output_col": "output"}
_COLUMNS: dict[str, Any] = {"input_cols": (), "output_cols": ()}
_PREDICTION = {"features_col": "features", "prediction_col": "prediction"}
_LABELS = {"label_col": "label", "weight_col": None}
_ROUNDS = {"max_iter": 20, "learning_rate": 0.1, "global_batch_size": 32, "tol": 1e-6}
_PENALTY = {"reg": 0.0, "elastic_net": 0.0}
_LINEAR = {**_PREDICTION, **_LABELS, **_ROUNDS, **_PENALTY}
_RAW = {"raw_prediction_col": "rawPrediction"}
_BATCHES = {"batch_strategy": "count", "global_batch_size": 32}
_MOMENTS = {**_VECTORS, "with_mean": False, "with_std": True}

PARAMETERS: dict[type, dict[str, Any]] = {
    LinearRegression: _LINEAR,
    LinearSVC: {**_LINEAR, **_RAW, "threshold": 0.0},
    LogisticRegression: {**_LINEAR, **_RAW, "multi_class": "auto"},
    KMeans: {**_PREDICTION, "k": 2, "max_iter": 20, "distance_measure": "euclidean",
             "init_mode": "random"},
    OnlineKMeans: {**_PREDICTION, **_BATCHES, "decay_factor": 0.0, "distance_measure": "euclidean"},
    OnlineLogisticRegression: {
        **_PREDICTION, **_LABELS, **_RAW, **_BATCHES, **_PENALTY, "alpha": 0.1, "beta": 0.1,
        "model_version_col": "modelVersion",
    },
    StandardScalerStage: _MOMENTS,
    OnlineStandardScaler: {
        **_MOMENTS, "windows": GlobalWindows(), "max_allowed_model_delay_ms": 0,
        "model_version_col": "version",
    },
    MinMaxScalerStage: {**_VECTORS, "min": 0.0, "max": 1.0},
    MaxAbsScalerStage: _VECTORS,
    RobustScalerStage: {
        **_VECTORS, "lower": 0.25, "upper": 0.75, "relative_error": 0.001,
        "with_centering": False, "with_scaling": True,
    },
    # NaN stands for a missing value
    ImputerStage: {**_COLUMNS, "strategy": "mean", "relative_error": 0.001, "missing_value": None},
    KBinsDiscretizerStage: {
        **_VECTORS, "strategy": "quantile", "num_bins": 5, "sub_samples": 200_000,
    },
    OneHotEncoderStage: {**_COLUMNS, "drop_last": True, "handle_invalid": "error"},
    InteractionStage: {"input_cols": (), "output_col": "output"},
}  # fmt: skip
"""What the testParam of each class states, and the interfaces of its parameters."""
OURS = {
    KMeans: {"seed": 0},  # there the hash of the class name
    OnlineKMeans: {"seed": 0, "k": None},  # there 2; None: that of the initial model
    KBinsDiscretizerStage: {"seed": 0},
    OnlineStandardScaler: {"timestamp_col": "timestamp"},  # there an attribute of the table
}
"""Parameters that Flink ML does not have, or with another default."""


@pytest.mark.parametrize("stage", PARAMETERS)
def test_parameters_and_defaults_are_those_of_flink_ml(stage: Any) -> None:
    found = {field.name: getattr(stage(), field.name) for field in fields(stage)}
    assert found == {**PARAMETERS[stage], **OURS.get(stage, {})}
    for name, value in found.items():
        values = value if name.endswith("_cols") else (value,)
        assert getattr(stage(), f"set_{name}")(*values) == stage()


def test_every_stage_is_compared_with_flink_ml() -> None:
    assert set(PARAMETERS) == {
        stage for name in algorithms.__all__ if hasattr(stage := getattr(algorithms, name), "fit")
    }


def test_setters_chain_as_in_flink_mls_python_api() -> None:
    made = (
        OneHotEncoderStage().set_input_cols("a", "b").set_output_cols("c", "d").set_drop_last(False)
    )
    assert made == OneHotEncoderStage(
        input_cols=("a", "b"), output_cols=("c", "d"), drop_last=False
    )
    with pytest.raises(AttributeError, match="'set_l'; available: .*set_drop_last"):
        made.set_l(3)


def test_logistic_regression() -> None:
    model = LogisticRegression(weight_col="weight").fit(data.BINARY, parallelism=P)
    made = model.transform(data.BINARY)
    assert made["prediction"].to_pylist() == data.BINARY["label"].to_pylist()
    raw = np.array(made["rawPrediction"].to_pylist())
    assert ((raw[:, 0] > 0.5) == (raw[:, 1] < 0.5)).all()
    assert (raw[:5, 0] > 0.5).all()


@pytest.mark.parametrize(
    ("reg", "elastic_net", "expected"),
    [
        (0.0, 0.7, [0.525, -0.283, -0.425, -0.567]),
        (0.1, 0.0, [0.484, -0.258, -0.388, -0.517]),
        (0.1, 1.0, [0.417, -0.145, -0.312, -0.480]),
        (0.1, 0.5, [0.451, -0.203, -0.351, -0.498]),
    ],
)
def test_penalties_of_logistic_regression(
    reg: float, elastic_net: float, expected: list[float]
) -> None:
    found = coefficient(LogisticRegression(reg=reg, elastic_net=elastic_net), data.BINARY)
    assert near(found, expected, 1e-3)


@pytest.mark.parametrize("parallelism", [4, 12])
def test_more_subtasks_than_rows_change_nothing(parallelism: int) -> None:
    one = LogisticRegression().fit(data.BINARY).model_data["coefficient"]
    many = LogisticRegression().fit(data.BINARY, parallelism=parallelism)
    assert near(one, many.model_data["coefficient"], 1e-14)


@pytest.mark.parametrize(
    ("reg", "elastic_net", "expected"),
    [
        (0.0, 0.7, [0.470, -0.273, -0.410, -0.546]),
        (0.1, 0.0, [0.437, -0.262, -0.393, -0.524]),
        (0.1, 1.0, [0.426, -0.197, -0.329, -0.463]),
        (0.1, 0.5, [0.419, -0.238, -0.372, -0.505]),
    ],
)
def test_linear_svc(reg: float, elastic_net: float, expected: list[float]) -> None:
    found = coefficient(LinearSVC(reg=reg, elastic_net=elastic_net), data.BINARY)
    assert near(found, expected, 1e-3)


def test_linear_svc_threshold() -> None:
    for threshold, target in ((-1e308, 1.0), (1e308, 0.0)):
        model = LinearSVC(threshold=threshold, weight_col="weight").fit(data.BINARY)
        assert set(model.transform(data.BINARY)["prediction"].to_pylist()) == {target}


@pytest.mark.parametrize(
    ("reg", "elastic_net", "expected"),
    [
        (0.0, 0.3, [1.141, 1.829]),
        (0.1, 0.0, [1.165, 1.780]),
        (0.1, 1.0, [1.143, 1.812]),
        (0.1, 0.5, [1.154, 1.796]),
    ],
)
def test_linear_regression(reg: float, elastic_net: float, expected: list[float]) -> None:
    found = coefficient(LinearRegression(reg=reg, elastic_net=elastic_net), data.REGRESSION)
    assert near(found, expected, 1e-3)


def test_kmeans() -> None:
    model = KMeans(k=2, max_iter=2).fit(data.KMEANS, parallelism=P)
    centroids = sorted(model.model_data["centroids"].tolist())
    assert near(centroids, [[0.1, 0.1], [9.2, 0.2]], 1e-5)
    made = model.transform(data.KMEANS)
    assert len({*made[:3]}) == len({*made[3:]}) == 1
    assert made[0] != made[3]


def test_kmeans_of_fewer_distinct_points_than_clusters() -> None:
    points = [[0.0, 0.1]] * 3
    assert set(KMeans(k=2).fit(points).transform(points).tolist()) == {0.0}


def random_start() -> KMeansModel:
    centroids = np.random.default_rng(0).random((2, 2))
    return KMeansModel({"centroids": centroids, "weights": np.zeros(2)})


def test_online_kmeans() -> None:
    first = OnlineKMeans(global_batch_size=6).fit(
        data.ONLINE_KMEANS[0], initial=random_start(), parallelism=P
    )
    assert len(first) == 1
    assert near(sorted(first.model_data["centroids"].tolist()), [[-10.2, 0.2], [10.1, 0.1]], 1e-5)
    assert near(first.model_data["weights"], [3, 3])


def test_online_kmeans_remembers_by_its_decay_factor() -> None:
    start = KMeans().fit(data.ONLINE_KMEANS[0], parallelism=P)
    online = OnlineKMeans(global_batch_size=6, decay_factor=0.5)
    made = online.fit(data.ONLINE_KMEANS[1], initial=start, parallelism=P).model_data
    assert near(made["weights"], [4.5, 4.5])
    assert near(sorted(made["centroids"].tolist()), [[-10.2, -200.2 / 3], [10.1, 200.3 / 3]], 1e-5)


def ftrl(**more: Any) -> OnlineLogisticRegression:
    return OnlineLogisticRegression(reg=0.2, elastic_net=0.5, **more)


def probabilities(versions: Any, requested: Any) -> list[list[float]]:
    return [model.transform(requested)[:, 1:].tolist() for model in versions]


def test_online_logistic_regression_of_dense_vectors() -> None:
    versions = ftrl(global_batch_size=10).fit(
        np.concatenate(data.FTRL_DENSE),
        data.FTRL_DENSE_LABELS * 2,
        initial=LogisticRegressionModel({"coefficient": data.FTRL_DENSE_START}),
        parallelism=P,
    )
    assert [v.model_data["modelVersion"] for v in versions] == [1, 2]
    made = versions.transform(pa.table({"features": [[0.8, 2.7]]}))
    assert made.column_names == ["features", "prediction", "rawPrediction", "modelVersion"]
    assert made["modelVersion"].to_pylist() == [2]
    first = versions[0].model_data["coefficient"]
    assert near(first, [0.2994527071464283, -0.1412541067743284], 1e-5)
    expected = [
        [[0.5353966697318491, 0.4646033302681509], [0.04481034155642882, 0.9551896584435712]],
        [[0.5095144380001769, 0.49048556199982307], [0.013104324065967066, 0.9868956759340329]],
    ]
    assert near(probabilities(versions, [[0.8, 2.7], [15.5, 11.2]]), expected, 1e-5)


@pytest.mark.parametrize(
    ("weighted", "expected"),
    [
        (
            False,
            [
                [
                    [0.510555172541495, 0.489444827458505],
                    [0.4452309884735286, 0.5547690115264714],
                ],
                [
                    [0.5249618837373886, 0.4750381162626114],
                    [0.4031043155431067, 0.596895684456893],
                ],
            ],
        ),
        (
            True,
            [
                [[0.5069192929506545, 0.4930807070493455], [0.452491993753382, 0.547508006246618]],
                [
                    [0.5247727600974581, 0.4752272399025419],
                    [0.4110888280616419, 0.588911171938358],
                ],
            ],
        ),
    ],
)
def test_online_logistic_regression_of_sparse_vectors(weighted: bool, expected: Any) -> None:
    versions = ftrl(global_batch_size=9).fit(
        [*data.FTRL_SPARSE[0], *data.FTRL_SPARSE[1]],
        np.concatenate(data.FTRL_SPARSE_LABELS),
        np.concatenate(data.FTRL_SPARSE_WEIGHTS) if weighted else None,
        initial=LogisticRegressionModel({"coefficient": [0.01] * 10}),
        parallelism=P,
    )
    requested = [data.ones(1, 3, 5), data.ones(5, 8, 9)]
    assert near(probabilities(versions, requested), expected, 1e-5)


def test_online_logistic_regression_starts_from_a_batch_model() -> None:
    start = LogisticRegression().fit(data.FTRL_DENSE[0], data.FTRL_DENSE_LABELS, parallelism=P)
    versions = ftrl(global_batch_size=10).fit(
        np.concatenate(data.FTRL_DENSE),
        data.FTRL_DENSE_LABELS * 2,
        initial=start,
        parallelism=P,
    )
    expected = [
        [[0.5684728224189707, 0.4315271775810293], [0.037327343811250024, 0.96267265618875]],
        [[0.5257216567388069, 0.4742783432611931], [0.007758574555505882, 0.9922414254444941]],
    ]
    assert near(probabilities(versions, [[0.8, 2.7], [15.5, 11.2]]), expected, 1e-5)


def test_standard_scaler() -> None:
    model = StandardScalerStage().fit(data.SCALER, parallelism=P)
    assert near(model.model_data["mean"], [0.3, 1, 0])
    assert near(model.model_data["std"], [2.4433583, 7.2111026, 1.7320508])
    expected = [
        [-1.0231819, 1.2480754, 0.5773502],
        [0.5729819, -0.6933752, 0.5773503],
        [0.8185455, -0.1386750, -1.1547005],
    ]
    assert near(model.transform(data.SCALER), expected)
    both = StandardScalerStage(with_mean=True).fit(data.SCALER, parallelism=P)
    expected = [
        [-1.1459637, 1.1094004, 0.5773503],
        [0.45020003, -0.8320503, 0.5773503],
        [0.69576368, -0.2773501, -1.1547005],
    ]
    assert near(both.transform(data.SCALER), expected)
    moved = StandardScalerStage(with_mean=True, with_std=False).fit(data.SCALER, parallelism=P)
    assert near(moved.transform(data.SCALER)[1], [1.1, -6, 1])


def test_standard_scaler_of_sparse_vectors() -> None:
    rows = [
        SparseVector(3, [0, 1], [-2.5, 1]),
        SparseVector(3, [1, 2], [2, -2]),
        SparseVector(3, [0, 2], [1.4, 1]),
    ]
    made = StandardScalerStage().fit(rows, parallelism=P).transform(SparseRows.of(rows))
    expected = [[-1.2653836, 1, 0], [0, 2, -1.30930734], [0.7086148, 0, 0.6546537]]
    assert near(made.dense(), expected)


MEANS = [[0.3, 1, 0], [0.35, 1.1666667, 0], [0.3666667, 1.2222222, 0]]
DEVIATIONS = [
    [2.4433583, 7.2111026, 1.7320508],
    [1.5630099, 4.6654760, 1.5491933],
    [1.2369316, 3.7006005, 1.5],
]


@pytest.mark.parametrize("parallelism", [1, 2])
def test_online_standard_scaler(parallelism: int) -> None:
    table = pa.table({"id": data.ONLINE_SCALER_TIMES, "input": data.ONLINE_SCALER.tolist()})
    by_count = OnlineStandardScaler(windows=CountTumblingWindows(3))
    by_time = OnlineStandardScaler(windows=EventTimeTumblingWindows(3000), timestamp_col="id")
    for scaler, ends in ((by_count, [None] * 3), (by_time, [2999, 8999, 11999])):
        versions = scaler.fit(table, parallelism=parallelism)
        found = [model.model_data for model in versions]
        assert near([model["mean"] for model in found], MEANS)
        assert near([model["std"] for model in found], DEVIATIONS)
        assert [model["version"] for model in found] == [0, 1, 2]
        assert [model["timestamp"] for model in found] == ends
    made = by_time.fit(table).transform(table)
    assert made.column_names == ["id", "input", "output", "version"]
    whole = OnlineStandardScaler().fit(data.SCALER, parallelism=P)
    assert len(whole) == 1
    assert near(whole.model_data["mean"], [0.3, 1, 0])


@pytest.mark.parametrize(
    ("delay_ms", "versions"),
    [
        (0, [0, 0, 0, 1, 1, 1, 2, 2, 2]),
        (3000, [0, 0, 0, 1, 1, 1, 1, 1, 1]),
        # row 3 (6000) may use the version of 2999
        (3001, [0, 0, 0, 0, 1, 1, 1, 1, 1]),
        (9000, [0] * 9),
    ],
)
def test_online_standard_scaler_uses_versions_that_are_fresh_enough(
    delay_ms: int, versions: list[int]
) -> None:
    # testFitAndPredictWithEventTimeWindow: row - model timestamp <= maxAllowedModelDelayMs
    table = pa.table({"id": data.ONLINE_SCALER_TIMES, "input": data.ONLINE_SCALER.tolist()})
    scaler = (
        OnlineStandardScaler(timestamp_col="id")
        .set_windows(EventTimeTumblingWindows(3000))
        .set_max_allowed_model_delay_ms(delay_ms)
        .set_with_mean(True)
    )
    fitted = scaler.fit(table)
    shuffled = table.take([4, 8, 0, 2, 6, 1, 3, 5, 7])
    made = fitted.transform(shuffled)
    assert made.drop_columns(["output", "version"]).equals(shuffled)
    found = made.sort_by("id")
    assert found["version"].to_pylist() == versions
    for row, (version, output) in enumerate(
        zip(versions, found["output"].to_pylist(), strict=True)
    ):
        assert fitted[version].transform(table.slice(row, 1))["output"].to_pylist() == [output]
    assert fitted.transform(shuffled.to_pandas())["version"].tolist() == made["version"].to_pylist()
    assert len(fitted.transform(table.slice(0, 0))) == 0
    # without times the newest version transforms all rows
    newest = fitted.transform(table.select(["input"]))["version"].to_pylist()
    assert newest == [2] * 9
    later = pa.table({"id": [0, 12_000 + delay_ms], "input": data.ONLINE_SCALER[:2].tolist()})
    with pytest.raises(TransformError, match=r"1 of 2 rows are more than .*, first row 1"):
        fitted.transform(later)
    assert fitted[-1].transform(later)["version"].to_pylist() == [2, 2]


@pytest.mark.parametrize("parallelism", [1, 3])
def test_online_standard_scaler_of_sessions(parallelism: int) -> None:
    # Flink's sessions: rows that are exactly the gap apart are in one
    times = [0, 100, 200, 301, 350, 1000]
    rows = [[float(v)] for v in range(6)]
    table = pa.table({"timestamp": times, "input": rows})
    scaler = OnlineStandardScaler(windows=EventTimeSessionWindows(100))
    versions = scaler.fit(table, parallelism=parallelism)
    assert [v.model_data["timestamp"] for v in versions] == [299, 449, 1099]
    assert [v.model_data["mean"].tolist() for v in versions] == [[1.0], [2.0], [2.5]]
    # Flink's WindowsTest: one session of 100 consecutive milliseconds
    table = pa.table({"timestamp": range(100), "input": [[1.0]] * 100})
    assert len(OnlineStandardScaler(windows=EventTimeSessionWindows(14)).fit(table)) == 1
    tumbling = OnlineStandardScaler(windows=EventTimeTumblingWindows(14)).fit(table)
    assert len(tumbling) == 8


class Ticking:
    """A clock that is read once a block."""

    def __init__(self, *times: int) -> None:
        self.times = list(times)

    def __call__(self) -> int:
        return self.times.pop(0)


@pytest.mark.parametrize(
    ("windows", "means"),
    [
        # blocks of 8,192 rows arrive at 5, 95, 100, 90 (set back), 400
        (ProcessingTimeTumblingWindows(100), [0.5, 1.5, 2.0]),
        (ProcessingTimeSessionWindows(89), [0.0, 1.5, 2.0]),
        (ProcessingTimeSessionWindows(90), [1.5, 2.0]),
        (ProcessingTimeTumblingWindows(1000), [2.0]),
    ],
)
def test_online_standard_scaler_of_arrival_times(windows: Any, means: list[float]) -> None:
    rows = np.repeat(np.arange(5.0), 8192)[:, None]
    scaler = OnlineStandardScaler(windows=replace(windows, clock=Ticking(5, 95, 100, 90, 400)))
    versions = scaler.fit(rows, parallelism=2)
    assert [v.model_data["mean"].tolist() for v in versions] == [[mean] for mean in means]
    assert [v.model_data["version"] for v in versions] == list(range(len(means)))
    assert {v.model_data["timestamp"] for v in versions} == {None}


def test_every_row_is_in_a_processing_time_window() -> None:
    versions = OnlineStandardScaler(windows=ProcessingTimeTumblingWindows(1)).fit(data.SCALER)
    assert near(versions.model_data["mean"], [0.3, 1, 0])


def test_min_max_scaler() -> None:
    model = MinMaxScalerStage().fit(
        [[0, 3], [2.1, 0], [4.1, 5.1], [6.1, 8.1], [200, 400]], parallelism=P
    )
    made = model.transform([[150.0, 90.0], [50.0, 40.0], [100.0, 50.0]])
    assert near(made, [[0.75, 0.225], [0.25, 0.1], [0.5, 0.125]], 1e-12)
    constant = MinMaxScalerStage(min=0.0, max=10.0).fit([[40.0, 80.0]], parallelism=P)
    assert constant.transform([[30.0, 50.0]]).tolist() == [[5.0, 5.0]]


def test_max_abs_scaler() -> None:
    rows = [[0, 3, 0], [2.1, 0, 0], [4.1, 5.1, 0], [6.1, 8.1, 0], [200, -400, 0]]
    model = MaxAbsScalerStage().fit(rows, parallelism=P)
    assert model.model_data["maxVector"].tolist() == [200.0, 400.0, 0.0]
    made = model.transform([[150.0, 90.0, 1.0], [50.0, 40.0, 1.0], [100.0, 50.0, 0.5]])
    assert near(made, [[0.75, 0.225, 1], [0.25, 0.1, 1], [0.5, 0.125, 0.5]], 1e-12)


def test_max_abs_scaler_of_sparse_vectors() -> None:
    rows = [
        SparseVector(4, [1, 3], [4.0, 3.0]),
        SparseVector(4, [0, 2], [2.0, -6.0]),
        SparseVector(4, [1, 2], [1.0, 3.0]),
        SparseVector(4, [0, 1], [2.0, 8.0]),
        SparseVector(4, [1, 3], [1.0, 5.0]),
    ]
    requested = [
        SparseVector(4, [0, 1], [2.0, 4.0]),
        SparseVector(4, [0, 2], [1.0, 3.0]),
        SparseVector(4, [], []),
        SparseVector(4, [1, 3], [1.0, 2.0]),
    ]
    made = MaxAbsScalerStage().fit(rows, parallelism=P).transform(SparseRows.of(requested))
    assert near(made.values, [1.0, 0.5, 0.5, 0.5, 0.125, 0.4], 1e-12)


def test_robust_scaler() -> None:
    rows = [[float(v), float(-v)] for v in range(9)]
    requested = [[3.0, -3.0], [6.0, -6.0], [99.0, -99.0]]
    model = RobustScalerStage().fit(rows, parallelism=P)
    assert model.model_data["medians"].tolist() == [4.0, -4.0]
    assert model.model_data["ranges"].tolist() == [4.0, 4.0]
    assert model.transform(requested).tolist() == [[0.75, -0.75], [1.5, -1.5], [24.75, -24.75]]
    centred = RobustScalerStage(with_centering=True).fit(rows, parallelism=P).transform(requested)
    assert centred.tolist() == [[-0.25, 0.25], [0.5, -0.5], [23.75, -23.75]]
    moved = (
        RobustScalerStage(with_centering=True, with_scaling=False).fit(rows).transform(requested)
    )
    assert moved.tolist() == [[-1, 1], [2, -2], [95, -95]]
    flat = RobustScalerStage().fit([[0.0], [1.0], [1.0], [1.0], [4.0]], parallelism=P)
    assert flat.transform([[3.0]]).tolist() == [0.0]


def test_robust_scaler_leaves_nan_out() -> None:
    nan = math.nan
    rows = [[0.0, nan], [nan, 0.0], [1.0, -1.0], [2.0, -2.0], [3.0, -3.0], [4.0, -4.0]]
    made = RobustScalerStage().fit(rows, parallelism=P).transform(rows)
    expected = [[0.0, nan], [nan, 0.0], [0.5, -0.5], [1.0, -1.0], [1.5, -1.5], [2.0, -2.0]]
    assert np.array_equal(made, expected, equal_nan=True)


@pytest.mark.parametrize(
    ("strategy", "surrogates"),
    [
        ("mean", [2.0, 6.8, 2.0, 6.8]),
        ("median", [1.5, 7.0, 1.0, 7.0]),
        ("most_frequent", [1.5, 9.0, 1.0, 9.0]),
    ],
)
def test_imputer(strategy: str, surrogates: list[float]) -> None:
    nan = math.nan
    table = pa.table(
        {
            "f1": pa.array([nan, 1.0, 1.5, 1.5, 4.0, None], pa.float64()),
            "f2": pa.array([9.0, 9.0, 7.0, nan, 5.0, 4.0], pa.float64()),
            "f3": pa.array([1, None, 1, 2, 4, None], pa.int32()),
            "f4": pa.array([9.0, 9.0, 7.0, nan, 5.0, 4.0], pa.float32()),
        }
    )
    names = ("f1", "f2", "f3", "f4")
    imputer = ImputerStage(
        input_cols=names, output_cols=("o1", "o2", "o3", "o4"), strategy=strategy
    )
    model = imputer.fit(table, parallelism=P)
    assert near(model.model_data["surrogates"], surrogates, 1e-12)
    made = model.transform(table)
    assert made.column_names == [*names, "o1", "o2", "o3", "o4"]
    assert near(made["o1"].to_pylist(), [surrogates[0], 1, 1.5, 1.5, 4, surrogates[0]], 1e-12)
    assert near(made["o3"].to_pylist(), [1, surrogates[2], 1, 2, 4, surrogates[2]], 1e-12)


def test_imputer_takes_the_least_of_several_modes() -> None:
    rows = [[1.0, 2.0], [1.0, 2.0], [2.0, 1.0], [2.0, 1.0]]
    model = ImputerStage(strategy="most_frequent").fit(rows, parallelism=P)
    assert model.model_data["surrogates"].tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ("uniform", [[0, 0, 0], [0, 0, 1], [0, 0, 2], [1, 0, 2], [1, 0, 2], [2, 0, 2], [2, 0, 2]]),
        ("quantile", [[0, 0, 0], [0, 0, 0], [0, 0, 1], [1, 0, 1], [2, 0, 1], [2, 0, 1], [2, 0, 1]]),
        ("kmeans", [[0, 0, 0], [0, 0, 1], [0, 0, 2], [1, 0, 2], [1, 0, 2], [2, 0, 2], [2, 0, 2]]),
    ],
)
def test_k_bins_discretizer(strategy: str, expected: list[list[int]]) -> None:
    model = KBinsDiscretizerStage(num_bins=3, strategy=strategy).fit(data.BINS, parallelism=P)
    assert model.transform(data.BINS_ASKED).tolist() == expected
    if strategy == "uniform":
        edges = [e.tolist() for e in model.model_data["binEdges"]]
        assert edges == [[1, 5, 9, 13], [-math.inf, math.inf], [0, 1, 2, 3]]


def test_bins_without_width_get_the_middle_of_their_neighbours() -> None:
    # KBinsDiscretizerTest.testBinsWithWidthAsZero: more bins than rows
    model = KBinsDiscretizerStage(num_bins=10).fit(data.BINS, parallelism=P)
    expected = [[0, 0, 0], [0, 0, 0], [0, 0, 1], [3, 0, 1], [5, 0, 1], [6, 0, 1], [6, 0, 1]]
    assert model.transform(data.BINS_ASKED).tolist() == expected
    # the example in the documentation of its class KBinsDiscretizer
    (edges,) = (
        KBinsDiscretizerStage(num_bins=9)
        .fit([[0.0], *[[1.0]] * 3, *[[2.0]] * 4])
        .model_data["binEdges"]
    )
    assert edges.tolist() == [0, 1, 1.5, 1.75, 2]
    for threes, expected in ((1, [0, 1.5, 3]), (8, [0, 1.5, 2.25, 3])):
        rows = [[0.0]] * 8 + [[3.0]] * threes
        (edges,) = KBinsDiscretizerStage(num_bins=3).fit(rows).model_data["binEdges"]
        assert edges.tolist() == expected


def test_one_hot_encoder() -> None:
    table = pa.table({"input": [0.0, 1.0, 2.0, 0.0]})
    encoder = OneHotEncoderStage().set_input_cols("input").set_output_cols("output")
    made = encoder.fit(table, parallelism=P).transform(table.slice(0, 3))["output"].to_pylist()
    assert made == [
        {"size": 2, "indices": [0], "values": [1.0]},
        {"size": 2, "indices": [1], "values": [1.0]},
        {"size": 2, "indices": [], "values": []},
    ]
    kept = encoder.set_drop_last(False).fit(table).transform(table.slice(2, 1))["output"]
    assert kept.to_pylist() == [{"size": 3, "indices": [2], "values": [1.0]}]


def struct(size: int, indices: list[int], values: list[float]) -> dict[str, Any]:
    return {"size": size, "indices": indices, "values": values}


INTERACTION = pa.table(
    {
        "f0": [1, 2, 3],
        "f1": [[1.0, 2.0], [2.0, 8.0], None],
        "f2": [[3.0, 4.0], [3.0, 4.0, 5.0], None],
        "f3": [
            struct(17, [0, 3, 9], [1.0, 2.0, 7.0]),
            struct(17, [0, 2, 14], [5.0, 4.0, 1.0]),
            None,
        ],
    }
)
DENSE_PRODUCTS = [[3.0, 4.0, 6.0, 8.0], [12.0, 16.0, 20.0, 48.0, 64.0, 80.0], None]
SPARSE_PRODUCTS = [
    struct(
        68,
        [0, 3, 9, 17, 20, 26, 34, 37, 43, 51, 54, 60],
        [3.0, 6.0, 21.0, 4.0, 8.0, 28.0, 6.0, 12.0, 42.0, 8.0, 16.0, 56.0],
    ),
    struct(
        102,
        [0, 2, 14, 17, 19, 31, 34, 36, 48, 51, 53, 65, 68, 70, 82, 85, 87, 99],
        [
            *(60.0, 48.0, 12.0, 80.0, 64.0, 16.0, 100.0, 80.0, 20.0),
            *(240.0, 192.0, 48.0, 320.0, 256.0, 64.0, 400.0, 320.0, 80.0),
        ],
    ),
    None,
]


def test_interaction() -> None:
    names, dense, sparse = ("f0", "f1", "f2"), DENSE_PRODUCTS, SPARSE_PRODUCTS
    interaction = InteractionStage().set_input_cols(*names)
    assert interaction.output_col == "output"
    assert interaction.transform(INTERACTION)["output"].to_pylist() == dense
    made = interaction.set_input_cols(*names, "f3").set_output_col("product").transform(INTERACTION)
    assert made.column_names == [*INTERACTION.column_names, "product"]
    assert made["product"].to_pylist() == sparse
    assert interaction.transform(INTERACTION.slice(2))["output"].to_pylist() == [None]


def test_interaction_keeps_the_order_of_rows_of_many_sizes() -> None:
    rng = np.random.default_rng(0)
    left, right = (
        [None if rng.random() < 0.2 else rng.normal(size=rng.integers(0, 4)) for _ in range(60)]
        for _ in range(2)
    )
    table = pa.table({"a": pa.array(left), "n": np.arange(60.0), "b": pa.array(right)})
    made = (
        InteractionStage(input_cols=("a", "n", "b")).transform(table.slice(5))["output"].to_pylist()
    )
    for row, found in enumerate(made, start=5):
        a, b = left[row], right[row]
        if a is None or b is None:
            assert found is None
        else:
            assert found == [x * (row * y) for x in a for y in b]


def test_a_served_interaction_has_one_size() -> None:
    with pytest.raises(TransformError, match=r"'f2' has vectors of the sizes \[2, 3\]"):
        InteractionStage(input_cols=("f1", "f2")).fit(INTERACTION)
    model = InteractionStage(input_cols=("f1", "f2")).fit(INTERACTION.slice(0, 1))
    with pytest.raises(TransformError, match=r"got vectors of the sizes \[2, 3\]; the model was"):
        model.transform(INTERACTION)
