"""An S3-compatible server in this process, with fault injection."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

Environ = dict[str, Any]
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
class ObjectStore:
    """moto's S3 with fault injection; only the access key ``key`` is accepted.

    Attributes
    ----------
    endpoint
        Its URL.
    requests
        Method, path and Range header of each request that was processed.
    ignores_conditions
        Whether it ignores ``If-Match`` and ``If-None-Match``, as older stores do.
    """

    endpoint: str = ""
    key: str = "known"
    requests: list[tuple[str, str, str]] = field(default_factory=list)
    failures: int = 0
    failing: Callable[[str, str], bool] = lambda method, path: True
    lost: int = 0
    losing: Callable[[str, str], bool] = lambda method, path: True
    latency_s: float = 0.0
    ignores_conditions: bool = False
    _conditional: threading.Lock = field(default_factory=threading.Lock)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def options(self) -> dict[str, str]:
        """The options of ``Lake.open`` for this server."""
        return {"endpoint": self.endpoint, "access-key": self.key, "secret-key": "secret"}

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
        self, environ: Environ, moto: Callable[[Environ, Any], Iterable[bytes]], start: Any
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
            answer = list(moto(environ, start))
        with self._lock:
            lose = self.lost and self.losing(environ["REQUEST_METHOD"], environ["PATH_INFO"])
            self.lost -= bool(lose)
        return None if lose else answer

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
def object_store(bucket: str) -> Iterator[ObjectStore]:
    """A running store with one empty bucket; needs the package moto."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Quiet(WSGIRequestHandler):
        def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
            """Log nothing: the store records its requests."""

    store = ObjectStore()
    moto = DomainDispatcherApplication(create_backend_app)

    def application(environ: Environ, start_response: Any) -> Iterable[bytes]:
        fault = store.fault(environ)
        if fault is None:
            started: list[Any] = []
            answer = store.process(environ, moto, lambda *reply: started.append(reply))
            if answer is not None:
                start_response(*started[0])
                return answer
            fault = SLOW_DOWN
        status, body = fault
        headers = [
            ("Content-Type", "application/xml"),
            ("Content-Length", str(len(body))),
        ]
        start_response(status, headers)
        return [body]

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


def _make_bucket(store: ObjectStore, bucket: str) -> None:
    from pyarrow.fs import S3FileSystem

    host = store.endpoint.removeprefix("http://")
    S3FileSystem(
        endpoint_override=host,
        scheme="http",
        access_key=store.key,
        secret_key="secret",
        region="us-east-1",
        allow_bucket_creation=True,
    ).create_dir(bucket)
