"""One HTTP request and its reply: parse headers, read the body within its limit, send the reply."""

from __future__ import annotations

import asyncio
import itertools
import re
import secrets
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

from paimon_features.serving.http.buffered_bytes import BufferedBytes
from paimon_features.serving.http.http_errors import CLOSE, Headers, RequestRejected

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

BODY_COMPLETE: dict[str, dict[object, object]] = {"paimon_features.body_complete": {}}
"""The ASGI extension of a request whose body has arrived: reading it needs no deadline."""

_SANE_ID = re.compile(rb"[A-Za-z0-9._:/+=-]{1,128}")
_TRACE = re.compile(rb"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(?:-.*)?")
_numbers = itertools.count(1)
_worker = secrets.token_hex(6)


class ClientGoneError(Exception):
    """The client closed the connection before its request was complete."""


def new_request_id() -> str:
    """An id that no other request has."""
    return f"{_worker}-{next(_numbers)}"


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
        "headers", "hosts", "http_version", "is_complete", "method", "path", "query", "request_id",
        "route", "traceparent",
    )  # fmt: skip

    def __init__(self, scope: Scope) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.query: bytes = scope.get("query_string", b"")
        self.http_version: str = scope.get("http_version", "")
        self.hosts: tuple[bytes, ...] = ()
        self.is_complete = scope.get("extensions") is BODY_COMPLETE
        self.route = "other"
        self.accept = self.authorization = self.content_type = self.content_encoding = b""
        self.content_length = self.traceparent = request_id = b""
        self.client = ""
        self.headers: Sequence[tuple[bytes, bytes]] = scope["headers"]
        accepted: list[bytes] = []
        for name, value in self.headers:
            if name == b"host":
                if len(self.hosts) < 2:  # more than one is an error, however many there are
                    self.hosts = (*self.hosts, value)
            elif name == b"content-type":
                self.content_type = value
            elif name == b"content-length":
                self.content_length = value
            elif name == b"accept":
                accepted.append(value)
            elif name == b"authorization":
                self.authorization = value
            elif name == b"x-request-id":
                request_id = value
            elif name == b"traceparent":
                self.traceparent = value
            elif name == b"content-encoding":
                self.content_encoding = value
        self.accept = b",".join(accepted)  # a repeated header is one list in parts
        if request_id and _SANE_ID.fullmatch(request_id):
            self.request_id = request_id.decode()
        else:
            self.request_id = new_request_id()

    def header(self, name: bytes) -> bytes:
        """The value of a header that has no attribute, ``b""`` for a missing one."""
        return next((value for known, value in self.headers if known == name), b"")

    def trace(self) -> tuple[str, str] | None:
        """Trace id and span id of the request (W3C ``traceparent``), if it has them."""
        found = _TRACE.fullmatch(self.traceparent) if self.traceparent else None
        return (found[1].decode(), found[2].decode()) if found else None


Handler = Callable[[Request, Receive], Awaitable[Reply]]
"""Serves the requests of one path."""


async def read_body(
    request: Request, receive: Receive, limit: int, buffers: BufferedBytes, timeout_s: float
) -> bytes | bytearray:
    """The complete body; its bytes are counted in ``buffers``, to be freed by the caller.

    Raises
    ------
    RequestRejected
        413 for a body over the limit, before it is read if its length is declared; 503 for one
        that does not fit into ``buffers``; 408 for one that is not complete in time; 415 for one
        that is compressed.
    ClientGoneError
        If the connection ends before the body does.
    """
    if request.content_encoding and request.content_encoding.lower() != b"identity":
        raise RequestRejected(
            415,
            "unsupported_media_type",
            f"content-encoding {request.content_encoding[:200].decode('latin-1')!r}; send the body "
            "uncompressed (the compact formats are small anyway)",
            CLOSE,
        )
    if request.content_length:
        # digits only, and only one length: the HTTP parser has checked that
        try:
            declared = int(request.content_length)
        except ValueError:
            detail = "content-length is not a number"
            raise RequestRejected(400, "malformed", detail, CLOSE) from None
        if declared > limit:
            raise _too_large(declared, limit)
        buffers.check(declared, declared)
    if request.is_complete:
        return await _parts(receive, limit, buffers)
    try:
        async with asyncio.timeout(timeout_s):
            return await _parts(receive, limit, buffers)
    except TimeoutError:
        raise RequestRejected(
            408,
            "too_slow",
            f"the body was not complete within {timeout_s:g} s ([serve] body_timeout)",
            CLOSE,
            "body_timeout",
        ) from None


async def _parts(receive: Receive, limit: int, buffers: BufferedBytes) -> bytes | bytearray:
    message = await receive()
    body: bytes = message.get("body", b"")
    if not message.get("more_body", False) and message["type"] == "http.request":
        if len(body) > limit:
            raise _too_large(len(body), limit)
        buffers.take(len(body), len(body))
        return body
    # what has arrived is counted, not what is declared: a declaration costs a client nothing
    parts = bytearray()
    try:
        while True:
            if message["type"] == "http.disconnect":
                raise ClientGoneError
            part: bytes = message.get("body", b"")
            if len(parts) + len(part) > limit:
                raise _too_large(len(parts) + len(part), limit)
            buffers.take(len(part), len(parts) + len(part))
            parts += part
            if not message.get("more_body", False):
                return parts
            message = await receive()
    except BaseException:
        buffers.free(len(parts))
        raise


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


def _too_large(size: int, limit: int) -> RequestRejected:
    return RequestRejected(
        413,
        "too_large",
        f"the body has {size:,} bytes or more, at most {limit:,} are accepted; split the request "
        "([serve] max_body_bytes)",
        CLOSE,
    )
