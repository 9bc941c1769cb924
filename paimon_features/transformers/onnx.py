"""Fitted transformers as ONNX models, for hosts that run a model without Python.

One input for each column, shape ``(rows, 1)``: numbers of ``dtype``, NaN where there is none, or
texts, ``null_text`` where there is none. One output, ``transformed``, of shape ``(rows, columns)``.
Whatever ``dtype`` is, the model computes in float64 and rounds once, at the end.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from paimon_features.errors import MissingExtraError, TransformError
from paimon_features.transformers.base import StoredTransformer
from paimon_features.transformers.categorical import Encoder
from paimon_features.transformers.compose import ColumnTransformer
from paimon_features.transformers.fitted import FittedVersion
from paimon_features.transformers.frames import missing, numbers, read_frame
from paimon_features.transformers.hashing import HashingEncoder
from paimon_features.transformers.imputer import Imputer
from paimon_features.transformers.onnx_graph import Graph, Part
from paimon_features.transformers.onnx_kinds import convert
from paimon_features.transformers.pipeline import Pipeline
from paimon_features.transformers.steps import Frozen

OUTPUT = "transformed"
_DTYPES = ("float32", "float64")
_NULL = "null_text"


def to_onnx(
    fitted: StoredTransformer | FittedVersion,
    *,
    dtype: str = "float32",
    null_text: str = "",
    matrix: bool = False,
    whole_numbers: Sequence[int | str] = (),
) -> Any:
    """The ONNX model (``onnx.ModelProto``) of a fitted transformer, or of a version of one.

    Inputs are called as the columns that it was fitted on, ``x0``, ``x1``, ... where they had no
    names; with ``matrix=True`` there is one, ``X``, of shape ``(rows, columns)``. Rows that
    ``transform`` refuses (an unknown category, a logarithm of what is not positive) have NaN
    where it stands. ``whole_numbers`` are columns of a ``HashingEncoder`` that hold integers;
    it takes its other columns for texts.

    Numbers come out within 1e-12 of what ``transform`` gives, relatively, for float32 within 1e-6.
    Float32 inputs are compared with categories and edges as these are in float32.

    Raises
    ------
    TransformError
        For a kind of transformer that cannot be expressed, and a setting of it; the message names
        the step.
    MissingExtraError
        Without the extra ``onnx``.
    """
    if dtype not in _DTYPES:
        raise TransformError(f"dtype={dtype!r}; expected one of: {', '.join(_DTYPES)}")
    version = fitted if isinstance(fitted, FittedVersion) else None
    transformer = fitted.transformer if isinstance(fitted, FittedVersion) else fitted
    transformer.to_params()  # raises where it is not fitted
    names = list(transformer.names or [f"x{index}" for index in range(transformer.width)])
    whole = {names.index(c) if isinstance(c, str) and c in names else c for c in whole_numbers}
    unknown = [c for c in whole if not (isinstance(c, int) and 0 <= c < transformer.width)]
    if unknown:
        raise TransformError(f"whole_numbers={unknown[0]!r} is no column of: {', '.join(names)}")
    graph = Graph(_onnx(), dtype, null_text)
    texts = [i not in whole and _is_text(transformer, i) for i in range(transformer.width)]
    if matrix:
        if any(texts):
            raise TransformError(
                f"matrix=True is for numbers only, and column {names[texts.index(True)]!r} is texts"
            )
        parts = [graph.matrix_input("X", transformer.width)]
    else:
        parts = [graph.input(name, is_text) for name, is_text in zip(names, texts, strict=True)]
    made = convert(graph, transformer, parts)
    out = transformer.names_out(names)
    model = graph.model(_output(graph, made, out), len(out), OUTPUT)
    told = {"columns": json.dumps(out), _NULL: null_text, "kind": transformer.kind}
    if version is not None:
        told |= {"name": version.name, "version": str(version.version), "digest": version.digest}
    for key, value in told.items():
        model.metadata_props.add(key=key, value=value)
    graph.onnx.checker.check_model(model)
    return model


def to_feeds(model: Any, X: Any) -> dict[str, Any]:
    """Data of any form as the inputs of a model that ``to_onnx`` made, for ``session.run``.

    Raises
    ------
    TransformError
        For another number of columns, and texts where the model takes numbers.
    """
    frame = read_frame(X)
    null = next(p.value for p in model.metadata_props if p.key == _NULL)
    inputs = list(model.graph.input)
    text = _onnx().TensorProto.STRING
    types = [each.type.tensor_type for each in inputs]
    dtype = np.float64 if types[0].elem_type == _onnx().TensorProto.DOUBLE else np.float32
    columns = frame.columns
    if len(inputs) == 1 and types[0].shape.dim[1].dim_value == frame.width > 1:
        table = [numbers(column, frame.label(i)) for i, column in enumerate(columns)]
        return {inputs[0].name: np.column_stack(table).astype(dtype)}
    if len(inputs) != frame.width:
        raise TransformError(f"got {frame.width} columns; the model takes {len(inputs)}")
    out: dict[str, Any] = {}
    for index, (each, kind, column) in enumerate(zip(inputs, types, columns, strict=True)):
        if kind.elem_type == text:
            texts = column.values.astype(np.object_)
            texts[missing(column)] = null
            out[each.name] = texts[:, None]
        else:
            is_double = kind.elem_type == _onnx().TensorProto.DOUBLE
            values = numbers(column, frame.label(index))
            out[each.name] = values.astype(np.float64 if is_double else np.float32)[:, None]
    return out


def _output(graph: Graph, parts: Sequence[Part], names: Sequence[str]) -> str:
    at = 0
    for part in parts:
        if part.is_text:
            raise TransformError(
                f"the column {names[at]!r} that comes out is texts, and a model gives numbers; "
                "encode it"
            )
        at += part.width
    return graph.rounded(graph.joined(parts).name)


def _is_text(transformer: StoredTransformer, index: int) -> bool:
    """Whether a column that goes in is texts."""
    if isinstance(transformer, Frozen):
        return _is_text(transformer.transformer, index)
    if isinstance(transformer, Pipeline):
        return _is_text(transformer.steps[0][1], index)
    if isinstance(transformer, ColumnTransformer):
        return any(
            _is_text(step, columns.index(index))
            for _, step, columns in transformer.branches_
            if index in columns
        )
    if isinstance(transformer, Encoder):
        return transformer.takes_text(index)
    if isinstance(transformer, Imputer):
        return isinstance(transformer.statistics_[index], str)
    return isinstance(transformer, HashingEncoder)


def _onnx() -> Any:
    try:
        import onnx
    except ImportError as error:
        raise MissingExtraError.of("onnx", "onnx", "to_onnx()") from error
    return onnx
