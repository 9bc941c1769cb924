"""What Flink's planner is spared: constant parts, and bounds where one operand is a constant."""

from __future__ import annotations

from itertools import product

import duckdb
import numpy as np
import pytest

from paimon_features.core.columns.column import Column
from paimon_features.core.expressions import evaluate, overflow_guard, parse, to_flink
from paimon_features.core.expressions.constant_folding import fold
from paimon_features.core.types.schema import Bool, Float64, Int64, String
from paimon_features.testing.reference.expressions import evaluate_row

COLUMNS = {"i": Int64, "x": Float64, "s": String, "p": Bool}
SMALL, LARGE = -(2**63), 2**63 - 1


@pytest.mark.parametrize(
    ("text", "folded"),
    [
        ("i + 2 * 3", "i + 6"),
        ("2 * 3.5 - 7", "0.0"),
        ("1 // nullif(1 - 1, 0)", "CAST(NULL AS int64)"),
        ("p AND 1 = 1", "p"),
        ("p AND 1 = 2", "FALSE"),
        ("p OR 1 = 1", "TRUE"),
        ("p OR 1 = 2", "p"),
        ("1 = 1 AND 2 = 2", "TRUE"),
        ("1 = 2 OR 2 = 3", "FALSE"),
        ("1 = 1 AND NULL", "CAST(NULL AS bool)"),
        ("p AND NULL", "p AND CAST(NULL AS bool)"),
        ("coalesce(CAST(NULL AS string), NULL)", "CAST(NULL AS string)"),
        ("coalesce(NULL, i, 1, 2)", "coalesce(i, 1)"),
        ("coalesce(NULL, s)", "s"),
        ("CASE WHEN 1 = 2 THEN i WHEN p THEN 1 WHEN TRUE THEN 2 ELSE 3 END",
         "CASE WHEN p THEN 1 ELSE 2 END"),
        ("CASE WHEN 1 = 1 THEN s END", "s"),
        # what has no value of its type remains for the guard and for FINITE
        ("9223372036854775807 + 1 > i", "9223372036854775807 + 1 > i"),
        ("1e300 * 1e300 + x", "1e+300 * 1e+300 + x"),
    ],
)  # fmt: skip
def test_a_folded_expression_has_the_same_values(text: str, folded: str) -> None:
    expr = parse(text, COLUMNS)
    found = fold(expr)
    assert (found.text, found.type) == (folded, expr.type)
    if overflow_guard(expr) is None:
        for i, p in product((-7, None), (True, False, None)):
            row = {"i": i, "x": 2.5, "s": "a", "p": p}
            assert evaluate_row(found, row) == evaluate_row(expr, row), row


EDGES = sorted(
    {
        edge + step
        for edge in (SMALL, SMALL // 2, SMALL // 3, 0, LARGE // 3, LARGE // 2, LARGE)
        for step in range(-9, 10)
        if SMALL <= edge + step <= LARGE
    }
)


@pytest.mark.parametrize(
    "text",
    [
        "i + 5", "-5 + i", "i - 5", "i - (-5)", "5 - i", "-5 - i", "i * 3", "i * -3", "-2 * i",
        "i * -1", "i * CAST(0.5 AS int64)", "CAST(NULL AS int64) - i",
        "i - (-9223372036854775808)", "-9223372036854775808 - i", "i * -9223372036854775808",
    ],
)  # fmt: skip
def test_the_bounds_that_flink_tests_are_those_of_the_guard(text: str) -> None:
    """Their SQL is plain enough for DuckDB, but for its quotes."""
    guard = overflow_guard(parse(text, {"i": Int64}))
    assert guard is not None
    expected = evaluate(guard, {"i": Column(np.array(EDGES))}, len(EDGES))
    with duckdb.connect() as connection:
        connection.execute("CREATE TABLE edges AS SELECT unnest($1) AS i", [EDGES])
        sql = to_flink(guard).replace("`", '"')
        found = connection.execute(f"SELECT {sql} FROM edges").fetchall()
    assert [one for (one,) in found] == expected.values.tolist()
