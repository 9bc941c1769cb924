"""An online store in a dictionary: for tests and notebooks, and the reference for Redis."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence

from paimon_features.core.errors import OnlineStoreError
from paimon_features.core.times.clock import Clock, now_ms
from paimon_features.online.store.keys import PREFIX
from paimon_features.online.store.store import Evictions, StoreLease, Write, WriteGuard

_PAGE = 1_000


class MemoryStore:
    """Keys and values in the memory of this process. Thread safe.

    >>> store = MemoryStore()
    >>> store.compare_and_set_many([Write(b"k", None, b"head|1"), Write(b"k", b"other", b"2")])
    [True, False]
    >>> store.compare_and_set_many([Write(b"k", b"head", b"head|2")]), store.get_many([b"k", b"x"])
    ([True], [b'head|2', None])
    """

    def __init__(self, clock: Clock = now_ms, *, key_prefix: str = PREFIX) -> None:
        self._clock = clock
        self.key_prefix = key_prefix
        self._values: dict[bytes, tuple[bytes, int | None]] = {}
        self._fence = 0
        self._evicted = 0
        self._run = uuid.uuid4().hex
        self._lock = threading.RLock()

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        with self._lock:
            return [self._get(key) for key in keys]

    def compare_and_set_many(
        self, writes: Sequence[Write], run: str | None = None, guard: WriteGuard | None = None
    ) -> list[bool]:
        with self._lock:
            if run is not None and run != self._run:
                raise OnlineStoreError(
                    "the online store was restarted; its recent writes may be lost"
                )
            if guard is not None and not (self._get(guard.key) or b"").startswith(guard.expected):
                return [False] * len(writes)
            return [self._compare_and_set(write) for write in writes]

    def run_and_values(self, keys: Sequence[bytes]) -> tuple[str, list[bytes | None]]:
        with self._lock:
            return self._run, self.get_many(keys)

    def acquire_lease(self, key: bytes, owner: str, ttl_ms: int) -> StoreLease:
        with self._lock:
            stored = self._get(key)
            if stored is None:
                self._fence += 1
                holder, fence = owner, self._fence
            else:
                text, holder = stored.decode().split(":", 1)
                fence = int(text)
            if holder == owner:
                self._values[key] = (f"{fence}:{owner}".encode(), self._clock() + ttl_ms)
            return StoreLease(holder, fence, holder == owner)

    def release_lease(self, key: bytes, owner: str) -> None:
        with self._lock:
            stored = self._get(key)
            if stored is not None and stored.decode().split(":", 1)[1] == owner:
                del self._values[key]

    def delete(self, keys: Sequence[bytes]) -> None:
        with self._lock:
            for key in keys:
                self._values.pop(key, None)

    def delete_orphans(self, orphans: Mapping[bytes, Sequence[bytes]]) -> None:
        with self._lock:
            for guard, keys in orphans.items():
                if not self._get_alive(guard):
                    self.delete(keys)

    def scan(self, prefix: bytes) -> Iterator[list[bytes]]:
        with self._lock:
            keys = [key for key in self._values if key.startswith(prefix) and self._get_alive(key)]
        for start in range(0, len(keys), _PAGE):
            yield keys[start : start + _PAGE]

    def evictions(self) -> list[Evictions]:
        with self._lock:
            return [Evictions(self._run, self._evicted)]

    def check(self) -> None:
        pass

    def close(self) -> None:
        pass

    def evict(self, keys: Sequence[bytes]) -> None:
        """Simulate the eviction of keys by a server that is full."""
        with self._lock:
            self._evicted += sum(key in self._values for key in keys)
            self.delete(keys)

    def restart(self, *, keep: bool) -> None:
        """Simulate a restart of the server, with its data or empty."""
        with self._lock:
            self._run = uuid.uuid4().hex
            self._evicted = 0
            if not keep:
                self._values.clear()

    def _get(self, key: bytes) -> bytes | None:
        if not self._get_alive(key):
            return None
        return self._values[key][0]

    def _get_alive(self, key: bytes) -> bool:
        entry = self._values.get(key)
        return entry is not None and (entry[1] is None or self._clock() < entry[1])

    def _compare_and_set(self, write: Write) -> bool:
        stored = self._get(write.key)
        if write.expected is None:
            fits = stored is None
        else:
            fits = stored is not None and stored.startswith(write.expected)
        if fits:
            expiry = None if write.expire_ms is None else self._clock() + write.expire_ms
            self._values[write.key] = (write.value, expiry)
        return fits
