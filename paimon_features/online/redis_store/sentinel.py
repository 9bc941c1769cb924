"""Finding the primary of a service that sentinels watch over, and going where it goes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import Any

from paimon_features.online.redis_store.connections import (
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
from paimon_features.online.redis_store.routes import Job, OneServer
from paimon_features.online.settings import OnlineSettings, host_and_port

LOOK_EVERY_S = 1.0
_LOOK_S = 0.2


class Sentinels:
    """Asks the sentinels where the primary is, the one that answered last first."""

    def __init__(self, settings: OnlineSettings) -> None:
        self._settings = settings
        self._hosts = list(settings.hosts)

    def primary(self, deadline: float) -> Address:
        """The address of the primary now.

        Raises
        ------
        Unanswered
            If no sentinel answers, or none knows the service.
        """
        troubles: list[str] = []
        timed_out = False
        for host in list(self._hosts):
            # one that is gone must not use up the time of the others
            left_s = max(0.001, (deadline - time.monotonic()) / 2)
            try:
                found = self._ask(host, left_s)
            except (NoReplyError, Refused) as error:
                troubles.append(str(error))
                timed_out |= isinstance(error, NoReplyError) and error.timed_out
                continue
            if isinstance(found, list) and len(found) == 2:
                self._hosts.sort(key=lambda other: other != host)
                return found[0].decode(), int(found[1])
            what = "it does not know the service" if found is None else str(found)
            troubles.append(f"{host_and_port(*host)}: {what} {self._settings.service!r}")
        raise NoReplyError(
            f"no sentinel tells the primary of {self._settings.service!r}: {'; '.join(troubles)}",
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
    """Unanswered unless this is a primary: sentinels may not have agreed yet."""
    try:
        link.send(pack("ROLE"), max(0.001, deadline - time.monotonic()))
        reply = link.receive(1, deadline)[0]
    except OSError as error:
        timed_out = isinstance(error, TimeoutError)
        raise NoReplyError(
            f"no answer to ROLE: {error}", sent=False, timed_out=timed_out
        ) from error
    # a user who may not ask is not kept out: then the first write tells
    if not isinstance(reply, ReplyError) and reply[0] != b"master":
        raise NoReplyError(
            f"the sentinels name {reply[0].decode()}, not a primary; a failover is under way",
            sent=False,
        )


class Primary(OneServer):
    """All keys on the primary that the sentinels name.

    One that was replaced may not know it for ten seconds, and answers and takes writes, which
    are lost then. So the sentinels are asked once a second whether it is still the one, as far
    as there are calls.
    """

    def __init__(self, settings: OnlineSettings) -> None:
        self._sentinels = Sentinels(settings)
        self._known: Address | None = None
        self._look_at_s = 0.0
        super().__init__(settings, Server(settings, self._address, check_primary))

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        self._look()
        return super().get_many(keys)

    def do(self, jobs: Sequence[Job], timeout_s: float) -> None:
        self._look()
        super().do(jobs, timeout_s)

    def ask(self, server: Server, packed: Packed, replies: int, timeout_s: float) -> list[Any]:
        self._look()
        return super().ask(server, packed, replies, timeout_s)

    def _look(self) -> None:
        now = time.monotonic()
        if self._known is None or now < self._look_at_s:
            return
        self._look_at_s = now + LOOK_EVERY_S
        with contextlib.suppress(NoReplyError, Refused):  # then the one that is known has to do
            self._address(now + _LOOK_S)

    def _address(self, deadline: float) -> Address:
        found = self._sentinels.primary(deadline)
        if found != self._known:
            self._known = found
            self._server.forget()
        return found

    def _refused(self, server: Server, job: Job, reply: str) -> None:
        super()._refused(server, job, reply)
        if reply.startswith("READONLY"):
            server.forget()  # it was replaced as primary: the sentinels know by whom
            job.trouble = job.reply
