"""A real server and clients that mean it no good: bytes at random over sockets, to every path.

Whatever comes, it is answered with 2xx, 4xx or a 503 that says when to come again, or the
connection ends; the log contains no fault, the workers stay the same ones, and their memory too.
``make fuzz FUZZ_REQUESTS=100000`` sends so many.
"""

from __future__ import annotations

import asyncio
import io
import json
import random
import re
import string
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from paimon_features.testing.servers.redis_server import RedisServer
from paimon_features.testing.sizes import seeds
from tests.patient_stores import PATIENT_TOML, patient_store
from tests.serving.chaos.processes import Server, resident_mb
from tests.serving.http.conftest import CLICK_VIEW, VISIT_VIEW
from tests.serving.http.test_fuzz import mangled, request_document
from tests.tile_lake import PROJECT, TileLake
from tests.waiting import LONG_S

pytestmark = pytest.mark.redis

REQUESTS = 1_000
"""For one seed."""
CLIENTS = 16
GROWTH_MB = 12.0
SLOW_S = 0.3
"""The pause within a slow request."""
QUIET_S = 0.4
"""So long is an answer waited for before our side of the connection ends."""
LAST = b"GET /health/live HTTP/1.1\r\nhost: [::1]\r\nconnection: close\r\n\r\n"
DEFINITIONS = """
from tests.serving.http.conftest import CLICK_VIEW, SERVICES, SHARE, VISIT_VIEW

clicks, visits, share = CLICK_VIEW, VISIT_VIEW, SHARE
reading, paying, visiting = SERVICES
"""
TYPES = (
    "application/json",
    "application/msgpack",
    "application/vnd.apache.arrow.stream",
    "text/plain",
    "multipart/form-data; boundary=x",
    "application/json; charset=utf-7",
    "",
)
PATHS = ("/get-online-features", "/features", "/health/live", "/health/ready", "/health",
         "/metrics", "/openapi.json", "/docs", "/explain", "/ui", "/", "/favicon.ico")  # fmt: skip
