"""The materializer: keeps the online store up to date with a view's tile table.

It works per bucket, in snapshot order. A bucket's marker records the snapshot applied; it is
advanced by compare-and-set when all records of the bucket contain all rows up to the new
snapshot. After a crash, some records may be ahead of the marker: they skip the rows they already
contain (see ``record_fold``), so that the pass is simply repeated.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from paimon_features.core.errors import (
    GenerationError,
    OnlineStoreError,
    StoreUnreachableError,
    UnfilledError,
)
from paimon_features.core.times.clock import Clock, now_ms
from paimon_features.definitions import CompiledView
from paimon_features.lake.catalog import Lake
from paimon_features.lake.side_folder.generations import GenerationRecord
from paimon_features.lake.table_folders import commit_mark
from paimon_features.online.materialize.advance import advance
from paimon_features.online.materialize.leases import DEFAULT_TTL_MS, Leases
from paimon_features.online.materialize.materialize_progress import (
    MaterializeProgress,
    PassRecorder,
    RebuildNeeded,
    RecordsLost,
)
from paimon_features.online.materialize.reading import MAX_ROWS
from paimon_features.online.materialize.rebuild import build
from paimon_features.online.materialize.shard import Shard
from paimon_features.online.store.markers import EpochContent, ViewState
from paimon_features.online.store.store import OnlineStore, evicted_keys, may_evict
from paimon_features.tiles.consumed import check_filled

MAX_BACKOFF_S = 1.0
"""The longest delay until a recovered store is noticed: it may need a rebuild."""
_SWEEP_SLICE_S = 0.05
_WATCH_S = 0.01
"""How often a folder is looked at for a commit: some microseconds each time.

