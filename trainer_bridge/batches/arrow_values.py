"""Values of Arrow columns: levels of lists, dtypes of their items, conversion to numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from numbers import Number
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from paimon_features.core.errors import ConfigurationError, RequestError
from paimon_features.core.types.array_types import Bools, Ints
from trainer_bridge.batches.ragged import ends, runs
from trainer_bridge.batches.vocabulary import Vocabulary


def list_levels(kind: pa.DataType) -> tuple[list[int | None], pa.DataType]:
    """Return the levels of lists, outermost first, with their size where it is fixed.

    And the items.
    """
    levels: list[int | None] = []
    while True:
        if pa.types.is_dictionary(kind):
            kind = kind.value_type
        elif pa.types.is_fixed_size_list(kind):
            levels.append(kind.list_size)
            kind = kind.value_type
        elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
            levels.append(None)
            kind = kind.value_type
        else:
            return levels, kind


def innermost(levels: Sequence[int | None]) -> tuple[int, ...]:
    """Return the sizes of the innermost levels, as far as they are fixed."""
    sizes: list[int] = []
    for size in reversed(levels):
        if size is None:
            break
        sizes.insert(0, size)
    return tuple(sizes)


def leaf_dtype(
    leaf: pa.DataType, whole: pa.DataType, where: str, vocabulary: Vocabulary | None, scaled: bool
) -> np.dtype[Any]:
    if vocabulary is not None and not is_text(leaf):
        raise ConfigurationError(f"{where} is {whole}; codes= is for texts")
    if scaled and not pa.types.is_decimal(leaf):
        raise ConfigurationError(f"{where} is {whole}; scaled= is for decimals")
    if vocabulary is not None:
        return np.dtype(np.int32)
    if scaled or pa.types.is_temporal(leaf):
        return np.dtype(np.int64)
    if pa.types.is_boolean(leaf) or pa.types.is_integer(leaf) or pa.types.is_floating(leaf):
        return np.dtype(leaf.to_pandas_dtype())
    remedies: list[tuple[Callable[[pa.DataType], bool], str]] = [
        (
            is_text,
            "request codes by codes=[...], encode it as numbers (a fitted transformer)",
        ),
        (
            pa.types.is_decimal,
            "request integers in units of its last digit by scaled=[...], store it as a float",
        ),
        (pa.types.is_struct, "store its fields as columns of their own"),
        (pa.types.is_map, "store its values as columns of their own"),
    ]
    remedy = next((text for fits, text in remedies if fits(leaf)), "convert it")
    raise RequestError(
        f"{where} is {whole}, which has no tensor form here; "
        f"{remedy}, leave it out by columns=, or read with output='arrow'"
    )


def can_represent(dtype: np.dtype[Any], fill: Any) -> bool:
    """Return True if a fill value is one of a type; floats may round it.

    >>> [can_represent(np.dtype(kind), 300) for kind in ("int8", "int64", "float32", "object")]
    [False, True, True, False]
    """
    if dtype.kind == "O":
        return isinstance(fill, str)
    if not isinstance(fill, Number | np.bool_):
        return False
    try:
        value = dtype.type(fill)  # type: ignore[call-overload]
    except (TypeError, ValueError, OverflowError):
        return False
    return dtype.kind == "f" or bool(value == fill)


def opened(array: pa.Array) -> tuple[Ints, pa.Array, Bools | None]:
    """Return the lengths of lists, their items, and which lists are not null (None: all)."""
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_fixed_size_list(array.type):
        size = array.type.list_size
        offsets = np.arange(array.offset, array.offset + len(array) + 1, dtype=np.int64) * size
    else:
        offsets = array.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
    lengths = np.diff(offsets)
    first, last = int(offsets[0]), int(offsets[-1])
    if not array.null_count:
        return lengths, array.values.slice(first, last - first), None
    mask = array.is_valid().to_numpy(zero_copy_only=False)
    if not lengths[~mask].any():
        return lengths, array.values.slice(first, last - first), mask
    # Arrow lets a null list have items behind it
    lengths[~mask] = 0
    wanted = runs(offsets[:-1], ends(lengths), lengths)
    return lengths, array.values.take(pa.array(wanted)), mask


def is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def scaled_integers(array: pa.Array, where: str) -> pa.Array:
    """Decimals as integers in units of their last digit."""
    if array.type.bit_width != 128:
        raise RequestError(f"{where} is {array.type}; scaled= takes decimals of 128 bits")
    # axes: (row, low and high 64 bits)
    words = np.frombuffer(array.buffers()[1] or b"", dtype="<i8").reshape(-1, 2)
    words = words[array.offset : array.offset + len(array)]
    valid = array.is_valid().to_numpy(zero_copy_only=False)
    if (words[valid, 1] != words[valid, 0] >> 63).any():
        raise RequestError(
            f"{where} has a number that is too large for scaled=: {array.type} in units of its "
            "last digit exceeds int64; store it as a float"
        )
    return pa.array(words[:, 0], mask=~valid)


def as_numbers(values: pa.Array) -> pa.Array:
    """Return the times as int64: milliseconds (finer parts cut off, towards the past).

    Dates as days.
    """
    kind = values.type
    if not pa.types.is_temporal(kind):
        return values
    if pa.types.is_date(kind):
        return values.cast(pa.date32()).cast(pa.int32()).cast(pa.int64())
    unit = kind.unit
    numbers = values.cast(pa.int32()) if pa.types.is_time32(kind) else values
    numbers = numbers.cast(pa.int64())
    per_ms = {"s": -1000, "ms": 1, "us": 1000, "ns": 1_000_000}[unit]
    if per_ms == 1:
        return numbers
    if per_ms < 0:
        return pc.multiply_checked(numbers, -per_ms)
    # Arrow divides towards zero; times before 1970 have to go down as well
    cut = pc.divide(numbers, per_ms)
    below = pc.less(numbers, pc.multiply(cut, per_ms)).cast(pa.int64())
    return pc.subtract(cut, below)


def take_of_table(rows: pa.Table, numbers: Ints) -> pa.Table:
    """Return rows by their numbers, also of a column of more than 2 GiB of texts.

    Such a column has several chunks, which Arrow's ``take`` would join into one that is too long.

    Raises
    ------
    RequestError
        If the result does not fit into one array for each column.

    >>> long = pa.table({"t": pa.chunked_array([["a", "b"], ["c"]])})
    >>> take_of_table(long, np.array([2, 0, 2])).to_pydict()
    {'t': ['c', 'a', 'c']}
    """
    if all(column.num_chunks < 2 for column in rows.columns):
        return _taken(rows, numbers)
    parts = rows.to_batches()
    home = np.searchsorted(np.cumsum([part.num_rows for part in parts]), numbers, side="right")
    first_rows = np.cumsum([0, *(part.num_rows for part in parts)])
    places = [np.flatnonzero(home == part) for part in range(len(parts))]
    selected = [
        _taken(pa.Table.from_batches([part]), numbers[place] - first)
        for part, place, first in zip(parts, places, first_rows, strict=False)
    ]
    return in_order(pa.concat_tables(selected), places)


def in_order(rows: pa.Table, places: Sequence[Ints]) -> pa.Table:
    """Return rows in the order of their places; raises as :func:`take_of_table` does."""
    back = np.empty(len(rows), dtype=np.int64)
    back[np.concatenate(places)] = np.arange(len(rows))
    return _taken(rows.combine_chunks(), back)


def _taken(rows: pa.Table, numbers: Ints) -> pa.Table:
    """Arrow's ``take``, which may return negative offsets where texts are too long."""
    try:
        selected = rows.take(pa.array(numbers))
        for column in selected.columns:
            if not _has_fixed_width(column.type):
                column.validate()
    except pa.ArrowInvalid as error:
        raise RequestError(
            f"{len(numbers)} rows have a column of more than 2 GiB of texts or lists, which Arrow "
            f"cannot store in one array ({error}); lower the batch size"
        ) from error
    return selected


def _has_fixed_width(kind: pa.DataType) -> bool:
    return bool(pa.types.is_primitive(kind) or pa.types.is_boolean(kind))
