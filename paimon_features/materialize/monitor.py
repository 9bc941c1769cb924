"""Prometheus metrics and health of a materializer, over HTTP."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

from paimon_features.clock import now_ms
from paimon_features.errors import ConfigurationError, MissingExtraError
from paimon_features.materialize.progress import MaterializeProgress

SILENT_AFTER_S = 120.0
"""A view without any report for this long hangs: passes are at most 5 s apart, and long ones
report each unit of work."""

_PREFIX = "paimon_features_materializer"


@dataclass(eq=False)
class _WatchedView:
    """The reported state of one view."""

    reported_s: float
    last: MaterializeProgress | None = None
    passed_at_s: float = 0.0
    tiles: int = 0
    records: int = 0
    rebuilds: int = 0
    losses: int = 0
    rebuilding: bool = False
    errors: int = 0
    trouble: str | None = None


@dataclass(eq=False)
class Monitor:
    """Collects the reports of the materializers of ``views``. Thread safe.

    ``clock`` is a monotonic clock in seconds.
    """

    views: Iterable[str]
    clock: Callable[[], float] = time.monotonic
    _watched: dict[str, _WatchedView] = field(init=False)

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._watched = {view: _WatchedView(self.clock()) for view in self.views}

    def working(self, progress: MaterializeProgress) -> None:
        """Record a unit of work within a pass."""
        with self._lock:
            self._report(progress)

    def passed(self, progress: MaterializeProgress) -> None:
        """Record the end of a pass."""
        with self._lock:
            of = self._report(progress)
            of.last, of.trouble, of.passed_at_s = progress, None, now_ms() / 1000
            of.tiles += progress.tiles
            of.records += progress.records

    def failed(self, view: str, error: Exception) -> None:
        """Record a failure of the store, which is retried."""
        with self._lock:
            of = self._watched[view]
            of.reported_s, of.trouble = self.clock(), str(error)
            of.errors += 1

    def health(self) -> dict[str, Any]:
        """``live``: every view reported recently. ``ready``: every view is caught up."""
        with self._lock:
            views = {name: self._health_of(of) for name, of in self._watched.items()}
        return {
            "live": all(view["silent_s"] < SILENT_AFTER_S for view in views.values()),
            "ready": all(view["ready"] for view in views.values()),
            "views": views,
        }

    def metrics(self) -> bytes:
        """All metrics in the text format of Prometheus."""
        try:
            from prometheus_client import CollectorRegistry, generate_latest
        except ImportError as error:
            raise MissingExtraError.of("prometheus-client", "serve", "metrics") from error
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        text: bytes = generate_latest(registry)
        return text

    def collect(self) -> Iterable[Any]:
        """The metric families, for a ``prometheus_client`` registry."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        counters: tuple[tuple[str, str, Callable[[_WatchedView], float]], ...] = (
            ("tiles", "Rows of the tile table applied.", lambda of: of.tiles),
            ("records", "Records written to the online store.", lambda of: of.records),
            ("rebuilds", "Rebuilds of all records.", lambda of: of.rebuilds),
            ("losses", "Rebuilds after a loss of keys.", lambda of: of.losses),
            ("store_errors", "Failed calls of the online store.", lambda of: of.errors),
        )
        gauges: tuple[tuple[str, str, Callable[[_WatchedView], float]], ...] = (
            ("applied_snapshot", "Oldest snapshot applied.", lambda of: _snapshots(of)[0]),
            ("latest_snapshot", "Newest snapshot of the tiles.", lambda of: _snapshots(of)[1]),
            (
                "last_pass_seconds",
                "When the last pass ended, Unix time.",
                lambda of: of.passed_at_s,
            ),
        )
        with self._lock:
            for family, metrics in ((CounterMetricFamily, counters), (GaugeMetricFamily, gauges)):
                for name, text, value in metrics:
                    metric = family(f"{_PREFIX}_{name}", text, labels=["view"])
                    for view, of in self._watched.items():
                        metric.add_metric([view], value(of))
                    yield metric

    def _report(self, progress: MaterializeProgress) -> _WatchedView:
        of = self._watched[progress.view]
        of.reported_s = self.clock()
        rebuilding = progress.rebuilding is not None
        of.rebuilds += rebuilding and not of.rebuilding
        of.losses += rebuilding and not of.rebuilding and progress.lost
        of.rebuilding = rebuilding
        return of

    def _health_of(self, of: _WatchedView) -> dict[str, Any]:
        applied, latest = _snapshots(of)
        return {
            "ready": of.last is not None and of.last.caught_up and of.trouble is None,
            "applied_snapshot": applied,
            "latest_snapshot": latest,
            "rebuilding": None if of.last is None else of.last.rebuilding,
            "trouble": of.trouble,
            "silent_s": round(self.clock() - of.reported_s, 3),
        }


def _snapshots(of: _WatchedView) -> tuple[int, int]:
    return (0, 0) if of.last is None else (of.last.applied_snapshot, of.last.latest_snapshot)


class MonitorServer:
    """Serves ``/metrics``, ``/health/live`` and ``/health/ready`` in its own thread.

    Health is 200 or 503, with a JSON document as explanation. ``address`` is ``host:port``, or a
    port on the loopback interface; port 0 selects a free one.

    Raises
    ------
    ConfigurationError
        For an address that cannot be bound.
    """

    def __init__(self, monitor: Monitor, address: str) -> None:
        host, _, port = address.rpartition(":")
        if not port.isdigit():
            raise ConfigurationError(f"listen={address!r}; expected a port or host:port")
        try:
            self._server = ThreadingHTTPServer((host or "127.0.0.1", int(port)), _handler(monitor))
        except (OSError, OverflowError) as error:
            raise ConfigurationError(f"cannot listen on {address}: {error}") from error
        self._server.daemon_threads = True
        self.address = "{}:{}".format(*self._server.server_address[:2])
        self._thread = threading.Thread(target=self._server.serve_forever, name="monitor")

    def __enter__(self) -> MonitorServer:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def _handler(monitor: Monitor) -> type[BaseHTTPRequestHandler]:
    class MonitorHandler(BaseHTTPRequestHandler):
        timeout = 10

        def do_GET(self) -> None:
            if self.path == "/metrics":
                self._answer(200, "text/plain; version=0.0.4; charset=utf-8", monitor.metrics())
            elif self.path in ("/health/live", "/health/ready"):
                health = monitor.health()
                well = health[self.path.rpartition("/")[2]]
                body = json.dumps(health).encode()
                self._answer(200 if well else 503, "application/json", body)
            else:
                known = b"available: /metrics, /health/live, /health/ready\n"
                self._answer(404, "text/plain; charset=utf-8", known)

        def log_message(self, *args: object) -> None:
            """Do not log requests: monitoring sends one every few seconds."""

        def _answer(self, code: int, kind: str, body: bytes) -> None:
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    return MonitorHandler
