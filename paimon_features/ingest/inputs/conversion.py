"""Cells of a file as texts and values that ``ingest`` reads: local numbers, times and units.

What cannot be converted stays as it is written, so that ``ingest`` rejects the row and shows it; a
text that ``ingest`` would read in another way is marked, so that it is rejected as well.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from paimon_features.core.configuration.input_settings import TIME_UNITS, InputSettings
from paimon_features.core.errors import ConfigurationError
from paimon_features.core.process.closeable import Closeable
from paimon_features.core.times.utc_ms import floor_times
from paimon_features.core.types.foreign_types import is_plain
from paimon_features.core.types.schema import DataType
from paimon_features.definitions import EventSource
from paimon_features.ingest.inputs.time_texts import DateOrders, TimeTexts, in_zone, naive_times

_UNREADABLE = pa.list_(pa.int8())
"""Stands for types that no column of a source reads, such as unions: Parquet lacks some of them."""
_INTEGER_LIKE = r"^[+-]?[0-9]+\.?0*$"
_MILLISECONDS = r"^[0-9]{13}$"
"""Numbers of this length are milliseconds also next to times of a format, which none has."""
_NUMBER_LIKE = r"^[+-]?[0-9]*\.?[0-9]*(?:[eE][+-]?[0-9]+)?$"
_EPOCH = r"^(?P<sign>[+-]?)(?P<whole>[0-8][0-9]{18}|[0-9]{1,18})(?:\.(?P<fraction>[0-9]*))?$"
_NEVER_MS = 2**63 - 1
"""Stands for numbers beyond 64 bits of milliseconds: it is rejected as out of range."""
STYLE = (".", "")
"""The decimal and thousands characters of numbers that ``ingest`` reads as they are."""


class CellConverter(Closeable):
    """Converts batches by the settings of a source; a context manager.

    ``columns`` maps columns of the file to columns of the source with their types; ``times`` are
    those columns of the file that are times of events or versions.
    """

    def __init__(
        self,
        settings: InputSettings,
        columns: Mapping[str, tuple[str, DataType]],
        times: Collection[str],
    ) -> None:
        self.settings, self.columns, self.times = settings, columns, times
        self._parsers: dict[str, TimeTexts] = {}
        self._orders: dict[str, DateOrders] = {}

    def close(self) -> None:
        for parser in self._parsers.values():
            parser.close()

    @classmethod
    def of_source(
        cls, settings: InputSettings, source: EventSource, fields: Mapping[str, str]
    ) -> CellConverter:
        """Return a converter for a source whose columns have these names in the file.

        Raises
        ------
        ConfigurationError
            If a column of the file is read as values of two types.
        """
        columns: dict[str, tuple[str, DataType]] = {}
        for name, kind in source.schema.items():
            if name not in fields:
                continue
            earlier, other = columns.setdefault(fields[name], (name, kind))
            same = other == kind and settings.of_column(earlier) == settings.of_column(name)
            if not (same or settings.is_default):
                raise ConfigurationError(
                    f"columns {earlier!r} and {name!r} are both read from {fields[name]!r}, as "
                    f"{other!r} and {kind!r}; converted files have one value for each cell: leave "
                    "one of them out, and derive it in an expression"
                )
        times = {fields[name] for name in source.time_columns if name in fields}
        return cls(settings, columns, times)

    @property
    def has_two_orders(self) -> bool:
        """Whether a text showed that a column has day and month in another order than assumed.

        Then the rows are to be converted again, after ``use_orders``: texts that could be either
        are rejected.
        """
        return any(orders.changed for orders in self._orders.values())

    def use_orders(self) -> None:
        """Convert by all that the texts so far have shown."""
        for orders in self._orders.values():
            orders.decide()

    def convert(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch with the columns of the source converted; its other columns are left
        out.

        A column that the batch lacks is null: of a key that no object of it has.
        """
        cells = [
            self._cells(batch.column(name), name)
            if name in batch.schema.names
            else pa.nulls(batch.num_rows, pa.string())
            for name in self.columns
        ]
        return pa.RecordBatch.from_arrays(cells, names=list(self.columns))

    def _cells(self, cells: pa.Array, field: str) -> pa.Array:
        name, kind = self.columns[field]
        settings = self.settings.of_column(name)
        is_time = field in self.times
        if pa.types.is_nested(cells.type) or not is_plain(cells.type):
            return pa.nulls(len(cells), _UNREADABLE)
        if pa.types.is_string(cells.type):
            return self._text(cells, field, kind, settings)
        if pa.types.is_timestamp(cells.type):
            return _zoned(cells, settings.time_zone)
        if pa.types.is_date(cells.type) and is_time:
            return _zoned(floor_times(cells), settings.time_zone)
        if is_time and settings.time_unit != "ms":
            return _milliseconds(cells, settings.time_unit)
        if is_time and settings.time_format and pa.types.is_integer(cells.type):
            return self._text(cells.cast(pa.string()), field, kind, settings)  # 20101201
        if pa.types.is_uint64(cells.type):
            return cells.cast(pa.decimal128(20, 0))  # some are no int64: such a row is rejected
        if pa.types.is_unsigned_integer(cells.type):
            return cells.cast(pa.int64())
        if pa.types.is_decimal256(cells.type) and not kind.is_float:
            return _decimal_texts(cells)
        if pa.types.is_decimal256(cells.type) or pa.types.is_float16(cells.type):
            return cells.cast(pa.float64())
        return cells

    def _text(
        self, cells: pa.Array, field: str, kind: DataType, settings: InputSettings
    ) -> pa.Array:
        is_time = field in self.times
        if settings.nulls:
            bare = cells if kind.text == "string" else pc.utf8_trim_whitespace(cells)
            empty = pc.is_in(bare, pa.array(settings.nulls))
            cells = pc.if_else(empty, pa.scalar(None, pa.string()), cells)
        if is_time or kind.text in ("timestamp", "date"):
            return self._times(cells, field, kind, settings)
        style = (settings.decimal, settings.thousands)
        if kind.is_numeric and style != STYLE:
            numbers, is_number = plain_numbers(cells, *style)
            why = f"expected numbers with decimal {style[0]!r}"
            return _refused(numbers, pc.invert(is_number), _NUMBER_LIKE, why)
        return cells

    def _times(
        self, cells: pa.Array, field: str, kind: DataType, settings: InputSettings
    ) -> pa.Array:
        """Return texts of times as ISO 8601 in UTC, or as milliseconds."""
        is_time, is_day = field in self.times, kind.text == "date"
        zone, forms = settings.time_zone, settings.time_format
        left = pc.is_valid(cells)
        if forms:
            orders = self._orders.setdefault(field, DateOrders(forms))
            parser = self._parsers.setdefault(zone, TimeTexts(zone))
            times, doubtful = orders.parse(parser, cells, is_day)
            if pc.any(doubtful).as_py():
                why = "the order of day and month is not certain"
                cells = pc.if_else(doubtful, _marked(cells, why), cells)
            cells = pc.coalesce(_iso(times, is_day), cells)
            left = pc.and_(left, times.is_null())
        if zone != "UTC" and not is_day:
            times = naive_times(cells)  # those that a format read end with Z
            cells = pc.coalesce(_iso(in_zone(times, zone), False), cells)
            left = pc.and_(left, times.is_null())
        if is_time and settings.time_unit != "ms":
            milliseconds = _text_milliseconds(cells, settings.time_unit)
            cells = pc.if_else(pc.and_(left, milliseconds.is_valid()), milliseconds, cells)
            left = pc.and_(left, milliseconds.is_null())
        elif not forms:
            return cells  # other numbers are milliseconds
        else:
            left = pc.and_(left, pc.invert(pc.match_substring_regex(cells, _MILLISECONDS)))
        expected = " or ".join(map(repr, forms)) or f"{settings.time_unit} since 1970"
        return _refused(cells, left, _INTEGER_LIKE, f"expected times like {expected}")


