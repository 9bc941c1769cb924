"""HTTP/1 over one connection, on httptools' parser: requests are read within bounds, and answered.

The head has a bounded size and time, an idle connection and a reply that nobody reads have
deadlines, and what arrives while a request is answered stays as it came, unparsed. A request whose
body has arrived with it is passed on in the same step, without a task or a thread between the
socket and the application.
"""

from __future__ import annotations

import asyncio
import functools
from collections import deque
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Protocol
from urllib.parse import unquote

import httptools

from paimon_features.serving.http.http_errors import MEDIA_TYPE, RequestRejected, overloaded
from paimon_features.serving.http.messages import (
    BodyPart,
    Exchange,
    Reply,
    Request,
    new_request_id,
    reply_bytes,
)
from paimon_features.serving.http.server.connections import (
    LINGER_S,
    SLOWEST_BYTES_PER_S,
    Connections,
)

MAX_HEAD_BYTES = 32_768
_PART_BYTES = 16_384
"""So much of a body is parsed at a time."""
_HEAD_PART_BYTES = 1_024
"""So much is parsed at a time outside a body, where it may be dozens of requests: a short one costs
a hundred times its bytes once parsed, and those behind the first wait for it."""
QUEUED_BYTES = 2_048
"""What a parsed request without a body takes while it waits for the reply before its own."""
_BODY_BYTES = 65_536
"""A body is not read further while so much of it waits to be taken."""
_INVALID = b"Invalid HTTP request received."
_METHODS = {name.encode(): name for name in ("GET", "HEAD", "OPTIONS", "POST")}
_SHORT_URL = 64
_MOST_KNOWN = 512
_NOT_KNOWN = (b"expect", b"traceparent", b"transfer-encoding", b"upgrade", b"x-request-id")
"""A head with one of these is parsed: it says how to read on, or no other request has it."""
_known_heads: dict[bytes, Request] = {}
"""Requests by the bytes of their heads: what they say depends on nothing else."""


def _target(url: bytes) -> tuple[str, bytes]:
    """Return the path and the query of a request; ValueError if it is not valid."""
    parsed = httptools.parse_url(url)
    path = parsed.path.decode("ascii")
    return unquote(path) if "%" in path else path, parsed.query or b""


_short_target = functools.lru_cache(maxsize=256)(_target)


class Application(Protocol):
    """Answers requests."""

    def start(self, exchange: Exchange) -> None:
        """Begin to answer a request: ``exchange.respond`` is called now or later. Never raises."""


