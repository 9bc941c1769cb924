"""What is computed without Arrow, as on a serving host, equals what Arrow gives."""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paimon_features.core.columns.column import Column
from paimon_features.core.hashing import buckets
from paimon_features.core.hashing.buckets import bucket_of
from paimon_features.core.types.schema import (
    Bool,
    Bytes,
    DataType,
    Date,
    Decimal,
    Float32,
    Float64,
    Int32,
    Int64,
    List,
    Map,
    String,
    Timestamp,
)
from paimon_features.definitions.aggregates import text_lists
from paimon_features.definitions.aggregates.text_lists import (
    as_texts,
    join_texts,
    sort_texts,
    split_texts,
)
from paimon_features.transformers import category_index, murmur
from paimon_features.transformers.category_index import CategoryIndex, counted
from paimon_features.transformers.murmur import hash_texts

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
INTS = st.integers(-(2**31), 2**31 - 1)
DAYS = st.dates(dt.date(1, 1, 1), dt.date(9999, 12, 31))
TIMES = st.datetimes(dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31)).map(
    lambda at: at.replace(microsecond=at.microsecond // 1000 * 1000)
)
DECIMALS = st.integers(-(10**9), 10**9).map(lambda n: decimal.Decimal(n).scaleb(-2))
FLOATS = st.floats(allow_nan=False, allow_infinity=False, width=32)
VALUES: list[tuple[DataType, st.SearchStrategy[Any]]] = [
    (Bool, st.booleans()), (Int32, INTS), (Int64, INTS), (Float32, FLOATS), (Float64, FLOATS),
    (String, TEXTS), (Bytes, st.binary(max_size=5)), (Date, DAYS), (Timestamp, TIMES),
    (Decimal(12, 2), DECIMALS), (List(Float32), st.lists(st.none() | FLOATS, max_size=3)),
    (List(Date), st.lists(DAYS, max_size=2)), (List(Timestamp), st.lists(TIMES, max_size=2)),
    (List(Decimal(12, 2)), st.lists(DECIMALS, max_size=2)),
    (List(String), st.lists(st.none() | TEXTS, max_size=3)),
    (Map(String, Int64), st.dictionaries(TEXTS, INTS, max_size=3).map(lambda d: [*d.items()])),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "values"), VALUES, ids=lambda kind: getattr(kind, "text", ""))
@given(data=st.data())
def test_python_values_of_a_column_are_those_of_its_arrow_array(
    kind: DataType, values: st.SearchStrategy[Any], data: st.DataObject
) -> None:
    drawn = data.draw(st.lists(st.none() | values, max_size=5))
    array = pa.array(drawn, kind.arrow)
    column = Column.from_arrow(array)
    assert column.to_pylist(kind) == array.to_pylist()
    assert column.to_pylist(kind) == column.to_arrow(kind.arrow).to_pylist()


def both_ways(
    monkeypatch: pytest.MonkeyPatch, module: Any, compute: Callable[[], Any]
) -> tuple[Any, Any]:
    """With Arrow, and as where it is not loaded."""
    with_arrow = compute()
    monkeypatch.setattr(module, "arrow_loaded", lambda: False)
    return with_arrow, compute()


WORDS = [f"{'ä€😀'[i % 3]}{i * 7919 % 4001}" for i in range(5_000)]


def test_buckets_of_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    column = as_texts([*WORDS, "", "x" * 100])
    found = both_ways(monkeypatch, buckets, lambda: bucket_of([column], [String], 13).tolist())
    assert found[0] == found[1]


def test_hashes_of_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    column = as_texts([*WORDS, *WORDS, ""])
    found = both_ways(monkeypatch, murmur, lambda: hash_texts(column, 7).tolist())
    assert found[0] == found[1]


def test_codes_and_counts_of_categories(monkeypatch: pytest.MonkeyPatch) -> None:
    values = as_texts([*WORDS, *WORDS[:9]])
    column = Column(values, np.arange(len(values)) % 11 != 0)
    known = CategoryIndex(sorted(set(WORDS[::3])))

    def compute() -> Any:
        return known.codes(column).tolist(), sorted(
            counted(column, "x").items(), key=lambda item: str(item)
        )

    found = both_ways(monkeypatch, category_index, compute)
    assert found[0] == found[1]


def test_lists_of_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = as_texts([",".join(WORDS[i : i + i % 5 + 1]) for i in range(1_000)])
    column = Column(rows, np.arange(1_000) % 7 != 0)

    def compute() -> Any:
        sizes, words, codes = split_texts(column, ",")
        ordered, ranks = sort_texts(words)
        offsets = np.concatenate([[0], np.cumsum(sizes)])
        items = ordered[ranks[codes]]
        return ordered.tolist(), sizes.tolist(), join_texts(items, offsets, ",").tolist()

    found = both_ways(monkeypatch, text_lists, compute)
    assert found[0] == found[1]
    assert found[0][0] == sorted(found[0][0], key=str.encode)
    expected = ["" if i % 7 == 0 else text for i, text in enumerate(rows.tolist())]
    assert found[0][2] == expected
