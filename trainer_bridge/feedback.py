"""``FeedbackWriter``: what a training step saw of each sample, into the lake, once.

Every call of ``write`` has a number, ``seq``: 1, 2, 3, ... A background thread commits the
waiting calls together; the commit's user is run and rank, its identifier the last ``seq`` in
it. So after a crash the table itself tells up to which call everything is there, whatever was
committed together, and a training run that is repeated from its checkpoint writes the calls
that are missing and none twice.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from paimon_features.definitions import FeedbackSource
from paimon_features.errors import ConfigurationError, RequestError, TableError
from paimon_features.schema import DataType
from paimon_features.tables.catalog import Lake
from paimon_features.tables.files import locked
from paimon_features.tables.reader import iter_batches
from paimon_features.tables.specs import feedback_spec
from paimon_features.tables.writer import append_arrow, committed_identifiers
from trainer_bridge.memory import LastCorrect, key_hashes

_FIRST_RETRY_S = 0.1
_LONGEST_RETRY_S = 5.0
VERSION = 1


@dataclass
class FeedbackStats:
    """Events since the writer was made.

    ``skipped``: of calls that had been committed before (a run that is repeated);
    ``not_finite``: with a loss that is no finite number, left out; ``dropped``: for lack of
    room, only with ``on_full="drop"``.
    """

    written: int = 0
    committed: int = 0
    skipped: int = 0
    not_finite: int = 0
    dropped: int = 0
    retries: int = 0


def _system_clock_ms() -> int:
    return time.time_ns() // 1_000_000


class FeedbackWriter:
    """Writes the feedback of one rank of one training run into ``feedback_<loop>``.

    Use it as a context manager, or call :meth:`close`; what is left open is closed when
    Python exits. Not for several threads at once.

    Parameters
    ----------
    lake, loop
        Where to, by the loop's source or its name. The table is made if need be.
    sample_keys
        Key columns and their types (those of the source, if one is given).
    run_id, rank
        Whose feedback it is; one writer at a time for each pair, on this host.
    model_version
        Of the model that makes the losses; can be set anew at any time.
    flush_rows, flush_interval_s
        A commit is made when so many events wait, or the oldest waits so long.
    max_pending
        Most events that wait for a commit.
    max_block_s, on_full
        How long :meth:`write` may wait for room, and what it does then: ``"error"`` or
        ``"drop"`` the call's events and count them.
    give_up_s
        How long a commit is tried again before the writer fails.
    clock_ms
        Gives the event time.

    Raises
    ------
    ConfigurationError
        For arguments out of their bounds.
    TableError
        If the table has other columns, or another writer has this run and rank.
    """

    def __init__(
        self,
        lake: Lake,
        loop: FeedbackSource | str,
        sample_keys: Mapping[str, DataType] | None = None,
        run_id: str = "",
        *,
        rank: int = 0,
        model_version: str = "",
        flush_rows: int = 50_000,
        flush_interval_s: float = 1.0,
        max_pending: int = 1_000_000,
        max_block_s: float = 1.0,
        on_full: Literal["error", "drop"] = "error",
        give_up_s: float = 120.0,
        clock_ms: Callable[[], int] = _system_clock_ms,
    ) -> None:
        if isinstance(loop, FeedbackSource):
            sample_keys = loop.sample_keys if sample_keys is None else sample_keys
            self.table = loop.table
        else:
            self.table = f"feedback_{loop}"
        if not sample_keys:
            raise ConfigurationError(f"feedback writer of {self.table!r}: give sample_keys")
        if not run_id or rank < 0:
            raise ConfigurationError(
                f"run_id={run_id!r}, rank={rank}: expected a name and a number >= 0"
            )
        if on_full not in ("error", "drop"):
            raise ConfigurationError(f"on_full={on_full!r}: expected 'error' or 'drop'")
        if flush_rows < 1 or max_pending < 1 or flush_interval_s < 0 or max_block_s < 0:
            raise ConfigurationError(
                f"flush_rows={flush_rows} and max_pending={max_pending} have to be at least 1, "
                f"flush_interval_s={flush_interval_s} and max_block_s={max_block_s} at least 0"
            )
        self.lake, self.run_id, self.rank = lake, run_id, rank
        self.sample_keys = dict(sample_keys)
        self.model_version = model_version
        self.stats = FeedbackStats()
        self.flush_rows, self.flush_interval_s = flush_rows, flush_interval_s
        self.max_pending, self.max_block_s, self.on_full = max_pending, max_block_s, on_full
        self.give_up_s, self._clock_ms = give_up_s, clock_ms
        self._user = f"{run_id}-{rank}"
        lake.create(feedback_spec(self.table, self.sample_keys))

        self._resources = ExitStack()
        lock = f"{lake.database}.{self.table}.{quote(self._user, safe='')}.lock"
        self._resources.enter_context(
            locked(lake.side_folder / "feedback" / lock, f"feedback writer {self._user!r}", 0.2)
        )
        self._committed = committed_identifiers(lake, self.table, self._user) or 0
        self._seq = 0
        self._memory = LastCorrect()
        self._changed = threading.Condition()
        self._waiting: deque[tuple[int, pa.Table, float]] = deque()
        self._waiting_rows = 0
        self._flush_wanted = False
        self._closing = False
        self._error: BaseException | None = None
        self._process = os.getpid()
        self._thread = threading.Thread(target=self._run, name="feedback-writer", daemon=True)
        self._thread.start()
        _OPEN.add(self)

    # --- the training step's side ---

    def write(
        self,
        keys: Mapping[str, Any],
        loss: Any,
        step: int,
        correct: Any = None,
        *,
        event_time_ms: int | None = None,
    ) -> int:
        """Hand over the samples of one step; returns the ``seq`` of this call.

        ``keys`` maps each key column to values, ``loss`` and ``correct`` (whether the
        prediction was right; optional) are arrays of the same length: NumPy, Arrow, lists,
        torch tensors on the CPU. Returns at once if there is room. ``forgot`` is set for a
        sample that is wrong now and was right when it came last, as far as this writer has
        seen (:meth:`remember` tells it what others saw).

        Raises
        ------
        RequestError
            For missing keys or lengths that differ. Nothing is written, ``seq`` not used.
        TableError
            If there was no room for ``max_block_s`` (the events of this call are then
            lost), or commits have failed for ``give_up_s``.
        """
        table = self._events(keys, loss, step, correct, event_time_ms)
        self._seq += 1
        table = self._with_seq(table)
        finite = pc.is_finite(table.column("loss"))
        kept = table.filter(finite)
        self.stats.not_finite += table.num_rows - kept.num_rows
        with self._changed:
            self._raise_error()
            if self._closing:
                raise TableError(f"feedback writer {self._user!r} is closed")
            if self._seq <= self._committed:
                self.stats.skipped += kept.num_rows
                return self._seq
            if not self._wait_for_room(kept.num_rows):
                return self._seq
            if kept.num_rows:
                self._waiting.append((self._seq, kept, time.monotonic()))
                self._waiting_rows += kept.num_rows
                self.stats.written += kept.num_rows
                self._changed.notify_all()
        return self._seq

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until everything written so far is committed.

        Raises
        ------
        TableError
            If that takes longer than ``timeout_s``, or commits have failed.
        """
        with self._changed:
            self._flush_wanted = True
            self._changed.notify_all()
            done = self._changed.wait_for(
                lambda: not self._waiting or self._error is not None, timeout_s
            )
            self._raise_error()
            if not done:
                raise TableError(
                    f"feedback writer {self._user!r}: {self._waiting_rows} events are not "
                    f"committed after {timeout_s:g} s"
                )

    def state_dict(self) -> dict[str, Any]:
        """The place to resume from, to be kept with the model's checkpoint.

        Commits first: what the state says was written is then in the table.
        """
        self.flush()
        return {
            "version": VERSION,
            "run_id": self.run_id,
            "rank": self.rank,
            "seq": self._seq,
            "committed": self._committed,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of this run and rank: calls that were committed since are skipped.

        Reads the run's feedback back once, to know which samples were right.

        Raises
        ------
        RequestError
            For the state of another version, run or rank, or after the first ``write``.
        TableError
            If the table lacks what was committed when the state was taken.
        """
        own = (VERSION, self.run_id, self.rank)
        got = tuple(state.get(name) for name in ("version", "run_id", "rank"))
        if got != own or self._seq:
            raise RequestError(
                f"a state of (version, run_id, rank) {got} for a feedback writer of {own} "
                f"after {self._seq} calls of write; expected the same, before the first call"
            )
        if state["committed"] > self._committed:
            raise TableError(
                f"table {self.table!r} has the feedback of {self._user!r} up to call "
                f"{self._committed}, the state says {state['committed']}: the table was rolled "
                "back or made anew; start a run with another run_id"
            )
        self._seq = int(state["seq"])
        self.remember()

    def remember(self) -> None:
        """Learn from the table which samples were right last, on any rank of this run.

        Called by :meth:`load_state_dict`; with several ranks, call it before each epoch,
        because a sample may have been on another rank in the one before.
        """
        columns = [*self.sample_keys, "run_id", "rank", "seq", "event_time_ms", "correct"]
        parts = []
        for batch in iter_batches(self.lake, self.table, columns):
            mine = pc.equal(batch.column("run_id"), self.run_id)
            # own calls that will be repeated lie in this writer's future
            later = pc.and_(
                pc.equal(batch.column("rank"), self.rank),
                pc.greater(batch.column("seq"), self._seq),
            )
            wanted = pc.and_(mine, pc.invert(later))
            parts.append(batch.filter(pc.and_(wanted, pc.is_valid(batch.column("correct")))))
        memory = LastCorrect()
        if parts:
            table = pa.Table.from_batches(parts).combine_chunks()
            table = table.sort_by([("event_time_ms", "ascending"), ("seq", "ascending")])
            table = table.combine_chunks()
            hashes = key_hashes([_array(table.column(name)) for name in self.sample_keys])
            memory.update(hashes, _array(table.column("correct")).to_numpy(zero_copy_only=False))
        self._memory = memory

    def close(self, timeout_s: float | None = None) -> None:
        """Commit what waits and end the thread. Can be repeated.

        Raises
        ------
        TableError
            If something could not be committed (within ``timeout_s``).
        """
        with self._changed:
            if self._closing and not self._thread.is_alive():
                return
            self._closing = True
            self._changed.notify_all()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise TableError(
                f"feedback writer {self._user!r}: {self._waiting_rows} events are not committed "
                f"after {timeout_s:g} s"
            )
        self._resources.close()
        with self._changed:
            self._raise_error()

    def __enter__(self) -> FeedbackWriter:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # --- inside ---

    def _events(
        self, keys: Mapping[str, Any], loss: Any, step: int, correct: Any, time_ms: int | None
    ) -> pa.Table:
        if set(keys) != set(self.sample_keys):
            raise RequestError(
                f"feedback writer {self._user!r}: got the keys {', '.join(keys) or 'none'}; "
                f"expected {', '.join(self.sample_keys)}"
            )
        losses = _to_arrow(loss, pa.float64(), "loss")
        size = len(losses)
        columns = {
            name: _to_arrow(keys[name], kind.arrow, name) for name, kind in self.sample_keys.items()
        }
        right = (
            pa.nulls(size, pa.bool_())
            if correct is None
            else _to_arrow(correct, pa.bool_(), "correct")
        )
        for name, values in {**columns, "correct": right}.items():
            if len(values) != size:
                raise RequestError(
                    f"feedback writer {self._user!r}: {len(values)} values of {name!r} "
                    f"for {size} losses"
                )
            if values.null_count and name in columns:
                raise RequestError(f"feedback writer {self._user!r}: key {name!r} has a null")
        known = right.is_valid().to_numpy(zero_copy_only=False)
        forgot = np.zeros(size, dtype=np.bool_)
        if known.any():
            hashes = key_hashes(list(columns.values()))[known]
            shown = right.fill_null(False).to_numpy(zero_copy_only=False)[known]
            forgot[known] = self._memory.update(hashes, shown)
        now_ms = self._clock_ms() if time_ms is None else time_ms
        return pa.table(
            {
                **columns,
                "run_id": _constant(self.run_id, size, pa.string()),
                "rank": _constant(self.rank, size, pa.int32()),
                "step": _constant(int(step), size, pa.int64()),
                "loss": losses,
                "event_time_ms": _constant(now_ms, size, pa.int64()),
                "model_version": _constant(self.model_version, size, pa.string()),
                "correct": right,
                "forgot": pa.array(forgot),
            }
        )

    def _with_seq(self, table: pa.Table) -> pa.Table:
        return table.append_column("seq", _constant(self._seq, table.num_rows, pa.int64()))

    def _wait_for_room(self, rows: int) -> bool:
        """Whether the rows may wait; the lock is held."""

        def fits() -> bool:
            # a call larger than the bound waits alone
            return not self._waiting or self._waiting_rows + rows <= self.max_pending

        if not fits():
            self._flush_wanted = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: fits() or self._error is not None, self.max_block_s)
            self._raise_error()
        if fits():
            return True
        if self.on_full == "drop":
            self.stats.dropped += rows
            return False
        raise TableError(
            f"feedback writer {self._user!r}: {self._waiting_rows} events wait for a commit and "
            f"there was no room for {rows} more within max_block_s={self.max_block_s:g}; raise "
            "max_pending or max_block_s, write less often, or allow losses by on_full='drop'"
        )

    def _raise_error(self) -> None:
        if self._error is not None:
            raise TableError(
                f"feedback writer {self._user!r}: could not commit to table {self.table!r} for "
                f"{self.give_up_s:g} s; {self._waiting_rows} events are lost: {self._error}"
            ) from self._error

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._is_due():
                    if not self._waiting:
                        self._flush_wanted = False
                        if self._closing:
                            return
                    self._changed.wait(self._wait_s())
                group = list(self._waiting)
            rows = pa.concat_tables([table for _, table, _ in group])
            try:
                self._commit(rows, group[-1][0])
            except BaseException as error:  # told to the training loop at its next call
                with self._changed:
                    self._error = error
                    self._changed.notify_all()
                return
            with self._changed:
                for _ in group:
                    self._waiting.popleft()
                self._waiting_rows -= rows.num_rows
                self._committed = group[-1][0]
                self.stats.committed += rows.num_rows
                self._changed.notify_all()

    def _is_due(self) -> bool:
        if not self._waiting:
            return False
        waited_s = time.monotonic() - self._waiting[0][2]
        return (
            self._closing
            or self._flush_wanted
            or self._waiting_rows >= self.flush_rows
            or waited_s >= self.flush_interval_s
        )

    def _wait_s(self) -> float | None:
        if not self._waiting:
            return None
        return max(0.0, self._waiting[0][2] + self.flush_interval_s - time.monotonic())

    def _commit(self, rows: pa.Table, seq: int) -> None:
        until = time.monotonic() + self.give_up_s
        pause_s = _FIRST_RETRY_S
        while True:
            try:
                append_arrow(
                    self.lake, self.table, rows, commit_user=self._user, commit_identifier=seq
                )
                return
            except Exception:
                if time.monotonic() + pause_s > until:
                    raise
                self.stats.retries += 1
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_RETRY_S)


_OPEN: weakref.WeakSet[FeedbackWriter] = weakref.WeakSet()


def _close_all() -> None:
    with ExitStack() as stack:  # goes on with the others if one of them raises
        for writer in list(_OPEN):
            if writer._process == os.getpid():  # a forked child has no part in it
                stack.callback(writer.close)


# A plain atexit function runs when thread pools, which a commit uses, are closed already;
# this one, which concurrent.futures itself uses, runs before.
getattr(threading, "_register_atexit", atexit.register)(_close_all)


def _constant(value: Any, size: int, kind: pa.DataType) -> pa.Array:
    return pa.repeat(pa.scalar(value, kind), size)


def _array(column: pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)


def _to_arrow(values: Any, kind: pa.DataType, name: str) -> pa.Array:
    if isinstance(values, pa.ChunkedArray):
        values = _array(values)
    if not isinstance(values, pa.Array):
        if not isinstance(values, list | tuple | np.ndarray):
            values = np.asarray(values)
        values = pa.array(values)
    try:
        return values.cast(kind)
    except pa.ArrowException as error:
        raise RequestError(
            f"feedback: {name!r} is {values.type}, expected {kind}: {error}"
        ) from error
