"""One block per file: Arrow IPC followed by a checksum; memory-mapped on reading.

::

    [ Arrow IPC file ........ ][ length, 8 bytes ][ crc32, 4 bytes ][ "PFBLOCK1" ]

A file appears under its name atomically. What a crashed machine or a full disk leaves behind
fails the checksum, which is verified when a block is opened.
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


class DamagedBlock(Exception):  # noqa: N818 - never raised outside the cache
    """A file whose contents differ from what was written."""


Admit = Callable[[int], AbstractContextManager[bool]]
"""Admission check: called with a file's size before it is published; valid while entered."""


def write_block(path: Path, table: pa.Table, admit: Admit | None = None) -> int:
    """Write a block atomically and return the size of its file, 0 if ``admit`` refuses it.

    Raises
    ------
    OSError
        For example if the disk is full; nothing is left behind then.
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
    """Memory-map the block in a file; its pages belong to the page cache of the system.

    ``verify=False`` skips the checksum, for a file that this process has verified before.

    Raises
    ------
    FileNotFoundError
        If the file does not exist.
    DamagedBlock
        If it is truncated or changed.
    """
    size = path.stat().st_size
    if size < _TAIL.size:
        raise DamagedBlock(f"{path} has {size} bytes")
    with pa.memory_map(os.fspath(path)) as file:
        whole = file.read_buffer(size)
    length, checksum, magic = _TAIL.unpack(whole.slice(size - _TAIL.size))
    if magic != _MAGIC or length != size - _TAIL.size:
        raise DamagedBlock(f"{path} has {size} bytes and does not end with a block footer")
    data = whole.slice(0, length)
    if verify and zlib.crc32(data) != checksum:
        raise DamagedBlock(f"{path} has contents that differ from what was written")
    try:
        return pa.ipc.open_file(pa.BufferReader(data)).read_all()
    except pa.ArrowException as error:
        raise DamagedBlock(f"{path}: {error}") from error
