"""An ONNX graph that is being written: its inputs, its nodes, its constants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from paimon_features.core.errors import TransformError

_OPSETS = (("", 18), ("ai.onnx.ml", 3))
_IR_VERSION = 8
"""What onnxruntime from 1.14 reads."""

_MICROSOFT = "com.microsoft"

Attribute = int | float | str | Sequence[int] | Sequence[float] | Sequence[str]
"""A value of an operator's attribute."""


@dataclass(frozen=True)
class OnnxTensor:
    """Columns that stand in one tensor, shape ``(rows, width)``: float64, or strings.

    ``is_raw`` are numbers as they came in: rounded to the type of the input. ``is_list`` is one
    column of lists, shape ``(rows, items)``, filled up with what is no value.
    """

    name: str
    width: int
    is_text: bool = False
    is_raw: bool = False
    is_list: bool = False


class OnnxGraph:
    """Nodes are added one by one; each returns the name of its output."""

    def __init__(self, onnx: Any, dtype: str, null_text: str) -> None:
        self.onnx = onnx
        self.dtype = dtype
        self.null_text = null_text
        self._types = onnx.TensorProto
        self._float = self._types.FLOAT if dtype == "float32" else self._types.DOUBLE
        self._inputs: list[Any] = []
        self._nodes: list[Any] = []
        self._constants: list[Any] = []
        self._uses_microsoft = False
        self.as_null: set[str] = set()
        """Tensors of strings in which ``null_text`` stands for null."""
        self.as_text: set[str] = set()
        """Those in which it is itself."""

    def input(self, name: str, is_text: bool, is_list: bool = False) -> OnnxTensor:
        """Return one column that goes in."""
        kind = self._types.STRING if is_text else self._float
        shape = [None, None if is_list else 1]
        self._inputs.append(self.onnx.helper.make_tensor_value_info(name, kind, shape))
        tensor = OnnxTensor(name, 1, True) if is_text else self._raw(name, 1)
        return replace(tensor, is_list=is_list)

    def matrix_input(self, name: str, width: int) -> OnnxTensor:
        """Return all columns that go in, as one array of numbers."""
        info = self.onnx.helper.make_tensor_value_info(name, self._float, [None, width])
        self._inputs.append(info)
        return self._raw(name, width)

    def node(self, op: str, *inputs: str, domain: str = "", **attributes: Attribute) -> str:
        """Add a node and return the name of its output."""
        out = f"{op.lower()}_{len(self._nodes)}"
        self._uses_microsoft |= domain == _MICROSOFT
        self._nodes.append(
            self.onnx.helper.make_node(op, list(inputs), [out], domain=domain, **attributes)
        )
        return out

    def microsoft(self, op: str, *inputs: str, **attributes: Attribute) -> str:
        """Add a node of one of onnxruntime's own operators and return the name of its output."""
        return self.node(op, *inputs, domain=_MICROSOFT, **attributes)

    def constant(self, values: Any) -> str:
        """Add an array and return its name."""
        array = np.asarray(values)
        name = f"constant_{len(self._constants)}"
        if array.dtype.kind in "OU":
            flat = [str(v).encode() for v in array.ravel()]
            tensor = self.onnx.helper.make_tensor(name, self._types.STRING, array.shape, flat)
        else:
            tensor = self.onnx.numpy_helper.from_array(np.ascontiguousarray(array), name)
        self._constants.append(tensor)
        return name

    def like(self, part: OnnxTensor, values: Any) -> Any:
        """Return numbers to compare with those of a part: rounded if these are."""
        array = np.asarray(values, np.float64)
        if part.is_raw and self.dtype == "float32":
            return array.astype(np.float32).astype(np.float64)
        return array

    def float64(self, name: str) -> str:
        """Return a tensor as float64."""
        return self.node("Cast", name, to=self._types.DOUBLE)

    def int64(self, name: str) -> str:
        """Return a tensor as int64."""
        return self.node("Cast", name, to=self._types.INT64)

    def text(self, name: str) -> str:
        """Return a tensor as strings."""
        return self.node("Cast", name, to=self._types.STRING)

    def rounded(self, name: str) -> str:
        """Return a tensor in the type of the output."""
        return name if self.dtype == "float64" else self.node("Cast", name, to=self._types.FLOAT)

    def column(self, parts: Sequence[OnnxTensor], index: int) -> OnnxTensor:
        """Return one column of several parts, shape (rows, 1)."""
        for part in parts:
            if index < part.width:
                if part.width == 1:
                    return part
                place = self.constant(np.array([index], np.int64))
                name = self.node("Gather", part.name, place, axis=1)
                return OnnxTensor(name, 1, part.is_text, part.is_raw)
            index -= part.width
        raise AssertionError("there is no such column")

    def joined(self, parts: Sequence[OnnxTensor]) -> OnnxTensor:
        """Return the parts in one tensor of numbers.

        Raises
        ------
        TransformError
            If one of them is strings, or lists.
        """
        if any(part.is_text or part.is_list for part in parts):
            raise TransformError("it takes numbers, and one of its columns is strings or lists")
        if len(parts) == 1:
            return parts[0]
        name = self.node("Concat", *(part.name for part in parts), axis=1)
        width = sum(part.width for part in parts)
        return OnnxTensor(name, width, is_raw=all(part.is_raw for part in parts))

    def model(self, output: str, width: int, name: str) -> Any:
        """Return the model whose output is this tensor, under a name."""
        helper = self.onnx.helper
        self._nodes.append(helper.make_node("Identity", [output], [name]))
        info = helper.make_tensor_value_info(name, self._float, [None, width])
        # what leads nowhere, of columns that are dropped, stays out
        needed, nodes = {name}, []
        for node in reversed(self._nodes):
            if needed.intersection(node.output):
                needed.update(node.input)
                nodes.append(node)
        constants = [constant for constant in self._constants if constant.name in needed]
        graph = helper.make_graph(nodes[::-1], "paimon_features", self._inputs, [info], constants)
        opsets = [*_OPSETS, *([(_MICROSOFT, 1)] if self._uses_microsoft else [])]
        return helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid(*opset) for opset in opsets],
            ir_version=_IR_VERSION,
            producer_name="paimon-features",
        )

    def _raw(self, name: str, width: int) -> OnnxTensor:
        converted = name if self.dtype == "float64" else self.float64(name)
        return OnnxTensor(converted, width, is_raw=True)
