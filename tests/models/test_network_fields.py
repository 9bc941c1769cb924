"""A network that passes is, to onnx itself, exactly what was checked."""

from __future__ import annotations

from typing import Any

import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from paimon_features.core.errors import ModelError
from paimon_features.models import check_network
from paimon_features.models.network_checks import _CHILDREN, DOMAINS
from paimon_features.models.network_fields import ENUMS, FIELDS, read_fields
from tests.models.networks import SIGNATURE, network

Piece = tuple[int, int, Any]
"""A field: its number, its wire type, and a number, bytes, or the pieces of a message."""

_PROTOS: dict[str, Any] = {
    "model": onnx.ModelProto, "graph": onnx.GraphProto, "node": onnx.NodeProto,
    "attribute": onnx.AttributeProto, "tensor": onnx.TensorProto,
    "sparse": onnx.SparseTensorProto, "value": onnx.ValueInfoProto, "type": onnx.TypeProto,
    "tensor_type": onnx.TypeProto.Tensor, "shape": onnx.TensorShapeProto,
    "dim": onnx.TensorShapeProto.Dimension,
}  # fmt: skip
_LETTERS = {1: "d", 2: "f", 3: "v", 4: "v", 5: "v", 9: "b", 11: "b", 12: "b", 14: "v"}
"""Wire types by the types of descriptors."""


@pytest.mark.parametrize("kind", FIELDS)
def test_the_fields_of_messages_are_those_of_the_package_onnx(kind: str) -> None:
    known = {}
    for field in _PROTOS[kind].DESCRIPTOR.fields:
        letter = _LETTERS[field.type]
        repeated = letter.upper() if field.label == 3 else letter
        known[field.number] = repeated + "B" * (field.label == 3 and letter != "b")
    assert FIELDS[kind] == dict(sorted(known.items()))


def test_the_values_of_enumerations_are_those_of_the_package_onnx() -> None:
    greatest = {
        (kind, field.number): max(value.number for value in field.enum_type.values)
        for kind in FIELDS
        for field in _PROTOS[kind].DESCRIPTOR.fields
        if field.enum_type is not None
    }
    assert greatest == ENUMS


def test_a_value_that_is_in_no_enumeration_is_refused() -> None:
    data = network().SerializeToString()
    written = varint(20 << 3) + varint(onnx.AttributeProto.INT)
    assert written in data
    with pytest.raises(ModelError, match="not in its enumeration"):
        check_network(data.replace(written, varint(20 << 3) + varint(41)))


def test_messages_are_followed_wherever_a_tensor_or_a_node_can_be() -> None:
    names = {"GraphProto": "graph", "NodeProto": "node", "AttributeProto": "attribute",
             "TensorProto": "tensor", "SparseTensorProto": "sparse"}  # fmt: skip
    for kind in ("model", "graph", "node", "attribute", "sparse"):
        followed = {
            field.number: names[field.message_type.name]
            for field in _PROTOS[kind].DESCRIPTOR.fields
            if field.message_type is not None and field.message_type.name in names
        }
        assert _CHILDREN[kind] == followed


def varint(number: int, padding: int = 0) -> bytes:
    """A number; with ``padding`` in more bytes than needed."""
    out = bytearray()
    while number > 127 or padding:
        out.append(number & 127 | 128)
        number >>= 7
        padding -= padding > 0 and not number
    return bytes([*out, number])


def pieces(data: bytes, kind: str) -> list[Piece]:
    found: list[Piece] = []
    for field, value in read_fields(data, kind, 0, len(data)):
        child = _CHILDREN.get(kind, {}).get(field)
        if isinstance(value, int):
            found.append((field, 0, value))
        else:
            inner = data[value]
            wire = {"f": 5, "d": 1}.get(FIELDS[kind][field], 2)
            found.append((field, wire, pieces(inner, child) if child else inner))
    return found


def written(message: list[Piece], wide: set[int], padded: set[int], at: list[int]) -> bytes:
    """The bytes of pieces; the fields numbered in ``wide`` and ``padded`` in odd encodings."""
    out = b""
    for field, wire, value in message:
        at[0] += 1
        number = at[0]
        tag = (field << 3 | wire) + (1 << 32 if number in wide else 0)
        out += varint(tag, number in padded)
        if wire == 0:
            out += varint(value, number in padded)
        else:
            inner = written(value, wide, padded, at) if isinstance(value, list) else value
            out += varint(len(inner), number in padded) * (wire == 2) + inner
    return out


