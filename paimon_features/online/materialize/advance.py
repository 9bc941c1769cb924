"""Advance the buckets of a shard by the deltas of new snapshots."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from paimon_features.core.errors import SnapshotExpiredError
from paimon_features.lake.metadata.snapshots import Snapshot, latest_snapshot, snapshot, snapshots
from paimon_features.lake.reading.deltas import DataFile, read_delta
from paimon_features.online.materialize.apply import MarkerMoved
from paimon_features.online.materialize.known import SeenEntities
from paimon_features.online.materialize.leases import LeaseLost
from paimon_features.online.materialize.materialize_progress import (
    MaterializeProgress,
    PassRecorder,
    RebuildNeeded,
    RecordsLost,
)
from paimon_features.online.materialize.reading import read_tile_deltas
from paimon_features.online.materialize.shard import Shard
from paimon_features.online.materialize.snapshot_effect import added_files, identity
from paimon_features.online.store.keys import BucketKeys
from paimon_features.online.store.markers import EpochContent, Marker

PULSE_MS = 1_000
"""The interval at which the marker of an idle bucket is refreshed."""
MAX_SNAPSHOTS = 200
"""The maximum number of snapshots per pass."""

Files = list[tuple[int, DataFile]]
"""Files with the snapshot that added each, ascending by snapshot."""


def advance(
    shard: Shard, work: PassRecorder, content: EpochContent, epoch: str
) -> MaterializeProgress:
    """Apply the snapshots that are not yet applied to this shard's buckets of ``epoch``.

    Raises
    ------
    RebuildNeeded
        If the buckets cannot be advanced by deltas; the message is the reason.
    """
    now_ms = shard.clock()
    latest = latest_snapshot(shard.lake, content.table)
    buckets = shard.own_buckets(content)
    if not buckets:
        return work.end(0 if latest is None else latest.id, latest)
    markers: dict[int, Marker] = {}
    for bucket, marker in zip(buckets, shard.epochs.markers(epoch, buckets), strict=True):
        if marker is None or not marker.complete:
            raise RecordsLost(f"the marker of bucket {bucket} is lost")
        markers[bucket] = marker
    work.applied = min(marker.applied_snapshot for marker in markers.values())
    try:
        _check_history(shard, content.table, markers, latest)
        one_pass = _Pass(shard, work, content, epoch, latest, now_ms)
        one_pass.plan(markers)
        held: dict[str, None] = {}
        for bucket in buckets:
            try:
                one_pass.advance(bucket)
            except LeaseLost as lost:
                held[str(lost)] = None
    except SnapshotExpiredError as error:
        raise RebuildNeeded(str(error)) from error
    after = [m for m in shard.epochs.markers(epoch, buckets) if m is not None]
    applied = min((marker.applied_snapshot for marker in after), default=0)
    shard.move_hold(content.table, applied)
    return work.end(applied, latest, held=tuple(held))


def _check_history(
    shard: Shard, table: str, markers: Mapping[int, Marker], latest: Snapshot | None
) -> None:
    """Raise RebuildNeeded unless the applied snapshots are still snapshots of the table."""
    for applied, applied_identity in {(m.applied_snapshot, m.identity) for m in markers.values()}:
        if applied == 0:
            continue
        if latest is None or applied > latest.id:
            raise RebuildNeeded(f"the table was rolled back before snapshot {applied}")
        if identity(snapshot(shard.lake, table, applied)) != applied_identity:
            raise RebuildNeeded(f"snapshot {applied} differs from the one that was applied")


@dataclass(frozen=True, slots=True, eq=False)
class _Pass:
    """One pass over the table: finds the files of each bucket and applies them."""

    shard: Shard
    work: PassRecorder
    content: EpochContent
    epoch: str
    latest: Snapshot | None
    now_ms: int
    _files: dict[int, Files] = field(default_factory=dict)
    _seen: dict[int, Snapshot] = field(default_factory=dict)

    def plan(self, markers: Mapping[int, Marker]) -> None:
        """Collect the files to apply per bucket, and the snapshots read."""
        self._files.update((bucket, []) for bucket in markers)
        latest, lake, table = self.latest, self.shard.lake, self.content.table
        lowest = min(marker.applied_snapshot for marker in markers.values())
        if latest is None or latest.id <= lowest:
            return
        high_ms = {bucket: marker.high_ms for bucket, marker in markers.items()}
        for one in snapshots(lake, table, lowest + 1):
            self._seen[one.id] = one
            later = {b: high_ms[b] for b, m in markers.items() if m.applied_snapshot < one.id}
            if one.kind not in ("COMPACT", "ANALYZE"):
                delta = read_delta(lake, table, one.id)
                for bucket, files in added_files(self.shard.view, delta, later).items():
                    self._files[bucket] += [(one.id, file) for file in files]
                    self.work.expected += sum(file.rows for file in files)
            if one.id >= latest.id or len(self._seen) == MAX_SNAPSHOTS:
                return

    def advance(self, bucket: int) -> None:
        """Apply the collected files to one bucket, and advance its marker.

        Raises
        ------
        LeaseLost
            If another materializer owns the bucket.
        RebuildNeeded, SnapshotExpiredError
            If the bucket's marker or a file no longer exists.
        """
        keys = self.shard.keys.bucket(self.epoch, bucket)
        lease = self.shard.take(keys)
        # the stored marker is authoritative, together with the run in which it was read
        run, (raw,) = self.shard.store.run_and_values([keys.marker])
        if raw is None:
            raise RecordsLost(f"the marker of bucket {bucket} is lost")
        marker = Marker.from_bytes(raw)
        newest = 0 if self.latest is None else self.latest.id
        pending = [(at, file) for at, file in self._files[bucket] if at > marker.applied_snapshot]
        for group, up_to in groups(pending, max(self._seen, default=0), self.shard.max_rows):
            if up_to <= marker.applied_snapshot:
                continue
            try:
                high_ms, seen = self._apply(keys, bucket, group, up_to, marker, run)
            except MarkerMoved:
                return  # as below
            commit = self._seen[up_to]
            moved = replace(
                marker,
                applied_snapshot=up_to,
                commit_time_ms=commit.time_ms,
                identity=identity(commit),
                high_ms=high_ms,
                current_ms=max(
                    marker.current_ms,
                    # the clock of another host may be ahead
                    self.now_ms if up_to >= newest else min(self.now_ms, commit.time_ms),
                ),
                fence=lease.fence,
                followed=self.shard.followed,
            )
            if not self.shard.move(keys, marker, moved, run):
                return  # another materializer was faster: the next pass reads its marker
            self.shard.known.advance(bucket, marker, moved, seen)
            marker = moved
        due = self.now_ms - marker.current_ms >= PULSE_MS
        if marker.applied_snapshot >= newest and (due or marker.followed != self.shard.followed):
            pulse = replace(
                marker,
                current_ms=max(marker.current_ms, self.now_ms),
                fence=lease.fence,
                followed=self.shard.followed,
            )
            self.shard.move(keys, marker, pulse, run)

    def _apply(
        self, keys: BucketKeys, bucket: int, files: Files, up_to: int, marker: Marker, run: str
    ) -> tuple[int, list[SeenEntities]]:
        """Fold and write the rows of ``files``.

        Returns the newest event time of the bucket, and the entities of the rows.
        """
        high_ms = marker.high_ms
        seen: list[SeenEntities] = []
        if not files:
            return high_ms, seen
        shard, work = self.shard, self.work
        writer = shard.writer(keys, bucket, self.content, marker, run)
        alive = shard.alive(keys)

        def missing(entities: Sequence[bytes]) -> None:
            lost = shard.known.lost(self.content, bucket, marker, entities, alive)
            if lost:
                raise RecordsLost(f"the online store has lost records of bucket {bucket}: {lost}")

        for new in read_tile_deltas(shard.layout, files, shard.max_rows, alive):
            high_ms = max(high_ms, new.newest_ms)
            work.records += writer.apply(new, up_to, high_ms, missing)
            work.tiles += len(new.cells)
            work.report(self.latest)
            seen.append(SeenEntities.in_delta(new))
        return high_ms, seen


def groups(files: Files, target: int, max_rows: int) -> Iterator[tuple[Files, int]]:
    """Yield runs of complete snapshots of at most ``max_rows`` rows, with their last snapshots.

    A snapshot with more rows forms its own run. The last run ends at ``target``, whether or not
    that snapshot has files.
    """
    run: Files = []
    rows = 0
    for at, of_snapshot in itertools.groupby(files, key=lambda pair: pair[0]):
        new = list(of_snapshot)
        count = sum(file.rows for _, file in new)
        if run and rows + count > max_rows:
            yield run, at - 1
            run, rows = [], 0
        run += new
        rows += count
    yield run, target
