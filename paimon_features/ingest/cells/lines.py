"""The lines of a text file, in blocks, without their line ends."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paimon_features.core.errors import ConfigurationError
from paimon_features.ingest.long_lines import CUT_LINE, open_text
from paimon_features.lake.events.rejects import LINE_TOO_LONG

BLOCK_BYTES = 8 << 20
"""Bytes that are read at once; a block is of whole lines, so a longer line makes a larger one."""
_MARK = re.compile(rf"{re.escape(CUT_LINE)}([0-9]+) bytes\]")
_LF, _CR = 10, 13
_SURROGATE = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]")


@dataclass(frozen=True, slots=True)
class Lines:
    """Lines of a text: line ``i`` is ``data[starts[i]:ends[i]]``. None of them is empty."""

    data: bytes
    starts: Any
    ends: Any

    def __len__(self) -> int:
        return len(self.starts)

    def line(self, number: int) -> bytes:
        return self.data[self.starts[number] : self.ends[number]]

    def where(self, chosen: Any) -> Lines:
        """Return some of the lines, by a mask or their numbers."""
        return Lines(self.data, self.starts[chosen], self.ends[chosen])


def read_blocks(
    path: Path,
    opened: Callable[[Path], AbstractContextManager[Any]] = open_text,
    longest: int | None = None,
) -> Iterator[bytes]:
    """Yield the text of a file in blocks of complete lines; ``opened`` opens and decompresses it.

    Raises
    ------
    ConfigurationError
        If the file cannot be read or decompressed, or has a line of far more than ``longest``
        bytes.
    """
    held: list[bytes] = []
    try:
        with opened(path) as file:
            while chunk := file.read(BLOCK_BYTES):
                end = chunk.rfind(b"\n") + 1
                if not end:
                    held.append(chunk)
                    if longest is not None and sum(map(len, held)) > longest:
                        raise ConfigurationError(f"{path}: a line of more than {longest:,} bytes")
                    continue
                yield b"".join([*held, chunk[:end]]) if held else chunk[:end]
                held = [chunk[end:]]
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigurationError(f"{path}: it cannot be read: {error}") from error
    if rest := b"".join(held):
        yield rest


def split_lines(data: bytes) -> Lines:
    """Return the lines of a text that are not empty: split at LF, without CR at their ends.

    >>> lines = split_lines(b"a\\r\\n\\n\\r\\nb\\rc")
    >>> [lines.line(number) for number in range(len(lines))]
    [b'a', b'b\\rc']
    """
    text = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(text == _LF)
    starts = np.concatenate([[0], ends + 1])
    ends = np.concatenate([ends, [len(text)]])
    if b"\r" in data:
        while True:
            returns = (ends > starts) & (text[np.maximum(ends, 1) - 1] == _CR)
            if not returns.any():
                break
            ends = ends - returns
    kept = ends > starts
    return Lines(data, starts[kept], ends[kept])


def decoded(line: bytes) -> str:
    """Return a line as text; U+FFFD for bytes that are not UTF-8, as Java writes it.

    >>> [ord(c) for c in decoded(bytes([0x61, 0xED, 0xA0, 0x80, 0xFF]))]
    [97, 65533, 65533]
    """
    # half of a surrogate pair in three bytes is one malformed character to Java
    return _SURROGATE.sub(b"\xff", line).decode("utf-8", "replace")


def is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def too_long(text: str) -> tuple[str, str] | None:
    """Return reason and detail if a line stands for one that is too long (see ``long_lines``)."""
    mark = _MARK.match(text)
    return mark and (LINE_TOO_LONG, f"it has {mark[1]} bytes; see --max-line-bytes")