class HttpProtocol(asyncio.Protocol):
    """One connection of a worker.

    ``date_line`` returns the current header line ``date``. ``tracked`` has the connection from its
    beginning until nothing of it is left.
    """

    def __init__(
        self,
        app: Application,
        connections: Connections,
        date_line: Callable[[], bytes],
        tracked: set[HttpProtocol],
    ) -> None:
        self.held = 0
        self.pipeline: deque[_Exchange] = deque()
        """Requests behind the one that is being answered."""
        self._app = app
        self._connections = connections
        self._date_line = date_line
        self._tracked = tracked
        self._loop = asyncio.get_running_loop()
        self._parser = self._new_parser()
        self._transport: asyncio.Transport
        self._current: _Exchange | None = None
        self._next: _Exchange | None = None
        """The first one that is parsed while none is answered."""
        self._starting = False
        self._resuming = False
        self._ends = False
        """Nothing is read any more; the connection ends when all that was read is answered."""
        self._invalid = False
        # what is being parsed
        self._incoming: _Exchange | None = None
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._head_bytes = 0
        self._in_head = False
        self._head_is_timed = False
        self._in_body = False
        self._plain_head = b""
        """A head that was to change the protocol, without the header that says so."""
        self._unread = b""
        self._unread_at = 0
        # how the connection is doing
        self._deadline_s = 0.0
        """Of the head, or of idleness."""
        self._read_by_s: float | None = None
        """Until then the client must have read its reply."""
        self._lingers_until_s: float | None = None
        self.has_ended = False
        """Whether nothing more is written; the transport may still be closing."""
        self._body_waits = False
        self._read_paused = self._write_paused = False

    # -- the connection --------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # uvloop's is of no such class
        self._tracked.add(self)
        now_s = self._loop.time()
        self._deadline_s = now_s + self._connections.idle_timeout_s
        if not self._connections.admit(self, now_s):
            self._reject(overloaded("this worker has too many connections", "connections"))
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.has_ended = True
        self._tracked.discard(self)
        self._connections.forget(self)
        self._drop_waiting()
        for exchange in (self._current, self._incoming):
            if exchange is not None:
                exchange.disconnect()
        # the parser has the methods of this object, and this object the parser
        self._current = self._next = self._incoming = self._parser = None

    def eof_received(self) -> bool:
        """Return a client that only ends its own side still gets what it has requested."""
        complete = self._current is not None and self._current.body is not None
        if not complete or self._in_head or self._in_body or self._unread_at < len(self._unread):
            return False
        self._ends = True
        return True

    def shut_down(self) -> None:
        """End the connection, once all requests that were read are answered."""
        self._ends = True
        if not self.is_busy:
            self._close()

    def overdue(self, now_s: float) -> str | None:
        """End the connection if its time is over; returns why, None if it continues."""
        if self._read_by_s is not None and now_s >= self._read_by_s:
            self.abort()
            return "reply"
        if self._is_closing:
            if self._read_by_s is None:
                self._read_by_s = now_s + self._connections.reply_timeout_s
            if self._lingers_until_s is not None and now_s >= self._lingers_until_s:
                self._transport.close()
            return None
        if now_s < self._deadline_s or self.is_busy or self._write_paused:
            return None
        if not self._in_head:
            self._transport.close()
            return "idle"
        self._reject(
            RequestRejected(
                "too_slow",
                "the head of the request was not complete within "
                f"{self._connections.head_timeout_s:g} s ([serve] head_timeout)",
            )
        )
        self._close()
        return "head"

    @property
    def is_busy(self) -> bool:
        """Whether a request is being read or answered, or waits for that."""
        return self._current is not None or self._next is not None or bool(self.pipeline)

    @property
    def _is_closing(self) -> bool:
        return self.has_ended or self._transport.is_closing()

    @property
    def is_sending(self) -> bool:
        """Whether the client has more to send of what it has begun."""
        return self._in_head or self._in_body or self._unread_at < len(self._unread)

    def abort(self) -> None:
        """End the connection at once; what the client has not read is lost."""
        self.has_ended = True
        self._connections.forget(self)
        self._drop_waiting()
        self._transport.abort()

    def _close(self) -> None:
        """End the connection when everything is written.

        A client that is still sending finishes before: if the connection ended at once, the kernel
        would discard the reply.
        """
        if self._is_closing:
            return
        self.has_ended = True
        if not self.is_sending:
            self._transport.close()
            return
        self._lingers_until_s = self._loop.time() + LINGER_S
        self._unread, self._unread_at = b"", 0
        self._transport.write_eof()
        self._resume_reading()

    def _pause_reading(self) -> None:
        if not self._read_paused:
            self._read_paused = True
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        if self._read_paused:
            self._read_paused = False
            self._transport.resume_reading()

    def _drop_waiting(self) -> None:
        """Free what nobody will answer: bytes that are not parsed, and requests in the queue."""
        self._unread, self._unread_at = b"", 0
        self._next = None
        self.pipeline.clear()
        self._connections.hold(self, 0, 0.0)

    def _reject(self, rejection: RequestRejected) -> None:
        """Write a reply to what is not a request yet."""
        body = rejection.document(new_request_id())
        self._write_last(rejection.status, MEDIA_TYPE, rejection.headers, body)

    def _write_last(
        self, status: int, media_type: bytes, headers: tuple[tuple[bytes, bytes], ...], body: bytes
    ) -> None:
        lines = b"".join(b"%b: %b\r\n" % header for header in headers)
        self._transport.write(
            b"HTTP/1.1 %d %b\r\n%bcontent-type: %b\r\ncontent-length: %d\r\nconnection: close\r\n"
            b"%b\r\n%b"
            % (
                status,
                HTTPStatus(status).phrase.encode(),
                self._date_line(),
                media_type,
                len(body),
                lines,
                body,
            )
        )

    # -- what arrives ----------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self.has_ended or (self._ends and self._incoming is None):
            return  # a client that is refused finishes sending; a body that was begun is still read
        if self._unread or self._must_wait or not self._take_known(data):
            begins = not (self._in_head or self._in_body or self.is_busy or self._unread)
            self._unread = self._unread[self._unread_at :] + data
            self._unread_at = 0
            self._parse_unread(begins)
            if self._unread and self._connections.buffers.is_full:
                self._give_up_unread()
        else:
            self._start_next()
            if self.held:
                self._update_held()
        if self._in_head and not self._head_is_timed:
            self._head_is_timed = True
            now_s = self._loop.time()
            self._deadline_s = now_s + self._connections.head_timeout_s
            if not self.is_busy:
                self._connections.in_head(self, now_s)

    @property
    def _must_wait(self) -> bool:
        """Whether what arrives stays unparsed: a request in the queue has yet to be answered."""
        return (
            bool(self.pipeline)
            or self._body_waits
            or self._write_paused
            or self._resuming
            or (self._ends and self._incoming is None)
        )

    def _resume_soon(self) -> None:
        """Continue with what was left unparsed, in the loop's next turn."""
        if not self._resuming:
            self._resuming = True
            self._loop.call_soon(self._resume)

    def _resume(self) -> None:
        self._resuming = False
        if self._is_closing:
            return
        self._start_next()
        if not self._must_wait:
            self._parse_unread()
        if not self._unread and not self._must_wait:
            self._resume_reading()

    def _parse_unread(self, begins: bool = False) -> None:
        """Parse until a request has to wait; of many short ones, one part in a turn of the loop.

        ``begins``: what is there begins with a request, and if it is only that one its head is
        remembered.
        """
        at = self._unread_at
        while at < len(self._unread) and not self._must_wait and not self._is_closing:
            size = _PART_BYTES if self._in_body else _HEAD_PART_BYTES
            part = self._unread[at : at + size]
            at += len(part)
            self._unread_at = at
            self._feed(part)
            if self.is_busy and not self._in_body and at < len(self._unread):
                self._start_next()
                self._resume_soon()
        if begins and at == len(self._unread) and self._next is not None:
            self._remember(self._unread)
        self._start_next()
        if self._is_closing:
            self._unread, self._unread_at = b"", 0
        else:
            if self._unread_at >= len(self._unread):
                self._unread, self._unread_at = b"", 0
            if self._unread or self._body_waits:
                self._pause_reading()
        self._update_held()

    def _take_known(self, data: bytes) -> bool:
        """Take a request whose head was parsed before, byte for byte the same.

        Most clients send one head again and again. Between two requests the parser has no state, so
        it would find the same in it; this takes a tenth of its time.
        """
        if self._in_head or self._in_body or self.is_busy or len(data) > _BODY_BYTES:
            return False
        end = data.find(b"\r\n\r\n") + 4
        head = _known_heads.get(data[:end])
        if head is None or int(head.content_length) != len(data) - end:
            return False
        self._next = exchange = _Exchange(self, head.again(), True)
        exchange.take(data[end:])
        exchange.complete()
        self._connections.busy(self)
        return True

    def _remember(self, data: bytes) -> None:
        """Remember the head of a request that was all of ``data``, for ``_take_known``.

        Not of one that began in an earlier piece: the end of another head may look like a head.
        """
        exchange = self._next
        if exchange is None or exchange.body is None or self.is_sending or self.pipeline:
            return
        request = exchange.request
        end = data.find(b"\r\n\r\n") + 4
        if (
            exchange.keep_alive
            and end <= _HEAD_PART_BYTES
            and request.content_length == b"%d" % (len(data) - end)
            and exchange.body == data[end:]
            and not any(name in _NOT_KNOWN for name, _ in request.headers)
        ):
            if len(_known_heads) >= _MOST_KNOWN:
                _known_heads.pop(next(iter(_known_heads)))
            _known_heads[data[:end]] = request

    def _new_parser(self) -> Any:
        parser = httptools.HttpRequestParser(self)
        # several requests may come in one piece, and what follows the last one does not matter
        parser.set_dangerous_leniencies(lenient_data_after_close=True)
        return parser

    def _feed(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            # to WebSocket or HTTP/2: the request is answered as one of HTTP/1.1. The parser has
            # left off after the head, and takes the body for another protocol
            head, self._plain_head = self._plain_head, b""
            self._parser = self._new_parser()
            self._feed(head + data[upgrade.args[0] :])
        except httptools.HttpParserError:
            self._in_head = self._in_body = False
            self._ends = self._invalid = True
            unfinished, self._incoming = self._incoming, None
            if unfinished is not None:
                self._forget_unfinished(unfinished)
            if not self.is_busy:
                self._end()

    def _forget_unfinished(self, exchange: _Exchange) -> None:
        """Drop the rest of an invalid request; those before it are answered."""
        exchange.disconnect()
        if exchange is self._current:
            self._current = None
        elif exchange is self._next:
            self._next = None
        else:
            self.pipeline.remove(exchange)

    def _end(self) -> None:
        """End the connection: all requests are answered, and nothing more is read."""
        if self._invalid and not self._is_closing:
            self._connections.count("invalid", self._loop.time())
            self._write_last(400, b"text/plain; charset=utf-8", (), _INVALID)
        self._close()

    def _give_up_unread(self) -> None:
        """End the connection, since too much is in memory; with a reply if it sends a body."""
        self._connections.count("memory", self._loop.time())
        exchange = self._current
        if not self._in_body or self.pipeline or exchange is None:
            self.abort()
            return
        self._unread, self._unread_at = b"", 0
        self._update_held()
        self._reject(overloaded("this worker has too many bytes in memory", "memory"))
        self._current = None
        exchange.disconnect()
        self._close()

    def _update_held(self) -> None:
        unsent = self._transport.get_write_buffer_size() if self._read_by_s is not None else 0
        size = len(self._unread) + unsent + len(self.pipeline) * QUEUED_BYTES
        if size or self.held:
            self._connections.hold(self, size, self._loop.time())

    # -- callbacks of the parser -----------------------------------------------------------

    def on_message_begin(self) -> None:
        self._url = b""
        self._headers = []
        self._head_bytes = 0
        self._in_head = True
        self._head_is_timed = False

    def on_url(self, url: bytes) -> None:
        self._head_bytes += len(url)
        if self._head_bytes > MAX_HEAD_BYTES:
            raise ValueError("the head of the request is too long")  # it is answered with 400
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > MAX_HEAD_BYTES:
            raise ValueError("the head of the request is too long")  # it is answered with 400
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        parser, url = self._parser, self._url
        if not url.startswith(b"/"):
            # a browser behind a proxy, or a client that takes this server for one
            raise ValueError("the target of the request is not a path")
        version = parser.get_http_version()
        method = parser.get_method()
        if method == b"CONNECT":
            raise ValueError("this server is not a proxy")
        if parser.should_upgrade():
            lines = [b"%b: %b\r\n" % line for line in self._headers if line[0] != b"upgrade"]
            self._plain_head = b"%b %b HTTP/%b\r\n%b\r\n" % (
                method, url, version.encode(), b"".join(lines),
            )  # fmt: skip
            return
        path, query = _short_target(url) if len(url) <= _SHORT_URL else _target(url)
        request = Request(
            _METHODS.get(method) or method.decode("ascii"), path, query, version, self._headers
        )
        keep_alive = version != "1.0" and parser.should_keep_alive()
        self._incoming = exchange = _Exchange(self, request, keep_alive)
        if self.is_busy:
            self.pipeline.append(exchange)
        else:
            self._next = exchange
        self._in_head, self._in_body = False, True
        self._connections.busy(self)

    def on_body(self, data: bytes) -> None:
        exchange = self._incoming
        if exchange is not None and exchange.take(data) > _BODY_BYTES:
            self._body_waits = True

    def on_message_complete(self) -> None:
        if self._plain_head:
            return
        self._in_body = False
        exchange, self._incoming = self._incoming, None
        if exchange is not None:
            exchange.complete()

    # -- what is answered ------------------------------------------------------------------

    def _start_next(self) -> None:
        """Have the next requests answered, one after the other."""
        if self._starting:
            return
        self._starting = True
        try:
            while self._current is None and not self._write_paused and not self.has_ended:
                exchange, self._next = self._next, None
                if exchange is None:
                    if not self.pipeline:
                        return
                    exchange = self.pipeline.popleft()
                self._current = exchange
                self._app.start(exchange)
        finally:
            self._starting = False

    def respond(self, exchange: _Exchange, reply: Reply) -> None:
        """Write the reply to the current request; that to any other one is dropped.

        Raises
        ------
        ValueError
            For a header that cannot be sent; another reply may be.
        """
        if exchange is not self._current:
            return
        last = self._ends and not self.pipeline
        closes = not exchange.keep_alive or (last and not self._invalid)
        data, closes = reply_bytes(exchange.request, reply, self._date_line(), closes=closes)
        self._current = None
        if exchange is self._incoming:  # the rest of its body is dropped
            self._incoming = None
            self._body_waits = False
        if self._is_closing:
            return
        if reply.status == 499:
            self._close()
            return
        self._transport.write(data)
        if closes:
            self.pipeline.clear()
            self._close()
        elif last:
            self._end()
        else:
            self._go_on()

    def _go_on(self) -> None:
        """Continue after a reply: the next request, or what is left unparsed, or nothing."""
        if self.pipeline:
            self._start_next()
            if self.has_ended:
                return
        if self.held:
            self._update_held()
        if self._unread or self._read_paused:
            self._resume_soon()
        if self.is_busy:
            return
        if self._in_head:  # of the next request, which has waited for this one
            now_s = self._loop.time()
            self._deadline_s = now_s + self._connections.head_timeout_s
            self._connections.in_head(self, now_s)
        else:
            self._deadline_s = self._loop.time() + self._connections.idle_timeout_s
            self._connections.idle(self)

    def body_is_wanted(self) -> None:
        """Resume reading: the bytes that waited are taken."""
        if self._body_waits:
            self._body_waits = False
            self._resume_soon()

    def continue_(self) -> None:
        """Tell the client that it may send the body."""
        if not self._is_closing:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    # -- what the client does not read -----------------------------------------------------

    def pause_writing(self) -> None:
        self._write_paused = True
        size = self._transport.get_write_buffer_size()
        self._read_by_s = (
            self._loop.time() + self._connections.reply_timeout_s + size / SLOWEST_BYTES_PER_S
        )
        self._update_held()

    def resume_writing(self) -> None:
        self._write_paused = False
        self._read_by_s = None
        self._update_held()
        if not self._is_closing and (self.is_busy or self._unread or self._read_paused):
            self._resume_soon()


class _Exchange:
    """One request of a connection (see ``messages.Exchange``)."""

    __slots__ = (
        "_bytes", "_is_complete", "_is_gone", "_may_continue", "_protocol", "_waiter",
        "keep_alive", "request",
    )  # fmt: skip

    def __init__(self, protocol: HttpProtocol, request: Request, keep_alive: bool) -> None:
        self.request = request
        self.keep_alive = keep_alive
        self._protocol = protocol
        self._may_continue = False
        self._bytes: bytes | bytearray = b""
        self._is_complete = self._is_gone = False
        self._waiter: asyncio.Future[None] | None = None

    @property
    def body(self) -> bytes | bytearray | None:
        return self._bytes if self._is_complete else None

    def take(self, data: bytes) -> int:
        """Keep more of the body; returns how much of it waits."""
        if not self._bytes:
            self._bytes = data
        else:
            if not isinstance(self._bytes, bytearray):
                self._bytes = bytearray(self._bytes)
            self._bytes += data
        self._wake()
        return len(self._bytes)

    def complete(self) -> None:
        """Note that the body has arrived."""
        self._is_complete = True
        self._wake()

    @property
    def is_gone(self) -> bool:
        return self._protocol.has_ended

    def disconnect(self) -> None:
        """Note that the client is gone, or that nothing more is read from it."""
        self._is_gone = True
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def receive(self) -> BodyPart | None:
        while not (self._bytes or self._is_complete or self._is_gone):
            if not self._may_continue:
                self._may_continue = True
                if self.request.header(b"expect").lower() == b"100-continue":
                    self._protocol.continue_()
            self._protocol.body_is_wanted()
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        if self._is_gone:
            return None
        part, self._bytes = bytes(self._bytes), b""
        self._protocol.body_is_wanted()
        return BodyPart(part, not self._is_complete)

    def respond(self, reply: Reply) -> None:
        self._protocol.respond(self, reply)
