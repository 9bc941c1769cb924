"""The dialect of a text file, found in its beginning; decisions that could differ are notes."""

from __future__ import annotations

import codecs
import re
import tempfile
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from paimon_features.core.configuration.input_settings import InputSettings
from paimon_features.core.errors import ConfigurationError, JobError
from paimon_features.ingest.inputs.csv_rows import CsvRows, dialect_of, has_only_returns
from paimon_features.ingest.inputs.opening import reported, text_bytes
from paimon_features.lake.duckdb_engine import DuckDBEngine

HEAD_BYTES = 4 << 20
"""Bytes of a text file in which its dialect is looked for."""
_BOMS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


def sniff(path: Path, given: InputSettings, kept: set[str], notes: list[str]) -> InputSettings:
    """Return the settings with what the beginning of a CSV file shows; entries in ``kept`` stay.

    Raises
    ------
    ConfigurationError
        For an empty file, or one that is no text.
    """
    with reported(path, "CSV"), text_bytes(path) as file:
        head = file.read(HEAD_BYTES)
    if not head.strip():
        raise ConfigurationError(f"{path}: it is empty; expected a header with names of columns")
    settings = given
    if "encoding" not in kept:
        settings = replace(settings, encoding=_encoding(path, head, notes))
    text = head.decode(settings.encoding, "replace").removeprefix("\ufeff")
    if len(head) == HEAD_BYTES:
        text = text[: text.rfind("\n") + 1] or text
    sniffed = _sniffed(path, text)
    if sniffed is None:
        notes.append("no dialect was recognised: read as comma-separated (--input delimiter=...)")
        return settings
    if "delimiter" not in kept and sniffed["Delimiter"] not in ("", "(empty)"):
        settings = replace(settings, delimiter=sniffed["Delimiter"])
    if "delimiter" not in kept:
        # broken rows mislead the search; a header of several names does not
        line = next((line for line in text.splitlines()[settings.skip :] if line.strip()), "")
        if settings.delimiter not in line:
            settings = replace(settings, delimiter=max(",;\t|", key=line.count))
    before = int(sniffed["SkipRows"]) if "skip" not in kept else 0
    if before and _are_no_rows(text.splitlines()[:before], settings):
        settings = replace(settings, skip=before)
        notes.append(f"the first {before} lines are skipped (--input skip=0 reads them)")
    settings, unread = _with_quotes(text, settings, kept, notes)
    if unread and before and not settings.skip:
        notes.append(
            f"line {before + 1} and others have another number of fields than the first one; if "
            f"the lines before it are not rows: --input skip={before}"
        )
    if "header" not in kept and not settings.names and not sniffed["HasHeader"]:
        settings = replace(settings, header=not _without_header(text, settings))
        if not settings.header:
            notes.append(
                "the first line looks like data, so columns are named column_1, column_2, ... "
                "(--input header=true, or --input names=a,b,c)"
            )
    return settings


def _are_no_rows(lines: list[str], settings: InputSettings) -> bool:
    """Return True if lines are before a header: rows of another number of fields are rejected
    instead."""
    widths = [len(_fields(line, settings)) if line.strip() else 0 for line in lines]
    if any(a == b > 1 for a, b in pairwise(width for width in widths if width)):
        return False
    last = max((n for n, width in enumerate(widths) if width > 1), default=None)
    return last is None or 0 in widths[last:]


def _with_quotes(
    text: str, settings: InputSettings, kept: set[str], notes: list[str]
) -> tuple[InputSettings, int]:
    """Return the quote, the escape and whether values have line breaks, by which most lines are
    rows.

    Also returns how many lines are in no row.
    """
    data = text.encode("utf-8", "replace")
    if has_only_returns(data):
        data = data.replace(b"\r", b"\n")
    for _ in range(settings.skip):
        data = data.partition(b"\n")[2]
    quotes = [settings.quote] if "quote" in kept else ['"', "'"]
    marks = [mark for mark in quotes if _begins_fields(text, mark, settings.delimiter)]
    tried = [replace(settings, quote=mark) for mark in dict.fromkeys([quotes[0], *marks])]
    if "line_breaks" not in kept and marks:
        tried = [replace(s, line_breaks=on) for s in tried for on in (False, True)]
    if "escape" not in kept and "\\" in text and "\\" not in (settings.delimiter, settings.quote):
        tried = [replace(s, escape=mark) for s in tried for mark in ("", "\\")]
    width = len(settings.names) or _width(data, tried[0])
    # of those that are alike the first: with fewer meanings of characters
    counts = [CsvRows(s, width, _ignore).count_bad(data) for s in tried]
    chosen = tried[counts.index(min(counts))]
    if "quote" not in kept and _is_around_values(data, "'", chosen):
        chosen = replace(chosen, quote="'")
    if chosen.escape:
        notes.append("a backslash within quotes is an escape (--input escape= reads it as it is)")
    return chosen, min(counts)


