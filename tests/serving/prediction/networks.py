"""Small networks with known outputs, as versions of a model."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from paimon_features.models import (
    ModelFile,
    ModelInput,
    ModelKey,
    ModelManifest,
    ModelOutput,
    ModelSignature,
    VersionState,
    sha256_of,
)
from paimon_features.online.store.published_models import ServedModel

NULL = 0.5
"""What a null counts as in these networks."""


def number(of: str, kind: str = "int64", source: str = "feature", width: int = 1) -> ModelInput:
    """An input of numbers, named after what it is."""
    name = of.replace(":", "__")
    return ModelInput(name, source, of, kind, "float64", width)  # type: ignore[arg-type]


def signature(
    inputs: Sequence[ModelInput], key: tuple[str, str] = ("user", "int64"), task: str = "binary"
) -> ModelSignature:
    return ModelSignature(
        "reading_v1",
        (ModelKey(*key),),
        tuple(inputs),
        (ModelOutput("probability"),),
        task,  # type: ignore[arg-type]
    )


def linear(
    weights: Sequence[float],
    inputs: Sequence[ModelInput],
    *,
    version: int = 1,
    name: str = "churn",
    bias: float = 0.0,
    key: tuple[str, str] = ("user", "int64"),
) -> ServedModel:
    """A version that returns ``sigmoid(weights . inputs + bias)``, a null as ``NULL``.

    One weight for each number of the inputs, in order; texts are not read.
    """
    numbers = [each for each in inputs if each.dtype == "float64"]
    values = [
        helper.make_tensor_value_info(
            each.name,
            TensorProto.DOUBLE if each.dtype == "float64" else TensorProto.STRING,
            ["rows", each.width],
        )
        for each in inputs
    ]
    nodes = [
        helper.make_node("Concat", [each.name for each in numbers], ["all"], axis=1),
        helper.make_node("IsNaN", ["all"], ["missing"]),
        helper.make_node("Where", ["missing", "null", "all"], ["known"]),
        helper.make_node("MatMul", ["known", "weights"], ["product"]),
        helper.make_node("Add", ["product", "bias"], ["sum"]),
        helper.make_node("Sigmoid", ["sum"], ["wide"]),
        helper.make_node("Cast", ["wide"], ["probability"], to=TensorProto.FLOAT),
    ]
    graph = helper.make_graph(
        nodes,
        "linear",
        values,
        [helper.make_tensor_value_info("probability", TensorProto.FLOAT, ["rows", 1])],
        [
            numpy_helper.from_array(np.array(NULL), "null"),
            numpy_helper.from_array(np.array(weights, np.float64).reshape(-1, 1), "weights"),
            numpy_helper.from_array(np.array([bias]), "bias"),
        ],
    )
    network = onnx_bytes(graph)
    manifest = ModelManifest(
        name,
        version,
        1_700_000_000_000,
        "linear",
        signature(inputs, key),
        {"network.onnx": ModelFile(sha256_of(network), len(network))},
    )
    return ServedModel(manifest, network)


def looping(
    of: ModelInput, *, when: float | None = None, version: int = 1, name: str = "churn"
) -> ServedModel:
    """A version that never ends: for each row, or for numbers above ``when`` only."""
    none = helper.make_tensor_value_info
    body = helper.make_graph(
        [helper.make_node("Identity", [x], [f"{x}2"]) for x in ("again", "value")],
        "body",
        [none("i", TensorProto.INT64, []), none("again", TensorProto.BOOL, []),
         none("value", TensorProto.FLOAT, None)],
        [none("again2", TensorProto.BOOL, []), none("value2", TensorProto.FLOAT, None)],
    )  # fmt: skip
    least = -math.inf if when is None else when
    nodes = [
        helper.make_node("IsNaN", [of.name], ["null"]),
        helper.make_node("Where", ["null", "instead", of.name], ["known"]),
        helper.make_node("ReduceMax", ["known"], ["most"], keepdims=0),
        helper.make_node("Greater", ["most", "least"], ["loops"]),
        helper.make_node("Cast", ["known"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("Loop", ["times", "loops", "floats"], ["last"], body=body),
        helper.make_node("Reshape", ["last", "shape"], ["probability"]),
    ]
    graph = helper.make_graph(
        nodes,
        "looping",
        [none(of.name, TensorProto.DOUBLE, ["rows", of.width])],
        [none("probability", TensorProto.FLOAT, ["rows", 1])],
        [
            numpy_helper.from_array(np.array(NULL), "instead"),
            numpy_helper.from_array(np.array(least), "least"),
            numpy_helper.from_array(np.array(2**62), "times"),
            numpy_helper.from_array(np.array([-1, 1]), "shape"),
        ],
    )
    network = onnx_bytes(graph)
    made = ModelManifest(
        name, version, 1_700_000_000_000, "linear", signature([of]),
        {"network.onnx": ModelFile(sha256_of(network), len(network))},
    )  # fmt: skip
    return ServedModel(made, network)


def onnx_bytes(graph: onnx.GraphProto) -> bytes:
    """The model of a graph."""
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    return bytes(model.SerializeToString())


def state(
    model: ServedModel, state: str = "production", slots: Sequence[tuple[int, int]] = ()
) -> VersionState:
    """The state of a version."""
    traffic = sum(end - start for start, end in slots)
    return VersionState(
        model.manifest.version,
        state,  # type: ignore[arg-type]
        sha256_of(model.manifest.to_bytes()),
        traffic,
        tuple(slots),
    )


def sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value))
