"""Tiered lookup of prepared blocks: memory, then disk, then computing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from paimon_features.core.errors import ConfigurationError
from trainer_bridge.cache.disk import DiskPlan


@dataclass(frozen=True, slots=True)
class CacheStats:
    """Cache statistics since creation, and the current contents.

    Attributes
    ----------
    memory_hits, disk_hits, computed
        Blocks from each tier; their sum is the number requested.
    memory_blocks, memory_bytes, memory_limit
        Contents and limit of the memory tier.
    disk_written, disk_refused, disk_failed, damaged
        Blocks stored on disk, not stored for lack of space, not stored because of an error, and
        found damaged.

    >>> print(CacheStats(memory_hits=6, disk_hits=3, computed=1, memory_limit=100))
    10 blocks: 6 from memory, 3 from disk, 1 computed (90 % hits); memory 0 of 100 bytes, 0 blocks
    """

    memory_hits: int = 0
    disk_hits: int = 0
    computed: int = 0
    memory_blocks: int = 0
    memory_bytes: int = 0
    memory_limit: int = 0
    disk_written: int = 0
    disk_refused: int = 0
    disk_failed: int = 0
    damaged: int = 0

    @property
    def requested(self) -> int:
        return self.memory_hits + self.disk_hits + self.computed

    @property
    def hit_rate(self) -> float:
        """Fraction of blocks that were not computed; 0 before the first request."""
        return (self.memory_hits + self.disk_hits) / self.requested if self.requested else 0.0

    def __str__(self) -> str:
        return (
            f"{self.requested} blocks: {self.memory_hits} from memory, {self.disk_hits} from disk, "
            f"{self.computed} computed ({self.hit_rate:.0%} hits); memory "
            f"{self.memory_bytes:,} of {self.memory_limit:,} bytes, {self.memory_blocks} blocks"
        ).replace("%", " %")


class BlockCache:
    """Blocks by number. Threads may share it.

    The memory tier admits blocks until its limit and then keeps them: what fits is a hit in
    every epoch. With LRU eviction, cyclic scans of a larger table would never hit.

    >>> cache, block = BlockCache(memory_bytes=100), pa.table({"x": [1, 2, 3, 4, 5]})
    >>> for number in (0, 1, 2, 3, 0, 1, 2, 3):
    ...     _ = cache.get(number, lambda: block)
    >>> cache.stats.memory_hits, cache.stats.computed, cache.stats.memory_bytes
    (2, 6, 80)
    """

    def __init__(self, memory_bytes: int = 0, disk: DiskPlan | None = None) -> None:
        if memory_bytes < 0:
            raise ConfigurationError(f"memory_bytes={memory_bytes}: expected 0 or more")
        self.memory_bytes = memory_bytes
        self.disk = disk
        self._lock = threading.Lock()
        self._held: dict[int, pa.Table] = {}
        self._held_bytes = 0
        self._memory_hits = self._computed = 0

    def get(self, number: int, make: Callable[[], pa.Table]) -> pa.Table:
        """Return block ``number`` from the first tier that has it, else the result of
        ``make()``."""
        with self._lock:
            if number in self._held:
                self._memory_hits += 1
                return self._held[number]

        def counted() -> pa.Table:
            with self._lock:
                self._computed += 1
            return make()

        table = counted() if self.disk is None else self.disk.get_or_make(number, counted)
        self._keep(number, table)
        return table

    @property
    def stats(self) -> CacheStats:
        """Return a copy of the counters."""
        disk = None if self.disk is None else self.disk.stats
        with self._lock:
            return CacheStats(
                memory_hits=self._memory_hits,
                disk_hits=disk.hits if disk else 0,
                computed=self._computed,
                memory_blocks=len(self._held),
                memory_bytes=self._held_bytes,
                memory_limit=self.memory_bytes,
                disk_written=disk.written if disk else 0,
                disk_refused=disk.refused if disk else 0,
                disk_failed=disk.failed if disk else 0,
                damaged=disk.damaged if disk else 0,
            )

    def close(self) -> None:
        """Free the memory and allow eviction of the folder. Idempotent."""
        with self._lock:
            self._held.clear()
            self._held_bytes = 0
        if self.disk is not None:
            self.disk.close()

    def _keep(self, number: int, table: pa.Table) -> None:
        size = int(table.nbytes)
        with self._lock:
            if number in self._held or self._held_bytes + size > self.memory_bytes:
                return
            self._held_bytes += size  # reserved before the copy, which may take long
        copied = _copy(table)
        with self._lock:
            self._held[number] = copied


def _copy(table: pa.Table) -> pa.Table:
    """Copy the table into memory of its own: not a mapped file, nor an array others may modify."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    return pa.ipc.open_stream(sink.getvalue()).read_all()
