"""The dialect of a text file, found in its beginning; decisions that could differ are notes."""

from __future__ import annotations

import codecs
import re
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from paimon_features.errors import ConfigurationError, JobError
from paimon_features.input_settings import InputSettings
from paimon_features.local.duckdb_engine import DuckDBEngine
from paimon_features.local.inputs.opening import reported, text_bytes

HEAD_BYTES = 4 << 20
"""Bytes of a text file in which its dialect is looked for."""
_BOMS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_NULLS = ("NA", "N/A", "NULL", "null", "NaN", "nan", "None", "\\N", "-", "?")


def sniff(path: Path, given: InputSettings, kept: set[str], notes: list[str]) -> InputSettings:
    """The settings with what the beginning of a CSV file shows; entries in ``kept`` stay.

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
    found = _sniffed(path, text)
    if found is None:
        notes.append("no dialect was recognised: read as comma-separated (--input delimiter=...)")
        return settings
    if "delimiter" not in kept and found["Delimiter"] not in ("", "(empty)"):
        settings = replace(settings, delimiter=found["Delimiter"])
    if "delimiter" not in kept:
        # broken rows mislead the search; a header of several names does not
        line = next((line for line in text.splitlines()[settings.skip :] if line.strip()), "")
        if settings.delimiter not in line:
            settings = replace(settings, delimiter=max(",;\t|", key=line.count))
    if "quote" not in kept and found["Quote"] not in ("", "(empty)"):
        settings = replace(settings, quote=found["Quote"])
    # a broken row at the end misleads the search: it would skip all others
    if "skip" not in kept and 0 < found["SkipRows"] <= text.count("\n") // 2:
        settings = replace(settings, skip=int(found["SkipRows"]))
        notes.append(f"the first {settings.skip} lines are skipped (--input skip=0 reads them)")
    if "header" not in kept and not settings.names and not found["HasHeader"]:
        settings = replace(settings, header=not _without_header(text, settings))
        if not settings.header:
            notes.append(
                "the first line looks like data, so columns are named column_1, column_2, ... "
                "(--input header=true, or --input names=a,b,c)"
            )
    if "line_breaks" not in kept:
        settings = replace(settings, line_breaks=_has_line_breaks(text, settings))
    return settings


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
            f"{path}: it contains zero bytes, so it is no text file; if it is one, name its "
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
    """Whether the first line has a number or an empty field: names of columns are neither."""
    lines = text.splitlines()[settings.skip :]
    fields = _fields(lines[0], settings) if lines else []
    data = [f for f in fields if not f.strip() or re.fullmatch(r"[+-]?[0-9][0-9.,:/ -]*", f)]
    return bool(data)


def _has_line_breaks(text: str, settings: InputSettings) -> bool:
    """Whether a line ends inside quotes: an odd number of them is before its end."""
    quotes = 0
    for line in text.splitlines(keepends=True)[:200_000]:
        quotes += line.count(settings.quote)
        if quotes % 2 and settings.quote in line:
            # an apostrophe within a text is no quote: it would have to follow a delimiter
            start = rf"(?:^|{re.escape(settings.delimiter)}){re.escape(settings.quote)}"
            if re.search(start, line):
                return True
            quotes = 0
    return False


def null_texts(values: list[str]) -> tuple[str, ...]:
    """Those of some texts that stand for no value in many files."""
    return tuple(text for text in _NULLS if text in values)
