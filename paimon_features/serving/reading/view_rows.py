"""What one read of the store returns for one view: a row for each entity of each query."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from paimon_features.core.errors import OnlineStoreError, PaimonFeaturesError, StoreNotReadyError
from paimon_features.core.native import CORE
from paimon_features.core.types.array_types import Bools, Ints
from paimon_features.core.windows import MINUTE_MS
from paimon_features.definitions import CompiledView
from paimon_features.definitions.aggregates.fold import NEVER_MS
from paimon_features.online.store.codec import Cells, Records
from paimon_features.online.store.markers import Marker
from paimon_features.serving.reading.entities import EntityKeys
from paimon_features.serving.reading.view_states import Epoch
from paimon_features.serving.replies.freshness import Freshness

WARN_AFTER_MS = 5 * MINUTE_MS
"""A view without ``max_staleness`` that has been behind for longer causes a warning. A running
materializer confirms every second that an idle view is up to date."""
_FEW_BUCKETS = 64


class ViewRows:
    """The rows of one view, those of all queries in sequence.

    It first names the ``keys`` to read, and then takes their values (``fill``). For rows with a
    lost marker ``part`` raises, for those with a corrupt record the decoding.
    """

    def __init__(self, name: str, epoch: Epoch, entities: Sequence[EntityKeys]) -> None:
        self._name = name
        self.epoch = epoch
        self._bucket_of = epoch.buckets.of(entities)
        self._buckets = list(dict.fromkeys(self._bucket_of))
        of_bucket = {bucket: epoch.keys(bucket) for bucket in self._buckets}
        stems = {bucket: keys.record_stem for bucket, keys in of_bucket.items()}
        encoded = [one for keys in entities for one in keys.encoded]
        self._marker_keys = [keys.marker for keys in of_bucket.values()]
        self.keys = [
            *self._marker_keys,
            *[stems[b] + one for b, one in zip(self._bucket_of, encoded, strict=True)],
        ]
        """The markers of the entities' buckets, and the records."""

    def lacks_markers(self, found: Sequence[bytes | None]) -> bool:
        """Return True if a marker is missing among the values of ``keys``."""
        return None in found[: len(self._marker_keys)]

    def fill(self, found: Sequence[bytes | None]) -> None:
        """Take the values of ``keys``."""
        split = len(self._marker_keys)
        self._markers: dict[int, Marker] = {}
        self._lost: dict[int, PaimonFeaturesError] = {}
        for bucket, key, raw in zip(self._buckets, self._marker_keys, found[:split], strict=True):
            self._take_marker(bucket, key, raw)
        self.found = list(found[split:])
        """The bytes of each row's record."""

    def count(self) -> tuple[int, int]:
        """Return the number of rows with a record that can be read, and of the cells of these
        records."""
        layout = self.epoch.layout
        if CORE is not None and "_decoded" not in self.__dict__:
            return CORE.count(self.found, layout.words)
        records = self._decoded.records
        return len(records.headers), len(records.cells)

    def part(self, start: int, stop: int) -> RowRange:
        """Return the rows from ``start`` to ``stop`` (exclusive).

        Raises
        ------
        OnlineStoreError
            If the store has lost or corrupted something of one of them. What is corrupt may be
            found only when the records are needed.
        """
        buckets = self._bucket_of[start:stop]
        if self._lost:
            for bucket in buckets:
                if bucket in self._lost:
                    self.decoded(start, stop)
                    raise self._lost[bucket]
        return RowRange(self, start, stop, buckets, self._markers)

    def decoded(self, start: int, stop: int) -> DecodedRows:
        """Return the rows from ``start`` to ``stop`` (exclusive), decoded.

        Raises
        ------
        OnlineStoreError
            If one of them is corrupt.
        """
        every = self._decoded
        for row, error in every.corrupt:
            if start <= row < stop:
                raise error
        # axes: rows (all, those of this part), records, cells
        first, last = int(every.record_at[start]), int(every.record_at[stop])
        cells = every.records.cells
        begin, end = int(every.cell_at[start]), int(every.cell_at[stop])
        records = Records(
            every.records.headers[first:last],
            Cells(cells.rows[begin:end], cells.text),
            every.records.offsets[first : last + 1] - begin,
        )
        return DecodedRows(
            records, every.there[start:stop], every.cell_at[start : stop + 1] - begin
        )

    def _take_marker(self, bucket: int, key: bytes, raw: bytes | None) -> None:
        try:
            if raw is not None:
                marker = self._markers[bucket] = self.epoch.marker(bucket, raw)
                if marker.complete:
                    return
            self._lost[bucket] = StoreNotReadyError(
                f"feature view {self._name!r}: the online store has lost "
                f"{key.decode()}; a running materializer rebuilds the view"
            )
        except OnlineStoreError as error:
            self._lost[bucket] = error

    @cached_property
    def _decoded(self) -> _AllRows:
        decode, raw_records = self.epoch.layout.decode, list(self.found)
        corrupt: list[tuple[int, PaimonFeaturesError]] = []
        try:
            records = decode([raw for raw in raw_records if raw is not None])
        except OnlineStoreError:
            for row, raw in enumerate(raw_records):
                try:
                    decode([] if raw is None else [raw])
                except OnlineStoreError as error:
                    corrupt.append((row, error))
                    raw_records[row] = None
            records = decode([raw for raw in raw_records if raw is not None])
        has_record = np.array([raw is not None for raw in raw_records], np.bool_)
        # for each row the index of its record, if it has one, and of its first cell
        record_at = np.zeros(len(raw_records) + 1, np.int64)
        np.cumsum(has_record, out=record_at[1:])
        return _AllRows(records, has_record, record_at, records.offsets[record_at], corrupt)


