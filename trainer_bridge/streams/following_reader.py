"""``FollowingReader``: the rows of a growing table, commit by commit, for a trainer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, Never, Unpack

import numpy as np

from paimon_features.core.errors import ConfigurationError, RequestError
from paimon_features.core.process.closeable import Closeable
from paimon_features.core.times.clock import now_ms
from paimon_features.lake.catalog import Lake
from paimon_features.lake.metadata import table_history
from paimon_features.lake.metadata.consumers import (
    advance_consumer,
    delete_consumer,
    register_consumer,
)
from paimon_features.lake.metadata.snapshots import (
    Snapshot,
    expired,
    latest_snapshot,
    snapshot_ids,
    snapshots,
)
from trainer_bridge.batches.forms import Batch
from trainer_bridge.batches.numpy_form import dtypes_of, specs_of
from trainer_bridge.batches.tensor_columns import ColumnSpec
from trainer_bridge.blocks.predicates import RowFilter
from trainer_bridge.order.reader_state import check_position
from trainer_bridge.readers.by_index import refuse_index
from trainer_bridge.readers.loops import Loops
from trainer_bridge.readers.options import Ordering
from trainer_bridge.readers.read_plan import ReadPlan
from trainer_bridge.readers.read_stats import ReadStats
from trainer_bridge.readers.snapshot_reader import SnapshotReader
from trainer_bridge.streams.commits import added_rows, check_followed, commit_reader
from trainer_bridge.streams.following_options import FollowingKeywords, check_options
from trainer_bridge.streams.following_state import FollowState

Start = Literal["whole", "new"] | int


@dataclass(frozen=True, slots=True)
class Lag:
    """How far a reader is behind its table.

    ``rows`` have been committed and not been handed out (over all ranks; fewer if partitions were
    dropped meanwhile or ``where`` leaves rows out), by ``snapshots`` commits, the oldest of which
    is ``age_ms`` old.
    """

    snapshots: int
    rows: int
    age_ms: int


class FollowingReader(Closeable):
    """Batches of an append table's commits, in their order, as they are committed.

    Iterating continues until ``until_snapshot``, :meth:`stop`, or until nothing was committed for
    ``idle_timeout_s``; iterating again continues from there. Rows are shuffled within each commit,
    and every rank gets the same number of batches of it: the batches are a function of the seed,
    the commits and the position (``docs/how-to/training/loading-streams.md``). Commits that only
    rewrite files (compaction) or drop partitions have no batches.

    Parameters
    ----------
    lake, table
        An append table, written by Flink or Python.
    start
        ``"whole"``: all rows that the table has now, then what is committed from now on;
        ``"new"``: only the latter; a number: from the commit of that snapshot.
    consumer
        Name of the consumer that protects snapshots that were not read yet from expiry, also after
        :meth:`close`. Rank 0 registers it for all ranks.
    auto_release
        Release a commit when all of the next one has been handed out. False: only
        :meth:`release` does, so that an old state can be resumed.
    batch_size, global_batch_size, rank, world_size, seed, shuffle, pad_last
        As for :class:`trainer_bridge.SnapshotReader`; each commit's last batch is smaller, or
        filled up with rows of the same commit. No row is left out.
    poll_interval_s
        How often to poll for a new commit while there is none.
    until_snapshot
        The last snapshot to be read, inclusive; ranks that train together end together by it.
    idle_timeout_s
        End if nothing was committed for that long. For a single rank only: several would end
        at different commits, and hang.
    clock
        Returns now in UTC milliseconds, for :meth:`lag`.
    columns, where, output, fill, masks, item_masks, float_dtype, shapes, codes, scaled, threads, \
