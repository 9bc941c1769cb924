"""The server of one worker: it accepts connections until it is to stop, then answers the rest."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from email.utils import formatdate
from typing import Protocol

from paimon_features.serving.http.messages import Exchange
from paimon_features.serving.http.server.connections import Connections
from paimon_features.serving.http.server.protocol import HttpProtocol

_BACKLOG = 2_048
_CHECK_S = 0.02


class ServedApp(Protocol):
    """What is served: requests are begun with ``start``; ``is_working`` until all are answered."""

    @property
    def is_working(self) -> bool:
        """Whether something is still under way, if only for clients that are gone."""

    def start(self, exchange: Exchange) -> None:
        """Begin to answer a request."""

    def cancel(self) -> None:
        """Give up what is under way."""


class HttpServer:
    """Accepts connections to one listening socket, in one event loop."""

    def __init__(self, app: ServedApp, connections: Connections) -> None:
        self._app = app
        self._connections = connections
        self._protocols: set[HttpProtocol] = set()
        self._date = (0, b"")

    def protocol(self) -> HttpProtocol:
        """Return the protocol of a new connection."""
        return HttpProtocol(self._app, self._connections, self.date_line, self._protocols)

    def date_line(self) -> bytes:
        """Return the header line ``date`` of a reply that is written now."""
        second = int(time.time())
        if second != self._date[0]:
            self._date = second, b"date: %b\r\n" % formatdate(second, usegmt=True).encode()
        return self._date[1]

    async def serve(
        self,
        listening: socket.socket,
        stop: asyncio.Event,
        grace_s: float,
        ready: Callable[[], None],
    ) -> None:
        """Serve until ``stop`` is set, and all that was requested is answered.

        ``ready`` is called when connections are accepted. After ``stop`` no new connection is, idle
        ones end, and the others end after their replies, or with nothing after ``grace_s``.
        """
        loop = asyncio.get_running_loop()
        server = await loop.create_server(self.protocol, sock=listening, backlog=_BACKLOG)
        ready()
        await stop.wait()
        server.close()
        until_s = loop.time() + grace_s
        while loop.time() < until_s:
            # again and again: one that was accepted as the server closed comes a moment later
            for protocol in [*self._protocols]:
                protocol.shut_down()
            if not self._protocols and not self._app.is_working:
                break
            await asyncio.sleep(_CHECK_S)
        self._app.cancel()
        for protocol in [*self._protocols]:
            protocol.abort()
        await asyncio.sleep(0)