METHODS = ("GET", "POST", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "BREW", "get")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server over clicks and visits, with two workers."""
    with served(tmp_path_factory.mktemp("hostile"), workers=2) as server:
        yield server


@contextmanager
def served(folder: Path, workers: int, **settings: object) -> Iterator[Server]:
    """A server over clicks and visits with these settings of ``[serve]``."""
    host = folder / "host"
    host.mkdir()
    with RedisServer() as redis:
        store = patient_store(redis.url)
        now_ms = time.time_ns() // 1_000_000
        clicks, visits = TileLake(folder / "c", CLICK_VIEW), TileLake(folder / "v", VISIT_VIEW)
        clicks.commit([{"user": user, "t": now_ms, "n": 5, "word": "a"} for user in range(3)])
        visits.commit([{"shop": "north", "day": 15_000, "t": now_ms, "n": 3}])
        for lake in (clicks, visits):
            lake.materializer(store).run_once()
        store.close()
        (host / "features.py").write_text(DEFINITIONS)
        (host / "paimon-features.toml").write_text(
            f'[project]\nname = "{PROJECT}"\n[online]\nurl = "{redis.url}"\n{PATIENT_TOML}[serve]\n'
            + "\n".join(f"{name} = {json.dumps(value)}" for name, value in settings.items())
        )
        server = Server(host, workers)
        try:
            yield server
        finally:
            server.stop()


# -- what is sent ----------------------------------------------------------------------------


def arrow_body(rng: random.Random) -> bytes:
    columns: dict[str, Any] = {
        "user": pa.array([rng.randrange(4) for _ in range(rng.randrange(1, 4))])
    }
    if rng.random() < 0.3:
        columns["x" if rng.random() < 0.5 else "amount"] = pa.array(["a"] * len(columns["user"]))
    table = pa.table(columns)
    if rng.random() < 0.7:
        table = table.replace_schema_metadata({"feature_service": "reading_v1"})
    out = io.BytesIO()
    with pa.ipc.new_stream(out, table.schema) as writer:
        writer.write_table(table)
    return out.getvalue()


def body_of(rng: random.Random) -> tuple[bytes, str]:
    """A body and a content type, which mostly go together."""
    kind = rng.random()
    if kind < 0.2:
        body, media = arrow_body(rng), TYPES[2]
    elif kind < 0.4:
        try:
            body, media = msgspec.msgpack.encode(request_document(rng)), TYPES[1]
        except (OverflowError, UnicodeEncodeError):
            body, media = b"\xc1", TYPES[1]
    elif kind < 0.9:
        body, media = json.dumps(request_document(rng)).encode(), TYPES[0]
    else:
        depth = rng.choice((10, 1_000, 100_000))
        shapes = (b"[", b'{"a":', b"\x91", b"\x81\xa1a", b'{"entities":', b'"')
        body, media = rng.choice(shapes) * depth, rng.choice(TYPES[:3])
    if rng.random() < 0.4:
        body = mangled(rng, body)
    if rng.random() < 0.2:
        body = body[: rng.randrange(len(body) + 1)]
    return body, media if rng.random() < 0.9 else rng.choice(TYPES)


def head_line(rng: random.Random) -> str:
    """A header that nobody needs."""
    letters = string.ascii_letters + "-"
    return rng.choice(
        [
            lambda: "x-request-id: " + "".join(rng.choices(string.printable[:90], k=40)),
            lambda: "accept: " + rng.choice((*TYPES, "*/*;q=nan", ",;=", "a/b" * 500)),
            lambda: "authorization: " + rng.choice(("Bearer", "Basic x", "Bearer \x80")),
            lambda: "content-encoding: " + rng.choice(("gzip", "identity", "\x00", "br, br")),
            lambda: "traceparent: 00-" + "0" * rng.randrange(60),
            lambda: (
                "".join(rng.choices(letters, k=10)) + ": " + "v" * rng.choice((1, 5_000, 40_000))
            ),
            lambda: "expect: 100-continue",
            lambda: "upgrade: websocket\r\nconnection: upgrade\r\nsec-websocket-key: eA==",
            lambda: "upgrade: h2c\r\nconnection: upgrade, http2-settings",
            lambda: "content-length: " + rng.choice(("1", "-1", "1e3", "9" * 40, "0x10", "1, 2")),
            lambda: "transfer-encoding: " + rng.choice(("gzip", "chunked, chunked", "x")),
            lambda: "connection: " + rng.choice(("close", "keep-alive", "x")),
            lambda: rng.choice(
                (" folded", "no colon", ": no name", "a\x00b: c", "host: a\r\nhost: b")
            ),
        ]
    )()


def request_bytes(rng: random.Random) -> bytes:
    """One request, more or less."""
    path = PATHS[0] if rng.random() < 0.6 else rng.choice(PATHS)
    post = path == PATHS[0]
    method = rng.choice(METHODS) if rng.random() < 0.15 else "POST" if post else "GET"
    if rng.random() < 0.15:
        path += "?" + "".join(rng.choices(string.printable[:94], k=rng.randrange(30)))
    elif path == "/explain":
        path += f"?feature=clicks:sum_n_1d&user={rng.choice(('1', 'x', '9' * 30, '%ff', ''))}"
    elif rng.random() < 0.03:
        path = rng.choice(("*", "http://x/y", "//", "/%00", "/" + "a" * 40_000, "/\xff", "/../.."))
    body, media = body_of(rng) if post or rng.random() < 0.1 else (b"", "")
    version = "HTTP/1.1" if rng.random() < 0.97 else rng.choice(("HTTP/1.0", "HTTP/9.9", "", "X"))
    lines = [f"{method} {path} {version}".rstrip(), "host: localhost"]
    if media:
        lines.append(f"content-type: {media}")
    lines += [head_line(rng) for _ in range(rng.choice((0, 0, 0, 1, 3)))]
    if body and rng.random() < 0.15:
        lines.append("transfer-encoding: chunked")
        sizes = (len(body), len(body) + 1, 0, 2**64, -1)
        size = sizes[0] if rng.random() < 0.6 else rng.choice(sizes)
        body = b"%x\r\n%b\r\n0\r\n\r\n" % (size, body)
    elif body or post:
        length = len(body) if rng.random() < 0.93 else len(body) + rng.randint(-3, 30)
        lines.append(f"content-length: {length}")
    head = "\r\n".join(lines).encode("latin-1", "replace") + b"\r\n\r\n"
    if rng.random() < 0.03:
        head = mangled(rng, head)
    return head + body


# -- how it is sent, and what comes back -----------------------------------------------------


class Clients:
    """Some connections at a time; ``statuses`` counts what came back."""

    def __init__(self, port: int, rng: random.Random) -> None:
        self._port, self._rng = port, rng
        self.statuses: Counter[str] = Counter()
        self.wrong: list[str] = []

    async def run(self, requests: int) -> None:
        self._left = requests
        async with asyncio.TaskGroup() as group:
            for _ in range(CLIENTS):
                group.create_task(self._client())

    async def _client(self) -> None:
        while self._left > 0:
            count = min(self._left, self._rng.choice((1, 1, 1, 2, 8)))  # pipelined
            self._left -= count
            sent = b"".join(request_bytes(self._rng) for _ in range(count))
            with suppress(OSError):
                await self._exchange(sent)

    async def _exchange(self, sent: bytes) -> None:
        rng, ways = self._rng, self._rng.random()
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            if ways < 0.05:  # leaves in the middle, or does not wait for an answer
                writer.write(sent[: rng.randrange(len(sent) + 1)])
                await writer.drain()
                self.statuses["left"] += 1
                return
            if ways < 0.08:  # slowly, in pieces
                at = rng.randrange(len(sent) + 1)
                for piece in (sent[:at], sent[at:]):
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(SLOW_S * rng.random())
            else:
                writer.write(sent)
            # the last one requests the end; one with a short body consumes it as the rest
            writer.write(LAST)
            got = b""
            with suppress(TimeoutError):
                async with asyncio.timeout(QUIET_S):
                    while piece := await reader.read(1 << 16):
                        got += piece
            writer.write_eof()
            async with asyncio.timeout(LONG_S):
                got += await reader.read()
            self._take(got, sent)
        except TimeoutError:
            self.wrong.append(f"no answer and no end within {LONG_S} s: {sent[:300]!r}")
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    def _take(self, got: bytes, sent: bytes) -> None:
        found = re.findall(rb"HTTP/1\.[01] (\d\d\d) [^\r\n]*\r\n((?:[^\r\n]+\r\n)*)", got)
        if not found:
            self.statuses["closed" if not got else "other"] += 1
        for raw, headers in found:
            status = int(raw)
            self.statuses[str(status)] += 1
            fine = 100 <= status < 500 or (status == 503 and b"retry-after" in headers.lower())
            if not fine:
                self.wrong.append(f"{got[:600]!r} to {sent[:600]!r}")


@pytest.fixture(scope="module")
def after_warm_up() -> dict[int, float]:
    """The memory of each worker when it had done some work."""
    return {}


@pytest.mark.parametrize("seed", seeds(2))
def test_no_bytes_make_a_fault(server: Server, after_warm_up: dict[int, float], seed: int) -> None:
    rng = random.Random(seed)
    clients = Clients(server.port, rng)
    asyncio.run(clients.run(REQUESTS))
    assert clients.wrong == []
    assert clients.statuses.keys() >= {"200", "400", "404", "405", "422"}, clients.statuses
    log = server.log.read_text()
    for word in ("Traceback", "a request failed", "Exception"):
        assert word not in log, log[max(0, log.index(word) - 500) :][:5_000]
    server.log.write_text("")
    assert sorted(server.workers) == sorted(server.pids), "a worker has died"
    for pid in server.workers:
        maps = Path(f"/proc/{pid}/maps")
        assert not maps.exists() or "/pandas/" not in maps.read_text()
        after_warm_up.setdefault(pid, resident_mb(pid))
    # what the largest request took of one worker, another may still take once
    most = max(after_warm_up.values())
    grown = {pid: round(resident_mb(pid) - most, 1) for pid in after_warm_up}
    print(f"{dict(clients.statuses)}; workers grew by {grown} MB from {after_warm_up}")
    assert all(mb < GROWTH_MB for mb in grown.values()), grown