The system's notifications (inotify) would save those, but say nothing of commits that another host
makes on a network file system.
"""


RetriedError = OnlineStoreError | StoreUnreachableError | UnfilledError
"""What a materializer that follows waits out."""


class Materializer:
    """Materializes the tiles of one view into the online store and follows their changes.

    ``generation`` returns the generation to serve; it is called in every pass, so that a
    switch or a rollback is noticed. ``shard=(i, n)`` processes the buckets ``b`` with ``b % n ==
    i``.
    ``progress`` is called after each piece of work. ``lease_ttl_ms=None`` disables leases,
    which is safe but lets two processes do the same work. At most ``max_rows`` rows of a bucket
    are in memory at a time. Raises RequestError for a view that can only be read offline.
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
        clock: Clock = now_ms,
        progress: Callable[[MaterializeProgress], None] = lambda progress: None,
        lease_ttl_ms: int | None = DEFAULT_TTL_MS,
        max_rows: int = MAX_ROWS,
    ) -> None:
        view.check_online()
        self.view = view
        self._generation = generation
        self._store = store
        self._progress = progress
        self._leases = Leases(store, lease_ttl_ms)
        self._shard = Shard(
            lake, project, view, store, self._leases, clock, shard=shard, max_rows=max_rows
        )
        self._rebuild = False
        self._checked = False
        self._served: EpochContent | None = None
        self._filled: tuple[str, int] | None = None
        self._sweep: Iterator[int] | None = None

    def run_once(self) -> MaterializeProgress:
        """Apply all new snapshots of the tile table; rebuild if necessary.

        Returns when this shard has caught up with the table as of the start of the last pass, or
        cannot continue (``held``, ``rebuilding`` of the progress). Idempotent.

        Raises
        ------
        OnlineStoreError
            If the store is unavailable, full, or configured to evict keys.
        TableError
            If the table does not exist, or a delta contains a retraction.
        GenerationError
            If the definition differs from the one of the generation's tiles, or another
            materializer has stored another definition since our last pass.
        UnfilledError
            If the tiles were not computed yet.
        """
        self._shard.followed = False
        result = self._one_pass()
        while not result.caught_up and not result.held and result.rebuilding is None:
            result = self._one_pass()
        while self._sweep is not None:
            self._sweep_some()
        return result

    def rebuild(self) -> MaterializeProgress:
        """Rebuild all records under a new epoch, then switch; readers use the old one meanwhile."""
        self.request_rebuild()
        return self.run_once()

    def request_rebuild(self) -> None:
        """Make the next pass a rebuild."""
        self._rebuild = True

    def follow(
        self,
        poll_ms: int = 200,
        stop: threading.Event | None = None,
        on_error: Callable[[RetriedError], None] | None = None,
        on_pass: Callable[[MaterializeProgress], None] | None = None,
    ) -> None:
        """Run passes until ``stop`` is set, ``poll_ms`` apart when there is nothing to do.

        A commit to a tile table in a folder of this host starts a pass at once. An unavailable
        online store or object store is retried with exponential backoff, and reported to
        ``on_error``; so are tiles that were not computed yet. Other errors are raised. ``on_pass``
        receives the result of every pass.
        """
        stop = stop or threading.Event()
        backoff_s = 0.0
        self._shard.followed = True
        try:
            while not stop.is_set():
                try:
                    seen = self._commit_mark()
                    result = self._one_pass()
                    backoff_s = 0.0
                    if on_pass is not None:
                        on_pass(result)
                    if self._sweep is not None:
                        self._sweep_some()
                    elif result.caught_up or result.held or result.rebuilding:
                        self._await_commit(seen, poll_ms / 1_000, stop)
                except (OnlineStoreError, StoreUnreachableError, UnfilledError) as error:
                    if on_error is not None:
                        on_error(error)
                    self._checked = False
                    backoff_s = min(MAX_BACKOFF_S, max(0.1, 2 * backoff_s))
                    stop.wait(backoff_s)
        finally:
            self.close()

    def _commit_mark(self) -> int | None:
        """Return what changes with each commit to the table.

        None where it takes a request to know.
        """
        if self._served is None:
            return None
        return commit_mark(self._shard.lake, self._served.table)

    def _await_commit(self, seen: int | None, wait_s: float, stop: threading.Event) -> None:
        """Wait, at most until a commit that is newer than ``seen``."""
        if seen is None:
            stop.wait(wait_s)
            return
        deadline = time.monotonic() + wait_s
        while (left_s := deadline - time.monotonic()) > 0 and self._commit_mark() == seen:
            if stop.wait(min(_WATCH_S, left_s)):
                return

    def close(self) -> None:
        """Release the leases; the store stays open, it belongs to the caller."""
        with contextlib.suppress(OnlineStoreError):  # the leases expire by themselves
            self._leases.release_all()

    def _one_pass(self) -> MaterializeProgress:
        if not self._checked:
            self._store.check()
            self._checked = True
        evicted = self._evicted()
        # in this order: an epoch that another process switched to is not older than the record
        state = self._shard.epochs.state()
        content = self._content()
        work = PassRecorder(self.view.name, self._progress)
        try:
            epoch = self._epoch_to_advance(state, content, evicted)
            self._served = content
            return advance(self._shard, work, content, epoch)
        except RebuildNeeded as reason:
            work.lost = isinstance(reason, RecordsLost)
            result = build(self._shard, work, content, str(reason))
        self._rebuild = False
        if not result.held and result.rebuilding is None:
            self._served = content
            self._sweep = self._shard.epochs.sweep()
        return result

    def _content(self) -> EpochContent:
        """Return the content that the store should have."""
        record = self._generation()
        if record.fingerprint != self.view.fingerprint:
            raise GenerationError(
                f"the definition of feature view {self.view.name!r} differs from generation "
                f"{record.generation}; run 'paimon-features plan' to see the difference"
            )
        if (record.table, record.incarnation) != self._filled:
            check_filled(self._shard.lake, record, self.view.source.table)
            self._filled = record.table, record.incarnation
        self._shard.lake.table(
            record.table
        )  # loads pypaimon on the first call, before the pass is timed
        return EpochContent(
            record.table,
            record.generation,
            record.incarnation,
            self.view.online_fingerprint,
            record.buckets,
        )

    def _evicted(self) -> dict[str, int]:
        """Return the keys evicted so far; the policy may have been changed since the last pass.

        Raises
        ------
        OnlineStoreError
            If a server may evict keys.
        """
        servers = self._store.evictions()
        for server in servers:
            if not server.is_safe:
                raise OnlineStoreError(may_evict("the online store", str(server.policy)))
        return evicted_keys(servers)

    def _epoch_to_advance(
        self, state: ViewState, content: EpochContent, evicted: Mapping[str, int]
    ) -> str:
        """Return the epoch to advance by deltas; RebuildNeeded if there is none."""
        if self._rebuild:
            raise RebuildNeeded("requested")
        if state.epoch is None:
            raise RebuildNeeded("the online store has no records of this view")
        if state.content != content:
            if self._was_redefined(state.content, content):
                # rebuilding ours would start a contest at the readers' expense
                raise GenerationError(
                    f"feature view {self.view.name!r}: another materializer has stored another "
                    "definition of it in the online store; restart this one with the "
                    "definition to serve"
                )
            raise RebuildNeeded("the online store has another generation or layout")
        if state.building is not None and state.building.content == content:
            raise RebuildNeeded("requested by another shard")
        if count := state.evicted_since(evicted):
            raise RecordsLost(f"the online store has evicted {count} keys")
        return state.epoch

    def _was_redefined(self, stored: EpochContent | None, content: EpochContent) -> bool:
        """Return True if the store had these tiles by our definition, and now has them by
        another."""
        if stored is None or self._served != content:
            return False
        return replace(stored, online_fingerprint=content.online_fingerprint) == content

    def _sweep_some(self) -> None:
        """Delete records of old epochs for a short time slice, so that following continues."""
        assert self._sweep is not None
        until = time.monotonic() + _SWEEP_SLICE_S
        for _ in self._sweep:
            if time.monotonic() >= until:
                return
        self._sweep = None
