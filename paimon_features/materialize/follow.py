"""The materializer: keeps the online store at the newest snapshot of a view's tile table.

Per bucket, in snapshot order. A bucket's marker says how far it is; it is moved on by
compare-and-set when all records of the bucket hold all rows up to the new snapshot. After a
crash in between, some records are ahead of the marker: they skip the rows they hold already
(see ``fold``), so that the pass is simply repeated, however the snapshots are cut this time.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from paimon_features.aggregates.fold import NEVER_MS
from paimon_features.definitions import CompiledView
from paimon_features.errors import (
    ConfigurationError,
    GenerationError,
    OnlineStoreError,
    SnapshotExpiredError,
    TableError,
)
from paimon_features.materialize.apply import BucketWriter
from paimon_features.materialize.epochs import Epochs
from paimon_features.materialize.leases import DEFAULT_TTL_MS, LeaseLost, Leases
from paimon_features.materialize.plan import added_files, identity
from paimon_features.materialize.progress import Progress, RebuildNeeded
from paimon_features.materialize.rebuild import MAX_ROWS, fill_bucket, read_contributions
from paimon_features.online.codec import RecordLayout
from paimon_features.online.keys import BucketKeys, ViewKeys
from paimon_features.online.markers import Building, Content, Marker
from paimon_features.online.store import Clock, OnlineStore, Write
from paimon_features.tables.catalog import Lake
from paimon_features.tables.consumers import advance_consumer, register_consumer
from paimon_features.tables.deltas import DataFile, live_files, read_delta
from paimon_features.tables.generations import GenerationRecord
from paimon_features.tables.snapshots import Snapshot, latest_snapshot, snapshot, snapshots

PULSE_MS = 1_000
"""How often an idle bucket's marker says that it is still looked after."""
MAX_SNAPSHOTS = 200
"""Snapshots that are looked at in one pass."""
MAX_BACKOFF_S = 5.0
_SWEEP_SLICE_S = 0.05
_BUILD_ATTEMPTS = 5

Files = list[tuple[int, DataFile]]


def consumer_name(project: str, view: str, shard: tuple[int, int] = (0, 1)) -> str:
    """The consumer under which a materializer holds snapshots of the tile table.

    >>> consumer_name("shop", "spend", (0, 4))
    'materialize-shop-spend-0-of-4'
    """
    return f"materialize-{project}-{view}-{shard[0]}-of-{shard[1]}"


