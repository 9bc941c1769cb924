"""Moves blocks from files to chunks of batches, ahead of the trainer and within a budget.

One producer thread goes through the positions in order, a few decoding threads work ahead
of it (Arrow lets go of the interpreter lock), and finished chunks wait in a short queue.
The order is decided before any of that, so threads change the speed and nothing else.

Memory: decoded blocks, blocks being decoded, and chunks from their making to the moment the
consumer is done with them all count against ``byte_budget``. Two things may exceed it, each
by itself: the block that is needed next, and a chunk of a single batch.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from paimon_features.array_types import Ints
from trainer_bridge.batches.forms import Form
from trainer_bridge.blocks.snapshot_blocks import Layout


@dataclass
class ReadStats:
    """What has been read since the reader was made; a repeat counts again.

    ``rows_replaced`` counts rows of bad blocks, in place of which others came.
    ``retries`` is how often a block was fetched anew, because a remote store failed in passing.

    Seconds: ``read_s`` and ``decode_s`` were spent by the decoding threads, all of them together,
    with reading files to Arrow and with bringing that into its final form; ``order_s`` and
    ``gather_s`` by the producer with finding out which rows come, and with gathering them.
    ``decode_wait_s`` it waited for blocks (or decoded one itself), ``blocked_s`` for room;
    ``wait_s`` the consumer waited for the producer.
    """

    blocks_decoded: int = 0
    rows_decoded: int = 0
    file_bytes: int = 0
    rows_delivered: int = 0
    peak_bytes: int = 0
    rows_replaced: int = 0
    retries: int = 0
    read_s: float = 0.0
    decode_s: float = 0.0
    decode_wait_s: float = 0.0
    order_s: float = 0.0
    gather_s: float = 0.0
    blocked_s: float = 0.0
    wait_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Work:
    """Consecutive batches of this rank: for each where it starts, and all positions."""

    starts: tuple[int, ...]
    sizes: tuple[int, ...]
    positions: Ints


@dataclass(slots=True)
class Chunk:
    """The rows of some work; ``viewed`` is the block they are a view of, if they are."""

    work: Work
    rows: Any
    row_numbers: Ints
    nbytes: int
    viewed: int | None = None


@dataclass
class BlockStore:
    """Decoded blocks, kept while there is room and someone needs them.

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
        self._coming: OrderedDict[int, Future[Any]] = OrderedDict()
        self._views: dict[int, int] = {}
        self._lent: set[int] = set()
        self._needed: frozenset[int] = frozenset()
        self._ahead: deque[int] = deque()
        self._later: dict[int, None] = {}
        self.chunk_bytes = 0
        self.pool: ThreadPoolExecutor | None = None
        self.threads = 0

    # Batches that are views belong to whoever gets them, and may be changed in place. So a
    # block that was lent for views is given up once it is through, never handed out again.

    def plan(self, decode: Sequence[int], keep: Collection[int], later: Sequence[int] = ()) -> None:
        """Say which blocks to decode ahead, in this order, and which must not be let go.

        Those that come ``later``, in their order, are decoded after them, and as long as half of
        the budget stays free.
        """
        with self._lock:
            self._needed = frozenset(keep)
            self._later = dict.fromkeys(later)
            self._drop(self._lent - self._needed)
            self._ahead = deque(
                number
                for number in dict.fromkeys([*decode, *later])
                if number not in self._held and number not in self._coming
            )
            self._make_room(0)
        self._start_decoding()

    def get(self, number: int) -> Any:
        """The rows of a block, decoded now if need be."""
        with self._lock:
            if number in self._held:
                self._held.move_to_end(number)
                return self._held[number]
            future = self._coming.get(number)
        began = time.perf_counter()
        rows = self._decode(number) if future is None else future.result()
        with self._lock:
            self.stats.decode_wait_s += time.perf_counter() - began
            self._coming.pop(number, None)
            size = self.form.nbytes(rows)
            self._make_room(size)
            self._held[number] = rows
            self._held_bytes += size
            self.stats.blocks_decoded += 1
            self.stats.rows_decoded += self.layout.blocks[number].rows
            self.stats.file_bytes += self.layout.blocks[number].size
            if number in self.layout.replaced:
                self.stats.rows_replaced += self.layout.blocks[number].rows
            self._note_peak()
        self._start_decoding()
        return rows

    def view(self, number: int) -> None:
        """Keep a block until :meth:`release`: a chunk shows part of it."""
        with self._lock:
            self._lent.add(number)
            self._views[number] = self._views.get(number, 0) + 1

    def release(self, chunk: Chunk) -> None:
        """The consumer is done with a chunk."""
        with self._lock:
            self.chunk_bytes -= chunk.nbytes
            if chunk.viewed is not None:
                self._views[chunk.viewed] -= 1
                if not self._views[chunk.viewed]:
                    del self._views[chunk.viewed]

    def add_chunk(self, chunk: Chunk) -> None:
        with self._lock:
            self._make_room(chunk.nbytes)
            self.chunk_bytes += chunk.nbytes
            self._note_peak()

    def used_bytes(self) -> int:
        """Bytes held now, with an estimate for what is being decoded."""
        with self._lock:
            coming = sum(self.estimate(number) for number in self._coming)
            return self._held_bytes + coming + self.chunk_bytes

    def estimate(self, number: int) -> int:
        """Bytes of a block while it is decoded: as Arrow and in its final form at once."""
        return int(2 * self.layout.blocks[number].rows * self.form.row_bytes)

    def drop_pending(self) -> None:
        """Forget what was asked for and not begun; wait for what was begun."""
        with self._lock:
            self._ahead.clear()
            coming = list(self._coming.items())
            self._coming.clear()
        for _, future in coming:
            if not future.cancel():
                future.exception()
        with self._lock:
            self._views.clear()
            self._drop(self._lent)
            self.chunk_bytes = 0

    def drop_lent(self) -> None:
        """Forget the blocks that were lent, before rows are handed out a second time."""
        with self._lock:
            self._drop(self._lent)

    def clear(self) -> None:
        with self._lock:
            self._drop(set(self._held))

    def _decode(self, number: int) -> Any:
        storage, began = self.layout.storage, time.perf_counter()
        table = storage.repeated(lambda: self.layout.decode(number, self.schema), self._retried)
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
            while self.pool is not None and self._ahead and len(self._coming) < self.threads:
                number = self._ahead[0]
                size, budget = self.estimate(number), self.byte_budget
                if number in self._later and number not in self._needed:
                    budget //= 2
                else:
                    self._make_room(size)
                if self.used_bytes() + size > budget:
                    return  # get() decodes what is needed, budget or not
                self._ahead.popleft()
                if number not in self._held and number not in self._coming:
                    self._coming[number] = self.pool.submit(self._decode, number)

    def _make_room(self, size: int) -> None:
        """Let go of blocks that nobody needs, the least lately used first."""
        excess = self.used_bytes() + size - self.byte_budget
        # what comes later goes last, beginning with the latest
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

    def _note_peak(self) -> None:
        self.stats.peak_bytes = max(self.stats.peak_bytes, self.used_bytes())


