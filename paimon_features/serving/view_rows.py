"""What one read of the store returns for one view: a row for each entity of each query."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from paimon_features.aggregates.fold import NEVER_MS
from paimon_features.array_types import Ints
from paimon_features.definitions import CompiledView
from paimon_features.errors import OnlineStoreError, PaimonFeaturesError, StoreNotReadyError
from paimon_features.online.codec import Cells, Records
from paimon_features.online.markers import Marker
from paimon_features.serving.entities import EntityKeys
from paimon_features.serving.response import ViewFreshness
from paimon_features.serving.view_states import Epoch
from paimon_features.windows import MINUTE_MS

WARN_AFTER_MS = 5 * MINUTE_MS
"""A view without ``max_staleness`` that has been behind for longer causes a warning. A running
materializer confirms every second that an idle view is up to date."""


class ViewRows:
    """The rows of one view, those of all queries in sequence.

    It first names the ``keys`` to read, and then takes their values (``fill``). For rows with a
    corrupt record or a lost marker, ``part`` raises.
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
        """Whether a marker is missing among the values of ``keys``."""
        return None in found[: len(self._marker_keys)]

    def fill(self, found: Sequence[bytes | None]) -> None:
        """Take the values of ``keys``."""
        split = len(self._marker_keys)
        self._markers: dict[int, Marker] = {}
        self._lost: dict[int, PaimonFeaturesError] = {}
        for bucket, key, raw in zip(self._buckets, self._marker_keys, found[:split], strict=True):
            self._take_marker(bucket, key, raw)
        self._corrupt: list[tuple[int, PaimonFeaturesError]] = []
        self._decode(list(found[split:]))

    @property
    def records_read(self) -> int:
        """The number of rows with a record."""
        return len(self._records.headers)

    @property
    def cells_read(self) -> int:
        """The number of cells of these records."""
        return len(self._records.cells)

    def part(self, start: int, stop: int) -> RowRange:
        """The rows from ``start`` to ``stop`` (exclusive).

        Raises
        ------
        OnlineStoreError
            If the store has lost or corrupted something of one of them.
        """
        buckets = self._bucket_of[start:stop]
        for row, error in self._corrupt:
            if start <= row < stop:
                raise error
        if self._lost:
            for bucket in buckets:
                if bucket in self._lost:
                    raise self._lost[bucket]
        # axes: rows (all, those of this part), records, cells
        first, last = int(self._record_at[start]), int(self._record_at[stop])
        cells = self._records.cells
        begin, end = int(self._cell_at[start]), int(self._cell_at[stop])
        records = Records(
            self._records.headers[first:last],
            Cells(cells.rows[begin:end], cells.text),
            self._records.offsets[first : last + 1] - begin,
        )
        return RowRange(
            records,
            self._there[start:stop],
            self._cell_at[start : stop + 1] - begin,
            buckets,
            self._markers,
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

    def _decode(self, found: list[bytes | None]) -> None:
        decode = self.epoch.layout.decode
        try:
            self._records = decode([raw for raw in found if raw is not None])
        except OnlineStoreError:
            for row, raw in enumerate(found):
                try:
                    decode([] if raw is None else [raw])
                except OnlineStoreError as error:
                    self._corrupt.append((row, error))
                    found[row] = None
            self._records = decode([raw for raw in found if raw is not None])
        self._there: npt.NDArray[np.bool_] = np.array([raw is not None for raw in found], np.bool_)
        # for each row the index of its record, if it has one, and of its first cell
        self._record_at = np.zeros(len(found) + 1, np.int64)
        np.cumsum(self._there, out=self._record_at[1:])
        self._cell_at: Ints = self._records.offsets[self._record_at]


class RowRange:
    """Some of the rows, with their records and markers.

    ``offsets`` are those of the cells of each row, ``there`` is true for rows with a record;
    ``records`` has only those.
    """

    def __init__(
        self,
        records: Records,
        there: npt.NDArray[np.bool_],
        offsets: Ints,
        bucket_of: Sequence[int],
        markers: dict[int, Marker],
    ) -> None:
        self.records = records
        self.there = there
        self.offsets = offsets
        self.bucket_of = bucket_of
        self.markers = {bucket: markers[bucket] for bucket in set(bucket_of)}

    def __len__(self) -> int:
        return len(self.bucket_of)

    @property
    def high_ms(self) -> int:
        """The newest event time by which something of these rows may have been pruned."""
        # a record can be ahead of its bucket's marker, and pruned by that
        highs = [marker.high_ms for marker in self.markers.values()]
        if len(self.records.headers):
            highs.append(int(self.records.headers["bucket_high"].max()))
        return max(highs, default=NEVER_MS)

    def spread(self, of_records: Ints) -> Ints:
        """Values of records as values of rows; NEVER_MS for rows without a record."""
        if self.there.all():
            return of_records
        out = np.full(len(self), NEVER_MS, np.int64)
        out[self.there] = of_records
        return out


class FreshnessLookup:
    """The freshness of the rows of single queries, computed once for each set of buckets."""

    def __init__(self, view: CompiledView, part: RowRange, clock_ms: int) -> None:
        self._bucket_of = part.bucket_of
        self._known = {
            frozenset((bucket,)): worst_freshness(view, [marker], clock_ms)
            for bucket, marker in part.markers.items()
        }
        self._single = {next(iter(of)): freshness for of, freshness in self._known.items()}
        self._view, self._markers, self._clock_ms = view, part.markers, clock_ms
        self.stale = {bucket for bucket, freshness in self._single.items() if freshness.stale}

    def of(self, start: int, stop: int) -> ViewFreshness:
        """The worst of the buckets of these rows."""
        if stop - start == 1:
            return self._single[self._bucket_of[start]]
        buckets = frozenset(self._bucket_of[start:stop])
        found = self._known.get(buckets)
        if found is None:
            markers = [self._markers[bucket] for bucket in buckets]
            found = self._known[buckets] = worst_freshness(self._view, markers, self._clock_ms)
        return found


def worst_freshness(view: CompiledView, markers: Sequence[Marker], clock_ms: int) -> ViewFreshness:
    """The worst of some buckets."""
    highs = [m.high_ms for m in markers] or [NEVER_MS]
    low_ms, high_ms = min(highs), max(highs)
    current_ms = min((m.current_ms for m in markers), default=0)
    limit_ms = view.max_staleness_ms
    return ViewFreshness(
        applied_snapshot=min((m.applied_snapshot for m in markers), default=0),
        commit_time_ms=min((m.commit_time_ms for m in markers), default=0),
        event_time_low_ms=None if low_ms == NEVER_MS else low_ms,
        event_time_high_ms=None if high_ms == NEVER_MS else high_ms,
        current_ms=current_ms,
        stale=bool(markers) and limit_ms is not None and clock_ms - current_ms > limit_ms,
    )


def is_behind(freshness: ViewFreshness, now_ms: int) -> bool:
    """Whether a view is behind for so long that its materializer must have stopped or be slow."""
    return now_ms - freshness.current_ms > WARN_AFTER_MS
