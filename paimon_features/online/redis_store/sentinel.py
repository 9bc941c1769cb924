"""Finding the primary of a service that sentinels watch over."""

from __future__ import annotations

import time

from paimon_features.online.redis_store.connections import (
    Address,
    Link,
    Refused,
    ReplyError,
    Unanswered,
    open_link,
    pack,
)
from paimon_features.online.settings import OnlineSettings, host_and_port


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
            except (Unanswered, Refused) as error:
                troubles.append(str(error))
                timed_out |= isinstance(error, Unanswered) and error.timed_out
                continue
            if isinstance(found, list) and len(found) == 2:
                self._hosts.sort(key=lambda other: other != host)
                return found[0].decode(), int(found[1])
            what = "it does not know the service" if found is None else str(found)
            troubles.append(f"{host_and_port(*host)}: {what} {self._settings.service!r}")
        raise Unanswered(
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
            raise Unanswered(
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
        raise Unanswered(f"no answer to ROLE: {error}", sent=False, timed_out=timed_out) from error
    # a user who may not ask is not kept out: then the first write tells
    if not isinstance(reply, ReplyError) and reply[0] != b"master":
        raise Unanswered(
            f"the sentinels name {reply[0].decode()}, not a primary; a failover is under way",
            sent=False,
        )
