"""Counts of one worker, and the Prometheus page for all of them.

A request increments plain integers. Once a second a worker writes its counts to a file of its
own, and the worker that serves the page adds up all files. So a reported count lags by a second at
most, and counting costs a request next to nothing. A worker that replaces one that died continues
from its counts, so that no counter decreases.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import generate_latest

from paimon_features.core.types.statuses import Status
from paimon_features.serving.replies.freshness import Freshness

PREFIX = "paimon_features_"
LATENCIES_S = (
    0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0,
)  # fmt: skip
ENTITIES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 100_000)

MAX_CLIENTS = 1_000
"""Clients with a label of their own; the others share one."""
OTHERS = "(others)"
_OF_CLIENTS = {
    "client_requests": "Requests of clients with tokens, by the token's name.",
    "client_rows": "Entities and rows that they requested.",
    "client_refused": "Requests that were over their quota.",
}
KEPT_S = 10.0
"""A worker that has not written for this long is gone: its gauges no longer count."""


class HistogramCounts(msgspec.Struct):
    """Counts by bucket (the last one has no upper edge), and the sum of observed values."""

    counts: list[int]
    total: float = 0.0

    @classmethod
    def over(cls, edges: Sequence[float]) -> HistogramCounts:
        """Return an empty histogram with these upper edges (inclusive)."""
        return cls([0] * (len(edges) + 1))


class ShadowCounts(msgspec.Struct):
    """What a shadow version predicted: rows, the sum of the distances from what was answered, and
    the rows that failed."""

    rows: int = 0
    difference: float = 0.0
    failed: int = 0


class ViewMarks(msgspec.Struct, frozen=True, array_like=True):
    """The freshness of all buckets of a view, read at ``read_ms``.

    ``behind`` is that of the health document.
    """

    read_ms: int
    applied_snapshot: int
    current_ms: int
    low_ms: int | None
    high_ms: int | None
    stale: bool
    behind: bool


class Counts(msgspec.Struct):
    """The counts of one worker. Maps of counters are by the values of their labels."""

    requests: dict[str, dict[str, int]] = msgspec.field(default_factory=dict)
    latency: dict[str, HistogramCounts] = msgspec.field(default_factory=dict)
    entities: HistogramCounts = msgspec.field(
        default_factory=lambda: HistogramCounts.over(ENTITIES)
    )
    values: int = 0
    statuses: dict[str, list[int]] = msgspec.field(default_factory=dict)
    refused: dict[str, int] = msgspec.field(default_factory=dict)
    reads: dict[str, int] = msgspec.field(default_factory=dict)
    reloads: dict[str, int] = msgspec.field(default_factory=dict)
    logged: dict[str, int] = msgspec.field(default_factory=dict)
    logged_predictions: dict[str, int] = msgspec.field(default_factory=dict)
    closed: dict[str, int] = msgspec.field(default_factory=dict)
    predictions: dict[str, int] = msgspec.field(default_factory=dict)
    network: dict[str, int] = msgspec.field(default_factory=dict)
    shadows: dict[str, ShadowCounts] = msgspec.field(default_factory=dict)
    clients: dict[str, list[int]] = msgspec.field(default_factory=dict)
    waiting_rows: int = 0
    starts: int = 0
    in_flight: int = 0
    connections: int = 0
    buffered_bytes: int = 0
    written_s: float = 0.0
    freshness: dict[str, ViewMarks] = msgspec.field(default_factory=dict)
    models_ok: bool = True
    model_ok: dict[str, bool] = msgspec.field(default_factory=dict)

    def request(self, route: str, status: int, took_s: float) -> None:
        """Count an answered request."""
        by_status = self.requests.get(route)
        if by_status is None:
            by_status = self.requests[route] = {}
            self.latency[route] = HistogramCounts.over(LATENCIES_S)
        name = str(status)
        by_status[name] = by_status.get(name, 0) + 1
        latency = self.latency[route]
        latency.counts[bisect_left(LATENCIES_S, took_s)] += 1
        latency.total += took_s

    def refuse(self, reason: str) -> None:
        """Count a request that was not accepted."""
        self.refused[reason] = self.refused.get(reason, 0) + 1

    def answer(self, rows: int, values: int, statuses: Mapping[str, Sequence[int]]) -> None:
        """Count a feature read: its entities, its values, and by view the values per status."""
        self.entities.counts[bisect_left(ENTITIES, rows)] += 1
        self.entities.total += rows
        self.values += values
        for view, counts in statuses.items():
            totals = self.statuses.get(view)
            if totals is None:
                self.statuses[view] = list(counts)
            else:
                for status, count in enumerate(counts):
                    totals[status] += count

    def use(self, label: str, used: tuple[int, int, int]) -> None:
        """Count requests, rows and refusals of the clients with this label."""
        if label not in self.clients and len(self.clients) >= MAX_CLIENTS:
            label = OTHERS
        totals = self.clients.setdefault(label, [0, 0, 0])
        for number, count in enumerate(used):
            totals[number] += count

    def predict(self, version: str, rows: int) -> None:
        """Count the predictions of a version, ``model@version``."""
        self.predictions[version] = self.predictions.get(version, 0) + rows

    def shadow(self, version: str, rows: int, difference: float, failed: int = 0) -> None:
        """Count what a shadow version predicted next to the one that answered."""
        totals = self.shadows.setdefault(version, ShadowCounts())
        totals.rows += rows
        totals.difference += difference
        totals.failed += failed

    def fresh(self, freshness: Mapping[str, tuple[Freshness, bool]], read_ms: int) -> None:
        """Note the freshness of all buckets of views, and whether the views are behind."""
        for view, (f, behind) in freshness.items():
            self.freshness[view] = ViewMarks(
                read_ms,
                f.applied_snapshot,
                f.current_ms,
                f.event_time_low_ms,
                f.event_time_high_ms,
                f.stale,
                behind,
            )


class GrowingTotals:
    """Adds totals that only grow to ``counters``: each time the growth since the last time.

    >>> counters = {"reads": 10}
    >>> totals = GrowingTotals(counters)
    >>> totals.add({"reads": 3})
    >>> totals.add({"reads": 5})
    >>> counters
    {'reads': 15}
    """

    def __init__(self, counters: dict[str, int]) -> None:
        self._counters = counters
        self._last: Mapping[str, int] = {}

    def add(self, totals: Mapping[str, int]) -> None:
        """Add the growth since the last call."""
        for name, total in totals.items():
            growth = total - self._last.get(name, 0)
            self._counters[name] = self._counters.get(name, 0) + growth
        self._last = totals

    def restart(self) -> None:
        """Forget the last totals: the next ones start at zero."""
        self._last = {}


class CountsFile:
    """The file of one worker's counts, in a folder that all workers of a server share."""

    def __init__(self, folder: Path, slot: int) -> None:
        self._folder = folder
        self._path = folder / f"worker-{slot}.json"

    def load(self) -> Counts:
        """Return the counts to continue from: those of the previous worker of this slot."""
        try:
            counts = msgspec.json.decode(self._path.read_bytes(), type=Counts)
        except (OSError, msgspec.MsgspecError):
            counts = Counts()
        counts.starts += 1
        counts.in_flight = counts.connections = counts.buffered_bytes = 0
        counts.freshness, counts.model_ok, counts.models_ok = {}, {}, True
        return counts

    def write(self, counts: Counts, now_s: float) -> None:
        """Publish the counts; a full disk loses counts and fails no request."""
        counts.written_s = now_s
        fresh = self._path.with_suffix(".new")
        try:
            fresh.write_bytes(msgspec.json.encode(counts))
            os.replace(fresh, self._path)
        except OSError:
            return

    def of_all(self) -> list[Counts]:
        """Return the counts of all workers, as last written."""
        counts = []
        for path in sorted(self._folder.glob("worker-*.json")):
            try:
                counts.append(msgspec.json.decode(path.read_bytes(), type=Counts))
            except (OSError, msgspec.MsgspecError):
                continue  # being written for the first time
        return counts