class Materializer:
    """Brings the tiles of one view into the online store, and keeps them there.

    ``generation`` gives the generation to be served; it is asked in every pass, so that a
    switch or a rollback is seen. ``shard=(i, n)`` takes the buckets ``b`` with ``b % n == i``.
    ``progress`` is called after each piece of work. ``lease_ttl_ms=None`` works without leases,
    which is safe but lets two processes do the same work.
    """

    def __init__(
        self,
        lake: Lake,
        project: str,
        view: CompiledView,
        generation: Callable[[], GenerationRecord],
        store: OnlineStore,
        *,
        shard: tuple[int, int] = (0, 1),
        clock: Clock = lambda: time.time_ns() // 1_000_000,
        progress: Callable[[Progress], None] | None = None,
        lease_ttl_ms: int | None = DEFAULT_TTL_MS,
        max_rows: int = MAX_ROWS,
    ) -> None:
        index, shards = shard
        if not 0 <= index < shards:
            raise ConfigurationError(f"shard {index}/{shards}: expected 0 <= i < n in i/n")
        self.view = view
        self._lake = lake
        self._generation = generation
        self._store = store
        self._shard = shard
        self._clock = clock
        self._progress = progress or (lambda _: None)
        self._max_rows = max_rows
        self._layout = RecordLayout(view)
        self._keys = ViewKeys(project, view.name)
        self._epochs = Epochs(store, self._keys)
        self._leases = Leases(store, lease_ttl_ms)
        self._consumer = consumer_name(project, view.name, shard)
        self._rebuild = False
        self._checked = False
        self._holds: tuple[str, int] | None = None
        self._sweep: Iterator[int] | None = None
        self._pass = _Pass(view.name, self._progress)

    # -- running ---------------------------------------------------------------------------

    def run_once(self) -> Progress:
        """Apply what the tile table holds and the store does not; rebuild if need be.

        Returns when this shard is as far as the table was at the start, or can do no more
        (``Progress.held``, ``Progress.rebuilding``). Repeating it is harmless.

        Raises
        ------
        OnlineStoreError
            If the store does not answer, is full, or would drop keys.
        TableError
            If the table is not as it has to be (a retraction in a delta, no such table).
        GenerationError
            If the definition means other tiles than the generation holds.
        """
        result = self._one_pass()
        while not result.caught_up and not result.held and result.rebuilding is None:
            result = self._one_pass()
        self._finish_sweep()
        return result

    def rebuild(self) -> Progress:
        """Read everything anew under a new epoch, then switch; readers keep the old one."""
        self.request_rebuild()
        return self.run_once()

    def request_rebuild(self) -> None:
        """Let the next pass be a rebuild."""
        self._rebuild = True

    def follow(
        self,
        poll_ms: int = 200,
        stop: threading.Event | None = None,
        on_error: Callable[[OnlineStoreError], None] | None = None,
    ) -> None:
        """Run passes until ``stop`` is set, ``poll_ms`` apart when there is nothing to do.

        A store that cannot be reached is tried again, with growing pauses; ``on_error`` is
        told. Other errors are raised.
        """
        stop = stop or threading.Event()
        backoff_s = 0.0
        try:
            while not stop.is_set():
                try:
                    result = self._one_pass()
                    backoff_s = 0.0
                    if self._sweep is not None:
                        self._sweep_some()
                    elif result.caught_up or result.held or result.rebuilding:
                        stop.wait(poll_ms / 1_000)
                except OnlineStoreError as error:
                    if on_error is not None:
                        on_error(error)
                    self._checked = False
                    backoff_s = min(MAX_BACKOFF_S, max(0.1, 2 * backoff_s))
                    stop.wait(backoff_s)
        finally:
            self.close()

    def close(self) -> None:
        """Give leases back; the store stays open, it is the caller's."""
        with contextlib.suppress(OnlineStoreError):  # they run out by themselves
            self._leases.release_all()

    # -- one pass --------------------------------------------------------------------------

    def _one_pass(self) -> Progress:
        if not self._checked:
            self._store.check()
            self._checked = True
        self._pass = _Pass(self.view.name, self._progress)
        record = self._generation()
        if record.fingerprint != self.view.fingerprint:
            raise GenerationError(
                f"feature view {self.view.name!r} is defined for other tiles than generation "
                f"{record.generation} holds; run 'paimon-features plan' to see the difference"
            )
        content = Content(
            record.table,
            record.generation,
            record.incarnation,
            self.view.online_fingerprint,
            record.buckets,
        )
        state = self._epochs.state()
        try:
            if self._rebuild:
                raise RebuildNeeded("asked for")
            if state.epoch is None:
                raise RebuildNeeded("the online store holds nothing of this view")
            if state.content != content:
                raise RebuildNeeded("the online store holds another generation or layout")
            if state.building is not None and state.building.content == content:
                raise RebuildNeeded("another shard asked for it")
            return self._advance(content, state.epoch)
        except RebuildNeeded as reason:
            return self._build(content, str(reason))

    def _own_buckets(self, content: Content) -> list[int]:
        index, shards = self._shard
        return list(range(index, content.buckets, shards))

    # -- following -------------------------------------------------------------------------

    def _advance(self, content: Content, epoch: str) -> Progress:
        now_ms = self._clock()
        latest = latest_snapshot(self._lake, content.table)
        buckets = self._own_buckets(content)
        if not buckets:
            return self._pass.end(0 if latest is None else latest.id, latest)
        markers: dict[int, Marker] = {}
        for bucket, marker in zip(buckets, self._epochs.markers(epoch, buckets), strict=True):
            if marker is None or not marker.complete:
                raise RebuildNeeded(f"the marker of bucket {bucket} is lost")
            markers[bucket] = marker
        self._pass.applied = min(marker.applied_snapshot for marker in markers.values())
        self._check_history(content.table, markers, latest)
        plans, seen = self._plan(content.table, markers, latest)
        held: dict[str, None] = {}
        for bucket in buckets:
            try:
                self._advance_bucket(content, epoch, bucket, plans[bucket], seen, latest, now_ms)
            except LeaseLost as lost:
                held[str(lost)] = None
            except SnapshotExpiredError as error:
                raise RebuildNeeded(str(error)) from error
        after = [m for m in self._epochs.markers(epoch, buckets) if m is not None]
        applied = min((marker.applied_snapshot for marker in after), default=0)
        self._hold_snapshots(content.table, applied)
        return self._pass.end(applied, latest, held=tuple(held))

    def _check_history(
        self, table: str, markers: Mapping[int, Marker], latest: Snapshot | None
    ) -> None:
        """The snapshots that were applied have to be those that the table has."""
        for applied, known in {(m.applied_snapshot, m.identity) for m in markers.values()}:
            if applied == 0:
                continue
            if latest is None or applied > latest.id:
                raise RebuildNeeded(f"the table was rolled back behind snapshot {applied}")
            try:
                found = identity(snapshot(self._lake, table, applied))
            except SnapshotExpiredError as error:
                raise RebuildNeeded(str(error)) from error
            if found != known:
                raise RebuildNeeded(f"snapshot {applied} is another one than was applied")

    def _plan(
        self, table: str, markers: Mapping[int, Marker], latest: Snapshot | None
    ) -> tuple[dict[int, Files], dict[int, Snapshot]]:
        """Per bucket the files to apply, and the snapshots that were looked at."""
        plans: dict[int, Files] = {bucket: [] for bucket in markers}
        lowest = min(marker.applied_snapshot for marker in markers.values())
        seen: dict[int, Snapshot] = {}
        if latest is None or latest.id <= lowest:
            return plans, seen
        high_ms = {bucket: marker.high_ms for bucket, marker in markers.items()}
        try:
            for one in snapshots(self._lake, table, lowest + 1):
                seen[one.id] = one
                later = {b: high_ms[b] for b, m in markers.items() if m.applied_snapshot < one.id}
                if one.kind not in ("COMPACT", "ANALYZE"):
                    delta = read_delta(self._lake, table, one.id)
                    for bucket, files in added_files(self.view, delta, later).items():
                        plans[bucket] += [(one.id, file) for file in files]
                if one.id >= latest.id or len(seen) == MAX_SNAPSHOTS:
                    break
        except SnapshotExpiredError as error:
            raise RebuildNeeded(str(error)) from error
        return plans, seen

    def _advance_bucket(
        self,
        content: Content,
        epoch: str,
        bucket: int,
        files: Files,
        seen: Mapping[int, Snapshot],
        latest: Snapshot | None,
        now_ms: int,
    ) -> None:
        keys = self._keys.bucket(epoch, bucket)
        lease = self._leases.hold(keys.lease)
        if not lease.mine:
            raise LeaseLost(lease.owner)
        # the marker counts as the store has it now, and with it the run that vouches for it
        run, (raw,) = self._store.run_and_values([keys.marker])
        if raw is None:
            raise RebuildNeeded(f"the marker of bucket {bucket} is lost")
        marker = Marker.from_bytes(raw)
        newest = 0 if latest is None else latest.id
        pending = [(at, file) for at, file in files if at > marker.applied_snapshot]
        target = max(seen, default=0)
        for group, up_to in _groups(pending, target, self._max_rows):
            if up_to <= marker.applied_snapshot:
                continue
            high_ms = marker.high_ms
            if group:
                writer = self._writer(keys, bucket, content, run)
                high_ms = self._apply(writer, group, up_to, high_ms, latest)
            commit = seen[up_to]
            moved = replace(
                marker,
                applied_snapshot=up_to,
                commit_time_ms=commit.time_ms,
                identity=identity(commit),
                high_ms=high_ms,
                current_ms=max(
                    marker.current_ms,
                    # another host's clock may be ahead of ours
                    now_ms if up_to >= newest else min(now_ms, commit.time_ms),
                ),
                fence=lease.fence,
            )
            if not self._move(keys, marker, moved, run):
                return  # another materializer is further: the next pass sees how far
            marker = moved
        if marker.applied_snapshot >= newest and now_ms - marker.current_ms >= PULSE_MS:
            self._move(keys, marker, replace(marker, current_ms=now_ms, fence=lease.fence), run)

    def _apply(
        self,
        writer: BucketWriter,
        files: Files,
        up_to: int,
        high_ms: int,
        latest: Snapshot | None,
    ) -> int:
        """Fold and write the rows of ``files``; returns the newest event time of the bucket."""
        for new in read_contributions(self._layout, files, self._max_rows):
            high_ms = max(high_ms, new.newest_ms)
            self._pass.records += writer.apply(new, up_to, high_ms)
            self._pass.tiles += len(new.cells)
            self._pass.report(latest)
        return high_ms

    def _move(self, keys: BucketKeys, before: Marker, after: Marker, run: str) -> bool:
        """Move a marker on, unless someone else has moved it."""
        write = Write(keys.marker, before.to_bytes(), after.to_bytes())
        return self._store.compare_and_set_many([write], run)[0]

    def _writer(self, keys: BucketKeys, bucket: int, content: Content, run: str) -> BucketWriter:
        return BucketWriter(
            self._store,
            self._layout,
            keys,
            bucket=bucket,
            incarnation=content.incarnation,
            run=run,
            alive=lambda: self._leases.keep(keys.lease),
        )

    def _hold_snapshots(self, table: str, applied: int) -> None:
        """Keep the applied snapshot, by which a rollback is noticed, and all later ones."""
        wanted = max(applied, 1)
        if self._holds == (table, wanted):
            return
        try:
            advance_consumer(self._lake, table, self._consumer, wanted)
        except TableError:
            try:
                register_consumer(self._lake, table, self._consumer, wanted)
            except SnapshotExpiredError as error:
                raise RebuildNeeded(str(error)) from error
        self._holds = (table, wanted)

    # -- rebuilding ------------------------------------------------------------------------

    def _build(self, content: Content, reason: str) -> Progress:
        spoiled: str | None = None
        for _ in range(_BUILD_ATTEMPTS):
            building = self._epochs.begin(content, self._clock(), spoiled=spoiled)
            self._rebuild = False
            self._pass.rebuilding = reason
            now_ms = self._clock()
            latest = latest_snapshot(self._lake, content.table)
            try:
                held = self._build_buckets(building, latest, now_ms)
            except (_Spoiled, SnapshotExpiredError):
                spoiled = building.epoch
                continue
            applied = 0 if latest is None else latest.id
            if held:
                return self._pass.end(0, latest, held=held)
            if not self._epochs.switch(building):
                self._pass.rebuilding = f"{reason}; waiting for the buckets of other shards"
                return self._pass.end(0, latest)
            self._sweep = self._epochs.sweep()
            self._pass.rebuilding = None
            return self._pass.end(applied, latest_snapshot(self._lake, content.table))
        raise TableError(
            f"feature view {self.view.name!r}: the rebuild was overtaken {_BUILD_ATTEMPTS} times, "
            "by another materializer or by the expiry of snapshots; see to it that one "
            "materializer runs per shard, and that snapshots are kept for longer"
        )

    def _build_buckets(
        self, building: Building, latest: Snapshot | None, now_ms: int
    ) -> tuple[str, ...]:
        """Build this shard's buckets; returns who holds those that could not be built."""
        content = building.content
        files: dict[int, list[DataFile]] = {}
        if latest is not None:
            register_consumer(self._lake, content.table, self._consumer, latest.id)
            self._holds = (content.table, latest.id)
            own = self._own_buckets(content)
            for file in live_files(self._lake, content.table, latest.id, own):
                files.setdefault(file.bucket, []).append(file)
        held: dict[str, None] = {}
        for bucket in self._own_buckets(content):
            try:
                self._build_bucket(building, bucket, files.get(bucket, []), latest, now_ms)
            except LeaseLost as lost:
                held[str(lost)] = None
        return tuple(held)

    def _build_bucket(
        self,
        building: Building,
        bucket: int,
        files: Sequence[DataFile],
        latest: Snapshot | None,
        now_ms: int,
    ) -> None:
        keys = self._keys.bucket(building.epoch, bucket)
        lease = self._leases.hold(keys.lease)
        if not lease.mine:
            raise LeaseLost(lease.owner)
        run, (raw,) = self._store.run_and_values([keys.marker])
        if raw is not None:
            if Marker.from_bytes(raw).complete:
                return
            # whoever began it is gone, and what it wrote cannot be told from what it did not
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
        )
        if not self._store.compare_and_set_many([Write(keys.marker, None, begun.to_bytes())], run)[
            0
        ]:
            raise _Spoiled
        before = self._pass.tiles, self._pass.records

        def progress(tiles: int, records: int) -> None:
            self._pass.tiles, self._pass.records = before[0] + tiles, before[1] + records
            self._pass.report(latest)

        writer = self._writer(keys, bucket, building.content, run)
        filled = fill_bucket(writer, self._layout, files, applied, self._max_rows, progress)
        done = replace(begun, high_ms=filled.high_ms, complete=True)
        if not self._move(keys, begun, done, run):
            raise _Spoiled

    def _finish_sweep(self) -> None:
        while self._sweep is not None:
            self._sweep_some()

    def _sweep_some(self) -> None:
        """Delete records of old epochs for a moment, so that following goes on in between."""
        assert self._sweep is not None
        until = time.monotonic() + _SWEEP_SLICE_S
        for _ in self._sweep:
            if time.monotonic() >= until:
                return
        self._sweep = None


