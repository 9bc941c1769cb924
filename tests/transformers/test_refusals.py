"""What transformers do not take: each refusal names the column or the setting and the remedy."""

from __future__ import annotations

import decimal
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from paimon_features.core.errors import TransformError
from paimon_features.transformers import (
    Clip,
    Frozen,
    HashingEncoder,
    OneHotEncoder,
    Passthrough,
    Pipeline,
    StandardScaler,
)
from paimon_features.transformers.base import new_transformer
from paimon_features.transformers.flink_ml.vectors import read_features, read_matrix

DECIMALS = pa.table({"a": pa.array([decimal.Decimal("1.5")])})
INFINITE = pa.table({"a": [1.0, np.inf]})
SCALED = StandardScaler().fit(pa.table({"a": [1.0, 2.0]}))
SPARSE = pa.struct(
    {"size": pa.int32(), "indices": pa.list_(pa.int32()), "values": pa.list_(pa.float64())}
)


def sparse(*sizes: int) -> pa.Table:
    vectors = [{"size": size, "indices": [0], "values": [1.0]} for size in sizes]
    return pa.table({"v": pa.array(vectors, SPARSE)})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: new_transformer("standard_scaler", {"x": 1}),
         "got an unexpected keyword argument 'x'; available: copy, with_mean, with_std"),
        (lambda: SCALED.merge(StandardScaler().fit(pa.table({"b": [1.0]}))),
         "a StandardScaler of a cannot be merged with one of b"),
        (lambda: Clip(low=0.0).fit_from_statistics([]),
         "this Clip can only be fitted on the rows"),
        (lambda: Frozen(SCALED).merge(Frozen(StandardScaler().fit([3.0]))),
         "different frozen transformers cannot be merged"),
        (lambda: OneHotEncoder().fit(DECIMALS),
         "column 'a' contains decimals; cast it to floats, or to strings"),
        (lambda: OneHotEncoder().fit(INFINITE),
         "column 'a' contains an infinite value; expected finite numbers or null"),
        (lambda: OneHotEncoder(categories=[[1, object()]]).fit([1.0]),
         "expected numbers, strings or booleans"),
        (lambda: HashingEncoder(8).fit(INFINITE), "column 'a' contains an infinite value"),
        (lambda: HashingEncoder(8).fit(DECIMALS), "column 'a' contains decimals; cast it to str"),
        (lambda: read_matrix(np.zeros((2, 2, 2))),
         "got an array of 3 dimensions; expected (rows, width)"),
        (lambda: read_features(pa.table({"v": ["x"]}), "v"),
         "column 'v' is string; expected numbers"),
        (lambda: read_features(pa.table({"v": [{"size": 3}]}), "v"),
         "column 'v' is a struct of size; a sparse vector has size, indices and values"),
        (lambda: read_features(sparse(3, 4), "v"), "column 'v' has vectors of the sizes [3, 4]"),
    ],
)  # fmt: skip
def test_what_is_not_taken_is_named(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(TransformError, match=re.escape(message)):
        call()


def test_a_row_of_numbers_is_a_column_of_a_matrix() -> None:
    assert np.array_equal(read_matrix([1, 2, 3]), [[1.0], [2.0], [3.0]])


def test_unfitted_transformers_are_equal_by_their_settings() -> None:
    assert StandardScaler() == StandardScaler()
    assert StandardScaler() != StandardScaler(with_mean=False)
    assert StandardScaler() != SCALED


def test_a_frozen_step_is_the_transformer_itself() -> None:
    frozen = Frozen(SCALED)
    assert frozen.merge(Frozen(SCALED)) is frozen
    assert frozen.inverse_transform(frozen.transform([5.0])) == [5.0]
    assert (frozen.is_scalar, frozen.numeric_output) == (SCALED.is_scalar, SCALED.numeric_output)
    assert frozen.get_params() == {"transformer": SCALED, "version": None}
    with pytest.raises(AttributeError, match="the names are those of the frozen transformer"):
        frozen.names = ("b",)


def test_passthrough_has_an_inverse_and_merges() -> None:
    one = Pipeline([("keep", Passthrough()), ("scale", StandardScaler())])
    data = [[1.0, 2.0], [3.0, 4.0]]
    one.fit(data)
    assert np.allclose(one.inverse_transform(one.transform(data)), data)
    merged = Passthrough().fit([[1.0, 2.0]]).merge(Passthrough().fit([[3.0, 4.0]]))
    assert merged.rows_seen == 2
    assert not merged.is_stateful


def test_nulls_of_a_large_integer_column_have_the_code_of_null() -> None:
    """Above the size where codes are searched for all values at once, as below it."""
    values = pa.table(
        {"a": pa.array([None if i % 7 == 0 else i % 5 for i in range(5_000)], pa.int64())}
    )
    fitted = OneHotEncoder().fit(values.slice(0, 100))
    together = fitted.transform(values)
    pieces = [fitted.transform(values.slice(at, 10)) for at in range(0, 5_000, 10)]
    assert together.equals(pa.concat_tables(pieces))
    nothing = OneHotEncoder(handle_unknown="ignore").fit(
        pa.table({"a": pa.array([None], pa.float64())})
    )
    large = nothing.transform(pa.table({"a": pa.array([1.0, None] * 2_500)}))
    assert large.column(0).to_pylist() == [0.0, 1.0] * 2_500
