"""``FeedbackWriter``: writes per-sample results of training steps to the lake, exactly once.

Every call of ``write`` has a sequence number, ``seq``: 1, 2, 3, ... A background thread commits
the pending calls together; the commit user is run and rank, the commit identifier the last
``seq`` included. So after a crash the table itself records the last committed call, however
calls were grouped, and a training run that resumes from a checkpoint writes the missing calls
and no duplicates.
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
from typing import Any, Unpack
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from paimon_features.core.columns.column import one_array
from paimon_features.core.errors import ConfigurationError, RequestError, TableError
from paimon_features.core.process.closeable import Closeable
from paimon_features.core.times.clock import now_ms
from paimon_features.core.types.schema import DataType
from paimon_features.definitions import FeedbackSource
from paimon_features.lake.catalog import Lake
from paimon_features.lake.ownership.locks import locked
from paimon_features.lake.reading.table_reader import iter_batches
from paimon_features.lake.specs import feedback_spec
from paimon_features.lake.writing.table_writer import append_arrow, committed_identifiers
from paimon_features.online.store.queue import Queue
from trainer_bridge.feedback.buffering import Buffering, BufferKeywords
from trainer_bridge.feedback.feedback_drain import HandOver
from trainer_bridge.feedback.memory import LastCorrect
from trainer_bridge.feedback.rows import WriteCall, columns_of, finite_losses, int64_of, rows_of
from trainer_bridge.order.key_hashes import key_hashes

_FIRST_RETRY_S = 0.1
_LONGEST_RETRY_S = 5.0
VERSION = 1


@dataclass
class FeedbackStats:
    """Event counters since the writer was created.

    ``skipped``: from calls that had been committed before (a resumed run); ``not_finite``:
    omitted because the loss is not finite; ``dropped``: because the buffer was full, only with
    ``on_full="drop"``.
    """

    written: int = 0
    committed: int = 0
    skipped: int = 0
    not_finite: int = 0
    dropped: int = 0
    retries: int = 0


def _system_clock_ms() -> int:
    return now_ms()


class FeedbackWriter(Closeable):
    """Writes the feedback of one rank of one training run into ``feedback_<loop>``.

    Use it as a context manager, or call :meth:`close`; open writers are closed when Python
    exits. Not thread-safe.

    Parameters
    ----------
    lake, loop
        The destination, by the loop's source or name. The table is created if needed.
    sample_keys
        Key columns and their types (by default those of the source).
    run_id, rank
        The run and rank that write; one writer at a time per pair on this host.
    model_version
        Version of the model that computes the losses; can be changed at any time.
    flush_rows, flush_interval_s
        Commit when this many events are pending, or the oldest has been pending this long.
    max_pending, max_pending_bytes
        Maximum number and bytes of pending events. A commit in progress needs about twice the
        bytes of its events in addition.
    max_block_s, on_full
        How long :meth:`write` may block while the buffer is full, and what follows: ``"error"``
        raises, ``"drop"`` drops and counts the call's events.
    give_up_s
        How long a commit is retried before the writer fails.
    clock_ms
        Clock for the event time.
    through
        A queue for commits by a :class:`trainer_bridge.FeedbackDrain`, for ranks on several
        hosts. Without it the writer commits itself.

    Raises
    ------
    ConfigurationError
        If an argument is out of bounds.
    TableError
        If the table has different columns, or another writer has this run and rank.
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
        clock_ms: Callable[[], int] = _system_clock_ms,
        through: Queue | None = None,
        **buffering: Unpack[BufferKeywords],
    ) -> None:
        if isinstance(loop, FeedbackSource):
            sample_keys = loop.sample_keys if sample_keys is None else sample_keys
            self.table = loop.table
        else:
            self.table = f"feedback_{loop}"
        if not sample_keys:
            raise ConfigurationError(f"feedback writer of {self.table!r}: give sample_keys")
        if not run_id or not 0 <= rank < 2**31:
            raise ConfigurationError(
                f"run_id={run_id!r}, rank={rank}: expected a name and a number from 0 to 2^31"
            )
        self.lake, self.run_id, self.rank = lake, run_id, rank
        self.sample_keys = dict(sample_keys)
        self.model_version = model_version
        self.stats = FeedbackStats()
        self.buffering = Buffering(**buffering)
        self._clock_ms = clock_ms
        self._user = f"{run_id}-{rank}"
        if through is None:
            lake.create(feedback_spec(self.table, self.sample_keys))
        self._way: _Commits | HandOver = (
            _Commits(lake, self.table, self._user)
            if through is None
            else HandOver(lake, self.table, through, self._user)
        )
        self._committed = self._handed = self._done = self._way.committed()
        self._seq = 0
        self._memory = LastCorrect()
        self._changed = threading.Condition()
        self._waiting: deque[WriteCall] = deque()
        self._waiting_rows = self._waiting_bytes = 0
        self._flush_wanted = False
        self._closing = False
        self._error: BaseException | None = None
        self._process = os.getpid()
        self._thread = threading.Thread(target=self._run, name="feedback-writer", daemon=True)
        self._thread.start()
        _OPEN.add(self)

    # --- called by the training step ---

    def write(
        self,
        keys: Mapping[str, Any],
        loss: Any,
        step: int,
        correct: Any = None,
        *,
        event_time_ms: int | None = None,
        seq: int | None = None,
    ) -> int:
        """Write the samples of one step; return the ``seq`` of this call.

        ``keys`` maps each key column to values, ``loss`` and ``correct`` (whether the
        prediction was right; optional) are arrays of the same length: NumPy, Arrow, lists,
        tensors on any device. They are copied; returns at once unless the buffer is full.
        ``forgot`` is set for a sample that is incorrect now and was correct at its previous
        presentation, as far as this writer knows (:meth:`remember` loads those of other ranks).

        ``seq`` numbers the call: by default one more than the last; a loop whose checkpoint
        contains an increasing step counter (an optimiser's) may pass that.

        Raises
        ------
        RequestError
            If keys are missing, lengths or types do not match, or ``seq`` is not above the last
            one. Nothing is written, and ``seq`` is not used up.
        TableError
            If the buffer was full for ``max_block_s`` (the events of this call are then lost),
            or commits have failed for ``give_up_s``.
        """
        who = f"feedback writer {self._user!r}"
        number = self._seq + 1 if seq is None else int64_of(seq, "seq", who)
        if number <= self._seq:
            raise RequestError(
                f"feedback writer {self._user!r}: call {number} after call {self._seq}; calls are "
                "numbered upwards"
            )
        if not isinstance(self.model_version, str):
            raise RequestError(f"{who}: model_version={self.model_version!r}; expected a string")
        columns, losses, right = columns_of(self.sample_keys, keys, loss, correct, who)
        finite = finite_losses(losses)
        at_ms = self._clock_ms() if event_time_ms is None else event_time_ms
        call = WriteCall(
            seq=number,
            step=int64_of(step, "step", who),
            event_time_ms=int64_of(at_ms, "event_time_ms", who),
            model_version=self.model_version,
            keys=columns,
            loss=losses,
            correct=right,
            finite=finite,
            done=number <= self._done,
            since_s=time.monotonic(),
        )
        rows, size = call.num_rows, call.num_bytes
        numbers = len(losses) if finite is None else int(np.count_nonzero(finite))
        with self._changed:
            self._raise_error()
            if self._closing:
                raise TableError(f"{who} is closed")
            self._seq = number
            self.stats.not_finite += len(losses) - numbers
            if call.done:
                self.stats.skipped += numbers
            if not len(losses) or (call.done and right is None):
                return number
            if not self._wait_for_room(rows, size):
                return number
            self._waiting.append(call)
            self._waiting_rows += rows
            self._waiting_bytes += size
            self.stats.written += rows
            # between the first and last call of a commit the thread may sleep
            if len(self._waiting) == 1 or self._waiting_rows >= self.buffering.flush_rows:
                self._changed.notify_all()
        return number

    @property
    def seq(self) -> int:
        """The ``seq`` of the last call of :meth:`write`, 0 before the first."""
        return self._seq

    @property
    def committed(self) -> int:
        """The ``seq`` of the last call of this run and rank that is in the table."""
        return self._committed

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until everything written so far is committed.

        Raises
        ------
        TableError
            On a timeout after ``timeout_s``, or if commits have failed.
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
        """Return the position to resume from, to be saved with the model's checkpoint.

        Commits first: everything that the state covers is then in the table.
        """
        self.flush()
        return {
            "version": VERSION,
            "run_id": self.run_id,
            "rank": self.rank,
            "way": self._way.way,
            "seq": self._seq,
            "committed": self._handed,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a state of this run and rank: calls committed since are skipped.

        Reads the run's feedback back once, to know which samples were correct.

        Raises
        ------
        RequestError
            If version, run, rank or way of the state differ, or after the first ``write``.
        TableError
            If the table lacks calls that were committed when the state was saved, or no
            :class:`trainer_bridge.FeedbackDrain` of the queue says which ones it has.
        """
        expected = (VERSION, self.run_id, self.rank, self._way.way)
        got = tuple(state.get(name) for name in ("version", "run_id", "rank", "way"))
        if got != expected or self._seq:
            raise RequestError(
                f"a state of (version, run_id, rank, way) {got} for a feedback writer of "
                f"{expected} after {self._seq} calls of write; expected the same, before the "
                "first call"
            )
        if state["committed"] > self._committed:
            self._committed = self._handed = self._done = self._way.committed(state["committed"])
        if state["committed"] > self._committed:
            raise TableError(
                f"table {self.table!r} has the feedback of {self._user!r} up to call "
                f"{self._committed}, the state says {state['committed']}: the table was rolled "
                "back or recreated; start a run with another run_id"
            )
        self.resume_after(int(state["seq"]))

    def resume_after(self, seq: int) -> None:
        """Resume after a call contained in a checkpoint, before the first ``write``.

        For loops that pass their own ``seq``; others use :meth:`load_state_dict`, which also
        checks that nothing is missing in the table.

        Raises
        ------
        RequestError
            After the first ``write``.
        """
        if self._seq:
            raise RequestError(
                f"feedback writer {self._user!r} is at call {self._seq}; it resumes only before "
                "the first one"
            )
        self._seq = seq
        self.remember()

    def remember(self) -> None:
        """Load from the table which samples were last correct, on any rank of this run.

        Called when a state is loaded; with several ranks, call it before each epoch, because a
        sample may have been on another rank in the previous one. Commits first.
        """
        self.flush()
        columns = [*self.sample_keys, "run_id", "rank", "seq", "event_time_ms", "correct"]
        parts = []
        exists = self.lake.exists(self.table)  # created by the drain, if there is one
        for batch in iter_batches(self.lake, self.table, columns) if exists else ():
            mine = pc.equal(batch.column("run_id"), self.run_id)
            # own calls that will be repeated are in this writer's future
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
            keys = [one_array(table.column(name)) for name in self.sample_keys]
            right = one_array(table.column("correct")).to_numpy(zero_copy_only=False)
            memory.update(key_hashes(keys), right)
        self._memory = memory

    def close(self, timeout_s: float | None = None) -> None:
        """Commit pending events and stop the thread. Idempotent.

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
        self._way.close()
        with self._changed:
            self._raise_error()

    # --- internals ---

    def _wait_for_room(self, rows: int, size: int) -> bool:
        """Return whether this number of rows and bytes may be pending; the lock is held."""

        def fits() -> bool:
            # a call larger than the limit is pending alone
            return not self._waiting or self.buffering.has_room(
                self._waiting_rows + rows, self._waiting_bytes + size
            )

        max_block_s = self.buffering.max_block_s
        if not fits():
            self._flush_wanted = True
            self._changed.notify_all()
            self._changed.wait_for(
                lambda: fits() or self._error is not None, self.buffering.max_block_s
            )
            self._raise_error()
        if fits():
            return True
        if self.buffering.on_full == "drop":
            self.stats.dropped += rows
            return False
        raise TableError(
            f"feedback writer {self._user!r}: {self._waiting_rows} events "
            f"({self._waiting_bytes >> 20} MiB) are pending and there was no room for {rows} "
            f"more within max_block_s={max_block_s:g}; raise max_pending, max_pending_bytes "
            "or max_block_s, write less often, or drop events by on_full='drop'"
        )

    def _raise_error(self) -> None:
        if self._error is not None:
            raise TableError(
                f"feedback writer {self._user!r}: could not commit to table {self.table!r} for "
                f"{self.buffering.give_up_s:g} s; {self._waiting_rows} events are lost: "
                f"{self._error}"
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
            last = group[-1].seq
            try:
                rows = rows_of(group, list(self.sample_keys), self.run_id, self.rank, self._memory)
                if rows.num_rows:
                    self._commit(rows, last)
                    self._handed = last
            except BaseException as error:  # raised in the training loop at its next call
                with self._changed:
                    self._error = error
                    self._changed.notify_all()
                return
            with self._changed:
                for call in group:
                    self._waiting.popleft()
                    self._waiting_bytes -= call.num_bytes
                self._waiting_rows -= rows.num_rows
                self._committed = max(self._committed, last)
                self.stats.committed += rows.num_rows
                self._changed.notify_all()

    def _is_due(self) -> bool:
        if not self._waiting:
            return False
        waited_s = time.monotonic() - self._waiting[0].since_s
        return (
            self._closing
            or self._flush_wanted
            or self.buffering.is_due(self._waiting_rows, waited_s)
        )

    def _wait_s(self) -> float | None:
        if not self._waiting:
            return None
        due_s = self._waiting[0].since_s + self.buffering.flush_interval_s
        return max(0.0, due_s - time.monotonic())

    def _commit(self, rows: pa.Table, seq: int) -> None:
        until = time.monotonic() + self.buffering.give_up_s
        pause_s = _FIRST_RETRY_S
        while True:
            try:
                self._way.commit(rows, self._handed, seq)
                return
            except Exception:
                if time.monotonic() + pause_s > until:
                    raise
                self.stats.retries += 1
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_RETRY_S)


class _Commits:
    """Commits directly to the table, under the locks of this host."""

    way = "table"

    def __init__(self, lake: Lake, table: str, user: str) -> None:
        self._lake, self._table, self._user = lake, table, user
        self._resources = ExitStack()
        lock = f"{lake.database}.{table}.{quote(user, safe='')}.lock"
        self._resources.enter_context(
            locked(lake.side_folder / "feedback" / lock, f"feedback writer {user!r}", 0.2)
        )

    def committed(self, at_least: int = 0) -> int:
        return committed_identifiers(self._lake, self._table, self._user) or 0

    def commit(self, rows: pa.Table, previous: int, last: int) -> None:
        append_arrow(self._lake, self._table, rows, commit_user=self._user, commit_identifier=last)

    def close(self) -> None:
        self._resources.close()


_OPEN: weakref.WeakSet[FeedbackWriter] = weakref.WeakSet()


def _close_all() -> None:
    with ExitStack() as stack:  # continues with the others if one of them raises
        for writer in list(_OPEN):
            if writer._process == os.getpid():  # not in a forked child
                stack.callback(writer.close)


# A plain atexit function runs when thread pools, which a commit uses, are closed already;
# this one, which concurrent.futures itself uses, runs before.
getattr(threading, "_register_atexit", atexit.register)(_close_all)