class _Spoiled(Exception):  # noqa: N818 - a change of course, not an error
    """An epoch that was begun cannot be completed."""


class _Pass:
    """Counts the work of one pass and reports it."""

    def __init__(self, view: str, callback: Callable[[Progress], None]) -> None:
        self._view = view
        self._callback = callback
        self._started = time.monotonic()
        self.applied = 0
        self.tiles = 0
        self.records = 0
        self.rebuilding: str | None = None

    def report(self, latest: Snapshot | None) -> None:
        """Tell the callback."""
        self._callback(self._at(self.applied, latest, ()))

    def end(self, applied: int, latest: Snapshot | None, held: tuple[str, ...] = ()) -> Progress:
        """The result of the pass; the callback is told if there was anything to do."""
        progress = self._at(applied, latest, held)
        if self.tiles or held or self.rebuilding:
            self._callback(progress)
        return progress

    def _at(self, applied: int, latest: Snapshot | None, held: tuple[str, ...]) -> Progress:
        return Progress(
            self._view,
            applied,
            0 if latest is None else latest.id,
            self.tiles,
            self.records,
            time.monotonic() - self._started,
            self.rebuilding,
            held,
        )


def _groups(files: Files, target: int, max_rows: int) -> Iterator[tuple[Files, int]]:
    """Runs of whole snapshots of about ``max_rows`` rows, each with its last snapshot.

    The last run ends at ``target``, whether or not that snapshot has files.
    """
    group: Files = []
    rows = 0
    for at, file in files:
        if group and rows + file.rows > max_rows and at != group[-1][0]:
            yield group, at - 1
            group, rows = [], 0
        group.append((at, file))
        rows += file.rows
    yield group, target
