"""Feedback from several hosts: ranks enqueue their calls, and a single drain commits them.

::

    rank 0   FeedbackWriter ──┐   messages     ┌───────────────┐
    rank 1   FeedbackWriter ──┼──> [ | | | ] ──> FeedbackDrain ├──> feedback_<loop>
    rank 2   FeedbackWriter ──┘                └───────┬───────┘
                   ^          notes: run-rank -> call  │
                   └───────────────────────────────────┘

A writer keeps what it sent until the drain has acknowledged by a note that it is in the table,
and sends it again if it was lost. A message contains the range of its calls and the preceding
call, so the drain detects duplicates and gaps: a message is committed only directly after the
calls that precede it. Messages that the queue loses, duplicates or delays therefore do not
change the table.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from paimon_features.core.errors import ConfigurationError, OnlineStoreError, TableError
from paimon_features.core.types.schema import DataType
from paimon_features.definitions import FeedbackSource
from paimon_features.lake.catalog import Lake
from paimon_features.lake.ownership.locks import locked
from paimon_features.lake.reading.table_reader import iter_batches
from paimon_features.lake.specs import feedback_spec
from paimon_features.lake.storage.json_files import read_json, write_json
from paimon_features.lake.writing.table_writer import append_arrow, committed_identifiers
from paimon_features.online.store.queue import BEGINNING, Queue

USER = "feedback-drain"
_MESSAGE_BYTES = 4 << 20
_MESSAGES_PER_READ = 16
_FIRST_POLL_S, _LONGEST_POLL_S = 0.01, 0.2
_COMMITS = "#commits"
"""Note with the number of commits of the drain; as long as it exists, so do the others."""


class HandOver:
    """Sends the commits of a feedback writer through a queue and waits for the drain's notes."""

    way = "queue"

    def __init__(
        self, lake: Lake, table: str, queue: Queue, user: str, *, patience_s: float = 5.0
    ) -> None:
        self._queue, self._user, self._patience_s = queue, user, patience_s
        self._sent: tuple[int, bytes] | None = None
        # notes may be stale after a table is rolled back or recreated
        commits = queue.noted(_COMMITS) or 0
        if commits and commits > _commits(lake, table):
            queue.forget_notes()  # a running drain writes all notes again

    def committed(self, at_least: int = 0) -> int:
        """Return the last call up to which all are in the table, according to the drain's notes.

        Waits a limited time for ``at_least``: the drain may have just started.

        Raises
        ------
        TableError
            If the drain has noted nothing until then, so that nobody knows.
        """
        until = time.monotonic() + self._patience_s
        while True:
            # in this order: the drain notes all of them at once, and may do so between the two
            is_known = self._queue.noted(_COMMITS) is not None
            noted = self._queue.noted(self._user)
            if noted is None and (is_known or not at_least):
                noted = 0  # the drain has nothing of this run and rank
            if noted is not None and noted >= at_least:
                return noted
            if time.monotonic() > until:
                if noted is not None:
                    return noted
                raise TableError(
                    f"whether call {at_least} of {self._user!r} is in the table was not noted "
                    f"within {self._patience_s:g} s; is a FeedbackDrain of this queue running?"
                )
            time.sleep(_LONGEST_POLL_S)

    def commit(self, rows: pa.Table, previous: int, last: int) -> None:
        """Send the calls after ``previous`` up to ``last``; wait until they are committed.

        Raises
        ------
        TableError
            On a timeout (call again with the same arguments), or if the table has lost earlier
            calls.
        """
        until = time.monotonic() + self._patience_s
        poll_s = _FIRST_POLL_S
        while True:
            # in this order: the drain writes the note before it deletes the message
            is_committed = self._sent is not None and self._queue.contains(self._sent[1])
            noted = self._queue.noted(self._user)
            if noted is not None and noted >= last:
                self._sent = None
                return
            if not is_committed:
                if noted is not None and self._sent is not None and noted < previous:
                    raise TableError(
                        f"the drain has the feedback of {self._user!r} up to call {noted}, but "
                        f"it had "
                        f"been committed up to call {previous}: the table was rolled back "
                        "or recreated; start a run with another run_id"
                    )
                ids = self._queue.append(messages_of(rows, self._user, previous))
                self._sent = (last, ids[-1])
            if time.monotonic() > until:
                raise TableError(
                    f"call {last} of {self._user!r} was sent and not committed within "
                    f"{self._patience_s:g} s; is a FeedbackDrain of this queue running?"
                )
            time.sleep(poll_s)
            poll_s = min(2 * poll_s, _LONGEST_POLL_S)

    def close(self) -> None:
        """Do nothing: the queue is owned by the caller."""