@dataclass(frozen=True, slots=True, eq=False)
class _AllRows:
    """The decoded rows of a read, and the errors of those that are corrupt."""

    records: Records
    there: Bools
    record_at: Ints
    cell_at: Ints
    corrupt: list[tuple[int, PaimonFeaturesError]]


@dataclass(frozen=True, slots=True, eq=False)
class DecodedRows:
    """Decoded records of some rows.

    ``offsets`` are those of the cells of each row, ``there`` is true for rows with a record;
    ``records`` has only those.
    """

    records: Records
    there: Bools
    offsets: Ints

    @property
    def bucket_high_ms(self) -> int:
        """The greatest ``bucket_high`` of the records; NEVER_MS without one."""
        headers = self.records.headers
        return int(headers["bucket_high"].max()) if len(headers) else NEVER_MS

    def spread(self, of_records: Ints) -> Ints:
        """Return values of records as values of rows; NEVER_MS for rows without a record."""
        if self.there.all():
            return of_records
        out = np.full(len(self.there), NEVER_MS, np.int64)
        out[self.there] = of_records
        return out


class RowRange:
    """Some of the rows, with their records and markers; the records are decoded when needed."""

    def __init__(
        self,
        rows: ViewRows,
        start: int,
        stop: int,
        bucket_of: Sequence[int],
        markers: dict[int, Marker],
    ) -> None:
        self._rows, self.start, self.stop = rows, start, stop
        self.bucket_of = bucket_of
        self.markers = {bucket: markers[bucket] for bucket in set(bucket_of)}

    def __len__(self) -> int:
        return len(self.bucket_of)

    @property
    def found(self) -> list[bytes | None]:
        """The bytes of the records of all rows; those of this part are ``start`` to ``stop``."""
        return self._rows.found

    @cached_property
    def decoded(self) -> DecodedRows:
        """The decoded records; OnlineStoreError if one is corrupt."""
        return self._rows.decoded(self.start, self.stop)

    def high_ms(self, bucket_high_ms: int) -> int:
        """Return the newest event time by which something of these rows may have been pruned.

        ``bucket_high_ms`` is the greatest of the records'.
        """
        # a record can be ahead of its bucket's marker, and pruned by that
        return max([marker.high_ms for marker in self.markers.values()] + [bucket_high_ms])


class FreshnessLookup:
    """The freshness of the rows of single queries, computed once for each set of buckets."""

    def __init__(self, view: CompiledView, part: RowRange, clock_ms: int) -> None:
        self._bucket_of = part.bucket_of
        self._single = {
            bucket: _known_freshness((marker,), is_stale(view, marker.current_ms, clock_ms))
            for bucket, marker in part.markers.items()
        }
        self._known: dict[frozenset[int], Freshness] = {}
        self._markers = part.markers
        self.stale = {bucket for bucket, freshness in self._single.items() if freshness.stale}

    def of(self, start: int, stop: int) -> Freshness:
        """Return the worst of the buckets of these rows."""
        if stop - start == 1:
            return self._single[self._bucket_of[start]]
        buckets = frozenset(self._bucket_of[start:stop])
        if len(buckets) == 1:
            return self._single[self._bucket_of[start]]
        worst = self._known.get(buckets)
        if worst is None:
            markers = tuple([self._markers[bucket] for bucket in sorted(buckets)])
            stale = not self.stale.isdisjoint(buckets)
            of_markers = _known_freshness if len(markers) <= _FEW_BUCKETS else freshness_of
            worst = self._known[buckets] = of_markers(markers, stale)
        return worst


def worst_freshness(view: CompiledView, markers: Sequence[Marker], clock_ms: int) -> Freshness:
    """Return the worst of some buckets."""
    stale = any(is_stale(view, marker.current_ms, clock_ms) for marker in markers)
    return freshness_of(markers, stale)


def is_stale(view: CompiledView, current_ms: int, clock_ms: int) -> bool:
    """Return True if a bucket that was up to date at ``current_ms`` is too far behind."""
    limit_ms = view.max_staleness_ms
    return limit_ms is not None and clock_ms - current_ms > limit_ms


def freshness_of(markers: Sequence[Marker], stale: bool) -> Freshness:
    """Return the worst of some buckets, which are behind or not."""
    highs = [m.high_ms for m in markers] or [NEVER_MS]
    low_ms, high_ms = min(highs), max(highs)
    return Freshness(
        applied_snapshot=min((m.applied_snapshot for m in markers), default=0),
        commit_time_ms=min((m.commit_time_ms for m in markers), default=0),
        event_time_low_ms=None if low_ms == NEVER_MS else low_ms,
        event_time_high_ms=None if high_ms == NEVER_MS else high_ms,
        current_ms=min((m.current_ms for m in markers), default=0),
        stale=stale,
    )


@lru_cache(maxsize=4_096)
def _known_freshness(markers: tuple[Marker, ...], stale: bool) -> Freshness:
    """Return the same of a few markers, which change about once a second; reads see them often."""
    return freshness_of(markers, stale)


def is_behind(freshness: Freshness, now_ms: int) -> bool:
    """Return True if a view is behind for so long that its materializer must have stopped or be
    slow."""
    return now_ms - freshness.current_ms > WARN_AFTER_MS
