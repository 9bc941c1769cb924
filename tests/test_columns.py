"""Columns of Arrow arrays, beside Arrow's own values."""

from __future__ import annotations

import math
import random

import numpy as np
import pyarrow as pa
import pytest

from paimon_features.columns import Column


@pytest.mark.parametrize("kind", [pa.float16(), pa.float32(), pa.float64()])
@pytest.mark.parametrize("seed", range(20))
def test_floats_with_nulls_at_any_offset_are_what_arrow_has(kind: pa.DataType, seed: int) -> None:
    dice = random.Random(seed)
    values = [
        dice.choice([None, math.nan, np.float16(dice.gauss(0, 9))])
        for _ in range(dice.randrange(1, 70))
    ]
    whole = pa.array([None if v is None else np.float16(v) for v in values], pa.float16())
    first = dice.randrange(len(values))
    rows = dice.randrange(len(values) - first + 1)
    part = whole.cast(kind).slice(first, rows)
    given = pa.chunked_array([part, part]) if dice.random() < 0.3 else part
    column = Column.from_arrow(given)
    expected = given.to_pylist()
    assert column.mask.tolist() == [v is not None for v in expected]
    assert column.values.dtype == kind.to_pandas_dtype()
    found = [float(v) for v in column.values]
    assert [None if math.isnan(v) else v for v in found] == [
        None if v is None or math.isnan(v) else float(v) for v in expected
    ]
