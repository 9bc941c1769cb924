"""What one connection has in memory while its requests wait, and which connections make way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from paimon_features.core.configuration.project_config import ServeConfig
from paimon_features.serving.http.bodies.buffered_bytes import BufferedBytes
from paimon_features.serving.http.messages import Exchange, Reply
from paimon_features.serving.http.metrics import Counts
from paimon_features.serving.http.server.connections import Connections
from paimon_features.serving.http.server.protocol import (
    _HEAD_PART_BYTES,
    QUEUED_BYTES,
    HttpProtocol,
)

GET = b"GET / HTTP/1.1\r\n\r\n"
"""The shortest request."""
IN_A_PART = _HEAD_PART_BYTES // len(GET) + 1
ANSWERED_S = 60


class Gate:
    """An application that answers one request for each permit."""

    def __init__(self) -> None:
        self.permits = asyncio.Semaphore(0)
        self.answered = self.waiting = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, exchange: Exchange) -> None:
        task = asyncio.create_task(self._answer(exchange))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, exchange: Exchange) -> None:
        self.waiting += 1
        await self.permits.acquire()
        self.answered += 1
        exchange.respond(Reply(204, b"text/plain", b""))


class Opened:
    """A server in this process with one connection to it."""

    protocol: HttpProtocol

    def __init__(self) -> None:
        self.app = Gate()
        serve = ServeConfig(idle_timeout_ms=3_600_000)
        self.connections = Connections(serve, BufferedBytes(serve.max_buffered_bytes), Counts())

    def make(self) -> HttpProtocol:
        self.protocol = HttpProtocol(self.app, self.connections, lambda: b"", set())
        return self.protocol


@asynccontextmanager
async def opened() -> AsyncIterator[tuple[Opened, asyncio.StreamReader, asyncio.StreamWriter]]:
    made = Opened()
    server = await asyncio.get_running_loop().create_server(made.make, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            yield made, reader, writer
        finally:
            writer.close()


@pytest.mark.parametrize("padding", [b"", b"x: " + b"a" * 700 + b"\r\n"])
def test_requests_wait_unparsed_while_those_before_them_are_answered(padding: bytes) -> None:
    request = GET[:-2] + padding + b"\r\n"
    count = 6_000

    async def run() -> None:
        async with opened() as (server, reader, writer):
            writer.write(request * count)
            most = held = 0
            for number in range(1, count + 1):
                server.app.permits.release()
                async with asyncio.timeout(ANSWERED_S):
                    await reader.readuntil(b"\r\n\r\n")
                most = max(most, len(server.protocol.pipeline))
                held = max(held, server.protocol.held)
                assert server.protocol.held >= QUEUED_BYTES * len(server.protocol.pipeline)
                assert server.app.answered == number
            assert 0 < most + (padding != b"") <= IN_A_PART
            # one read of the transport at most, and what is parsed
            assert held <= 262_144 + IN_A_PART * QUEUED_BYTES
            assert server.protocol.held == server.connections.buffers.held == 0

    asyncio.run(run())


@pytest.mark.parametrize("by", ["server", "client"])
def test_a_connection_that_ends_frees_the_requests_in_its_queue(by: str) -> None:
    async def run() -> None:
        async with opened() as (server, _, writer), asyncio.timeout(ANSWERED_S):
            writer.write(GET * 1_000)
            while not server.app.waiting or not server.protocol.pipeline:
                await asyncio.sleep(0)
            assert server.connections.buffers.held > 0
            if by == "server":
                server.protocol.abort()
            else:
                writer.transport.abort()
                # a connection that is paused learns of it when a reply cannot be written
                while server.protocol in server.connections._open:
                    server.app.permits.release()
                    await asyncio.sleep(0.01)
            assert not server.protocol.pipeline
            assert server.connections.buffers.held == 0
            answered = server.app.answered
            assert answered < IN_A_PART // 2
            for _ in range(3 * IN_A_PART):  # the rest of the queue is not run
                server.app.permits.release()
                await asyncio.sleep(0)
            assert server.app.answered <= answered + 1

    asyncio.run(run())


class Idler:
    """A connection as ``Connections`` sees it."""

    held = 0

    def __init__(self) -> None:
        self.aborted = False

    def overdue(self, now_s: float) -> str | None:
        return None

    def abort(self) -> None:
        self.aborted = True


def test_slow_heads_make_way_before_idle_connections_and_those_before_new_heads() -> None:
    serve = ServeConfig(max_connections=4)
    connections = Connections(serve, BufferedBytes(serve.max_buffered_bytes), Counts())
    slow, idle, new, busy = made = [Idler() for _ in range(4)]
    for each in made:
        assert connections.admit(each, 0.0)
    connections.in_head(slow, 0.0)
    connections.in_head(new, 4.5)
    connections.in_head(busy, 4.5)
    connections.busy(busy)
    for expected in (slow, idle, new):
        extra = Idler()
        assert connections.admit(extra, 5.0)
        connections.busy(extra)
        assert expected.aborted
        connections.forget(expected)
    assert not connections.admit(Idler(), 5.0), "all others are busy"
    assert not busy.aborted
