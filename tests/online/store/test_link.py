"""One connection to a server: which replies are in time."""

from __future__ import annotations

import socket
import time

import pytest

from paimon_features.online.store.redis_store.connections import Link


class Connection:
    """What a link uses of redis-py's connection."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self.disconnect = sock.close


def test_a_reply_that_is_there_counts_also_after_the_deadline() -> None:
    """As if this process was paused between sending and reading."""
    ours, server = socket.socketpair()
    with server:
        link = Link(Connection(ours), 0)
        late = time.monotonic() - 1
        server.sendall(b"+OK\r\n$3\r\nabc\r\n")
        assert link.receive(2, late) == [b"OK", b"abc"]
        server.sendall(b"$3\r\na")
        with pytest.raises(TimeoutError):
            link.receive(1, late)
        link.close()
