"""An S3-compatible server with fault injection: moto in this process, or a real one behind it."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import Any

from tests.servers.s3_programs import S3Program

Environ = dict[str, Any]
StoreBackend = Callable[[Environ, Any], Iterable[bytes]]
Answer = tuple[str, bytes]

SLOW_DOWN: Answer = (
    "503 Slow Down",
    b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>",
)
FORBIDDEN: Answer = (
    "403 Forbidden",
    b"<Error><Code>InvalidAccessKeyId</Code><Message>No such access key.</Message></Error>",
)


@dataclass
class Disturbance:
    """Random faults of a network and of a busy store, the same for the same ``seed`` and requests.

    ``refused``, ``lost`` and ``cut`` are shares of requests: with 503 before they are processed,
    with 503 afterwards, with a reply of which the second half is missing. ``latency_s`` is the
    longest delay; ``stale_s`` how old a listing may be.
    """

    seed: int
    refused: float = 0.02
    lost: float = 0.01
    cut: float = 0.01
    latency_s: float = 0.02
    stale_s: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._lock = threading.Lock()
        self._listings: dict[str, tuple[float, Any, list[bytes]]] = {}

    def draw(self) -> str | None:
        """Delay a request, and choose its fault."""
        with self._lock:
            delay, at = self._random.uniform(0, self.latency_s), self._random.random()
            shares = {"refused": self.refused, "lost": self.lost, "cut": self.cut}
            kind = None
            for name, share in shares.items():
                if 0 <= at < share:
                    kind = name
                    self.counts[name] += 1
                at -= share
            self.counts["requests"] += 1
        time.sleep(delay)
        return kind

    def listing(self, environ: Environ, application: StoreBackend, start: Any) -> Iterable[bytes]:
        """A listing as it was up to ``stale_s`` ago."""
        name = environ["REQUEST_URI"]
        with self._lock:
            at, reply, content = self._listings.get(name, (0.0, None, []))
        if time.monotonic() - at > self.stale_s:
            started: list[Any] = []
            content = list(application(environ, lambda *given: started.append(given)))
            reply = started[0]
            with self._lock:
                self._listings[name] = (time.monotonic(), reply, content)
        else:
            self.counts["stale"] += 1
        start(*reply)
        return content


@dataclass
class ObjectStore:
    """An S3 server with fault injection; only the access key ``key`` is accepted.

    Attributes
    ----------
    endpoint
        Its URL.
    requests
        Method, path and Range header of each request that was processed.
    ignores_conditions
        Whether it ignores ``If-Match`` and ``If-None-Match``, as older stores do.
    disturbance
        Random faults in all requests; None for a store without faults of its own.
    server
        The process behind, which may be killed and started again; None for moto's.
    """

    endpoint: str = ""
    key: str = "known"
    secret: str = "super-secret"
    requests: list[tuple[str, str, str]] = field(default_factory=list)
    failures: int = 0
    failing: Callable[[str, str], bool] = lambda method, path: True
    lost: int = 0
    losing: Callable[[str, str], bool] = lambda method, path: True
    latency_s: float = 0.0
    ignores_conditions: bool = False
    disturbance: Disturbance | None = None
    server: S3Program | None = None
    _uploads: dict[str, tuple[Any, list[bytes]]] = field(default_factory=dict)
    _conditional: threading.Lock = field(default_factory=threading.Lock)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def options(self) -> dict[str, str]:
        """The options of ``Lake.open`` for this server."""
        return {"endpoint": self.endpoint, "access-key": self.key, "secret-key": self.secret}

    def fail(
        self, times: int, failing: Callable[[str, str], bool] = lambda method, path: True
    ) -> None:
        """Reply with 503 to the next ``times`` requests for which ``failing(method, path)`` is
        true."""
        with self._lock:
            self.failures, self.failing = times, failing

    def lose_replies(self, times: int, losing: Callable[[str, str], bool]) -> None:
        """Process the next ``times`` requests for which ``losing`` is true, but reply with 503."""
        with self._lock:
            self.lost, self.losing = times, losing

    def process(
        self, environ: Environ, application: StoreBackend, start: Any
    ) -> Iterable[bytes] | None:
        """The real response, None where it is lost."""
        if self.latency_s:
            time.sleep(self.latency_s)
        conditions = [name for name in ("HTTP_IF_MATCH", "HTTP_IF_NONE_MATCH") if name in environ]
        if environ["REQUEST_METHOD"] != "PUT":
            conditions = []
        if self.ignores_conditions:
            for name in conditions:
                del environ[name]
        # moto compares and writes in two steps; S3 does not
        with self._conditional if conditions else nullcontext():
            if self.disturbance is not None and self.disturbance.stale_s and _lists(environ):
                answer = list(self.disturbance.listing(environ, application, start))
            else:
                answer = self._completed(environ, application, start)
        with self._lock:
            lose = self.lost and self.losing(environ["REQUEST_METHOD"], environ["PATH_INFO"])
            self.lost -= bool(lose)
        return None if lose else answer

    def _completed(self, environ: Environ, application: StoreBackend, start: Any) -> list[bytes]:
        """The response; that of an earlier request to the repeated completion of an upload.

        S3 replies so to a client that lost the reply; these servers have forgotten the upload.
        """
        if environ["REQUEST_METHOD"] != "POST" or "uploadId=" not in environ["QUERY_STRING"]:
            return list(application(environ, start))
        name = environ["REQUEST_URI"]
        if name not in self._uploads:
            started: list[Any] = []
            content = list(application(environ, lambda *given: started.append(given)))
            if not started[0][0].startswith("200"):
                start(*started[0])
                return content
            self._uploads[name] = (started[0], content)
        reply, content = self._uploads[name]
        start(*reply)
        return content

    def fault(self, environ: Environ) -> Answer | None:
        """Return an injected response; None for the real one."""
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        if f"Credential={self.key}/" not in environ.get("HTTP_AUTHORIZATION", ""):
            return FORBIDDEN
        with self._lock:
            if self.failures and self.failing(method, path):
                self.failures -= 1
                return SLOW_DOWN
            self.requests.append((method, path, environ.get("HTTP_RANGE", "")))
        return None

    def fetched_bytes(self) -> int:
        """Number of bytes requested by ranged GET requests so far."""
        ranges = [text.removeprefix("bytes=").split("-") for _, _, text in self.requests if text]
        return sum(int(last) - int(first) + 1 for first, last in ranges)


@contextmanager
def object_store(bucket: str, program: Path | None = None) -> Iterator[ObjectStore]:
    """A running store with one empty bucket.

    ``program`` is the path of a server, see ``S3Program``; without one it is moto's, which needs
    that package.
    """
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Quiet(WSGIRequestHandler):
        def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
            """Log nothing: the store records its requests."""

    store = ObjectStore()

    def application(environ: Environ, start_response: Any) -> Iterable[bytes]:
        fault = store.fault(environ)
        kind = None if store.disturbance is None else store.disturbance.draw()
        if kind == "refused":
            fault = SLOW_DOWN
        if fault is None:
            started: list[Any] = []
            try:
                answer = store.process(environ, backend, lambda *reply: started.append(reply))
            except (OSError, HTTPException):  # the server is being started again
                answer = None
            if answer is not None and kind != "lost":
                start_response(*started[0])
                return answer if kind is None else _cut(environ, answer)
            fault = SLOW_DOWN
        status, body = fault
        headers = [
            ("Content-Type", "application/xml"),
            ("Content-Length", str(len(body))),
        ]
        start_response(status, headers)
        return [body]

    with ExitStack() as stack:
        backend: StoreBackend
        if program is None:
            from moto.moto_server.werkzeug_app import (
                DomainDispatcherApplication,
                create_backend_app,
            )

            backend = DomainDispatcherApplication(create_backend_app)
        else:
            backend = store.server = stack.enter_context(
                S3Program(program, store.key, store.secret)
            )
        server = make_server("127.0.0.1", 0, application, threaded=True, request_handler=Quiet)
        thread = threading.Thread(target=server.serve_forever, name="object-store", daemon=True)
        thread.start()
        store.endpoint = f"http://127.0.0.1:{server.server_port}"
        try:
            _make_bucket(store, bucket)
            yield store
        finally:
            server.shutdown()
            thread.join()
            server.server_close()


def _lists(environ: Environ) -> bool:
    return environ["REQUEST_METHOD"] == "GET" and "list-type=2" in environ["QUERY_STRING"]


def _cut(environ: Environ, answer: Iterable[bytes]) -> Iterator[bytes]:
    """The first half of a reply; then the connection is closed."""
    whole = b"".join(answer)
    yield whole[: len(whole) // 2]
    connection: socket.socket = environ["werkzeug.socket"]
    connection.shutdown(socket.SHUT_RDWR)


def _make_bucket(store: ObjectStore, bucket: str) -> None:
    from pyarrow.fs import S3FileSystem

    host = store.endpoint.removeprefix("http://")
    S3FileSystem(
        endpoint_override=host,
        scheme="http",
        access_key=store.key,
        secret_key=store.secret,
        region="us-east-1",
        allow_bucket_creation=True,
    ).create_dir(bucket)
