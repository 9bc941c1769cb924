"""Send commands to the server that owns their keys, with retries.

Reads, deletions and leases are idempotent. A compare-and-set whose reply was lost is retried in
another form: see ``scripts``. So every command is retried until the deadline, except after a
timeout, which used it up.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from typing import Any, Protocol

from paimon_features.online.store.redis_store.breaker import BreakerOpen
from paimon_features.online.store.redis_store.connections import (
    Address,
    Link,
    NoReplyError,
    Packed,
    Refused,
    ReplyError,
    Server,
    pack,
)
from paimon_features.online.store.redis_store.messages import explain
from paimon_features.online.store.settings import OnlineSettings

FIRST_BACKOFF_S = 0.02
LONGEST_BACKOFF_S = 0.5
MOST_ROUNDS = 8
NOT_DONE = ("LOADING ", "CLUSTERDOWN ", "TRYAGAIN ", "MASTERDOWN ", "BUSY ")
"""Error replies of commands that were not executed and may succeed shortly."""


class Job:
    """One command on keys of one slot, and its reply once received.

    ``again`` returns the command to send after a lost reply; by default the same one.
    """

    __slots__ = ("again", "ask", "key", "packed", "redirected", "reply", "trouble")

    def __init__(
        self, key: bytes, packed: Packed, again: Callable[[], Packed] | None = None
    ) -> None:
        self.key = key
        self.packed = packed
        self.again = again
        self.reply: Any = None
        self.trouble: Exception | None = None
        self.redirected = False  # the failure was a redirection to another node
        self.ask: Address | None = None  # the node of a migrating key, for the next attempt only


class Route(Protocol):
    """The mapping from keys to servers."""

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of keys, atomically for those of one slot."""

    def do(self, jobs: Sequence[Job], timeout_s: float) -> None:
        """Send the jobs and set their replies, error replies included.

        Raises
        ------
        OnlineStoreError
            If a job has no reply after the last attempt or at the deadline.
        """

    def servers(self) -> list[Server]:
        """Return all servers with keys, for calls to each of them (scan, check)."""

    def key_on(self, server: Server, stem: str) -> bytes:
        """Return a key that this server owns; ``stem`` opens its hash tag."""

    def request(self, server: Server, packed: Packed, replies: int, timeout_s: float) -> list[Any]:
        """Return the replies of one server to idempotent commands, error replies included."""

    def unlinks(self, keys: Sequence[bytes]) -> list[Job]:
        """Return jobs that delete keys."""

    def close(self) -> None:
        """Close the connections."""


