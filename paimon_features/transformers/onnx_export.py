"""Export of fitted transformers as ONNX models, for hosts that run a model without Python.

The model has one input per column, shape ``(rows, 1)``: numbers of ``dtype``, NaN for null, or
strings, ``null_text`` for null; a column of lists has the shape ``(rows, items)``, shorter lists
padded with null. The output ``transformed`` has the shape ``(rows, columns)``. For every ``dtype``
the model computes in float64 and rounds once, at the end.

``skl2onnx`` is not used: of the float64 models of scikit-learn's own estimators, version 1.20 has
no running ``KBinsDiscretizer`` and no running imputer, converts neither infrequent categories nor
``QuantileTransformer`` to a normal distribution, and rounds target encodings to float32.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from paimon_features.core.columns.column import Column
from paimon_features.core.errors import MissingExtraError, TransformError, unknown_name
from paimon_features.transformers.base import StoredTransformer
from paimon_features.transformers.column_transformer import ColumnTransformer
from paimon_features.transformers.fitted_version import FittedVersion
from paimon_features.transformers.frames import missing, numbers, read_frame
from paimon_features.transformers.hashing_encoder import HashingEncoder, text_of
from paimon_features.transformers.imputer import Imputer
from paimon_features.transformers.one_hot import Encoder
from paimon_features.transformers.onnx_graph import OnnxGraph, OnnxTensor
from paimon_features.transformers.onnx_operators import convert
from paimon_features.transformers.pipeline import Pipeline
from paimon_features.transformers.pipeline_steps import Frozen

OUTPUT = "transformed"
_DTYPES = ("float32", "float64")
_NULL = "null_text"
_AS_NULL, _AS_TEXT = "null_text_is_null", "null_text_is_text"
"""Keys of metadata: what represents null among strings, the inputs in which it does, and those in
which it is itself."""


def to_onnx(
    fitted: StoredTransformer | FittedVersion,
    *,
    dtype: str = "float32",
    null_text: str = "",
    matrix: bool = False,
    integer_columns: Sequence[int | str] = (),
) -> Any:
    """Export a fitted transformer, or a version of one, as an ONNX model (``onnx.ModelProto``).

    Inputs are named as the columns of the fit, ``x0``, ``x1``, ... if they had no names; with
    ``matrix=True`` there is a single input ``X`` of shape ``(rows, columns)``. Rows that
    ``transform`` rejects (an unknown category, the logarithm of a number that is not positive)
    have NaN at its place. ``integer_columns`` are the columns of a ``HashingEncoder`` that contain
    integers; its other columns are strings. Integers are exact as far as ``dtype`` is (float32 to
    2**24, float64 to 2**53).

    Numbers equal those of ``transform`` within a relative 1e-12, for float32 within 1e-6. Float32
    inputs are compared with categories and edges rounded to float32.

    Raises
    ------
    TransformError
        For a transformer, or a setting of it, that ONNX cannot express; names the step.
    MissingExtraError
        Without the extra ``onnx``.
    """
    if dtype not in _DTYPES:
        raise TransformError(f"dtype={dtype!r}; expected one of: {', '.join(_DTYPES)}")
    version = fitted if isinstance(fitted, FittedVersion) else None
    transformer = fitted.transformer if isinstance(fitted, FittedVersion) else fitted
    transformer.to_params()  # raises where it is not fitted
    names = list(transformer.names or [f"x{index}" for index in range(transformer.width)])
    whole = {names.index(c) if isinstance(c, str) and c in names else c for c in integer_columns}
    unknown = [c for c in whole if not (isinstance(c, int) and 0 <= c < transformer.width)]
    if unknown:
        raise TransformError(unknown_name("column in integer_columns", str(unknown[0]), names))
    graph = OnnxGraph(_onnx(), dtype, null_text)
    texts = [i not in whole and _is_text(transformer, i) for i in range(transformer.width)]
    lists = [_is_list(transformer, index) for index in range(transformer.width)]
    if matrix:
        wrong = [text or many for text, many in zip(texts, lists, strict=True)]
        if any(wrong):
            raise TransformError(
                "matrix=True is for numbers only, and column "
                f"{names[wrong.index(True)]!r} is strings or lists"
            )
        parts = [graph.matrix_input("X", transformer.width)]
    else:
        parts = list(map(graph.input, names, texts, lists))
    encoded = convert(graph, transformer, parts)
    out = transformer.names_out(names)
    model = graph.model(_output(graph, encoded, out), len(out), OUTPUT)
    metadata = {"columns": json.dumps(out), _NULL: null_text, "kind": transformer.kind}
    for key, marked in ((_AS_NULL, graph.as_null), (_AS_TEXT, graph.as_text)):
        metadata[key] = json.dumps([name for name in names if name in marked])
    if version is not None:
        metadata |= {
            "name": version.name,
            "version": str(version.version),
            "digest": version.digest,
        }
    for key, value in metadata.items():
        model.metadata_props.add(key=key, value=value)
    graph.onnx.checker.check_model(model)
    return model


def to_feeds(model: Any, X: Any) -> dict[str, Any]:
    """Convert data of any form to the inputs of an exported model, for ``session.run``.

    Raises
    ------
    TransformError
        For another number of columns, strings where the model takes numbers, lists where it takes
        single values, and where the model could not distinguish null from its ``null_text``.
    """
    frame = read_frame(X)
    metadata = {entry.key: entry.value for entry in model.metadata_props}
    inputs = list(model.graph.input)
    kinds = _onnx().TensorProto
    types = [tensor.type.tensor_type for tensor in inputs]
    dtype = np.float64 if types[0].elem_type == kinds.DOUBLE else np.float32
    columns = frame.columns
    if len(inputs) == 1 and types[0].shape.dim[1].dim_value == frame.width > 1:
        table = [numbers(column, frame.label(i)) for i, column in enumerate(columns)]
        return {inputs[0].name: np.column_stack(table).astype(dtype)}
    if len(inputs) != frame.width:
        raise TransformError(f"got {frame.width} columns; the model takes {len(inputs)}")
    out: dict[str, Any] = {}
    for index, (tensor, kind, column) in enumerate(zip(inputs, types, columns, strict=True)):
        label, is_text = frame.label(index), kind.elem_type == kinds.STRING
        if not kind.shape.dim[1].dim_value:
            out[tensor.name] = _of_lists(column, metadata[_NULL], label, is_text, dtype)
        elif is_text:
            out[tensor.name] = _of_texts(column, metadata[_NULL], label)[:, None]
        else:
            is_double = kind.elem_type == kinds.DOUBLE
            values = numbers(column, label)
            out[tensor.name] = values.astype(np.float64 if is_double else np.float32)[:, None]
        if is_text:
            _check_nulls(column, label, tensor.name, metadata)
    return out


def _of_texts(column: Column, null: str, label: str) -> npt.NDArray[Any]:
    """Return values as strings, as a ``HashingEncoder`` writes them."""
    present = ~missing(column)
    out = np.full(len(column), null, np.object_)
    out[present] = [_text(value, label) for value in column.values[present].tolist()]
    return out


def _text(value: Any, label: str) -> str:
    is_whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    if not (isinstance(value, str) or is_whole):
        raise TransformError(
            f"{label} contains {value!r}, and the model takes one text, integer or boolean"
        )
    return text_of(value)


def _of_lists(column: Column, null: str, label: str, is_text: bool, dtype: Any) -> npt.NDArray[Any]:
    """Return lists as one array, shape (rows, items)."""
    lists = [v if is_valid else [] for v, is_valid in zip(column.values, column.mask, strict=True)]
    wrong = next((v for v in lists if not isinstance(v, list)), None)
    if wrong is not None:
        raise TransformError(f"{label} contains {wrong!r}, and the model takes lists")
    shape = (len(lists), max(map(len, lists), default=0))
    out = np.full(shape, null, np.object_) if is_text else np.full(shape, np.nan, dtype)
    for row, items in enumerate(lists):
        for place, item in enumerate(items):
            if item is not None:
                out[row, place] = _text(item, label) if is_text else item
    return out


def _check_nulls(column: Column, label: str, name: str, metadata: dict[str, str]) -> None:
    """Refuse a text that the model would take for null, and a null that it would take for one."""
    null = metadata[_NULL]
    gaps = missing(column)
    if name in json.loads(metadata.get(_AS_NULL, "[]")):
        items = [v if isinstance(v, list) else [v] for v in column.values[~gaps]]
        if any(null in texts for texts in items):
            raise TransformError(
                f"{label} contains {null!r}, which stands for null in this model; make it with "
                "another null_text="
            )
    if name in json.loads(metadata.get(_AS_TEXT, "[]")) and gaps.any():
        raise TransformError(
            f"{label} is null in row {int(np.flatnonzero(gaps)[0])}, and this model takes {null!r} "
            "for the text; make it with another null_text="
        )


def _output(graph: OnnxGraph, parts: Sequence[OnnxTensor], names: Sequence[str]) -> str:
    at = 0
    for part in parts:
        if part.is_text:
            raise TransformError(
                f"the column {names[at]!r} that comes out is strings, and a model returns numbers; "
                "encode it"
            )
        at += part.width
    return graph.rounded(graph.joined(parts).name)


def _is_text(transformer: StoredTransformer, index: int) -> bool:
    """Return True if a column that goes in is strings."""
    return any(_takes_text(one, position) for one, position in _entries(transformer, index))


def _takes_text(transformer: StoredTransformer, index: int) -> bool:
    if isinstance(transformer, Encoder):
        return transformer.takes_text(index)
    if isinstance(transformer, Imputer):
        return isinstance(transformer.statistics_[index], str)
    return isinstance(transformer, HashingEncoder)


def _is_list(transformer: StoredTransformer, index: int) -> bool:
    """Return True if a column that goes in is lists."""
    return any(
        isinstance(one, HashingEncoder) and position in one.list_columns_
        for one, position in _entries(transformer, index)
    )


def _entries(transformer: StoredTransformer, index: int) -> Iterator[tuple[StoredTransformer, int]]:
    """Yield the transformers that receive an input column first, and its index there."""
    if isinstance(transformer, Frozen):
        yield from _entries(transformer.transformer, index)
    elif isinstance(transformer, Pipeline):
        yield from _entries(transformer.steps_[0][1], index)
    elif isinstance(transformer, ColumnTransformer):
        for _, step, columns in transformer.branches_:
            if index in columns:
                yield from _entries(step, columns.index(index))
    else:
        yield transformer, index


def _onnx() -> Any:
    try:
        import onnx
    except ImportError as error:
        raise MissingExtraError.of("onnx", "onnx", "to_onnx()") from error
    return onnx