class Assembler:
    """Makes the chunk of some work: looks the rows up, fetches blocks, gathers.

    ``rows_of`` maps positions to row numbers; ``open_blocks`` says which blocks some work
    can touch and will go on touching (None: only those it touches, as with a sampler), and
    ``next_blocks`` which come after those, to be decoded ahead while there is room.
    Positions from ``num_positions`` on are padding and stand for ``p % num_positions``.
    """

    def __init__(
        self,
        store: BlockStore,
        rows_of: Callable[[Ints], Ints],
        open_blocks: Callable[[Work], Ints] | None,
        num_positions: int,
        next_blocks: Callable[[Work], list[int]] = lambda work: [],
    ) -> None:
        self.store = store
        self.next_blocks = next_blocks
        self.num_positions = num_positions
        self.rows_of = rows_of
        self.open_blocks = open_blocks
        self._first_rows = np.array([b.first_row for b in store.layout.blocks], dtype=np.int64)

    def chunks(self, works: Iterator[Work]) -> Iterator[Chunk]:
        """One chunk per work, in order; blocks of the next work are fetched ahead."""
        current = next(works, None)
        opened = self._open(current)
        while current is not None:
            following = next(works, None)
            ahead = self._open(following)
            later = self.next_blocks(current if following is None else following)
            self.store.plan([*opened, *ahead], {*opened, *ahead}, later)
            yield self._assemble(current)
            current, opened = following, ahead

    def _open(self, work: Work | None) -> list[int]:
        if work is None or self.open_blocks is None:
            return []
        found: list[int] = self.open_blocks(work).tolist()
        return found

    def _assemble(self, work: Work) -> Chunk:
        form, began = self.store.form, time.perf_counter()
        positions = work.positions
        if positions[-1] >= self.num_positions:  # padding
            self.store.drop_lent()
            positions = positions % self.num_positions
        numbers = self.rows_of(positions)
        size = len(numbers)
        first, last = int(numbers[0]), int(numbers[-1])
        if last - first == size - 1 and bool((numbers[1:] > numbers[:-1]).all()):
            self.store.stats.order_s += time.perf_counter() - began
            return self._consecutive(work, numbers, first, last + 1)
        home = np.searchsorted(self._first_rows, numbers, side="right") - 1
        low, high = int(home.min()), int(home.max())
        # Sorting 16-bit numbers is a radix sort, ten times as fast as another.
        small = home - low
        order = np.argsort(
            small.astype(np.uint16) if high - low < 1 << 16 else small, kind="stable"
        )
        grouped = small[order]
        cuts = np.flatnonzero(np.diff(grouped)) + 1
        parts = np.split(order, cuts)
        touched = [int(home[part[0]]) for part in parts]
        if self.open_blocks is None:
            self.store.plan(touched, ())
        sources = (
            (self.store.get(block), numbers[part] - self._first_rows[block], part)
            for block, part in zip(touched, parts, strict=True)
        )
        ordered, waited = time.perf_counter(), self.store.stats.decode_wait_s
        self.store.stats.order_s += ordered - began
        rows = form.gather(sources, size)
        waited = self.store.stats.decode_wait_s - waited
        self.store.stats.gather_s += time.perf_counter() - ordered - waited
        chunk = Chunk(work, rows, numbers, form.nbytes(rows))
        self.store.add_chunk(chunk)
        return chunk

    def _consecutive(self, work: Work, numbers: Ints, first: int, stop: int) -> Chunk:
        """The rows ``[first, stop)``: a view where they lie in one block."""
        form, blocks = self.store.form, self.store.layout.blocks
        low, high = (
            int(np.searchsorted(self._first_rows, row, side="right")) - 1
            for row in (first, stop - 1)
        )
        parts = []
        for number in range(low, high + 1):
            begin = blocks[number].first_row
            end = min(stop - begin, blocks[number].rows)
            parts.append(form.view(self.store.get(number), max(first - begin, 0), end))
        if low == high:
            self.store.view(low)
            return Chunk(work, parts[0], numbers, 0, viewed=low)
        rows = form.join(parts)
        chunk = Chunk(work, rows, numbers, form.nbytes(rows))
        self.store.add_chunk(chunk)
        return chunk


