"""A minimal client of the Redis protocol, sufficient for health checks of a server.

The full client is used only in ``paimon_features.online.store``; setup and doctor must work on
hosts without it.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedRWPair
from urllib.parse import unquote, urlsplit

from paimon_features.core.errors import ConfigurationError, OnlineStoreError

Reply = str | int | None | list["Reply"]

DEFAULT_PORT = 6379


class RespConnection:
    """One connection; ``request`` sends a command and returns its reply."""

    def __init__(self, stream: BufferedRWPair) -> None:
        self._stream = stream

    def request(self, *words: str) -> Reply:
        """Send a command and return its reply.

        Raises
        ------
        OnlineStoreError
            If the server replies with an error or closes the connection.
        """
        encoded = [word.encode() for word in words]
        parts = [b"*%d\r\n" % len(encoded)]
        parts += [b"$%d\r\n%s\r\n" % (len(word), word) for word in encoded]
        self._stream.write(b"".join(parts))
        self._stream.flush()
        return self._read()

    def _read(self) -> Reply:
        line = self._stream.readline()
        if not line.endswith(b"\r\n"):
            raise OnlineStoreError("the server closed the connection")
        kind, rest = line[:1], line[1:-2].decode(errors="replace")
        if kind == b"-":
            raise OnlineStoreError(f"the server replied: {rest}")
        if kind == b"+":
            return rest
        if kind not in b":$*":
            raise OnlineStoreError(f"the server does not speak the Redis protocol: {line[:40]!r}")
        number = int(rest)
        if kind == b":":
            return number
        if number < 0:
            return None
        if kind == b"*":
            return [self._read() for _ in range(number)]
        return self._stream.read(number + 2)[:-2].decode(errors="replace")


@contextmanager
def connect(url: str, timeout_s: float = 3.0) -> Iterator[RespConnection]:
    """Open a connection to ``redis://[user:password@]host[:port][/db]`` (``rediss://`` for TLS), or
    to ``unix://[user:password@]/path/of/socket``.

    Raises
    ------
    ConfigurationError
        If the URL has another form.
    OnlineStoreError
        If no server responds, or it rejects the password.
    """
    parts = urlsplit(url)
    on_socket = parts.scheme == "unix"
    try:
        port = parts.port or DEFAULT_PORT
    except ValueError:
        port = 0
    tcp = parts.scheme in ("redis", "rediss") and parts.hostname and port
    if not (tcp or (on_socket and parts.path and not parts.hostname)):
        raise ConfigurationError(
            f"online store {_without_password(url)!r}: expected "
            "redis://[user:password@]host[:port][/db], rediss:// or unix:///path/of/socket"
        )
    where = unquote(parts.path) if on_socket else f"{parts.hostname}:{port}"
    try:
        with (
            _unix_connection(where, timeout_s)
            if on_socket
            else socket.create_connection((parts.hostname, port), timeout_s)
        ) as plain:
            if parts.scheme == "rediss":
                tls = ssl.create_default_context()
                plain = tls.wrap_socket(plain, server_hostname=parts.hostname)
            with plain, plain.makefile("rwb") as stream:
                connection = RespConnection(stream)
                if parts.password:
                    user = [unquote(parts.username)] if parts.username else []
                    connection.request("AUTH", *user, unquote(parts.password))
                yield connection
    except OSError as error:
        raise OnlineStoreError(f"no Redis-protocol server responds at {where}: {error}") from error


def _unix_connection(path: str, timeout_s: float) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(timeout_s)
    try:
        connection.connect(path)
    except BaseException:
        connection.close()
        raise
    return connection


def _without_password(url: str) -> str:
    """Return the URL without its options and with its password masked, for logs.

    >>> _without_password("http://user:secret@host?password=secret")
    'http://***@host'
    """
    head, at, tail = url.rpartition("@")
    tail = tail.partition("?")[0]
    return f"{head.partition('://')[0]}://***{at}{tail}" if at else tail
