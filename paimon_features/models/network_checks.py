"""Checks of an ONNX model before it is loaded, without the package ``onnx``.

A model of the store is data: it must not name files outside of itself (external data), nor
operators of a library, and its size is bounded. The bytes are read by ``network_fields``, only as
far as ``onnx.proto`` has messages in which either can be named; each byte is visited once per level
of nesting.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from paimon_features.core.errors import ModelError, shortened
from paimon_features.models.manifest import ModelSignature
from paimon_features.models.network_fields import read_fields

MAX_NETWORK_BYTES = 256 << 20
DOMAINS = ("", "ai.onnx", "ai.onnx.ml", "com.microsoft")
"""Domains of operators that onnxruntime itself contains."""
MAX_FIELDS = 4_000_000
MAX_DEPTH = 32

_CHILDREN: dict[str, dict[int, str]] = {
    "model": {7: "graph"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "node": {5: "attribute"},
    "attribute": {
        5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse",
    },
    "sparse": {1: "tensor", 2: "tensor"},
}  # fmt: skip
"""Messages, and the fields of each in which other messages are followed."""
_REFUSED = {
    ("model", 20): "training information",
    ("model", 25): "functions of its own",
    ("tensor", 13): "external data",
}
_TENSOR_NAME, _TENSOR_LOCATION = 8, 14
_NODE_OPERATOR, _NODE_DOMAIN = 4, 7
_OUTSIDE = (b"EPContext", b"ATen", b"PythonOp", b"PythonOpGrad")
"""Operators of com.microsoft that read files, or call what is outside of onnxruntime."""
_ORT_MARK = b"ORTM"
"""Bytes 4 to 8 of onnxruntime's own format, by which it recognises it."""
_DTYPES = {1: "float32", 7: "int64", 8: "string", 9: "bool", 11: "float64"}


class _Message(NamedTuple):
    kind: str
    start: int
    end: int
    depth: int
    field: int


class _Value(NamedTuple):
    """A graph's input or output: ``dims`` are None where they vary."""

    name: str
    dtype: str
    dims: tuple[int | None, ...]


def check_network(data: bytes, signature: ModelSignature | None = None) -> None:
    """Refuse an ONNX model that must not be loaded, or has other inputs than its signature says.

    What it may allocate when it runs is not known before: run models whose training you know.

    Raises
    ------
    ModelError
        For more than ``MAX_NETWORK_BYTES``; bytes that are no ONNX model; external data; operators
        of other domains than ``DOMAINS``, functions of its own, training information; nesting that
        is deeper than ``MAX_DEPTH``; inputs or outputs that differ from ``signature``.
    """
    if len(data) > MAX_NETWORK_BYTES:
        raise ModelError(
            f"the network has {len(data):,} bytes; expected at most {MAX_NETWORK_BYTES:,}"
        )
    if data[4:8] == _ORT_MARK:
        raise ModelError("the network is in onnxruntime's own format; expected ONNX")
    inputs: list[_Value] = []
    outputs: list[_Value] = []
    initialized: set[str] = set()
    graphs = nodes = 0
    for message, field, value in _walk(data):
        if (message.kind, field) in _REFUSED:
            raise ModelError(
                f"the network has {_REFUSED[message.kind, field]}, which is not loaded: a network "
                "is one file, of operators that onnxruntime contains; export it again"
            )
        if message.kind == "tensor" and field == _TENSOR_LOCATION and value:
            raise ModelError(
                "the network has external data, which is not loaded: a network is one file; "
                "export it again"
            )
        if message.kind == "node" and field == _NODE_DOMAIN:
            domain = bytes(data[value.start : value.stop]) if isinstance(value, slice) else b"?"
            if domain.decode("utf-8", "replace") not in DOMAINS:
                raise ModelError(
                    f"the network has an operator of the domain {shortened(repr(domain))}; "
                    f"expected those of onnxruntime: {', '.join(DOMAINS[1:])}"
                )
        is_operator = message.kind == "node" and field == _NODE_OPERATOR
        if is_operator and isinstance(value, slice) and bytes(data[value]) in _OUTSIDE:
            raise ModelError(
                f"the network has the operator {_text(data, value)}, which is not loaded: it uses "
                "what is outside of the network"
            )
        if message.kind == "model" and field == 7:
            graphs += 1
        elif message.kind == "graph":
            nodes += field == 1
            if message.depth == 1 and field in (11, 12) and isinstance(value, slice):
                (inputs if field == 11 else outputs).append(_value_of(data, value))
        elif message[3:] == (2, 5) and field == _TENSOR_NAME and isinstance(value, slice):
            initialized.add(_text(data, value))
    if graphs != 1 or not nodes:
        raise ModelError("the network is no ONNX model: it has no graph, or several")
    if signature is not None:
        required = [value for value in inputs if value.name not in initialized]
        wanted = [(column.name, column.dtype, column.width) for column in signature.inputs]
        _compare("inputs", required, wanted)
        _compare("outputs", outputs, [(o.name, "float32", o.width) for o in signature.outputs])


