"""The connections of one worker: how many there are, for how long, and what they hold in memory.

A connection is closed when its request's head does not arrive in time, when it is idle, and when
its client does not read a reply. All deadlines are checked together, twice a second, so they cost
a request nothing.
"""

from __future__ import annotations

import logging
import resource
from collections.abc import Iterator
from typing import Protocol

from paimon_features.core.configuration.project_config import ServeConfig
from paimon_features.serving.http.bodies.buffered_bytes import BufferedBytes
from paimon_features.serving.http.metrics import Counts

LOGGER = logging.getLogger("paimon_features.serve")

SLOWEST_BYTES_PER_S = 65_536
"""A client has ``reply_timeout`` for a reply, and as long as its bytes take at this rate."""
LINGER_S = 2.0
"""A client that is still sending when it is refused may finish within this time, so that it reads
why; what it sends is dropped."""
_HEAD_S = 1.0
"""A head usually comes in one piece. One that is not complete after this time makes way for a new
connection before those that are idle do, which may be a client's pool."""
_HELD_S = 1.0
"""What is held for less than this is not given up when memory is short."""
_OTHER_FILES = 64
"""Open files of a worker that are not connections."""
_REPEAT_EVERY_S = 10.0


class Connection(Protocol):
    """One connection; ``held`` is the last argument of ``Connections.hold``, 0 at first."""

    held: int

    def overdue(self, now_s: float) -> str | None:
        """End the connection if its time is over; returns why, None if it continues."""

    def abort(self) -> None:
        """End the connection at once; what the client has not read is lost."""


class Connections:
    """Used from one event loop only; ``counts`` gets the connections that were closed, by reason.

    ========== ===============================================================================
    head       the head of a request was not complete within ``head_timeout``
    idle       there was no request for ``idle_timeout``
    reply      the client did not read a reply within ``reply_timeout``
    replaced   it was idle or had sent half a head, and a new connection needed its place
    full       it was new, and ``max_connections`` others were busy
    memory     it held memory for longest when more than ``max_buffered_bytes`` was used
    invalid    it sent something that is not HTTP/1
    ========== ===============================================================================
    """

    def __init__(
        self, config: ServeConfig, buffers: BufferedBytes, counts: Counts, *, files: int = 1 << 30
    ) -> None:
        self.buffers = buffers
        self.head_timeout_s = config.head_timeout_ms / 1_000
        self.idle_timeout_s = config.idle_timeout_ms / 1_000
        self.reply_timeout_s = config.reply_timeout_ms / 1_000
        self._most = max(1, min(config.max_connections, files - _OTHER_FILES))
        self._counts = counts
        self._open: set[Connection] = set()
        self._idle: dict[Connection, None] = {}
        self._in_head: dict[Connection, float] = {}
        self._holding: dict[Connection, float] = {}
        self._logged_s: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._open)

    def admit(self, connection: Connection, now_s: float) -> bool:
        """Accept a new connection, if necessary in place of one of which no request has come."""
        if len(self._open) >= self._most:
            oldest = self._replaceable(now_s)
            if oldest is None:
                self.count("full", now_s)
                return False
            self.count("replaced", now_s)
            oldest.abort()
        self._open.add(connection)
        self._idle[connection] = None
        return True

    def _replaceable(self, now_s: float) -> Connection | None:
        """Return the oldest of the connections that wait for a head, the slow heads before the
        others."""
        oldest, since_s = next(iter(self._in_head.items()), (None, now_s))
        if now_s - since_s >= _HEAD_S:
            return oldest
        return next(iter(self._idle), oldest)

    def idle(self, connection: Connection) -> None:
        """Note that the connection waits for its next request."""
        if connection in self._open:
            self._idle[connection] = None

    def in_head(self, connection: Connection, now_s: float) -> None:
        """Note that the connection sends a request, and none before it is being answered."""
        self._idle.pop(connection, None)
        if connection in self._open:
            self._in_head[connection] = now_s

    def busy(self, connection: Connection) -> None:
        """Note that the connection has sent the head of a request."""
        self._idle.pop(connection, None)
        self._in_head.pop(connection, None)

    def hold(self, connection: Connection, size: int, now_s: float) -> None:
        """Note that ``size`` bytes of the connection are in memory and unread, 0 for none."""
        self.buffers.hold(size - connection.held)
        connection.held = size
        if not size:
            self._holding.pop(connection, None)
        elif connection not in self._holding:
            self._holding[connection] = now_s

    def forget(self, connection: Connection) -> None:
        """Forget a connection that is closed, or is about to be."""
        self._open.discard(connection)
        self._idle.pop(connection, None)
        self._in_head.pop(connection, None)

    def sweep(self, now_s: float) -> None:
        """Close the connections whose time is over. Called about twice a second."""
        self._counts.connections = len(self._open)
        for connection in [*self._open]:
            reason = connection.overdue(now_s)
            if reason is not None:
                self.count(reason, now_s)
        for connection in [*self._in_excess(now_s)]:
            self.count("memory", now_s)
            connection.abort()

    def count(self, reason: str, now_s: float) -> None:
        """Count a closed connection, and log it now and then if it may concern an operator."""
        closed = self._counts.closed
        closed[reason] = closed.get(reason, 0) + 1
        if reason in ("idle", "replaced"):
            return
        if now_s - self._logged_s.get(reason, -_REPEAT_EVERY_S) >= _REPEAT_EVERY_S:
            self._logged_s[reason] = now_s
            LOGGER.warning(
                "a connection was closed (%s, %d so far); %d are open", reason, closed[reason],
                len(self._open),
            )  # fmt: skip

    def _in_excess(self, now_s: float) -> Iterator[Connection]:
        """Yield the connections that hold memory for longest, until the others fit."""
        excess = self.buffers.held - self.buffers.limit
        for connection, since_s in self._holding.items():
            if excess <= 0 or now_s - since_s < _HELD_S:
                return
            excess -= connection.held
            yield connection


def raise_file_limit() -> int:
    """Allow this process as many open files as the host lets it; returns how many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):
            hard = soft  # more than the kernel allows
    return hard if hard != resource.RLIM_INFINITY else 1 << 30
