"""Tables spilled to disk during reads that are larger than memory."""

from __future__ import annotations

import tempfile
import weakref

import pyarrow as pa

from paimon_features.core.errors import RequestError
from paimon_features.core.process.closeable import Closeable

MEMORY_MB = 1024.0
"""About how much memory a read takes for itself, unless set otherwise."""


def memory_bytes(memory_mb: float | None) -> int:
    """Return the bytes of a memory limit in MiB, of the default for None."""
    megabytes = MEMORY_MB if memory_mb is None else memory_mb
    if megabytes <= 0:
        raise RequestError(f"memory_mb={memory_mb}; expected more than 0")
    return int(megabytes * (1 << 20))


class SpillFile(Closeable):
    """Tables in one file of a temporary folder, read back by number, in any order.

    The file has no name, so that its space is freed however the process ends, also by Ctrl-C or
    ``kill -9``. It is created in ``folder``, by default the system's (``TMPDIR``).

    >>> with SpillFile() as spill:
    ...     number = spill.append(pa.table({"x": [1, 2]}))
    ...     spill.read(number)["x"].to_pylist()
    [1, 2]
    """

    def __init__(self, folder: str | None = None) -> None:
        self.folder = folder or tempfile.gettempdir()
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - see close
        # a stream that is not read to its end is closed without a warning
        self._finalizer = weakref.finalize(self, self._file.close)
        self._places: list[tuple[int, int]] = []
        self._end = 0

    def __len__(self) -> int:
        return len(self._places)

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return self._end

    def append(self, table: pa.Table) -> int:
        """Append a table and return its number.

        Raises
        ------
        RequestError
            If the disk is full.
        """
        sink = pa.BufferOutputStream()
        # a separate stream per table: dictionaries may differ
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        buffer = sink.getvalue()
        try:
            self._file.seek(self._end)
            self._file.write(buffer)
        except OSError as error:
            raise RequestError(
                f"cannot spill {buffer.size:,} bytes to {self.folder} after {self._end:,} "
                f"others: {error.strerror}; choose a folder with more space: TMPDIR, or "
                "spill_folder="
            ) from error
        self._places.append((self._end, buffer.size))
        self._end += buffer.size
        return len(self._places) - 1

    def read(self, number: int) -> pa.Table:
        """Return the table of that number."""
        start, size = self._places[number]
        self._file.seek(start)
        with pa.ipc.open_stream(pa.py_buffer(self._file.read(size))) as reader:
            return reader.read_all()

    def close(self) -> None:
        """Free the disk space; idempotent."""
        self._file.close()


class ChunkFeatures:
    """The features of all rows, chunk by chunk; spilled if there are several chunks."""

    def __init__(self, chunks: int, spill_folder: str | None) -> None:
        self._spill = SpillFile(spill_folder) if chunks > 1 else None
        self._only: pa.Table | None = None

    def append(self, results: pa.Table) -> None:
        """Add the results of the next chunk."""
        if self._spill is None:
            self._only = results
        else:
            self._spill.append(results)

    def chunk(self, number: int) -> pa.Table:
        """Return the results of the rows of a chunk, in their order."""
        return self._only if self._spill is None else self._spill.read(number)

    def close(self) -> None:
        """Delete what was spilled. Idempotent."""
        if self._spill is not None:
            self._spill.close()