def _ignore(reason: str, detail: str, text: str) -> None:
    """Drop a row of a trial."""


def _begins_fields(text: str, mark: str, delimiter: str) -> bool:
    return (
        re.search(rf"(?:^|{re.escape(delimiter)}){re.escape(mark)}", text, re.MULTILINE) is not None
    )


def _width(data: bytes, settings: InputSettings) -> int:
    first = next((line for line in data.split(b"\n") if line.strip()), b"")
    text = first.decode("utf-8", "replace").rstrip("\r").removeprefix("\ufeff")
    return len(dialect_of(settings).split(text) or _fields(text, settings))


def _is_around_values(data: bytes, mark: str, settings: InputSettings) -> bool:
    """Return True if all values of a column are within a pair of marks, with nothing else in the
    way."""
    dialect = dialect_of(settings)
    lines = [line.decode("utf-8", "replace").rstrip("\r") for line in data.split(b"\n", 201)[1:201]]
    rows = [fields for fields in map(dialect.split, lines) if fields and len(fields) > 1]
    if dialect.quote == mark or len(rows) < 2:
        return False
    for column in zip(*rows, strict=False):
        values = [value for value in column if value]
        if len(values) > 1 and all(len(v) > 1 and v[0] == v[-1] == mark for v in values):
            return True
    return False


def _encoding(path: Path, head: bytes, notes: list[str]) -> str:
    for mark, name in _BOMS:
        if head.startswith(mark):
            return name
    # zero bytes are UTF-8, too, but no text has them
    if head.count(0) > len(head) // 100:
        for name, high in (("utf-16-le", head[1::2]), ("utf-16-be", head[::2])):
            if high.count(0) > 0.4 * len(head) / 2 and head.count(0) < 1.1 * high.count(0):
                return name
        raise ConfigurationError(
            f"{path}: it contains zero bytes, so it is not a text file; if it is one, name its "
            "encoding (--input encoding=utf-16-le)"
        )
    try:
        head.decode("utf-8")
        return "utf-8"
    except UnicodeDecodeError as error:
        if error.start >= len(head) - 4:  # a character that the end of the sample cuts
            return "utf-8"
    try:
        head.decode("cp1252")
    except UnicodeDecodeError as error:
        raise ConfigurationError(
            f"{path}: byte {error.start} is {head[error.start]:#04x}, which is neither UTF-8 nor "
            "cp1252; if it is a text file, name its encoding (--input encoding=latin-1)"
        ) from None
    notes.append("the text is not UTF-8: read as cp1252 (--input encoding=latin-2 for another)")
    return "cp1252"


def _sniffed(path: Path, text: str) -> dict[str, Any] | None:
    with tempfile.TemporaryDirectory() as folder, DuckDBEngine(threads=1) as engine:
        sample = Path(folder, "sample.csv")
        sample.write_text(text, "utf-8", newline="", errors="replace")
        name = str(sample).replace("'", "''")
        try:
            rows = engine.table(
                f"SELECT Delimiter, Quote, SkipRows, HasHeader FROM sniff_csv('{name}', "
                "strict_mode = false)",
                f"the dialect of {path}",
            ).to_pylist()
        except JobError:
            return None
    return dict(rows[0])


def _fields(line: str, settings: InputSettings) -> list[str]:
    import csv

    return next(csv.reader([line], delimiter=settings.delimiter, quotechar=settings.quote), [])


def _without_header(text: str, settings: InputSettings) -> bool:
    """Return True if the first line has a number or an empty field: names of columns are
    neither."""
    lines = text.splitlines()[settings.skip :]
    fields = _fields(lines[0], settings) if lines else []
    data = [f for f in fields if not f.strip() or re.fullmatch(r"[+-]?[0-9][0-9.,:/ -]*", f)]
    return bool(data)
