"""Real Flink against the row-by-row evaluator: every operator and function, and random ones."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import duckdb
import pytest

from paimon_features.core.columns.column import Column
from paimon_features.core.expressions import evaluate, overflow_guard, parse, to_duckdb, to_flink
from paimon_features.core.expressions.nodes import Expression
from paimon_features.core.types.schema import Bool, Decimal, Float64, Int32, Int64, List, String
from paimon_features.testing.reference.expressions import UnsafeStepError, evaluate_row
from paimon_features.testing.sizes import many
from tests.expression_generator import (
    COLUMNS,
    Rows,
    agree,
    beyond_scale,
    edge_rows,
    random_expression,
    to_arrow,
)

LISTS = {"v": List(Float64, 3), "z": List(Int32)}
ALL = {**COLUMNS, **LISTS}


def rows_with_lists() -> Rows:
    rng = random.Random(11)
    rows = edge_rows(rng, 60)
    for row in rows:
        row["v"] = rng.choice((None, [0.5, -1.5, 1e300], [rng.gauss(0, 1), None, 0.0], [1.0]))
        row["z"] = rng.choice((None, [], [7], [rng.randrange(-9, 9), None, 2**31 - 1]))
    return rows


ROWS = rows_with_lists()

EVERY_OPERATOR = """
i | k | x | f | s | p | m | n
i + j | i - j | i * j | -i | abs(i) | k * k | k + 1 | i // j | i % j | i // 7 | i % 7
i // -7 | i % -7 | i // k | i % k | k // -1 | k % -1 | i % 9223372036854775807
x + y | x - y | x * y | x / y | -x | abs(x) | i / j | i / 2 | x + i | f * 3 | k / 3 | x - 0.1
floor(x) | ceil(x) | round(x) | round(-x) | round(y / 2) | floor(i) | sqrt(x) | sqrt(abs(y))
exp(x / 1e3) | ln(x) | ln(abs(x)) | exp2(f) | exp2(k / 1e8) | power(x, 2) | power(x, k / 1e6)
power(x, 0.5) | power(y, -3) | power(2, x)
least(i, j) | greatest(i, j, k) | least(x, y) | greatest(x, i) | least(d, DATE '2000-01-01') = d
greatest(w, TIMESTAMP '2000-01-01') = w
i = j | i <> j | i < j | i <= j | i > j | i >= j | i = x | k < f | x = y | x <> y | x < y | x >= y
x = 0 | x <> 0 | 0 = x | x = 0 OR x = 0.5 OR x = 1.5 OR x = 2.5 OR x = 3 | i = 0 OR i = 1 OR i = 2
x BETWEEN -1 AND 1.5 | x NOT BETWEEN -1 AND 1.5 | x > 0 AND x < 3 OR x < -100 | NOT (x > 0)
x IN (0) | x IN (0, 1, 2.5) | x NOT IN (0, 0.5, 1, 1.5, 2.5, 3, 0.1) | i IN (0, 1, 2.5) | i IN (-1)
s = t | s <> t | s < t | s <= t | s > t | s >= t | s < '😀' | s > '\uffff'
s IN ('a', '', 'it''s', '\\')
s = 'a' OR s = 'A' OR s = '😀' OR s = '\uffff' | s NOT IN ('ÄÖ') | s = 'a ' | s = ''
lower(s) | upper(s) | length(s) | concat(s, '-', t) | concat(s, CAST(i AS string))
d = DATE '2011-12-09' | d < DATE '1970-01-01' | d IN (DATE '0001-01-01', DATE '9999-12-31')
w = TIMESTAMP '2011-12-09 00:00:00.123' | w >= TIMESTAMP '1970-01-01'
w < TIMESTAMP '1969-12-31 23:59:59.999'
m = n | m < n | m = 2.5 | m > 0 | m <= i | n IN (2.5, 0.0015) | m IN (0.05) | n BETWEEN 0 AND 2.5
coalesce(m, n, 0.5) > 1 | CASE WHEN m > 0 THEN m ELSE n END = 0 | coalesce(m, 0) = 0
p = q | p <> q | p AND q | p OR q | NOT p | p AND NULL | p OR NULL | p IS NULL | NOT p IS NOT NULL
x IS NULL | s IS NOT NULL | i + j IS NULL | NOT (p AND q) | NOT (i > 0 OR i < -5)
CASE WHEN p THEN 1 WHEN q THEN 2 ELSE 3 END | CASE WHEN p THEN s END
CASE WHEN i > j THEN x ELSE i END
CASE WHEN x > 1 THEN 'one' WHEN x > 0 THEN 'a' ELSE '' END
CASE WHEN p IS NULL THEN 'x' ELSE 'long' END
CASE WHEN j <> 0 THEN i // j ELSE 0 END | CASE WHEN abs(k) < 100 THEN i * k ELSE 0 END
coalesce(i, j) | coalesce(x, y, 0) | coalesce(s, t, '?') | coalesce(p, q, FALSE) | nullif(i, 0)
nullif(s, '')
nullif(x, 0) | 1 / nullif(x, 0) | coalesce(CAST(NULL AS int64), i)
CAST(x AS int64) | CAST(-x AS int64) | CAST(i AS float64) | CAST(p AS int64) | CAST(p AS float64)
CAST(x AS bool) | CAST(i AS bool) | CAST(i AS string) | CAST(p AS string) | CAST(m AS float64)
CAST(n AS float64)
finite(x) | NOT finite(x) | finite(x * y) | NOT finite(x * y) | NOT finite(x * y - y * x)
finite(i)
CASE WHEN finite(x * y) THEN 1 ELSE 0 END | CASE WHEN NOT finite(x * y) THEN 1 ELSE 0 END
scaled_int(x, 0) | scaled_int(x, 2) | scaled_int(x, 9) | scaled_int(y, 3) | scaled_int(f, 5)
scaled_int(i, 0) | scaled_int(i, 2) | scaled_int(k, 3) | scaled_int(k, 9)
scaled_int(m, 0) | scaled_int(m, 1) | scaled_int(m, 2) | scaled_int(m, 4) | scaled_int(n, 2)
scaled_int(n, 3) | scaled_int(n, 5) | scaled_int(n, 6) | scaled_int(n, 9) | scaled_int(n, 0)
ordered(k, i) | ordered(k, k) | ordered(k, x) | ordered(k, f) | ordered(k, s) | ordered(k, p)
ordered(k, d) | ordered(k, w) | ordered(k, m) | ordered(k, n) | ordered(i % 200000000000000, -x)
ordered(-62135596800000, s) | ordered(253402300799999, s) | ordered(k, x * 0.001)
item(i) | item(k, i) | item(i, j) | item(s) | item(s, t) | item(s, t, s) | item(x) | item(k, x, p)
item(p, d) | item(d, w) | item(m, n) | item(k, s IS NULL, s, x) | item(k, t, m) | item(-x, f, s)
item(concat(s, ',+')) | item(i, 'a,b+c') | item(7, i) | item('a+b', i) | item(coalesce(i, 0))
md5(s) | distinct_item(md5(s)) | md5(item(i)) | md5(item(x))
CASE WHEN p THEN distinct_item(md5(t)) END | CASE WHEN p THEN item(i, s) END
element(v, 1) | element(v, 3) * 2 | element(z, 1) | element(z, 3) + 1 | element(z, 2) IS NULL
size(v) | size(z) | v IS NULL | size(v) = 3 AND element(v, 2) > 0
distinct_item(md5(concat(CAST(i AS string), CAST(j AS string))))
fits_add(i, j) | fits_sub(i, j) | fits_mul(i, j) | fits_neg(i) | fits_floordiv(i, j)
fits_mul(i, k)
bucket(i, 1) | bucket(i, -7, 0, 3, 9223372036854775807) | bucket(k, 0, 7) | bucket(i, 0.5, 2.5)
bucket(x, 0) | bucket(x, -2.5, 0.1, 0.5, 2.5, 3) | bucket(x * y, 1) | bucket(f, 0.25, 1e7)
bucket(d, DATE '1970-01-01', DATE '2000-01-01') | bucket(w, TIMESTAMP '1970-01-01')
hash_bucket(s, 1) | hash_bucket(s, 1000) | hash_bucket(s, 2147483648) | hash_bucket('a', 7)
hash_cross(s, buckets=10) | hash_cross(s, t, i, k, p, buckets=100000)
bucket(i, 1, 2) * 10 + hash_bucket(s, 10) | sum(x, y, i) | product(x, i) | product(i, k, 2)
difference(x, y) | difference(i, k) | abs_difference(x, y) | abs_difference(i, j)
ratio(x, y) | ratio(x, y, zero=0) | ratio(i, k, zero=-1.5) | ratio(1, x, zero=0)
ratio(i, j, zero=1)
log_ratio(abs(x), abs(y)) | log_ratio(i, k, add=1) | log_ratio(x, y, add=0.5)
min(i, j, k) | max(x, i) | equal(s, t) | equal(i, x) | equal(p, q) | equal(m, n)
year(w) | month(d) | day(i % 10000000000000) | day_of_week(w) | day_of_year(d) | week(w)
hour(w) | minute(w) | second(w) | is_weekend(d) | hour(w, 'Asia/Kathmandu') | age_days(d, w)
date_trunc('month', w) = w | date_trunc('year', d) = d | date_trunc('week', i % 10000000000000)
date_trunc('day', w, 'Asia/Kathmandu') = w | hour(i)
TRUE | 5 | -9223372036854775808 | 'it''s é 😀' | 0.1 | 5e-324 | 1.7976931348623157e308 | -2.5e-7
DECIMAL '12.50' | 5 // (3 - 3) | 5 / (i - i) | i // (i - i) | CAST(NULL AS float64)
"""
TEXTS = [text.strip() for text in EVERY_OPERATOR.replace("\n", " | ").split(" | ") if text.strip()]
KINDS = [Int64, Float64, String, Bool, Decimal(10, 2)]
LAST_BITS = ("exp(", "exp2(", "ln(", "power(")

Values = Callable[[Expression], list[Any]]


@pytest.fixture(scope="module")
def expressions() -> list[Expression]:
    """All texts, random expressions, and the guards of them all."""
    rng = random.Random(5)
    plain = [parse(text, ALL) for text in TEXTS]
    drawn = [random_expression(rng, rng.choice(KINDS), rng.randint(1, 3)) for _ in range(many(100))]
    wanted = dict.fromkeys([*plain, *drawn])
    queue = [*wanted]
    for expr in queue:  # a guard computes, too, and can have its own
        guard = overflow_guard(expr)
        if guard is not None and guard not in wanted:
            wanted[guard] = None
            queue.append(guard)
    return queue


@pytest.fixture(scope="module")
def edges() -> Iterator[duckdb.DuckDBPyConnection]:
    """DuckDB with the rows as a table of that name."""
    with duckdb.connect() as connection:
        connection.register("edges", to_arrow(ROWS, ALL))
        yield connection


@pytest.fixture(scope="module")
def in_flink(run_flink: Any, expressions: list[Expression]) -> Values:
    columns = run_flink(ALL, ROWS, [to_flink(expr) for expr in expressions])
    known = dict(zip(expressions, columns, strict=True))
    return known.__getitem__


def in_numpy(expr: Expression) -> list[Any]:
    table = to_arrow(ROWS, ALL)
    batch = {name: Column.from_arrow(table[name]) for name in ALL}
    column = evaluate(expr, batch, len(ROWS))
    return [v if m else None for v, m in zip(column.values.tolist(), column.mask, strict=True)]


def differences(expr: Expression, values: Values) -> list[str]:
    """How an engine differs from the evaluator; nothing is compared where the guard fails."""
    guard = overflow_guard(expr)
    verdicts = [True] * len(ROWS) if guard is None else values(guard)
    ulps = 2 if any(name in expr.text for name in LAST_BITS) else 0
    wrong = []
    for row, got, verdict in zip(ROWS, values(expr), verdicts, strict=True):
        if beyond_scale(expr, row):
            continue
        try:
            expected, safe = evaluate_row(expr, row), True
        except UnsafeStepError:
            expected, safe = None, False
        inputs = {name: row[name] for name in sorted(expr.columns)}
        if verdict is not safe:
            wrong.append(f"guard of {expr.text}: {verdict} on {inputs}")
        if safe and not agree(got, expected, expr.type, ulps):
            wrong.append(f"{expr.text}: got {got!r}, expected {expected!r} on {inputs}")
    return wrong


@pytest.mark.long
@pytest.mark.flink
def test_flink_computes_every_expression_as_the_reference_implementation(
    expressions: list[Expression], in_flink: Values
) -> None:
    wrong = [line for expr in expressions for line in differences(expr, in_flink)[:1]]
    assert not wrong, "\n".join([f"{len(wrong)} expressions", *wrong[:20]])


def test_numpy_computes_every_text_as_the_reference_implementation() -> None:
    assert not [line for text in TEXTS for line in differences(parse(text, ALL), in_numpy)]


def test_duckdb_computes_every_text_as_the_reference_implementation(
    edges: duckdb.DuckDBPyConnection,
) -> None:
    def values(expr: Expression) -> list[Any]:
        return [v for (v,) in edges.execute(f"SELECT {to_duckdb(expr)} FROM edges").fetchall()]

    assert not [line for text in TEXTS for line in differences(parse(text, ALL), values)]
