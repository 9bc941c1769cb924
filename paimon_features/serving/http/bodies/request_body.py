"""Decode and validate the body of a feature request; hostile input ends in this file.

JSON and MessagePack are decoded directly into one typed structure. An Arrow stream has the
entity keys and request inputs as columns, and the other fields in the schema's metadata or in the
query of the URL.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qsl

import msgspec

from paimon_features.core.errors import shortened
from paimon_features.serving.http.bodies.arrow_body import MAX_COLUMNS, read_columns
from paimon_features.serving.http.bodies.formats import Format
from paimon_features.serving.http.bodies.json_bodies import check_items, parse, repeats_no_key
from paimon_features.serving.http.bodies.strict_pack import fields_of
from paimon_features.serving.http.http_errors import RequestRejected, invalid_request

Scalar = bool | int | float | str | None

FIELDS = ("features", "feature_service", "full_feature_names", "as_of")
"""The fields that an Arrow request has in its metadata or in the query."""


class FeatureRequest(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A request for online features, Feast's fields first and then ours.

    Exactly one of ``features`` and ``feature_service`` is given. ``entities`` has a list for each
    entity key; as with Feast, it may contain request inputs, too. ``request`` has each request
    input, one value or a list. ``as_of`` is the time of the read (UTC ms), now by default.
    For a service that is read with an event, ``event`` has the columns of the event, instead of
    ``entities``, ``request`` and ``as_of``.
    """

    entities: dict[str, list[Scalar]] | msgspec.UnsetType = msgspec.UNSET
    features: list[str] | msgspec.UnsetType | None = msgspec.UNSET
    feature_service: str | msgspec.UnsetType | None = msgspec.UNSET
    full_feature_names: bool | msgspec.UnsetType = msgspec.UNSET
    include_feature_view_version_metadata: bool | msgspec.UnsetType = msgspec.UNSET
    request: dict[str, Scalar | list[Scalar]] | msgspec.UnsetType | None = msgspec.UNSET
    as_of: int | msgspec.UnsetType | None = msgspec.UNSET
    event: dict[str, Scalar | list[Scalar]] | msgspec.UnsetType = msgspec.UNSET


class ParsedRequest(msgspec.Struct, gc=False):
    """A request of any format. ``columns`` are lists, or Arrow arrays for an Arrow request."""

    columns: dict[str, Any]
    inputs: dict[str, Any]
    features: tuple[str, ...]
    service: str | None
    full_feature_names: bool
    as_of_ms: int | None
    event: Mapping[str, Any] | None = None
    ignored: tuple[str, ...] = ()
    """Fields of other versions of Feast's client, which have no meaning here."""


_JSON = msgspec.json.Decoder(FeatureRequest)
_MESSAGE_PACK = msgspec.msgpack.Decoder(FeatureRequest)
_TARGETS = (
    "entities", "features", "feature_service", "full_feature_names", "request", "as_of", "event",
)  # fmt: skip
"""What a misspelt field may mean."""
_SYNONYMS: Mapping[str, str] = {
    **dict.fromkeys(
        (
            "as_of_ms",
            "as_of_time",
            "asof",
            "at",
            "event_time",
            "event_timestamp",
            "now",
            "now_ms",
            "nowms",
            "time",
            "time_stamp",
            "timestamp",
        ),
        "as_of",
    ),
    "entity_rows": "entities",
    "inputs": "request",
    "request_data": "request",
    "service": "feature_service",
}
"""Other names for fields that would change the response."""
_COLUMNS: Mapping[str, tuple[Any, str]] = {
    "entities": (list[Scalar], "entity key"),
    "request": (Scalar | list[Scalar], "request input"),
    "event": (Scalar | list[Scalar], "event column"),
}
"""Fields that are maps: the type of their values, and what these are."""
_SIMILAR = 0.8
_MOST_IGNORED = 20
_LONGEST_FIELD = 64
_REMEMBERED_BYTES = 4_096


