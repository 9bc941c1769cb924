"""Paimon's fixed buckets: the bucket of a table that contains the rows of an entity.

A row's bucket is ``abs(hash % buckets)`` with truncated division, and the hash is Murmur3
(32 bit, seed 42) over the words of the bucket key as a Paimon ``BinaryRow``: a header and null
bits, eight bytes per column, then the strings longer than seven bytes, each padded to a word
of eight. Columns are hashed as a whole, without a loop over rows; where no column is a string, the
native core does it in a tenth of the time.

>>> import numpy as np
>>> from paimon_features.core.types.schema import Int64
>>> bucket_of([np.array([12346, 12347, 17850])], [Int64], 4).tolist()
[0, 1, 2]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from paimon_features.core._arrow import arrow_loaded, pa
from paimon_features.core.errors import RequestError
from paimon_features.core.hashing.murmur3 import Words32, absorb, finish
from paimon_features.core.native import CORE
from paimon_features.core.types.array_types import Bytes, Ints
from paimon_features.core.types.schema import DataType

_SEED = 42
_HEADER_BITS = 8
_INLINE_BYTES = 7
"""Strings up to this length are stored in the eight bytes of their column."""
_FEW_ROWS = 1_000
"""From here on Arrow is faster, where it is."""
_MOST_NATIVE = 1_024
"""Columns of a key that the native core takes."""
_LARGEST = 2**31 - 1
_STORED = {"bool": "<u1", "int32": "<i4", "int64": "<i8", "date": "<i4"}


def bucket_of(
    columns: Sequence[npt.NDArray[Any]], types: Sequence[DataType], num_buckets: int
) -> npt.NDArray[np.int32]:
    """Return the bucket of each row, shape ``(rows,)``, in ``[0, num_buckets)``.

    Parameters
    ----------
    columns
        The bucket key's columns in the table's order: integers, bools, dates as days since
        1970, strings as object arrays of ``str``. No nulls.
    types
        Their column types: bool, int32, int64, date or string.

    Raises
    ------
    RequestError
        For another type, a null, columns of different lengths, or no bucket.
    """
    if num_buckets < 1:
        raise RequestError(f"a table has at least one bucket, got {num_buckets}")
    if not columns or len(columns) != len(types):
        raise RequestError(f"{len(columns)} columns for {len(types)} types of a bucket key")
    rows = len(columns[0])
    if any(len(column) != rows for column in columns):
        raise RequestError(
            f"columns of a bucket key have different lengths: {[len(c) for c in columns]}"
        )
    if (
        CORE is not None
        and len(types) <= _MOST_NATIVE
        and num_buckets <= _LARGEST
        and all(is_fixed(kind) for kind in types)
    ):
        slots = [_fixed(column, kind) for column, kind in zip(columns, types, strict=True)]
        of_rows = np.ascontiguousarray(slots[0]) if len(slots) == 1 else np.stack(slots, axis=1)
        numbers = np.empty(rows, np.int32)
        CORE.buckets(of_rows, len(slots), num_buckets, numbers)
        return numbers
    data, offsets = _binary_rows(columns, types, rows)
    # Java's remainder takes the sign of the dividend
    hashes = _murmur3(data, offsets).astype(np.int64)
    buckets: npt.NDArray[np.int32] = np.abs(np.fmod(hashes, num_buckets)).astype(np.int32)
    return buckets


def is_fixed(kind: DataType) -> bool:
    """Return True if all values of a key column of this type take the same bytes."""
    return kind.text in _STORED


def _binary_rows(
    columns: Sequence[npt.NDArray[Any]], types: Sequence[DataType], rows: int
) -> tuple[Bytes, Ints]:
    """Return all rows one after another, and the start of each (with the end as the last
    offset)."""
    null_bytes = (len(types) + 63 + _HEADER_BITS) // 64 * 8
    fixed_bytes = null_bytes + 8 * len(types)
    texts = {
        i: _utf8(columns[i]) for i, kind in enumerate(types) if kind.text == "string"
    }  # column -> (bytes, offsets)
    sizes = np.full(rows, fixed_bytes, np.int64)
    for _, ends in texts.values():
        sizes += _padded(np.diff(ends))
    offsets = np.zeros(rows + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    data = np.zeros(int(offsets[-1]), np.uint8)
    starts = offsets[:-1]
    tail = np.full(rows, fixed_bytes, np.int64)  # offset of the next long string in its row
    for i, kind in enumerate(types):
        slot = starts + null_bytes + 8 * i
        if i not in texts:
            _put_words(data, slot, _fixed(columns[i], kind))
            continue
        flat, ends = texts[i]
        lengths = np.diff(ends)
        short = lengths <= _INLINE_BYTES
        _put_bytes(data, np.where(short, slot, starts + tail), flat, ends)
        data[slot[short] + _INLINE_BYTES] = (0x80 | lengths[short]).astype(np.uint8)
        _put_words(data, slot[~short], (tail << 32 | lengths)[~short])
        tail += _padded(lengths)
    return data, offsets


def _padded(lengths: Ints) -> Ints:
    """Return bytes that a string takes in the variable part of its row."""
    return np.where(lengths <= _INLINE_BYTES, 0, (lengths + 7) // 8 * 8)


def _utf8(column: npt.NDArray[Any]) -> tuple[Bytes, Ints]:
    """Return the bytes of all texts, one after another, and the start of each (and the end)."""
    if len(column) > _FEW_ROWS and arrow_loaded():
        return _utf8_by_arrow(column)
    values = column.tolist()
    if None in values:
        raise RequestError("a bucket key cannot be null")
    try:
        parts = [value.encode() for value in values]
    except (AttributeError, UnicodeEncodeError) as error:
        raise RequestError(f"a string column of a bucket key: {error}") from error
    offsets = np.zeros(len(parts) + 1, np.int64)
    np.cumsum([len(part) for part in parts], out=offsets[1:])
    return np.frombuffer(b"".join(parts), np.uint8), offsets


def _utf8_by_arrow(column: npt.NDArray[Any]) -> tuple[Bytes, Ints]:
    try:
        array = pa.array(column, pa.large_string())
    except pa.ArrowException as error:
        raise RequestError(f"a string column of a bucket key: {error}") from error
    if array.null_count:
        raise RequestError("a bucket key cannot be null")
    _, ends, flat = array.buffers()
    offsets = np.frombuffer(ends, np.int64, len(array) + 1)
    text = np.frombuffer(flat, np.uint8) if flat is not None else np.zeros(0, np.uint8)
    return text[: offsets[-1]], offsets


def _fixed(column: npt.NDArray[Any], kind: DataType) -> Ints:
    stored = _STORED.get(kind.text)
    if stored is None:
        raise RequestError(f"a bucket key cannot be {kind!r}")
    if column.dtype == object and any(value is None for value in column):
        raise RequestError("a bucket key cannot be null")
    # little endian, zeros above the stored bytes: an int32 -1 is not an int64 -1
    narrow = column.astype(stored, copy=False)
    bits = narrow.view(narrow.dtype.str.replace("i", "u"))
    return bits.astype("<u8", copy=False).view("<i8")


def _put_words(data: Bytes, positions: Ints, words: Ints) -> None:
    data.view("<i8")[positions // 8] = words  # every slot starts at a multiple of eight


def _put_bytes(data: Bytes, positions: Ints, flat: Bytes, ends: Ints) -> None:
    lengths = np.diff(ends)
    data[np.repeat(positions - ends[:-1], lengths) + np.arange(len(flat))] = flat


def _murmur3(data: Bytes, offsets: Ints) -> npt.NDArray[np.int32]:
    words: Words32 = data.view("<u4")
    starts, counts = offsets[:-1] // 4, np.diff(offsets) // 4
    order = np.argsort(-counts, kind="stable")
    starts, counts = starts[order], counts[order]
    state = absorb(
        counts,
        _SEED,
        lambda active, step: words[starts[:active] + step],
        lambda row, step: words[starts[row] + step : starts[row] + counts[row]],
    )
    result = np.empty(len(state), np.uint32)
    result[order] = finish(state, counts * 4)
    return result.view(np.int32)
