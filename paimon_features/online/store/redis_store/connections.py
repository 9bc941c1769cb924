"""Connections to one server: opened by redis-py, used directly.

redis-py connects, with and without TLS, and disconnects. In between, a read is one packed command
and one parsed reply; doing that here takes a third of the time of the client's layers and honours
the deadline.
"""

from __future__ import annotations

import os
import socket
import ssl
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from paimon_features.core.errors import MissingExtraError
from paimon_features.online.store.redis_store.breaker import Breaker
from paimon_features.online.store.settings import OnlineSettings, host_and_port, is_socket

try:
    import hiredis
    import redis
    from redis.exceptions import RedisError
except ImportError as _error:
    raise MissingExtraError.of(_error.name or "redis", "serve", "the Redis store") from _error

Address = tuple[str, int]
Packed = bytes

_READ_SIZE = 1 << 16
_MORE = object()
ReplyError: type[Exception] = hiredis.ReplyError


class NoReplyError(Exception):
    """A command received no reply.

    ``sent``: the server may have executed it. ``reused``: it used an idle connection, so the
    failure says nothing about the server's present state. ``timed_out``: the deadline passed.
    """

    def __init__(
        self, reason: str, *, sent: bool, reused: bool = False, timed_out: bool = False
    ) -> None:
        super().__init__(reason)
        self.sent, self.reused, self.timed_out = sent, reused, timed_out


class Refused(Exception):  # noqa: N818 - becomes an OnlineStoreError
    """The server rejected the login, or failed certificate verification: no retry helps."""


def pack(*words: bytes | str | int) -> Packed:
    """Encode one command in the Redis protocol."""
    packed: Packed = hiredis.pack_command(words)  # type: ignore[arg-type]
    return packed


class Link:
    """One connection, used by one thread at a time; closed if nobody refers to it any more."""

    __slots__ = ("_closing", "_connection", "_reader", "_sock", "_timeout_s", "born", "reused")

    def __init__(self, connection: Any, born: int) -> None:
        self._connection = connection
        self._sock: socket.socket = connection._sock
        # a collector of cycles may finalize the socket before redis-py's connection, which then
        # counts as not closed
        self._closing = weakref.finalize(connection, self._sock.close)
        self._closing.atexit = False
        self._timeout_s: float = self._sock.gettimeout() or 0.0
        self._reader = hiredis.Reader(notEnoughData=_MORE)
        self.born = born
        self.reused = False

    def send(self, packed: Packed, timeout_s: float) -> None:
        """Send commands; OSError if the connection is closed."""
        if timeout_s != self._timeout_s:
            self._sock.settimeout(timeout_s)
            self._timeout_s = timeout_s
        self._sock.sendall(packed)

    def receive(self, count: int, deadline: float) -> list[Any]:
        """Return the next ``count`` replies, error replies included.

        OSError if they do not arrive.
        """
        replies: list[Any] = []
        reader, sock = self._reader, self._sock
        data = b""
        while True:
            while (reply := reader.gets()) is not _MORE:
                replies.append(reply)
                if len(replies) == count:
                    return replies
            if data and time.monotonic() > deadline:
                raise TimeoutError("timed out")
            # an earlier server may have used most of the time, and a reply in many small packets
            # shares one deadline
            self._hurry(deadline)
            data = sock.recv(_READ_SIZE)
            if not data:
                raise ConnectionResetError("the server closed the connection")
            reader.feed(data)

    def _hurry(self, deadline: float) -> None:
        left_s = deadline - time.monotonic()
        if left_s < self._timeout_s / 2:
            self._timeout_s = max(left_s, 0.001)
            self._sock.settimeout(self._timeout_s)

    def detach(self) -> socket.socket:
        """Return the connected socket, not blocking; it is no longer closed with this link."""
        self._closing.detach()
        self._connection._sock = None
        self._sock.setblocking(False)
        return self._sock

    def close(self) -> None:
        """Disconnect."""
        self._connection.disconnect()


