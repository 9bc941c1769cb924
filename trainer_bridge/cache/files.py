"""One block in one file: Arrow IPC, then a checksum; mapped into memory when it is read.

::

    [ Arrow IPC file ........ ][ length, 8 bytes ][ crc32, 4 bytes ][ "PFBLOCK1" ]

A file appears under its name whole or not at all. What a dying machine or a full disk leaves
behind does not pass the checksum, which is compared when a block is opened.
"""

from __future__ import annotations

import os
import struct
import uuid
import zlib
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pyarrow as pa

_MAGIC = b"PFBLOCK1"
_TAIL = struct.Struct("<QI8s")


class DamagedBlock(Exception):  # noqa: N818 - it never leaves the cache
    """A file that is not what was written."""


Admit = Callable[[int], AbstractContextManager[bool]]
"""Asked with the size of a file before it appears; the answer holds while it is open."""


def write_block(path: Path, table: pa.Table, admit: Admit | None = None) -> int:
    """Write a block and give the size of its file; a reader never sees a part of it.

    0 where ``admit`` refuses it.

    Raises
    ------
    OSError
        If there is no room on the disk, say; nothing is left behind then.
    """
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    data = sink.getvalue()
    tail = _TAIL.pack(data.size, zlib.crc32(data), _MAGIC)
    # unique, so that two writers of one block cannot write into one file
    part = path.with_name(f"{path.name}.{os.getpid()}-{uuid.uuid4().hex[:8]}.part")
    size = int(data.size) + _TAIL.size
    try:
        with part.open("wb") as file:
            file.write(data)
            file.write(tail)
        with admit(size) if admit else nullcontext(True) as fits:
            if fits:
                part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return size if fits else 0


def read_block(path: Path, verify: bool = True) -> pa.Table:
    """The block in a file, backed by the file itself: its pages belong to the system's cache.

    ``verify=False`` leaves the checksum out, for a file that this process has compared before.

    Raises
    ------
    FileNotFoundError
        If there is none.
    DamagedBlock
        If it is cut short or changed.
    """
    size = path.stat().st_size
    if size < _TAIL.size:
        raise DamagedBlock(f"{path} has {size} bytes")
    with pa.memory_map(os.fspath(path)) as file:
        whole = file.read_buffer(size)
    length, checksum, magic = _TAIL.unpack(whole.slice(size - _TAIL.size))
    if magic != _MAGIC or length != size - _TAIL.size:
        raise DamagedBlock(f"{path} has {size} bytes and does not end as a block does")
    data = whole.slice(0, length)
    if verify and zlib.crc32(data) != checksum:
        raise DamagedBlock(f"{path} has other contents than were written")
    try:
        return pa.ipc.open_file(pa.BufferReader(data)).read_all()
    except pa.ArrowException as error:
        raise DamagedBlock(f"{path}: {error}") from error