@dataclass(frozen=True)
class Message:
    """Complete calls of one run and rank: those after ``previous`` up to ``last``."""

    user: str
    previous: int
    last: int
    rows: pa.Table

    def encoded(self) -> bytes:
        """Encode as an Arrow stream, with the message header in the schema metadata."""
        about = {"user": self.user, "previous": str(self.previous), "last": str(self.last)}
        table = self.rows.replace_schema_metadata(about)
        sink = pa.BufferOutputStream()
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        with pa.ipc.new_stream(sink, table.schema, options=options) as stream:
            stream.write_table(table)
        return bytes(sink.getvalue().to_pybytes())

    @classmethod
    def decoded(cls, text: bytes) -> Message:
        table = pa.ipc.open_stream(text).read_all()
        about = {key.decode(): value.decode() for key, value in table.schema.metadata.items()}
        rows = table.replace_schema_metadata(None)
        return cls(about["user"], int(about["previous"]), int(about["last"]), rows)


def messages_of(rows: pa.Table, user: str, previous: int) -> list[bytes]:
    """Split rows, in the order of their calls, into messages of about 4 MiB of complete calls."""
    calls = rows.column("seq").to_numpy()
    step = max(1, rows.num_rows * _MESSAGE_BYTES // max(rows.nbytes, 1))
    messages, start = [], 0
    while start < len(calls):
        last = int(calls[min(start + step, len(calls)) - 1])
        end = int(np.searchsorted(calls, last, side="right"))
        messages.append(Message(user, previous, last, rows.slice(start, end - start)).encoded())
        previous, start = last, end
    return messages


class FeedbackDrain:
    """Commits the feedback of all ranks and runs of a loop, exactly once per call.

    One drain at a time per loop (on one host a lock in the warehouse enforces it): in the
    process of rank 0, as a context manager around its training, or in a separate process. While
    no drain runs, the writers wait as configured; a restarted drain resumes from the table.

    Parameters
    ----------
    lake, loop, sample_keys
        As for :class:`trainer_bridge.FeedbackWriter`.
    queue
        ``paimon_features.online.store.open_queue(address, name)``, with the name that the writers
        use.
    interval_s
        How long messages are collected for a commit.
    give_up_s
        How long the queue or the table may be unavailable before the drain fails.

    Attributes
    ----------
    rows
        Rows committed so far.

    Raises
    ------
    TableError
        If the table has different columns, or another drain of the loop is running.
    """

    def __init__(
        self,
        lake: Lake,
        loop: FeedbackSource | str,
        sample_keys: Mapping[str, DataType] | None = None,
        *,
        queue: Queue,
        interval_s: float = 0.2,
        give_up_s: float = 120.0,
    ) -> None:
        if isinstance(loop, FeedbackSource):
            sample_keys = loop.sample_keys if sample_keys is None else sample_keys
            self.table = loop.table
        else:
            self.table = f"feedback_{loop}"
        if not sample_keys:
            raise ConfigurationError(f"feedback drain of {self.table!r}: give sample_keys")
        self.lake, self.queue = lake, queue
        self.interval_s, self.give_up_s = interval_s, give_up_s
        self.rows = 0
        lake.create(feedback_spec(self.table, sample_keys))
        folder = lake.side_folder / "feedback"
        self._record = folder / f"{lake.database}.{self.table}.drain.json"
        self._lock_path = folder / f"{lake.database}.{self.table}.drain.lock"
        self._resources = ExitStack()
        self._identifier = self._committed = 0
        self._known: dict[str, int] = {}
        self._sure = False
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="feedback-drain", daemon=True)

    def __enter__(self) -> FeedbackDrain:
        purpose = f"feedback drain of {self.table!r}"
        if self._thread.ident is not None:
            raise TableError(f"{purpose}: it was used before; create a new one")
        self._resources.enter_context(locked(self._lock_path, purpose, 0.2))
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Commit what is left in the queue and stop. Idempotent.

        Raises
        ------
        PaimonFeaturesError
            The error that made the drain fail, if any.
        """
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._resources.close()
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    # --- internals ---

    def _work(self) -> None:
        since = None
        while True:
            ending = self._stop.is_set()
            try:
                processed = self._drain()
                since = None
                if ending and not processed:
                    return
                if processed < _MESSAGES_PER_READ:
                    self._stop.wait(self.interval_s)
            except (OnlineStoreError, OSError, TableError) as error:
                since = time.monotonic() if since is None else since
                if time.monotonic() - since > self.give_up_s:
                    self._error = error
                    return
                time.sleep(_LONGEST_POLL_S)
            except BaseException as error:  # raised by close
                self._error = error
                return

    def _drain(self) -> int:
        """Commit the pending messages; return how many were processed."""
        if not self._sure:
            self._look()
        if self.queue.noted(_COMMITS) is None:  # the server lost its memory
            self.queue.note({**self._known, _COMMITS: self._committed})
        messages = self.queue.read(BEGINNING, _MESSAGES_PER_READ)
        last_of_user, parts, users = dict(self._known), [], set()
        for number, text in messages:
            message = self._decoded(number, text)
            users.add(message.user)
            have = last_of_user.get(message.user, 0)
            # rejected if earlier calls are missing: its writer will send all of them again
            if message.previous <= have < message.last:
                parts.append(message.rows.filter(pc.greater(message.rows.column("seq"), have)))
                last_of_user[message.user] = message.last
        if parts:
            self._commit(pa.concat_tables(parts), last_of_user)
        if users:
            notes = {user: self._known.get(user, 0) for user in users}
            self.queue.note({**notes, _COMMITS: self._committed})
        self.queue.delete([number for number, _ in messages])
        return len(messages)

    def _look(self) -> None:
        """Refresh the committed positions, at the start and after a commit of unknown outcome."""
        record = read_json(self._record)
        done = self._committed = _commits(self.lake, self.table)
        if record is None:  # a first start, or it was lost
            self._known, record = self._in_table(), {"identifier": done}
        elif done == record["identifier"]:
            self._known = record["after"]
        elif done == record["identifier"] - 1:
            self._known = record["before"]
        else:  # rolled back
            self._known = self._in_table()
        self._identifier = max(done, record["identifier"])
        self.queue.forget_notes()
        self._sure = True

    def _commit(self, rows: pa.Table, known: dict[str, int]) -> None:
        # written before the commit, whose presence decides which of the two applies
        identifier = self._identifier + 1
        record = {"identifier": identifier, "before": self._known, "after": known}
        self._sure = False
        write_json(self._record, record)
        append_arrow(self.lake, self.table, rows, commit_user=USER, commit_identifier=identifier)
        self._identifier = self._committed = identifier
        self._known, self._sure = known, True
        self.rows += rows.num_rows

    def _decoded(self, number: bytes, text: bytes) -> Message:
        try:
            return Message.decoded(text)
        except (pa.ArrowException, KeyError, ValueError, AttributeError) as error:
            raise ConfigurationError(
                f"{self.queue!r}: message {number.decode()} was not written by a feedback writer "
                f"({error}); another program uses this queue: delete the message, or use "
                "another name"
            ) from error

    def _in_table(self) -> dict[str, int]:
        last_of_user: dict[str, int] = {}
        for batch in iter_batches(self.lake, self.table, ["run_id", "rank", "seq"]):
            grouped: Any = pa.Table.from_batches([batch]).group_by(["run_id", "rank"])
            for row in grouped.aggregate([("seq", "max")]).to_pylist():
                user = f"{row['run_id']}-{row['rank']}"
                last_of_user[user] = max(last_of_user.get(user, 0), row["seq_max"])
        return last_of_user


def _commits(lake: Lake, table: str) -> int:
    """Return the number of the drain's last commit to a table, 0 if there is none."""
    return (committed_identifiers(lake, table, USER) or 0) if lake.exists(table) else 0