def _compare(what: str, found: Sequence[_Value], wanted: Sequence[tuple[str, str, int]]) -> None:
    actual = [(value.name, value.dtype, value.dims) for value in found]
    expected = [(name, dtype, (None, width)) for name, dtype, width in wanted]
    if actual == expected:
        return
    pairs = zip([*actual, None], [*expected, None], strict=False)
    got, want = next(pair for pair in pairs if pair[0] != pair[1])
    raise ModelError(
        f"the {what} of the network are not those of its signature: "
        f"{shortened(str(got), 200)}, expected {shortened(str(want), 200)}"
    )


def _walk(data: bytes) -> Iterator[tuple[_Message, int, int | slice]]:
    """Yield the fields of the messages that are followed: a number, or where its bytes are."""
    todo = [_Message("model", 0, len(data), 0, 0)]
    fields = 0
    while todo:
        message = todo.pop()
        children = _CHILDREN.get(message.kind, {})
        for field, value in read_fields(data, message.kind, message.start, message.end):
            fields += 1
            if fields > MAX_FIELDS:
                raise ModelError(
                    f"the network has more than {MAX_FIELDS:,} fields; tensors belong into raw_data"
                )
            yield message, field, value
            child = children.get(field)
            if child is not None and isinstance(value, slice):
                if message.depth >= MAX_DEPTH:
                    raise ModelError(f"the network is nested more than {MAX_DEPTH} levels deep")
                todo.append(_Message(child, value.start, value.stop, message.depth + 1, field))


def _text(data: bytes, at: slice) -> str:
    return data[at].decode("utf-8", "replace")


def _inside(data: bytes, kind: str, where: slice) -> dict[int, int | slice]:
    """Return the fields of a message of which none is repeated."""
    return dict(read_fields(data, kind, where.start, where.stop))


def _value_of(data: bytes, where: slice) -> _Value:
    """Return the name, type and shape of a ``ValueInfoProto``."""
    value = _inside(data, "value", where)
    name, kind = value.get(1), value.get(2)
    dtype: str = "no tensor"
    dims: list[int | None] = []
    types = _inside(data, "type", kind) if isinstance(kind, slice) else {}
    tensor = types.get(1)
    if types.keys() <= {1, 6} and isinstance(tensor, slice):
        for field, part in _inside(data, "tensor_type", tensor).items():
            if isinstance(part, int):
                dtype = _DTYPES.get(part, f"type {part}")
            elif field == 2:
                shape = read_fields(data, "shape", part.start, part.stop)
                dims = [
                    _dim(data, dimension) for _, dimension in shape if isinstance(dimension, slice)
                ]
    return _Value(_text(data, name) if isinstance(name, slice) else "", dtype, tuple(dims))


def _dim(data: bytes, where: slice) -> int | None:
    dim = _inside(data, "dim", where)
    size = dim.get(1)
    if 2 in dim and size is not None:
        raise ModelError("the network is no ONNX model: a dimension has a size and a name")
    return size if isinstance(size, int) else None
