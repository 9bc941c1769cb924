"""A load generator of two kinds: as fast as it goes, here or by wrk, and at a fixed arrival rate.

Requests are bytes prepared beforehand, sent over kept-alive connections by a bare protocol on
uvloop, so that one core makes some 20,000 a second. At a fixed rate a request's time counts from
when it was due, not from when a connection was free: else a slow answer would hide those that had
to wait behind it ("coordinated omission").
"""

from __future__ import annotations

import asyncio
import re
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np


@dataclass
class Measured:
    """What came back: the seconds of each accepted request, and how many had another status.

    ``processor_s`` is the processor time that the server took meanwhile.
    """

    seconds: float
    latencies_s: list[float] = field(default_factory=list)
    refused: dict[int, int] = field(default_factory=dict)
    processor_s: float = 0.0

    @property
    def count(self) -> int:
        """Accepted requests."""
        return len(self.latencies_s)

    @property
    def per_s(self) -> float:
        """Accepted requests a second."""
        return self.count / self.seconds

    @property
    def processor_us(self) -> float:
        """Microseconds of the server's processor time for an accepted request."""
        return self.processor_s / max(self.count, 1) * 1e6

    def ms(self, percentile: float) -> float:
        """A percentile of the accepted requests' times, in milliseconds."""
        return float(np.percentile(self.latencies_s, percentile)) * 1e3 if self.latencies_s else 0.0


@dataclass
class Counted(Measured):
    """What wrk counted: no single times."""

    accepted: int = 0

    @property
    def count(self) -> int:
        return self.accepted


_WRK = """\
local requests = {%s}
local at = 0
request = function()
  at = at + 1
  return requests[at %% #requests + 1]
end
done = function(summary)
  io.write(string.format("counted %%d %%d %%d\\n", summary.requests, summary.errors.status,
    summary.duration))
end
"""


def wrk_loop(
    wrk: Path, port: int, requests: Sequence[bytes], seconds: float, connections: int
) -> Counted:
    """As ``closed_loop``, by wrk (whole seconds), which leaves more of the machine to the server.

    >>> _quoted(b'a"\\r1')
    '"a\\\\034\\\\0131"'
    """
    with tempfile.NamedTemporaryFile("w", suffix=".lua", encoding="ascii") as script:
        script.write(_WRK % ",\n".join(map(_quoted, requests)))
        script.flush()
        command = [str(wrk), "-t", "1", "-c", str(connections), "-d", str(max(1, round(seconds)))]
        command += ["-s", script.name, f"http://127.0.0.1:{port}"]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = re.search(r"^counted (\d+) (\d+) (\d+)$", output, re.MULTILINE)
    if found is None:
        raise RuntimeError(f"{wrk}: expected its counts, got {output[-500:]!r}")
    count, errors, microseconds = map(int, found.groups())
    refused = {0: errors} if errors else {}
    return Counted(microseconds / 1e6, refused=refused, accepted=count - errors)


def _quoted(data: bytes) -> str:
    """Bytes as a string of Lua."""
    plain = (chr(b) if 32 <= b < 127 and b not in b'"\\' else f"\\{b:03d}" for b in data)
    return f'"{"".join(plain)}"'


def post(
    path: str,
    body: bytes,
    content_type: str = "application/json",
    accept: str = "*/*",
    token: str = "",
) -> bytes:
    """A whole request, with a bearer token unless that is empty."""
    bearer = f"Authorization: Bearer {token}\r\n" if token else ""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {content_type}\r\n"
        f"Accept: {accept}\r\n{bearer}Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def closed_loop(port: int, requests: Sequence[bytes], seconds: float, connections: int) -> Measured:
    """Each connection sends its next request when it has the answer to the last one."""
    return _run(_closed(port, requests, seconds, connections))


def open_loop(
    port: int, requests: Sequence[bytes], seconds: float, per_s: float, connections: int = 64
) -> Measured:
    """Requests fall due ``per_s`` times a second, at random (exponential gaps), answered or not."""
    return _run(_open(port, requests, seconds, per_s, connections))


def _run(work: object) -> Measured:
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        found: Measured = runner.run(work)  # type: ignore[arg-type]
        return found


class _Connection(asyncio.Protocol):
    """Sends one request at a time; ``done(connection, status)`` is called with each answer."""

    def __init__(self, done: object) -> None:
        self._done = done
        self._buffer = b""
        self.due = 0.0
        self.lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]

    def connection_lost(self, error: Exception | None) -> None:
        self.lost = True

    def send(self, request: bytes, due: float) -> None:
        self.due = due
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, split, body = self._buffer.partition(b"\r\n\r\n")
        if not split:
            return
        lower = head.lower()
        at = lower.index(b"content-length:") + 15
        end = lower.find(b"\r", at)
        length = int(lower[at : end if end >= 0 else None])
        if len(body) < length:
            return
        self._buffer = b""
        self._done(self, int(head[9:12]))  # type: ignore[operator]


async def _closed(
    port: int, requests: Sequence[bytes], seconds: float, connections: int
) -> Measured:
    loop = asyncio.get_running_loop()
    found = Measured(seconds)
    started = time.perf_counter()
    until = started + seconds
    sent = 0

    def done(connection: _Connection, status: int) -> None:
        nonlocal sent
        now = time.perf_counter()
        if now >= until:
            return
        _note(found, status, now - connection.due)
        sent += 1
        connection.send(requests[sent % len(requests)], now)

    made = [await _connect(loop, port, done) for _ in range(connections)]
    started = time.perf_counter()
    until = started + seconds
    for connection in made:
        sent += 1
        connection.send(requests[sent % len(requests)], time.perf_counter())
    await asyncio.sleep(seconds)
    await _close(made)
    return found


async def _open(
    port: int, requests: Sequence[bytes], seconds: float, per_s: float, connections: int
) -> Measured:
    loop = asyncio.get_running_loop()
    found = Measured(seconds)
    waiting: deque[tuple[bytes, float]] = deque()
    idle: list[_Connection] = []

    def done(connection: _Connection, status: int) -> None:
        _note(found, status, time.perf_counter() - connection.due)
        if waiting:
            connection.send(*waiting.popleft())
        else:
            idle.append(connection)

    made = [await _connect(loop, port, done) for _ in range(connections)]
    idle += made
    rng = np.random.default_rng(0)
    due = time.perf_counter() + np.cumsum(rng.exponential(1 / per_s, int(per_s * seconds)))
    for number, at in enumerate(due.tolist()):
        pause = at - time.perf_counter()
        if pause > 0:
            await asyncio.sleep(pause)
        request = requests[number % len(requests)]
        if idle:
            # not from ``at``: that a timer wakes up to a millisecond late is no server's fault
            idle.pop().send(request, time.perf_counter())
        else:
            waiting.append((request, at))
    patience = time.perf_counter() + 10
    while (waiting or len(idle) < len(made)) and time.perf_counter() < patience:
        await asyncio.sleep(0.01)
    await _close(made)
    return found


async def _connect(loop: asyncio.AbstractEventLoop, port: int, done: object) -> _Connection:
    _, connection = await loop.create_connection(lambda: _Connection(done), "127.0.0.1", port)
    return connection


async def _close(connections: Sequence[_Connection]) -> None:
    lost = sum(connection.lost for connection in connections)
    for connection in connections:
        connection.transport.abort()
    if lost:
        raise RuntimeError(f"the server closed {lost} of {len(connections)} connections")


def _note(found: Measured, status: int, seconds: float) -> None:
    if status == 200:
        found.latencies_s.append(seconds)
    else:
        found.refused[status] = found.refused.get(status, 0) + 1
