"""Rows of text files in any dialect as batches of texts; what is no row is counted, line by line.

Lines are split by the rules of ``ingest`` for plain CSV. A value may contain line breaks, if the
settings say so: then the lines of a record are joined first.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from paimon_features.core.configuration.input_settings import InputSettings
from paimon_features.core.errors import ConfigurationError
from paimon_features.ingest.cells.csv_cells import (
    Dialect,
    equal_lines,
    plain_lines,
    read_line,
    read_plain,
)
from paimon_features.ingest.cells.lines import BLOCK_BYTES, Lines, decoded, split_lines
from paimon_features.lake.events.rejects import UNREADABLE

Opener = Callable[[Path], AbstractContextManager[Any]]
OnUnreadable = Callable[[str, str, str], None]
"""Receives the reason, a detail and the text of a row."""
_LONGEST_RECORD = 1 << 20
"""Bytes of a record over several lines: a quote that is never closed takes no more with it."""
_LONGEST_LINE = 8 << 20
_BAD_CHARACTER = "paimon-features-bad-character"


def _mark_bad(error: UnicodeError) -> tuple[str, int]:
    # half of a pair is no character, so that the row is rejected as not readable
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return "\udcff", error.end


codecs.register_error(_BAD_CHARACTER, _mark_bad)


def dialect_of(settings: InputSettings) -> Dialect:
    return Dialect(settings.delimiter, settings.quote, settings.escape)


class CsvRows:
    """Splits a text into records of ``width`` fields."""

    def __init__(self, settings: InputSettings, width: int, on_unreadable: OnUnreadable) -> None:
        self.dialect, self.width = dialect_of(settings), width
        self._joins = settings.line_breaks
        self._on_unreadable = on_unreadable

    def batches(self, path: Path, opened: Opener, settings: InputSettings) -> Iterator[pa.Table]:
        """Yield the records of a file, without its header and its first ``skip`` lines."""
        before, header = settings.skip, b"" if settings.header else None
        held = b""
        for block, is_last in _blocks(path, opened, settings.encoding):
            data = held + block
            while before and data:
                line, end, data = data.partition(b"\n")
                if not end and not is_last:
                    data = line
                    break
                before -= 1
            lines = split_lines(data)
            records, held = self._records(lines, is_last)
            if header == b"" and len(records):
                header = records.line(0)
            if header:
                records = records.where(~equal_lines(records, header))
            yield from self._split(records)

    def count_bad(self, data: bytes) -> int:
        """Return how many lines of a text are in no record."""
        bad = 0

        def count(reason: str, detail: str, text: str) -> None:
            nonlocal bad
            bad += 1

        self._on_unreadable = count
        for _ in self._split(self._records(split_lines(data), True)[0]):
            pass
        return bad

    def _split(self, records: Lines) -> Iterator[pa.Table]:
        if not len(records):
            return
        names = [str(number) for number in range(1, self.width + 1)]
        plain = plain_lines(records, self.width, self.dialect)
        if self._joins and len(records):
            plain &= ~_has_line_break(records)
        if plain.any():
            chosen = records if plain.all() else records.where(plain)
            cells = read_plain(chosen, self.width, range(1, self.width + 1), self.dialect)
            yield pa.table([cells[int(name)] for name in names], names=names)
        rows = []
        for number in np.flatnonzero(~plain):
            text, fields, problem = read_line(records.line(number), self.width, self.dialect)
            if problem is not None:
                self._on_unreadable(*problem, text)
            else:
                rows.append([self.dialect.unquoted(field) for field in fields])
        if rows:
            yield pa.table(
                [pa.array(column, pa.string()) for column in zip(*rows, strict=True)], names=names
            )

    def _records(self, lines: Lines, is_last: bool) -> tuple[Lines, bytes]:
        """Return lines joined to records, and the text of a record that may continue in the next
        block."""
        quote = self.dialect.quote.encode()
        if not self._joins or quote not in lines.data:
            return lines, b""
        odd = _odd_quotes(lines, ord(quote), bool(self.dialect.escape))
        starts, ends = lines.starts.copy(), lines.ends.copy()
        kept = np.ones(len(lines), np.bool_)
        number = 0
        while number < len(lines):
            following = np.flatnonzero(odd[number:])
            if not len(following):
                break
            number += int(following[0])
            is_open = self.dialect.is_open(decoded(lines.line(number)))
            last = self._end_of_record(lines, number, odd) if is_open else None
            if last is None:
                if is_open and not is_last and self._may_continue(lines, number):
                    chosen = kept & (np.arange(len(lines)) < number)
                    rest = lines.data[lines.starts[number] :]
                    return Lines(lines.data, starts[chosen], ends[chosen]), rest
                number += 1  # this line alone is no row
                continue
            if self._has_rows_inside(lines, number, last):
                detail = "a value with line breaks that look like rows: a quote is not closed"
                for line in range(number, last + 1):
                    self._on_unreadable(UNREADABLE, detail, decoded(lines.line(line)))
                kept[number : last + 1] = False
            else:
                ends[number] = lines.ends[last]
                kept[number + 1 : last + 1] = False
            number = last + 1
        return Lines(lines.data, starts[kept], ends[kept]), b""

    def _may_continue(self, lines: Lines, number: int) -> bool:
        rest = lines.data[lines.starts[number] :]
        return len(rest) < _LONGEST_RECORD and self.dialect.is_open(decoded(rest.rstrip(b"\r\n")))

    def _end_of_record(self, lines: Lines, first: int, odd: Any) -> int | None:
        """Return the last line of a record that begins with a line.

        None if there is no such record.
        """
        for last in first + 1 + np.flatnonzero(odd[first + 1 :]):
            text = lines.data[lines.starts[first] : lines.ends[last]]
            if len(text) > _LONGEST_RECORD:
                return None
            fields = self.dialect.split(decoded(text))
            if fields is not None and len(fields) == self.width:
                return int(last)
            if not self.dialect.is_open(decoded(text)):
                return None
        return None

    def _has_rows_inside(self, lines: Lines, first: int, last: int) -> bool:
        if self.width < 2:
            return False
        inside = (self.dialect.split(decoded(lines.line(n))) for n in range(first + 1, last))
        return any(fields is not None and len(fields) == self.width for fields in inside)


def _odd_quotes(lines: Lines, quote: int, escaped: bool) -> Any:
    """Return which lines can begin or end within quotes: any, where an escaped one is no quote."""
    places = np.flatnonzero(np.frombuffer(lines.data, np.uint8) == quote)
    counts = np.searchsorted(places, lines.ends) - np.searchsorted(places, lines.starts)
    return counts > 0 if escaped else counts % 2 == 1


def _has_line_break(records: Lines) -> Any:
    places = np.flatnonzero(np.frombuffer(records.data, np.uint8) == ord("\n"))
    return np.searchsorted(places, records.ends) != np.searchsorted(places, records.starts)


def has_only_returns(head: bytes) -> bool:
    """Return True if lines end with CR alone, as old programs write them."""
    return b"\r" in head and b"\n" not in head


def _blocks(path: Path, opened: Opener, encoding: str) -> Iterator[tuple[bytes, bool]]:
    """Yield the text in UTF-8, in blocks of complete lines, and whether a block is the last one."""
    plain = encoding.lower().replace("_", "-") in ("utf-8", "utf8", "utf-8-sig")
    decoder = codecs.getincrementaldecoder(encoding)(_BAD_CHARACTER)
    returns: bool | None = None
    ready: bytes | None = None
    held = b""
    with opened(path) as file:
        while True:
            chunk: bytes = file.read(BLOCK_BYTES)
            is_end = not chunk
            if not plain:
                chunk = decoder.decode(chunk, is_end).encode("utf-8", "surrogatepass")
            if returns is None:
                returns = has_only_returns(chunk)
                chunk = chunk.removeprefix(codecs.BOM_UTF8)
            if returns:
                chunk = chunk.replace(b"\r", b"\n")
            data = held + chunk
            end = len(data) if is_end else data.rfind(b"\n") + 1
            held = data[end:]
            if len(held) > _LONGEST_LINE:
                raise ConfigurationError(f"{path}: a row has more than {_LONGEST_LINE >> 20} MiB")
            if end or is_end:
                if ready is not None:
                    yield ready, False
                ready = data[:end]
            if is_end:
                yield ready or b"", True
                return
