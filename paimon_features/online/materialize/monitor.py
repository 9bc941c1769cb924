"""Prometheus metrics and health of a materializer; ``monitor_server`` serves them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from paimon_features.core.errors import MissingExtraError
from paimon_features.core.times.clock import now_ms
from paimon_features.online.materialize.materialize_progress import MaterializeProgress

SILENT_AFTER_S = 120.0
"""A view without any report for this long hangs: passes are at most 5 s apart, and long ones
report each unit of work."""

STORE_TROUBLE = "the online store does not respond; the materializer's log has the reason"

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

    def failed(self, view: str) -> None:
        """Record a failure of the store, which is retried. The caller logs its details: they have
        the store's address, and anybody who reaches the monitor can read what it reports."""
        with self._lock:
            of = self._watched[view]
            of.reported_s, of.trouble = self.clock(), STORE_TROUBLE
            of.errors += 1

    def health(self) -> dict[str, Any]:
        """Return ``live``: every view reported recently. ``ready``: every view is caught up."""
        with self._lock:
            views = {name: self._health_of(of) for name, of in self._watched.items()}
        return {
            "live": all(view["silent_s"] < SILENT_AFTER_S for view in views.values()),
            "ready": all(view["ready"] for view in views.values()),
            "views": views,
        }

    def metrics(self) -> bytes:
        """Return all metrics in the text format of Prometheus."""
        try:
            from prometheus_client import CollectorRegistry, generate_latest
        except ImportError as error:
            raise MissingExtraError.of("prometheus-client", "serve", "metrics") from error
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        text: bytes = generate_latest(registry)
        return text

    def collect(self) -> Iterable[Any]:
        """Yield the metric families, for a ``prometheus_client`` registry."""
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
