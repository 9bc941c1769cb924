"""Small networks and manifests for tests of model versions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx
from onnx import TensorProto, helper

from paimon_features.models import (
    NETWORK,
    ModelFile,
    ModelInput,
    ModelKey,
    ModelManifest,
    ModelOutput,
    ModelSignature,
    sha256_of,
)

SIGNATURE = ModelSignature(
    service="churn_v1",
    entities=(ModelKey("customer_id", "int64"),),
    inputs=(
        ModelInput("amount", "feature", "spend:sum_amount_30d", "float64", "float64"),
        ModelInput("country", "feature", "spend:last_country", "string", "string"),
    ),
    outputs=(ModelOutput("probability"),),
    task="binary",
)


def network(
    weight: float = 1.0,
    *,
    nodes: Sequence[Any] = (),
    initializers: Sequence[Any] = (),
    opsets: Mapping[str, int] | None = None,
) -> onnx.ModelProto:
    """sigmoid(weight * amount), and as many further nodes as wanted."""
    inputs = [
        helper.make_tensor_value_info("amount", TensorProto.DOUBLE, ["rows", 1]),
        helper.make_tensor_value_info("country", TensorProto.STRING, ["rows", 1]),
    ]
    output = helper.make_tensor_value_info("probability", TensorProto.FLOAT, ["rows", 1])
    factor = helper.make_tensor("weight", TensorProto.FLOAT, [1], [weight])
    own = [
        helper.make_node("Cast", ["amount"], ["as_float"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["as_float", "weight"], ["logit"]),
        helper.make_node("Sigmoid", ["logit"], ["probability"]),
    ]
    graph = helper.make_graph([*own, *nodes], "graph", inputs, [output], [factor, *initializers])
    imports = [helper.make_opsetid(name, v) for name, v in {"": 20, **(opsets or {})}.items()]
    return helper.make_model(graph, opset_imports=imports)


def manifest(name: str = "churn", version: int = 1, weight: float = 1.0) -> ModelManifest:
    data = network(weight).SerializeToString()
    files = {NETWORK: ModelFile(sha256_of(data), len(data))}
    return ModelManifest(name, version, 5, "wide_and_deep", SIGNATURE, files, card="# Churn\n")
