"""CSV lines as cells.

Arrow splits the lines that it splits like the definition, ``Dialect.split``, a regular expression
that the Flink job uses, too: those with the right number of commas outside quotes, whose quotes are
around complete fields. The others are split one by one.

Files in other dialects are split by the same rules (``ingest.inputs.csv_rows``).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc_csv

from paimon_features.core.errors import ConfigurationError
from paimon_features.core.types.array_types import Bools
from paimon_features.ingest.cells.cells import CellBatch, text_column
from paimon_features.ingest.cells.lines import Lines, decoded, is_utf8, split_lines, too_long
from paimon_features.ingest.input_columns import FileGroup, InputColumn
from paimon_features.ingest.input_files import FIELD, InputFile
from paimon_features.ingest.long_lines import CUT_LINE
from paimon_features.lake.events.rejects import TOO_FEW_COLUMNS, TOO_MANY_COLUMNS, UNREADABLE

_CUT = CUT_LINE.encode()
_CR = ord("\r")


@dataclass(frozen=True)
class Dialect:
    """The characters between and around fields, and the one before a character without a meaning.

    ``escape`` is empty where a quote within quotes is doubled.

    >>> Dialect(";", "'").split("a;'b ''c''; d';;e'")
    ['a', "'b ''c''; d'", '', "e'"]
    >>> Dialect().split('a,"b" c') is None
    True
    >>> Dialect(escape="\\\\").unquoted('"5\\\\" nail"')
    '5" nail'
    """

    delimiter: str = ","
    quote: str = '"'
    escape: str = ""

    @cached_property
    def _field(self) -> str:
        if (self.delimiter, self.quote, self.escape) == (",", '"', ""):
            return FIELD
        comma, quote, escape = map(re.escape, (self.delimiter, self.quote, self.escape))
        if not escape:
            inside = f"[^{quote}]*+(?:{quote}{quote}[^{quote}]*+)*+"
            return f"{quote}{inside}{quote}|[^{quote}{comma}][^{comma}]*+|"
        inside = f"(?:[^{quote}{escape}]|{escape}.|{quote}{quote})*+"
        bare = f"(?:[^{quote}{comma}{escape}]|{escape}.)(?:[^{comma}{escape}]|{escape}.)*+"
        return f"{quote}{inside}{quote}|{bare}|"

    @cached_property
    def _fields(self) -> re.Pattern[str]:
        return re.compile(f"{re.escape(self.delimiter)}({self._field})", re.DOTALL)

    @cached_property
    def _open(self) -> re.Pattern[str]:
        """A line whose last field begins with a quote that is not closed."""
        comma, quote, escape = map(re.escape, (self.delimiter, self.quote, self.escape))
        one = f"[^{quote}{escape}]|{quote}{quote}" + (f"|{escape}." if escape else "")
        return re.compile(f"(?:(?:{self._field}){comma})*+{quote}(?:{one})*+", re.DOTALL)

    @cached_property
    def _escaped(self) -> re.Pattern[str]:
        quote = re.escape(self.quote)
        return re.compile(f"{re.escape(self.escape)}(.)|{quote}({quote})", re.DOTALL)

    def split(self, line: str) -> list[str] | None:
        """Return the fields of a line as they are written, None for a line that is not CSV."""
        fields = self._fields.findall(self.delimiter + line)
        return fields if self.delimiter.join(fields) == line else None

    def is_open(self, line: str) -> bool:
        """Return True if the line ends within quotes: its record continues in the next one."""
        return self._open.fullmatch(line) is not None

    def unquoted(self, field: str) -> str | None:
        """Return the value of a field: an empty field is null, empty quotes are an empty text."""
        quoted = field[:1] == self.quote
        text = field[1:-1] if quoted else field
        if self.escape and self.escape in text and text != f"{self.escape}N":
            return self._escaped.sub(lambda match: match[1] or match[2] or "", text)
        if quoted:
            return text.replace(self.quote * 2, self.quote)
        return text or None


STANDARD = Dialect()


def csv_batches(data: bytes, group: FileGroup, file: InputFile) -> list[CellBatch]:
    """Return the rows of complete lines of a CSV file; header lines and empty lines are skipped."""
    lines = split_lines(data)
    rows = lines.where(~equal_lines(lines, group.header.encode()))
    plain = plain_lines(rows, group.width)
    batches = []
    if plain.any():
        batches.append(_by_arrow(rows if plain.all() else rows.where(plain), group, file))
    if not plain.all():
        batches.append(_one_by_one(rows.where(~plain), group, file))
    return batches


def equal_lines(lines: Lines, text: bytes) -> Bools:
    """Return which lines equal a text."""
    equal = (lines.ends - lines.starts) == len(text)
    for number in np.flatnonzero(equal):
        equal[number] = lines.line(number) == text
    result: Bools = equal
    return result


def plain_lines(lines: Lines, width: int, dialect: Dialect = STANDARD) -> Bools:
    """Return which lines Arrow splits into ``width`` fields as ``dialect`` does."""
    data = np.frombuffer(lines.data, np.uint8)
    plain = _of_utf8(lines)
    commas = np.flatnonzero(data == ord(dialect.delimiter))
    for letter in dialect.escape.encode():
        if letter in lines.data:
            plain &= ~_contains(lines, data == letter)
    if b"\r" in lines.data:
        # a line end to Arrow; those at the end of a line are not part of it
        returns = np.flatnonzero(data == _CR)
        plain &= np.searchsorted(returns, lines.ends) == np.searchsorted(returns, lines.starts)
    if _CUT in lines.data:
        plain &= data[lines.starts] != _CUT[0]
    if dialect.quote.encode() in lines.data:
        quotes = np.flatnonzero(data == ord(dialect.quote))
        first = np.searchsorted(quotes, lines.starts)
        count = np.searchsorted(quotes, lines.ends) - first
        quoted = np.flatnonzero(count)
        if len(quoted):
            # the quotes of these lines, and the number of each in its line
            line_quotes = quotes[_ranges(first[quoted], count[quoted])]
            line = np.repeat(quoted, count[quoted])
            rank = _ranges(np.zeros(len(quoted), np.int64), count[quoted])
            bad = _misplaced(data, lines, line_quotes, line, rank, dialect)
            plain[line[bad]] = False
            plain[quoted[count[quoted] % 2 == 1]] = False
            # commas within quotes separate nothing
            of_comma = np.searchsorted(lines.starts, commas, "right") - 1
            before = np.searchsorted(quotes, commas) - first[np.maximum(of_comma, 0)]
            commas = commas[before % 2 == 0]
    separators = np.searchsorted(commas, lines.ends) - np.searchsorted(commas, lines.starts)
    result: Bools = plain & (separators == width - 1)
    return result


def _contains(lines: Lines, letters: Any) -> Bools:
    """Return which lines contain one of these letters of their text."""
    places = np.flatnonzero(letters)
    contained: Bools = np.searchsorted(places, lines.ends) != np.searchsorted(places, lines.starts)
    return contained


def _misplaced(
    data: Any, lines: Lines, quotes: Any, line: Any, rank: Any, dialect: Dialect
) -> Bools:
    """Return which quotes neither begin nor end a field, nor are half of a doubled one."""
    comma, quote = ord(dialect.delimiter), ord(dialect.quote)
    opening = rank % 2 == 0
    at_start = quotes == lines.starts[line]
    at_end = quotes + 1 == lines.ends[line]
    before = data[np.maximum(quotes, 1) - 1]
    after = data[np.minimum(quotes + 1, len(data) - 1)]
    begins = at_start | (before == comma) | ((before == quote) & (rank > 0))
    ends = at_end | (after == comma) | (after == quote)
    result: Bools = np.where(opening, ~begins, ~ends)
    return result


def _ranges(starts: Any, counts: Any) -> Any:
    """Return ``start, start + 1, ...`` for each start, as many as its count."""
    total = int(counts.sum())
    shift = np.repeat(starts - (np.cumsum(counts) - counts), counts)
    return np.arange(total) + shift


def _of_utf8(lines: Lines) -> Bools:
    valid = np.ones(len(lines), np.bool_)
    try:
        lines.data.decode()
    except UnicodeDecodeError:
        for number in range(len(lines)):
            line = lines.line(number)
            if not line.isascii():
                valid[number] = is_utf8(line)
    return valid


def _by_arrow(lines: Lines, group: FileGroup, file: InputFile) -> CellBatch:
    positions = sorted({column.position for column in group.columns})
    try:
        cells = read_plain(lines, group.width, positions)
    except ConfigurationError as error:
        raise ConfigurationError(
            f"{file.path}: {error}; ingest the file with --engine flink"
        ) from error

    def raw(rows: Sequence[int]) -> list[str]:
        return [decoded(lines.line(row)) for row in rows]

    return _batch(len(lines), cells, group.columns, raw, str(file.path), [])


def read_plain(
    lines: Lines, width: int, positions: Sequence[int], dialect: Dialect = STANDARD
) -> dict[int, pa.Array]:
    """Return the texts of some fields, by their positions from 1, of lines of ``plain_lines``.

    Raises
    ------
    ConfigurationError
        If Arrow splits them into other rows.
    """
    names = [str(number) for number in range(1, width + 1)]
    text = lines.data[lines.starts[0] : lines.ends[-1]]
    alone = len(text) - int((lines.ends - lines.starts).sum())
    if alone not in (len(lines) - 1, 2 * (len(lines) - 1)):  # other lines are between these
        text = b"\n".join(lines.line(number) for number in range(len(lines)))
    text += b"\n"  # without it an empty last field after a quoted one is no null to Arrow
    table = pc_csv.read_csv(
        pa.BufferReader(text),
        pc_csv.ReadOptions(column_names=names, block_size=max(1, len(text)), use_threads=False),
        pc_csv.ParseOptions(
            delimiter=dialect.delimiter,
            quote_char=dialect.quote,
            newlines_in_values=False,
            ignore_empty_lines=True,
        ),
        pc_csv.ConvertOptions(
            include_columns=[str(position) for position in positions],
            column_types=dict.fromkeys(names, pa.string()),
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            check_utf8=False,
        ),
    )
    if table.num_rows != len(lines):
        raise ConfigurationError(
            f"Arrow reads {table.num_rows} rows in a block of {len(lines)} lines"
        )
    return {int(name): table.column(name).combine_chunks() for name in table.column_names}


def read_line(
    line: bytes, width: int, dialect: Dialect = STANDARD
) -> tuple[str, list[str], tuple[str, str] | None]:
    """Return the text of a line, its fields, and reason and detail if it has not ``width`` of
    them."""
    text = decoded(line)
    fields = dialect.split(text)
    if (long := too_long(text)) is not None:
        return text, [], long
    if fields is None:
        detail = "a quote is not closed, or text follows a closed one"
        return text, [], (UNREADABLE, f"{detail} (a value cannot contain a line break)")
    if len(fields) != width:
        reason = TOO_FEW_COLUMNS if len(fields) < width else TOO_MANY_COLUMNS
        return text, [], (reason, f"expected {width} columns, got {len(fields)}")
    if not is_utf8(line):
        return text, [], (UNREADABLE, "not UTF-8")
    return text, fields, None


def _one_by_one(lines: Lines, group: FileGroup, file: InputFile) -> CellBatch:
    broken: list[tuple[str, str, str | None]] = []
    kept: list[str] = []
    rows: list[list[str]] = []
    for number in range(len(lines)):
        text, fields, problem = read_line(lines.line(number), group.width)
        if problem is not None:
            broken.append((*problem, text))
        else:
            kept.append(text)
            rows.append(fields)
    cells = {
        column.position: pa.array(
            [STANDARD.unquoted(fields[column.position - 1]) for fields in rows], pa.string()
        )
        for column in group.columns
    }

    def raw(numbers: Sequence[int]) -> list[str]:
        return [kept[number] for number in numbers]

    return _batch(len(rows), cells, group.columns, raw, str(file.path), broken)


def _batch(
    rows: int,
    cells: dict[int, pa.Array],
    columns: Sequence[InputColumn],
    raw: Any,
    origin: str,
    broken: list[tuple[str, str, str | None]],
) -> CellBatch:
    cell_columns = {
        column.name: text_column(cells[column.position], column.bare) for column in columns
    }
    return CellBatch(rows, cell_columns, raw, origin, broken)
