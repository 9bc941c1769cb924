"""Cells of a file as texts and values that ``ingest`` reads: local numbers, times and units.

What cannot be converted stays as it is written, so that ``ingest`` rejects the row and shows it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from paimon_features.definitions import EventSource
from paimon_features.foreign_types import is_plain
from paimon_features.input_settings import TIME_UNITS, InputSettings
from paimon_features.local.duckdb_engine import DuckDBEngine
from paimon_features.schema import DataType, Int64
from paimon_features.times import floor_times

_UNREADABLE = pa.list_(pa.int8())
"""Stands for types that no column of a source reads, such as unions: Parquet lacks some of them."""
_COMPACT = {"%Y%m%d": 8, "%Y%m%d%H%M": 12, "%Y%m%d%H%M%S": 14}
"""Formats without separators, which match texts of one length only."""


class CellConverter:
    """Converts batches by the settings of a source; a context manager.

    ``columns`` maps columns of the file to the types of the source's columns.
    """

    def __init__(self, settings: InputSettings, columns: Mapping[str, DataType], time: str) -> None:
        self.settings, self.columns, self.time = settings, columns, time
        self._times = TimeTexts(settings.time_zone)

    def __enter__(self) -> CellConverter:
        return self

    def __exit__(self, *_: object) -> None:
        self._times.close()

    @classmethod
    def of_source(
        cls, settings: InputSettings, source: EventSource, fields: Mapping[str, str]
    ) -> CellConverter:
        """For a source whose columns have these names in the file."""
        columns = {fields[name]: kind for name, kind in source.schema.items() if name in fields}
        return cls(settings, columns, fields.get(source.event_time, ""))

    def convert(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch with the columns of the source converted; its other columns are left out."""
        names = [name for name in batch.schema.names if name in self.columns]
        return pa.RecordBatch.from_arrays(
            [self._cells(batch.column(name), name) for name in names], names=names
        )

    def _cells(self, cells: pa.Array, name: str) -> pa.Array:
        kind = self.columns[name]
        if pa.types.is_nested(cells.type) or not is_plain(cells.type):
            return pa.nulls(len(cells), _UNREADABLE)
        if pa.types.is_string(cells.type):
            return self._text(cells, kind, name == self.time)
        if pa.types.is_timestamp(cells.type):
            return self._zoned(cells)
        if pa.types.is_date(cells.type) and name == self.time:
            return self._zoned(floor_times(cells))
        if name == self.time and self.settings.time_unit != "ms":
            return _milliseconds(cells, self.settings.time_unit)
        if name == self.time and self.settings.time_format and pa.types.is_integer(cells.type):
            return self._text(cells.cast(pa.string()), kind, True)  # 20101201
        if pa.types.is_uint64(cells.type):
            return cells.cast(pa.decimal128(20, 0))  # some are no int64: such a row is rejected
        if pa.types.is_unsigned_integer(cells.type):
            return cells.cast(pa.int64())
        if pa.types.is_decimal256(cells.type) or pa.types.is_float16(cells.type):
            return cells.cast(pa.float64())
        return cells

    def _text(self, cells: pa.Array, kind: DataType, is_time: bool) -> pa.Array:
        settings = self.settings
        if is_time or kind.text in ("timestamp", "date"):
            if settings.time_format or settings.time_zone != "UTC":
                return self._times.iso(cells, settings.time_format, date=kind.text == "date")
            if is_time and settings.time_unit != "ms":
                return _text_milliseconds(cells, settings.time_unit)
        elif kind.is_numeric and (settings.decimal, settings.thousands) != (".", ""):
            return plain_numbers(cells, settings.decimal, settings.thousands)
        return cells

    def _zoned(self, cells: pa.Array) -> pa.Array:
        """Times without a zone are of that of the settings."""
        if cells.type.tz is not None or self.settings.time_zone == "UTC":
            return cells
        return _in_utc(cells, self.settings.time_zone)


