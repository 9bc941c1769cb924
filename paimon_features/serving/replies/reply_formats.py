"""Replies as bytes: JSON as Feast's feature servers write it, MessagePack, an Arrow stream.

``plain_values`` describes how values are written. Needs the extra ``serve``.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import msgspec
import numpy as np

from paimon_features.core._arrow import pa
from paimon_features.core.types.statuses import STATUS_NAMES, Status
from paimon_features.definitions import Selection
from paimon_features.definitions.aggregates.fold import NEVER_MS
from paimon_features.serving.replies.json_reply import feast_json, feature_names, freshness_json
from paimon_features.serving.replies.plain_values import plain_column, plain_values
from paimon_features.serving.replies.response import ArrowParts, OnlineResponse, ResultBatch

__all__ = ["arrow_stream", "feast_json", "message_pack"]

_pack = msgspec.msgpack.Encoder().encode
_json = msgspec.json.Encoder().encode


def message_pack(response: OnlineResponse, full_feature_names: bool = False) -> bytes:
    """Return a compact reply: ``metadata``, and columns in the order of ``metadata.feature_names``.

    ``{"metadata": {"feature_names", "status_names", "as_of_ms", "freshness"}, "values": [[...]...],
    "statuses": [[...]...], "event_times_ms": {view: [...]}}``: a status is a place in
    ``status_names`` (our own names), an event time UTC ms or null.
    """
    batch, part = response.batch, slice(response.start, response.stop)
    keys = [
        plain_values(kind, response.keys[name], binary=True)
        for name, kind in batch.key_types.items()
    ]
    values = [
        plain_column(kind, column.part(part), binary=True)
        for kind, column in zip(batch.types, batch.columns, strict=True)
    ]
    # most features of a view share one array of codes
    statuses = {id(codes): codes[part].tolist() for codes in batch.codes}
    metadata = {
        "feature_names": [*batch.key_types, *feature_names(batch.selection, full_feature_names)],
        **_metadata(response),
    }
    document = {
        "metadata": metadata,
        "values": [*keys, *values],
        "statuses": [
            *([Status.PRESENT.value] * len(response) for _ in keys),
            *(statuses[id(codes)] for codes in batch.codes),
        ],
        "event_times_ms": {
            view: [None if time == NEVER_MS else time for time in times[part].tolist()]
            for view, times in batch.event_times.items()
        },
    }
    return _pack(document)


def arrow_stream(response: OnlineResponse, full_feature_names: bool = False) -> bytes:
    """Return an Arrow IPC stream of one batch.

    Columns are the entity keys, the features, ``<feature>__status`` (int8, a place in
    ``status_names``) for each feature, and ``<view>__event_time_ms`` (int64, null where unknown)
    for each view. The schema's metadata ``paimon_features`` is JSON with ``status_names``,
    ``as_of_ms`` and ``freshness``.
    """
    parts = response.arrow_parts() or _plain_parts(response)
    if parts is None or response.own_event is not None:
        metadata = _json(_metadata(response))
        return _written(response, _schema(response.batch, full_feature_names), metadata)
    metadata = b'{"status_names":%b,"as_of_ms":%d,"freshness":{%b}}' % (
        _STATUS_NAMES, response.as_of_ms, parts.freshness,
    )  # fmt: skip
    key: _FrameKey = (
        response.selection, full_feature_names, *parts[2:], len(response), len(metadata),
    )  # fmt: skip
    frame = _frames.get(key)
    if frame is not None:
        return b"".join((frame[0], metadata, frame[1], *parts.buffers, _END))
    data = _written(response, _schema(response.batch, full_feature_names), metadata)
    frame = _frame_of(data, metadata, b"".join(parts.buffers))
    if frame is not None:
        if len(_frames) >= _MOST_FRAMES:
            _frames.pop(next(iter(_frames)))
        _frames[key] = frame
    return data


_FrameKey = tuple[
    Selection, bool, tuple[tuple[str, str], ...], tuple[str, ...], tuple[str, ...], int, int
]
_frames: dict[_FrameKey, tuple[bytes, bytes]] = {}
"""What comes before and after the metadata in a stream whose columns are numbers without nulls: for
one schema (names, types; keys are int64), number of rows and length of the metadata these bytes are
always the same."""
_MOST_FRAMES = 256
_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"
_STATUS_NAMES = _json(STATUS_NAMES)
_PLAIN = {"int64": np.dtype(np.int64), "float64": np.dtype(np.float64)}


def _plain_parts(response: OnlineResponse) -> ArrowParts | None:
    """Return the buffers of the stream's columns, padded.

    None if one is not a number, or has a null.
    """
    batch, part = response.batch, slice(response.start, response.stop)
    buffers: list[bytes] = []
    for name, kind in batch.key_types.items():
        if kind.text != "int64":
            return None
        buffers.append(np.array(response.keys[name], np.int64).tobytes())
    for kind, column in zip(batch.types, batch.columns, strict=True):
        if _PLAIN.get(kind.text) != column.values.dtype or not (
            column.valid is None or column.valid[part].all()
        ):
            return None
        buffers.append(column.values[part].tobytes())
    padding = bytes(-len(response) % 8)
    statuses = {id(codes): codes[part].tobytes() + padding for codes in batch.codes}
    buffers += [statuses[id(codes)] for codes in batch.codes]
    for times in batch.event_times.values():
        row_times = times[part]
        if (row_times == NEVER_MS).any():
            return None
        buffers.append(row_times.tobytes())
    return ArrowParts(
        buffers,
        b",".join([freshness_json(view, of) for view, of in response.freshness.items()]),
        tuple((name, kind.text) for name, kind in batch.key_types.items()),
        tuple(kind.text for kind in batch.types),
        tuple(batch.event_times),
    )


def _frame_of(data: bytes, metadata: bytes, body: bytes) -> tuple[bytes, bytes] | None:
    """Return the frame of a stream that Arrow has written, if it is made of exactly these parts."""
    frame = data.removesuffix(body + _END)
    before, separator, after = frame.partition(metadata)
    if len(frame) == len(data) or not separator or metadata in after:
        return None
    return before, after


def _written(response: OnlineResponse, schema: pa.Schema, metadata: bytes) -> bytes:
    """Return the stream as Arrow writes it."""
    batch = response.batch
    columns = [pa.array(response.keys[name], kind.arrow) for name, kind in batch.key_types.items()]
    arrays = _arrow(batch)
    if len(response) < len(arrays[0]):
        arrays = [array.slice(response.start, len(response)) for array in arrays]
    # by way of a struct: a fifth of the time that a batch of many columns takes of a schema
    rows = pa.RecordBatch.from_struct_array(
        pa.StructArray.from_arrays([*columns, *arrays], fields=list(schema))
    )
    described = schema.with_metadata({"paimon_features": metadata})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, described) as writer:
        writer.write_batch(rows)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _arrow(batch: ResultBatch) -> list[pa.Array]:
    """Return features, statuses and event times of the batch; each response is a slice."""
    arrays: list[pa.Array] | None = batch.rendered.get(_arrow)
    if arrays is None:
        arrays = [
            column.to_arrow(kind.arrow)
            for kind, column in zip(batch.types, batch.columns, strict=True)
        ]
        statuses = {id(codes): pa.array(codes) for codes in batch.codes}
        arrays += [statuses[id(codes)] for codes in batch.codes]
        arrays += [pa.array(times, mask=times == NEVER_MS) for times in batch.event_times.values()]
        batch.rendered[_arrow] = arrays
    return arrays


def _metadata(response: OnlineResponse) -> Mapping[str, Any]:
    return {
        "status_names": STATUS_NAMES,
        "as_of_ms": response.as_of_ms,
        "freshness": {view: asdict(of) for view, of in response.freshness.items()},
        **_about_event(response),
    }


def _about_event(response: OnlineResponse) -> Mapping[str, Any]:
    if response.own_event is None:
        return {}
    return {"entity_keys": [*response.batch.key_types], "own_event": response.own_event}


def _schema(batch: ResultBatch, full: bool) -> pa.Schema:
    """Return the columns of an Arrow reply."""
    key_types = tuple((name, kind.arrow) for name, kind in batch.key_types.items())
    names = tuple(feature_names(batch.selection, full))
    types = tuple(kind.arrow for kind in batch.types)
    return _schema_of(key_types, names, types, tuple(batch.event_times))


@functools.lru_cache(maxsize=512)
def _schema_of(
    keys: tuple[tuple[str, pa.DataType], ...],
    names: tuple[str, ...],
    types: tuple[pa.DataType, ...],
    views: tuple[str, ...],
) -> pa.Schema:
    return pa.schema(
        [
            *keys,
            *zip(names, types, strict=True),
            *((f"{name}__status", pa.int8()) for name in names),
            *((f"{view}__event_time_ms", pa.int64()) for view in views),
        ]
    )
