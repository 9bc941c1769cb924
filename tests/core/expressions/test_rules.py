"""Rules of the expression language by expected values: nulls, zeros, rounding, order."""

from __future__ import annotations

from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from paimon_features.core.columns.column import Column
from paimon_features.core.expressions import evaluate, overflow_guard, parse, to_duckdb
from paimon_features.core.types.schema import Bool, Float64, Int64, String
from paimon_features.testing.reference.expressions import evaluate_row

COLUMNS = {"i": Int64, "x": Float64, "s": String, "b": Bool}
ROW: dict[str, Any] = {"i": -7, "x": 2.5, "s": "äÄß\U0001f600", "b": None}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # integers and floats
        ("5 / 2", 2.5),
        ("i // 2", -4),
        ("i % 2", 1),
        ("i % -2", -1),
        ("-7 // 2", -4),
        ("i / (i + 7)", None),
        ("i // (i + 7)", None),
        ("i % (i + 7)", None),
        ("CAST(x AS int64)", 2),
        ("CAST(-x AS int64)", -2),
        ("CAST(x * 1e30 AS int64)", None),
        ("round(x)", 2.0),
        ("round(x + 1)", 4.0),
        ("round(-x)", -2.0),
        ("floor(-x)", -3.0),
        ("x * 0 = -x * 0", True),
        ("sqrt(-x)", None),
        ("ln(x - x)", None),
        # nulls
        ("b AND FALSE", False),
        ("b AND TRUE", None),
        ("b OR TRUE", True),
        ("b OR FALSE", None),
        ("NOT b", None),
        ("b = b", None),
        ("b IS NULL", True),
        ("i + CAST(NULL AS int64)", None),
        ("concat(s, NULL)", None),
        ("least(i, NULL)", None),
        ("coalesce(NULL, i)", -7),
        ("CASE WHEN b THEN 1 ELSE 2 END", 2),
        ("CASE WHEN FALSE THEN 1 END", None),
        ("i IN (1, 2)", False),
        # edges and order
        ("i BETWEEN -7 AND -7", True),
        ("bucket(x, 1, 2.5, 3)", 2),
        ("bucket(x, 3, 4)", 0),
        ("ratio(i, i + 7)", None),
        ("ratio(i, 2)", -3.5),
        ("ratio(x, i + 7, zero=3)", 3.0),
        ("ratio(CAST(NULL AS float64), i + 7, zero=3)", None),
        ("log_ratio(x, i + 7)", None),
        ("log_ratio(i + 7, i + 7, add=1)", 0.0),
        ("hash_cross(s, CAST(NULL AS string), buckets=7)", None),
        ("max(x, CAST(NULL AS float64))", None),
        ("length(s)", 4),
        ("upper(s)", "ÄÄß\U0001f600"),
        ("'B' < 'a'", True),
        ("'\uffff' < '\U0001f600'", True),
        ("'a ' = 'a'", False),
    ],
)
def test_a_text_means_the_same_by_hand_and_in_each_engine(text: str, expected: Any) -> None:
    expression = parse(text, COLUMNS)
    batch = {
        name: Column.from_arrow(pa.array([ROW[name]], kind.arrow)) for name, kind in COLUMNS.items()
    }
    found = evaluate(expression, batch, rows=1)
    (by_numpy,) = found.to_arrow(expression.type.arrow).to_pylist()
    table = pa.table({name: pa.array([ROW[name]], kind.arrow) for name, kind in COLUMNS.items()})
    with duckdb.connect() as connection:
        connection.register("given", table)
        (by_duckdb,) = connection.execute(f"SELECT {to_duckdb(expression)} FROM given").fetchone()  # type: ignore[misc]
    assert [by_numpy, by_duckdb, evaluate_row(expression, ROW)] == [expected] * 3


def test_a_step_beyond_64_bits_is_guarded_and_a_branch_that_is_not_taken_is_not() -> None:
    large = {"i": Column(np.array([2**62, 1]))}
    for text, fits in [
        ("i * 4", [False, True]),
        ("CASE WHEN i < 9 THEN i * 4 ELSE 0 END", [True, True]),
        ("i < 9 AND i * 4 > 0", [False, True]),
    ]:
        guard = overflow_guard(parse(text, {"i": Int64}))
        assert guard is not None
        assert evaluate(guard, large, rows=2).values.tolist() == fits
    assert overflow_guard(parse("i // 4", {"i": Int64})) is None
