"""The entity rows of a read, consumed once, chunk by chunk: in memory, or spilled to disk."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pyarrow as pa

from paimon_features.core.process.closeable import Closeable
from paimon_features.core.types.array_types import Array, Ints
from paimon_features.core.types.schema import DataType
from paimon_features.offline.inputs.checked_columns import event_times
from paimon_features.offline.inputs.row_source import RowSource
from paimon_features.offline.reading.spill import SpillFile
from paimon_features.offline.reading.view_reads import ViewRead, arrow_width

_HASHED_ROWS = 1 << 16
_MIN_CHUNK = 64


class EntityRows(Closeable):
    """Checked entity rows: their columns, keys and times.

    Rows of a one-pass source are spilled if they are more than one chunk; keys and times, in the
    types of the entities, are spilled separately.
    """

    def __init__(
        self,
        source: RowSource,
        reads: Sequence[ViewRead],
        memory_bytes: int,
        spill_folder: str | None,
        check: Callable[[pa.Schema], None],
        hashed: bool = False,
    ) -> None:
        self.schema, self.reads, self.event_reads = source.schema, reads, source.event_reads
        check(self.schema)
        self._slots = _slots(reads)
        given = arrow_width(self.schema) if source.table is None else 0
        results = sum(read.result_bytes for read in reads)
        # held at once on output: rows, results, and both reordered
        self.chunk_rows = max(memory_bytes // 4 // (2 * given + 2 * results + 40), _MIN_CHUNK)
        # or, for a single chunk, while one view is joined
        a_row = given + 2 * results + max(read.row_bytes for read in reads)
        at_once = max(memory_bytes * 6 // 10 // a_row, _MIN_CHUNK)
        self.starts: list[int] = [0]
        """Number of the first row of each chunk, followed by the total."""
        self._chunks: list[pa.Table] = []
        self._keys: list[pa.Table] = []
        self._rows: SpillFile | None = None
        self._key_spill: SpillFile | None = None
        self._folder = spill_folder
        self._keep = source.table is not None
        content = _ContentHash(self.schema) if hashed else None
        chunks = source.chunks()
        limit = None if self._keep else memory_bytes // 4
        try:
            chunk, more = chunks.take(at_once, limit), chunks.take(1)
            if more.num_rows:
                chunks.give_back(more)
                chunks.give_back(chunk)
                chunk = chunks.take(self.chunk_rows)
            while chunk.num_rows:
                self._take(chunk, reads)
                if content is not None:
                    content.update(chunk)
                chunk = chunks.take(self.chunk_rows, limit)
        except BaseException:
            self.close()
            raise
        self.digest = "" if content is None else content.hexdigest()

    @property
    def count(self) -> int:
        """How many rows there are."""
        return self.starts[-1]

    @property
    def chunks(self) -> int:
        """Number of chunks; 0 without rows."""
        return len(self.starts) - 1

    def size(self, chunk: int) -> int:
        """Return rows of a chunk."""
        return self.starts[chunk + 1] - self.starts[chunk]

    def rows(self, chunk: int) -> pa.Table:
        """Return the rows of a chunk, unchanged."""
        return self._chunks[chunk] if self._rows is None else self._rows.read(chunk)

    def keys(self, chunk: int, read: ViewRead) -> tuple[pa.Table, Ints]:
        """Return the ``row_columns`` of a chunk, in the types of the view, and the times."""
        table = self._keys[chunk] if self._key_spill is None else self._key_spill.read(chunk)
        names = [self._slots[name, kind.text] for name, kind in read.row_columns.items()]
        times: Array = table.column("q").to_numpy()
        return table.select(names).rename_columns(list(read.row_columns)), times

    def close(self) -> None:
        """Release spilled data."""
        for spill in (self._rows, self._key_spill):
            if spill is not None:
                spill.close()

    def _take(self, chunk: pa.Table, reads: Sequence[ViewRead]) -> None:
        first = self.starts[-1]
        columns: dict[str, pa.ChunkedArray] = {"q": pa.array(event_times(chunk, first))}
        for read in reads:
            typed = read.typed_rows(chunk)
            for name, kind in read.row_columns.items():
                columns[self._slots[name, kind.text]] = typed.column(name)
        keys = pa.table(columns)
        if self.chunks == 0:
            self._chunks, self._keys = [chunk], [keys]
        else:
            if self._key_spill is None:  # a second chunk: move to disk
                self._key_spill = SpillFile(self._folder)
                self._key_spill.append(self._keys.pop())
                if not self._keep:
                    self._rows = SpillFile(self._folder)
                    self._rows.append(self._chunks.pop())
            self._key_spill.append(keys)
            if self._rows is not None:
                self._rows.append(chunk)
            else:
                self._chunks.append(chunk)
        self.starts.append(first + chunk.num_rows)


def _slots(reads: Sequence[ViewRead]) -> Mapping[tuple[str, str], str]:
    """Return a column per (name, type) pair of the keys and of the columns of events."""
    kinds: dict[tuple[str, str], DataType] = {
        (key, kind.text): kind for read in reads for key, kind in read.row_columns.items()
    }
    return {pair: f"key {number}" for number, pair in enumerate(kinds)}


class _ContentHash:
    """A hash of rows: names, types, values and order, independent of chunking."""

    def __init__(self, schema: pa.Schema) -> None:
        self._digest = hashlib.sha256(schema.serialize())
        self._held: list[pa.Table] = []
        self._count = 0

    def update(self, rows: pa.Table) -> None:
        self._held.append(rows)
        self._count += rows.num_rows
        if self._count >= _HASHED_ROWS:
            table = pa.concat_tables(self._held)
            whole = self._count // _HASHED_ROWS * _HASHED_ROWS
            for start in range(0, whole, _HASHED_ROWS):
                self._add(table, start, start + _HASHED_ROWS)
            self._held, self._count = [table.slice(whole)], self._count - whole

    def hexdigest(self) -> str:
        if self._count:
            self._add(pa.concat_tables(self._held), 0, self._count)
            self._held, self._count = [], 0
        return self._digest.hexdigest()

    def _add(self, table: pa.Table, start: int, stop: int) -> None:
        # take, not slice: offsets and padding of the input must not affect the hash
        rows = _decoded(table.take(pa.array(np.arange(start, stop)))).combine_chunks()
        for batch in rows.to_batches():
            self._digest.update(batch.serialize())


def _decoded(rows: pa.Table) -> pa.Table:
    """Decode dictionaries: a batch contains only their indices."""
    for number, field in enumerate(rows.schema):
        if pa.types.is_dictionary(field.type):
            plain = rows.column(number).cast(field.type.value_type)
            rows = rows.set_column(number, field.name, plain)
    return rows
