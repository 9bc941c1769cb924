"""JSON lines as cells: the text of each key's value, with all digits of numbers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa

from paimon_features.ingest.cells.cells import CellBatch, text_column
from paimon_features.ingest.cells.java_text import utf16
from paimon_features.ingest.cells.lines import decoded, split_lines, too_long
from paimon_features.ingest.input_columns import FileGroup
from paimon_features.ingest.input_files import InputFile
from paimon_features.lake.events.rejects import UNREADABLE


class WrittenNumber(str):
    """A number as it is written."""

    __slots__ = ()


def _no_json(name: str) -> Any:
    raise ValueError(f"{name} is valid in Python, but not in JSON")


def short_number(written: str) -> WrittenNumber:
    """Return a number as it is written; ValueError if it has more digits than Flink reads."""
    if len(written) > _MOST_DIGITS and sum(map(str.isdigit, written)) > _MOST_DIGITS:
        raise ValueError(f"a number of more than {_MOST_DIGITS:,} digits")
    return WrittenNumber(written)


_MOST_DIGITS = 1_000
"""Digits of a number; Flink's parser of JSON rejects longer ones."""
_DECODER = json.JSONDecoder(
    parse_int=WrittenNumber, parse_float=WrittenNumber, parse_constant=_no_json
)
_DECODER_OF_LONG_TEXTS = json.JSONDecoder(
    parse_int=short_number, parse_float=short_number, parse_constant=_no_json
)


def json_batches(data: bytes, group: FileGroup, file: InputFile) -> list[CellBatch]:
    """Return the rows of complete lines of JSON; blank lines are skipped."""
    lines = split_lines(data)
    fields = list(dict.fromkeys(column.field for column in group.columns))
    cells: dict[str, list[str | None]] = {field: [] for field in fields}
    appends = [(field, cells[field].append) for field in fields]
    broken: list[tuple[str, str, str | None]] = []
    kept: list[str] = []
    for number in range(len(lines)):
        text, row, problem = read_line(lines.line(number))
        if row is None:
            if problem is not None:
                broken.append((*problem, text))
            continue
        kept.append(text)
        for field, append in appends:
            value = row.get(field)
            if type(value) is WrittenNumber:
                append(number_text(value))
            else:
                append(value if value is None or type(value) is str else cell_text(value))
    columns = {
        column.name: text_column(pa.array(cells[column.field], pa.string()), column.bare)
        for column in group.columns
    }

    def raw(rows: Sequence[int]) -> list[str]:
        return [kept[row] for row in rows]

    return [CellBatch(len(kept), columns, raw, str(file.path), broken)]


def read_line(line: bytes) -> tuple[str, dict[str, Any] | None, tuple[str, str] | None]:
    """Return the text of a line, its object, or reason and detail why it is none: neither if
    blank."""
    try:
        text, valid = line.decode(), True
    except UnicodeDecodeError:
        text, valid = decoded(line), False
    row = _object(text)
    if row is None or not valid:
        return text, None, _problem(text, row) if text.strip(" ") else None
    if "\\u" in text and has_half_character(row):
        detail = "an escape \\ud800 to \\udfff without its other half is not a character"
        return text, None, (UNREADABLE, detail)
    return text, row, None


def _object(text: str) -> dict[str, Any] | None:
    """Return the object that a text is, None if it is none."""
    try:
        decoder = _DECODER if len(text) <= _MOST_DIGITS else _DECODER_OF_LONG_TEXTS
        row = decoder.decode(text)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def _problem(text: str, row: dict[str, Any] | None) -> tuple[str, str]:
    if (long := too_long(text)) is not None:
        return long
    return UNREADABLE, "not one JSON object" if row is None else "not UTF-8"


def has_half_character(row: dict[str, Any]) -> bool:
    try:
        _nested(row).encode()
    except UnicodeEncodeError:
        return True
    return False


def cell_text(value: Any) -> str | None:
    """Return the text of a value; numbers as they are written, lists and objects in JSON."""
    if value is None or type(value) is str:
        return value
    return _nested(value) if isinstance(value, dict | list) else _scalar(value)


def number_text(written: str) -> str:
    """Return a number as Java's BigDecimal writes it: as it is written, but for exponents.

    >>> [number_text(text) for text in ("1.50", "1e3", "-0", "-0.0", "0.0000001")]
    ['1.50', '1E+3', '0', '0.0', '1E-7']
    """
    if written[0] != "-" and not ("e" in written or "E" in written or written[:7] == "0.00000"):
        return written
    number = written if written.lstrip("-").isdigit() else str(Decimal(written))
    # a BigDecimal has no negative zero
    return number[1:] if number[0] == "-" and not Decimal(written) else number


def _scalar(value: Any) -> str:
    """Return a value in JSON that contains no other one."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, WrittenNumber):
        return number_text(value)
    return json.dumps(value, ensure_ascii=False)


def _nested(value: Any) -> str:
    """Return an object or a list in JSON without blanks.

    No recursion, as a text may be very deep.
    """
    written: list[str] = []
    # what is left to write, last first: values, and (text,) for punctuation
    left: list[Any] = [value]
    while left:
        item = left.pop()
        if isinstance(item, tuple):
            written.append(item[0])
        elif isinstance(item, dict):
            left.append(("}",))
            # sorted, as Flink writes them
            for number, key in enumerate(sorted(item, key=utf16, reverse=True), 1 - len(item)):
                comma = "," if number else ""
                left += [item[key], (f"{comma}{_scalar(key)}:",)]
            left.append(("{",))
        elif isinstance(item, list):
            left.append(("]",))
            for number, element in enumerate(reversed(item), 1 - len(item)):
                left += [element, ("," if number else "",)]
            left.append(("[",))
        else:
            written.append(_scalar(item))
    return "".join(written)
