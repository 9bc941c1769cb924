"""Models of the iteration runtime as ONNX networks, compared with the models themselves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

onnxruntime = pytest.importorskip("onnxruntime", reason="pip install onnxruntime")
pytest.importorskip("onnx", reason="pip install onnx")

from paimon_features.core.errors import TransformError  # noqa: E402
from paimon_features.models import check_network  # noqa: E402
from paimon_features.transformers import Imputer, Pipeline, StandardScaler  # noqa: E402
from paimon_features.transformers.flink_ml import (  # noqa: E402
    KMeansModel,
    LinearRegressionModel,
    LinearSVCModel,
    LogisticRegressionModel,
)
from paimon_features.transformers.model_networks import network_of  # noqa: E402

NAMES = ["a", "b", "c"]


def run(data: bytes, rows: Any) -> Any:
    check_network(data)
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    columns = {name: rows[:, [index]] for index, name in enumerate(NAMES)}
    return session.run(None, columns)[0]


@pytest.fixture
def rows() -> Any:
    return np.random.default_rng(0).normal(3, 20, (200, 3))


def test_linear_models_predict_as_they_do(rows: Any) -> None:
    logistic = LogisticRegressionModel({"coefficient": [0.1, -0.2, 0.05]})
    found = run(network_of(logistic, NAMES, "probability"), rows)
    assert found.shape == (200, 1)
    assert found[:, 0] == pytest.approx(logistic.transform(rows)[:, 2], abs=1e-6)
    linear = LinearRegressionModel({"coefficient": [3.0, 0.5, -1.0]})
    found = run(network_of(linear, NAMES, "value"), rows)
    assert found[:, 0] == pytest.approx(np.ravel(linear.transform(rows)), rel=1e-6)


@pytest.mark.parametrize("measure", ["euclidean", "manhattan", "cosine"])
def test_k_means_gives_the_closest_centroid_the_probability_one(rows: Any, measure: str) -> None:
    centroids = np.random.default_rng(1).normal(3, 20, (5, 3))
    model = KMeansModel({"centroids": centroids, "weights": np.ones(5)}, distance_measure=measure)
    found = run(network_of(model, NAMES, "probability"), rows)
    assert found.argmax(axis=1).tolist() == model.transform(rows).astype(int).ravel().tolist()
    assert found.sum(axis=1).tolist() == [1.0] * 200


def test_a_null_has_no_prediction_unless_a_transformer_replaces_it(rows: Any) -> None:
    model = KMeansModel({"centroids": [[0.0] * 3, [9.0] * 3], "weights": [1.0, 1.0]})
    logistic = LogisticRegressionModel({"coefficient": [0.1, -0.2, 0.05]})
    rows[0, 1] = np.nan
    for each in (model, logistic):
        found = run(network_of(each, NAMES, "probability"), rows)
        assert np.isnan(found[0]).all()
        assert np.isfinite(found[1:]).all()
    steps = Pipeline([("fill", Imputer("mean")), ("scale", StandardScaler())]).fit(rows)
    found = run(network_of(logistic, NAMES, "probability", steps), rows)
    assert found[:, 0] == pytest.approx(logistic.transform(steps.transform(rows))[:, 2], abs=1e-6)


def test_what_becomes_no_network_is_explained() -> None:
    with pytest.raises(TransformError, match="LogisticRegressionModel, KMeansModel"):
        network_of(LinearSVCModel({"coefficient": [1.0]}), ["a"], "value")
    with pytest.raises(TransformError, match="3 features; expected 2"):
        network_of(LinearRegressionModel({"coefficient": [1.0, 2.0]}), NAMES, "value")
