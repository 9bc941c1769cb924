"""Spool files: rows of the request log on their way from a server to the lake.

::

    host-4711-1700000000000-9f3c-000001.open     a worker writes it, and holds a lock on it
    host-4711-1700000000000-9f3c-000001.arrow    complete: an Arrow IPC stream

A file is complete when its worker has closed it, or when its lock is free while it is open: then
its worker is gone. What a worker was writing when it died is a torn end, which is reported.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from paimon_features.core._arrow import pa
from paimon_features.core.errors import TableError
from paimon_features.core.times.clock import now_ms

FORMAT = 1
OPEN, COMPLETE = ".open", ".arrow"
_NEW = ".new"
_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"
_OLD_S = 60.0


class SpoolFile:
    """A file that one worker writes; at any time it contains complete batches only.

    Only its owner may read the file: its content is personal.

    Raises
    ------
    OSError
        If it cannot be created.
    """

    def __init__(self, folder: Path, stem: str, schema: pa.Schema) -> None:
        self.path = folder / f"{stem}{OPEN}"
        self.opened_s = time.monotonic()
        self.rows = 0
        # locked before it has the name by which others find files of dead workers
        new = folder / f"{stem}{_NEW}"
        self._file = os.open(new, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.size = 0
            self._write(schema.serialize().to_pybytes())
            os.rename(new, self.path)
        except OSError:
            self.abandon()
            with suppress(OSError):
                new.unlink()
            raise

    def append(self, batch: pa.RecordBatch) -> None:
        """Add rows: all of them, or none and an OSError."""
        self._write(batch.serialize().to_pybytes())
        self.rows += batch.num_rows

    def complete(self) -> Path:
        """End the file and rename it to its final name; it is on the disk when this returns."""
        try:
            self._write(_END)
            os.fsync(self._file)
            done = self.path.with_suffix(COMPLETE)
            os.rename(self.path, done)
            return done
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Release the file as it is; ``recover`` finds it."""
        with suppress(OSError):
            os.close(self._file)

    def _write(self, data: bytes) -> None:
        try:
            left = memoryview(data)
            while left:
                left = left[os.write(self._file, left) :]
        except OSError:
            # a partial batch must not stay: later ones could not be read
            os.ftruncate(self._file, self.size)
            os.lseek(self._file, self.size, os.SEEK_SET)
            raise
        self.size += len(data)


def recover(folder: Path) -> list[Path]:
    """Rename the files of dead workers to their final names, and return them.

    To be called on the workers' host: locks show which of them are alive.
    """
    recovered = []
    for path in sorted(folder.glob(f"*{OPEN}")):
        with _lock_of_dead(path) as dead:
            if dead:
                done = path.with_suffix(COMPLETE)
                os.rename(path, done)
                recovered.append(done)
    for path in folder.glob(f"*{_NEW}"):  # of no rows yet
        with _lock_of_dead(path) as dead:
            if dead and now_ms() / 1000 - path.stat().st_mtime > _OLD_S:
                path.unlink()
    return recovered


@contextmanager
def _lock_of_dead(path: Path) -> Iterator[bool]:
    """Yield True if no worker writes the file; none can start to within the block."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield False
        return
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        # its worker may have completed it since the folder was listed
        here = os.path.exists(path) and os.stat(path).st_ino == os.fstat(file).st_ino
        yield here
    finally:
        os.close(file)


@dataclass(frozen=True, slots=True)
class SpoolContent:
    """The rows of a file, and the number of bytes at its end that could not be read."""

    rows: pa.Table
    torn_bytes: int


def read_spool(path: Path, schema: pa.Schema) -> SpoolContent:
    """Read a complete file; a torn end is left out and counted.

    Raises
    ------
    TableError
        If it is not a spool file of this version.
    """
    size = path.stat().st_size
    with pa.memory_map(str(path)) as source:
        try:
            reader = pa.ipc.open_stream(source)
        except pa.ArrowInvalid as error:
            raise TableError(f"{path} is not a spool file of the request log ({error})") from error
        described = json.loads((reader.schema.metadata or {}).get(b"paimon_features", b"{}"))
        if described.get("format") != FORMAT or not reader.schema.equals(schema):
            raise TableError(
                f"{path} has format {described.get('format')} and the columns "
                f"{', '.join(reader.schema.names)}; expected format {FORMAT} and "
                f"{', '.join(schema.names)}: another version wrote it, commit it with that one"
            )
        batches, good = [], source.tell()
        while True:
            try:
                batch = reader.read_next_batch()
                batch.validate(full=True)
            except StopIteration:
                good = source.tell()
                break
            except (pa.ArrowInvalid, OSError):
                break
            batches.append(batch)
            good = source.tell()
        # copied, since the memory map ends here
        rows = pa.Table.from_batches(batches, schema=schema)
        rows = rows.take(pa.array(range(rows.num_rows), pa.int64())) if batches else rows
    return SpoolContent(rows, size - good)


def described_schema(schema: pa.Schema, project: str, worker: str) -> pa.Schema:
    """Return the schema with metadata: the format that readers check, the project and the
    worker."""
    document = {"format": FORMAT, "project": project, "worker": worker}
    return schema.with_metadata({"paimon_features": json.dumps(document)})


def spool_bytes(folder: Path) -> int:
    """Return the size of all files that wait in the folder."""
    total = 0
    for entry in os.scandir(folder):
        with suppress(FileNotFoundError):
            if entry.is_file():
                total += entry.stat().st_size
    return total