def _marked(cells: pa.Array, why: str) -> pa.Array:
    return pc.binary_join_element_wise(cells, f" ({why})", "")


def _refused(cells: pa.Array, mask: pa.Array, pattern: str, why: str) -> pa.Array:
    """Mark texts that ``ingest`` would read in another way than the file means them."""
    bare = pc.utf8_trim_whitespace(cells)
    bad = pc.and_(mask, pc.match_substring_regex(bare, pattern))
    bad = pc.and_(pc.fill_null(bad, False), pc.not_equal(pc.fill_null(bare, ""), ""))
    return pc.if_else(bad, _marked(cells, why), cells) if pc.any(bad).as_py() else cells


def _iso(times: pa.Array, is_day: bool) -> pa.Array:
    """Return times in UTC as texts."""
    return pc.strftime(floor_times(times), "%Y-%m-%d" if is_day else "%Y-%m-%dT%H:%M:%SZ")


def plain_numbers(cells: pa.Array, decimal: str, thousands: str) -> tuple[pa.Array, pa.Array]:
    """Return numbers with a decimal point and no separators of thousands, and which texts are
    numbers.

    >>> numbers, is_number = plain_numbers(pa.array(["1.234,5", "-7", "1.23,4", None]), ",", ".")
    >>> numbers.to_pylist(), is_number.to_pylist()
    (['1234.5', '-7', '1.23,4', None], [True, True, False, None])
    """
    bare = pc.utf8_trim_whitespace(cells)
    matching = pc.match_substring_regex(bare, number_pattern(decimal, thousands))
    numbers = bare
    if thousands:
        for letter in "\u00a0\u202f " if thousands in " \u00a0\u202f" else thousands:
            numbers = pc.replace_substring(numbers, letter, "")
    if decimal == ",":
        numbers = pc.replace_substring(numbers, ",", ".")
    return pc.if_else(matching, numbers, cells), matching


