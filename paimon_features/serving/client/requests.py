"""A request to a feature server, as a value."""

from __future__ import annotations

import datetime as dt
import decimal
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from paimon_features.core.errors import RequestError


@dataclass(frozen=True)
class ClientRequest:
    """Features of some entities: one of ``features`` and ``service``, and a list for each key.

    With an ``event``, which a service takes, there are no entities, inputs and time.
    """

    features: tuple[str, ...] | None
    service: str | None
    entities: Mapping[str, list[Any]]
    as_of_ms: int | None
    inputs: Mapping[str, Any]
    full_feature_names: bool
    event: Mapping[str, Any] | None = None

    @classmethod
    def of(
        cls,
        features_or_service: str | Sequence[str],
        entities: Mapping[str, Any] | None,
        as_of_ms: int | None,
        request: Mapping[str, Any] | None,
        full_feature_names: bool,
        event: Mapping[str, Any] | None = None,
    ) -> ClientRequest:
        """Return a request from the arguments of the clients' methods.

        Raises
        ------
        RequestError
            For columns of different lengths, or that are not sequences; for entities and an event.
        """
        if (entities is None) == (event is None):
            raise RequestError("expected either entities= or event=")
        if event is not None and not (as_of_ms is None and request is None):
            raise RequestError("an event has the time and the request inputs; leave them out")
        entities = entities or {}
        columns = {name: as_list(name, values) for name, values in entities.items()}
        lengths = {name: len(values) for name, values in columns.items()}
        if len(set(lengths.values())) > 1:
            raise RequestError(f"entity keys of different lengths: {lengths}")
        inputs = {name: as_input(values) for name, values in (request or {}).items()}
        rows = next(iter(lengths.values()), 0)
        for name, values in inputs.items():
            if isinstance(values, list) and len(values) != rows:
                raise RequestError(
                    f"request input {name!r} has {len(values)} values for {rows} entities; "
                    "expected one for all, or one for each"
                )
        is_service = isinstance(features_or_service, str) and ":" not in features_or_service
        texts = [features_or_service] if isinstance(features_or_service, str) else None
        listed = texts or list(features_or_service)
        return cls(
            None if is_service else tuple(listed),
            listed[0] if is_service else None,
            columns,
            as_of_ms,
            inputs,
            full_feature_names,
            None if event is None else {name: as_input(value) for name, value in event.items()},
        )

    @property
    def rows(self) -> int:
        """The number of entities."""
        return len(next(iter(self.entities.values()), ()))

    def take(self, rows: Sequence[int]) -> ClientRequest:
        """Return the same request for some of the entities."""
        entities = {name: [values[i] for i in rows] for name, values in self.entities.items()}
        inputs = {
            name: [values[i] for i in rows] if isinstance(values, list) else values
            for name, values in self.inputs.items()
        }
        return replace(self, entities=entities, inputs=inputs)

    def fields(self) -> dict[str, Any]:
        """Return the fields of the body except entities and inputs; defaults are left out."""
        out: dict[str, Any] = {}
        if self.features is not None:
            out["features"] = list(self.features)
        if self.service is not None:
            out["feature_service"] = self.service
        if self.full_feature_names:
            out["full_feature_names"] = True
        if self.as_of_ms is not None:
            out["as_of"] = self.as_of_ms
        return out

    def body(self) -> bytes:
        """Return the JSON of the request.

        Raises
        ------
        RequestError
            For a value that JSON has no form for: NaN, an infinity, an object.
        """
        document = {**self.fields(), "entities": self.entities}
        if self.event is not None:
            document = {**self.fields(), "event": self.event}
        if self.inputs:
            document["request"] = self.inputs
        try:
            text = json.dumps(document, default=_json, allow_nan=False, separators=(",", ":"))
        except (TypeError, ValueError) as error:
            raise RequestError(f"the entities or request inputs cannot be sent: {error}") from error
        return text.encode()


def as_list(name: str, values: Any) -> list[Any]:
    """Return a column as a list, from a sequence, NumPy, pandas, Polars or Arrow."""
    values = _in_milliseconds(values)
    for method in ("to_pylist", "tolist", "to_list"):
        if hasattr(values, method):
            items = getattr(values, method)()
            break
    else:
        single = isinstance(values, str | bytes | Mapping) or not hasattr(values, "__iter__")
        items = values if single else list(values)
    if not isinstance(items, list):
        raise RequestError(
            f"entity key {name!r}: got the single value {values!r}, expected a list of values"
        )
    return items


def as_input(values: Any) -> Any:
    """Return a request input: one value for all entities, or a list with one for each."""
    if hasattr(values, "as_py"):  # an Arrow scalar
        import pyarrow as pa

        from paimon_features.core.types.foreign_types import is_plain

        _plain(pa.nulls(0, values.type))
        if not is_plain(values.type):
            return values.as_py()
        return as_list("", pa.array([values], values.type))[0]
    if isinstance(values, str | bytes) or not hasattr(values, "__iter__"):
        values = _in_milliseconds(values)
        return values.item() if hasattr(values, "item") else values
    return as_list("", values)


def _in_milliseconds(values: Any) -> Any:
    """Return NumPy's and Arrow's times in milliseconds, rounded down; other values unchanged.

    Finer ticks have no Python type: NumPy would list nanoseconds as integers, which are
    milliseconds to the server.
    """
    if type(values).__module__ == "numpy":
        if values.dtype.kind == "m":
            raise RequestError(f"{values!r}: got a duration, expected times")
        if values.dtype.kind == "M":
            return values.astype("datetime64[ms]")
    if type(values).__module__.startswith("pyarrow") and hasattr(values, "type"):
        import pyarrow as pa

        from paimon_features.core.times.utc_ms import floor_times

        values = _plain(values)
        if pa.types.is_timestamp(values.type):
            chunks = values.chunks if isinstance(values, pa.ChunkedArray) else [values]
            return pa.chunked_array(list(map(floor_times, chunks)), pa.timestamp("ms"))
    return values


def _plain(values: Any) -> Any:
    """Return Arrow values in a plain type; RequestError if their meaning would change."""
    import pyarrow as pa

    from paimon_features.core.times.utc_ms import is_time
    from paimon_features.core.types.foreign_types import plain_array, plain_column

    try:
        chunked = isinstance(values, pa.ChunkedArray)
        values = plain_column(values) if chunked else plain_array(values)
    except pa.ArrowException as error:
        raise RequestError(str(error)) from error
    if pa.types.is_temporal(values.type) and not is_time(values.type):
        raise RequestError(f"got values of type {values.type}, expected times")
    return values


def _json(value: Any) -> Any:
    if isinstance(value, dt.datetime):
        if value != value:  # NaT of pandas
            return None
        if value.tzinfo is not None:
            value = value.astimezone(dt.UTC).replace(tzinfo=None)
        return value.isoformat(timespec="milliseconds") + "Z"
    if isinstance(value, dt.date):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return str(value)
    if hasattr(value, "item"):  # a NumPy scalar, which can be an item of a list
        if getattr(value, "dtype", None) == "datetime64[D]" and isinstance(value.item(), dt.date):
            return value.item()
        value = _in_milliseconds(value)
        return value.tolist() if getattr(value, "shape", ()) else value.item()
    raise TypeError(f"{value!r} is a {type(value).__name__}")