def decode(body: bytes | bytearray, form: Format, query: bytes) -> ParsedRequest:
    """Decode a request; only Arrow requests may have a ``query``.

    Raises
    ------
    RequestRejected
        400 for bytes that are not of the format, 422 for invalid fields.
    """
    if form is Format.ARROW:
        return _arrow(body, query)
    if query:
        raise invalid_request(
            f"query {query[:80].decode('latin-1')!r}: the fields of a JSON or MessagePack request "
            "belong in its body"
        )
    request, ignored = _json(body) if form is Format.JSON else _message_pack(body)
    if request.include_feature_view_version_metadata is True:
        raise invalid_request(
            "include_feature_view_version_metadata=true: versions of views are in GET /features "
            "and not in replies; leave the field out"
        )
    return _checked(
        ParsedRequest(
            request.entities or {},
            request.request or {},
            tuple(request.features or ()),
            request.feature_service or None,
            request.full_feature_names is True,
            None if request.as_of is msgspec.UNSET else request.as_of,
            None if request.event is msgspec.UNSET else request.event,
            ignored,
        )
    )


def _json(body: bytes | bytearray) -> tuple[FeatureRequest, tuple[str, ...]]:
    """Return the request, and the names of the fields that were ignored."""
    check_items(body)
    with suppress(msgspec.DecodeError, ValueError, RecursionError):
        request: FeatureRequest = _JSON.decode(body)
        if repeats_no_key(body, _keys_of(request)):
            return request, ()
    document = parse(body)
    accepted: dict[str, Any] = {}
    try:
        fields = msgspec.convert(document, dict[str, Any])
        ignored = _ignored(fields, "JSON")
        accepted = {name: value for name, value in fields.items() if name not in ignored}
        return msgspec.convert(accepted, FeatureRequest), ignored
    except msgspec.ValidationError as error:
        columns = ((field, accepted.get(field)) for field in _COLUMNS)
        objects = {field: column for field, column in columns if isinstance(column, dict)}
        _check_values(objects, msgspec.convert, "JSON")
        raise _invalid("JSON", error) from None


def _message_pack(body: bytes | bytearray) -> tuple[FeatureRequest, tuple[str, ...]]:
    """Return the request, and the names of the fields that were ignored."""
    format_name = "MessagePack"
    columns: dict[str, Mapping[str, Any]] = {}
    try:
        fields = fields_of(body, "the MessagePack body")
        for name in _COLUMNS:
            with suppress(msgspec.ValidationError):  # it is no map: reported below
                if name in fields:
                    columns[name] = fields_of(fields[name], f"the MessagePack body: {name!r}")
        ignored = _ignored(fields, format_name)
        if ignored:
            accepted = {name: value for name, value in fields.items() if name not in ignored}
            body = msgspec.msgpack.encode(accepted)
        try:
            return _MESSAGE_PACK.decode(body), ignored
        except msgspec.ValidationError:
            _check_values(columns, msgspec.msgpack.decode, format_name)
            raise
    except msgspec.ValidationError as error:
        raise _invalid(format_name, error) from None
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise RequestRejected(
            "malformed", f"the body is not {format_name}: {str(error)[:200]}"
        ) from None


def _ignored(fields: Iterable[str], what: str) -> tuple[str, ...]:
    """Return the fields that are not known, unless one of them may mean one that is."""
    unknown = tuple(name for name in fields if name not in FeatureRequest.__struct_fields__)
    if len(unknown) > _MOST_IGNORED:
        raise _invalid(what, f"it has {len(unknown):,} unknown fields, such as {unknown[0][:80]!r}")
    for name in unknown:
        meant = _meant(name)
        if meant is not None:
            raise _invalid(what, f"unknown field `{name}`; did you mean {meant!r}?")
    return unknown


def _meant(name: str) -> str | None:
    """Return the field that a misspelt or foreign name means, None for a name unlike any."""
    if len(name) > _LONGEST_FIELD:
        return None
    synonym = _SYNONYMS.get(name.lower())
    close = difflib.get_close_matches(name.lower(), _TARGETS, 1, _SIMILAR)
    return synonym or (close[0] if close else None)


def _check_values(
    fields: Mapping[str, Mapping[str, Any]], convert: Callable[..., Any], what: str
) -> None:
    """Raise RequestRejected for the first entity key or request input with wrong values."""
    for field, columns in fields.items():
        kind, noun = _COLUMNS[field]
        for name, values in columns.items():
            try:
                convert(values, type=kind)
            except msgspec.ValidationError as error:
                raise _invalid(what, f"{noun} {name[:80]!r}: {error}") from None


def _invalid(what: str, why: object) -> RequestRejected:
    return invalid_request(f"the {what} body: {why}")


