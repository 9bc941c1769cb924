"""Requests in pieces of any size, and requests that are not quite HTTP, over connections in memory.

What is answered does not depend on how the bytes are split, whatever they are: a client, or a proxy
in front of one, and this server agree on where a request ends. ``make fuzz`` tries fifty times as
many.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections import deque
from typing import Any

import pytest

from paimon_features.core.configuration.project_config import ServeConfig
from paimon_features.serving.http.bodies.buffered_bytes import BufferedBytes
from paimon_features.serving.http.messages import (
    ClientGoneError,
    Exchange,
    Reply,
    Request,
    read_body,
)
from paimon_features.serving.http.metrics import Counts
from paimon_features.serving.http.server.connections import Connections
from paimon_features.serving.http.server.protocol import HttpProtocol, _known_heads
from paimon_features.testing.sizes import seeds
from tests.serving.http.test_fuzz import mangled
from tests.waiting import LONG_S

STREAMS = 40
"""For one seed."""


class Pipe(asyncio.Transport):
    """A connection in memory: what the server writes stays in ``written``."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.waiting: deque[bytes] = deque()
        self.protocol: HttpProtocol
        self.reading = True
        self.closed = False

    def is_closing(self) -> bool:
        return self.closed

    def write(self, data: bytes | bytearray | memoryview) -> None:  # type: ignore[override]
        assert not self.closed
        self.written += data

    def write_eof(self) -> None:
        assert not self.closed

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)

    abort = close