class Sender:
    """The send and retry loop that the routes share."""

    def __init__(self, settings: OnlineSettings) -> None:
        self._settings = settings
        self._timeout_s = settings.timeout_ms / 1_000

    def do(self, jobs: Sequence[Job], timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        attempt = 0
        for round_ in count():
            self._send(jobs, deadline)
            jobs = [job for job in jobs if job.trouble is not None]
            if not jobs:
                return
            # following a redirection or replacing a stale connection does not count as an attempt
            at_once = round_ < MOST_ROUNDS and all(map(_is_free, jobs))
            pause_s = 0.0 if at_once else backoff_s(attempt)
            attempt += not at_once
            over = attempt > self._settings.retries or time.monotonic() + pause_s >= deadline
            for job in jobs:
                if over or not self._repeat(job):
                    self._give_up(jobs)
                    return
            time.sleep(pause_s)

    def request(self, server: Server, packed: Packed, replies: int, timeout_s: float) -> list[Any]:
        """Return the replies of one server to idempotent commands, error replies included."""
        deadline = time.monotonic() + timeout_s
        for attempt in count():
            try:
                return server.exchange(packed, replies, max(0.001, deadline - time.monotonic()))
            except (BreakerOpen, NoReplyError, Refused) as error:
                lost = isinstance(error, NoReplyError) and not error.timed_out
                if not lost or attempt >= max(1, self._settings.retries):
                    raise explain(self._settings, error) from error
            time.sleep(backoff_s(attempt))
        raise AssertionError  # count() does not end

    def _repeat(self, job: Job) -> bool:
        """Prepare the job for a retry; False if a retry cannot help."""
        if isinstance(job.trouble, BreakerOpen | Refused):
            return False
        if isinstance(job.trouble, NoReplyError):
            if job.trouble.timed_out:
                return False
            if job.trouble.sent and job.again is not None:
                job.packed = job.again()
        job.trouble, job.redirected = None, False
        return True

    def _give_up(self, jobs: Sequence[Job]) -> None:
        """Raise for the first job without a reply; an error reply is a reply."""
        for job in jobs:
            if job.trouble is not None and not isinstance(job.trouble, ReplyError):
                raise explain(self._settings, job.trouble) from job.trouble

    def _send(self, jobs: Sequence[Job], deadline: float) -> None:
        """Send a round to all servers before waiting for the first replies."""
        begun: list[tuple[Server, list[Job], Link]] = []
        try:
            for server, batch in self._batches(jobs, deadline):
                packed = b"".join([_with_asking(job) for job in batch])
                left_s = max(0.001, deadline - time.monotonic())
                try:
                    begun.append((server, batch, server.begin(packed, left_s)))
                except (BreakerOpen, NoReplyError, Refused) as error:
                    self._failed(server, batch, error)
            while begun:
                server, batch, link = begun.pop(0)
                try:
                    expected = len(batch) + sum(job.ask is not None for job in batch)
                    replies = server.end(link, expected, deadline)
                except NoReplyError as error:
                    self._failed(server, batch, error)
                else:
                    self._received(server, batch, replies)
        finally:
            for server, _, link in begun:  # an interrupt: nobody reads their replies
                server.abandon(link)

    def _received(self, server: Server, batch: Iterable[Job], replies: list[Any]) -> None:
        place = iter(replies)
        for job in batch:
            if job.ask is not None:
                next(place)
            job.ask, job.trouble, job.reply = None, None, next(place)
            if isinstance(job.reply, ReplyError):
                self._refused(server, job, str(job.reply))

    # -- differs between a single server and a cluster ------------------------------------

    def _batches(self, jobs: Sequence[Job], deadline: float) -> Iterable[tuple[Server, list[Job]]]:
        raise NotImplementedError

    def _failed(self, server: Server, batch: Iterable[Job], error: Exception) -> None:
        for job in batch:
            job.ask, job.trouble = None, error

    def _refused(self, server: Server, job: Job, reply: str) -> None:
        """Handle an error reply: set ``job.trouble`` if the job is to be retried."""
        if reply.startswith(NOT_DONE):
            job.trouble = job.reply


class OneServer(Sender):
    """All keys on one server."""

    def __init__(self, settings: OnlineSettings, server: Server) -> None:
        super().__init__(settings)
        self._server = server

    def get_many(self, keys: Sequence[bytes], timeout_s: float | None = None) -> list[bytes | None]:
        packed = pack(b"MGET", *keys)
        if timeout_s is None:
            timeout_s = self._timeout_s
        deadline = time.monotonic() + timeout_s
        server = self._server
        job = Job(b"", packed)
        try:
            reply = server.end(server.begin(packed, timeout_s), 1, deadline)[0]
            if type(reply) is list:
                return reply
            self._received(server, [job], [reply])
        except (BreakerOpen, NoReplyError, Refused) as error:
            job.trouble = error
        if job.trouble is not None:
            if self._repeat(job):
                self.do([job], deadline - time.monotonic())
            else:
                self._give_up([job])
        if isinstance(job.reply, ReplyError):
            raise explain(self._settings, job.reply)
        again: list[bytes | None] = job.reply
        return again

    def unlinks(self, keys: Sequence[bytes]) -> list[Job]:
        return [Job(b"", pack("UNLINK", *keys))]

    def servers(self) -> list[Server]:
        return [self._server]

    def key_on(self, server: Server, stem: str) -> bytes:
        return f"{stem}}}#check".encode()

    def close(self) -> None:
        self._server.forget()

    def _batches(self, jobs: Sequence[Job], deadline: float) -> Iterable[tuple[Server, list[Job]]]:
        return [(self._server, list(jobs))]


def _with_asking(job: Job) -> Packed:
    return job.packed if job.ask is None else pack("ASKING") + job.packed


def _is_free(job: Job) -> bool:
    return job.redirected or (isinstance(job.trouble, NoReplyError) and job.trouble.reused)


def backoff_s(attempt: int) -> float:
    """Return the pause before the next attempt: exponential, with jitter, so that callers
    spread."""
    longest_s: float = min(LONGEST_BACKOFF_S, FIRST_BACKOFF_S * 2**attempt)
    return longest_s * random.uniform(0.5, 1.0)
