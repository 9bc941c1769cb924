"""A column of texts as values.

Arrow's casts are fast and accept nearly the texts of ``texts``, the definition. Each is used where
it cannot differ, on as many cells at once as possible; where it raises, the cells are halved, and
the few that are left are read one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from paimon_features.core.types.schema import DataType
from paimon_features.core.windows import DAY_MS, MAX_TIME_MS, MIN_TIME_MS
from paimon_features.ingest.cells.converted import Converted, numbers_of
from paimon_features.ingest.cells.texts import UnusableError, reader_of
from paimon_features.lake.events.rejects import NOT_FINITE

_FEW = 256
"""Cells that are read one by one if a cast does not accept all of them."""

_REPEATED = 8
"""Texts that occur so often, on average, are read one by one: 17850.0 is no integer to Arrow."""


_DAY = "[0-9]{4}-[0-9]{2}-[0-9]{2}"
_CLOCK = r"[ T][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]+)?)?"
_LOCAL = rf"^{_DAY}(?:{_CLOCK})?$"
_ZONED = rf"^{_DAY}{_CLOCK}(?:Z|[+-][0-9]{{2}}(?::?[0-9]{{2}})?)$"


def text_values(cells: pa.Array, kind: DataType, is_time: bool = False) -> Converted:
    """Return the values of texts; surrounding blanks are ignored in all types but strings.

    ``is_time``: the column is an Int64 time of events or versions, so texts of times are read as
    well.
    """
    if kind.text == "string":
        return Converted(cells)
    cast = _CASTS.get("time" if is_time else kind.text.partition("(")[0])
    return Converted.concat(_convert(cells, kind, is_time, cast))


def _convert(
    cells: pa.Array,
    kind: DataType,
    is_time: bool,
    cast: Callable[[pa.Array, DataType], pa.Array | None] | None,
) -> list[Converted]:
    values = None if cast is None else cast(cells, kind)
    if values is not None:
        return [Converted(values)]
    if cast is None or len(cells) <= _FEW:
        return [_one_by_one(cells.dictionary_encode(), kind, is_time)]
    encoded = cells.dictionary_encode()
    if len(encoded.dictionary) * _REPEATED <= len(cells):
        return [_one_by_one(encoded, kind, is_time)]
    middle = len(cells) // 2
    return [
        *_convert(cells.slice(0, middle), kind, is_time, cast),
        *_convert(cells.slice(middle), kind, is_time, cast),
    ]


def _one_by_one(encoded: pa.DictionaryArray, kind: DataType, is_time: bool) -> Converted:
    """Return each different text by the definition."""
    read = reader_of(kind, is_time)
    values: list[Any] = []
    reasons: list[str | None] = []
    for text in encoded.dictionary.to_pylist():
        bare = text.strip(" ")
        value, reason = None, None
        if bare:
            try:
                value = read(bare)
            except UnusableError as unusable:
                reason = str(unusable)
        values.append(value)
        reasons.append(reason)
    indices = encoded.indices
    converted = _array(values, kind).take(indices)
    # the last entry is that of nulls
    codes = np.array([0 if r is None else 2 if r == NOT_FINITE else 1 for r in [*reasons, None]])
    of_rows = codes[pc.fill_null(indices, len(reasons)).to_numpy(zero_copy_only=False)]
    return Converted.of(converted, of_rows == 1, of_rows == 2)


def _array(values: list[Any], kind: DataType) -> pa.Array:
    if kind.text in ("timestamp", "date"):
        storage = pa.int64() if kind.text == "timestamp" else pa.int32()
        return pa.array(values, storage).cast(kind.arrow)
    return pa.array(values, kind.arrow)


def _has(cells: pa.Array, letters: bytes) -> bool:
    """Return True if one of these bytes is in the texts (or between those of a slice)."""
    offsets, data = cells.buffers()[1], cells.buffers()[2]
    if data is None:
        return False
    bounds = np.frombuffer(offsets, np.int32)
    text = np.frombuffer(data, np.uint8)[bounds[cells.offset] : bounds[cells.offset + len(cells)]]
    return any(bool((text == letter).any()) for letter in letters)


def _cast(cells: pa.Array, kind: pa.DataType) -> pa.Array | None:
    try:
        return cells.cast(kind)
    except pa.ArrowInvalid:
        return None


def _integers(cells: pa.Array, kind: DataType) -> pa.Array | None:
    # 0x10 is a number to Arrow
    return None if _has(cells, b"xX") else _cast(cells, kind.arrow)


def _floats(cells: pa.Array, kind: DataType) -> pa.Array | None:
    values = _cast(cells, kind.arrow)
    if values is None or not np.isfinite(numbers_of(values)).all():
        return None  # also texts like nan
    return values


def _decimals(cells: pa.Array, kind: DataType) -> pa.Array | None:
    # 1e2 is a decimal to Arrow
    return None if _has(cells, b"eE") else _cast(cells, kind.arrow)


def written_times(cells: pa.Array) -> pa.Array | None:
    """Return the times of texts like ``2010-12-01T08:26:30.125Z``, int64 ms; null where a cell is
    null.

    None if a cell is anything else (also an empty text, blanks around a time, or a day that does
    not exist). Digits after the milliseconds are truncated.

    >>> written_times(pa.array(["1970-01-02", None, "1969-12-31 23:59:59.9999"])).to_pylist()
    [86400000, None, -1]
    >>> written_times(pa.array(["1970-01-02", "86400000"])) is None
    True
    """
    if not _has(cells, b"-"):
        return None
    texts = pc.ascii_upper(cells)
    local = pc.match_substring_regex(texts, _LOCAL)
    zoned = pc.match_substring_regex(texts, _ZONED)
    if not pc.all(pc.or_(local, zoned)).as_py():
        return None
    if pc.any(pc.match_substring_regex(texts, r"\.[0-9]{4}")).as_py():
        texts = pc.replace_substring_regex(texts, r"(\.[0-9]{3})[0-9]+", r"\1")
    parts = []
    # Arrow has a year 0, which an offset can lead out of
    for mask, zone, first in (local, None, MIN_TIME_MS), (zoned, "UTC", MIN_TIME_MS + DAY_MS):
        times = _cast(pc.if_else(mask, texts, None), pa.timestamp("ms", zone))
        if times is None or (numbers_of(times.cast(pa.int64())) < first).any():
            return None
        parts.append(times.cast(pa.int64()))
    return pc.coalesce(*parts)


def _event_times(cells: pa.Array, kind: DataType) -> pa.Array | None:
    times = written_times(cells)
    return _integers(cells, kind) if times is None else times


def _timestamps(cells: pa.Array, kind: DataType) -> pa.Array | None:
    times = written_times(cells)
    if times is None:
        times = None if _has(cells, b"xX") else _cast(cells, pa.int64())
        if times is None:
            return None
    numbers = numbers_of(times)
    if (numbers < MIN_TIME_MS).any() or (numbers > MAX_TIME_MS).any():
        return None
    return times.cast(kind.arrow)


_CASTS: dict[str, Callable[[pa.Array, DataType], pa.Array | None]] = {
    "int32": _integers,
    "int64": _integers,
    "float32": _floats,
    "float64": _floats,
    "decimal": _decimals,
    "time": _event_times,
    "timestamp": _timestamps,
}
"""Fast conversions: all cells as values, or None if one of them needs a closer look."""
