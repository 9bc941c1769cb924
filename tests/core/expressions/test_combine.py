"""Functions that combine values: what they stand for, and what they refuse."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from paimon_features.core.columns.column import Column
from paimon_features.core.errors import ExpressionError
from paimon_features.core.expressions import evaluate, overflow_guard, parse
from paimon_features.core.expressions.evaluate import Program
from paimon_features.core.types.schema import Bool, Decimal, Float64, Int64, String

SCHEMA = {
    "i": Int64, "j": Int64, "x": Float64, "y": Float64, "s": String, "p": Bool, "q": Bool,
    "spend:sum_1d": Float64, "zero": Float64, "m": Decimal(10, 2),
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("sum(i, j, x)", "i + j + x"),
        ("product(x, y, 2)", "x * y * 2.0"),
        ("difference(i, j)", "i - j"),
        ("abs_difference(i, j)", "abs(i - j)"),
        ("ratio(i, j)", "i / j"),
        ("ratio(x, y, zero=0)", "CASE WHEN y = 0.0 AND x IS NOT NULL THEN 0.0 ELSE x / y END"),
        ("ratio(1, y, zero=-1)", "CASE WHEN y = 0.0 THEN -1.0 ELSE 1.0 / y END"),
        ("log_ratio(x, y)", "ln(x) - ln(y)"),
        ("log_ratio(i, j, add=1)", "ln(CAST(i + 1 AS float64)) - ln(CAST(j + 1 AS float64))"),
        ("min(i, x)", "least(CAST(i AS float64), x)"),
        ("MAX(i, j)", "greatest(i, j)"),
        ("equal(s, 'a')", "s = 'a'"),
        ("equal(p = q, q)", "(p = q) = q"),
        ("spend:sum_1d + 1", "spend:sum_1d + 1.0"),
        ('"spend:sum_1d" * 2', "spend:sum_1d * 2.0"),
        ("zero / ratio(x, zero, zero=2)",
         "zero / CASE WHEN zero = 0.0 AND x IS NOT NULL THEN 2.0 ELSE x / zero END"),
        ("bucket(i, 1, 5)", "bucket(i, 1, 5)"),
        ("bucket(x, 1)", "bucket(x, 1.0)"),
        ("hash_cross(s, buckets=7)", "hash_bucket(concat(CAST(length(s) AS string), ':', s), 7)"),
    ],
)  # fmt: skip
def test_a_combination_expands_to_its_canonical_form(text: str, canonical: str) -> None:
    assert parse(text, SCHEMA).text == canonical
    assert parse(canonical, SCHEMA) == parse(text, SCHEMA)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 + ratio(x)", "position 5: ratio takes 2 arguments, got 1"),
        ("sum(x)", "position 1: sum takes at least 2 arguments, got 1"),
        ("ratio(x, y, zer=0)", "position 13: unknown option 'zer' of ratio; available: zero"),
        (
            "max(x, y, zero=0)",
            "greatest needs values of one type, got float64 and float64 and bool",
        ),
        ("max(x, y, nul=0)", "position 11: unknown option 'nul' of max; available: none"),
        ("ratio(x, zero=0, y)", "position 18: got 'y', expected an option"),
        ("ratio(x, y, zero=x)", "ratio: zero= takes a constant, got x"),
        ("ratio(x, y, zero='a')", "ratio: zero= takes a number, got 'a'"),
        ("ratio(x, 0, zero=1)", "/ by the constant 0 is always NULL"),
        ("ratio(m, x)", "/ is not defined for decimals"),
        ("ratio(x, y", "got the end, expected ')'"),
        ("bucket(x)", "bucket takes a value and at least one edge"),
        ("bucket(x, 2, 1)", "bucket needs edges that increase, got 2.0, 1.0"),
        ("bucket(x, 1, 1)", "bucket needs edges that increase"),
        ("bucket(x, y)", "bucket takes edges that are constants, got y"),
        ("bucket(s, 'a')", "bucket needs numbers, dates or timestamps, got string"),
        ("hash_cross(s)", "hash_cross needs buckets=, for example buckets=1000"),
        ("hash_cross(x, buckets=5)", "got x of float64; for numbers with fractions write bucket(x"),
        ("hash_cross(s, buckets=0)", "a constant number of buckets from 1 to 2^31, got 0"),
        ("hash_bucket(s, i)", "a constant number of buckets from 1 to 2^31, got i"),
        ("spend:sum_7d", "position 1: unknown column 'spend:sum_7d'; available: i, j"),
        ("spend : sum_1d", "position 7: ':' is not part of the language"),
    ],
)
def test_an_error_names_the_position(text: str, message: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        parse(text, SCHEMA)
    assert str(caught.value).startswith(f"expression {text!r}, position ")
    assert message in str(caught.value)


def test_buckets_of_a_cross_are_those_of_its_text() -> None:
    batch = {
        "i": Column(np.array([7, -7])),
        "s": Column(np.array(["a", "äé😀"], object)),
        "p": Column(np.array([True, False])),
    }
    found = evaluate(parse("hash_cross(i, s, p, buckets=1000)", SCHEMA), batch, 2)
    texts = ["1:71:a4:true", "2:-73:äé😀5:false"]
    digests = [hashlib.md5(text.encode()).hexdigest() for text in texts]
    assert found.values.tolist() == [int(digest[:12], 16) % 1000 for digest in digests]


def test_bucket_numbers_have_known_bounds() -> None:
    text = "(bucket(i, 1, 2) * 2000000000 + hash_cross(s, buckets=2000000000)) * 2"
    assert overflow_guard(parse(text, SCHEMA)) is None


def test_a_program_computes_equal_parts_once_and_leaves_its_inputs() -> None:
    texts = ["(x + y) * 2", "abs(x + y)", "3", "coalesce(x, x + y)"]
    program = Program([parse(text, SCHEMA) for text in texts])
    x = Column(np.array([1.0, 2.0]), np.array([True, False]))
    batch = {"x": x, "y": Column(np.array([5.0, 6.0]))}
    for _ in range(2):
        found = program.run(batch, 2)
        assert [
            [v if m else None for v, m in zip(c.values.tolist(), c.mask, strict=True)]
            for c in found
        ] == [[12.0, None], [6.0, None], [3, 3], [1.0, None]]
    assert x.values.tolist() == [1.0, 2.0]
    with pytest.raises(ExpressionError, match=r"needs the columns y; got x"):
        program.run({"x": x}, 2)
