"""Who applies a bucket: one materializer at a time, as far as leases go.

A lease keeps a second materializer from doing the same work. It is not what makes the records
right: compare-and-set is, and a lease that runs out in the middle of a write harms nothing.
"""

from __future__ import annotations

import os
import secrets
import socket
import time

from paimon_features.online.store import Lease, OnlineStore

DEFAULT_TTL_MS = 10_000


class LeaseLost(Exception):  # noqa: N818 - a change of course, not an error
    """Another materializer took the bucket; it never leaves the materializer."""


class Leases:
    """The leases that this process holds or wants; ``ttl_ms=None`` takes none at all."""

    def __init__(self, store: OnlineStore, ttl_ms: int | None = DEFAULT_TTL_MS) -> None:
        self._store = store
        self._ttl_ms = ttl_ms
        self._held: dict[bytes, tuple[Lease, float]] = {}
        self.owner = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"

    def hold(self, key: bytes) -> Lease:
        """Take or keep the lease; asks the store only when a third of its time has passed."""
        if self._ttl_ms is None:
            return Lease(self.owner, 0, True)
        lease, until = self._held.get(key, (None, 0.0))
        now = time.monotonic()
        if lease is None or now >= until:
            lease = self._store.acquire_lease(key, self.owner, self._ttl_ms)
            if not lease.mine:
                self._held.pop(key, None)
                return lease
            self._held[key] = (lease, now + self._ttl_ms / 3_000)
        return lease

    def keep(self, key: bytes) -> None:
        """Raise LeaseLost if another one holds the lease now."""
        lease = self.hold(key)
        if not lease.mine:
            raise LeaseLost(lease.owner)

    def release_all(self) -> None:
        """Give everything back, so that a successor need not wait."""
        for key in list(self._held):
            del self._held[key]
            self._store.release_lease(key, self.owner)
