"""Decoded blocks within a byte budget, decoded ahead by a few threads.

Decoded blocks, blocks being decoded, and chunks from their making until the consumer is done with
them all count against ``byte_budget``. Two things may exceed it, each by itself: the block that is
needed next, and a chunk of a single batch.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from trainer_bridge.batches.forms import Form
from trainer_bridge.blocks.layout import Layout
from trainer_bridge.readers.chunks import Chunk
from trainer_bridge.readers.read_stats import ReadStats


@dataclass
class BlockStore:
    """Decoded blocks, kept while there is room and they are needed.

    Only the producer calls its methods, except :meth:`release`.
    """

    layout: Layout
    schema: pa.Schema
    form: Form
    byte_budget: int
    stats: ReadStats = field(default_factory=ReadStats)

    def __post_init__(self) -> None:
        self._lock = threading.RLock()
        self._held: OrderedDict[int, Any] = OrderedDict()
        self._held_bytes = 0
        self._pending: OrderedDict[int, Future[Any]] = OrderedDict()
        self._views: dict[int, int] = {}
        self._lent: set[int] = set()
        self._needed: frozenset[int] = frozenset()
        self._ahead: deque[int] = deque()
        self._later: dict[int, None] = {}
        self.chunk_bytes = 0
        self.pool: ThreadPoolExecutor | None = None
        self.threads = 0

    # Batches that are views belong to whoever gets them, and may be changed in place. So a
    # block that was lent for views is dropped once it has been read, and never used again.

    def plan(self, decode: Sequence[int], keep: Collection[int], later: Sequence[int] = ()) -> None:
        """Set which blocks to decode ahead, in this order, and which must not be dropped.

        Those needed ``later``, in their order, are decoded after them, and only while half of
        the budget stays free.
        """
        with self._lock:
            self._needed = frozenset(keep)
            self._later = dict.fromkeys(later)
            self._drop(self._lent - self._needed)
            self._ahead = deque(
                number
                for number in dict.fromkeys([*decode, *later])
                if number not in self._held and number not in self._pending
            )
            self._make_room(0)
        self._start_decoding()

    def get(self, number: int) -> Any:
        """Return the rows of a block, decoded now unless they were already."""
        with self._lock:
            if number in self._held:
                self._held.move_to_end(number)
                return self._held[number]
            future = self._pending.get(number)
        began = time.perf_counter()
        rows = self._decode(number) if future is None else future.result()
        with self._lock:
            self.stats.decode_wait_s += time.perf_counter() - began
            self._pending.pop(number, None)
            size = self.form.nbytes(rows)
            self._make_room(size)
            self._held[number] = rows
            self._held_bytes += size
            self.stats.blocks_decoded += 1
            self.stats.rows_decoded += self.layout.blocks[number].rows
            self.stats.file_bytes += self.layout.blocks[number].size
            if number in self.layout.replaced:
                self.stats.rows_replaced += self.layout.blocks[number].rows
            self._update_peak()
        self._start_decoding()
        return rows

    def view(self, number: int) -> None:
        """Keep a block until :meth:`release`: a chunk is a view of it."""
        with self._lock:
            self._lent.add(number)
            self._views[number] = self._views.get(number, 0) + 1

    def release(self, chunk: Chunk) -> None:
        """Release a chunk that the consumer is done with."""
        with self._lock:
            self.chunk_bytes -= chunk.nbytes
            if chunk.viewed is not None:
                self._views[chunk.viewed] -= 1
                if not self._views[chunk.viewed]:
                    del self._views[chunk.viewed]

    def add_chunk(self, chunk: Chunk) -> None:
        """Count a chunk against the budget until :meth:`release`."""
        with self._lock:
            self._make_room(chunk.nbytes)
            self.chunk_bytes += chunk.nbytes
            self._update_peak()

    def used_bytes(self) -> int:
        """Return the bytes in use now, with an estimate for what is being decoded."""
        with self._lock:
            pending = sum(self.estimate(number) for number in self._pending)
            return self._held_bytes + pending + self.chunk_bytes

    def estimate(self, number: int) -> int:
        """Return the bytes of a block while it is decoded: as Arrow and in its final form."""
        return int(2 * self.layout.blocks[number].rows * self.form.row_bytes)

    def drop_pending(self) -> None:
        """Cancel decoding that has not begun; wait for what has begun."""
        with self._lock:
            self._ahead.clear()
            pending = list(self._pending.items())
            self._pending.clear()
        for _, future in pending:
            if not future.cancel():
                future.exception()
        with self._lock:
            self._views.clear()
            self._drop(self._lent)
            self.chunk_bytes = 0

    def drop_lent(self) -> None:
        """Drop the blocks that were lent, before rows are handed out a second time."""
        with self._lock:
            self._drop(self._lent)

    def clear(self) -> None:
        with self._lock:
            self._drop(set(self._held))

    def _decode(self, number: int) -> Any:
        layout, storage, began = self.layout, self.layout.storage, time.perf_counter()
        size = layout.blocks[number].rows
        groups = self.form.column_groups(self.schema, size) if layout.has_groups(number) else []
        if groups:
            decoded = self.form.decode_groups(layout.decode_groups(number, groups), size)
            if decoded is not None:
                with self._lock:
                    self.stats.decode_s += time.perf_counter() - began
                return decoded
        table = storage.repeated(lambda: layout.decode(number, self.schema), self._retried)
        read = time.perf_counter()
        rows = self.form.decode(table)
        with self._lock:
            self.stats.read_s += read - began
            self.stats.decode_s += time.perf_counter() - read
        return rows

    def _retried(self) -> None:
        with self._lock:
            self.stats.retries += 1

    def _start_decoding(self) -> None:
        with self._lock:
            while self.pool is not None and self._ahead and len(self._pending) < self.threads:
                number = self._ahead[0]
                size, budget = self.estimate(number), self.byte_budget
                if number in self._later and number not in self._needed:
                    budget //= 2
                else:
                    self._make_room(size)
                if self.used_bytes() + size > budget:
                    return  # get() decodes what is needed, budget or not
                self._ahead.popleft()
                if number not in self._held and number not in self._pending:
                    self._pending[number] = self.pool.submit(self._decode, number)

    def _make_room(self, size: int) -> None:
        """Drop blocks that are not needed, the least recently used first."""
        excess = self.used_bytes() + size - self.byte_budget
        # what is needed later is dropped last, beginning with the latest
        later = [number for number in reversed(self._later) if number in self._held]
        for number in [*(number for number in self._held if number not in self._later), *later]:
            if excess <= 0:
                return
            if number not in self._needed and number not in self._views:
                before = self._held_bytes
                self._drop({number})
                excess -= before - self._held_bytes

    def _drop(self, numbers: set[int]) -> None:
        for number in numbers & self._held.keys():
            self._held_bytes -= self.form.nbytes(self._held.pop(number))
            self._lent.discard(number)

    def _update_peak(self) -> None:
        self.stats.peak_bytes = max(self.stats.peak_bytes, self.used_bytes())
