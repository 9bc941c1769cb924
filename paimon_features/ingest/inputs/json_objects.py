"""Objects of JSON, in lines or in an array, as batches of texts: as they are written.

A column has no type before ``ingest`` decides for each cell: nothing is taken from the first rows.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa

from paimon_features.core.errors import ConfigurationError
from paimon_features.ingest.cells.json_cells import (
    WrittenNumber,
    cell_text,
    has_half_character,
    read_line,
    short_number,
)
from paimon_features.ingest.cells.lines import read_blocks, split_lines
from paimon_features.ingest.inputs.csv_rows import OnUnreadable, Opener
from paimon_features.ingest.inputs.pieces import pieces
from paimon_features.lake.events.rejects import UNREADABLE

LONGEST_OBJECT = 16 << 20
"""Bytes of one object of a JSON array, or of one line."""
MOST_KEYS = 10_000
"""Keys of all objects of a file: each is a column, and every batch has all of them."""
_BETWEEN_ITEMS, _BETWEEN_LINES = re.compile(r"[ \t\r\n,]*"), re.compile(r"\s*")
_BOM = b"\xef\xbb\xbf"
# a constant such as NaN is a text here, which is no number to ``ingest``
_DECODER = json.JSONDecoder(parse_int=short_number, parse_float=short_number, parse_constant=str)


class ObjectBatches:
    """Batches of the objects of a file; ``names`` and ``nested`` grow with the keys."""

    def __init__(
        self, path: Path, rows: Iterable[dict[str, Any]], on_unreadable: OnUnreadable
    ) -> None:
        self._path = path
        self._rows = iter(rows)
        self._on_unreadable = on_unreadable
        self.names: dict[str, None] = {}
        self.nested: dict[str, str] = {}

    def peek(self, count: int) -> bool:
        """Read the first objects ahead; return True if there is one."""
        first = next(pieces(self._rows, count), [])
        self._add_names(first)
        self._rows = chain(first, self._rows)
        return bool(first)

    def batches(self, size: int) -> Iterator[pa.RecordBatch]:
        for piece in pieces(self._rows, size):
            try:
                yield self._batch(piece)
            except UnicodeEncodeError:
                yield self._batch([row for row in piece if self._is_text(row)])

    def _add_names(self, rows: list[dict[str, Any]]) -> None:
        for row in rows:
            self.names.update(dict.fromkeys(row))
        if len(self.names) > MOST_KEYS:
            raise ConfigurationError(
                f"{self._path}: its objects have more than {MOST_KEYS:,} different keys; expected "
                "the same columns in all: write keys that are data as values"
            )

    def _is_text(self, row: dict[str, Any]) -> bool:
        if has_half_character(row):
            text = str(cell_text(row)).encode("utf-8", "backslashreplace").decode()
            self._on_unreadable(UNREADABLE, "half of a character", text)
            return False
        return True

    def _batch(self, rows: list[dict[str, Any]]) -> pa.RecordBatch:
        self._add_names(rows)
        columns = []
        for name in self.names:
            values = [row.get(name) for row in rows]
            if name not in self.nested:
                nested = next((v for v in values if isinstance(v, dict | list)), None)
                if nested is not None:
                    self.nested[name] = "object" if isinstance(nested, dict) else "list"
            columns.append(pa.array(list(map(cell_text, values)), pa.string()))
        return pa.RecordBatch.from_arrays(columns, names=list(self.names))


def read_objects(
    path: Path, opened: Opener, on_unreadable: OnUnreadable
) -> Iterator[dict[str, Any]]:
    """Return the objects of a file; lines that are none go to ``on_unreadable``.

    A file named ``.jsonl`` or ``.ndjson``, or whose first line is an object, has one a line.
    """
    if is_lines(path, opened):
        return _of_lines(path, opened, on_unreadable)
    return _of_array(path, opened)


def is_lines(path: Path, opened: Opener) -> bool:
    if {".jsonl", ".ndjson"} & {suffix.lower() for suffix in path.suffixes[-2:]}:
        return True
    with opened(path) as file:
        head: bytes = file.read(1 << 20)
    first, _, _ = head.removeprefix(_BOM).lstrip().partition(b"\n")
    return read_line(first.rstrip(b"\r"))[1] is not None


def _of_lines(path: Path, opened: Opener, on_unreadable: OnUnreadable) -> Iterator[dict[str, Any]]:
    for number, block in enumerate(read_blocks(path, opened, LONGEST_OBJECT)):
        lines = split_lines(block if number else block.removeprefix(_BOM))
        for line in range(len(lines)):
            text, row, problem = read_line(lines.line(line))
            if row is not None:
                yield row
            elif problem is not None:
                on_unreadable(*problem, text)


def _of_array(path: Path, opened: Opener) -> Iterator[dict[str, Any]]:
    """Yield the objects of a JSON array, or one after another, in bounded memory."""
    with (
        opened(path) as file,
        io.TextIOWrapper(io.BufferedReader(ReadableFile(file)), "utf-8-sig") as text,
    ):
        held = text.read(1 << 16).lstrip()
        is_array = held.startswith("[")
        between = _BETWEEN_ITEMS if is_array else _BETWEEN_LINES
        # the next object begins there: to cut off each that was read would copy the rest each time
        at = 1 if is_array else 0
        while True:
            at = _end_of(between, held, at)
            if is_array and held.startswith("]", at):
                return
            try:
                value, end = _DECODER.raw_decode(held, at)
            except ValueError as error:
                if not isinstance(error, json.JSONDecodeError):  # a number of too many digits
                    raise
                held, at = held[at:], 0
                more = text.read(max(1 << 16, len(held)))
                if not more:
                    if held:
                        raise
                    if is_array:
                        raise ConfigurationError(
                            f"{path}: its array does not end with ']': the file is cut off; write "
                            "it again"
                        ) from None
                    return
                if len(held) > LONGEST_OBJECT:
                    raise ConfigurationError(
                        f"{path}: an object of more than {LONGEST_OBJECT:,} characters"
                    ) from None
                held += more
                continue
            if not isinstance(value, dict):
                kind = type(value).__name__
                if isinstance(value, WrittenNumber):
                    kind = "int" if value.lstrip("-").isdigit() else "float"
                raise ConfigurationError(
                    f"{path}: expected JSON objects, got {kind}: {held[at : at + 40]!r}"
                )
            yield value
            at = end
            if len(held) - at < 1 << 12:
                held, at = held[at:] + text.read(1 << 20), 0


def _end_of(between: re.Pattern[str], text: str, at: int) -> int:
    match = between.match(text, at)
    assert match is not None, "it matches nothing, too"
    return match.end()


class ReadableFile(io.RawIOBase):
    """A stream of Arrow or of a decompressor as a raw file."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)
