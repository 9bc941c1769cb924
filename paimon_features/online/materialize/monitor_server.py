"""Metrics and health of a materializer over HTTP, for whoever reaches the address.

All connections are served by one thread, each request has a deadline, and a connection too many
takes the place of the oldest: clients that are slow or many cannot keep memory, threads, or others
from their answers.
"""

from __future__ import annotations

import asyncio
import io
import ipaddress
import json
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from http import HTTPStatus
from http.client import HTTPException, parse_headers

from paimon_features.core.errors import ConfigurationError
from paimon_features.core.process.host_names import LOCAL, HostNames
from paimon_features.online.materialize.monitor import Monitor

REQUEST_TIMEOUT_S = 10.0
"""A request has to arrive, and its reply to be read, within this time."""
MAX_CONNECTIONS = 64
_MAX_HEAD_BYTES = 8_192
_TEXT = "text/plain; charset=utf-8"

_Reply = tuple[int, str, bytes]
"""Status, content type, body."""


class MonitorServer:
    """Serves ``/metrics``, ``/health/live`` and ``/health/ready`` in its own thread.

    Health is 200 or 503, with a JSON document as explanation. ``address`` is ``host:port``, or a
    port on the loopback interface; port 0 selects a free one. It answers to the names ``hosts``
    (see ``HostNames``); None stands for ``localhost`` on the loopback interface, else for any.

    Raises
    ------
    ConfigurationError
        For an address that cannot be bound.
    """

    def __init__(self, monitor: Monitor, address: str, hosts: Sequence[str] | None = None) -> None:
        host, _, port = address.rpartition(":")
        if not port.isdigit():
            raise ConfigurationError(f"listen={address!r}; expected a port or host:port")
        self._monitor = monitor
        self._loop = asyncio.new_event_loop()
        self._open: dict[asyncio.Task[None], None] = {}
        start = asyncio.start_server(
            self._serve, host or "127.0.0.1", int(port), limit=_MAX_HEAD_BYTES
        )
        try:
            self._server = self._loop.run_until_complete(start)
        except (OSError, OverflowError) as error:
            self._loop.close()
            raise ConfigurationError(f"cannot listen on {address}: {error}") from error
        bound = self._server.sockets[0].getsockname()
        self.address = "{}:{}".format(*bound[:2])
        is_local = ipaddress.ip_address(bound[0]).is_loopback
        self._hosts = HostNames(LOCAL if hosts is None and is_local else hosts)
        self._thread = threading.Thread(target=self._loop.run_forever, name="monitor")

    def __len__(self) -> int:
        """Return the number of open connections."""
        return len(self._open)

    def __enter__(self) -> MonitorServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        self._server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._open) >= MAX_CONNECTIONS:
            oldest = next(iter(self._open))
            del self._open[oldest]
            oldest.cancel()
        self._open[task] = None
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                await self._answer(reader, writer)
        except (TimeoutError, OSError, asyncio.CancelledError):
            writer.transport.abort()
        finally:
            self._open.pop(task, None)
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            status, kind, body = self._reply(head)
        except asyncio.IncompleteReadError:
            return
        except (asyncio.LimitOverrunError, HTTPException, ValueError):
            status, kind, body = 400, _TEXT, b"this is not a request of HTTP/1.1\n"
        writer.write(
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: {kind}\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n".encode()
            + body
        )
        writer.write_eof()
        # what the client still sends is dropped, so that it can read the reply
        with suppress(OSError):
            while await reader.read(_MAX_HEAD_BYTES):
                pass

    def _reply(self, head: bytes) -> _Reply:
        line, _, fields = head.partition(b"\r\n")
        method, path, version = line.decode("ascii").split(" ")
        if version not in ("HTTP/1.0", "HTTP/1.1"):
            raise ValueError(version)
        hosts = parse_headers(io.BytesIO(fields)).get_all("host", [])
        if len(hosts) > 1 or (not hosts and version != "HTTP/1.0"):
            return 400, _TEXT, b"expected one Host header\n"
        if hosts and not self._hosts.accepts(hosts[0].strip()):
            return 421, _TEXT, b"this server does not answer to this name ([serve] hosts)\n"
        if method != "GET":
            return 405, _TEXT, b"expected GET\n"
        return self._page(path)

    def _page(self, path: str) -> _Reply:
        if path == "/metrics":
            return 200, "text/plain; version=0.0.4; charset=utf-8", self._monitor.metrics()
        if path in ("/health/live", "/health/ready"):
            health: Mapping[str, object] = self._monitor.health()
            status = 200 if health[path.rpartition("/")[2]] else 503
            return status, "application/json", json.dumps(health).encode()
        return 404, _TEXT, b"available: /metrics, /health/live, /health/ready\n"
