"""One HTTP request and its reply: headers parsed, the body read within its limit, bytes written."""

from __future__ import annotations

import asyncio
import functools
import itertools
import re
import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import NamedTuple, Protocol, TypeVar

import msgspec

from paimon_features.core.process.traces import PartSpan
from paimon_features.serving.http.bodies.buffered_bytes import BufferedBytes
from paimon_features.serving.http.http_errors import CLOSE, Headers, RequestRejected

T = TypeVar("T")

_SANE_ID = re.compile(rb"[A-Za-z0-9._:/+=-]{1,128}")
_TRACE = re.compile(rb"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(?:-.*)?")
_NAME = re.compile(rb"[a-z0-9-]+")
_NO_VALUE = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_numbers = itertools.count(1)
_worker = secrets.token_hex(6)
_NO_LINES = (b"", False)
_STATUS_LINES = {499: b"HTTP/1.1 499 \r\n"} | {
    status.value: b"HTTP/1.1 %d %b\r\n" % (status.value, status.phrase.encode())
    for status in HTTPStatus
}


class ClientGoneError(Exception):
    """The client closed the connection before its request was complete."""


def new_request_id() -> str:
    """Return an id that no other request has."""
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


def json_reply(document: object, status: int = 200) -> Reply:
    """Return a reply with a JSON document."""
    return Reply(status, b"application/json", msgspec.json.encode(document))


class BodyPart(NamedTuple):
    """Bytes of a body, and whether more of it follows."""

    data: bytes
    more: bool


Receive = Callable[[], Awaitable[BodyPart | None]]
"""Waits for the next bytes of a request's body; None if the client is gone."""


class Request:
    """The head of a request. Attributes are header values, ``b""`` for a missing header.

    ``parts`` are the parts of its trace, if it is traced. ``headers`` are names in lower case with
    their values.
    """

    __slots__ = (
        "accept", "authorization", "client", "content_encoding", "content_length", "content_type",
        "fetch_site", "headers", "hosts", "http_version", "method", "origin", "parts", "path",
        "query", "request_id", "route", "traceparent",
    )  # fmt: skip

    def __init__(
        self,
        method: str,
        path: str,
        query: bytes,
        http_version: str,
        headers: Sequence[tuple[bytes, bytes]],
    ) -> None:
        self.method = method
        self.path = path
        self.query = query
        self.http_version = http_version
        self.route = "other"
        self.client = ""
        self.parts: tuple[PartSpan, ...] = ()
        self.headers = headers
        by_name = dict(headers)
        if len(by_name) == len(headers):
            host = by_name.get(b"host")
            self.hosts: tuple[bytes, ...] = () if host is None else (host,)
            self.accept = by_name.get(b"accept", b"")
        else:
            # of those that occur more than once the last one counts, but for these two
            hosts = [value for name, value in headers if name == b"host"]
            self.hosts = tuple(hosts[:2])  # more than one is an error, however many there are
            # a repeated header is one list in parts
            self.accept = b",".join([value for name, value in headers if name == b"accept"])
        get = by_name.get
        self.authorization = get(b"authorization", b"")
        self.content_type = get(b"content-type", b"")
        self.content_length = get(b"content-length", b"")
        self.content_encoding = get(b"content-encoding", b"")
        self.traceparent = get(b"traceparent", b"")
        self.origin = get(b"origin", b"")
        self.fetch_site = get(b"sec-fetch-site", b"")
        request_id = get(b"x-request-id")
        if request_id and _SANE_ID.fullmatch(request_id):
            self.request_id = request_id.decode()
        else:
            self.request_id = f"{_worker}-{next(_numbers)}"

    def again(self) -> Request:
        """Return a request with the same head, which is another one with an id of its own.

        Only of a head without ``x-request-id``.
        """
        new = Request.__new__(Request)
        new.method, new.path, new.query = self.method, self.path, self.query
        new.http_version, new.headers, new.hosts = self.http_version, self.headers, self.hosts
        new.accept, new.authorization = self.accept, self.authorization
        new.content_type, new.content_length = self.content_type, self.content_length
        new.content_encoding, new.traceparent = self.content_encoding, self.traceparent
        new.origin, new.fetch_site = self.origin, self.fetch_site
        new.route, new.client, new.parts = "other", "", ()
        new.request_id = f"{_worker}-{next(_numbers)}"
        return new

    def header(self, name: bytes) -> bytes:
        """Return the value of a header that has no attribute, ``b""`` for a missing one."""
        return next((value for header_name, value in self.headers if header_name == name), b"")

    def trace(self) -> tuple[str, str] | None:
        """Return trace id and span id of the request (W3C ``traceparent``), if it has them."""
        match = _TRACE.fullmatch(self.traceparent) if self.traceparent else None
        return (match[1].decode(), match[2].decode()) if match else None


Handler = Callable[[Request, Receive], Awaitable[Reply]]
"""Serves the requests of one path."""


