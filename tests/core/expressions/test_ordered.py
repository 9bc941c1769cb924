"""ordered() sorts as (time, value) and comes back exactly."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal as PyDecimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paimon_features.core.columns.column import Column, numpy_type
from paimon_features.core.expressions import decode_ordered, evaluate, parse
from paimon_features.core.types.schema import (
    Bool,
    DataType,
    Date,
    Decimal,
    Float32,
    Float64,
    Int32,
    Int64,
    String,
    Timestamp,
)
from paimon_features.core.windows import DAY_MS, MAX_TIME_MS, MIN_TIME_MS

TIMES = st.integers(MIN_TIME_MS, MAX_TIME_MS)
VALUES: list[tuple[DataType, st.SearchStrategy[Any]]] = [
    (Int64, st.integers(-(2**63), 2**63 - 1)),
    (Int32, st.integers(-(2**31), 2**31 - 1)),
    (Float64, st.floats(allow_nan=False, allow_infinity=False)),
    (Float32, st.floats(allow_nan=False, allow_infinity=False, width=32)),
    (Bool, st.booleans()),
    (String, st.text()),
    (Date, st.integers(MIN_TIME_MS // DAY_MS, MAX_TIME_MS // DAY_MS)),
    (Timestamp, TIMES),
    (Decimal(6, 2), st.decimals(-9999, 9999, places=2)),
    (Decimal(38, 10), st.decimals(-(10**28) + 1, 10**28 - 1, places=10)),
    (Decimal(3, 3), st.decimals(PyDecimal("-0.999"), PyDecimal("0.999"), places=3)),
]


def array(values: list[Any], kind: DataType) -> np.ndarray[Any, Any]:
    out = np.empty(len(values), numpy_type(kind))
    out[:] = values
    return out


@pytest.mark.parametrize(("kind", "values"), VALUES, ids=[kind.text for kind, _ in VALUES])
def test_texts_sort_by_time_then_value_and_round_trip_exactly(
    kind: DataType, values: st.SearchStrategy[Any]
) -> None:
    @given(st.lists(st.tuples(TIMES | st.just(0), values), min_size=1, max_size=20))
    def check(pairs: list[tuple[int, Any]]) -> None:
        batch = {
            "ts": Column(np.array([ts for ts, _ in pairs], np.int64)),
            "v": Column(array([value for _, value in pairs], kind)),
        }
        texts = evaluate(parse("ordered(ts, v)", {"ts": Int64, "v": kind}), batch, len(pairs))
        assert texts.valid is None
        times, decoded = decode_ordered(texts.values, kind)
        assert times.tolist() == [ts for ts, _ in pairs]
        assert decoded.values.tolist() == [value for _, value in pairs]
        assert decoded.values.dtype == numpy_type(kind)
        by_bytes = sorted(range(len(pairs)), key=lambda at: texts.values[at].encode())
        assert [pairs[at] for at in by_bytes] == sorted(pairs)

    check()


def test_zero_has_one_text_and_a_null_has_none() -> None:
    batch = {"ts": Column(np.array([5, 5, 5])), "v": Column(
        np.array([0.0, -0.0, 1.0]), np.array([True, True, False]))}  # fmt: skip
    column = evaluate(parse("ordered(ts, v)", {"ts": Int64, "v": Float64}), batch, 3)
    assert column.values[0] == column.values[1]
    assert column.mask.tolist() == [True, True, False]
    strings = np.where(column.mask, column.values, None)
    times, values = decode_ordered(strings, Float64)
    assert times[:2].tolist() == [5, 5]
    assert values.mask.tolist() == [True, True, False]
    assert decode_ordered(np.array([None, None], object), String)[1].mask.any() is np.False_


def test_one_golden_text_of_each_type_is_pinned() -> None:
    """What stands in a tile table has to be read by every later version."""
    golden: dict[DataType, tuple[Any, str]] = {
        Int64: (-7, "09223372036854775801"),
        Float64: (-1.5, "04613937818241073152"),
        Bool: (True, "1"),
        String: ("é", "é"),
        Date: ((dt.date(2011, 12, 9) - dt.date(1970, 1, 1)).days, "2011-12-09"),
        Timestamp: (1_323_388_800_123, "2011-12-09 00:00:00.123"),
        Decimal(6, 2): (PyDecimal("-12.50"), "099987.49"),
    }
    for kind, (value, text) in golden.items():
        batch = {"ts": Column(np.array([0])), "v": Column(array([value], kind))}
        expr = parse("ordered(ts, v)", {"ts": Int64, "v": kind})
        assert evaluate(expr, batch, 1).values[0] == "062135596800000" + text
