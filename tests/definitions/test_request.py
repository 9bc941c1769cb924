"""Request inputs: what may be given for them, online and in entity rows."""

from __future__ import annotations

import datetime as dt
import decimal
import re
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from paimon_features.core.errors import RequestError
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
from paimon_features.definitions.request import request_columns, row_inputs
from paimon_features.definitions.request_values import input_column, key_values

MIDNIGHT = dt.datetime(2011, 12, 9, tzinfo=dt.timezone(dt.timedelta(hours=1)))


def given(kind: DataType, value: Any, rows: int = 2) -> list[Any]:
    column = request_columns({"x": kind}, {"x": value}, rows)["x"]
    assert len(column) == rows
    values = column.to_pylist(kind)
    assert values == column.to_arrow(kind.arrow).to_pylist()
    return values


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (Float64, 1, [1.0, 1.0]), (Float64, [1, 2.5], [1.0, 2.5]), (Float64, None, [None, None]),
        (Float64, [None, 2], [None, 2.0]), (Float64, np.float32(0.5), [0.5, 0.5]),
        (Float64, pl.Series([1.0, 2.0]), [1.0, 2.0]),
        (Float64, pd.Series([1.0, None]), [1.0, None]),
        (Int64, [1.0, 2.0], [1, 2]), (Int32, np.array([1, 2]), [1, 2]), (Int64, (3, 4), [3, 4]),
        (Float32, 0.1, [float(np.float32(0.1))] * 2),
        (String, "ab", ["ab", "ab"]), (String, ["a", None], ["a", None]),
        (String, pa.array(["a", "b"]).dictionary_encode(), ["a", "b"]),
        (String, pa.chunked_array([["a"], ["b"]]), ["a", "b"]),
        (String, pa.scalar("s"), ["s", "s"]), (Bool, True, [True, True]),
        (Date, dt.date(2011, 12, 9), [dt.date(2011, 12, 9)] * 2),
        (Timestamp, MIDNIGHT, [dt.datetime(2011, 12, 8, 23)] * 2),
        (Timestamp, 1500, [dt.datetime(1970, 1, 1, 0, 0, 1, 500_000)] * 2),
        (Timestamp, np.datetime64("1969-12-31T23:59:59.999999"),
         [dt.datetime(1969, 12, 31, 23, 59, 59, 999_000)] * 2),
        (Decimal(10, 2), decimal.Decimal("1.5"), [decimal.Decimal("1.50")] * 2),
        (Decimal(10, 2), [1, None], [decimal.Decimal("1.00"), None]),
    ],
)  # fmt: skip
def test_a_single_value_applies_to_all_entities_and_a_sequence_to_each(
    kind: DataType, value: Any, expected: list[Any]
) -> None:
    assert given(kind, value) == expected


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        (Float64, "1", "request input 'x': expected Float64 values; got '1' in row 0"),
        (Float64, float("nan"), "got nan; expected finite numbers in row 0"),
        (Float64, [1.0, float("inf")], "got inf; expected finite numbers in row 1"),
        (Float32, 1e300, "got 1e.*300; expected finite numbers of 32 bits"),
        (Int64, 1.5, "1.5 is not an integer, and would be truncated"),
        (Int64, True, "expected Int64 values; got True"),
        (Int32, 2**40, "not in range"),
        (Int64, 2**70, "not in range"),
        (Int64, [2**53 + 0.0, 2.0**70], "not in range"),
        (Float64, 2**53 + 1, "not in range"),
        (String, b"x", "got b'x'; expected a string"),
        (Bool, 1, "got 1; expected a boolean"),
        (Date, MIDNIGHT, "got datetime.*; expected a date"),
        (Decimal(10, 2), 1.5, "got 1.5; expected an integer or a decimal"),
        (Decimal(10, 2), decimal.Decimal("1.555"), "would be rounded to 2 digits"),
        (Float64, [1, 2, 3], "has 3 values for 2 entities"),
        (Float64, [1], "has 1 values for 2 entities"),
        (Float64, object(), "expected Float64 values"),
    ],
)
def test_nothing_is_parsed_cut_or_guessed(kind: DataType, value: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        given(kind, value)


def test_errors_of_missing_and_unknown_inputs_list_the_expected_ones() -> None:
    inputs = {"amount": Float64, "currency": String}
    with pytest.raises(RequestError, match=r"input 'currency'; expected request= with: amount"):
        request_columns(inputs, {"amount": 1.0}, 1)
    with pytest.raises(RequestError, match=r"input 'amount'"):
        request_columns(inputs, None, 1)
    with pytest.raises(RequestError, match="'price' is used by none .* they take: amount .Float64"):
        request_columns(inputs, {"amount": 1.0, "currency": "EUR", "price": 1.0}, 1)
    with pytest.raises(RequestError, match="they take: no inputs"):
        request_columns({}, {"price": 1.0}, 1)
    assert request_columns({}, None, 3) == {}
    assert len(request_columns({"amount": Float64}, {"amount": 1}, 0)["amount"]) == 0


def test_entity_rows_have_the_inputs_as_columns() -> None:
    rows = pa.table({"amount": pa.chunked_array([[1], [None]], pa.int32()), "other": ["a", "b"]})
    assert row_inputs({"amount": Float64}, rows)["amount"].to_pylist() == [1.0, None]
    empty = pa.table({"amount": pa.chunked_array([], pa.float64())})
    assert len(row_inputs({"amount": Float64}, empty)["amount"]) == 0
    with pytest.raises(RequestError, match=r"no column 'price', a request input \(Float64\)"):
        row_inputs({"price": Float64}, rows)
    with pytest.raises(RequestError, match="request input 'other' is string, expected Float64"):
        row_inputs({"other": Float64}, rows)


@pytest.mark.parametrize(
    ("kind", "given", "expected"),
    [
        (Int64, [decimal.Decimal("7"), None, -(2**63)], [7, None, -(2**63)]),
        (String, [b"a", "\xe4", None], ["a", "\xe4", None]),
        (Date, [15_000, dt.date(2011, 1, 26), dt.datetime(2011, 1, 26, 5)],
         [dt.date(2011, 1, 26)] * 3),
    ],
)  # fmt: skip
def test_keys_of_each_form_are_values_of_their_type(
    kind: DataType, given: list[Any], expected: list[Any]
) -> None:
    assert key_values(kind, given) == expected


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        (Float64, 1.5, "an entity key cannot be Float64"),
        (Date, "2011-01-26", "got '2011-01-26'; expected a date"),
        (Int64, decimal.Decimal("7.5"), "got Decimal"),
        (Int64, 2**63, "is not in range"),
    ],
)
def test_a_key_of_another_type_is_refused(kind: DataType, value: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        key_values(kind, [value])


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (decimal.Decimal("1E+90"), "expected a decimal of 5 digits in row 1"),
        (decimal.Decimal("NaN"), "expected a decimal of 5 digits in row 1"),
        (12_345, "12345 has more than 5 digits in row 1"),
        (decimal.Decimal("1.005"), "1.005 would be rounded to 2 digits after the point in row 1"),
    ],
)
def test_a_decimal_that_does_not_fit_is_named_with_its_row(value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        input_column(Decimal(5, 2), [decimal.Decimal("1.25"), value])
