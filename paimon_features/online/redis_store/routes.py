"""Sending commands to the server in charge of their keys, and sending them again.

Reads, deletions and leases do no harm when they are done twice. A compare-and-set is repeated in
another form once its reply was lost: see ``scripts``. So everything is repeated while there is
time, but for what timed out, because then there is none.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from typing import Any, Protocol

from paimon_features.online.redis_store.breaker import BreakerOpen
from paimon_features.online.redis_store.connections import (
    Address,
    Link,
    NoReplyError,
    Packed,
    Refused,
    ReplyError,
    Server,
    pack,
)
from paimon_features.online.redis_store.messages import explain
from paimon_features.online.settings import OnlineSettings

FIRST_BACKOFF_S = 0.02
LONGEST_BACKOFF_S = 0.5
MOST_ROUNDS = 8
NOT_DONE = ("LOADING ", "CLUSTERDOWN ", "TRYAGAIN ", "MASTERDOWN ", "BUSY ")
"""Replies that say that nothing was done, and that it may be in a moment."""


class Job:
    """One command about keys of one slot, and its reply once it is there.

    ``again`` gives the command as it is sent once a reply was lost; by default it is the same.
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
        self.redirected = False  # the trouble is that another node is in charge
        self.ask: Address | None = None  # where a moving key is, for the next time only


class Route(Protocol):
    """Which server is in charge of what."""

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values of keys, those of one slot at one time."""

    def do(self, jobs: Sequence[Job], timeout_s: float) -> None:
        """Send the jobs and fill in their replies, error replies among them.

        Raises
        ------
        OnlineStoreError
            If a job has no reply when the time or the attempts are over.
        """

    def servers(self) -> list[Server]:
        """All servers that keys are on, to be asked one by one (scan, check)."""

    def key_on(self, server: Server, stem: str) -> bytes:
        """A key that belongs on this server; ``stem`` opens its hash tag."""

    def ask(self, server: Server, packed: Packed, replies: int, timeout_s: float) -> list[Any]:
        """The replies of one server to harmless commands, error replies among them."""

    def unlinks(self, keys: Sequence[bytes]) -> list[Job]:
        """Jobs that remove keys."""

    def close(self) -> None:
        """Let go of connections."""


class Sender:
    """The loop of sending, and of sending again what was not done. Routes build on it."""

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
            # to follow a redirection, or to replace a stale connection, is no second attempt
            at_once = round_ < MOST_ROUNDS and all(map(_is_free, jobs))
            pause_s = 0.0 if at_once else backoff_s(attempt)
            attempt += not at_once
            over = attempt > self._settings.retries or time.monotonic() + pause_s >= deadline
            for job in jobs:
                if over or not self._repeat(job):
                    self._give_up(jobs)
                    return
            time.sleep(pause_s)

    def ask(self, server: Server, packed: Packed, replies: int, timeout_s: float) -> list[Any]:
        """The replies of one server to harmless commands, error replies among them."""
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
        """Make the job ready to be sent again; False if that is of no use."""
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
        """Raise for a job without any reply; an error reply is a reply."""
        for job in jobs:
            if job.trouble is not None and not isinstance(job.trouble, ReplyError):
                raise explain(self._settings, job.trouble) from job.trouble

    def _send(self, jobs: Sequence[Job], deadline: float) -> None:
        """One round: all servers are asked before the first one's replies are waited for."""
        begun: list[tuple[Server, list[Job], Link]] = []
        try:
            for server, batch in self._batches(jobs, deadline):
                packed = b"".join([_asking(job) for job in batch])
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
            for server, _, link in begun:  # an interrupt: their replies come too late
                server.abandon(link)

    def _received(self, server: Server, batch: Iterable[Job], replies: list[Any]) -> None:
        place = iter(replies)
        for job in batch:
            if job.ask is not None:
                next(place)
            job.ask, job.trouble, job.reply = None, None, next(place)
            if isinstance(job.reply, ReplyError):
                self._refused(server, job, str(job.reply))

    # -- what differs between one server and a cluster ------------------------------------

    def _batches(self, jobs: Sequence[Job], deadline: float) -> Iterable[tuple[Server, list[Job]]]:
        raise NotImplementedError

    def _failed(self, server: Server, batch: Iterable[Job], error: Exception) -> None:
        for job in batch:
            job.ask, job.trouble = None, error

    def _refused(self, server: Server, job: Job, reply: str) -> None:
        """An error reply: ``job.trouble`` is set if the job is to be sent again."""
        if reply.startswith(NOT_DONE):
            job.trouble = job.reply


class OneServer(Sender):
    """All keys on one server."""

    def __init__(self, settings: OnlineSettings, server: Server) -> None:
        super().__init__(settings)
        self._server = server

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        packed = pack(b"MGET", *keys)
        timeout_s = self._timeout_s
        deadline = time.monotonic() + timeout_s
        server = self._server
        job = Job(b"", packed)
        try:
            found = server.end(server.begin(packed, timeout_s), 1, deadline)[0]
            if type(found) is list:
                return found
            self._received(server, [job], [found])
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


def _asking(job: Job) -> Packed:
    return job.packed if job.ask is None else pack("ASKING") + job.packed


def _is_free(job: Job) -> bool:
    return job.redirected or (isinstance(job.trouble, NoReplyError) and job.trouble.reused)


def backoff_s(attempt: int) -> float:
    """A pause before the next attempt: doubling, and of random length, so that callers spread."""
    longest_s: float = min(LONGEST_BACKOFF_S, FIRST_BACKOFF_S * 2**attempt)
    return longest_s * random.uniform(0.5, 1.0)
