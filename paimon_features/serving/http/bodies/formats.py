"""Media types of requests and replies, and content negotiation."""

from __future__ import annotations

import enum
import functools

from paimon_features.core._arrow import has_arrow
from paimon_features.serving.http.http_errors import RequestRejected


class Format(enum.Enum):
    """The format of a request or a reply; the value is its media type."""

    # Enum's own hash is written in Python, and each request hashes its formats three times
    __hash__ = object.__hash__

    JSON = "application/json"
    MESSAGE_PACK = "application/msgpack"
    ARROW = "application/vnd.apache.arrow.stream"


MEDIA_TYPES = {format_: format_.value.encode() for format_ in Format}
_KNOWN = {
    **{format_.value.encode(): format_ for format_ in Format},
    b"application/x-msgpack": Format.MESSAGE_PACK,
    b"application/vnd.msgpack": Format.MESSAGE_PACK,
    # what curl -d sends with any body
    b"application/x-www-form-urlencoded": Format.JSON,
}
_CHARSETS = (b"utf-8", b"utf8", b"us-ascii")


@functools.lru_cache(maxsize=256)
def format_of_body(content_type: bytes) -> Format:
    """Return the format of a request's body; without a type it is JSON, as Feast's clients send it.

    Raises
    ------
    RequestRejected
        415 for an unsupported type.
    """
    media, _, parameters = content_type.partition(b";")
    media = media.strip().lower()
    body_format = _KNOWN.get(media) if media else Format.JSON
    name, _, charset = parameters.strip().lower().partition(b"=")
    wrong_charset = name == b"charset" and charset.strip(b'" ') not in _CHARSETS
    if body_format is Format.ARROW and not has_arrow():
        body_format = None
    if body_format is None or (body_format is Format.JSON and wrong_charset):
        raise RequestRejected(
            "unsupported_media_type",
            f"content-type {content_type[:80].decode('latin-1')!r}; expected {_names()} (UTF-8)",
        )
    return body_format


@functools.lru_cache(maxsize=256)
def format_of_reply(accept: bytes, body: Format) -> Format:
    """Return the format that the ``Accept`` header prefers; by default that of the request.

    >>> format_of_reply(b"application/json;q=0.5, application/msgpack", Format.JSON)
    <Format.MESSAGE_PACK: 'application/msgpack'>

    Raises
    ------
    RequestRejected
        406 if it accepts none of our formats.
    """
    if not accept.strip():
        return body
    wanted: list[tuple[float, int, Format]] = []
    refused: set[Format] = set()
    for place, part in enumerate(accept.split(b",")):
        media, *parameters = (piece.strip().lower() for piece in part.split(b";"))
        weight = _weight(parameters)
        if media in (b"*/*", b"application/*"):
            reply_format: Format | None = body
        else:
            reply_format = _KNOWN.get(media)
            if reply_format is not None and not weight:
                refused.add(reply_format)
        if reply_format is Format.ARROW and not has_arrow():
            continue
        if reply_format is not None and weight:
            wanted.append((-weight, place, reply_format))
    for _, _, reply_format in sorted(wanted, key=lambda one: one[:2]):
        if reply_format not in refused:
            return reply_format
    raise RequestRejected(
        "not_acceptable", f"accept {accept[:80].decode('latin-1')!r}; this server writes {_names()}"
    )


def _weight(parameters: list[bytes]) -> float:
    for parameter in parameters:
        name, _, value = parameter.partition(b"=")
        if name.strip() == b"q":
            try:
                return min(max(float(value), 0.0), 1.0)
            except ValueError:
                return 0.0
    return 1.0


def _names() -> str:
    if has_arrow():
        return ", ".join(format_.value for format_ in Format)
    return (
        f"{Format.JSON.value}, {Format.MESSAGE_PACK.value} ({Format.ARROW.value} needs pyarrow on "
        "the server: pip install 'paimon-features[arrow]')"
    )
