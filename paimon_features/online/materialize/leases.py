"""Leases of buckets: normally one materializer works on a bucket at a time.

A lease prevents a second materializer from doing the same work. Correctness does not depend on
it but on compare-and-set: a lease that expires during a write is harmless.
"""

from __future__ import annotations

import os
import secrets
import socket
import time

from paimon_features.online.store.store import OnlineStore, StoreLease

DEFAULT_TTL_MS = 10_000


class LeaseLost(Exception):  # noqa: N818 - control flow, not an error
    """Another materializer acquired the bucket. Never leaves the materializer."""


class Leases:
    """The leases of this process; ``ttl_ms=None`` disables leases."""

    def __init__(self, store: OnlineStore, ttl_ms: int | None = DEFAULT_TTL_MS) -> None:
        self._store = store
        self._ttl_ms = ttl_ms
        self._held: dict[bytes, tuple[StoreLease, float]] = {}
        self.owner = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"

    def acquire(self, key: bytes) -> StoreLease:
        """Acquire or renew the lease; contacts the store only after a third of the ttl."""
        if self._ttl_ms is None:
            return StoreLease(self.owner, 0, True)
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
        """Renew the lease; LeaseLost if another process owns it now."""
        lease = self.acquire(key)
        if not lease.mine:
            raise LeaseLost(lease.owner)

    def release_all(self) -> None:
        """Release all leases, so that a successor need not wait."""
        for key in list(self._held):
            del self._held[key]
            self._store.release_lease(key, self.owner)