byte_budget, cache
        As for :class:`trainer_bridge.SnapshotReader`. ``codes`` are declared vocabularies: texts
        that are collected would have other codes in each commit. A bad file is an error.

    Raises
    ------
    ConfigurationError
        For arguments that do not fit together.
    TableError
        For a table with a primary key or deletion vectors.
    SnapshotExpiredError, UnknownNameError
        If the table, or the snapshot to start from, does not exist.
    """

    def __init__(
        self,
        lake: Lake,
        table: str,
        *,
        start: Start = "whole",
        consumer: str | None = None,
        auto_release: bool = True,
        poll_interval_s: float = 0.5,
        until_snapshot: int | None = None,
        idle_timeout_s: float | None = None,
        clock: Callable[[], int] = now_ms,
        **options: Unpack[FollowingKeywords],
    ) -> None:
        check_options(options)
        # a stream has a rank by default, so that no adapter chooses one
        options = {"rank": 0, "world_size": 1, **options}
        self._base = ReadPlan.of(lake, table, **options)
        self.rank, self.world_size = self._base.sharding.place
        if idle_timeout_s is not None and self.world_size > 1:
            raise ConfigurationError(
                f"idle_timeout_s={idle_timeout_s} with world_size={self.world_size}: each rank "
                "would end by its own clock, after another commit; use until_snapshot=, or agree "
                "on one and call stop(after_snapshot=...) on every rank"
            )
        if poll_interval_s <= 0:
            raise ConfigurationError(f"poll_interval_s={poll_interval_s}: expected more than 0")
        if not (start in ("whole", "new") or (isinstance(start, int) and start >= 1)):
            raise ConfigurationError(f"start={start!r}: expected 'whole', 'new' or a snapshot id")
        check_followed(lake, table)
        self.lake, self.table = lake, table
        self._reader: SnapshotReader | None = None
        self._consumer = consumer if self.rank == 0 else None
        self._auto_release = auto_release
        self._poll_s, self._idle_s, self._clock = poll_interval_s, idle_timeout_s, clock
        self._until = until_snapshot
        self._stopped = threading.Event()
        self._loops: Loops[Batch] = Loops(f"reader that follows table {table!r}")
        self._delivered: int | None = None
        self._state = self._first_state(start)
        self._plan().columns_and_form()  # whatever does not fit is reported now
        self._hold(self.snapshot_id)
        self._commit(self.snapshot_id)  # an unknown id is reported now, not at the first batch

    def _first_state(self, start: Start) -> FollowState:
        """Return the state before the first commit to read."""
        lake, table, ordering, where = self.lake, self.table, self._base.ordering, self._base.where
        newest = latest_snapshot(lake, table)
        whole = start == "whole" and newest is not None
        first = start if isinstance(start, int) else (newest.id if newest else 0) + (not whole)
        return FollowState(
            table=table,
            snapshot_id=first,
            position=0,
            whole=whole,
            seen_time_ms=None,
            seed=ordering.seed,
            shuffle=ordering.shuffle,
            canonical_streams=ordering.canonical_streams,
            open_bytes=ordering.open_bytes,
            block_rows=ordering.block_rows,
            history=table_history.mark(lake, table),
            where=None if where is None else RowFilter(where, lake.schema(table), table=table).text,
        )

    # --- position and state ---

    @property
    def snapshot_id(self) -> int:
        """The commit that is being read, or is read next."""
        return self._state.snapshot_id

    @property
    def stats(self) -> ReadStats:
        """What was read so far."""
        return ReadStats() if self._reader is None else self._reader.stats

    def state_dict(self) -> dict[str, Any]:
        """Return the reader's position: what was handed out, not what was fetched ahead. O(1)."""
        return self._state.to_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to where a state was taken: on any rank, for any world size and batch size.

        Raises
        ------
        RequestError
            For the state of another table, and if the table was rolled back or created again since.
        SnapshotExpiredError
            If the commit to continue with has expired.
        """
        loaded = FollowState.from_dict(state)
        if loaded.table != self.table:
            raise RequestError(
                f"a state of table {loaded.table!r} does not fit a reader of {self.table!r}"
            )
        if loaded.where != self._state.where:
            raise RequestError(
                f"a state of the rows where {loaded.where} does not fit a reader of table "
                f"{self.table!r} with where={self._state.where!r}"
            )
        self._commit(loaded.snapshot_id)
        self._check_seen(loaded)
        self._loops.end("moved by load_state_dict()")
        self._hold(loaded.snapshot_id)
        self._state, self._delivered = loaded, None

    def lag(self) -> Lag:
        """Return how far the reader is behind the table now; reads two snapshot files."""
        newest = latest_snapshot(self.lake, self.table)
        behind = 0 if newest is None else max(newest.id + 1 - self.snapshot_id, 0)
        if newest is None or not behind:
            return Lag(0, 0, 0)
        position, next_id = self._state.position, self.snapshot_id
        done = 0 if self._state.whole else self._records_before(next_id)
        oldest = self._commit(next_id) or newest
        age_ms = max(self._clock() - oldest.time_ms, 0)
        return Lag(behind, max(newest.total_records - done - position, 0), age_ms)

    def column_dtypes(self) -> dict[str, np.dtype[Any]]:
        """Return the dtype of each column of a batch.

        Raises
        ------
        ConfigurationError
            For a reader with ``output="arrow"``.
        """
        return dtypes_of(self.column_specs())

    def column_specs(self) -> dict[str, ColumnSpec]:
        """Return the spec of each column of a batch, also while the table has no rows; raises as
        :meth:`column_dtypes` does."""
        return specs_of(self._plan().columns_and_form()[1])

    # --- reading ---

    def __getitem__(self, index: object) -> Never:
        """Raise ConfigurationError: a reader has no rows by index."""
        refuse_index("a reader")

    def __len__(self) -> int:
        """Raise TypeError: a stream has no end.

        Callers that probe for a length continue without it.
        """
        raise TypeError(
            "a stream has no length: with torch write DataLoader(loader(reader), batch_size=None)"
        )

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[Batch]:
        return self.iterate()

    def iterate(self, worker: int = 0, num_workers: int = 1) -> Iterator[Batch]:
        """Return the batches from here on; ``Batch.epoch`` is the snapshot of their commit.

        Raises
        ------
        ConfigurationError
            For worker processes, between which a stream that waits cannot be divided.
        """
        if num_workers > 1:
            raise ConfigurationError(
                f"num_workers={num_workers}: a reader that follows a table reads ahead in threads; "
                "use DataLoader(..., num_workers=0)"
            )
        loop = self._loops.start(self._batches())
        self._stopped.clear()
        return loop

    def stop(self, after_snapshot: int | None = None) -> None:
        """End the iteration: at once, or when all of that snapshot was handed out.

        May be called from another thread, and from within the loop.
        """
        if after_snapshot is None:
            self._stopped.set()
        else:
            self._until = after_snapshot

    def release(self, state: Mapping[str, Any]) -> None:
        """Release the commits before a state: call it when its checkpoint is stored safely."""
        if self._consumer is not None:
            first = FollowState.from_dict(state).snapshot_id
            advance_consumer(self.lake, self.table, self._consumer, first)

    def forget(self) -> None:
        """Release all snapshots: this stream will not be resumed."""
        if self._consumer is not None:
            delete_consumer(self.lake, self.table, self._consumer)

    def close(self) -> None:
        """End what is running and free memory; the consumer stays. Can be repeated."""
        self._stopped.set()
        self._loops.end()

    # --- private ---

    def _batches(self) -> Generator[Batch, None, None]:
        while (commit := self._next_commit()) is not None:
            reader = self._open(commit)
            if reader is None:
                self._pass(commit, delivered=False)
                continue
            with reader:
                for batch in reader:
                    epoch, position = reader.place
                    if epoch == commit.id:
                        self._state = replace(
                            self._state, position=position, seen_time_ms=commit.time_ms
                        )
                    else:  # its last batch: what follows is the next commit
                        self._pass(commit, delivered=True)
                    yield batch
                    if self._stopped.is_set():
                        return

    def _pass(self, commit: Snapshot, delivered: bool) -> None:
        """Move to the commit after this one."""
        self._state = replace(
            self._state,
            snapshot_id=commit.id + 1,
            position=0,
            whole=False,
            seen_time_ms=commit.time_ms,
        )
        if not delivered:
            return
        if self._auto_release and self._consumer is not None and self._delivered is not None:
            # one behind, because other ranks may still be reading the one before
            advance_consumer(self.lake, self.table, self._consumer, self._delivered + 1)
        self._delivered = commit.id

    def _next_commit(self) -> Snapshot | None:
        """Wait for the next commit; None when it is time to end."""
        until_s = None if self._idle_s is None else time.monotonic() + self._idle_s
        while not self._stopped.is_set():
            if self._until is not None and self.snapshot_id > self._until:
                return None
            commit = self._commit(self.snapshot_id)
            if commit is not None:
                self._check_seen(self._state)
                mark = table_history.mark(self.lake, self.table)
                self._state = replace(self._state, history=mark)
                return commit
            left_s = self._poll_s if until_s is None else until_s - time.monotonic()
            if left_s <= 0:
                return None
            self._stopped.wait(min(self._poll_s, left_s))
        return None

    def _commit(self, snapshot_id: int) -> Snapshot | None:
        """Return the snapshot, None if it is the next one to come; raises where it has expired."""
        ids = snapshot_ids(self.lake, self.table)
        if snapshot_id not in ids:
            if snapshot_id == (ids[-1] + 1 if ids else 1):
                return None
            raise expired(self.lake, self.table, snapshot_id)
        return next(snapshots(self.lake, self.table, snapshot_id))

    def _open(self, commit: Snapshot) -> SnapshotReader | None:
        """Return a reader of the rest of a commit's rows; None if it has none."""
        state = self._state
        plan = self._plan()
        if state.whole:
            layout = plan.layout(commit.id, state.block_rows)
        else:
            added = added_rows(self.lake, self.table, commit, state.block_rows, state.where)
            if added is None:
                return None
            layout = added
        if not layout.num_rows:
            return None
        state_of = f"the state of a following reader of {self.table!r}, snapshot {commit.id},"
        check_position(state.position, layout.num_rows, state_of)
        self._reader = commit_reader(plan, layout, state.position, self._reader)
        return self._reader

    def _plan(self) -> ReadPlan:
        state = self._state
        ordering = Ordering(
            seed=state.seed,
            shuffle=state.shuffle,
            canonical_streams=state.canonical_streams,
            open_bytes=state.open_bytes,
            block_rows=state.block_rows,
        )
        return replace(self._base, ordering=ordering)

    def _check_seen(self, state: FollowState) -> None:
        """Raise RequestError if the snapshot that was read last is another one now."""
        mark = state.history
        if mark is not None and not table_history.continues(
            self.lake, self.table, mark, state.seen_id
        ):
            raise RequestError(
                f"table {self.table!r}: snapshots up to {state.seen_id} were read, and it was "
                "rolled back or created again since: these are other rows; start again: start="
            )
        if state.seen_time_ms is None or state.seen_id not in snapshot_ids(self.lake, self.table):
            return
        snapshot = next(snapshots(self.lake, self.table, state.seen_id))
        if snapshot.time_ms != state.seen_time_ms:
            raise RequestError(
                f"table {self.table!r}: snapshot {snapshot.id} was committed at "
                f"{snapshot.time_ms} ms, the one that was read at {state.seen_time_ms} ms: the "
                "table was rolled back or created again; start again: start="
            )

    def _records_before(self, snapshot_id: int) -> int:
        before = snapshot_id - 1
        if before not in snapshot_ids(self.lake, self.table):
            after = self._commit(snapshot_id)
            return 0 if after is None else after.total_records - after.delta_records
        return next(snapshots(self.lake, self.table, before)).total_records

    def _hold(self, snapshot_id: int) -> None:
        if self._consumer is not None:
            register_consumer(self.lake, self.table, self._consumer, snapshot_id)
