"""Which rows of several files have one key, in the order of their writes.

Each file is sorted by its key, so the rows of all of them, one file after the other, are a
few sorted runs: a stable sort (timsort) merges runs in about 10 ns a row, where hashing a key
takes 80 to 120. Files come in the order of their writes, and the sort is stable, so the rows
of a key are in that order too. Only where the numbers of the writes of two files interleave,
or ``sequence.field`` decides, are the rows of keys that come twice sorted once more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from paimon_features.core.types.array_types import Array, Bools, Ints

_ADDS = (0, 2)  # insert, update after; 1 and 3 take a row away
_LONGEST_TEXT = 64
"""Bytes up to which texts are compared as they are; above, by their place in a dictionary."""

_WIDTH_A_ROW = 32
_WIDEST = 1 << 26
"""Bytes of the table of ``newest_rows``, for each row and in all."""


@dataclass(frozen=True)
class KeyGroups:
    """Rows by key: group g is ``rows[starts[g]:ends[g]]``, the oldest write first."""

    rows: Ints
    starts: Ints

    def __len__(self) -> int:
        return len(self.starts)

    @cached_property
    def ends(self) -> Ints:
        return np.append(self.starts[1:], len(self.rows))

    @cached_property
    def first(self) -> Ints:
        """The row of the oldest write of each group."""
        return self.rows[self.starts]

    @cached_property
    def last(self) -> Ints:
        """The row of the newest write of each group."""
        return self.rows[self.ends - 1]

    @cached_property
    def later(self) -> tuple[tuple[Ints, Ints], ...]:
        """Rows and their groups: of each group its second, then of each its third, and so on."""
        sizes = self.ends - self.starts
        groups = np.flatnonzero(sizes > 1)
        turns: list[tuple[Ints, Ints]] = []
        while len(groups):
            turn = len(turns) + 1
            turns.append((self.rows[self.starts[groups] + turn], groups))
            groups = groups[sizes[groups] > turn + 1]
        return tuple(turns)


def group_rows(keys: Sequence[pa.ChunkedArray], writes: Sequence[Array] = ()) -> KeyGroups:
    """Return the rows of each key; groups come in the order of the keys where those are plain.

    ``writes`` order the rows of a key, the most important first; equal ones, and all without
    them, as they stand.

    >>> name = pa.chunked_array([["a", "b"], ["a"]])
    >>> groups = group_rows([name])
    >>> groups.last.tolist(), groups.first.tolist()
    ([2, 1], [0, 1])
    >>> group_rows([name], [np.array([9, 0, 5])]).last.tolist()
    [0, 1]
    """
    values = _sortable(keys)
    rows: Ints = np.argsort(values, kind="stable")
    ordered = values[rows]
    differs = np.ones(len(rows), np.bool_)
    differs[1:] = ordered[1:] != ordered[:-1]
    groups = KeyGroups(rows, np.flatnonzero(differs))
    if writes:
        several = ~differs
        several[:-1] |= several[1:]
        at = np.flatnonzero(several)
        members = rows[at]
        number = np.cumsum(differs)[at]
        # lexsort takes the last key first, and keeps the order of equal rows
        rows[at] = members[np.lexsort([*(write[members] for write in reversed(writes)), number])]
    return groups


def newest_rows(keys: Sequence[Ints]) -> Bools | None:
    """Return which rows of files have no younger row of their key; files come in the order of
    writes.

    Each key has a byte in a table from the least key to the greatest, so that nothing is sorted
    or searched. None where that table would be large, and where a file is not sorted.

    >>> newest_rows([np.array([1, 2, 3]), np.array([2, 9]), np.array([9])]).tolist()
    [True, False, True, True, False, True]
    >>> newest_rows([np.array([1, 1 << 40])])
    """
    if not all(map(ascends, keys)):
        return None
    least = min(int(key[0]) for key in keys)
    width = max(int(key[-1]) for key in keys) - least + 1
    if width > min(sum(map(len, keys)) * _WIDTH_A_ROW, _WIDEST):
        return None
    is_new = np.ones(width, np.bool_)
    masks = []
    for key in reversed(keys):
        places = key - least
        masks.append(is_new[places])
        is_new[places] = False
    return np.concatenate(masks[::-1])


def ascends(values: Ints) -> bool:
    """Return True if there are values, each above the one before it."""
    return len(values) > 0 and bool((values[1:] > values[:-1]).all())


def _sortable(keys: Sequence[pa.ChunkedArray]) -> Array:
    """Return one value a row, equal for equal keys; in their order, if they are plain."""
    values = _plain(keys[0])
    if len(keys) == 1:
        return values
    values, count = _numbered(values)
    for key in keys[1:]:
        following, many = _numbered(_plain(key) if is_number(key.type) else _codes(key))
        if count * many >= 1 << 62:
            values, count = _dense(values)
            following, many = _dense(following)
        values, count = values * many + following, count * many
    return values


def is_number(kind: pa.DataType) -> bool:
    return not (
        pa.types.is_floating(kind) or (pa.types.is_decimal(kind) and kind.precision > 18)
    ) and (
        pa.types.is_integer(kind)
        or pa.types.is_temporal(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_decimal(kind)
    )


def _plain(key: pa.ChunkedArray) -> Array:
    """Return values that NumPy sorts as Paimon does.

    Where there are none, places in a dictionary.
    """
    if key.null_count:
        return _codes(key)
    if is_number(key.type):
        return integers(key)
    if pa.types.is_string(key.type) or pa.types.is_binary(key.type):
        texts = _texts(key)
        return _codes(key) if texts is None else texts
    return _codes(key)


def _texts(key: pa.ChunkedArray) -> Array | None:
    """Texts as bytes of one length, padded by zeros; None for long ones and such with zeros."""
    lengths = numbers(pc.binary_length(key)).astype(np.int64)
    longest = int(lengths.max(initial=0))
    if not 0 < longest <= _LONGEST_TEXT:
        return None
    parts = []
    for chunk in filter(len, key.chunks):
        offsets = np.frombuffer(chunk.buffers()[1], np.int32)[chunk.offset :][: len(chunk) + 1]
        parts.append(np.frombuffer(chunk.buffers()[2], np.uint8)[offsets[0] : offsets[-1]])
    data = np.concatenate(parts)
    if not data.all():
        return None
    if len(data) != longest * len(lengths):
        padded = np.zeros((len(lengths), longest), np.uint8)
        # axes: (text, byte); both are filled text by text
        padded[np.arange(longest) < lengths[:, None]] = data
        data = padded.reshape(-1)
    return data.view(f"S{longest}")


def _numbered(values: Array) -> tuple[Ints, int]:
    """Integers from 0 on, in the order of the values, and how many there can be."""
    if values.dtype.kind != "i" or not len(values):
        return _dense(values)
    least, greatest = int(values.min()), int(values.max())
    if greatest - least >= 1 << 40:
        return _dense(values)
    return values.astype(np.int64) - least, greatest - least + 1


def _dense(values: Array) -> tuple[Ints, int]:
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    codes = np.empty(len(values), np.int64)
    codes[order] = np.cumsum(np.append(False, ordered[1:] != ordered[:-1])[: len(values)])
    return codes, int(codes.max(initial=0)) + 1


def _codes(column: pa.ChunkedArray) -> Ints:
    encoded = pc.dictionary_encode(column, null_encoding="encode")
    # each chunk's dictionary begins with those of the chunks before it
    parts = [chunk.indices.to_numpy() for chunk in encoded.chunks]
    return np.concatenate([np.empty(0, np.int64), *parts]).astype(np.int64)


def integers(column: pa.ChunkedArray) -> Ints:
    """Numbers, times and short decimals as integers in their order; of nulls anything."""
    kind = column.type
    if pa.types.is_decimal(kind):
        words = [_words(chunk)[:, 0] for chunk in column.chunks]
        return np.concatenate([np.empty(0, np.int64), *words])
    if pa.types.is_temporal(kind):
        column = column.cast(pa.int32() if kind.bit_width == 32 else pa.int64())
    if column.null_count:
        column = column.fill_null(False if pa.types.is_boolean(kind) else 0)
    return numbers(column).astype(np.int64, copy=False)


def _words(chunk: pa.Array) -> Ints:
    words = np.frombuffer(chunk.buffers()[1], "<i8").reshape(-1, 2)  # axes: (value, low and high)
    return words[chunk.offset : chunk.offset + len(chunk)]


def unscaled(column: pa.ChunkedArray) -> Array:
    """Decimals as integers of their last digit: int64, or Python's where those do not fit."""
    if column.type.precision <= 18:
        return integers(column)
    words = np.concatenate([np.empty((0, 2), np.int64), *map(_words, column.chunks)])
    low = np.ascontiguousarray(words[:, 0]).view(np.uint64).astype(object)
    wide: Array = low + words[:, 1].astype(object) * (1 << 64)
    return wide