def _external(draw: st.DrawFn) -> list[Piece]:
    """What turns a tensor into a file, or a node into one of another library."""
    entry = varint(10) + varint(1) + b"k" + varint(18) + varint(1) + b"v"
    return draw(st.sampled_from([
        [(13, 2, entry)], [(14, 0, 1)], [(14, 0, (1 << 32) + 1)], [(7, 2, b"evil.ops")],
        [(25, 2, b"")], [(20, 2, b"")], [(13, 2, entry), (14, 0, 1)], [(2, 0, 1)], [(1, 2, b"x")],
        [(536870925, 2, entry)], [(99, 0, 1)], [(13, 0, 1)], [(0, 0, 1)], [(4, 3, b"")],
    ]))  # fmt: skip


@st.composite
def networks(draw: st.DrawFn) -> bytes:
    """A network after changes that readers of protocol buffers may take differently."""
    sparse = helper.make_sparse_tensor(
        helper.make_tensor("sv", TensorProto.FLOAT, [1], [1.0]),
        helper.make_tensor("si", TensorProto.INT64, [1], [0]), [5])  # fmt: skip
    inner = helper.make_graph(
        [helper.make_node("Constant", [], ["t"],
                          value=helper.make_tensor("c", TensorProto.INT64, [2], [1, 2]))],
        "inner", [], [helper.make_tensor_value_info("t", TensorProto.INT64, [2])])  # fmt: skip
    nodes = [helper.make_node("If", ["c"], ["o"], then_branch=inner, else_branch=inner)]
    model = network(nodes=nodes)
    model.graph.sparse_initializer.append(sparse)
    tree = pieces(model.SerializeToString(), "model")
    for _ in range(draw(st.integers(0, 3))):
        messages = list(_messages(tree))
        message = messages[draw(st.integers(0, len(messages) - 1))]
        at = draw(st.integers(0, len(message)))
        kind = draw(st.sampled_from(["insert", "repeat", "drop", "wire"]))
        if kind == "insert" or not message:
            message[at:at] = _external(draw)
        elif kind == "repeat":
            message.insert(at, message[at - 1])
        elif kind == "drop":
            del message[at - 1]
        else:
            field, _, value = message[at - 1]
            message[at - 1] = (field, 0, 1) if not isinstance(value, int) else (field, 2, b"a")
    odd = st.sets(st.integers(1, 120), max_size=draw(st.sampled_from([0, 0, 2])))
    data = bytearray(written(tree, draw(odd), draw(odd), [0]))
    if draw(st.booleans()) and data:
        data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    return bytes(data)


def _messages(tree: list[Piece]) -> list[list[Piece]]:
    found = [tree]
    for _, _, value in tree:
        if isinstance(value, list):
            found += _messages(value)
    return found


def _counts(data: bytes, kind: str) -> dict[int, Any]:
    """How often each field is in a message, and the same of the messages in it."""
    counts: dict[int, Any] = {}
    for field, value in read_fields(data, kind, 0, len(data)):
        child = _CHILDREN.get(kind, {}).get(field)
        known = counts.setdefault(field, [])
        inner = data[value] if isinstance(value, slice) else b""
        known.append(_counts(inner, child) if child else None)
    return counts


def _same(message: Any, counts: dict[int, Any]) -> bool:
    """Whether a parsed message has these fields, and no other ones."""
    parsed = {field.number: (field, value) for field, value in message.ListFields()}
    single = {n for n, f in ((f.number, f) for f in message.DESCRIPTOR.fields) if f.label != 3}
    if parsed.keys() - counts.keys():
        return False
    for number, inner in counts.items():
        field, value = parsed.get(number, (None, None))
        if field is None:
            if number in single:  # what was written must be seen
                return False
            continue  # an empty packed list
        if field.message_type is not None:
            values = [value] if number in single else list(value)
            if len(values) != len(inner):
                return False
            if not all(_same(v, i) for v, i in zip(values, inner, strict=True) if i is not None):
                return False
    return True


