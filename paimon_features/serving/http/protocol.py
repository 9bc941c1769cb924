"""HTTP over one connection: uvicorn's protocol with the bounds that it lacks.

uvicorn parses whatever arrives, waits for ever for the rest of it, and keeps what the client does
not read. Here the head has a bounded size and time, an idle connection and a reply that nobody
reads have deadlines, and what arrives while a request is answered stays as it came, unparsed.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from paimon_features.serving.http.connections import LINGER_S, SLOWEST_BYTES_PER_S, Connections
from paimon_features.serving.http.http_errors import MEDIA_TYPE, RequestRejected, overloaded
from paimon_features.serving.http.messages import BODY_COMPLETE, new_request_id

MAX_HEAD_BYTES = 32_768
_PART_BYTES = 16_384
"""So much of a body is parsed at a time."""
_HEAD_PART_BYTES = 1_024
"""So much is parsed at a time outside a body, where it may be dozens of requests: a short one costs
a hundred times its bytes once parsed, and those behind the first wait for it."""
QUEUED_BYTES = 2_048
"""What a parsed request without a body takes while it waits for the reply before its own."""


class BoundedProtocol(HttpToolsProtocol):
    """One connection of a worker."""

    def __init__(self, connections: Connections, **options: Any) -> None:
        super().__init__(**options)
        self.held = 0
        self._connections = connections
        self._socket: _Transport
        self._head_bytes = 0
        self._in_head = False
        self._in_body = False
        self._deadline_s = 0.0
        """Of the head, or of idleness."""
        self._read_by_s: float | None = None
        """Until then the client must have read its reply."""
        self._unread = b""
        self._unread_at = 0

    # -- the connection --------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._socket = _Transport(transport, self)
        super().connection_made(self._socket)  # type: ignore[arg-type]
        self.flow = _Flow(self._socket, self)
        now_s = self.loop.time()
        self._deadline_s = now_s + self._connections.idle_timeout_s
        if not self._connections.admit(self, now_s):
            self._reject(overloaded("this worker has too many connections", "connections"))
            self._socket.close_now()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.forget(self)
        self._drop_waiting()
        super().connection_lost(exc)

    def overdue(self, now_s: float) -> str | None:
        """End the connection if its time is over; returns why, None if it continues."""
        if self._read_by_s is not None and now_s >= self._read_by_s:
            self.abort()
            return "reply"
        if self._socket.is_closing():
            if self._read_by_s is None:
                self._read_by_s = now_s + self._connections.reply_timeout_s
            self._socket.end_linger(now_s)
            return None
        if now_s < self._deadline_s or self.is_busy:
            return None
        if not self._in_head:
            self._socket.close_now()
            return "idle"
        self._reject(
            RequestRejected(
                408,
                "too_slow",
                "the head of the request was not complete within "
                f"{self._connections.head_timeout_s:g} s ([serve] head_timeout)",
            )
        )
        self._socket.close()
        return "head"

    @property
    def is_busy(self) -> bool:
        """Whether a request is being read or answered."""
        # None until the first head is complete
        return self.cycle is not None and not self.cycle.response_complete  # type: ignore[redundant-expr]

    @property
    def is_sending(self) -> bool:
        """Whether the client has more to send of what it has begun."""
        return self._in_head or self._in_body or self._unread_at < len(self._unread)

    def abort(self) -> None:
        """End the connection at once; what the client has not read is lost."""
        self._connections.forget(self)
        self._drop_waiting()
        self._socket.abort()

    def _drop_waiting(self) -> None:
        """Free what nobody will answer: bytes that are not parsed, and requests in the queue."""
        self._unread, self._unread_at = b"", 0
        self.pipeline.clear()
        self._connections.hold(self, 0, 0.0)

    def _reject(self, rejection: RequestRejected) -> None:
        """Write a reply to what is not a request yet."""
        body = rejection.document(new_request_id())
        status = HTTPStatus(rejection.status)
        headers = (
            (b"content-type", MEDIA_TYPE),
            (b"content-length", b"%d" % len(body)),
            (b"connection", b"close"),
            *rejection.headers,
        )
        lines = b"".join(b"%b: %b\r\n" % header for header in headers)
        self._socket.write(
            b"HTTP/1.1 %d %b\r\n%b\r\n%b" % (status, status.phrase.encode(), lines, body)
        )

    # -- what arrives ----------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._socket.is_closing():
            return  # a client that is refused finishes sending
        if len(data) <= _HEAD_PART_BYTES and not self._must_wait and not self._unread:
            super().data_received(data)
            if self.pipeline:
                self._update_held()
            return
        self._unread = self._unread[self._unread_at :] + data
        self._unread_at = 0
        self._parse_unread()
        if self._unread and self._connections.buffers.is_full:
            self._give_up_unread()

    @property
    def _must_wait(self) -> bool:
        """Whether what arrives stays unparsed: a request in the queue has yet to be answered."""
        return self.flow.read_paused or bool(self.pipeline)

    def resume_parsing(self) -> None:
        """Parse what was left, now that there is room for it."""
        if self._socket.is_closing():
            return
        if self.pipeline:
            # uvicorn resumes after every reply, though requests that it has parsed still wait
            self.flow.read_paused = True
            return
        self._parse_unread()
        if not self._unread and not self.flow.read_paused:
            self._socket.resume_reading()

    def _parse_unread(self) -> None:
        data, at = self._unread, self._unread_at
        while at < len(data) and not self._must_wait and not self._socket.is_closing():
            part = data[at : at + (_PART_BYTES if self._in_body else _HEAD_PART_BYTES)]
            at += len(part)
            self._unread_at = at
            super().data_received(part)
        if at >= len(data) or self._socket.is_closing():
            self._unread, self._unread_at = b"", 0
        else:
            self._socket.pause_reading()
        self._update_held()

    def _give_up_unread(self) -> None:
        """End the connection, since too much is in memory; with a reply if it sends a body."""
        self._connections.count("memory", self.loop.time())
        cycle = self.cycle
        if not self._in_body or self.pipeline or cycle.response_started:
            self.abort()
            return
        self._unread, self._unread_at = b"", 0
        self._update_held()
        self._reject(overloaded("this worker has too many bytes in memory", "memory"))
        cycle.disconnected = True
        cycle.message_event.set()
        self._socket.close()

    def _update_held(self) -> None:
        unsent = self._socket.get_write_buffer_size() if self._read_by_s is not None else 0
        size = len(self._unread) + unsent + len(self.pipeline) * QUEUED_BYTES
        if size or self.held:
            self._connections.hold(self, size, self.loop.time())

    # -- callbacks of the parser -----------------------------------------------------------

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head_bytes = 0
        self._in_head = True
        now_s = self.loop.time()
        self._deadline_s = now_s + self._connections.head_timeout_s
        if not self.is_busy:
            self._connections.in_head(self, now_s)

    def on_url(self, url: bytes) -> None:
        self._bound(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._bound(len(name) + len(value))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if not self.url.startswith(b"/"):
            # a browser behind a proxy, or a client that takes this server for one
            raise ValueError("the target of the request is not a path")
        self._in_head, self._in_body = False, True
        self._connections.busy(self)
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_body = False
        self.scope["extensions"] = BODY_COMPLETE
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.held:
            self._update_held()
        if self._socket.is_closing() or self.is_busy:
            return
        if self._in_head:  # of the next request, which has waited for this one
            now_s = self.loop.time()
            self._deadline_s = now_s + self._connections.head_timeout_s
            self._connections.in_head(self, now_s)
        else:
            self._deadline_s = self.loop.time() + self._connections.idle_timeout_s
            self._connections.idle(self)

    def _bound(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > MAX_HEAD_BYTES:
            # the parser answers with 400 and closes the connection
            raise ValueError("the head of the request is too long")

    def _unsupported_upgrade_warning(self) -> None:
        """A request to upgrade to WebSocket or HTTP/2 gets HTTP/1.1, without a warning."""

    # -- what the client does not read -----------------------------------------------------

    def pause_writing(self) -> None:
        super().pause_writing()
        size = self._socket.get_write_buffer_size()
        self._read_by_s = (
            self.loop.time() + self._connections.reply_timeout_s + size / SLOWEST_BYTES_PER_S
        )
        self._update_held()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._read_by_s = None
        self._update_held()


class _Flow(FlowControl):
    """Resumes with what has arrived already before it reads more."""

    def __init__(self, transport: _Transport, protocol: BoundedProtocol) -> None:
        super().__init__(transport)  # type: ignore[arg-type]
        self._protocol = protocol

    def resume_reading(self) -> None:
        if self.read_paused:
            self.read_paused = False
            self._protocol.loop.call_soon(self._protocol.resume_parsing)


class _Transport:
    """The transport as uvicorn's protocol sees it.

    It drops what is written after the client has disconnected: uvloop's raises then, and uvicorn
    tracks the disconnect only for the last of the requests that arrived in one piece. And it lets
    a client that is refused finish sending: if the connection ended at once, the kernel would
    discard the reply.
    """

    __slots__ = (
        "_lingers_until_s", "_protocol", "_transport", "get_extra_info", "get_write_buffer_size",
        "set_protocol",
    )  # fmt: skip

    def __init__(self, transport: asyncio.Transport, protocol: BoundedProtocol) -> None:
        self._transport = transport
        self._protocol = protocol
        self._lingers_until_s: float | None = None
        self.get_extra_info = transport.get_extra_info
        self.get_write_buffer_size = transport.get_write_buffer_size
        self.set_protocol = transport.set_protocol

    def is_closing(self) -> bool:
        return self._lingers_until_s is not None or self._transport.is_closing()

    def write(self, data: bytes) -> None:
        if not self.is_closing():
            self._transport.write(data)

    def close(self) -> None:
        """Close when everything is written, and the client has sent what it is sending."""
        if self.is_closing():
            return
        if not self._protocol.is_sending:
            self._transport.close()
            return
        self._lingers_until_s = self._protocol.loop.time() + LINGER_S
        self._transport.write_eof()
        self._transport.resume_reading()

    def close_now(self) -> None:
        """Close when everything is written."""
        self._transport.close()

    def end_linger(self, now_s: float) -> None:
        """Close if the client is still sending after its time."""
        if self._lingers_until_s is not None and now_s >= self._lingers_until_s:
            self._transport.close()

    def abort(self) -> None:
        self._transport.abort()

    def pause_reading(self) -> None:
        if not self.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if not self.is_closing():
            self._transport.resume_reading()