class Exchange(Protocol):
    """A request that is to be answered, and the connection to its client.

    ``body`` is the complete body, None where it has not arrived yet: ``receive`` waits for it.
    """

    @property
    def request(self) -> Request:
        """The head of the request."""

    @property
    def body(self) -> bytes | bytearray | None:
        """The complete body, None as long as more of it is to come."""

    async def receive(self) -> BodyPart | None:
        """Return the next bytes of the body; None if the client is gone."""

    @property
    def is_gone(self) -> bool:
        """Whether the client is known to be gone: nobody will read the reply."""

    def respond(self, reply: Reply) -> None:
        """Send the reply, once; 499 sends nothing, since nobody is there."""


class PendingWork(Protocol):
    """Work whose result a request waits for."""

    def give_up(self) -> None:
        """Stop the work: its result is no longer needed."""


Finish = Callable[[Reply | Exception], None]
"""Gets the reply to a request, or why there is none; called once."""


async def answer_of(begin: Callable[[Callable[[T | Exception], None]], PendingWork]) -> T:
    """Wait for the result of work that ``begin`` starts; give it up if the wait is cancelled."""
    answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def finish(result: T | Exception) -> None:
        if not answer.done():
            if isinstance(result, Exception):
                answer.set_exception(result)
            else:
                answer.set_result(result)

    pending = begin(finish)
    try:
        return await answer
    finally:
        pending.give_up()


def check_body(request: Request, limit: int, buffers: BufferedBytes) -> None:
    """Raise RequestRejected for a body that need not be read.

    413 for a declared length over ``limit``, 503 for one that does not fit into ``buffers``, 415
    for a body that is compressed.
    """
    if request.content_encoding and request.content_encoding.lower() != b"identity":
        raise RequestRejected(
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
            raise RequestRejected("malformed", detail, CLOSE) from None
        if declared > limit:
            raise _too_large(declared, limit)
        buffers.check(declared, declared)


def take_body(body: bytes | bytearray, limit: int, buffers: BufferedBytes) -> None:
    """Count a body that is complete; RequestRejected as ``read_body`` does."""
    if len(body) > limit:
        raise _too_large(len(body), limit)
    buffers.take(len(body), len(body))


async def read_body(
    request: Request, receive: Receive, limit: int, buffers: BufferedBytes, timeout_s: float
) -> bytes | bytearray:
    """Return the complete body; its bytes are counted in ``buffers``, to be freed by the caller.

    Raises
    ------
    RequestRejected
        413 for a body over the limit, before it is read if its length is declared; 503 for one
        that does not fit into ``buffers``; 408 for one that is not complete in time; 415 for one
        that is compressed.
    ClientGoneError
        If the connection ends before the body does.
    """
    check_body(request, limit, buffers)
    try:
        async with asyncio.timeout(timeout_s):
            return await _parts(receive, limit, buffers)
    except TimeoutError:
        raise RequestRejected(
            "too_slow",
            f"the body was not complete within {timeout_s:g} s ([serve] body_timeout)",
            CLOSE,
            "body_timeout",
        ) from None


async def _parts(receive: Receive, limit: int, buffers: BufferedBytes) -> bytearray:
    # what has arrived is counted, not what is declared: a declaration costs a client nothing
    parts = bytearray()
    try:
        while True:
            message = await receive()
            if message is None:
                raise ClientGoneError
            part, more = message
            if len(parts) + len(part) > limit:
                raise _too_large(len(parts) + len(part), limit)
            buffers.take(len(part), len(parts) + len(part))
            parts += part
            if not more:
                return parts
    except BaseException:
        buffers.free(len(parts))
        raise


def reply_bytes(
    request: Request, reply: Reply, date_line: bytes, *, closes: bool
) -> tuple[bytes, bool]:
    """Return the reply as it is sent, with the request's id in a header, and whether it is the last
    one.

    It is if the connection ``closes``, or by the reply's own headers. ``date_line`` is the header
    line ``date``, with its end.
    """
    lines, says_so = _header_lines(reply.headers) if reply.headers else _NO_LINES
    if closes and not says_so:
        lines += b"connection: close\r\n"
    body = reply.body
    return b"%b%bcontent-type: %b\r\ncontent-length: %d\r\nx-request-id: %b\r\n%b\r\n%b" % (
        _STATUS_LINES[reply.status],
        date_line,
        reply.media_type,
        len(body),
        request.request_id.encode(),
        lines,
        body if request.method != "HEAD" else b"",
    ), closes or says_so


@functools.lru_cache(maxsize=1_024)
def _header_lines(headers: Headers) -> tuple[bytes, bool]:
    """Return the lines of these headers, and whether one of them says that the connection ends."""
    for name, value in headers:
        # nothing of a client's or of the definitions' may become a header of its own
        if not _NAME.fullmatch(name) or _NO_VALUE.search(value):
            raise ValueError(f"not a header: {name!r}: {value[:200]!r}")
    lines = b"".join(b"%b: %b\r\n" % header for header in headers)
    return lines, (b"connection", b"close") in headers


def _too_large(size: int, limit: int) -> RequestRejected:
    return RequestRejected(
        "too_large",
        f"the body has {size:,} bytes or more, at most {limit:,} are accepted; split the request "
        "([serve] max_body_bytes)",
        CLOSE,
    )