class Server:
    """One server: its connection pool and its breaker. Thread safe.

    ``address`` is called for every new connection, so that the address may change; ``check``
    validates a connection before its first use. ``name`` is the prefix of failure messages.
    """

    def __init__(
        self,
        settings: OnlineSettings,
        address: Callable[[float], Address],
        check: Callable[[Link, float], None] | None = None,
        name: str = "",
    ) -> None:
        self._settings = settings
        self.name = name
        self._address = address
        self._check = check
        self.breaker = Breaker()
        self._idle: list[Link] = []  # last in, first out; append and pop are atomic
        self._open = 0
        self._waiting = 0
        self._age = 0
        self._changed = threading.Condition()
        _SERVERS.add(self)

    def begin(self, packed: Packed, timeout_s: float) -> Link:
        """Send commands on a connection; ``end`` receives the replies from it.

        Raises
        ------
        BreakerOpen, NoReplyError, Refused
            Nothing was executed, unless ``NoReplyError.sent``.
        """
        if self.breaker.admit(timeout_s / 2):
            timeout_s /= 2
        try:
            link = self._idle.pop()
        except IndexError:
            link = self._open_or_wait(time.monotonic() + timeout_s)
        try:
            link.send(packed, timeout_s)
        except BaseException as error:
            raise self._lost(link, error) from error
        return link

    def end(self, link: Link, count: int, deadline: float) -> list[Any]:
        """Return the replies to ``count`` commands in order, error replies included."""
        try:
            replies = link.receive(count, deadline)
        except BaseException as error:
            raise self._lost(link, error) from error
        self.breaker.succeeded()
        self._give(link)
        return replies

    def exchange(self, packed: Packed, count: int, timeout_s: float) -> list[Any]:
        """Call ``begin``, then ``end``."""
        return self.end(self.begin(packed, timeout_s), count, time.monotonic() + timeout_s)

    def abandon(self, link: Link) -> None:
        """Close a connection whose replies will not be read."""
        self._drop(link)

    def forget(self) -> None:
        """Close idle connections now, and connections in use when they are returned."""
        with self._changed:
            self._age += 1
            idle, self._idle = self._idle, []
        for link in idle:
            self._drop(link)

    def _give(self, link: Link) -> None:
        if link.born != self._age:
            self._drop(link)
            return
        link.reused = True
        self._idle.append(link)
        if self._waiting:
            with self._changed:
                self._changed.notify()

    def _drop(self, link: Link) -> None:
        link.close()
        with self._changed:
            self._open -= 1
            self._changed.notify()

    def _lost(self, link: Link, error: BaseException) -> BaseException:
        """Translate a failure on a connection, which is closed."""
        self._drop(link)
        if not isinstance(error, OSError | hiredis.ProtocolError):
            return error  # an interrupt: the next call must not read its replies
        timed_out = isinstance(error, TimeoutError)
        reason = f"{self.name}: {_words(error)}" if self.name else _words(error)
        if link.reused and not timed_out:
            self.forget()  # the other idle connections are as old
        else:
            self.breaker.failed(reason, timed_out=timed_out)
        return NoReplyError(reason, sent=True, reused=link.reused, timed_out=timed_out)

    def _open_or_wait(self, deadline: float) -> Link:
        with self._changed:
            self._waiting += 1
            try:
                while not self._idle and self._open >= self._settings.connections:
                    left_s = deadline - time.monotonic()
                    if left_s <= 0 or not self._changed.wait(left_s):
                        raise NoReplyError(
                            f"all {self._settings.connections} connections are in use "
                            "([online] connections)",
                            sent=False,
                            timed_out=True,
                        )
                if self._idle:
                    return self._idle.pop()
                self._open += 1
                born = self._age
            finally:
                self._waiting -= 1
        try:
            return self._connect(born, deadline)
        except BaseException:
            with self._changed:
                self._open -= 1
                self._changed.notify()
            raise

    def _connect(self, born: int, deadline: float) -> Link:
        timeout_s = max(0.001, deadline - time.monotonic())
        try:
            link = open_link(self._settings, self._address(deadline), timeout_s, born)
            if self._check is not None:
                try:
                    self._check(link, deadline)
                except BaseException:
                    link.close()
                    raise
        except NoReplyError as error:
            self.breaker.failed(str(error), timed_out=error.timed_out)
            raise
        return link


