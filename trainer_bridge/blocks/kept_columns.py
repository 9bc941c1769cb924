"""Key columns that were decoded when a snapshot was opened, for the first read of their rows."""

from __future__ import annotations

import threading

import pyarrow as pa

_MOST_BYTES = 64 << 20


class KeptColumns:
    """Decoded columns of complete files, each until all its rows were read once.

    Keys are merged before the first block is decoded, and are columns of the table too: without
    this they would be decoded twice. A copy in another process begins empty.

    >>> kept = KeptColumns()
    >>> kept.keep("a.parquet", "id", pa.chunked_array([[1, 2, 3]]))
    >>> kept.take("a.parquet", "id", pa.int64(), 0, 2).to_pylist()
    [1, 2]
    >>> kept.take("a.parquet", "id", pa.int64(), 2, 1).to_pylist()
    [3]
    >>> kept.take("a.parquet", "id", pa.int64(), 0, 3)
    """

    def __init__(self, most_bytes: int = _MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._columns: dict[tuple[str, str], pa.ChunkedArray] = {}
        self._left: dict[tuple[str, str], int] = {}
        self._bytes = 0

    def __reduce__(self) -> tuple[type[KeptColumns], tuple[int]]:
        return KeptColumns, (self._most_bytes,)

    def keep(self, path: str, name: str, column: pa.ChunkedArray) -> None:
        """Keep a column of a file, if there is room."""
        with self._lock:
            if (
                path,
                name,
            ) not in self._columns and self._bytes + column.nbytes <= self._most_bytes:
                self._columns[path, name], self._left[path, name] = column, len(column)
                self._bytes += column.nbytes

    def take(
        self, path: str, name: str, kind: pa.DataType, start: int, rows: int
    ) -> pa.ChunkedArray | None:
        """The rows ``[start, start + rows)`` of a column; None where it is not kept.

        Nobody else has the memory of a column that is taken whole.
        """
        with self._lock:
            column = self._columns.get((path, name))
            if column is None or column.type != kind or start + rows > len(column):
                return None
            self._left[path, name] -= rows
            if self._left[path, name] <= 0:
                del self._columns[path, name], self._left[path, name]
                self._bytes -= column.nbytes
            return column if rows == len(column) else column.slice(start, rows)