def number_pattern(decimal: str, thousands: str) -> str:
    """Return a regular expression of numbers that are written so, with groups of three digits."""
    point = re.escape(decimal)
    whole = "[0-9]+"
    if thousands:
        letter = "[ \u00a0\u202f]" if thousands in " \u00a0\u202f" else re.escape(thousands)
        whole = rf"(?:[0-9]{{1,3}}(?:{letter}[0-9]{{3}})+|[0-9]+)"
    return rf"^[+-]?(?:{whole}(?:{point}[0-9]*)?|{point}[0-9]+)(?:[eE][+-]?[0-9]+)?$"


def _zoned(cells: pa.Array, zone: str) -> pa.Array:
    """Return times without a zone are of that of the settings."""
    return cells if cells.type.tz is not None else in_zone(cells, zone)


def _decimal_texts(cells: pa.Array) -> pa.Array:
    """Return texts of decimals of more digits than a copy can store, with all of them."""
    written = [None if value is None else format(value, "f") for value in cells.to_pylist()]
    return pa.array(written, pa.string())


def _milliseconds(cells: pa.Array, unit: str) -> pa.Array:
    """Return numbers of a unit as milliseconds; finer ones are rounded down."""
    mask = np.asarray(cells.is_null()) if cells.null_count else None
    plain: Any = cells.fill_null(0).to_numpy(zero_copy_only=False)
    if plain.dtype.kind == "f":
        # to the microsecond, which is what a double has of a time in seconds
        exact = np.round(plain.astype(np.float64) * (TIME_UNITS[unit] / 1e3))
        fits = np.abs(exact) < 2.0**63
        milliseconds = np.where(fits, exact, 0).astype(np.int64) // 1_000
    elif unit == "s":
        fits = np.abs(plain.astype(np.float64)) < 2.0**63 / 1_000
        milliseconds = np.where(fits, plain, 0).astype(np.int64) * 1_000
    else:
        fits = plain <= _NEVER_MS
        milliseconds = np.where(fits, plain, 0).astype(np.int64) // (1_000_000 // TIME_UNITS[unit])
    return pa.array(np.where(fits, milliseconds, _NEVER_MS), pa.int64(), mask=mask)


def _text_milliseconds(cells: pa.Array, unit: str) -> pa.Array:
    """Return texts of numbers of a unit as texts of milliseconds, rounded down, else null.

    >>> _text_milliseconds(pa.array(["1.9999999", "-0.0001", "x"]), "s").to_pylist()
    ['1999', '-1', None]
    """
    parts = pc.extract_regex(pc.utf8_trim_whitespace(cells), _EPOCH)
    is_number = parts.is_valid()
    whole = pc.if_else(is_number, parts.field("whole"), "0").cast(pa.int64()).to_numpy()
    fraction = pc.fill_null(pc.if_else(is_number, parts.field("fraction"), "0"), "")
    if unit == "s":
        is_number = pc.and_(is_number, pa.array(whole <= _NEVER_MS // 1_000 - 1))
        first = pc.utf8_slice_codeunits(pc.utf8_rpad(fraction, 3, "0"), 0, 3).cast(pa.int64())
        milliseconds = np.where(np.asarray(is_number), whole, 0) * 1_000 + first.to_numpy()
        rest = pc.match_substring_regex(pc.utf8_slice_codeunits(fraction, 3), "[1-9]")
        more = np.asarray(rest)
    else:
        per_ms = 1_000_000 // TIME_UNITS[unit]
        milliseconds, more = whole // per_ms, whole % per_ms > 0
        more = more | np.asarray(pc.match_substring_regex(fraction, "[1-9]"))
    below = np.asarray(pc.fill_null(pc.equal(parts.field("sign"), "-"), False))
    milliseconds = np.where(below, -milliseconds - more, milliseconds)
    return pa.array(milliseconds, pa.int64(), mask=~np.asarray(is_number)).cast(pa.string())