class TimeTexts:
    """Parses texts of times by DuckDB, whose ``strptime`` refuses a 31st of February."""

    def __init__(self, zone: str = "UTC") -> None:
        self.zone = zone
        self._engine: DuckDBEngine | None = None

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()

    def parse(self, cells: pa.Array, form: str) -> pa.Array:
        """``timestamp[us]`` in UTC, null where a text is not of this form."""
        if self._engine is None:
            self._engine = DuckDBEngine(threads=1)
        text = "trim(t)"
        if form.endswith("%z"):
            text = f"regexp_replace({text}, '[zZ]$', '+00:00')"
        rows = pa.table({"n": np.arange(len(cells)), "t": cells.cast(pa.string())})
        self._engine.add("__texts", rows)
        escaped = form.replace("'", "''")
        found = self._engine.table(
            f"SELECT n, CAST(try_strptime({text}, '{escaped}') AS TIMESTAMP) AS v, "
            f"length(trim(t)) AS l FROM __texts ORDER BY n",
            "times",
        )
        values = found.column("v").combine_chunks()
        bad = pc.less(pc.year(values), 1000 if "%Y" in form else 1)
        if form in _COMPACT:
            bad = pc.or_(bad, pc.not_equal(found.column("l").combine_chunks(), _COMPACT[form]))
        values = pc.if_else(pc.fill_null(bad, False), pa.scalar(None, values.type), values)
        if form.endswith("%z") or self.zone == "UTC":
            return values
        return _in_utc(values, self.zone)

    def matching(self, cells: pa.Array, forms: Sequence[str]) -> list[str]:
        """The forms of which at least one text is, without a closer look."""
        if self._engine is None:
            self._engine = DuckDBEngine(threads=1)
        self._engine.add("__texts", pa.table({"t": cells.cast(pa.string())}))
        counts = []
        for number, form in enumerate(forms):
            text = "trim(t)"
            if form.endswith("%z"):
                text = f"regexp_replace({text}, '[zZ]$', '+00:00')"
            escaped = form.replace("'", "''")
            counts.append(f"count(try_strptime({text}, '{escaped}')) AS c{number}")
        found = self._engine.table(f"SELECT {', '.join(counts)} FROM __texts", "times")
        return [f for n, f in enumerate(forms) if found.column(n)[0].as_py()]

    def iso(self, cells: pa.Array, forms: tuple[str, ...], *, date: bool = False) -> pa.Array:
        """The texts as ISO 8601 in UTC; those of no form as they are."""
        if self.zone != "UTC":
            forms = (*forms, *_ISO_FORMS)
        left = cells
        made = pa.nulls(len(cells), pa.timestamp("us"))
        for form in forms:
            if not left.null_count < len(left):
                break
            found = self.parse(left, form)
            made = pc.coalesce(made, found)
            left = pc.if_else(made.is_valid(), pa.scalar(None, pa.string()), left)
        milliseconds = floor_times(made)
        text = pc.strftime(milliseconds, "%Y-%m-%d" if date else "%Y-%m-%dT%H:%M:%SZ")
        return pc.coalesce(text, cells)


_ISO_FORMS = tuple(
    f"%Y-%m-%d{t}" for t in ("", " %H:%M", "T%H:%M", " %H:%M:%S", "T%H:%M:%S",
                             " %H:%M:%S.%f", "T%H:%M:%S.%f")
)  # fmt: skip


def plain_numbers(cells: pa.Array, decimal: str, thousands: str) -> pa.Array:
    """Texts of numbers with a decimal point and without separators of thousands.

    >>> plain_numbers(pa.array(["1.234,5", "-7", "1.23,4", None]), ",", ".").to_pylist()
    ['1234.5', '-7', '1.23,4', None]
    """
    pattern = number_pattern(decimal, thousands)
    bare = pc.utf8_trim_whitespace(cells)
    matching = pc.match_substring_regex(bare, pattern)
    made = bare
    if thousands:
        for letter in "\u00a0\u202f " if thousands in " \u00a0\u202f" else thousands:
            made = pc.replace_substring(made, letter, "")
    if decimal == ",":
        made = pc.replace_substring(made, ",", ".")
    return pc.if_else(matching, made, cells)


def number_pattern(decimal: str, thousands: str) -> str:
    """A regular expression of numbers that are written so, with groups of three digits."""
    point = re.escape(decimal)
    whole = "[0-9]+"
    if thousands:
        letter = "[ \u00a0\u202f]" if thousands in " \u00a0\u202f" else re.escape(thousands)
        whole = rf"(?:[0-9]{{1,3}}(?:{letter}[0-9]{{3}})+|[0-9]+)"
    return rf"^[+-]?(?:{whole}(?:{point}[0-9]*)?|{point}[0-9]+)(?:[eE][+-]?[0-9]+)?$"


def _in_utc(cells: pa.Array, zone: str) -> pa.Array:
    """Local times in UTC: of an hour that occurs twice the first, of one that does not exist the
    moment after it."""
    aware = pc.assume_timezone(cells, zone, ambiguous="earliest", nonexistent="latest")
    return aware.view(pa.timestamp(cells.type.unit))


def _milliseconds(cells: pa.Array, unit: str) -> pa.Array:
    """Numbers of a unit as milliseconds; finer ones are rounded down."""
    if pa.types.is_floating(cells.type):
        # to the microsecond, which is what a double has of a time in seconds
        exact = pc.round(pc.multiply(cells, TIME_UNITS[unit] / 1e3)).cast(pa.int64(), safe=False)
        return _floor_divide(exact, 1_000)
    whole = cells.cast(pa.int64())
    if unit == "s":
        bad = pc.greater(pc.abs(whole), (2**63 - 1) // 1_000)
        return pc.multiply(pc.if_else(bad, pa.scalar(None, pa.int64()), whole), 1_000)
    return _floor_divide(whole, 1_000_000 // TIME_UNITS[unit])


def _text_milliseconds(cells: pa.Array, unit: str) -> pa.Array:
    bare = pc.utf8_trim_whitespace(cells)
    whole = pc.match_substring_regex(bare, r"^[+-]?(?:[0-8]?[0-9]{18}|[0-9]{1,17})$")
    number = pc.match_substring_regex(bare, r"^[+-]?[0-9]{1,18}\.[0-9]*$")
    nothing = pa.scalar(None, pa.string())
    made = _milliseconds(pc.if_else(whole, bare, nothing).cast(pa.int64()), unit)
    broken = _milliseconds(pc.if_else(number, bare, nothing).cast(pa.float64()), unit)
    return pc.coalesce(made.cast(pa.string()), broken.cast(pa.string()), cells)


def _floor_divide(numbers: pa.Array, by: int) -> pa.Array:
    mask = np.asarray(numbers.is_null())
    plain: Any = numbers.fill_null(0).to_numpy(zero_copy_only=False)
    return pa.array(plain // by, Int64.arrow, mask=mask)
