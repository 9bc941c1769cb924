"""Decode the bodies of requests for predictions; hostile input ends in this file.

Three forms: our own (entity keys), that of the Open Inference Protocol, version 2 (one tensor per
input), and those of MLflow's scoring server (a table, or tensors). The last two have ready-made
inputs, which become the arrays of a network here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec
import numpy as np

from paimon_features.core.columns.column import Column
from paimon_features.core.errors import shortened
from paimon_features.core.suggestions import did_you_mean
from paimon_features.core.types.array_types import Array
from paimon_features.models import ModelInput, ModelSignature
from paimon_features.serving.http.bodies.formats import Format
from paimon_features.serving.http.bodies.json_bodies import (
    ITEMS_PER_ROW,
    MAX_ITEMS,
    check_items,
    parse,
    repeats_no_key,
)
from paimon_features.serving.http.bodies.request_body import ParsedRequest, Scalar
from paimon_features.serving.http.bodies.strict_pack import fields_of
from paimon_features.serving.http.http_errors import RequestRejected, invalid_request
from paimon_features.serving.http.limits import Limits
from paimon_features.serving.prediction.input_arrays import input_array

DATATYPES = {"float64": "FP64", "string": "BYTES"}
"""The protocol's names for the types of inputs."""
_NUMBER = list[float | None]
_TEXT = list[str | None]
_MAX_VERSION = 2**31 - 1