def open_link(
    settings: OnlineSettings,
    address: Address,
    timeout_s: float,
    born: int = 0,
    *,
    sentinel: bool = False,
) -> Link:
    """Return an authenticated connection to ``address``; raises NoReplyError or Refused."""
    deadline = time.monotonic() + timeout_s
    connect_s = min(timeout_s, settings.connect_timeout_ms / 1_000)
    options: dict[str, Any] = {
        "socket_connect_timeout": connect_s,
        "socket_timeout": timeout_s,
        # we log in ourselves, because the login must end by the deadline too
        "redis_connect_func": lambda connection: None,
    }
    make: Any = redis.Connection
    if is_socket(address):
        make, options["path"] = redis.UnixDomainSocketConnection, address[0]
    else:
        options |= {"host": address[0], "port": address[1], "socket_keepalive": True}
    if settings.tls:
        make = redis.SSLConnection
        options |= {
            "ssl_cert_reqs": "required" if settings.tls_verify else "none",
            "ssl_check_hostname": settings.tls_verify,
            "ssl_ca_certs": _text(settings.tls_ca),
            "ssl_certfile": _text(settings.tls_cert),
            "ssl_keyfile": _text(settings.tls_key),
        }
    where = host_and_port(*address)
    connection = make(**options)
    try:
        connection.connect()
    except (RedisError, OSError) as error:
        if isinstance(error.__context__, ssl.SSLCertVerificationError):
            raise Refused(f"{where}: {error.__context__.verify_message}") from error
        timed_out = isinstance(error, redis.TimeoutError | TimeoutError)
        raise NoReplyError(f"{where}: {_words(error)}", sent=False, timed_out=timed_out) from error
    link = Link(connection, born)
    try:
        _log_in(link, settings, where, deadline, sentinel=sentinel)
    except BaseException:
        link.close()
        raise
    return link


def _log_in(
    link: Link, settings: OnlineSettings, where: str, deadline: float, *, sentinel: bool
) -> None:
    """Send password and database in one round trip; nothing if neither is set."""
    password = settings.sentinel_password if sentinel else settings.password
    commands = []
    if password is not None:
        user = [settings.user] if settings.user and not sentinel else []
        commands.append(pack("AUTH", *user, password))
    if settings.db and not sentinel:
        commands.append(pack("SELECT", settings.db))
    if not commands:
        return
    try:
        link.send(b"".join(commands), max(0.001, deadline - time.monotonic()))
        replies = link.receive(len(commands), deadline)
    except OSError as error:
        timed_out = isinstance(error, TimeoutError)
        raise NoReplyError(f"{where}: {_words(error)}", sent=False, timed_out=timed_out) from error
    for reply in replies:
        if isinstance(reply, ReplyError):
            if str(reply).startswith("LOADING"):
                raise NoReplyError(f"{where}: {reply}", sent=False)
            raise Refused(f"{where}: {reply}")


def _words(error: BaseException) -> str:
    """Return the message of a failure: of the innermost exception, the most specific one."""
    if isinstance(error, TimeoutError | redis.TimeoutError):
        return "no reply before the deadline"
    inner = error.__context__ if isinstance(error, RedisError) else error
    if isinstance(inner, OSError) and inner.strerror:
        return inner.strerror
    return str(error).rstrip(".") or type(error).__name__


def _text(path: object) -> str | None:
    return None if path is None else str(path)


_SERVERS: weakref.WeakSet[Server] = weakref.WeakSet()


def _after_fork() -> None:
    """Reset the pools in a child: processes sharing a connection would mix up replies."""
    for server in list(_SERVERS):
        server._changed = threading.Condition()
        server._idle, server._open, server._waiting = [], 0, 0
        server._age += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
