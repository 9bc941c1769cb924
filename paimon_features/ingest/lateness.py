"""Lateness of events: the time from an event to its ingestion, counted in bounded memory.

Two histograms: display buckets with human-readable edges, counted exactly; and fine buckets, each
a sixteenth of a power of two wide, for the quantiles.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from paimon_features.core.types.array_types import Ints
from paimon_features.core.windows import (
    DAY_MS,
    HOUR_MS,
    MAX_TIME_MS,
    MIN_TIME_MS,
    MINUTE_MS,
    SECOND_MS,
)
from paimon_features.definitions.source import EventSource
from paimon_features.lake import table_options
from paimon_features.lake.catalog import Lake
from paimon_features.lake.events.rejects import time_ms
from paimon_features.lake.reading.table_reader import iter_batches
from paimon_features.lake.specs import EVENT_DAY, INGEST_TIME_MS

EDGES_MS = (
    0, SECOND_MS, 10 * SECOND_MS, MINUTE_MS, 10 * MINUTE_MS, HOUR_MS, 6 * HOUR_MS, DAY_MS,
    7 * DAY_MS, 30 * DAY_MS, 365 * DAY_MS,
)  # fmt: skip
"""Lower edges (inclusive) of the display buckets except the first, which is below 0."""
QUANTILES = (0.5, 0.9, 0.99, 0.999)
_FINE = 16


@dataclass(frozen=True, slots=True)
class Lateness:
    """The distribution of the lateness of events.

    ``counts[0]`` events were ahead of the clock, ``counts[i]`` at least ``EDGES_MS[i - 1]`` and
    less than ``EDGES_MS[i]`` late. ``quantiles_ms`` are upper bounds, at most a sixteenth above
    the value. ``least_ms`` and ``greatest_ms`` are exact; None without events.
    """

    source: str
    counts: tuple[int, ...]
    quantiles_ms: tuple[tuple[float, int], ...]
    least_ms: int | None
    greatest_ms: int | None

    @property
    def events(self) -> int:
        return sum(self.counts)

    def later_than(self, edge_ms: int) -> int:
        """Return the number of events at least that late; ``edge_ms`` is one of ``EDGES_MS``."""
        return sum(self.counts[EDGES_MS.index(edge_ms) + 1 :])


def lateness(
    lake: Lake,
    source: EventSource,
    ingested_from_ms: int | None = None,
    event_days: tuple[int | None, int | None] = (None, None),
) -> Lateness:
    """Return the lateness of a source's events: ``ingest_time_ms`` less the event time.

    ``ingested_from_ms`` excludes earlier ingestion (such as loading an archive); ``event_days`` are
    the first day (inclusive) and the last (exclusive), in days since 1970.

    Raises
    ------
    UnknownNameError
        If the source was not applied.
    """
    columns = [source.event_time, INGEST_TIME_MS]
    shown = np.zeros(len(EDGES_MS) + 1, np.int64)
    fine = np.zeros(64 * _FINE, np.int64)
    least: int | None = None
    greatest: int | None = None
    first, end = event_days
    if first is not None:  # the partition of a day can begin before it
        first -= table_options.partition_days(lake, source.table) - 1
    ranges = {
        name: limits
        for name, limits in (
            (INGEST_TIME_MS, (ingested_from_ms, None)),
            (EVENT_DAY, (first, end)),
        )
        if limits != (None, None)
    }
    for batch in iter_batches(lake, source.table, columns, partitions=ranges):
        if event_days != (None, None):
            batch = batch.filter(_within(time_ms(batch.column(0)), event_days))
        spans = pc.subtract(batch.column(1), time_ms(batch.column(0))).drop_null()
        late = spans.to_numpy()  # rows not written by ingest may lack the time
        if not len(late):
            continue
        shown += np.bincount(np.searchsorted(EDGES_MS, late, "right"), minlength=len(shown))
        fine += np.bincount(_fine_bucket(np.maximum(late, 0)), minlength=len(fine))
        least = int(late.min()) if least is None else min(least, int(late.min()))
        greatest = int(late.max()) if greatest is None else max(greatest, int(late.max()))
    quantiles: list[tuple[float, int]] = []
    if greatest is not None:
        cumulative = np.cumsum(fine)
        for share in QUANTILES:
            rank = max(int(np.ceil(share * cumulative[-1])), 1)
            bucket = int(np.searchsorted(cumulative, rank))
            quantiles.append((share, min(_last_of(bucket), max(greatest, 0))))
    return Lateness(source.name, tuple(shown.tolist()), tuple(quantiles), least, greatest)


def _within(times: pa.Array, days: tuple[int | None, int | None]) -> pa.Array:
    """Return the mask of the times of days, the first inclusive and the last exclusive; None for
    no bound."""
    low, high = (
        edge if day is None else day * DAY_MS
        for day, edge in zip(days, (MIN_TIME_MS, MAX_TIME_MS + 1), strict=True)
    )
    return pc.and_(pc.greater_equal(times, low), pc.less(times, high))


def bucket_of(late_ms: int) -> int:
    """Return the display bucket of a lateness: the index into ``counts``.

    >>> bucket_of(-1), bucket_of(0), bucket_of(999), bucket_of(1000)
    (0, 1, 1, 2)
    """
    return bisect_right(EDGES_MS, late_ms)


def _fine_bucket(late: Ints) -> Ints:
    """Return fine buckets: single values below 16; above, 16 per power of two."""
    # frexp of the integer as a float is exact below 2^53 ms, a span of 285,000 years
    exponent = np.maximum(np.frexp(late.astype(np.float64))[1].astype(np.int64) - 5, 0)
    bucket: Ints = exponent * _FINE + (late >> exponent)
    return bucket


def _last_of(bucket: int) -> int:
    """Return the upper bound (inclusive) of a fine bucket."""
    exponent = max(bucket // _FINE - 1, 0)
    return ((bucket - exponent * _FINE + 1) << exponent) - 1
