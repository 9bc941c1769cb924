"""One iteration of a reader: its threads, and the chunks that they are working on."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from trainer_bridge.batches.forms import Batch
from trainer_bridge.order.rank_shard import RankShard
from trainer_bridge.readers.autotune import Autotune
from trainer_bridge.readers.block_store import BlockStore
from trainer_bridge.readers.chunk_assembler import ChunkAssembler
from trainer_bridge.readers.chunks import Chunk, ChunkRequest, block_cuts, chunk_requests
from trainer_bridge.readers.epoch_rows import EpochRows
from trainer_bridge.readers.prefetcher import Prefetcher

CHUNK_ROWS = 65_536


@dataclass
class ReadSession:
    """Reads batches of one epoch; it starts and ends the threads, whatever ends the loop.

    Parameters
    ----------
    store
        Decoded blocks; it outlives the session.
    source
        Which rows come.
    shard
        Which positions this rank reads, and the size of batches.
    epoch
        The epoch, which batches name.
    threads
        Decoding threads; 0 does everything in the calling thread.
    tuner
        Chooses threads, chunk size and prefetch depth while batches are read, if there is one.
    keep_views
        Whether to cut chunks at the ends of blocks, so that those within one are views of it.
    """

    store: BlockStore
    source: EpochRows
    shard: RankShard
    epoch: int
    threads: int
    tuner: Autotune | None = None
    keep_views: bool = False

    def batches(self, starts: range) -> Generator[tuple[int, Batch], None, None]:
        """Yield the global batches at these positions, as (position, this rank's share).

        The rows of a batch count against the budget until the next one is requested.
        """
        store = self.store
        chunks: Iterator[Chunk] = ChunkAssembler(store, self.source).chunks(self._requests(starts))
        prefetcher = self._start(chunks) if self.threads else None
        try:
            for chunk in chunks if prefetcher is None else prefetcher:
                at = 0
                request = chunk.request
                for start, size in zip(request.starts, request.sizes, strict=True):
                    yield start, self._batch(chunk, start, at, at + size)
                    at += size
                store.release(chunk)
                if self.tuner is not None and prefetcher is not None:
                    chosen = self.tuner.observe(store.stats)
                    store.threads, prefetcher.depth = chosen.threads, chosen.prefetch
        finally:
            if prefetcher is not None:
                prefetcher.close()
            store.drop_pending()
            if store.pool is not None:
                store.pool.shutdown(wait=True, cancel_futures=True)
                store.pool = None

    def _batch(self, chunk: Chunk, start: int, low: int, high: int) -> Batch:
        return self.store.form.batch(
            chunk.rows,
            low,
            high,
            row_numbers=chunk.row_numbers[low:high],
            epoch=self.epoch,
            position=start,
            num_padding=self.shard.num_padding(start),
        )

    def _start(self, chunks: Iterator[Chunk]) -> Prefetcher:
        store, tuner = self.store, self.tuner
        store.threads = self.threads if tuner is None else tuner.choices.threads
        store.pool = ThreadPoolExecutor(self.threads, thread_name_prefix="snapshot-decode")
        prefetcher = Prefetcher(chunks, store)
        if tuner is not None:
            prefetcher.depth = tuner.choices.prefetch
            tuner.start(store.stats)
        return prefetcher

    def _requests(self, starts: range) -> Iterator[ChunkRequest]:
        tuner = self.tuner
        chunk_rows = (lambda: CHUNK_ROWS) if tuner is None else tuner.next_chunk_rows
        cuts = block_cuts(self.store.layout.blocks, starts) if self.keep_views else ()
        return chunk_requests(self.shard, starts, lambda: self._batches_per_chunk(chunk_rows), cuts)

    def _batches_per_chunk(self, chunk_rows: Callable[[], int]) -> int:
        store, shard = self.store, self.shard
        if not store.form.size_known and not store.stats.blocks_decoded:
            return 1  # until the size of rows is known
        fitting = int(store.byte_budget // 16 // max(store.form.row_bytes, 1.0))
        batch_rows = shard.global_batch_size // shard.world_size + 1
        return max(1, min(chunk_rows(), fitting) // batch_rows)
