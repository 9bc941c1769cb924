"""The contract of online stores: Redis, the memory store, and any other.

A store maps keys to bytes. Records and markers change only by compare-and-set, so that
uncoordinated writers cannot overwrite one another's work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from paimon_features.core.errors import OnlineStoreError

KEEPS_ALL = "noeviction"
"""The policy of a server that rejects writes when it is full."""


class Write(NamedTuple):
    """One compare-and-set.

    The write is applied if the stored value starts with ``expected`` (None: if the key is
    absent). ``expire_ms`` is the time to live of the key; None stores it without expiry, also
    where it had one.
    """

    key: bytes
    expected: bytes | None
    value: bytes
    expire_ms: int | None = None


class WriteGuard(NamedTuple):
    """A condition of writes: the value of ``key`` starts with ``expected``."""

    key: bytes
    expected: bytes


class StoreLease(NamedTuple):
    """The owner of a lease; ``fence`` increases with every change of owner."""

    owner: str
    fence: int
    mine: bool


class Evictions(NamedTuple):
    """What one server of a store says of evictions.

    ``run`` identifies its process, and ``evicted`` counts the keys that it evicted since its
    start. ``policy`` is its rule for a full memory, None if the user may not read it.
    """

    run: str
    evicted: int
    policy: str | None = KEEPS_ALL

    @property
    def is_safe(self) -> bool:
        """Whether the server is not known to evict keys when it is full."""
        return self.policy in (None, KEEPS_ALL)


def evicted_keys(servers: Iterable[Evictions]) -> dict[str, int]:
    """Return the number of evicted keys by run, of the servers that have evicted any.

    >>> evicted_keys([Evictions("a", 0), Evictions("b", 3)])
    {'b': 3}
    """
    return {server.run: server.evicted for server in servers if server.evicted}


def may_evict(where: str, policy: str) -> str:
    """Return the error for a store with another policy than ``noeviction``."""
    return (
        f"{where} has maxmemory-policy {policy!r}: it evicts keys when it is full, and an "
        "evicted record would be read as an entity without events. Set it to "
        "'noeviction' (CONFIG SET maxmemory-policy noeviction)"
    )


@runtime_checkable
class OnlineStore(Protocol):
    """Bytes by key. Every method raises ``OnlineStoreError`` if the store is unavailable.

    A *run* identifies one incarnation of the server of a bucket: it changes with a restart or
    a failover, which may have lost the newest writes.
    """

    key_prefix: str
    """The common prefix of all keys (see ``keys``)."""

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of ``keys`` in their order; None for absent keys.

        Keys with one hash tag (a bucket's records and its marker) are read atomically. Keys with
        several hash tags are too on a single server, but not on a cluster, where a view's state
        may be slightly older or newer than its buckets. A reader therefore reads an epoch only
        if a state named it as complete, and trusts a record only together with the marker of its
        bucket.
        """

    def compare_and_set_many(
        self, writes: Sequence[Write], run: str | None = None, guard: WriteGuard | None = None
    ) -> list[bool]:
        """Apply each write whose expectation is met; return which were applied.

        With ``guard``, a key of the same bucket, none is applied unless that is met too, in the
        same atomic step; while a cluster moves the bucket to another node, it may be ignored.
        All keys belong to one bucket. With ``run``, nothing is written (OnlineStoreError)
        unless the server is still in that run. If OnlineStoreError is raised, any of the writes
        may have been applied, or may be applied shortly after.
        """

    def run_and_values(self, keys: Sequence[bytes]) -> tuple[str, list[bytes | None]]:
        """Return the server's run and the values of ``keys`` (of one bucket), read atomically."""

    def acquire_lease(self, key: bytes, owner: str, ttl_ms: int) -> StoreLease:
        """Acquire or renew the lease for ``ttl_ms`` from now, if it is free or already owned."""

    def release_lease(self, key: bytes, owner: str) -> None:
        """Release the lease if ``owner`` has it."""

    def delete(self, keys: Sequence[bytes]) -> None:
        """Remove keys; absent keys are ignored."""

    def delete_orphans(self, orphans: Mapping[bytes, Sequence[bytes]]) -> None:
        """Remove the keys of each bucket whose guard key (the mapping's key) is absent.

        The guard is the bucket's marker, in the same bucket, and is checked in the same atomic
        step. Records are thus removed only where no reader trusts them, whatever happened to the
        server since the marker was deleted: a restarted one may have an older marker back.
        """

    def scan(self, prefix: bytes) -> Iterator[list[bytes]]:
        """Return the keys with this prefix, page by page.

        A key that exists during the complete scan is returned at least once, unless a cluster
        moves it to another node meanwhile.
        """

    def evictions(self) -> list[Evictions]:
        """Return the eviction policy and counter of each server with keys.

        Cheap enough for each pass.
        """

    def check(self) -> None:
        """Raise OnlineStoreError unless the store is reachable, writable and never evicts keys."""

    def close(self) -> None:
        """Close the connections."""


class LoopReader(Protocol):
    """Reads keys in one event loop, without a thread; to be used from that loop only."""

    def get_many(
        self,
        keys: Sequence[bytes],
        done: Callable[[list[bytes | None] | OnlineStoreError | None], None],
    ) -> bool:
        """Begin a read as ``OnlineStore.get_many``; False if ``get_many`` itself has to read now.

        ``done`` gets the values or an error later, or None if the read failed in a way that
        ``repeat`` may overcome, by retries or with another connection. One read at a time.
        """

    def repeat(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the last read again, as ``OnlineStore.get_many``, within what is left of its time.

        To be called in a thread, before the next read.
        """

    def close(self) -> None:
        """Close the connection, once the read under way is done."""


@runtime_checkable
class ReadsInLoop(Protocol):
    """A store that may be read in an event loop."""

    def loop_reader(self, loop: asyncio.AbstractEventLoop) -> LoopReader | None:
        """Return a reader for this loop; None if the settings do not allow one."""
