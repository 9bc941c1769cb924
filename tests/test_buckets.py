"""Buckets hashed by column are Paimon's buckets, row by row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pypaimon import Schema
from pypaimon.schema.table_schema import TableSchema
from pypaimon.write.row_key_extractor import FixedBucketRowKeyExtractor

from paimon_features.core.errors import RequestError
from paimon_features.core.hashing import buckets
from paimon_features.core.hashing.buckets import bucket_of
from paimon_features.core.native import CORE, Core
from paimon_features.core.types.schema import Bool, DataType, Date, Float64, Int32, Int64, String
from paimon_features.testing.sizes import cases

VALUES: dict[DataType, st.SearchStrategy[Any]] = {
    Int64: st.integers(-(2**63), 2**63 - 1),
    Int32: st.integers(-(2**31), 2**31 - 1),
    Bool: st.booleans(),
    Date: st.integers(-700_000, 2_900_000),
    # around the seven bytes that stand inline, in letters of one to four bytes
    String: st.one_of(
        st.text(alphabet="aß漢𝄞", max_size=9), st.text(max_size=40), st.just("\x00" * 7)
    ),
}


def column(values: list[Any], kind: DataType) -> Any:
    types = {Int64: np.int64, Int32: np.int32, Bool: np.bool_, Date: np.int32, String: object}
    return np.array(values, types[kind])


def naive(columns: list[list[Any]], types: list[DataType], num_buckets: int) -> list[int]:
    """pypaimon's own implementation, one row at a time."""
    names = [f"c{i}" for i in range(len(types))]
    schema = pa.schema([pa.field(n, t.arrow) for n, t in zip(names, types, strict=True)])
    options = {"bucket": str(num_buckets), "bucket-key": ",".join(names)}
    table = TableSchema.from_schema(0, Schema.from_pyarrow_schema(schema, options=options))
    arrays = [
        pa.array(values, pa.int32()).view(pa.date32()) if t is Date else pa.array(values, t.arrow)
        for values, t in zip(columns, types, strict=True)
    ]
    batch = pa.record_batch(arrays, schema=schema)
    return list(FixedBucketRowKeyExtractor(table)._extract_buckets_batch(batch))


@st.composite
def keys(draw: st.DrawFn) -> tuple[list[list[Any]], list[DataType]]:
    types = draw(st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=4))
    rows = draw(st.integers(0, 12))
    return [draw(st.lists(VALUES[t], min_size=rows, max_size=rows)) for t in types], types


@cases(150)
@given(keys(), st.integers(1, 1000))
def test_any_composite_key_has_the_bucket_of_pypaimon(
    drawn: tuple[list[list[Any]], list[DataType]], num_buckets: int
) -> None:
    columns, types = drawn
    arrays = [column(values, kind) for values, kind in zip(columns, types, strict=True)]
    expected = naive(columns, types, num_buckets)
    for core in (CORE, None):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(buckets, "CORE", core)
            got = bucket_of(arrays, types, num_buckets)
        assert got.dtype == np.int32
        assert got.tolist() == expected


@pytest.mark.parametrize("core", [CORE, None])
def test_more_than_56_columns_need_a_second_word_of_null_bits(
    core: Core | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buckets, "CORE", core)
    columns = [[i, -i] for i in range(60)]
    types = [Int64] * 60
    arrays = [np.array(values) for values in columns]
    assert bucket_of(arrays, types, 97).tolist() == naive(columns, types, 97)


def test_known_buckets_do_not_move() -> None:
    customers = np.array([12346, 12347, 17850, -1, 0, 2**62])
    assert bucket_of([customers], [Int64], 16).tolist() == [4, 5, 14, 0, 11, 2]
    countries = np.array(["United Kingdom", "EIRE", "", "Côte d'Ivoire"], object)
    assert bucket_of([countries], [String], 16).tolist() == [14, 1, 7, 4]


def test_an_invalid_bucket_key_is_rejected() -> None:
    one = np.array([1])
    for columns, types, count, message in (
        ([one], [Float64], 4, "cannot be Float64"),
        ([one], [Int64], 0, "at least one bucket"),
        ([np.array(["a", None], object)], [String], 4, "cannot be null"),
        ([np.array([1, None], object)], [Int64], 4, "cannot be null"),
        ([np.array([1, 2], object)], [String], 4, "string column"),
        ([one, np.array([1, 2])], [Int64, Int64], 4, "different lengths"),
        ([], [], 4, "0 columns"),
    ):
        with pytest.raises(RequestError, match=message):
            bucket_of(columns, types, count)
