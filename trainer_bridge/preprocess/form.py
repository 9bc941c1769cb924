"""Preprocessed rows in memory: one array per column, rows on the first axis."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Unpack

import numpy as np
import pyarrow as pa

from paimon_features.core.errors import RequestError
from paimon_features.core.types.array_types import Array
from trainer_bridge.batches.forms import Batch, BatchPosition, Form, GatherSource
from trainer_bridge.preprocess.row_block import ColumnConverter, RowBlock

Spec = Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]]
"""The dtype and per-row shape of each column."""


def spec_of(columns: Mapping[str, Array]) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
    """Return the dtypes and per-row shapes of columns.

    >>> spec_of({"x": np.zeros((5, 3), np.float32)})
    {'x': (dtype('float32'), (3,))}
    """
    return {name: (values.dtype, values.shape[1:]) for name, values in columns.items()}


class ArraysForm(Form):
    """Columns as NumPy arrays. Batches have no ``blocks``; only their columns."""

    size_known = True

    def __init__(self, spec: Spec, numbers: ColumnConverter) -> None:
        self.spec = dict(spec)
        self.numbers = numbers
        self.row_bytes = float(sum(d.itemsize * math.prod(s) for d, s in self.spec.values()))

    def decode(self, table: pa.Table) -> dict[str, Array]:
        # Copies: the table may be memory-mapped or owned by a cache, and callers may modify
        # batches.
        arrays = RowBlock.from_arrow(self.numbers, table).arrays()
        for name, (dtype, shape) in self.spec.items():
            values = arrays[name]
            if values.dtype != dtype or values.shape[1:] != shape:
                raise RequestError(
                    f"table {self.numbers.table!r}: column {name!r} has rows of "
                    f"{values.dtype}{list(values.shape[1:])} here and of {dtype}{list(shape)} "
                    "elsewhere; a function has to return one dtype and shape for all rows"
                )
        return {name: arrays[name].copy() for name in self.spec}

    def nbytes(self, rows: dict[str, Array]) -> int:
        return sum(values.nbytes for values in rows.values())

    def view(self, rows: dict[str, Array], start: int, stop: int) -> dict[str, Array]:
        return {name: values[start:stop] for name, values in rows.items()}

    def gather(self, sources: Iterable[GatherSource], size: int) -> dict[str, Array]:
        out = {name: np.empty((size, *shape), dtype) for name, (dtype, shape) in self.spec.items()}
        for rows, numbers, places in sources:
            for name, values in out.items():
                values[places] = rows[name].take(numbers, axis=0, mode="clip")
        return out

    def join(self, parts: Sequence[dict[str, Array]]) -> dict[str, Array]:
        return {name: np.concatenate([part[name] for part in parts]) for name in self.spec}

    def batch(
        self, rows: dict[str, Array], start: int, stop: int, **position: Unpack[BatchPosition]
    ) -> Batch:
        return Batch(columns=self.view(rows, start, stop), **position)
