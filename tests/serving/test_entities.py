"""The entities of a request: the fast way to their keys and buckets, and the one through Arrow."""

from __future__ import annotations

import datetime as dt
import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paimon_features.core.columns.column import Column
from paimon_features.core.errors import RequestError
from paimon_features.core.hashing.buckets import bucket_of
from paimon_features.core.types.schema import Bool, DataType, Date, Int32, Int64, String
from paimon_features.online.store.keys import entity_bytes, key_arrays
from paimon_features.serving.reading.entities import Buckets, entity_keys
from paimon_features.testing.sizes import cases

USUAL: dict[str, list[Any]] = {
    "int32": [0, 1, -1, 2**31 - 1, -(2**31)],
    "int64": [0, 7, -1, 2**63 - 1, -(2**63), 2**53 + 1],
    "string": ["", "a", "a|b", "\\", "|\\|", "é" * 9, "\x00", "long enough for two words"],
    "bool": [True, False],
    "date": [dt.date(1970, 1, 1), dt.date(1969, 12, 31), dt.date(2024, 2, 29)],
}
ODD: list[Any] = [
    None, 1.0, True, "7", 2**31, 2**63, -(2**63) - 1, b"a", "\ud800", dt.date(2020, 1, 1), [1], {},
    dt.datetime(2020, 1, 1), float("nan"),
]  # fmt: skip


def some_values(rng: random.Random, kind: DataType, rows: int) -> Any:
    odd = rng.random() < 0.2
    values = [
        rng.choice(ODD) if odd and rng.random() < 0.3 else rng.choice(USUAL[kind.text])
        for _ in range(rows)
    ]
    shape = rng.choice(("list", "list", "list", "tuple", "arrow", "numpy", "scalar"))
    if shape == "tuple":
        return tuple(values)
    if shape == "arrow" and not odd:
        return pa.array(values, kind.arrow)
    if shape == "numpy" and not odd and rows:  # an empty one has no type of its own
        return np.array(values)
    return rng.choice(("text", 5)) if shape == "scalar" and odd else values


@given(seed=st.integers(0, 2**32 - 1))
@cases(300)
def test_keys_are_those_that_arrow_gives_or_the_same_error(seed: int) -> None:
    rng = random.Random(seed)
    kinds = {
        name: rng.choice((Int32, Int64, Int64, String, String, Bool, Date))
        for name in rng.choice((["a"], ["a"], ["a", "b"], ["b", "a", "c"]))
    }
    rows = rng.choice((0, 1, 1, 3))
    entities = {name: some_values(rng, kind, rows) for name, kind in kinds.items()}
    if rng.random() < 0.05:
        entities.pop("a")
    if rng.random() < 0.05:
        entities["a"] = [1, 2, 3, 4, 5]
    try:
        arrays = key_arrays(kinds, entities)
    except RequestError as error:
        reported = str(error)
    else:
        reported = ""
    if reported:
        with pytest.raises(RequestError) as raised:
            entity_keys(kinds, entities)
        # of values, each way has its own words: Arrow's, and those of plain values
        same = "expected" not in reported and "null" not in reported
        assert not same or str(raised.value) == reported
        return
    keys = entity_keys(kinds, entities)
    assert list(keys.encoded) == entity_bytes(list(kinds.values()), arrays)
    assert {name: list(values) for name, values in keys.columns.items()} == {
        name: array.to_pylist() for name, array in zip(kinds, arrays, strict=True)
    }
    assert len(keys) == len(arrays[0])
    columns = [Column.from_arrow(array).values for array in arrays]
    buckets = Buckets(list(kinds.values()), 7, remembered=4)
    expected = bucket_of(columns, list(kinds.values()), 7).tolist()
    for _ in range(2):  # computed, and remembered
        assert buckets.of([keys]) == expected
    assert buckets.of([keys, keys]) == expected * 2


def test_no_more_buckets_are_remembered_than_allowed() -> None:
    buckets = Buckets([Int64], 5, remembered=10)
    for start in range(0, 100, 7):
        keys = entity_keys({"a": Int64}, {"a": list(range(start, start + 7))})
        expected = bucket_of([np.arange(start, start + 7)], [Int64], 5).tolist()
        assert buckets.of([keys]) == expected
        assert len(buckets) <= 10
