"""A column of cells as values, with the cells that have none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from paimon_features.core.types.array_types import Bools


@dataclass(frozen=True, slots=True)
class Converted:
    """``values`` of the column's type, null where a cell is empty or has no value.

    ``wrong`` and ``infinite`` are the cells that are not empty and have no value: of the wrong
    type, or NaN, infinite and out of a float's range. None where there are none.
    """

    values: pa.Array
    wrong: Bools | None = None
    infinite: Bools | None = None

    @classmethod
    def of(cls, values: pa.Array, wrong: Bools, infinite: Bools | None = None) -> Converted:
        """Return values with flags that may be all false."""
        return cls(
            values,
            wrong if wrong.any() else None,
            infinite if infinite is not None and infinite.any() else None,
        )

    @classmethod
    def concat(cls, parts: Sequence[Converted]) -> Converted:
        """Return the parts of a column, one after another."""
        if len(parts) == 1:
            return parts[0]
        lengths = [len(part.values) for part in parts]
        return cls(
            pa.concat_arrays([part.values for part in parts]),
            _joined([part.wrong for part in parts], lengths),
            _joined([part.infinite for part in parts], lengths),
        )


def numbers_of(values: pa.Array) -> Any:
    """Return the numbers, 0 where a value is null."""
    return (values.fill_null(0) if values.null_count else values).to_numpy(zero_copy_only=False)


def _joined(flags: Sequence[Bools | None], lengths: Sequence[int]) -> Bools | None:
    if all(row_flags is None for row_flags in flags):
        return None
    return np.concatenate(
        [
            np.zeros(length, np.bool_) if row_flags is None else row_flags
            for row_flags, length in zip(flags, lengths, strict=True)
        ]
    )
