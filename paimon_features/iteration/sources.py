"""Sources that every engine can read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

    from paimon_features.lake.reading.splits import SplitPlan


@dataclass(frozen=True, slots=True)
class CollectionSource:
    """Values in memory; subtask ``s`` of ``p`` emits every ``p``-th value from the ``s``-th."""

    values: tuple[Any, ...]
    bounded: bool = True

    def read(self, subtask: int, parallelism: int) -> Iterator[list[Any]]:
        """Yield the values of one subtask, in lists."""
        yield list(self.values[subtask::parallelism])


@dataclass(frozen=True, slots=True)
class SnapshotSource:
    """A snapshot of a table; each subtask reads complete splits, balanced by rows."""

    plan: SplitPlan
    block_rows: int
    bounded: bool = True

    def assign(self, parallelism: int) -> list[list[bytes]]:
        """Return the splits of every subtask, with about the same number of rows for each."""
        shares: list[list[bytes]] = [[] for _ in range(parallelism)]
        rows = [0] * parallelism
        for split, number in zip(self.plan.splits, self.plan.rows, strict=True):
            least = rows.index(min(rows))
            rows[least] += number
            shares[least].append(split)
        return shares

    def read(self, subtask: int, parallelism: int) -> Iterator[list[Any]]:
        """Yield the record batches of one subtask, in lists."""
        return split_batches(self.plan.read(self.assign(parallelism)[subtask]), self.block_rows)


def split_batches(
    batches: Iterable[pa.RecordBatch], block_rows: int
) -> Iterator[list[pa.RecordBatch]]:
    """Yield the same rows in record batches of at most ``block_rows``, without shared buffers.

    A slice shares the buffers of the complete batch, and its pickle contains all of them.
    """
    import pyarrow as pa

    for batch in batches:
        for start in range(0, batch.num_rows, block_rows):
            block = batch.slice(start, block_rows)
            if block.get_total_buffer_size() > 2 * block.nbytes:
                sink = pa.BufferOutputStream()
                with pa.ipc.new_stream(sink, block.schema) as writer:
                    writer.write_batch(block)
                block = pa.ipc.open_stream(sink.getvalue()).read_next_batch()
            yield [block]
