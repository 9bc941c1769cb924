"""What the parser reads, how it types it, and how it says no."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paimon_features.core.errors import ExpressionError
from paimon_features.core.expressions import parse, substitute
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
    String,
    Timestamp,
)
from tests.expression_generator import COLUMNS

SCHEMA: dict[str, DataType] = {
    **COLUMNS, "__event_time": Int64, "end": Int64, "raw": Bytes, "vector": List(Float32, 3),
    "huge": Decimal(38, 0), "fine": Decimal(38, 30), "numbers": List(Int64),
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("I+1", None),
        ("i+1*2", "i + 1 * 2"),
        ("(i+1)*2", "(i + 1) * 2"),
        ("i-(j-1)", "i - (j - 1)"),
        ("i-j-1", "i - j - 1"),
        ("-i%3", "-i % 3"),
        ("-(i%3)", "-(i % 3)"),
        ("- 3", "-3"),
        ("--3", "3"),
        ("-(-i)", "-(-i)"),
        ("not p or q and p", "NOT p OR q AND p"),
        ("not (p or q)", "NOT (p OR q)"),
        ("not i = 1", "NOT i = 1"),
        ("(NOT p) = q", "(NOT p) = q"),
        ("i between 1 and 2 and p", "i >= 1 AND i <= 2 AND p"),
        ("i not between 1 and 2", "NOT (i >= 1 AND i <= 2)"),
        ("i not in (1, 2)", "NOT i IN (1, 2)"),
        ("i in (1, 2.5)", "CAST(i AS float64) IN (1.0, 2.5)"),
        ("i != 1", "i <> 1"),
        ("i == 1", "i = 1"),
        ("x > 1", "x > 1.0"),
        ("i > x", "i > x"),
        ("i / j", "i / j"),
        ("CAST(i AS float64) + j", "CAST(i AS float64) + CAST(j AS float64)"),
        ("nullif(i, 0)", "CASE WHEN i = 0 THEN CAST(NULL AS int64) ELSE i END"),
        ("case when p then null else i end", "CASE WHEN p THEN CAST(NULL AS int64) ELSE i END"),
        ("case when p then i end", "CASE WHEN p THEN i END"),
        ("cast(i as BOOL)", "i <> 0"),
        ("m > 1.5", "m > DECIMAL '1.5'"),
        ("m = n", "m = n"),
        ("floor(i)", "i"),
        ('"end" + 1', '"end" + 1'),
        ("__event_time", "__event_time"),
        ("s = 'it''s'", "s = 'it''s'"),
        ("d >= date '2011-12-09'", "d >= DATE '2011-12-09'"),
        ("w < TIMESTAMP '2011-12-09 01:02:03.004'", "w < TIMESTAMP '2011-12-09 01:02:03.004'"),
        (".5", "0.5"),
        ("1e3", "1000.0"),
        ("-9223372036854775808", "-9223372036854775808"),
        ("raw IS NULL", "raw IS NULL"),
        ("vector", "vector"),
        ("Least(i, x)", "least(CAST(i AS float64), x)"),
    ],
)
def test_a_text_has_one_canonical_form(text: str, canonical: str | None) -> None:
    if canonical is None:
        with pytest.raises(ExpressionError, match="unknown column 'I'"):
            parse(text, SCHEMA)
        return
    expr = parse(text, SCHEMA)
    assert expr.text == canonical
    assert parse(canonical, SCHEMA) == expr
    assert hash(parse(canonical, SCHEMA)) == hash(expr)
    assert pickle.loads(pickle.dumps(expr)) == expr


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("k", Int64), ("f", Float64), ("i + k", Int64), ("i + x", Float64), ("i / j", Float64),
        ("i // j", Int64), ("i = j", Bool), ("concat(s, t)", String), ("d", Date),
        ("w", Timestamp), ("m", Decimal(10, 2)), ("coalesce(m, n)", Decimal(20, 6)),
        ("coalesce(m, 0.125)", Decimal(11, 3)), ("coalesce(m, i)", Decimal(21, 2)),
        ("coalesce(m, NULL, n)", Decimal(20, 6)), ("CAST(NULL AS decimal(7, 2))", Decimal(7, 2)),
        ("element(numbers, 2)", Int64), ("element(vector, 3)", Float64), ("size(vector)", Int64),
        ("ordered(i, m)", String), ("scaled_int(m, 2)", Int64), ("finite(x)", Bool),
    ],
)  # fmt: skip
def test_types_follow_from_the_operands(text: str, kind: DataType) -> None:
    assert parse(text, SCHEMA).type == kind


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "position 1: got the end, expected a column"),
        ("i +", "position 4: got the end"),
        ("i + )", "position 5: got ')'"),
        ("(i + 1", "position 7: got the end, expected ')'"),
        ("i j", "position 3: got 'j', expected an operator or the end"),
        ("price * 2", "position 1: unknown column 'price'; available: __event_time, d,"),
        ("sinh(x)", "position 1: unknown function 'sinh'; available: abs, abs_difference"),
        ("i + s", "position 3: + needs values of one type, got int64 and string"),
        ("s + t", "position 3: + needs numbers, got string and string"),
        ("p < q", "position 3: <: bool has no order"),
        ("i < j < k", "position 7: comparisons do not chain"),
        ("i = NULL = j", "comparisons do not chain"),
        ("NULL", "NULL alone has no type"),
        ("coalesce(NULL, NULL)", "NULL alone has no type"),
        ("i // x", "// needs integers, got int64 and float64; for floats write floor(a / b)"),
        ("i % 0", "% by the constant 0 is always NULL"),
        ("i / 0", "/ by the constant 0 is always NULL"),
        ("m + 1", "+ is not defined for decimals"),
        ("m > x", "does not mix with decimals"),
        ("m > 0.1234567890123456789", "does not mix with decimals"),
        ("huge = fine", "together need 68 digits"),
        ("scaled_int(fine, 2)", "decimals of up to 18 digits after the point"),
        ("scaled_int(x, 10)", "needs a scale of 0 to 9, got 10"),
        ("scaled_int(x, i)", "needs a literal scale"),
        ("CASE i WHEN 1 THEN 2 END", "expected 'WHEN' (CASE has conditions"),
        ("CASE WHEN i THEN 2 END", "CASE WHEN needs bool, got i of int64"),
        ("CASE WHEN p THEN 2", "expected 'END'"),
        ("CAST(s AS int64)", "CAST of string to int64 is not defined the same way"),
        ("CAST(i AS int32)", "int32 is represented as int64; cast to that"),
        ("CAST(i AS money)", "unknown type 'money'"),
        ("i IN (j)", "IN takes constants that are not NULL, got j"),
        ("i IN (1, NULL)", "IN takes constants that are not NULL, got NULL; write i IS NULL"),
        ("i IN (CAST(NULL AS int64))", "write i IS NULL"),
        ("i NOT IN (NULL)", "write i IS NULL"),
        ("CAST(NULL AS int64) IN (1)", "IN with NULL is always NULL"),
        ("i == null", "position 3: == with NULL is always NULL, never true; write i IS NULL"),
        ("i = NULL", "= with NULL is always NULL"),
        ("NULL = i", "write i IS NULL, or i IS NOT NULL"),
        ("i <> CAST(NULL AS int64)", "<> with NULL is always NULL"),
        ("i != NULL", "write i IS NULL, or i IS NOT NULL"),
        ("p AND NOT (x <= (null))", "<= with NULL is always NULL"),
        ("x > NULL", "> with NULL is always NULL"),
        ("NULL >= NULL", "write x IS NULL"),
        ("i BETWEEN NULL AND 3", "BETWEEN with NULL is always NULL"),
        ("i NOT BETWEEN 1 AND NULL", "write i IS NULL"),
        ("NULL BETWEEN 1 AND 2", "BETWEEN with NULL is always NULL"),
        ("CASE WHEN s = NULL THEN 1 END", "write s IS NULL"),
        ("CASE WHEN NULL THEN 1 ELSE 2 END", "CASE WHEN NULL is never chosen"),
        ("nullif(i, NULL)", "nullif with NULL is always NULL"),
        ("equal(i, NULL)", "equal with NULL is always NULL"),
        ("i IN ()", "position 7: got ')'"),
        ("s = 'open", "a string without its closing '"),
        ("i ; j", "position 3: ';' is not part of the language"),
        ("s LIKE 'a%'", "position 3: got 'LIKE'"),
        ("9223372036854775808", "9223372036854775808 is not an int64"),
        ("1e400", "1e400 is not a float64"),
        ("DATE '2011-13-01'", "'2011-13-01' is not a date; expected YYYY-MM-DD"),
        ("TIMESTAMP '2011-12-09 00:00:00+02:00'", "no zone"),
        ("raw = raw", "bytes columns can only be taken as they are"),
        ("abs(s)", "abs needs a number, got s of string"),
        ("power(x)", "power takes 2 arguments, got 1"),
        ("NOT i", "NOT needs bool, got i of int64"),
        ("-s", "position 1: - needs a number, got s of string"),
        ("NULL IS NULL", "position 6: IS NULL of NULL itself is always true"),
        ("NULL IN (1, 2)", "position 6: IN of NULL itself is always NULL"),
        ("i IN ('a')", "IN needs values of one type, got int64 and string"),
        ("i IS NULL = p", "position 11: comparisons do not chain"),
        ("i NOT 3", "position 7: got '3', expected 'IN' or 'BETWEEN'"),
        ("coalesce(i)", "coalesce takes at least 2 arguments, got 1"),
        ("nullif(i, 1, 2)", "nullif takes 2 arguments, got 3"),
        ("least(i)", "least takes at least 2 arguments, got 1"),
        ("greatest(s, t)", "greatest needs numbers, dates or timestamps, got string"),
        ("abs(i, j)", "abs takes 1 argument, got 2"),
        ("concat(s)", "concat takes at least 2 arguments, got 1"),
        ("scaled_int(i)", "scaled_int takes 2 arguments, got 1"),
        ("scaled_int(s, 2)", "scaled_int needs a number, got s of string"),
        ("ordered(s, i)", "ordered takes an int64 time and a value, got string and int64"),
        ("item()", "position 6: got ')', expected a column"),
        ("element(i, 1)", "element needs a list, got i of int64"),
        ("element(vector)", "element takes 2 arguments, a list and a position, got 1"),
        ("element(vector, i)", "element needs a literal position, got i"),
        (
            "element(vector, 4)",
            "element needs a position from 1 to 3 in vector of list(float32, 3), got 4",
        ),
        ("element(numbers, 0)", "in numbers of list(int64), got 0"),
        ("size(vector, 1)", "size takes 1 argument, got 2"),
        ("size(i)", "size needs a list, got i of int64"),
        ("DECIMAL '1e5'", "'1e5' is not a decimal; expected digits, a point, digits, 38 at most"),
        ("CAST(NULL AS decimal(7 2))", "position 24: got '2', expected ','"),
        ("CAST(m AS decimal(7, x))", "position 11: unknown type 'decimal(7, x)'"),
        # neither reading of END fits
        ("end + price", "position 1: got 'end', expected a column"),
        ("(" * 150 + "i" + ")" * 150, "nested deeper than 100"),
        (" + ".join(["i"] * 150), "more than 100 operators"),
    ],
)
def test_an_error_names_the_text_the_position_and_what_was_expected(
    text: str, message: str
) -> None:
    with pytest.raises(ExpressionError) as caught:
        parse(text, SCHEMA)
    assert str(caught.value).startswith(f"expression {text!r}, position ")
    assert message in str(caught.value)


@given(st.text(alphabet="ijxs01.,'\"()+-*/%<>=! \nNOTANDINCASEWHEN", max_size=30))
def test_any_text_is_an_expression_or_an_expression_error(text: str) -> None:
    try:
        expr = parse(text, COLUMNS)
    except ExpressionError:
        return
    assert parse(expr.text, COLUMNS) == expr


def test_derived_columns_are_substituted() -> None:
    amount = parse("quantity * unit_price", {"quantity": Int32, "unit_price": Float64})
    large = parse("amount > 100 AND -amount < 0", {"amount": amount.type})
    inlined = substitute(large, {"amount": amount})
    assert inlined.text == "quantity * unit_price > 100.0 AND -(quantity * unit_price) < 0.0"
    assert inlined.columns == {"quantity", "unit_price"}


def test_a_constant_can_be_substituted_for_a_column() -> None:
    scope = {"i": Int64, "j": Int64}
    expr = substitute(parse("-i + 1.5 * i", scope), {"i": parse("3", scope)})
    assert expr.text == "-3.0 + 1.5 * 3.0"
    assert parse(expr.text, scope) == expr


def test_a_replacement_of_another_type_is_rejected() -> None:
    scope = {"i": Int64, "x": Float64}
    with pytest.raises(ExpressionError, match=r"column 'i' of type int64 cannot be replaced by"):
        substitute(parse("i + 1", scope), {"i": parse("x", scope)})