def page(counts: Sequence[Counts], now_s: float, definitions_ms: int, ok: bool) -> bytes:
    """Return the Prometheus page of these workers.

    ``definitions_ms`` is when the current definitions were loaded, ``ok`` whether the last attempt
    to load them succeeded.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(counts, now_s, definitions_ms, ok))
    text: bytes = generate_latest(registry)
    return text


@dataclass(frozen=True, slots=True, eq=False)
class _Collector:
    counts: Sequence[Counts]
    now_s: float
    definitions_ms: int
    ok: bool

    def collect(self) -> Iterator[Metric]:
        """Yield each family of metrics, summed over the workers."""
        alive = [c for c in self.counts if self.now_s - c.written_s < KEPT_S]
        yield from self._of_requests()
        yield from self._of_clients()
        yield from self._of_reads()
        yield from self._of_views(alive)
        yield from self._of_models(alive)
        yield _gauge("in_flight", "Feature requests in flight.", sum(c.in_flight for c in alive))
        connections = sum(c.connections for c in alive)
        yield _gauge("connections", "Open connections.", connections)
        held = sum(c.buffered_bytes for c in alive)
        yield _gauge("buffered_bytes", "Bytes of requests and replies in memory.", held)
        yield _gauge("workers", "Workers that are running.", len(alive))
        starts = sum(c.starts for c in self.counts)
        yield _counter("worker_starts", "Starts of workers.", {(): starts})
        yield _gauge("definitions_loaded_seconds", "When these definitions were loaded, Unix.",
                     self.definitions_ms / 1_000)  # fmt: skip
        yield _gauge(
            "definitions_ok", "Whether the last attempt to load them succeeded.", int(self.ok)
        )

    def _of_requests(self) -> Iterator[Metric]:
        requests: dict[tuple[str, ...], float] = {}
        latency: dict[str, HistogramCounts] = {}
        for counts in self.counts:
            for route, by_status in counts.requests.items():
                for status, count in by_status.items():
                    requests[route, status] = requests.get((route, status), 0) + count
            for route, histogram in counts.latency.items():
                _add(latency.setdefault(route, HistogramCounts.over(LATENCIES_S)), histogram)
        yield _counter("requests", "Requests by route and status.", requests, ("route", "status"))
        text = "From a request's head to its reply."
        yield _histogram("request_seconds", text, latency, LATENCIES_S, ("route",))
        yield self._summed("refused", "Requests that were not accepted.", "reason",
                           [c.refused for c in self.counts])  # fmt: skip
        yield self._summed("connections_closed", "Connections that the server ended.", "reason",
                           [c.closed for c in self.counts])  # fmt: skip
        yield self._summed("reloads", "Attempts to reload the definitions.", "result",
                           [c.reloads for c in self.counts])  # fmt: skip
        if any(c.logged for c in self.counts):
            yield self._summed("request_log_rows", "Rows of the request log: written, dropped.",
                               "result", [c.logged for c in self.counts])  # fmt: skip
        if any(c.logged_predictions for c in self.counts):
            yield self._summed("prediction_log_rows",
                               "Rows of the prediction log: written, dropped.",
                               "result", [c.logged_predictions for c in self.counts])  # fmt: skip

    def _of_clients(self) -> Iterator[Metric]:
        totals: dict[tuple[str, ...], list[int]] = {}
        for counts in self.counts:
            for label, client_counts in counts.clients.items():
                sums = totals.setdefault((label,), [0, 0, 0])
                for number, count in enumerate(client_counts):
                    sums[number] += count
        for number, (name, text) in enumerate(_OF_CLIENTS.items()):
            values = {key: float(client_sums[number]) for key, client_sums in totals.items()}
            if values:
                yield _counter(name, text, values, ("client",))

    def _of_reads(self) -> Iterator[Metric]:
        entities = HistogramCounts.over(ENTITIES)
        for counts in self.counts:
            _add(entities, counts.entities)
        yield _histogram("request_entities", "Entities of a request.", {"": entities}, ENTITIES)
        rows = int(entities.total)
        yield _counter("entity_rows", "Entities whose features were read.", {(): rows})
        values = sum(c.values for c in self.counts)
        yield _counter("feature_values", "Values in replies.", {(): values})
        names = sorted({name for counts in self.counts for name in counts.reads})
        for name in names:
            total = sum(c.reads.get(name, 0) for c in self.counts)
            yield _counter(name, READS.get(name, name), {(): total})

    def _of_models(self, alive: Sequence[Counts]) -> Iterator[Metric]:
        text = "Whether the index of models could be read."
        yield _gauge("models_ok", text, int(all(c.models_ok for c in alive)))
        loaded = GaugeMetricFamily(
            f"{PREFIX}model_ok", "1 if all that is published of it is served.", labels=["model"]
        )
        for name in sorted({name for c in alive for name in c.model_ok}):
            loaded.add_metric([name], int(all(c.model_ok.get(name, True) for c in alive)))
        yield loaded
        if not any(c.predictions or c.network or c.shadows for c in self.counts):
            return  # a server without models
        rows: dict[tuple[str, ...], float] = {}
        shadows: dict[tuple[str, ...], list[float]] = {}
        for counts in self.counts:
            for name, count in counts.predictions.items():
                key = tuple(name.split("@"))
                rows[key] = rows.get(key, 0) + count
            for name, shadow in counts.shadows.items():
                sums = shadows.setdefault(tuple(name.split("@")), [0, 0.0, 0])
                for place, value in enumerate((shadow.rows, shadow.difference, shadow.failed)):
                    sums[place] += value
        labels = ("model", "version")
        yield _counter("predictions", "Predictions in replies, in rows.", rows, labels)
        for place, (name, text) in enumerate(_SHADOWS.items()):
            totals = {key: sums[place] for key, sums in shadows.items()}
            yield _counter(name, text, totals, labels)
        for name, text in _NETWORK.items():
            total = sum(c.network.get(name, 0) for c in self.counts)
            if name.endswith("_us"):
                yield _counter(name.removesuffix("_us") + "_seconds", text, {(): total / 1e6})
            else:
                yield _counter(name, text, {(): total})
        waiting = sum(c.waiting_rows for c in alive)
        yield _gauge("prediction_waiting_rows", "Rows that wait for a network.", waiting)

    def _of_views(self, alive: Sequence[Counts]) -> Iterator[Metric]:
        statuses: dict[tuple[str, ...], float] = {}
        for counts in self.counts:
            for view, view_counts in counts.statuses.items():
                for status, count in zip(Status, view_counts, strict=False):
                    key = (view, status.name)
                    statuses[key] = statuses.get(key, 0) + count
        yield _counter("feature_statuses", "Values in replies by view and status.", statuses,
                       ("view", "status"))  # fmt: skip
        newest: dict[str, ViewMarks] = {}
        for counts in alive:
            for view, marks in counts.freshness.items():
                if view not in newest or newest[view].read_ms < marks.read_ms:
                    newest[view] = marks
        snapshot = GaugeMetricFamily(
            f"{PREFIX}applied_snapshot", "Snapshot that every value includes.", labels=["view"]
        )
        age = GaugeMetricFamily(
            f"{PREFIX}freshness_seconds",
            "Time since the store was known to be up to date with the tile table.",
            labels=["view"],
        )
        stale = GaugeMetricFamily(
            f"{PREFIX}stale", "1 if that is over the view's max_staleness.", labels=["view"]
        )
        behind = GaugeMetricFamily(
            f"{PREFIX}behind",
            "1 if that is over the view's max_staleness; without one, over 5 min if followed.",
            labels=["view"],
        )
        low, high = (
            GaugeMetricFamily(f"{PREFIX}event_time_{mark}_seconds", text, labels=["view"])
            for mark, text in (
                ("low", "Oldest of the buckets' newest event times, Unix time."),
                ("high", "Newest event time applied, Unix time."),
            )
        )
        for view, marks in sorted(newest.items()):
            snapshot.add_metric([view], marks.applied_snapshot)
            age.add_metric([view], max(self.now_s - marks.current_ms / 1_000, 0.0))
            stale.add_metric([view], int(marks.stale))
            behind.add_metric([view], int(marks.behind))
            for family, mark_ms in ((low, marks.low_ms), (high, marks.high_ms)):
                if mark_ms is not None:
                    family.add_metric([view], mark_ms / 1_000)
        yield from (snapshot, age, stale, behind, low, high)

    def _summed(
        self, name: str, text: str, label: str, parts: Sequence[Mapping[str, int]]
    ) -> Metric:
        total: dict[tuple[str, ...], float] = {}
        for part in parts:
            for key, count in part.items():
                total[key,] = total.get((key,), 0) + count
        return _counter(name, text, total, (label,))


_SHADOWS: Mapping[str, str] = {
    "shadow_predictions": "Rows that shadow versions predicted; they are not returned.",
    "shadow_difference": "Sum of the distances of these from what was answered.",
    "shadow_failed": "Rows for which the network of a shadow version failed.",
}
_NETWORK: Mapping[str, str] = {
    "network_runs": "Runs of networks; one serves all requests that waited for it.",
    "network_rows": "Rows in these runs.",
    "network_us": "Time of these runs.",
    "predictions_late": "Requests whose prediction was not made in time.",
    "shadow_dropped": "Rows that shadow versions did not predict for lack of time.",
}
READS: Mapping[str, str] = {
    "batches": "Reads of the online store; one serves all requests that waited for it.",
    "batched_requests": "Requests answered by these reads.",
    "cells_read": "Cells (tiles and coarser) in the records read.",
    "records_read": "Records read.",
    "cache_hits": "Entities served from the cache.",
    "cache_misses": "Entities not found in the cache.",
}
"""Counters of reads, and their help texts."""


def _add(total: HistogramCounts, part: HistogramCounts) -> None:
    total.total += part.total
    for place, count in enumerate(part.counts[: len(total.counts)]):
        total.counts[place] += count


def _counter(
    name: str, text: str, values: Mapping[tuple[str, ...], float], labels: Sequence[str] = ()
) -> Metric:
    family = CounterMetricFamily(PREFIX + name, text, labels=list(labels))
    for key, value in sorted(values.items()):
        family.add_metric(list(key), value)
    return family


def _gauge(name: str, text: str, value: float) -> Metric:
    family = GaugeMetricFamily(PREFIX + name, text)
    family.add_metric([], value)
    return family


def _histogram(
    name: str,
    text: str,
    values: Mapping[str, HistogramCounts],
    edges: Sequence[float],
    labels: Sequence[str] = (),
) -> Metric:
    family = HistogramMetricFamily(PREFIX + name, text, labels=list(labels))
    for key, histogram in sorted(values.items()):
        buckets, below = [], 0
        for edge, count in zip(
            [*(str(float(e)) for e in edges), "+Inf"], histogram.counts, strict=True
        ):
            below += count
            buckets.append((edge, below))
        family.add_metric([key] if labels else [], buckets, histogram.total)
    return family
