"""Apply tile deltas to the records of one bucket, by compare-and-set."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from paimon_features.core.errors import OnlineStoreError
from paimon_features.online.materialize.record_fold import TileDelta, merge
from paimon_features.online.store.codec import HEADER_SIZE, RecordLayout
from paimon_features.online.store.expiry import expire_after_ms
from paimon_features.online.store.keys import BucketKeys
from paimon_features.online.store.markers import Marker
from paimon_features.online.store.store import OnlineStore, Write, WriteGuard

BATCH_RECORDS = 1_000
BATCH_ROWS = 50_000


class MarkerMoved(Exception):  # noqa: N818 - control flow, not an error
    """The bucket's marker is lost, or another process moved it. Never leaves the materializer."""


class BucketWriter:
    """Updates the records of one bucket of one epoch.

    ``run`` is the server's run in which the bucket's marker was read: after a restart earlier
    writes may be lost, so nothing more is written. Nothing is written either once the marker names
    another snapshot than ``marker`` does: a record that is missing then may have been written by
    another process, with rows that this one has not read, and was lost. ``alive`` is called
    between batches and raises if the lease was lost.
    """

    def __init__(
        self,
        store: OnlineStore,
        layout: RecordLayout,
        keys: BucketKeys,
        *,
        bucket: int,
        incarnation: int,
        marker: Marker,
        run: str,
        alive: Callable[[], None],
    ) -> None:
        self._store = store
        self._layout = layout
        self._stem = keys.record_stem
        self._bucket = bucket
        self._incarnation = incarnation
        self._run = run
        self._guard = WriteGuard(keys.marker, marker.opening)
        self._alive = alive
        self._expire_ms = expire_after_ms(layout.view)

    def apply(
        self,
        new: TileDelta,
        snapshot: int,
        high_ms: int,
        missing: Callable[[Sequence[bytes]], None],
    ) -> int:
        """Merge the rows into the stored records; idempotent.

        All rows of these entities up to ``snapshot`` must be in ``new`` or applied before.
        ``missing`` is called with the entities that have no record; it raises if one of them has
        rows that were applied before. Returns the number of records written.

        Raises
        ------
        MarkerMoved
            If the bucket's marker is not that of the writer any more.
        """
        written = 0
        for batch in _batches(new):
            self._alive()
            # a record that another writer changed meanwhile is read and merged again
            while batch.entities:
                keys = [self._stem + entity for entity in batch.entities]
                old = self._store.get_many(keys)
                if None in old:
                    missing([e for e, b in zip(batch.entities, old, strict=True) if b is None])
                merged = self._merge(old, batch, snapshot, high_ms)
                writes = [
                    Write(key, before[:HEADER_SIZE] if before else None, record, self._expire_ms)
                    for key, before, record in zip(keys, old, merged, strict=True)
                    if record is not None
                ]
                done = self._store.compare_and_set_many(writes, self._run, self._guard)
                if not all(done):
                    self._check_guard()
                written += sum(done)
                places = np.array([i for i, r in enumerate(merged) if r is not None], np.int64)
                batch = batch.select(places[~np.array(done, bool)])
        return written

    def fill(self, new: TileDelta, snapshot: int, high_ms: int) -> int:
        """Write the records of a new epoch from all rows of these entities.

        Raises
        ------
        OnlineStoreError
            If a record exists already: another process fills the same epoch.
        """
        written = 0
        for batch in _batches(new):
            self._alive()
            merged = self._merge([None] * len(batch.entities), batch, snapshot, high_ms)
            writes = [
                Write(self._stem + entity, None, record, self._expire_ms)
                for entity, record in zip(batch.entities, merged, strict=True)
                if record is not None
            ]
            if not all(self._store.compare_and_set_many(writes, self._run, self._guard)):
                raise OnlineStoreError(
                    f"feature view {self._layout.view.name!r}, bucket {self._bucket}: another "
                    "process writes to the same new epoch; the rebuild is restarted"
                )
            written += len(writes)
        return written

    def _check_guard(self) -> None:
        """Raise MarkerMoved if nothing more can be written."""
        (raw,) = self._store.get_many([self._guard.key])
        if raw is None or not raw.startswith(self._guard.expected):
            raise MarkerMoved

    def _merge(
        self, old: list[bytes | None], batch: TileDelta, snapshot: int, high_ms: int
    ) -> list[bytes | None]:
        return merge(
            self._layout,
            old,
            batch,
            bucket=self._bucket,
            incarnation=self._incarnation,
            snapshot=snapshot,
            high_ms=high_ms,
        )


def _batches(new: TileDelta) -> Iterator[TileDelta]:
    """Yield batches of bounded size; the rows of an entity are never split."""
    start, count = 0, len(new.entities)
    while start < count:
        by_rows = int(np.searchsorted(new.offsets, new.offsets[start] + BATCH_ROWS, side="right"))
        stop = max(start + 1, min(start + BATCH_RECORDS, by_rows - 1))
        yield new.slice(start, stop)
        start = stop