def numbers(column: pa.ChunkedArray) -> Array:
    """Return a column without nulls as one NumPy array."""
    parts = [chunk.to_numpy(zero_copy_only=False) for chunk in column.chunks]
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if parts else np.empty(0, column.type.to_pandas_dtype())


def ranks(column: pa.ChunkedArray) -> Ints:
    """Return a number for each value, in the order of the values; -1 for null."""
    encoded = pc.dictionary_encode(column, null_encoding="encode")
    codes = np.concatenate([np.empty(0, np.int64), *(c.indices.to_numpy() for c in encoded.chunks)])
    dictionary = max((c.dictionary for c in encoded.chunks), key=len, default=pa.nulls(0))
    order = pc.sort_indices(dictionary, null_placement="at_start").to_numpy()
    place = np.empty(len(dictionary), np.int64)
    place[order] = np.arange(len(order)) - dictionary.null_count
    return place[codes.astype(np.int64)]


def pack(mask: Bools) -> bytes:
    """Return a bit for each row, the least first, as Arrow has them."""
    return np.packbits(mask, bitorder="little").tobytes()


def unpack(bits: bytes, rows: int) -> Bools:
    """Return the inverse of :func:`pack`."""
    flags = np.unpackbits(np.frombuffer(bits, np.uint8), count=rows, bitorder="little")
    return flags.view(np.bool_)


def adds(kinds: Array) -> Bools:
    """Return True for rows that are there after their write: inserts and updates."""
    mask: Bools = np.isin(kinds, _ADDS)
    return mask
