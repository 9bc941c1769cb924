"""Discover the primary of a service through its sentinels, and follow failovers."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import Any

from paimon_features.online.store.redis_store.connections import (
    Address,
    Link,
    NoReplyError,
    Packed,
    Refused,
    ReplyError,
    Server,
    open_link,
    pack,
)
from paimon_features.online.store.redis_store.routes import Job, OneServer
from paimon_features.online.store.settings import OnlineSettings, host_and_port

LOOK_EVERY_S = 1.0
_LOOK_S = 0.2


class Sentinels:
    """Queries the sentinels for the primary, the last responsive one first."""

    def __init__(self, settings: OnlineSettings) -> None:
        self._settings = settings
        self._hosts = list(settings.hosts)

    def primary(self, deadline: float) -> Address:
        """Return the current address of the primary.

        Raises
        ------
        NoReplyError
            If no sentinel replies, or none knows the service.
        """
        troubles: list[str] = []
        timed_out = False
        for host in list(self._hosts):
            # an unreachable sentinel must not use up the time of the others
            left_s = max(0.001, (deadline - time.monotonic()) / 2)
            try:
                reply = self._ask(host, left_s)
            except (NoReplyError, Refused) as error:
                troubles.append(str(error))
                timed_out |= isinstance(error, NoReplyError) and error.timed_out
                continue
            if isinstance(reply, list) and len(reply) == 2:
                self._hosts.sort(key=lambda other: other != host)
                return reply[0].decode(), int(reply[1])
            problem = "unknown service" if reply is None else str(reply)
            troubles.append(f"{host_and_port(*host)}: {problem} {self._settings.service!r}")
        raise NoReplyError(
            f"no sentinel returned the primary of {self._settings.service!r}: "
            + "; ".join(troubles),
            sent=False,
            timed_out=timed_out,
        )

    def _ask(self, host: Address, timeout_s: float) -> object:
        link = open_link(self._settings, host, timeout_s, sentinel=True)
        try:
            link.send(
                pack("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._settings.service), timeout_s
            )
            return link.receive(1, time.monotonic() + timeout_s)[0]
        except OSError as error:
            raise NoReplyError(
                f"{host_and_port(*host)}: {error}",
                sent=False,
                timed_out=isinstance(error, TimeoutError),
            ) from error
        finally:
            link.close()


def check_primary(link: Link, deadline: float) -> None:
    """Raise NoReplyError unless this is a primary: sentinels may not agree yet."""
    try:
        link.send(pack("ROLE"), max(0.001, deadline - time.monotonic()))
        reply = link.receive(1, deadline)[0]
    except OSError as error:
        timed_out = isinstance(error, TimeoutError)
        raise NoReplyError(f"no reply to ROLE: {error}", sent=False, timed_out=timed_out) from error
    # a user without permission for ROLE is accepted: the first write will show
    if not isinstance(reply, ReplyError) and reply[0] != b"master":
        raise NoReplyError(
            f"the sentinels returned a {reply[0].decode()}, not a primary; a failover is in "
            f"progress",
            sent=False,
        )


class Primary(OneServer):
    """All keys on the primary that the sentinels report.

    A replaced primary may accept reads and writes for another ten seconds, and those writes are
    lost. So calls check with the sentinels once a second whether it is still the primary.
    """

    def __init__(self, settings: OnlineSettings) -> None:
        self._sentinels = Sentinels(settings)
        self._known: Address | None = None
        self._look_at_s = 0.0
        super().__init__(settings, Server(settings, self._address, check_primary))

    def get_many(self, keys: Sequence[bytes], timeout_s: float | None = None) -> list[bytes | None]:
        self._look()
        return super().get_many(keys, timeout_s)

    def do(self, jobs: Sequence[Job], timeout_s: float) -> None:
        self._look()
        super().do(jobs, timeout_s)

    def request(self, server: Server, packed: Packed, replies: int, timeout_s: float) -> list[Any]:
        self._look()
        return super().request(server, packed, replies, timeout_s)

    def _look(self) -> None:
        now = time.monotonic()
        if self._known is None or now < self._look_at_s:
            return
        self._look_at_s = now + LOOK_EVERY_S
        with contextlib.suppress(NoReplyError, Refused):  # keep the known primary
            self._address(now + _LOOK_S)

    def _address(self, deadline: float) -> Address:
        address = self._sentinels.primary(deadline)
        if address != self._known:
            self._known = address
            self._server.forget()
        return address

    def _refused(self, server: Server, job: Job, reply: str) -> None:
        super()._refused(server, job, reply)
        if reply.startswith("READONLY"):
            server.forget()  # no longer the primary: the sentinels know the new one
            job.trouble = job.reply
