"""One HTTP request and its reply: parse headers, read the body within its limit, send the reply."""

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
"""A body that arrives in parts has to be complete within this time."""

_SANE_ID = re.compile(rb"[A-Za-z0-9._:/+=-]{1,128}")
_TRACE = re.compile(rb"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(?:-.*)?")
_numbers = itertools.count(1)
_worker = secrets.token_hex(6)


class ClientGoneError(Exception):
    """The client closed the connection before its request was complete."""


@dataclass(slots=True)
class Reply:
    """A reply, and the numbers of entities and features for the access log."""

    status: int
    media_type: bytes
    body: bytes
    headers: Headers = ()
    rows: int = 0
    features: int = 0
    code: str | None = None


class Request:
    """The head of a request. Attributes are header values, ``b""`` for a missing header."""

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
                # a repeated header is one list in two parts
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
        """Trace id and span id of the request (W3C ``traceparent``), if it has them."""
        found = _TRACE.fullmatch(self.traceparent) if self.traceparent else None
        return (found[1].decode(), found[2].decode()) if found else None


Handler = Callable[[Request, Receive], Awaitable[Reply]]
"""Serves the requests of one path."""


async def read_body(request: Request, receive: Receive, limit: int) -> bytes:
    """The complete body.

    Raises
    ------
    RequestRejected
        413 for a body over the limit, before it is read if its length is declared; 408 for one
        that is not complete in time; 415 for one that is compressed.
    ClientGoneError
        If the connection ends before the body does.
    """
    if request.content_encoding and request.content_encoding.lower() != b"identity":
        raise RequestRejected(
            415,
            "unsupported_media_type",
            f"content-encoding {request.content_encoding.decode('latin-1')!r}; send the body "
            "uncompressed (the compact formats are small anyway)",
            _CLOSE,
        )
    if request.content_length:
        # digits only, and only one length: the HTTP parser has checked that
        try:
            declared = int(request.content_length)
        except ValueError:
            detail = "content-length is not a number"
            raise RequestRejected(400, "malformed", detail, _CLOSE) from None
        if declared > limit:
            raise _too_large(declared, limit)
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
    """Send the reply, with the request's id in a header."""
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
        f"the body has {size:,} bytes or more, at most {limit:,} are accepted; split the request "
        "([serve] max_body_bytes)",
        _CLOSE,
    )
