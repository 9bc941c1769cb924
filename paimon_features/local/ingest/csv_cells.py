"""CSV lines as cells.

Arrow splits the lines that it splits like the definition, ``split``, a regular expression that the
Flink job uses, too: those with the right number of commas outside quotes, whose quotes are around
complete fields. The others are split one by one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc_csv

from paimon_features.array_types import Bools
from paimon_features.errors import ConfigurationError
from paimon_features.ingestion.input_columns import FileGroup, InputColumn
from paimon_features.ingestion.inputs import FIELD, InputFile
from paimon_features.ingestion.long_lines import CUT_LINE
from paimon_features.local.ingest.cells import CellBatch, text_column
from paimon_features.local.ingest.lines import Lines, decoded, read_blocks, split_lines, too_long
from paimon_features.tables.rejects import TOO_FEW_COLUMNS, TOO_MANY_COLUMNS, UNREADABLE

_FIELDS = re.compile(f",({FIELD})")
_CUT = CUT_LINE.encode()
_QUOTE, _COMMA, _CR = ord('"'), ord(","), ord("\r")


def csv_batches(group: FileGroup, file: InputFile) -> Iterator[Callable[[], list[CellBatch]]]:
    """The rows of a CSV file, in parts to compute; header lines and empty lines are skipped.

    Raises
    ------
    ConfigurationError
        If the file cannot be read.
    """
    for data in read_blocks(file.read_path):
        yield partial(_batches, data, group, file)


def _batches(data: bytes, group: FileGroup, file: InputFile) -> list[CellBatch]:
    lines = split_lines(data)
    rows = lines.where(~_equal(lines, group.header.encode()))
    plain = _plain(rows, group.width)
    batches = []
    if plain.any():
        batches.append(_by_arrow(rows if plain.all() else rows.where(plain), group, file))
    if not plain.all():
        batches.append(_one_by_one(rows.where(~plain), group, file))
    return batches


def split(line: str) -> list[str] | None:
    """The fields of a line as they are written, None for a line that is not CSV.

    >>> split('a,"b ""c"", d",,e"')
    ['a', '"b ""c"", d"', '', 'e"']
    >>> split('a,"b" c') is None
    True
    """
    fields = _FIELDS.findall("," + line)
    return fields if ",".join(fields) == line else None


def unquoted(field: str) -> str | None:
    """The value of a field: an empty field is null, empty quotes are an empty text."""
    if field[:1] == '"':
        return field[1:-1].replace('""', '"')
    return field or None


def _equal(lines: Lines, text: bytes) -> Bools:
    """Which lines equal a text."""
    equal = (lines.ends - lines.starts) == len(text)
    for number in np.flatnonzero(equal):
        equal[number] = lines.line(number) == text
    result: Bools = equal
    return result


def _plain(lines: Lines, width: int) -> Bools:
    """Which lines Arrow splits into ``width`` fields as ``split`` does."""
    data = np.frombuffer(lines.data, np.uint8)
    plain = _of_utf8(lines)
    commas = np.flatnonzero(data == _COMMA)
    if b"\r" in lines.data:
        # a line end to Arrow; those at the end of a line are not part of it
        returns = np.flatnonzero(data == _CR)
        plain &= np.searchsorted(returns, lines.ends) == np.searchsorted(returns, lines.starts)
    if _CUT in lines.data:
        plain &= data[lines.starts] != _CUT[0]
    if b'"' in lines.data:
        quotes = np.flatnonzero(data == _QUOTE)
        first = np.searchsorted(quotes, lines.starts)
        count = np.searchsorted(quotes, lines.ends) - first
        quoted = np.flatnonzero(count)
        if len(quoted):
            # the quotes of these lines, and the number of each in its line
            own = quotes[_ranges(first[quoted], count[quoted])]
            line = np.repeat(quoted, count[quoted])
            rank = _ranges(np.zeros(len(quoted), np.int64), count[quoted])
            bad = _misplaced(data, lines, own, line, rank)
            plain[line[bad]] = False
            plain[quoted[count[quoted] % 2 == 1]] = False
            # commas within quotes separate nothing
            of_comma = np.searchsorted(lines.starts, commas, "right") - 1
            before = np.searchsorted(quotes, commas) - first[np.maximum(of_comma, 0)]
            commas = commas[before % 2 == 0]
    separators = np.searchsorted(commas, lines.ends) - np.searchsorted(commas, lines.starts)
    result: Bools = plain & (separators == width - 1)
    return result


def _misplaced(data: Any, lines: Lines, quotes: Any, line: Any, rank: Any) -> Bools:
    """Which quotes neither begin nor end a field, nor are half of a doubled one."""
    opening = rank % 2 == 0
    at_start = quotes == lines.starts[line]
    at_end = quotes + 1 == lines.ends[line]
    before = data[np.maximum(quotes, 1) - 1]
    after = data[np.minimum(quotes + 1, len(data) - 1)]
    begins = at_start | (before == _COMMA) | ((before == _QUOTE) & (rank > 0))
    ends = at_end | (after == _COMMA) | (after == _QUOTE)
    result: Bools = np.where(opening, ~begins, ~ends)
    return result


def _ranges(starts: Any, counts: Any) -> Any:
    """``start, start + 1, ...`` for each start, as many as its count."""
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
                valid[number] = _is_utf8(line)
    return valid


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


def _by_arrow(lines: Lines, group: FileGroup, file: InputFile) -> CellBatch:
    names = [str(number) for number in range(1, group.width + 1)]
    positions = sorted({column.position for column in group.columns})
    text = lines.data[lines.starts[0] : lines.ends[-1]]
    alone = len(text) - int((lines.ends - lines.starts).sum())
    if alone not in (len(lines) - 1, 2 * (len(lines) - 1)):  # other lines are between these
        text = b"\n".join(lines.line(number) for number in range(len(lines)))
    text += b"\n"  # without it an empty last field after a quoted one is no null to Arrow
    table = pc_csv.read_csv(
        pa.BufferReader(text),
        pc_csv.ReadOptions(column_names=names, block_size=max(1, len(text)), use_threads=False),
        pc_csv.ParseOptions(newlines_in_values=False, ignore_empty_lines=True),
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
            f"{file.path}: Arrow reads {table.num_rows} rows in a block of {len(lines)} lines; "
            "ingest the file with --engine flink"
        )
    cells = {int(name): table.column(name).combine_chunks() for name in table.column_names}

    def raw(rows: Sequence[int]) -> list[str]:
        return [decoded(lines.line(row)) for row in rows]

    return _batch(len(lines), cells, group.columns, raw, str(file.path), [])


def _one_by_one(lines: Lines, group: FileGroup, file: InputFile) -> CellBatch:
    broken: list[tuple[str, str, str | None]] = []
    kept: list[str] = []
    rows: list[list[str]] = []
    for number in range(len(lines)):
        line = lines.line(number)
        text = decoded(line)
        fields = split(text)
        if (long := too_long(text)) is not None:
            broken.append((*long, text))
        elif fields is None:
            detail = (
                "a quote is not closed, or text follows a closed one "
                "(a value cannot contain a line break)"
            )
            broken.append((UNREADABLE, detail, text))
        elif len(fields) != group.width:
            reason = TOO_FEW_COLUMNS if len(fields) < group.width else TOO_MANY_COLUMNS
            broken.append((reason, f"expected {group.width} columns, got {len(fields)}", text))
        elif not _is_utf8(line):
            broken.append((UNREADABLE, "not UTF-8", text))
        else:
            kept.append(text)
            rows.append(fields)
    cells = {
        column.position: pa.array(
            [unquoted(fields[column.position - 1]) for fields in rows], pa.string()
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
    found = {column.name: text_column(cells[column.position], column.bare) for column in columns}
    return CellBatch(rows, found, raw, origin, broken)
