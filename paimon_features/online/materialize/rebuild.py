"""Rebuild a view from all rows of the tile table at one snapshot, under a new epoch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow.compute as pc

from paimon_features.core.errors import OnlineStoreError, SnapshotExpiredError, TableError
from paimon_features.definitions.aggregates import EVENT_TIME_MAX
from paimon_features.definitions.aggregates.fold import NEVER_MS
from paimon_features.lake.metadata.snapshots import Snapshot, latest_snapshot
from paimon_features.lake.reading.deltas import DataFile, read_file
from paimon_features.online.materialize.known import KnownEntities, SeenEntities
from paimon_features.online.materialize.leases import LeaseLost
from paimon_features.online.materialize.materialize_progress import (
    MaterializeProgress,
    PassRecorder,
)
from paimon_features.online.materialize.reading import read_tile_deltas
from paimon_features.online.materialize.shard import Shard
from paimon_features.online.materialize.snapshot_effect import (
    identity,
    needed_files,
    partition_end_ms,
)
from paimon_features.online.store.markers import Building, EpochContent, Marker

ATTEMPTS = 5


class _Spoiled(Exception):  # noqa: N818 - control flow, not an error
    """An epoch under construction cannot be completed."""


def build(
    shard: Shard, work: PassRecorder, content: EpochContent, reason: str
) -> MaterializeProgress:
    """Build this shard's buckets of a new epoch; switch to it once all shards are complete.

    Until then readers use the present epoch. ``rebuilding`` of the result is the reason for
    waiting, None after the switch.

    Raises
    ------
    TableError
        If the rebuild was overtaken too often.
    """
    spoiled: str | None = None
    work.rebuilding = reason
    for _ in range(ATTEMPTS):
        building = shard.epochs.begin(content, shard.clock(), spoiled=spoiled)
        now_ms = shard.clock()  # taken first: later commits may be missing
        latest = latest_snapshot(shard.lake, content.table)
        try:
            held = _build_buckets(shard, work, building, latest, now_ms)
        except (_Spoiled, SnapshotExpiredError):
            spoiled = building.epoch
            continue
        if held:
            return work.end(0, latest, held=held)
        if not shard.epochs.switch(building):
            work.rebuilding = f"{reason}; waiting for the buckets of other shards"
            return work.end(0, latest)
        work.rebuilding = None
        applied = 0 if latest is None else latest.id
        return work.end(applied, latest_snapshot(shard.lake, content.table))
    raise TableError(
        f"feature view {shard.view.name!r}: the rebuild was overtaken {ATTEMPTS} times, "
        "by another materializer or by the expiry of snapshots; run one materializer "
        "per shard, and retain snapshots for longer"
    )


def _build_buckets(
    shard: Shard, work: PassRecorder, building: Building, latest: Snapshot | None, now_ms: int
) -> tuple[str, ...]:
    """Build this shard's buckets; return the owners of those that could not be built."""
    content, buckets = building.content, shard.own_buckets(building.content)
    if latest is not None:
        shard.hold(content.table, latest.id)
    needed = needed_files(
        shard.lake, shard.view, content.table, 0 if latest is None else latest.id, buckets
    )
    work.expected = work.tiles + sum(file.rows for some in needed.values() for file in some)
    held: dict[str, None] = {}
    for bucket in buckets:
        try:
            _build_bucket(shard, work, building, bucket, needed[bucket], latest, now_ms)
        except LeaseLost as lost:
            held[str(lost)] = None
    return tuple(held)


def _build_bucket(
    shard: Shard,
    work: PassRecorder,
    building: Building,
    bucket: int,
    files: Sequence[DataFile],
    latest: Snapshot | None,
    now_ms: int,
) -> None:
    keys = shard.keys.bucket(building.epoch, bucket)
    lease = shard.take(keys)
    run, (raw,) = shard.store.run_and_values([keys.marker])
    if raw is not None:
        if Marker.from_bytes(raw).complete:
            work.expected -= sum(file.rows for file in files)
            return
        # the process that started it is gone, and its partial writes are unknown
        raise _Spoiled
    applied = 0 if latest is None else latest.id
    begun = Marker(
        applied_snapshot=applied,
        commit_time_ms=0 if latest is None else latest.time_ms,
        identity=0 if latest is None else identity(latest),
        high_ms=NEVER_MS,
        current_ms=now_ms,
        built_ms=building.since_ms,
        incarnation=building.content.incarnation,
        fence=lease.fence,
        complete=False,
        followed=shard.followed,
    )
    if not shard.move(keys, None, begun, run):
        raise _Spoiled

    writer = shard.writer(keys, bucket, building.content, begun, run)
    high_ms = _newest_event(files)
    rows = [(applied, file) for file in files]
    entities = KnownEntities()
    for new in read_tile_deltas(shard.layout, rows, shard.max_rows, shard.alive(keys)):
        work.records += writer.fill(new, applied, high_ms)
        work.tiles += len(new.cells)
        work.report(latest)
        entities.learn(SeenEntities.in_delta(new))
    done = replace(begun, high_ms=high_ms, complete=True)
    if not shard.move(keys, begun, done, run):
        if shard.store.get_many([keys.marker]) == [None]:
            raise OnlineStoreError(
                f"feature view {shard.view.name!r}: the online store has lost "
                f"{keys.marker.decode()} during the rebuild, which is restarted"
            )
        raise _Spoiled
    shard.known.replace(bucket, done, entities)


def _newest_event(files: Sequence[DataFile]) -> int:
    """Return the newest event time: it is in the newest day."""
    newest_day = max((partition_end_ms(file) for file in files), default=0)
    newest = NEVER_MS
    for file in files:
        if partition_end_ms(file) == newest_day:
            newest_of_file = pc.max(read_file(file, [EVENT_TIME_MAX.name]).column(0)).as_py()
            newest = newest if newest_of_file is None else max(newest, newest_of_file)
    return newest
