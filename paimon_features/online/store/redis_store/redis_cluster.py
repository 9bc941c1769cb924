"""Redis Cluster: the slot map, and one pipeline to each node.

A bucket's records and its marker share a hash tag, hence a slot and a node, and are read
atomically by one MGET. Keys in several slots are not: see ``OnlineStore.get_many``.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterable, Sequence
from itertools import count

from redis.crc import key_slot

from paimon_features.core.errors import OnlineStoreError
from paimon_features.online.store.redis_store.breaker import BreakerOpen
from paimon_features.online.store.redis_store.connections import (
    Address,
    NoReplyError,
    Refused,
    ReplyError,
    Server,
    pack,
)
from paimon_features.online.store.redis_store.messages import explain
from paimon_features.online.store.redis_store.routes import Job, Sender
from paimon_features.online.store.settings import OnlineSettings, host_and_port

SLOTS = 16_384
MAP_EVERY_S = 0.2
"""The minimum interval between two requests of the slot map."""
MAP_TIMEOUT_S = 0.5
MOVES = 16
"""The number of redirections after which the slot map is refreshed."""
_TAGS = 100_000


class Cluster(Sender):
    """Keys on the nodes of a cluster; the slot map is refreshed when it proves outdated."""

    def __init__(self, settings: OnlineSettings) -> None:
        super().__init__(settings)
        self._lock = threading.Lock()
        self._owners: list[Address | None] = []
        self._nodes: dict[Address, Server] = {}
        self._doubtful = True
        self._map_taken_at = float("-inf")
        self._slots: dict[bytes, int] = {}
        self._moves = 0
        self._hint: Address | None = None

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        places: dict[int, list[int]] = {}
        for i, key in enumerate(keys):
            places.setdefault(self._slot(key), []).append(i)
        jobs = []
        for of_slot in places.values():
            packed = pack(b"MGET", *[keys[i] for i in of_slot])
            jobs.append(Job(keys[of_slot[0]], packed))
        deadline = time.monotonic() + self._timeout_s
        self.do(jobs, self._timeout_s)
        results: list[bytes | None] = [None] * len(keys)
        for job, of_slot in zip(jobs, places.values(), strict=True):
            values = job.reply
            if isinstance(values, ReplyError):
                if not str(values).startswith("TRYAGAIN"):
                    raise explain(self._settings, values)
                values = self._get_moving([keys[i] for i in of_slot], deadline)
            for i, value in zip(of_slot, values, strict=True):
                results[i] = value
        return results

    def unlinks(self, keys: Sequence[bytes]) -> list[Job]:
        """Return jobs that delete the keys one by one, because a migrating slot is on two nodes."""
        return [Job(key, pack("UNLINK", key)) for key in keys]

    def servers(self) -> list[Server]:
        deadline = time.monotonic() + self._settings.write_timeout_ms / 1_000
        self._refresh_map(deadline)
        with self._lock:
            owners = dict.fromkeys(owner for owner in self._owners if owner is not None)
            return [self._node(owner) for owner in owners]

    def key_on(self, server: Server, stem: str) -> bytes:
        for number in count():
            key = f"{stem}{number}}}#check".encode()
            owner = self._owners[key_slot(key)]
            if owner is not None and self._nodes.get(owner) is server:
                return key
        raise AssertionError  # count() does not end

    def close(self) -> None:
        for node in list(self._nodes.values()):
            node.forget()

    def _get_moving(self, keys: Sequence[bytes], deadline: float) -> list[bytes | None]:
        """Return the values of one slot, read consistently while its keys migrate to another node.

        No command sees both nodes. Two equal consecutive reads show the values at a time between
        them: a stored value never changes back.
        """
        before: list[bytes | None] | None = None
        while True:
            jobs = [Job(key, pack("GET", key)) for key in keys]
            self.do(jobs, deadline - time.monotonic())
            for job in jobs:
                if isinstance(job.reply, ReplyError):
                    raise explain(self._settings, job.reply)
            values = [job.reply for job in jobs]
            if values == before:
                return values
            before = values

    def _slot(self, key: bytes) -> int:
        tag, brace, _ = key.partition(b"}")
        if not brace or b"{" not in tag or tag.endswith(b"{"):
            return key_slot(key)
        slot = self._slots.get(tag)
        if slot is None:
            slot = key_slot(key)
            if len(self._slots) >= _TAGS:
                self._slots = {}
            self._slots[tag] = slot
        return slot

    # -- the send and retry loop ----------------------------------------------------------

    def _batches(self, jobs: Sequence[Job], deadline: float) -> Iterable[tuple[Server, list[Job]]]:
        if self._doubtful:
            self._refresh_map(deadline)
        batches: dict[Address, list[Job]] = {}
        owners = self._owners
        for job in jobs:
            address = job.ask or owners[self._slot(job.key)]
            if address is None:
                self._doubtful = True
                slot = self._slot(job.key)
                job.trouble = NoReplyError(f"no node owns slot {slot}", sent=False)
            else:
                batches.setdefault(address, []).append(job)
        return [(self._node(address), batch) for address, batch in batches.items()]

    def _failed(self, server: Server, batch: Iterable[Job], error: Exception) -> None:
        super()._failed(server, batch, error)
        self._doubtful = True  # a failover may have taken place

    def _refused(self, server: Server, job: Job, reply: str) -> None:
        word, _, rest = reply.partition(" ")
        if word in ("MOVED", "ASK"):
            slot, _, place = rest.partition(" ")
            host, _, port = place.rpartition(":")
            address = (host or server.name.rpartition(":")[0], int(port))
            if word == "ASK":
                job.ask = address
            else:
                self._moved(int(slot), address)
            job.trouble, job.redirected = job.reply, True
        elif word != "TRYAGAIN":  # handled by our caller
            super()._refused(server, job, reply)
            self._doubtful |= job.trouble is not None

    # -- the slot map ---------------------------------------------------------------------

    def _moved(self, slot: int, address: Address) -> None:
        """Record the new owner of a slot, which other nodes may not know yet."""
        self._owners[slot] = address
        self._moves += 1
        if self._moves % MOVES == 0:  # more than single slots: a failover or a resharding
            self._hint, self._doubtful = address, True

    def _node(self, address: Address) -> Server:
        node = self._nodes.get(address)
        if node is None:
            node = Server(self._settings, lambda deadline: address, name=host_and_port(*address))
            node = self._nodes.setdefault(address, node)
        return node

    def _refresh_map(self, deadline: float) -> None:
        """Request the map, if it is in doubt and was not requested very recently.

        Raises
        ------
        OnlineStoreError
            If there is no map yet, and no node returns it.
        """
        if self._owners:  # one thread refreshes, the others use the present map
            refreshes = self._lock.acquire(blocking=False)
        else:
            refreshes = self._lock.acquire(timeout=max(0.0, deadline - time.monotonic()))
        try:
            if (
                refreshes
                and self._doubtful
                and time.monotonic() >= self._map_taken_at + MAP_EVERY_S
            ):
                trouble = self._request_map(deadline)
            else:
                trouble = None
        finally:
            if refreshes:
                self._lock.release()
        if not self._owners:
            raise self._no_map(trouble)

    def _request_map(self, deadline: float) -> Exception | None:
        """Take the map of the first node that returns it; return the first failure."""
        candidates = list(self._nodes)
        random.shuffle(candidates)
        candidates.sort(key=lambda address: self._nodes[address].breaker.troubled)
        if self._hint is not None:
            candidates.insert(0, self._hint)
            self._hint = None
        trouble: Exception | None = None
        for address in dict.fromkeys([*candidates, *self._settings.hosts]):
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                break
            try:
                self._take_map(address, min(left_s, MAP_TIMEOUT_S))
            except (BreakerOpen, NoReplyError, Refused, ReplyError) as error:
                trouble = trouble or error
            else:
                self._doubtful = False
                break
        if self._owners:
            self._map_taken_at = time.monotonic()
        return trouble

    def _take_map(self, address: Address, timeout_s: float) -> None:
        (reply,) = self._node(address).exchange(pack("CLUSTER", "SLOTS"), 1, timeout_s)
        if isinstance(reply, ReplyError):
            raise reply
        owners: list[Address | None] = [None] * SLOTS
        for first, last, primary, *_ in reply:
            host = (primary[0] or b"").decode()
            owner = (host if host not in ("", "?") else address[0], int(primary[1]))
            owners[first : last + 1] = [owner] * (last + 1 - first)
        self._owners = owners
        for gone in self._nodes.keys() - set(owners):
            self._nodes.pop(gone).forget()

    def _no_map(self, trouble: Exception | None) -> OnlineStoreError:
        if isinstance(trouble, ReplyError) and "cluster support disabled" in str(trouble):
            return OnlineStoreError(
                f"online store {self._settings.where}: the server is not part of a cluster; "
                "use redis:// or redis+sentinel://"
            )
        late = NoReplyError(
            "no node returned the slot map of the cluster", sent=False, timed_out=True
        )
        return explain(self._settings, trouble or late)
