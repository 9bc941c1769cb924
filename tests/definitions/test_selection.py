"""Selections: what a read gives, and interactions computed against the row-by-row reading."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paimon_features.core.errors import RequestError
from paimon_features.core.expressions import Expression, overflow_guard, parse
from paimon_features.core.types.schema import (
    Bool,
    DataType,
    Date,
    Decimal,
    Float32,
    Float64,
    Int32,
    Int64,
    String,
    Timestamp,
)
from paimon_features.core.types.statuses import Status
from paimon_features.definitions import CompiledInteraction, FeatureRef, Output, Selection
from paimon_features.testing.reference.interactions import agrees, interaction_value, plain_values
from tests.expression_generator import (
    beyond_scale,
    edge_rows,
    random_expression,
    to_arrow,
)

COLUMNS = {
    "v:i": Int64, "v:k": Int32, "v:x": Float64, "v:s": String, "v:p": Bool, "w:y": Float64,
    "w:d": Date, "w:t": Timestamp, "w:m": Decimal(10, 2), "j": Int64, "f": Float32, "word": String,
    "flag": Bool,
}  # fmt: skip
ROWS = edge_rows(random.Random(3), 60, COLUMNS)
TABLE = to_arrow(ROWS, COLUMNS)


def compiled(name: str, expression: Expression | str) -> CompiledInteraction:
    tree = parse(expression, COLUMNS) if isinstance(expression, str) else expression
    names = sorted(tree.columns)
    return CompiledInteraction(
        name,
        tree.text,
        tree,
        overflow_guard(tree),
        tuple(FeatureRef.parse(n) for n in names if ":" in n),
        {n: COLUMNS[n] for n in names if ":" not in n},
    )


def select(*outputs: Output) -> Selection:
    return Selection.of(outputs)


def compute(selection: Selection, table: pa.Table = TABLE) -> dict[str, list[object]]:
    columns = {name: table[name].combine_chunks() for name in table.column_names}
    values = {ref: columns[str(ref)] for ref in selection.refs}
    inputs = {name: columns[name] for name in selection.inputs}
    computed = selection.compute(values, inputs, table.num_rows)
    return {i.name: plain_values(c.values) for i, c in computed.items()}


@given(seed=st.integers(0, 2**32), depth=st.integers(1, 4))
def test_interactions_equal_the_reference_and_are_null_where_they_overflow(
    seed: int, depth: int
) -> None:
    rng = random.Random(seed)
    kinds: list[DataType] = [Int64, Float64, String, Bool]
    drawn = [random_expression(rng, rng.choice(kinds), depth, COLUMNS) for _ in range(3)]
    interactions = [
        compiled(f"x{i}", e) for i, e in enumerate(drawn) if any(":" in name for name in e.columns)
    ]
    if not interactions:
        return
    selection = Selection(interactions)
    columns = {name: TABLE[name].combine_chunks() for name in COLUMNS}
    values = {ref: columns[str(ref)] for ref in selection.refs}
    computed = selection.compute(values, {n: columns[n] for n in selection.inputs}, len(ROWS))
    plain = {name: plain_values(array) for name, array in columns.items()}
    for interaction in interactions:
        own = computed[interaction]
        for row, got in enumerate(plain_values(own.values)):
            known = {name: plain[name][row] for name in COLUMNS}
            if beyond_scale(interaction.expression, known):
                continue
            expected, overflows = interaction_value(interaction, known)
            assert agrees(interaction, got, expected), (interaction.text, known)
            assert (own.overflown is not None and own.overflown[row]) == overflows


def test_a_null_makes_null_except_where_the_text_says_otherwise() -> None:
    table = pa.table(
        {
            "v:x": pa.array([6.0, None, 6.0, 0.0, None]),
            "w:y": pa.array([2.0, 2.0, None, 0.0, 0.0]),
            "v:i": pa.array([7, 7, None, 7, 7]),
            "word": pa.array(["a", "a", "a", None, "a"]),
        }
    )
    texts = {
        "product": "product(v:x, w:y)",
        "ratio": "ratio(v:x, w:y)",
        "ratio_zero": "ratio(v:x, w:y, zero=0)",
        "filled": "ratio(coalesce(v:x, 0), w:y, zero=-1)",
        "logs": "log_ratio(v:x, w:y, add=1)",
        "larger": "max(v:x, w:y)",
        "same": "equal(v:x, w:y)",
        "place": "bucket(v:x, 0, 5)",
        "cross": "hash_cross(v:i, word, buckets=1000)",
        "label": "concat(word, '!')",
    }
    got = compute(select(*(compiled(name, text) for name, text in texts.items())), table)
    assert got == {
        "product": [12.0, None, None, 0.0, None],
        "ratio": [3.0, None, None, None, None],
        "ratio_zero": [3.0, None, None, 0.0, None],
        "filled": [3.0, 0.0, None, -1.0, -1.0],
        "logs": [pytest.approx(np.log(7 / 3)), None, None, 0.0, None],
        "larger": [6.0, None, None, 0.0, None],
        "same": [False, None, None, True, None],
        "place": [2, None, 2, 1, None],
        "cross": [848, 848, None, None, 848],
        "label": ["a!", "a!", "a!", None, "a!"],
    }


def test_a_hashed_cross_is_a_number_that_stays() -> None:
    # models are trained on these; hashed are the texts 1:71:a, 2:711:a and 2:-13:😀 é
    table = pa.table({"v:i": [7, 71, -1], "word": ["a", "a", "😀 é"]})
    cross = compute(select(compiled("cross", "hash_cross(v:i, word, buckets=1000000)")), table)
    assert cross["cross"] == [834_848, 78_318, 274_244]
    two = {"v:s": ["ab", "a"], "word": ["c", "bc"]}
    found = compute(select(compiled("c", "hash_cross(v:s, word, buckets=1000000)")), pa.table(two))
    assert found["c"][0] != found["c"][1]


def test_the_status_is_the_worst_of_the_inputs() -> None:
    both = compiled("both", "v:i * v:i + w:y")
    a, b = FeatureRef("v", "i"), FeatureRef("w", "y")
    selection = select(both, a)
    values = {a: pa.array([1, 2**40, None, 4]), b: pa.array([1.0, 1.0, None, None])}
    computed = selection.compute(values, {}, 4)[both]
    assert computed.values.to_pylist() == [2.0, None, None, None]
    codes = {
        a: np.array([Status.PRESENT, Status.PRESENT, Status.MISSING, Status.STALE], np.int8),
        b: np.array([Status.STALE, Status.PRESENT, Status.PRESENT, Status.MISSING], np.int8),
    }
    worst = Selection.worst(both, computed.overflown, codes, 4)
    assert worst.tolist() == [Status.STALE, Status.ILL_CONDITIONED, Status.MISSING, Status.MISSING]
    given = compiled("given", "bucket(j, 10)")
    own = Selection([given, a]).compute(values, {"j": pa.array([1, 20, 3, 4])}, 4)[given]
    assert Selection.worst(given, own.overflown, codes, 4).tolist() == [0, 0, 0, 0]


def test_what_is_read_for_an_interaction_is_read_once_and_not_named() -> None:
    x = compiled("x", "v:i + w:y + j")
    y = compiled("y", "v:i - j")
    selection = select(y, FeatureRef("v", "x"), x)
    assert selection.names == ("y", "v__x", "x")
    assert list(map(str, selection.refs)) == ["v:x", "v:i", "w:y"]
    assert selection.inputs == {"j": Int64}
    assert Selection.of([y, FeatureRef("v", "x"), x]) is selection


def test_columns_have_different_names() -> None:
    a, b = FeatureRef("v", "x"), FeatureRef("w", "x")
    assert select(a, b).names == ("v__x", "w__x")
    assert select(a, compiled("x", "w:y + 1")).names == ("v__x", "x")
    with pytest.raises(RequestError, match="two outputs are named 'v__x'; rename an interaction"):
        select(a, b, compiled("v__x", "w:y + 1"))
    with pytest.raises(RequestError, match="names v:x twice"):
        select(a, b, a)
    with pytest.raises(RequestError, match="names no feature"):
        select()