class Echo:
    """Answers with what it was asked; at once, later, or after it has read the body itself."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._buffers = BufferedBytes(1 << 30)
        self.tasks: set[asyncio.Task[None]] = set()

    def start(self, exchange: Exchange) -> None:
        if exchange.body is not None and self._rng.random() < 0.5:
            exchange.respond(self._reply(exchange, exchange.body))
            return
        task = asyncio.create_task(self._answer(exchange))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _answer(self, exchange: Exchange) -> None:
        for _ in range(self._rng.randrange(3)):
            await asyncio.sleep(0)
        body = exchange.body
        if body is None:
            try:
                body = await read_body(
                    exchange.request, exchange.receive, 1 << 30, self._buffers, 60
                )
            except ClientGoneError:
                exchange.respond(Reply(499, b"", b""))
                return
        exchange.respond(self._reply(exchange, body))

    def _reply(self, exchange: Exchange, body: bytes | bytearray) -> Reply:
        request = exchange.request
        text = repr((request.method, request.path, request.query, sorted(request.headers)))
        return Reply(200, b"text/plain", text.encode() + b"\n" + bytes(body))


def replies(rng: random.Random, pieces: list[bytes]) -> bytes:
    """What a client that sends these pieces is answered, until the connection is quiet or ends."""

    async def run() -> bytes:
        serve = ServeConfig(max_buffered_bytes=1 << 30)
        buffers = BufferedBytes(serve.max_buffered_bytes)
        pipe, app = Pipe(), Echo(rng)
        tracked: set[HttpProtocol] = set()
        protocol = HttpProtocol(app, Connections(serve, buffers, Counts()), lambda: b"", tracked)
        pipe.protocol = protocol
        protocol.connection_made(pipe)
        for piece in pieces:
            while not pipe.reading and not pipe.closed:
                await asyncio.sleep(0)
            if pipe.closed:
                break
            protocol.data_received(piece)
            if rng.random() < 0.3:
                await asyncio.sleep(0)
        while under_way(protocol):
            await asyncio.sleep(0)
        if not pipe.closed:
            pipe.close()
        while app.tasks or tracked:
            await asyncio.sleep(0)
        assert protocol.held == buffers.held == 0
        return bytes(pipe.written)

    return asyncio.run(run())


def under_way(protocol: HttpProtocol) -> bool:
    """Whether more will happen though nothing more is sent."""
    if protocol._resuming or protocol._unread:
        return True
    current = protocol._current
    waits = None if current is None else current._waiter
    return protocol.is_busy and (waits is None or waits.done())


def pieces_of(rng: random.Random, data: bytes) -> list[bytes]:
    most = rng.choice((1, 3, 50, 1_000, 5_000, 100_000))
    most = max(most, len(data) // 5_000)
    out, at = [], 0
    while at < len(data):
        size = rng.randint(1, most)
        out.append(data[at : at + size])
        at += size
    return out


def one_request(rng: random.Random) -> bytes:
    size = rng.choice((0, 1, 30, 30, 900, 1_100, 1_100, 20_000, 70_000))
    body = bytes(rng.randrange(32, 127) for _ in range(min(size, 50))) * (size // 50 + 1)
    body = body[:size]
    lines = [
        b"%b /%b HTTP/1.%d"
        % (
            rng.choice((b"GET", b"POST", b"PUT", b"OPTIONS")),
            rng.choice(
                (b"", b"a", b"get-online-features", b"a%20b?x=1", b"b" * rng.randint(1, 99))
            ),
            rng.random() < 0.95,
        ),
        b"host: localhost",
    ]
    extra = (b"expect: 100-continue", b"upgrade: h2c\r\nconnection: upgrade", b"x: " + b"y" * 600,
             b"connection: close", b"Connection: keep-alive")  # fmt: skip
    lines += [line for line in extra if rng.random() < 0.1]
    if rng.random() < 0.4:
        cut = rng.randint(0, len(body))
        chunks = [part for part in (body[:cut], body[cut:]) if part]
        lines.append(b"transfer-encoding: chunked")
        body = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in chunks) + b"0\r\n\r\n"
    elif body or rng.random() < 0.5:
        lines.append(b"content-length: %d" % len(body))
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def without_continue(data: bytes) -> bytes:
    """The replies without those that only ask for a body, which comes in time or not."""
    return data.replace(b"HTTP/1.1 100 Continue\r\n\r\n", b"")


def comparable(data: bytes) -> bytes:
    return re.sub(rb"x-request-id: [^\r]*\r\n", b"", without_continue(data))


@pytest.mark.parametrize("seed", seeds(1))
def test_the_replies_do_not_depend_on_how_the_requests_are_split(seed: int) -> None:
    rng = random.Random(seed)
    statuses = {b"200": 0, b"400": 0}
    for _ in range(STREAMS):
        sent = [one_request(rng) for _ in range(rng.choice((1, 2, 3, 12)))]
        data = b"".join(sent)
        if rng.random() < 0.5:
            data = mangled(rng, data)
        whole = comparable(replies(rng, [data]))
        for _ in range(3):
            pieces = pieces_of(rng, data)
            assert comparable(replies(rng, pieces)) == whole, (data[:2_000], len(pieces))
        for status in statuses:
            statuses[status] += whole.count(b"HTTP/1.1 " + status)
    assert all(statuses.values()), statuses


@pytest.mark.parametrize("seed", seeds(1))
def test_requests_that_are_valid_are_answered_in_order_with_what_they_said(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(STREAMS):
        bodies = [b"%d:" % i + b"z" * rng.choice((0, 40, 3_000, 90_000)) for i in range(9)]
        data = b"".join(
            b"POST /p%d HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n%b" % (i, len(body), body)
            for i, body in enumerate(bodies)
        )
        got = replies(rng, pieces_of(rng, data))
        for i, body in enumerate(bodies):
            head, _, got = got.partition(b"\r\n\r\n")
            length = int(re.findall(rb"content-length: (\d+)", head)[0])
            reply, got = got[:length], got[length:]
            assert reply.startswith(b"('POST', '/p%d'" % i)
            assert reply.endswith(b"\n" + body)
        assert got == b""


@pytest.mark.parametrize("seed", seeds(1))
def test_a_head_that_was_seen_before_is_read_as_it_was_then(seed: int) -> None:
    """One that came alone and whole is not parsed again: the replies are those to its pieces."""
    rng = random.Random(seed)
    heads = [
        b"POST /known%d HTTP/1.1\r\nhost: a\r\n%bcontent-length: %d\r\n\r\n" % (i, extra, size)
        for i, size in enumerate((0, 1, 8, 700, 3_000))
        for extra in (b"", b"a: b\r\n", b"a: b\r\na: c\r\n", b"expect: 100-continue\r\n",
                      b"x-request-id: 7\r\n", b"connection: close\r\n")
    ]  # fmt: skip
    heads += [b"GET /known HTTP/1.1\r\nhost: a\r\n\r\n", b"GET /known HTTP/1.0\r\n\r\n"]
    for _ in range(STREAMS):
        sent = []
        for head in rng.choices(heads, k=20):
            found = re.search(rb"content-length: (\d+)", head)
            body = bytes(rng.randrange(256) for _ in range(int(found[1]) if found else 0))
            # now and then more or less than was said, and what looks like the end of a head
            sent.append(head + body + rng.choice((b"",) * 20 + (b"x", b"\r\n\r\n")))
        whole = comparable(replies(rng, sent))
        assert comparable(replies(rng, pieces_of(rng, b"".join(sent)))) == whole
    taken = _known_heads.keys() & set(heads)
    assert {b"expect" in head or b"x-req" in head or b"close" in head for head in taken} == {False}
    assert len(taken) >= 9


def test_the_end_of_a_head_is_not_remembered_as_a_head() -> None:
    """Else a client could choose what is read in a request that another one sends."""
    head = b"POST /wanted HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n"
    rng = random.Random(1)
    assert b"'/other'" in replies(rng, [b"POST /other HTTP/1.1\r\nx: ", head])
    assert head not in _known_heads
    assert b"'/wanted'" in replies(rng, [head])


@pytest.mark.parametrize("method", [b"POST", b"GET"])
def test_a_request_to_change_the_protocol_keeps_its_body(method: bytes) -> None:
    """Java's client sends one with its first request."""
    data = (
        b"%b /x HTTP/1.1\r\nhost: a\r\nconnection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\n"
        b"http2-settings: AAEAAEAA\r\ncontent-length: 5\r\n\r\nhello"
        b"GET /next HTTP/1.1\r\nhost: a\r\n\r\n" % method
    )
    rng = random.Random(1)
    for pieces in ([data], pieces_of(rng, data)):
        got = replies(rng, pieces)
        assert got.count(b"HTTP/1.1 200") == 2
        assert b"\nhello" in got
        assert b"'/next'" in got


