"""Networks are read without the package onnx: what must not be loaded is refused."""

from __future__ import annotations

import random
from dataclasses import replace

import onnx
import pytest
from onnx import TensorProto, helper

from paimon_features.core.errors import ModelError
from paimon_features.models import ModelInput, ModelOutput, check_network, network_checks
from paimon_features.testing.sizes import every_seed
from tests.models.networks import SIGNATURE, network


def test_an_ordinary_network_passes_with_its_signature() -> None:
    check_network(network().SerializeToString(), SIGNATURE)


def external(tensor: onnx.TensorProto) -> onnx.TensorProto:
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../../etc/passwd")
    return tensor


def tensor(name: str = "t") -> onnx.TensorProto:
    return helper.make_tensor(name, TensorProto.FLOAT, [2], [1.0, 2.0])


def branch(*nodes: onnx.NodeProto) -> onnx.NodeProto:
    """An If whose branches have these nodes."""
    out = helper.make_tensor_value_info("o", TensorProto.FLOAT, None)
    graphs = [helper.make_graph(list(nodes), name, [], [out]) for name in ("a", "b")]
    return helper.make_node("If", ["c"], ["o"], then_branch=graphs[0], else_branch=graphs[1])


def test_external_data_is_refused_wherever_a_tensor_can_be() -> None:
    constant = helper.make_node("Constant", [], ["t"], value=external(tensor()))
    several = helper.make_node("Own", [], [])
    several.attribute.append(helper.make_attribute("many", [tensor(), external(tensor())]))
    sparse = helper.make_sparse_tensor(
        external(tensor()), helper.make_tensor("i", TensorProto.INT64, [2], [0, 3]), [5]
    )
    in_sparse = helper.make_node("Constant", [], ["t"], sparse_value=sparse)
    found = [
        network(initializers=[external(tensor())]),
        network(nodes=[constant]),
        network(nodes=[several]),
        network(nodes=[branch(constant)]),
        network(nodes=[branch(branch(constant))]),
        network(nodes=[in_sparse]),
    ]
    model = network()
    model.graph.sparse_initializer.append(sparse)
    found.append(model)
    located = network(initializers=[tensor()])  # the location alone
    located.graph.initializer[-1].data_location = TensorProto.EXTERNAL
    found.append(located)
    for each in found:
        with pytest.raises(ModelError, match="external data"):
            check_network(each.SerializeToString())


def test_operators_of_other_libraries_are_refused_wherever_a_node_can_be() -> None:
    own = helper.make_node("Own", [], ["o"], domain="evil.ops")
    for model in (network(nodes=[own]), network(nodes=[branch(branch(own))])):
        with pytest.raises(ModelError, match=r"evil\.ops"):
            check_network(model.SerializeToString())
    known = helper.make_node("Scaler", ["amount"], ["s"], domain="ai.onnx.ml")
    check_network(network(nodes=[known], opsets={"ai.onnx.ml": 3}).SerializeToString())


def test_functions_and_training_graphs_are_refused() -> None:
    model = network()
    model.functions.append(helper.make_function("evil", "f", [], [], [], []))
    with pytest.raises(ModelError, match="functions of its own"):
        check_network(model.SerializeToString())
    model = network()
    model.training_info.add()
    with pytest.raises(ModelError, match="training information"):
        check_network(model.SerializeToString())


def test_another_signature_is_refused_with_the_first_difference() -> None:
    data = network().SerializeToString()
    amount, country = SIGNATURE.inputs
    for inputs in (
        (country, amount),
        (amount,),
        (amount, country, ModelInput("more", "feature", "a:b", "float64", "float64")),
        (replace(amount, width=3), country),
        (replace(amount, dtype="string"), country),
    ):
        with pytest.raises(ModelError, match="inputs of the network are not those"):
            check_network(data, replace(SIGNATURE, inputs=inputs))
    with pytest.raises(ModelError, match="outputs of the network are not those"):
        check_network(data, replace(SIGNATURE, outputs=(ModelOutput("score"),)))


def test_sizes_depth_and_number_of_fields_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    node = helper.make_node("Identity", ["x"], ["o"])
    for _ in range(20):  # three levels each
        node = _single(node)
    with pytest.raises(ModelError, match="levels deep"):
        check_network(network(nodes=[node]).SerializeToString())
    data = network(nodes=[helper.make_node("Identity", ["x"], ["o"])] * 200).SerializeToString()
    monkeypatch.setattr(network_checks, "MAX_FIELDS", 500)
    with pytest.raises(ModelError, match="more than 500 fields"):
        check_network(data)
    monkeypatch.setattr(network_checks, "MAX_NETWORK_BYTES", 10)
    with pytest.raises(ModelError, match="expected at most 10"):
        check_network(data)


def _single(node: onnx.NodeProto) -> onnx.NodeProto:
    graph = helper.make_graph([node], "g", [], [])
    return helper.make_node("Loop", [], [], body=graph)


def test_bytes_that_are_no_network_are_refused() -> None:
    for data in (b"", b"x", b"\x00" * 64, b"ORTM" * 20, b"\xff" * 200, b"{}", b"PK\x03\x04" * 9):
        with pytest.raises(ModelError):
            check_network(data)


@every_seed(40)
def test_damaged_bytes_are_refused_or_harmless(seed: int) -> None:
    dice = random.Random(seed)
    own = helper.make_node("Own", [], ["o"], domain="evil.ops")
    good, bad = network().SerializeToString(), network(nodes=[branch(own)]).SerializeToString()
    for data in (good, bad):
        broken = bytearray(data)
        for _ in range(dice.randrange(1, 4)):
            broken[dice.randrange(len(broken))] = dice.randrange(256)
        broken = broken[: dice.randrange(1, len(broken) + 1)] if seed % 3 == 0 else broken
        try:
            check_network(bytes(broken))
        except ModelError:
            continue
        # what passes has no operator of another library, by onnx itself
        parsed = onnx.ModelProto()
        try:
            parsed.ParseFromString(bytes(broken))
        except Exception:
            continue  # onnxruntime cannot parse it either
        assert all(n.domain in network_checks.DOMAINS for n in _nodes(parsed.graph))


def _nodes(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    found = list(graph.node)
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                found += _nodes(inner)
    return found