def _keys_of(request: FeatureRequest) -> int:
    """Return the number of keys in the JSON if none is repeated."""
    unset = msgspec.UNSET
    count = (
        0
        + (request.features is not unset)
        + (request.feature_service is not unset)
        + (request.full_feature_names is not unset)
        + (request.include_feature_view_version_metadata is not unset)
        + (request.as_of is not unset)
    )
    maps = (request.entities, request.request, request.event)
    return count + sum(1 + len(columns or ()) for columns in maps if columns is not unset)


def _checked(parsed: ParsedRequest) -> ParsedRequest:
    if parsed.service is None and not parsed.features:
        raise invalid_request(
            "the request names no features; pass 'features' (a list of 'view:feature') or "
            "'feature_service' (GET /features lists them)"
        )
    if parsed.service is not None and parsed.features:
        raise invalid_request(
            f"the request has both 'features' and 'feature_service' ({shortened(parsed.service)!r})"
            "; expected one of them"
        )
    columns = len(parsed.columns) + len(parsed.inputs) + len(parsed.event or ())
    if columns > MAX_COLUMNS:
        raise RequestRejected(
            "too_large",
            f"the request has {columns:,} entity keys, request inputs and event columns; expected "
            f"at most {MAX_COLUMNS:,}",
        )
    if parsed.event is not None:
        return _checked_event(parsed)
    if not parsed.columns:
        raise invalid_request("'entities' is empty; expected a list of values for each entity key")
    return parsed


def _checked_event(parsed: ParsedRequest) -> ParsedRequest:
    others = {
        "entities": parsed.columns, "request": parsed.inputs, "as_of": parsed.as_of_ms is not None,
        "features": parsed.features,
    }  # fmt: skip
    if given := [name for name, value in others.items() if value]:
        raise invalid_request(
            f"the request has both 'event' and {given[0]!r}; an event is read by a "
            "'feature_service', and has the keys, the time and the request inputs",
        )
    return parsed


def _arrow(body: bytes | bytearray, query: bytes) -> ParsedRequest:
    columns, metadata = read_columns(body)
    given = tuple(metadata.items())
    size = len(query) + sum(len(name) + len(text) for name, text in given)
    fields = _known_fields(given, query) if size <= _REMEMBERED_BYTES else _fields(given, query)
    service = fields.get("feature_service")
    texts = fields.get("features", "")
    as_of = fields.get("as_of")
    full = fields.get("full_feature_names", "false").lower()
    if full not in ("true", "false"):
        raise invalid_request(f"full_feature_names={shortened(full)!r}; expected 'true' or 'false'")
    if as_of is not None and not re.fullmatch(r"-?[0-9]{1,18}", as_of):
        raise invalid_request(f"as_of={as_of[:40]!r}; expected UTC ms")
    return _checked(
        ParsedRequest(
            columns,
            {},
            tuple(text.strip() for text in texts.split(",")) if texts else (),
            service,
            full == "true",
            None if as_of is None else int(as_of),
        )
    )


def _fields(metadata: tuple[tuple[bytes, bytes], ...], query: bytes) -> Mapping[str, str]:
    """Return the fields of an Arrow request.

    The query takes precedence over the schema's metadata.
    """
    try:
        given = {name.decode(): text for name, text in metadata}
        fields = {name: text.decode() for name, text in given.items() if name in FIELDS}
        pairs = parse_qsl(
            query.decode(), keep_blank_values=True, strict_parsing=bool(query),
            errors="strict", max_num_fields=2_000,
        )  # fmt: skip
    except ValueError as error:
        raise RequestRejected(
            "malformed", f"the metadata or the query cannot be read: {error}"
        ) from None
    for name in ("now_ms", "as_of_ms"):
        if name in given:  # other names are the metadata of other programs
            raise invalid_request(
                f"the metadata has an unknown field {name!r}; did you mean 'as_of'?"
            )
    out: dict[str, str] = {}
    for name, text in pairs:
        if name not in FIELDS:
            raise invalid_request(
                f"the query has an unknown field {name[:80]!r}; expected: {', '.join(FIELDS)}"
            )
        if name in out and name != "features":
            raise invalid_request(f"the query has {name!r} twice")
        out[name] = f"{out[name]},{text}" if name in out else text
    return {**fields, **out}


_known_fields = functools.lru_cache(maxsize=64)(_fields)
"""The same, remembered: a client's requests have one query or one metadata again and again."""
