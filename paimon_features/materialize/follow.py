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
from collections.abc import Callable, Iterator
from dataclasses import replace

from paimon_features.clock import Clock, now_ms
from paimon_features.definitions import CompiledView
from paimon_features.errors import GenerationError, OnlineStoreError
from paimon_features.materialize.advance import advance
from paimon_features.materialize.leases import DEFAULT_TTL_MS, Leases
from paimon_features.materialize.progress import Progress, RebuildNeeded, Work
from paimon_features.materialize.reading import MAX_ROWS
from paimon_features.materialize.rebuild import build
from paimon_features.materialize.shard import Shard
from paimon_features.online.markers import EpochContent, ViewState
from paimon_features.online.store import OnlineStore
from paimon_features.tables.catalog import Lake
from paimon_features.tables.generations import GenerationRecord

MAX_BACKOFF_S = 1.0
"""So soon is a store found that is back: an empty one is read by nobody until it is rebuilt."""
_SWEEP_SLICE_S = 0.05


class Materializer:
    """Brings the tiles of one view into the online store, and keeps them there.

    ``generation`` gives the generation to be served; it is asked in every pass, so that a
    switch or a rollback is seen. ``shard=(i, n)`` takes the buckets ``b`` with ``b % n == i``.
    ``progress`` is called after each piece of work. ``lease_ttl_ms=None`` works without leases,
    which is safe but lets two processes do the same work. ``max_rows`` rows of a bucket are
    held in memory at a time. RequestError for a view whose windows only the lake can tell.
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
        progress: Callable[[Progress], None] = lambda progress: None,
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
        self._sweep: Iterator[int] | None = None

    def run_once(self) -> Progress:
        """Apply what the tile table holds and the store does not; rebuild if need be.

        Returns when this shard is as far as the table was at the start of the last pass, or can
        do no more (``Progress.held``, ``Progress.rebuilding``). Repeating it is harmless.

        Raises
        ------
        OnlineStoreError
            If the store does not answer, is full, or would drop keys.
        TableError
            If the table is not as it has to be (a retraction in a delta, no such table).
        GenerationError
            If the definition means other tiles than the generation holds, or another
            materializer has brought another definition to the store since our last pass.
        """
        result = self._one_pass()
        while not result.caught_up and not result.held and result.rebuilding is None:
            result = self._one_pass()
        while self._sweep is not None:
            self._sweep_some()
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
        on_pass: Callable[[Progress], None] | None = None,
    ) -> None:
        """Run passes until ``stop`` is set, ``poll_ms`` apart when there is nothing to do.

        A store that cannot be reached is tried again, with growing pauses; ``on_error`` is
        told. Other errors are raised. ``on_pass`` gets the result of every pass.
        """
        stop = stop or threading.Event()
        backoff_s = 0.0
        try:
            while not stop.is_set():
                try:
                    result = self._one_pass()
                    backoff_s = 0.0
                    if on_pass is not None:
                        on_pass(result)
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

    def _one_pass(self) -> Progress:
        if not self._checked:
            self._store.check()
            self._checked = True
        # in this order: what another one has switched to is not older than the record
        state = self._shard.epochs.state()
        content = self._content()
        work = Work(self.view.name, self._progress)
        try:
            epoch = self._epoch_to_advance(state, content)
            self._served = content
            return advance(self._shard, work, content, epoch)
        except RebuildNeeded as reason:
            result = build(self._shard, work, content, str(reason))
        self._rebuild = False
        if not result.held and result.rebuilding is None:
            self._served = content
            self._sweep = self._shard.epochs.sweep()
        return result

    def _content(self) -> EpochContent:
        """What the store should hold."""
        record = self._generation()
        if record.fingerprint != self.view.fingerprint:
            raise GenerationError(
                f"feature view {self.view.name!r} is defined for other tiles than generation "
                f"{record.generation} holds; run 'paimon-features plan' to see the difference"
            )
        self._shard.lake.table(record.table)  # the first time this loads pypaimon: not our work
        return EpochContent(
            record.table,
            record.generation,
            record.incarnation,
            self.view.online_fingerprint,
            record.buckets,
        )

    def _epoch_to_advance(self, state: ViewState, content: EpochContent) -> str:
        """The epoch that deltas can bring forward; RebuildNeeded if there is none."""
        if self._rebuild:
            raise RebuildNeeded("asked for")
        if state.epoch is None:
            raise RebuildNeeded("the online store holds nothing of this view")
        if state.content != content:
            if self._was_redefined(state.content, content):
                # to build ours again would be a game of two, in which readers lose
                raise GenerationError(
                    f"feature view {self.view.name!r}: another materializer has brought another "
                    "definition of it to the online store; start this one again with the "
                    "definition that is to be served"
                )
            raise RebuildNeeded("the online store holds another generation or layout")
        if state.building is not None and state.building.content == content:
            raise RebuildNeeded("another shard asked for it")
        return state.epoch

    def _was_redefined(self, stored: EpochContent | None, content: EpochContent) -> bool:
        """Whether the store held these tiles by our definition, and holds them by another."""
        if stored is None or self._served != content:
            return False
        return replace(stored, online_fingerprint=content.online_fingerprint) == content

    def _sweep_some(self) -> None:
        """Delete records of old epochs for a moment, so that following goes on in between."""
        assert self._sweep is not None
        until = time.monotonic() + _SWEEP_SLICE_S
        for _ in self._sweep:
            if time.monotonic() >= until:
                return
        self._sweep = None
