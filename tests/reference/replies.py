"""Reference implementation of replies: built value by value from a response's Arrow tables."""

from __future__ import annotations

import base64
import datetime as dt
import decimal
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import pyarrow as pa

from paimon_features.definitions import FeatureRef
from paimon_features.definitions.selection import Output
from paimon_features.serving.replies.response import OnlineResponse

FEAST = {
    "PRESENT": "PRESENT",
    "STALE": "PRESENT",
    "EXPIRED": "OUTSIDE_MAX_AGE",
    "MISSING": "NOT_FOUND",
    "ILL_CONDITIONED": "NULL_VALUE",
}
NAMES = list(FEAST)
UNKNOWN_TIME = "1970-01-01T00:00:00Z"


def json_document(response: OnlineResponse, full: bool = False) -> dict[str, Any]:
    """Return what ``feast_json`` writes, parsed."""
    results: list[dict[str, Any]] = [
        {
            "values": _plain(response.table.column(key), binary=False),
            "statuses": ["PRESENT"] * len(response),
            "event_timestamps": [UNKNOWN_TIME] * len(response),
        }
        for key in response.keys
    ]
    for output, name in zip(response.selection.outputs, response.features, strict=True):
        own = response.statuses.column(name).to_pylist()
        result: dict[str, Any] = {
            "values": _plain(response.table.column(name), binary=False),
            "statuses": [FEAST[status] for status in own],
            "event_timestamps": [_time(response, output, row) for row in range(len(response))],
        }
        if {"STALE", "ILL_CONDITIONED"} & set(own):
            result["detailed_statuses"] = own
        results.append(result)
    metadata = {
        "feature_names": _names(response, full),
        "as_of_ms": response.as_of_ms,
        "freshness": _freshness(response),
    }
    return {"metadata": metadata, "results": results}


def pack_document(response: OnlineResponse, full: bool = False) -> dict[str, Any]:
    """Return what ``message_pack`` writes, parsed."""
    columns = [
        _plain(response.table.column(name), binary=True)
        for name in (*response.keys, *response.features)
    ]
    statuses = [[0] * len(response) for _ in response.keys]
    for name in response.features:
        own = response.statuses.column(name).to_pylist()
        statuses.append([NAMES.index(status) for status in own])
    metadata = {
        "feature_names": _names(response, full),
        "status_names": NAMES,
        "as_of_ms": response.as_of_ms,
        "freshness": _freshness(response),
    }
    times = {view: array.to_pylist() for view, array in response.event_times.items()}
    return {"metadata": metadata, "values": columns, "statuses": statuses, "event_times_ms": times}


def _names(response: OnlineResponse, full: bool) -> list[str]:
    if not full:
        return [*response.keys, *response.features]
    return [
        *response.keys,
        *(str(output).replace(":", "__") for output in response.selection.outputs),
    ]


def _time(response: OnlineResponse, output: Output, row: int) -> str:
    refs = (output,) if isinstance(output, FeatureRef) else output.refs
    known = [response.event_times[ref.view][row].as_py() for ref in refs]
    known = [time_ms for time_ms in known if time_ms is not None]
    if not known:
        return UNKNOWN_TIME
    return _moment(dt.datetime(1970, 1, 1) + dt.timedelta(milliseconds=max(known)))


def _moment(at: dt.datetime) -> str:
    return at.isoformat(timespec="milliseconds" if at.microsecond else "seconds") + "Z"


def _freshness(response: OnlineResponse) -> Mapping[str, Mapping[str, Any]]:
    return {view: asdict(of) for view, of in response.freshness.items()}


def _plain(column: pa.ChunkedArray, *, binary: bool) -> list[Any]:
    is_map = pa.types.is_map(column.type)
    return [
        {key: _value(item, binary) for key, item in value}
        if is_map and value is not None
        else _value(value, binary)
        for value in column.to_pylist()
    ]


def _value(value: Any, binary: bool) -> Any:
    if isinstance(value, decimal.Decimal):
        return f"{value:f}"
    if isinstance(value, dt.datetime):
        return _moment(value)
    if isinstance(value, dt.date):
        return value.isoformat()
    if isinstance(value, bytes) and not binary:
        return base64.b64encode(value).decode()
    if isinstance(value, list):
        return [_value(item, binary) for item in value]
    return value
