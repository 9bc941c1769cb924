"""Numbers of several files added to the oldest, file by file, in its own memory.

Each group is folded in the order of its writes, as in ``folds``. This avoids memory that
has never been touched: the system needs three times as long for a new page as filling it takes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from paimon_features.core.columns.column import one_array
from paimon_features.core.types.array_types import Array, Bools, Ints
from trainer_bridge.blocks.merge import pack


@dataclass(frozen=True, slots=True)
class _Laying:
    """How values come over those that are there; ``neutral`` is what they leave as they are."""

    lay: Callable[[Array, Ints, Array], None]
    neutral: Any = 0
    nulls_count: bool = False


def lay_over(
    count: int, owns: Sequence[Ints], parts: Sequence[pa.ChunkedArray], function: str
) -> pa.Array | None:
    """Return one value for each of ``count`` groups; None if that takes more than a pass per file.

    ``owns`` are the groups of the rows of each file, ascending, ``parts`` its values. May
    overwrite the memory of ``parts``.
    """
    kind = parts[0].type
    chunks = [one_array(part) for part in parts]
    dtype = _dtype(kind)
    laying = None if dtype is None else _laying(function, dtype, kind)
    if dtype is None or laying is None:
        return None
    stored = [_stored(chunk, dtype) for chunk in chunks]
    if function == "sum" and dtype.kind == "i" and _may_overflow(stored, dtype):
        return None
    valid = [_valid(chunk) for chunk in chunks]
    present = None if all(mask is None for mask in valid) else np.zeros(count, np.bool_)
    # a column that is younger than the file is all null, and its memory may be anybody's
    if len(owns[0]) == count and stored[0].flags.writeable and chunks[0].null_count < count:
        out, total, done = chunks[0].buffers()[1], stored[0], 1
        start = chunks[0].offset * dtype.itemsize
        if present is not None:
            present[:] = True if valid[0] is None else valid[0]
            total[~present] = laying.neutral
    else:
        out, start, done = pa.allocate_buffer(count * dtype.itemsize), 0, 0
        total = np.frombuffer(out, dtype)
        total[:] = laying.neutral
    with np.errstate(over="ignore", invalid="ignore"):
        for numbers, values, mask in list(zip(owns, stored, valid, strict=True))[done:]:
            if mask is not None and not laying.nulls_count:
                numbers, values, mask = numbers[mask], values[mask], None
            laying.lay(total, numbers, values)
            if present is not None:
                present[numbers] = True if mask is None else mask
    bits = None
    if present is not None and not present.all():
        bits = pa.py_buffer(pack(present))
    data = out.slice(start, count * dtype.itemsize)
    return pa.Array.from_buffers(kind, count, [bits, data])


def _laying(function: str, dtype: np.dtype[Any], kind: pa.DataType) -> _Laying | None:
    if function == "last_value":
        return _Laying(_put, nulls_count=True)
    if function == "last_non_null_value":
        return _Laying(_put)
    if dtype.kind == "f":
        # 0.0 would turn a sum of -0.0 into 0.0; least and greatest have rules for NaN
        laid = {"sum": _Laying(np.add.at, -0.0), "product": _Laying(np.multiply.at, 1.0)}
        return laid.get(function)
    if function == "sum" and pa.types.is_integer(kind):
        return _Laying(np.add.at)
    limits = np.iinfo(dtype)
    extremes = {
        "min": _Laying(np.minimum.at, limits.max),
        "max": _Laying(np.maximum.at, limits.min),
    }
    return extremes.get(function)


def _put(total: Array, own: Ints, values: Array) -> None:
    total[own] = values


def _may_overflow(stored: Sequence[Array], dtype: np.dtype[Any]) -> bool:
    """Return True if sums of one value of each file could leave the type.

    Of nulls anything is stored.
    """
    bound = sum(max(int(v.max(initial=0)), -int(v.min(initial=0))) for v in stored)
    return bound > np.iinfo(dtype).max


def _dtype(kind: pa.DataType) -> np.dtype[Any] | None:
    """Return the numbers that a type is stored as; None if it is not one number a value."""
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return np.dtype(kind.to_pandas_dtype())
    return np.dtype(f"i{kind.bit_width // 8}") if pa.types.is_temporal(kind) else None


def _stored(chunk: pa.Array, dtype: np.dtype[Any]) -> Array:
    return np.frombuffer(chunk.buffers()[1], dtype)[chunk.offset : chunk.offset + len(chunk)]


def _valid(chunk: pa.Array) -> Bools | None:
    return np.asarray(pc.is_valid(chunk), dtype=np.bool_) if chunk.null_count else None
