"""Matrices of several columns: which can be one, and those that are cast."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from paimon_features.core.errors import ConfigurationError, UnknownNameError
from paimon_features.core.types.array_types import Array
from trainer_bridge.batches.aligned import empty
from trainer_bridge.batches.forms import Batch
from trainer_bridge.batches.tensor_columns import ColumnSpec

STACK_DTYPES = ("float32", "float64")


def check_stacks(
    stacks: Mapping[str, Sequence[str]], specs: Mapping[str, ColumnSpec], dtype: str | None
) -> None:
    """Check that columns can be put side by side, by ``dtype`` if they are cast.

    Raises
    ------
    UnknownNameError
        For a column that is not read.
    ConfigurationError
        For lists, columns of several dtypes without ``dtype``, and a name that is taken.
    """
    if dtype not in (None, *STACK_DTYPES):
        raise ConfigurationError(
            f"stack_dtype={dtype!r}: expected {' or '.join(map(repr, STACK_DTYPES))}, or None"
        )
    for name, columns in stacks.items():
        for column in columns:
            if column not in specs:
                raise UnknownNameError.of("column read", column, specs)
            if specs[column].ragged_rank or specs[column].shape:
                raise ConfigurationError(
                    f"stack {name!r} has the column {column!r} of lists; expected plain numbers"
                )
        dtypes = sorted({specs[column].dtype.name for column in columns})
        if not dtypes:
            raise ConfigurationError(f"stack {name!r} has no columns")
        if len(dtypes) > 1 and dtype is None:
            raise ConfigurationError(
                f"stack {name!r} has columns of {' and '.join(dtypes)}; a matrix has one dtype: "
                "stack_dtype='float32' (or 'float64') casts them, or make several stacks"
            )
        if name in specs and name not in columns:
            raise ConfigurationError(f"stack {name!r} is called like another column")


def cast_matrix(batch: Batch, columns: Sequence[str], dtype: str) -> Array:
    """Return columns side by side as floats, of shape ``(rows, columns)``.

    Integers beyond 2^24 (float32) or 2^53 (float64) are rounded to the nearest.
    """
    matrix = empty((len(batch), len(columns)), dtype)
    at = {
        name: (kind, number)
        for kind, names in batch.names.items()
        for number, name in enumerate(names)
    }
    start = 0
    while start < len(columns):
        kind, first = at[columns[start]]
        stop = start + 1  # columns that are side by side in a block are copied at once
        while stop < len(columns) and at[columns[stop]] == (kind, first + stop - start):
            stop += 1
        block = batch.blocks[kind]
        with np.errstate(over="ignore"):  # beyond float32 it is an infinity, as in any cast
            matrix[:, start:stop] = block[:, first : first + stop - start]
        start = stop
    return matrix
