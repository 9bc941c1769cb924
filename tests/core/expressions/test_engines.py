"""NumPy and DuckDB against the row-by-row evaluator, on random expressions and edge values."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paimon_features.core.columns.column import Column
from paimon_features.core.expressions import Expression, evaluate, overflow_guard, parse, to_duckdb
from paimon_features.core.types.schema import Bool, Decimal, Float64, Int64, String
from paimon_features.testing.reference.expressions import UnsafeStepError, evaluate_row
from paimon_features.testing.sizes import cases
from tests.expression_generator import (
    COLUMNS,
    agree,
    beyond_scale,
    edge_rows,
    random_expression,
    to_arrow,
)

ROWS = edge_rows(random.Random(7), 80)
TABLE = to_arrow(ROWS)
BATCH = {name: Column.from_arrow(TABLE[name]) for name in COLUMNS}
KINDS = [Int64, Float64, String, Bool, Decimal(10, 2)]


@pytest.fixture(scope="module")
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as opened:
        opened.register("edges", TABLE)
        yield opened


def naive(expr: Expression) -> list[Any]:
    """Values of all rows; UnsafeStepError itself where the guard has to be false."""

    def value(row: dict[str, Any]) -> Any:
        try:
            return evaluate_row(expr, row)
        except UnsafeStepError:
            return UnsafeStepError

    return [value(row) for row in ROWS]


def numpy(expr: Expression) -> list[Any]:
    column = evaluate(expr, BATCH, len(ROWS))
    assert len(column) == len(ROWS)
    return [v if m else None for v, m in zip(column.values.tolist(), column.mask, strict=True)]


def in_duckdb(connection: duckdb.DuckDBPyConnection, expr: Expression) -> list[Any]:
    return [v for (v,) in connection.execute(f"SELECT {to_duckdb(expr)} FROM edges").fetchall()]


def check(expr: Expression, engine: str, got: list[Any], guard: list[Any] | None) -> None:
    for row, value, expected in zip(ROWS, got, naive(expr), strict=True):
        if beyond_scale(expr, row):
            continue
        safe = expected is not UnsafeStepError
        verdict = True if guard is None else guard[ROWS.index(row)]
        assert verdict is safe, (engine, expr.text, row)
        if safe:
            assert agree(value, expected, expr.type), (engine, expr.text, row, value, expected)


@cases(300)
@given(seed=st.integers(0, 2**32), kind=st.sampled_from(KINDS), depth=st.integers(1, 4))
def test_numpy_and_duckdb_equal_the_reference_implementation(
    connection: duckdb.DuckDBPyConnection, seed: int, kind: Any, depth: int
) -> None:
    expr = random_expression(random.Random(seed), kind, depth)
    assert parse(expr.text, COLUMNS) == expr
    guard = overflow_guard(expr)
    check(expr, "numpy", numpy(expr), None if guard is None else numpy(guard))
    guard_values = None if guard is None else in_duckdb(connection, guard)
    check(expr, "duckdb", in_duckdb(connection, expr), guard_values)