def _tensors_and_nodes(message: Any) -> tuple[list[Any], list[Any]]:
    tensors: list[Any] = []
    nodes: list[Any] = []
    for _, value in message.ListFields():
        many = (
            value if hasattr(value, "__len__") and not isinstance(value, str | bytes) else [value]
        )
        for each in many:
            if isinstance(each, onnx.TensorProto):
                tensors.append(each)
            if isinstance(each, onnx.NodeProto):
                nodes.append(each)
            if hasattr(each, "ListFields"):
                inner = _tensors_and_nodes(each)
                tensors, nodes = tensors + inner[0], nodes + inner[1]
    return tensors, nodes


@settings(max_examples=300)
@given(networks())
def test_what_is_accepted_is_what_onnx_reads(data: bytes) -> None:
    try:
        check_network(data)
    except ModelError:
        return
    parsed = onnx.ModelProto()
    try:
        parsed.ParseFromString(data)
    except Exception:
        return  # nobody can load it
    assert _same(parsed, _counts(data, "model"))
    tensors, nodes = _tensors_and_nodes(parsed)
    assert all(not t.external_data and t.data_location == 0 for t in tensors)
    assert {node.domain for node in nodes} <= set(DOMAINS)
    assert not parsed.functions
    assert not parsed.training_info


@settings(max_examples=100)
@given(st.data())
def test_the_signature_that_is_compared_is_the_one_that_onnx_reads(drawn: st.DataObject) -> None:
    data = bytearray(network().SerializeToString())
    for _ in range(drawn.draw(st.integers(1, 3))):
        at = drawn.draw(st.integers(0, len(data) - 1))
        data[at : at + drawn.draw(st.integers(0, 2))] = drawn.draw(st.binary(max_size=2))
    try:
        check_network(bytes(data), SIGNATURE)
        parsed = onnx.ModelProto.FromString(bytes(data))
    except Exception:
        return
    initialized = {each.name for each in parsed.graph.initializer}
    inputs = [each for each in parsed.graph.input if each.name not in initialized]
    assert [each.name for each in inputs] == [each.name for each in SIGNATURE.inputs]
    for each in (*inputs, *parsed.graph.output):
        assert each.type.WhichOneof("value") == "tensor_type"
        first, second = each.type.tensor_type.shape.dim
        assert first.WhichOneof("value") != "dim_value"
        assert second.dim_value == 1
    types = [each.type.tensor_type.elem_type for each in inputs]
    assert types == [TensorProto.DOUBLE, TensorProto.STRING]


def _padded(data: bytes) -> bytes:
    """The size of the first graph in one byte more."""
    tree = pieces(data, "model")
    return written(tree, set(), {1}, [0])


def test_odd_encodings_are_refused() -> None:
    good = network().SerializeToString()
    tree = pieces(good, "model")
    assert written(tree, set(), set(), [0]) == good
    for hostile in (
        written(tree, {3}, set(), [0]),
        written(tree, set(), {1}, [0]),
        good + varint(0) + varint(1),
        good + varint(1 << 3) + varint(8),  # the version twice
        good + varint(99 << 3) + varint(1),
        good + varint(1 << 3) + varint(1 << 64),
        _padded(good),
    ):
        with pytest.raises(ModelError, match="no ONNX model"):
            check_network(hostile)


def test_a_network_that_is_onnxruntimes_own_format_as_well_is_refused() -> None:
    # bytes 4 to 8 decide: here they are the name of the producer
    model = network()
    data = varint(1 << 3) + varint(9) + varint(2 << 3 | 2) + varint(4) + b"ORTM"
    model.ClearField("ir_version")
    model.ClearField("producer_name")
    with pytest.raises(ModelError, match="onnxruntime's own format"):
        check_network(data + model.SerializeToString())


@pytest.mark.parametrize("operator", ["EPContext", "ATen", "PythonOp"])
def test_operators_that_use_what_is_outside_are_refused(operator: str) -> None:
    node = helper.make_node(operator, [], ["o"], domain="com.microsoft")
    with pytest.raises(ModelError, match=f"operator {operator}"):
        check_network(network(nodes=[node]).SerializeToString())
