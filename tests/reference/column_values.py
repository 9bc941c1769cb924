"""Reference implementation of columns as tensors: value by value, as Python lists."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import pyarrow as pa


class ColumnShape(Protocol):
    """Levels of lists of any length, and the fixed dimensions inside them."""

    @property
    def ragged_rank(self) -> int: ...
    @property
    def shape(self) -> tuple[int, ...]: ...


def reference_values(
    column: pa.ChunkedArray,
    spec: ColumnShape,
    fill: float | None = None,
    words: Sequence[str] = (),
) -> list[Any]:
    """A column's rows as tensors have them, value by value, as Python lists.

    Null lists are None, other nulls ``fill``; fixed dimensions of a null are full of ``fill``.

    >>> from collections import namedtuple
    >>> Shape = namedtuple("Shape", "ragged_rank shape")
    >>> column = pa.chunked_array([[[1, None], None, []]])
    >>> reference_values(column, Shape(1, ()), fill=7)
    [[1, 7], None, []]
    """
    filler = fill or 0

    def full(shape: Sequence[int]) -> Any:
        return [full(shape[1:]) for _ in range(shape[0])] if shape else filler

    def row(value: pa.Scalar, level: int) -> Any:
        fixed = spec.shape[level - spec.ragged_rank :] if level >= spec.ragged_rank else None
        if pa.types.is_dictionary(value.type):
            value = value.dictionary[value.index.as_py()] if value.is_valid else value
        if not value.is_valid:
            if fixed is not None:
                return full(fixed)
            return [] if level else None
        if pa.types.is_nested(value.type):
            return [row(item, level + 1) for item in value.values]
        return number(value)

    def number(value: pa.Scalar) -> Any:
        kind = value.type
        if pa.types.is_timestamp(kind) or pa.types.is_time(kind) or pa.types.is_duration(kind):
            per_second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[kind.unit]
            return value.value * 1000 // per_second
        if pa.types.is_date(kind):
            return value.value // (86_400_000 if pa.types.is_date64(kind) else 1)
        if pa.types.is_decimal(kind):
            return int(value.as_py().scaleb(kind.scale))
        found = value.as_py()
        return list(words).index(found) if isinstance(found, str) else found

    return [row(value, 0) for value in column]


def reference_item_mask(column: pa.ChunkedArray, spec: ColumnShape) -> list[Any]:
    """Which items of a column of lists are there, value by value; ``spec`` is the mask's.

    >>> from collections import namedtuple
    >>> Shape = namedtuple("Shape", "ragged_rank shape")
    >>> column = pa.chunked_array([[[1, None], None, []]])
    >>> reference_item_mask(column, Shape(1, ()))
    [[True, False], [], []]
    """
    levels = spec.ragged_rank + len(spec.shape)

    def absent(shape: Sequence[int]) -> Any:
        return [absent(shape[1:]) for _ in range(shape[0])] if shape else False

    def row(value: pa.Scalar, level: int) -> Any:
        if level == levels:
            return value.is_valid
        if value.is_valid:
            return [row(item, level + 1) for item in value.values]
        return absent(spec.shape[level - spec.ragged_rank :]) if level >= spec.ragged_rank else []

    return [row(value, 0) for value in column]
