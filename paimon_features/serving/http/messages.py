"""One request and its reply: headers that count, the body within its limit, the answer sent."""

from __future__ import annotations

import asyncio
import itertools
import re
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

from paimon_features.serving.http.http_errors import Headers, RequestRejected

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

BODY_TIMEOUT_S = 10.0
"""A body that came in parts has to be complete by then."""

_SANE_ID = re.compile(rb"[A-Za-z0-9._:/+=-]{1,128}")
_TRACE = re.compile(rb"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(?:-.*)?")
_numbers = itertools.count(1)
_worker = secrets.token_hex(6)


class ClientGoneError(Exception):
    """The client has closed the connection before its request was complete."""


@dataclass(slots=True)
class Reply:
    """What is sent back, and what the log says of it besides."""

    status: int
    media_type: bytes
    body: bytes
    headers: Headers = ()
    rows: int = 0
    features: int = 0
    code: str | None = None


class Request:
    """The head of a request. Attributes are header values, ``b""`` where there is none."""

    __slots__ = (
        "accept", "authorization", "client", "content_encoding", "content_length", "content_type",
        "method", "path", "query", "request_id", "route", "traceparent",
    )  # fmt: skip

    def __init__(self, scope: Scope) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.query: bytes = scope.get("query_string", b"")
        self.route = "other"
        self.accept = self.authorization = self.content_type = self.content_encoding = b""
        self.content_length = self.traceparent = request_id = b""
        self.client = ""
        for name, value in scope["headers"]:
            if name == b"content-type":
                self.content_type = value
            elif name == b"content-length":
                self.content_length = value
            elif name == b"accept":
                # a header that comes twice is a list in two parts
                self.accept = self.accept + b"," + value if self.accept else value
            elif name == b"authorization":
                self.authorization = value
            elif name == b"x-request-id":
                request_id = value
            elif name == b"traceparent":
                self.traceparent = value
            elif name == b"content-encoding":
                self.content_encoding = value
        if request_id and _SANE_ID.fullmatch(request_id):
            self.request_id = request_id.decode()
        else:
            self.request_id = f"{_worker}-{next(_numbers)}"

    def trace(self) -> tuple[str, str] | None:
        """The trace and the span that the request belongs to (W3C ``traceparent``), if it says."""
        found = _TRACE.fullmatch(self.traceparent) if self.traceparent else None
        return (found[1].decode(), found[2].decode()) if found else None


async def read_body(request: Request, receive: Receive, limit: int) -> bytes:
    """The whole body.

    Raises
    ------
    RequestRejected
        413 for a body over the limit, before it is read where its length is told; 408 for one
        that does not come; 415 for one that is packed.
    ClientGoneError
        If the connection ends within it.
    """
    if request.content_encoding and request.content_encoding.lower() != b"identity":
        raise RequestRejected(
            415,
            "unsupported_media_type",
            f"content-encoding {request.content_encoding.decode('latin-1')!r}; send the body as "
            "it is (the compact formats are small without)",
            _CLOSE,
        )
    if request.content_length:
        # digits only, and one length: the HTTP parser has seen to that
        try:
            told = int(request.content_length)
        except ValueError:
            raise RequestRejected(400, "malformed", "content-length is no number", _CLOSE) from None
        if told > limit:
            raise _too_large(told, limit)
    message = await receive()
    if not message.get("more_body", False) and message["type"] == "http.request":
        body: bytes = message["body"]
        if len(body) > limit:
            raise _too_large(len(body), limit)
        return body
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            return await _rest(message, receive, limit)
    except TimeoutError:
        raise RequestRejected(
            408, "too_slow", f"the body was not complete within {BODY_TIMEOUT_S:g} s", _CLOSE
        ) from None


async def _rest(message: MutableMapping[str, Any], receive: Receive, limit: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > limit:
            raise _too_large(size, limit)
        if not message.get("more_body", False):
            return b"".join(parts)
        message = await receive()


async def send_reply(request: Request, reply: Reply, send: Send) -> None:
    """Send the reply with its request's id."""
    await send(
        {
            "type": "http.response.start",
            "status": reply.status,
            "headers": [
                (b"content-type", reply.media_type),
                (b"content-length", b"%d" % len(reply.body)),
                (b"x-request-id", request.request_id.encode()),
                *reply.headers,
            ],
        }
    )
    body = b"" if request.method == "HEAD" else reply.body
    await send({"type": "http.response.body", "body": body})


_CLOSE: Headers = ((b"connection", b"close"),)


def _too_large(size: int, limit: int) -> RequestRejected:
    return RequestRejected(
        413,
        "too_large",
        f"the body has {size:,} bytes or more, at most {limit:,} are read; ask in parts "
        "([serve] max_body_bytes)",
        _CLOSE,
    )
