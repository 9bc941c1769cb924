"""The aggregate functions of Paimon over groups of rows, a column at a time.

Functions that choose a row (first, last, least, greatest) return row numbers and work for every
type. The others begin with the oldest row of each group, then add the second of every group
that has one, then the third: each group is folded in the order of its writes, so float sums
are rounded as Paimon's are.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from paimon_features.core.errors import TableError
from paimon_features.core.types.array_types import Array, Bools, Ints
from trainer_bridge.blocks.merge import KeyGroups, integers, numbers, pack, ranks, unscaled

CHOOSING = ("last_value", "last_non_null_value", "first_value", "first_non_null_value")
COMPUTING = ("sum", "product", "min", "max", "bool_or", "bool_and", "listagg")


def fold(
    groups: KeyGroups, values: pa.ChunkedArray, function: str, delimiter: str = ","
) -> pa.Array:
    """Return one value for each group, null where a group has none.

    >>> both = KeyGroups(rows=np.array([0, 2, 1]), starts=np.array([0, 2]))
    >>> fold(both, pa.chunked_array([[5, 6, 7]]), "sum").to_pylist()
    [12, 6]
    >>> fold(both, pa.chunked_array([["a", "b", None]]), "last_non_null_value").to_pylist()
    ['a', 'b']

    Raises
    ------
    TableError
        For a function that is unknown, does not support the type, or overflows it.
    """
    if function == "listagg":
        return _joined(groups, values, delimiter)
    if function in CHOOSING:
        chosen = _chosen(groups, values, function)
    elif function in ("min", "max"):
        chosen = _extreme(groups, values, function)
    else:
        return _computed(groups, values, function)
    return take(values, chosen)


def take(values: pa.ChunkedArray, rows: Ints) -> pa.Array:
    """Return the values at the rows; null at row -1."""
    array = values.combine_chunks()
    kind = array.type
    plain = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_temporal(kind)
    missing = rows < 0 if len(rows) and rows.min() < 0 else None
    if not plain or array.null_count or missing is not None:
        return array.take(pa.array(rows, mask=missing))
    # into Arrow's own memory, which is reused: new pages cost three times as much as the copy
    dtype = np.dtype(f"i{kind.bit_width // 8}")
    stored = np.frombuffer(array.buffers()[1], dtype)[array.offset : array.offset + len(array)]
    out = pa.allocate_buffer(len(rows) * dtype.itemsize)
    np.take(stored, rows, out=np.frombuffer(out, dtype), mode="clip")
    return pa.Array.from_buffers(kind, len(rows), [None, out])


def _chosen(groups: KeyGroups, values: pa.ChunkedArray, function: str) -> Ints:
    first = function.startswith("first")
    if not values.null_count or "non_null" not in function:
        return groups.first if first else groups.last
    valid = _valid(values)
    chosen = groups.first.copy()
    chosen[~valid[chosen]] = -1
    for rows, group_numbers in groups.later:
        is_valid = valid[rows]
        if first:
            is_valid &= chosen[group_numbers] < 0
        chosen[group_numbers[is_valid]] = rows[is_valid]
    return chosen


def _extreme(groups: KeyGroups, values: pa.ChunkedArray, function: str) -> Ints:
    ranks, valid = _comparable(values), _valid(values)
    chosen = groups.first.copy()
    chosen[~valid[chosen]] = -1
    best = ranks[groups.first]
    for rows, group_numbers in groups.later:
        mine, held = ranks[rows], best[group_numbers]
        # as Paimon compares: of equal values max keeps the old one, min takes the new
        wins = held < mine if function == "max" else ~(held < mine)
        wins |= chosen[group_numbers] < 0
        wins &= valid[rows]
        chosen[group_numbers[wins]] = rows[wins]
        best[group_numbers[wins]] = mine[wins]
    return chosen


def _computed(groups: KeyGroups, values: pa.ChunkedArray, function: str) -> pa.Array:
    step = _step(function, values.type)
    raw = _raw(values)
    total = raw[groups.first]
    checked = not pa.types.is_floating(values.type)
    if not values.null_count and not checked:
        with np.errstate(over="ignore", invalid="ignore"):
            for rows, group_numbers in groups.later:
                total[group_numbers] = step(total[group_numbers], raw[rows])
        return pa.array(total, values.type)
    valid = _valid(values)
    present = valid[groups.first]
    with np.errstate(over="ignore", invalid="ignore"):
        for rows, group_numbers in groups.later:
            is_valid = valid[rows]
            rows, group_numbers = rows[is_valid], group_numbers[is_valid]
            mine, held = raw[rows], present[group_numbers]
            both = np.where(held, step(total[group_numbers], mine), mine)
            fits = _fits(values.type, function, total[group_numbers], mine, both, held)
            total[group_numbers] = both
            present[group_numbers] = True if fits is None else fits
    return _typed(total, present, values.type)


def _joined(groups: KeyGroups, values: pa.ChunkedArray, delimiter: str) -> pa.Array:
    kind = values.type
    if not pa.types.is_string(kind):
        raise TableError(f"listagg of a column of type {kind}; it supports strings only")
    texts = values.combine_chunks().take(pa.array(groups.rows)).cast(pa.large_string())
    # Paimon leaves blank texts out
    blank = pc.equal(pc.utf8_length(pc.utf8_trim_whitespace(texts)), 0)
    kept = ~np.asarray(blank.fill_null(True), dtype=np.bool_)
    before = np.append(0, np.cumsum(kept))
    ends = np.append(before[groups.starts], before[-1])
    lists = pa.LargeListArray.from_arrays(pa.array(ends), texts.filter(pa.array(kept)))
    joined = pc.binary_join(lists, pa.scalar(delimiter, pa.large_string()))
    empty = pa.array(np.diff(ends) == 0)
    return pc.if_else(empty, pa.scalar(None, joined.type), joined).cast(kind)


def _valid(values: pa.ChunkedArray) -> Bools:
    if not values.null_count:
        return np.ones(len(values), np.bool_)
    return np.asarray(pc.is_valid(values), dtype=np.bool_)


def _comparable(values: pa.ChunkedArray) -> Array:
    """Numbers in the order of the values; of nulls anything."""
    kind = values.type
    if pa.types.is_floating(kind):
        return _raw(values)
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_temporal(kind):
        return integers(values)
    return ranks(values)


def _raw(values: pa.ChunkedArray) -> Array:
    """Numbers as they are, decimals as integers of their last digit; of nulls anything."""
    if pa.types.is_decimal(values.type):
        return unscaled(values)
    if values.null_count:
        values = values.fill_null(False if pa.types.is_boolean(values.type) else 0)
    return numbers(values)


def _typed(total: Array, present: Bools, kind: pa.DataType) -> pa.Array:
    if not pa.types.is_decimal(kind):
        return pa.array(total.astype(kind.to_pandas_dtype(), copy=False), kind, mask=~present)
    words = np.zeros((len(total), 2), "<i8")
    total = np.where(present, total, 0)
    if kind.precision <= 18:
        words[:, 0], words[:, 1] = total, total >> 63
    else:
        words[:, 0] = np.array([x & (1 << 64) - 1 for x in total], np.uint64).view(np.int64)
        words[:, 1] = np.array([x >> 64 for x in total], np.int64)
    buffers = [pa.py_buffer(pack(present)), pa.py_buffer(words.tobytes())]
    return pa.Array.from_buffers(kind, len(total), buffers)


def _step(function: str, kind: pa.DataType) -> Callable[[Array, Array], Array]:
    number = pa.types.is_integer(kind) or pa.types.is_floating(kind)
    if function == "sum" and (number or pa.types.is_decimal(kind)):
        return np.add
    if function == "product" and number:
        return np.multiply
    if pa.types.is_boolean(kind) and function in ("bool_or", "bool_and"):
        return np.logical_or if function == "bool_or" else np.logical_and
    supported = ", ".join((*CHOOSING, *COMPUTING))
    raise TableError(
        f"the aggregate function {function!r} of a column of type {kind} is not supported here "
        f"({supported} are); leave the column out by columns=, or read with pypaimon"
    )


def _fits(
    kind: pa.DataType, function: str, held: Array, mine: Array, both: Array, known: Bools
) -> Bools | None:
    """Return which results are values: a decimal that is too long is null. None if all are."""
    if pa.types.is_decimal(kind):
        fits: Bools = np.abs(both) < 10**kind.precision
        return fits
    if pa.types.is_integer(kind) and function in ("sum", "product"):
        if function == "sum":
            wrong = ((held ^ both) & (mine ^ both)) < 0
        else:
            # what wraps around is off by far more than floats are
            exact = held.astype(np.float64) * mine.astype(np.float64)
            wrong = np.abs(exact - both.astype(np.float64)) > np.iinfo(both.dtype).max / 2
        if bool((wrong & known).any()):
            raise TableError(f"a {function} exceeds {kind}; declare the column wider")
    return None
