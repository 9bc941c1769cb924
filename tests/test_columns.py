"""Columns of Arrow arrays, compared with Arrow's own values."""

from __future__ import annotations

import math
import random

import numpy as np
import pyarrow as pa
import pytest

from paimon_features.core.columns.column import Column
from paimon_features.testing.sizes import seeds


@pytest.mark.parametrize("kind", [pa.float16(), pa.float32(), pa.float64()])
def test_floats_with_nulls_at_any_offset_are_what_arrow_has(kind: pa.DataType) -> None:
    for seed in seeds(20):
        dice = random.Random(seed)
        values = [
            dice.choice([None, math.nan, np.float16(dice.gauss(0, 9))])
            for _ in range(dice.randrange(1, 70))
        ]
        array = pa.array([None if v is None else np.float16(v) for v in values], pa.float16())
        first = dice.randrange(len(values))
        part = array.cast(kind).slice(first, dice.randrange(len(values) - first + 1))
        given = pa.chunked_array([part, part]) if dice.random() < 0.3 else part
        column = Column.from_arrow(given)
        expected = given.to_pylist()
        assert column.mask.tolist() == [v is not None for v in expected], seed
        assert column.values.dtype == kind.to_pandas_dtype()
        found = [float(v) for v in column.values]
        assert [None if math.isnan(v) else v for v in found] == [
            None if v is None or math.isnan(v) else float(v) for v in expected
        ], seed


@pytest.mark.parametrize(
    "array",
    [
        pa.array([1, None, 3, None, 5, 6, 7, None, 9, 10, None]),
        pa.array([True, None, False] * 4),
        pa.array(["a", None, "", "b"] * 3),
        pa.array([[1.5], None, [None]] * 4),
        pa.array([0, None, 86_400_000] * 4, pa.timestamp("ms")),
        pa.nulls(11),
    ],
    ids=lambda array: str(array.type),
)
def test_the_mask_of_a_slice_is_that_of_arrow(array: pa.Array) -> None:
    for first in range(len(array)):
        part = array.slice(first)
        column = Column.from_arrow(part)
        assert column.mask.tolist() == part.is_valid().to_pylist()
        assert (column.valid is None) == (part.null_count == 0)