class Prefetcher:
    """Runs an iterator of chunks in a thread, at most ``depth`` chunks ahead.

    An error of the iterator is raised where the consumer would get the next chunk. ``close``
    ends the thread, whatever it is doing, and returns when it has ended.
    """

    def __init__(self, chunks: Iterator[Chunk], store: BlockStore, depth: int = 2) -> None:
        self._chunks = chunks
        self._store = store
        self.depth = depth
        self._ready: deque[Chunk] = deque()
        self._changed = threading.Condition()
        self._done = False
        self._stopped = False
        self._error: BaseException | None = None
        # A daemon, so that a loop that was left without close() does not keep Python alive.
        self._thread = threading.Thread(target=self._run, name="snapshot-reader", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[Chunk]:
        while True:
            with self._changed:
                if not self._ready and not self._done:
                    began = time.perf_counter()
                    self._changed.wait_for(lambda: self._ready or self._done)
                    self._store.stats.wait_s += time.perf_counter() - began
                if not self._ready:
                    if self._error is not None:
                        raise self._error
                    return
                chunk = self._ready.popleft()
                self._changed.notify_all()
            yield chunk
            with self._changed:
                self._changed.notify_all()  # its bytes have been given back

    def close(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        self._thread.join()
        self._ready.clear()

    def _run(self) -> None:
        try:
            for chunk in self._chunks:
                with self._changed:
                    self._wait_for_room()
                    if self._stopped:
                        return
                    self._ready.append(chunk)
                    self._changed.notify_all()
                    # Wait before the next one is made, so that it counts from its making.
                    self._wait_for_room()
                    if self._stopped:
                        return
        except BaseException as error:  # handed to the consumer, whatever it is
            self._error = error
        finally:
            with self._changed:
                self._done = True
                self._changed.notify_all()

    def _wait_for_room(self) -> None:
        if not self._has_room():
            began = time.perf_counter()
            self._changed.wait_for(self._has_room)
            self._store.stats.blocked_s += time.perf_counter() - began

    def _has_room(self) -> bool:
        if self._stopped or not self._ready:
            return True
        within = self._store.used_bytes() <= self._store.byte_budget
        return len(self._ready) < self.depth and within
