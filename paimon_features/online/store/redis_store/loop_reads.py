"""Reads in an event loop: one connection to one server, one MGET at a time, no thread.

Only what usually happens is done here. The connection is made and logged in by a thread, in the way
of all connections; after a failure other than a timeout a thread repeats the read in the way of
``RedisStore.get_many``, with its retries and its circuit breaker, until the same deadline, and
meanwhile a new connection is made. So a read is never slower to recover than without this.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

import hiredis

from paimon_features.core.errors import OnlineStoreError
from paimon_features.online.store.redis_store.connections import (
    Address,
    NoReplyError,
    Refused,
    open_link,
    pack,
)
from paimon_features.online.store.redis_store.messages import explain
from paimon_features.online.store.redis_store.routes import OneServer
from paimon_features.online.store.settings import OnlineSettings, host_and_port, is_socket

MOST_KEYS = 4_096
"""A read of more keys is left to a thread: its values would hold up the loop."""
RETRY_S = 1.0
"""The pause after a connection that could not be made."""
LAST_LOOK_S = 0.01
"""A reply may be in the socket when the time is over: a loop that was held up runs its timers
before it looks. So long it has for that; a server that does not reply is reported so much later."""

Done = Callable[[list[bytes | None] | OnlineStoreError | None], None]
_MORE = object()


class LoopReads(asyncio.Protocol):
    """Implements ``LoopReader`` for the server at ``address``, which ``route`` leads to.

    ::

        no connection --get_many: False--> being made --> idle <--> reading
              ^------- lost, an error reply, a timeout ---------------'
    """

    def __init__(
        self,
        settings: OnlineSettings,
        route: OneServer,
        address: Address,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._settings, self._route, self._address, self._loop = settings, route, address, loop
        [server] = route.servers()
        self._breaker = server.breaker
        self._timeout_s = settings.timeout_ms / 1_000
        self._transport: asyncio.Transport | None = None
        self._reader = hiredis.Reader(notEnoughData=_MORE)
        self._done: Done | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._until_s = 0.0
        self._connecting: asyncio.Task[None] | None = None
        self._connect_at_s = 0.0
        self._closed = False
        self._ended: asyncio.Future[None] | None = None
        """Of the read that was in flight at ``close``."""
        self._closing: asyncio.Task[None] | None = None

    def get_many(self, keys: Sequence[bytes], done: Done) -> bool:
        transport = self._transport
        if transport is None:
            self._connect_soon()
            return False
        if self._done is not None or len(keys) > MOST_KEYS or self._breaker.troubled:
            return False
        self._done = done
        self._until_s = time.monotonic() + self._timeout_s
        if self._timer is None:
            self._timer = self._loop.call_later(self._timeout_s, self._check_time)
        transport.write(pack(b"MGET", *keys))
        return True

    def repeat(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return self._route.get_many(keys, max(0.001, self._until_s - time.monotonic()))

    def close(self) -> None:
        self._closed = True
        if self._transport is None or self._closing is not None:
            return
        if self._done is None:
            self._transport.close()
        else:
            self._ended = self._loop.create_future()
            self._closing = self._loop.create_task(self._close_after(self._ended))

    async def _close_after(self, ended: asyncio.Future[None]) -> None:
        """Close the connection after the read in flight, or with the loop.

        A loop that ends cancels its tasks, and leaves connections open.
        """
        try:
            await ended
        finally:
            if self._transport is not None:
                self._transport.abort()

    # -- the connection -------------------------------------------------------------------

    def _connect_soon(self) -> None:
        if self._closed or self._connecting is not None or self._loop.time() < self._connect_at_s:
            return
        self._connecting = self._loop.create_task(self._connect())
        self._connecting.add_done_callback(self._connected)

    async def _connect(self) -> None:
        connect_s = self._settings.connect_timeout_ms / 1_000 + self._timeout_s
        link = await asyncio.to_thread(open_link, self._settings, self._address, connect_s)
        sock = link.detach()
        try:
            if is_socket(self._address):
                await self._loop.create_unix_connection(lambda: self, sock=sock)
            else:
                await self._loop.create_connection(lambda: self, sock=sock)
        except BaseException:
            sock.close()
            raise

    def _connected(self, task: asyncio.Task[None]) -> None:
        self._connecting = None
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            return
        # why is in the errors of the reads that are made meanwhile in the other way
        self._connect_at_s = self._loop.time() + RETRY_S
        if not isinstance(error, NoReplyError | Refused | OSError):
            raise error

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # uvloop's is of no such class
        self._reader = hiredis.Reader(notEnoughData=_MORE)
        if self._closed:
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._end(None)

    # -- a read ---------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        reader = self._reader
        reader.feed(data)
        try:
            reply: Any = reader.gets()
        except hiredis.ProtocolError:
            self._drop()
            return
        if reply is _MORE:
            return
        if self._done is None or reader.has_data():
            self._drop()  # nobody has requested this
        elif type(reply) is list:
            self._breaker.succeeded()
            self._end(reply)
        else:
            self._end(None)  # an error reply: the other way explains it, or tries again

    def _check_time(self) -> None:
        """End the read if its time is over. One timer serves many reads, and is never cancelled."""
        self._timer = None
        if self._done is None:
            return
        left_s = self._until_s - time.monotonic()
        if left_s > 0:
            self._timer = self._loop.call_later(left_s, self._check_time)
            return
        # the loop looks at its sockets before the timer is due, however late that is
        self._timer = self._loop.call_later(LAST_LOOK_S, self._give_up, self._until_s)

    def _give_up(self, until_s: float) -> None:
        """End the read of this deadline if it still has no reply."""
        if self._done is None or self._until_s != until_s:
            self._check_time()  # meanwhile it was answered, and another one may have begun
            return
        self._timer = None
        done, self._done = self._done, None
        self._drop()
        if done is not None:
            reason = f"{host_and_port(*self._address)}: no reply before the deadline"
            self._breaker.failed(reason, timed_out=True)
            done(explain(self._settings, NoReplyError(reason, sent=True, timed_out=True)))

    def _drop(self) -> None:
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()
        self._end(None)

    def _end(self, found: list[bytes | None] | None) -> None:
        done, self._done = self._done, None
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)
        if done is not None:
            done(found)
