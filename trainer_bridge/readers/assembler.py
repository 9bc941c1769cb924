"""Gathers the rows of chunks from decoded blocks."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np

from paimon_features.array_types import Ints
from paimon_features.native import log_once
from trainer_bridge.readers.block_store import BlockStore
from trainer_bridge.readers.chunks import Chunk, ChunkRequest
from trainer_bridge.readers.epoch_rows import EpochRows


class Assembler:
    """Makes the chunk of each request: looks the rows up, fetches blocks, gathers."""

    def __init__(self, store: BlockStore, source: EpochRows) -> None:
        log_once()
        self.store = store
        self.source = source
        self._first_rows = np.array([b.first_row for b in store.layout.blocks], dtype=np.int64)

    def chunks(self, requests: Iterator[ChunkRequest]) -> Iterator[Chunk]:
        """One chunk per request, in order; blocks of the next request are fetched ahead."""
        current = next(requests, None)
        opened = self._open(current)
        while current is not None:
            following = next(requests, None)
            ahead = self._open(following)
            later = self.source.next_blocks(current if following is None else following)
            self.store.plan([*opened, *ahead], {*opened, *ahead}, later)
            yield self._assemble(current)
            current, opened = following, ahead

    def _open(self, request: ChunkRequest | None) -> list[int]:
        if request is None or not self.source.plans_blocks:
            return []
        found: list[int] = self.source.open_blocks(request).tolist()
        return found

    def _assemble(self, request: ChunkRequest) -> Chunk:
        form, began = self.store.form, time.perf_counter()
        positions = request.positions
        if positions[-1] >= self.source.num_positions:  # padding
            self.store.drop_lent()
            positions = positions % self.source.num_positions
        numbers = self.source.rows(positions)
        size = len(numbers)
        first, last = int(numbers[0]), int(numbers[-1])
        if last - first == size - 1 and bool((numbers[1:] > numbers[:-1]).all()):
            self.store.stats.order_s += time.perf_counter() - began
            return self._consecutive(request, numbers, first, last + 1)
        home = np.searchsorted(self._first_rows, numbers, side="right") - 1
        low, high = int(home.min()), int(home.max())
        # 16-bit numbers are sorted by a radix sort, ten times as fast as others.
        small = home - low
        order = np.argsort(
            small.astype(np.uint16) if high - low < 1 << 16 else small, kind="stable"
        )
        grouped = small[order]
        cuts = np.flatnonzero(np.diff(grouped)) + 1
        parts = np.split(order, cuts)
        touched = [int(home[part[0]]) for part in parts]
        if not self.source.plans_blocks:
            self.store.plan(touched, ())
        blocks = (
            (self.store.get(block), numbers[part] - self._first_rows[block], part)
            for block, part in zip(touched, parts, strict=True)
        )
        ordered, waited = time.perf_counter(), self.store.stats.decode_wait_s
        self.store.stats.order_s += ordered - began
        rows = form.gather(blocks, size)
        waited = self.store.stats.decode_wait_s - waited
        self.store.stats.gather_s += time.perf_counter() - ordered - waited
        chunk = Chunk(request, rows, numbers, form.nbytes(rows))
        self.store.add_chunk(chunk)
        return chunk

    def _consecutive(self, request: ChunkRequest, numbers: Ints, first: int, stop: int) -> Chunk:
        """The rows ``[first, stop)``: a view if they are in one block."""
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
            return Chunk(request, parts[0], numbers, 0, viewed=low)
        rows = form.join(parts)
        chunk = Chunk(request, rows, numbers, form.nbytes(rows))
        self.store.add_chunk(chunk)
        return chunk