def test_a_client_that_ends_its_own_side_gets_its_reply(make_client: Any) -> None:
    """Over a real socket: it sends a request, and then the end of what it sends."""
    app = make_client().app

    async def run() -> bytes:
        serve = ServeConfig()
        connections = Connections(serve, BufferedBytes(serve.max_buffered_bytes), Counts())
        server = await asyncio.get_running_loop().create_server(
            lambda: HttpProtocol(app, connections, lambda: b"", set()), "127.0.0.1", 0
        )
        async with server:
            port = server.sockets[0].getsockname()[1]
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            body = b'{"feature_service": "reading_v1", "entities": {"user": [1]}}'
            writer.write(
                b"POST /get-online-features HTTP/1.1\r\nhost: localhost\r\n"
                b"content-length: %d\r\n\r\n%b" % (len(body), body)
            )
            writer.write_eof()
            async with asyncio.timeout(LONG_S):
                got = await reader.read()
            writer.close()
            return got

    got = asyncio.run(run())
    assert got.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"connection: close\r\n" in got


def test_what_is_not_http_is_refused_after_the_requests_before_it() -> None:
    rng = random.Random(3)
    for rest in (b"\x00\x01\r\n\r\n", b"CONNECT a:1 HTTP/1.1\r\n\r\n", b"GET a HTTP/1.1\r\n\r\n",
                 b"POST /b HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
                 b"POST /b HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab",
                 b"GET /" + b"a" * 40_000 + b" HTTP/1.1\r\n\r\n"):  # fmt: skip
        got = replies(rng, [b"GET /first HTTP/1.1\r\nhost: a\r\n\r\n" * 3 + rest])
        statuses = re.findall(rb"HTTP/1.1 (\d+)", got)
        assert statuses == [b"200"] * 3 + [b"400"], rest[:100]
        assert got.endswith(b"connection: close\r\n\r\nInvalid HTTP request received.")


def test_a_request_of_a_head_seen_before_has_all_that_the_first_one_had() -> None:
    headers = [(b"host", b"a"), (b"accept", b"b"), (b"authorization", b"c"),
               (b"content-type", b"d"), (b"content-length", b"5")]  # fmt: skip
    first = Request("POST", "/p", b"q", "1.1", headers)
    again = first.again()
    for name in Request.__slots__:
        same = getattr(again, name) == getattr(first, name)
        assert same == (name != "request_id"), name
    first.route, first.client = "/p", "somebody"
    assert (first.again().route, first.again().client) == ("other", "")


def test_a_body_that_was_begun_when_the_server_stops_is_read_and_answered() -> None:
    async def run() -> bytes:
        serve = ServeConfig()
        connections = Connections(serve, BufferedBytes(serve.max_buffered_bytes), Counts())
        pipe, app = Pipe(), Echo(random.Random(1))
        protocol = HttpProtocol(app, connections, lambda: b"", set())
        pipe.protocol = protocol
        protocol.connection_made(pipe)
        protocol.data_received(b"POST /a HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\n")
        await asyncio.sleep(0)
        protocol.shut_down()
        for part in (b"he", b"llo", b"GET /next HTTP/1.1\r\nhost: a\r\n\r\n"):
            protocol.data_received(part)
            protocol.shut_down()
            while under_way(protocol):
                await asyncio.sleep(0)
        assert pipe.closed
        return bytes(pipe.written)

    got = asyncio.run(run())
    assert got.startswith(b"HTTP/1.1 200")
    assert got.endswith(b"\nhello")
    assert b"connection: close\r\n" in got
