"""Models of the iteration runtime as networks that serve: one ONNX graph from raw features.

The graph has a float64 input of shape (rows, 1) for each feature, NaN for null, then a fitted
transformer, if there is one, then the model. A row with a null that no transformer replaces has no
prediction (NaN).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from paimon_features.core.errors import MissingExtraError, TransformError
from paimon_features.transformers.base import StoredTransformer
from paimon_features.transformers.flink_ml import (
    KMeansModel,
    LinearRegressionModel,
    LogisticRegressionModel,
)
from paimon_features.transformers.onnx_graph import OnnxGraph
from paimon_features.transformers.onnx_operators import convert

TASKS: dict[type[StoredTransformer], Literal["binary", "multiclass", "regression"]] = {
    LogisticRegressionModel: "binary",
    KMeansModel: "multiclass",
    LinearRegressionModel: "regression",
}
"""The models that become networks, and what they predict: the probability of 1, the closest
centroid as the class that has the probability 1, a value."""

_FLOAT = 1
"""The number of float32 in ``onnx.TensorProto``."""


def task_of(model: StoredTransformer) -> Literal["binary", "multiclass", "regression"]:
    """Return what a model predicts.

    Raises
    ------
    TransformError
        For a model that does not become a network.
    """
    for kind, task in TASKS.items():
        if isinstance(model, kind):
            return task
    kinds = ", ".join(kind.__name__ for kind in TASKS)
    raise TransformError(
        f"a {type(model).__name__} has no prediction that a server can serve; supported: {kinds}"
    )


def network_of(
    model: StoredTransformer,
    names: Sequence[str],
    output: str,
    transformer: StoredTransformer | None = None,
) -> bytes:
    """Return the network of a fitted model over the features ``names``, with one output.

    ``transformer`` takes the features, and returns what the model was fitted on.

    Raises
    ------
    TransformError
        If the number of features is another one than that of the model, or the transformer's.
    MissingExtraError
        Without the extra ``onnx``.
    """
    try:
        import onnx
    except ImportError as error:
        raise MissingExtraError.of("onnx", "onnx", "a network of a fitted model") from error
    first = model if transformer is None else transformer
    for label, got, expected in (
        (type(first).__name__, len(names), first.width),
        (type(model).__name__, model.width, first.width if transformer is None else
         transformer.width_out),
    ):  # fmt: skip
        if got != expected:
            raise TransformError(f"{label}: {got} features; expected {expected}")
    graph = OnnxGraph(onnx, "float64", "")
    parts = [graph.input(name, is_text=False) for name in names]
    if transformer is not None:
        parts = convert(graph, transformer, parts)
    prediction = graph.node("Cast", _model(graph, model, graph.joined(parts).name), to=_FLOAT)
    width = len(model.model_data["centroids"]) if isinstance(model, KMeansModel) else 1
    network = graph.model(prediction, width, output)
    # the sums are float64, what a server returns is float32
    network.graph.output[0].type.tensor_type.elem_type = _FLOAT
    onnx.checker.check_model(network)
    data: bytes = network.SerializeToString(deterministic=True)
    return data


def _model(graph: OnnxGraph, model: StoredTransformer, x: str) -> str:
    """Return the prediction, shape (rows, width), of features of shape (rows, features)."""
    task = task_of(model)
    if not isinstance(model, KMeansModel):
        coefficient = np.asarray(model.model_data["coefficient"], np.float64)  # type: ignore[attr-defined]
        product = graph.node("MatMul", x, graph.constant(coefficient[:, None]))
        return graph.node("Sigmoid", product) if task == "binary" else product
    centroids = np.asarray(model.model_data["centroids"], np.float64)
    last = graph.constant(np.array([2]))
    # index: (rows, 1, features) and (1, centroids, features)
    rows = graph.node("Unsqueeze", x, graph.constant(np.array([1])))
    if model.settings["distance_measure"] == "cosine":
        lengths = np.sqrt((centroids * centroids).sum(axis=1))
        products = graph.node("MatMul", x, graph.constant((centroids / lengths[:, None]).T))
        squares = graph.node("ReduceSum", graph.node("Mul", x, x), graph.constant(np.array([1])))
        distances = graph.node("Neg", graph.node("Div", products, graph.node("Sqrt", squares)))
    else:
        away = graph.node("Sub", rows, graph.constant(centroids[None]))
        if model.settings["distance_measure"] == "manhattan":
            away = graph.node("Abs", away)
        else:
            away = graph.node("Mul", away, away)
        distances = graph.node("ReduceSum", away, last, keepdims=0)
    closest = graph.node("ArgMin", distances, axis=1, keepdims=0)
    hot = graph.node(
        "OneHot", closest, graph.constant(np.int64(len(centroids))),
        graph.constant(np.array([0.0, 1.0], np.float32)),
    )  # fmt: skip
    # a distance that is no number has no closest centroid
    nan_or_zero = graph.node("Mul", distances, graph.constant(np.array([[0.0]])))
    return graph.node("Add", hot, graph.node("Cast", nan_or_zero, to=_FLOAT))
