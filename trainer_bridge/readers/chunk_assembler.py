"""Gathers the rows of chunks from decoded blocks."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from paimon_features.core.native import log_once
from paimon_features.core.types.array_types import Ints
from trainer_bridge.order.blocks_of_rows import by_block
from trainer_bridge.readers.block_store import BlockStore
from trainer_bridge.readers.chunks import Chunk, ChunkRequest
from trainer_bridge.readers.epoch_rows import EpochRows


class ChunkAssembler:
    """Makes the chunk of each request: looks the rows up, fetches blocks, gathers."""

    def __init__(self, store: BlockStore, source: EpochRows) -> None:
        log_once()
        self.store = store
        self.source = source
        layout = store.layout  # and where the last block ends
        self._first_rows = np.array(
            [*(block.first_row for block in layout.blocks), layout.num_rows], dtype=np.int64
        )

    def chunks(self, requests: Iterator[ChunkRequest]) -> Iterator[Chunk]:
        """Yield one chunk per request, in order; blocks of the next request are fetched ahead."""
        current = next(requests, None)
        opened = self._open(current)
        while current is not None:
            following = next(requests, None)
            ahead = self._open(following)
            later = self.source.next_blocks(current if following is None else following)
            self.store.plan([*opened, *ahead], {*opened, *ahead}, later)
            yield self._assemble(current, opened)
            current, opened = following, ahead

    def _open(self, request: ChunkRequest | None) -> list[int]:
        if request is None or not self.source.plans_blocks:
            return []
        numbers: list[int] = self.source.open_blocks(request).tolist()
        return numbers

    def _assemble(self, request: ChunkRequest, opened: list[int]) -> Chunk:
        form, began = self.store.form, time.perf_counter()
        positions = request.positions
        padded = positions[-1] >= self.source.num_positions
        if padded:
            self.store.drop_lent()
            positions = positions % self.source.num_positions
        numbers = self.source.rows(positions)
        size = len(numbers)
        first, last = int(numbers[0]), int(numbers[-1])
        if last - first == size - 1 and bool((numbers[1:] > numbers[:-1]).all()):
            self.store.stats.order_s += time.perf_counter() - began
            return self._consecutive(request, numbers, first, last + 1)
        ordered, waited = time.perf_counter(), self.store.stats.decode_wait_s
        self.store.stats.order_s += ordered - began
        rows = None
        if self.source.opens_touched and not padded:
            blocks = {block: self.store.get(block) for block in opened}
            rows = form.pick(blocks, self._first_rows, numbers)
        if rows is None:
            rows = self._gathered(numbers)
        waited = self.store.stats.decode_wait_s - waited
        self.store.stats.gather_s += time.perf_counter() - ordered - waited
        chunk = Chunk(request, rows, numbers, form.nbytes(rows))
        self.store.add_chunk(chunk)
        return chunk

    def _gathered(self, numbers: Ints) -> Any:
        grouped = list(by_block(numbers, self._first_rows))
        if not self.source.plans_blocks:
            self.store.plan([block for block, _, _ in grouped], ())
        blocks = ((self.store.get(block), rows, places) for block, rows, places in grouped)
        return self.store.form.gather(blocks, len(numbers))

    def _consecutive(self, request: ChunkRequest, numbers: Ints, first: int, stop: int) -> Chunk:
        """Return the rows ``[first, stop)``: a view if they are in one block."""
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