class PredictRequest(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A request for predictions of entities.

    ``entities`` and ``request`` are those of a feature read, and so is ``as_of``. ``full`` adds the
    features to the reply, ``explain`` what each of them contributes. ``version`` requests one
    version; otherwise the split decides by ``unit``, or by the first entity. A model whose service
    is read with an event takes ``event`` instead of ``entities``, ``request`` and ``as_of``.
    """

    entities: dict[str, list[Scalar]] | msgspec.UnsetType = msgspec.UNSET
    request: dict[str, Scalar | list[Scalar]] | msgspec.UnsetType | None = msgspec.UNSET
    as_of: int | msgspec.UnsetType | None = msgspec.UNSET
    full: bool | msgspec.UnsetType = msgspec.UNSET
    explain: bool | msgspec.UnsetType = msgspec.UNSET
    version: int | msgspec.UnsetType | None = msgspec.UNSET
    unit: str | msgspec.UnsetType | None = msgspec.UNSET
    event: dict[str, Scalar | list[Scalar]] | msgspec.UnsetType = msgspec.UNSET

    def parsed(self) -> ParsedRequest:
        """Return as a read of features; which ones, the model says."""
        return ParsedRequest(
            self.entities or {},
            self.request or {},
            (),
            None,
            False,
            None if self.as_of is msgspec.UNSET else self.as_of,
            None if self.event is msgspec.UNSET else self.event,
        )


class InferTensor(msgspec.Struct, gc=False):
    """A tensor of the protocol: ``data`` is flat, or nested as ``shape``."""

    name: str
    shape: list[int]
    datatype: str
    data: Any
    parameters: dict[str, Any] | msgspec.UnsetType | None = msgspec.UNSET


class InferOutput(msgspec.Struct, gc=False):
    """An output that is requested."""

    name: str
    parameters: dict[str, Any] | msgspec.UnsetType | None = msgspec.UNSET


class InferRequest(msgspec.Struct, gc=False):
    """A request of the protocol. ``parameters`` have no meaning here."""

    inputs: list[InferTensor]
    id: str | msgspec.UnsetType | None = msgspec.UNSET
    parameters: dict[str, Any] | msgspec.UnsetType | None = msgspec.UNSET
    outputs: list[InferOutput] | msgspec.UnsetType | None = msgspec.UNSET


_PREDICT_JSON = msgspec.json.Decoder(PredictRequest)
_PREDICT_PACK = msgspec.msgpack.Decoder(PredictRequest)
_FIELDS = {name: name for name in PredictRequest.__struct_fields__} | {
    "entity_rows": "entities",
    "as_of_ms": "as_of",
    "explanation": "explain",
    "full_feature_names": "full",
    "model_version": "version",
}


def decode_predict(body: bytes | bytearray, form: Format) -> PredictRequest:
    """Decode a request for predictions of entities.

    Raises
    ------
    RequestRejected
        400 for bytes that are not of the format, 422 for invalid fields.
    """
    request = _predict_json(body) if form is Format.JSON else _predict_pack(body)
    if request.event is not msgspec.UNSET:
        others = {"entities": request.entities, "request": request.request, "as_of": request.as_of}
        if given := [name for name, value in others.items() if value is not msgspec.UNSET]:
            raise invalid_request(
                f"both 'event' and {given[0]!r}; an event has the keys and the time"
            )
    elif not request.entities:
        raise invalid_request("'entities' is empty; expected a list of values for each entity key")
    if request.unit and len(request.unit) > 1_000:
        raise invalid_request(
            f"'unit' has {len(request.unit):,} characters; expected at most 1,000"
        )
    return request


def _predict_json(body: bytes | bytearray) -> PredictRequest:
    check_items(body)
    with suppress(msgspec.DecodeError, ValueError, RecursionError):
        request: PredictRequest = _PREDICT_JSON.decode(body)
        unset = msgspec.UNSET
        fields = sum(getattr(request, name) is not unset for name in request.__struct_fields__)
        maps = (request.entities, request.request, request.event)
        if repeats_no_key(body, fields + sum(len(columns or {}) for columns in maps)):
            return request
    document = parse(body)
    try:
        return msgspec.convert(document, PredictRequest)
    except msgspec.ValidationError as error:
        raise invalid_request(f"the JSON body: {error}{_hint(error)}") from None


def _predict_pack(body: bytes | bytearray) -> PredictRequest:
    try:
        fields = fields_of(body, "the MessagePack body")
        for name in ("entities", "request", "event"):
            with suppress(msgspec.ValidationError):  # it is no map: reported below
                if name in fields:
                    fields_of(fields[name], f"the MessagePack body: {name!r}")
        return _PREDICT_PACK.decode(body)
    except msgspec.ValidationError as error:
        raise invalid_request(f"the MessagePack body: {error}{_hint(error)}") from None
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise RequestRejected(
            "malformed", f"the body is not MessagePack: {str(error)[:200]}"
        ) from None


def decode_infer(body: bytes | bytearray, limits: Limits) -> InferRequest:
    """Decode a request of the Open Inference Protocol; raises as ``decode_predict``."""
    document = parse(body, _most_items(limits))
    try:
        return msgspec.convert(document, InferRequest)
    except msgspec.ValidationError as error:
        raise invalid_request(f"the JSON body: {error}") from None


def _most_items(limits: Limits) -> int:
    """Return the maximum number of objects, lists and keys of ready-made inputs."""
    return MAX_ITEMS + ITEMS_PER_ROW * limits.max_entities


def infer_arrays(
    request: InferRequest, signature: ModelSignature, limits: Limits
) -> tuple[list[Array], int]:
    """Return the inputs of a network from a request of the protocol, and the number of rows.

    Raises
    ------
    RequestRejected
        422 for inputs that are not those of the signature, 413 over a limit.
    """
    given = {tensor.name: tensor for tensor in request.inputs}
    if len(given) != len(request.inputs):
        raise invalid_request("an input is given twice; expected each once")
    _check_names("input", given, signature.inputs, also_of=False)
    rows = next(iter(given[signature.inputs[0].name].shape), 0)
    if rows < 1:
        raise invalid_request(
            "the inputs have no rows; expected a shape [rows, width] with 1 or more"
        )
    limits.check(rows, sum(model_input.width for model_input in signature.inputs))
    arrays = []
    for of in signature.inputs:
        tensor = given[of.name]
        if tensor.datatype != DATATYPES[of.dtype]:
            raise invalid_request(
                f"input {of.name!r} has the datatype {shortened(tensor.datatype)!r}; expected "
                f"{DATATYPES[of.dtype]!r} (GET /v2/models/NAME lists the inputs)"
            )
        if tensor.shape != [rows, of.width] and (of.width > 1 or tensor.shape != [rows]):
            raise invalid_request(
                f"input {of.name!r} has the shape {shortened(str(tensor.shape))}; expected "
                f"[{rows}, {of.width}], the same number of rows for all inputs"
            )
        arrays.append(_tensor(of, tensor.data, rows, limits))
    return arrays, rows


def _tensor(of: ModelInput, data: Any, rows: int, limits: Limits) -> Array:
    kind: Any = _NUMBER if of.dtype == "float64" else _TEXT
    try:
        flat = msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        try:
            nested = msgspec.convert(data, list[kind])
        except msgspec.ValidationError:
            raise _wrong_values(of, error) from None
        if len(nested) != rows or any(len(row) != of.width for row in nested):
            raise invalid_request(
                f"input {of.name!r}: its data are not nested as its shape [{rows}, {of.width}]"
            ) from None
        flat = [value for row in nested for value in row]
    if len(flat) != rows * of.width:
        raise invalid_request(
            f"input {of.name!r} has {len(flat):,} values; expected {rows * of.width:,}, as its "
            "shape says"
        )
    return _array(of, flat, rows, limits)


def _array(of: ModelInput, flat: Sequence[Any], rows: int, limits: Limits) -> Array:
    """Return numbers or texts and nulls, row by row, as an input."""
    if of.dtype == "float64":
        return np.array(flat, np.float64).reshape(rows, of.width)
    limits.check_texts("input", {of.name: list(flat)})
    out = np.fromiter(flat, np.object_, len(flat))
    out[out == None] = of.null_text  # noqa: E711  (elementwise)
    return out.reshape(rows, of.width)


# -- MLflow ----------------------------------------------------------------------------------

_FORMS = ("dataframe_split", "dataframe_records", "instances", "inputs")


def decode_invocation(body: bytes | bytearray, limits: Limits) -> tuple[str, Any]:
    """Return the form of an MLflow request and its content; raises as ``decode_predict``."""
    fields = parse(body, _most_items(limits))
    if not isinstance(fields, dict):
        raise invalid_request(f"the body is a {type(fields).__name__}; expected an object")
    if fields.pop("params", None):
        raise invalid_request("'params' have no meaning for this model; leave them out")
    if len(fields) != 1 or next(iter(fields)) not in _FORMS:
        got = ", ".join(sorted(shortened(name) for name in fields)[:5]) or "nothing"
        raise invalid_request(f"the body has {got}; expected exactly one of: {', '.join(_FORMS)}")
    [(form, content)] = fields.items()
    return form, content


def invocation_arrays(
    form: str, content: Any, signature: ModelSignature, limits: Limits
) -> tuple[list[Array], int]:
    """Return the inputs of a network from an MLflow request; raises as ``infer_arrays``.

    Columns have the names of inputs, or of the features that they are.
    """
    columns = _columns(form, content, signature)
    rows = len(next(iter(columns.values()), ()))
    limits.check(rows, sum(model_input.width for model_input in signature.inputs))
    if rows < 1:
        raise invalid_request(f"{form!r} has no rows; expected 1 or more")
    _check_names("column", columns, signature.inputs, also_of=True)
    arrays = []
    for of in signature.inputs:
        values = columns.get(of.name, columns.get(of.of))
        assert values is not None
        if len(values) != rows:
            raise invalid_request(
                f"column {of.name!r} has {len(values):,} values, and others have {rows:,}; "
                "expected one length"
            )
        scalar: Any = float | None if of.dtype == "float64" else str | None
        is_list = of.type.startswith("list(")
        kind: Any = list[list[scalar] | None] if is_list else list[scalar]
        try:
            values = msgspec.convert(values, kind)
        except msgspec.ValidationError as error:
            raise _wrong_values(of, error) from None
        if is_list:
            if of.dtype == "string":
                texts = [text for row in values if row for text in row]
                limits.check_texts("input", {of.name: texts})
            arrays.append(input_array(of, Column(np.fromiter(values, np.object_, rows))))
        else:
            arrays.append(_array(of, values, rows, limits))
    return arrays, rows


def _columns(form: str, content: Any, signature: ModelSignature) -> dict[str, list[Any]]:
    names = [model_input.name for model_input in signature.inputs]
    if form == "dataframe_split":
        split = _converted(content, _Split, form)
        return _transposed(split.data, split.columns, form)
    if form == "dataframe_records" or (form == "instances" and _has(content, dict)):
        records = _converted(content, list[dict[str, Any]], form)
        columns = list(records[0]) if records else []
        for number, record in enumerate(records):
            if record.keys() != records[0].keys():
                raise invalid_request(
                    f"record {number} of {form!r} has other columns than the first one: "
                    f"{shortened(', '.join(record))}; expected {shortened(', '.join(columns))}"
                )
        return {name: [record[name] for record in records] for name in columns}
    if form == "inputs" and isinstance(content, dict):
        return {
            str(name): _converted(values, list[Any], f"inputs.{shortened(str(name))}")
            for name, values in content.items()
        }
    if not _has(content, list):
        raise invalid_request(f"{form!r}: expected a list of rows, or of objects with named values")
    return _transposed(_converted(content, list[list[Any]], form), names, form)


class _Split(msgspec.Struct, forbid_unknown_fields=True):
    columns: list[str]
    data: list[list[Any]]
    index: list[Any] | None = None


def _has(content: object, kind: type) -> bool:
    return isinstance(content, list) and bool(content) and isinstance(content[0], kind)


def _converted(content: Any, kind: Any, form: str) -> Any:
    try:
        return msgspec.convert(content, kind)
    except msgspec.ValidationError as error:
        raise invalid_request(f"{form!r}: {error}") from None


def _transposed(
    rows: Sequence[Sequence[Any]], names: Sequence[str], form: str
) -> dict[str, list[Any]]:
    for number, row in enumerate(rows):
        if len(row) != len(names):
            raise invalid_request(
                f"row {number} of {form!r} has {len(row):,} values; expected {len(names):,}: "
                f"{shortened(', '.join(names))}"
            )
    columns = {
        name: list(column)
        for name, column in zip(names, zip(*rows, strict=True), strict=bool(rows))
    }
    if rows and len(columns) != len(names):
        raise invalid_request(f"{form!r} has a column twice; expected each once")
    return columns


# -- errors ----------------------------------------------------------------------------------


def _hint(error: msgspec.ValidationError) -> str:
    """Return what an unknown field may have meant."""
    text = str(error)
    if "unknown field" not in text:
        return ""
    name = text.partition("`")[2].partition("`")[0]
    return did_you_mean(name[:80], list(PredictRequest.__struct_fields__), _FIELDS)


def _check_names(
    what: str, given: Mapping[str, object], inputs: Sequence[ModelInput], *, also_of: bool
) -> None:
    expected = {model_input.name for model_input in inputs}
    if also_of:
        expected |= {model_input.of for model_input in inputs}
    names = ", ".join(model_input.name for model_input in inputs)
    for model_input in inputs:
        occurrences = (model_input.name in given) + (
            also_of and model_input.of != model_input.name and model_input.of in given
        )
        if not occurrences:
            raise invalid_request(
                f"the {what} {model_input.name!r} is missing; the model takes: "
                f"{shortened(names, 500)}"
            )
        if occurrences > 1:
            raise invalid_request(
                f"the {what} {model_input.name!r} is there twice, as {model_input.of!r}, too"
            )
    for name in given:
        if name not in expected:
            raise invalid_request(
                f"unknown {what} {shortened(name)!r} of the model; available: "
                f"{shortened(names, 500)}"
            )


def _wrong_values(of: ModelInput, error: msgspec.ValidationError) -> RequestRejected:
    expected = "numbers or null" if of.dtype == "float64" else "texts or null"
    return invalid_request(f"input {of.name!r}: {error}; expected {expected}")
