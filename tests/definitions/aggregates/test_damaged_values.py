"""Stored texts and sketches that are damaged: a value, or one error of the decoders."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paimon_features.core.columns.column import Column
from paimon_features.core.errors import DamagedValueError
from paimon_features.core.expressions.items import digest_of, int_text, sketch_of, string_text
from paimon_features.core.types.schema import (
    Bool,
    DataType,
    Date,
    Decimal,
    Float64,
    Int64,
    List,
    String,
    Timestamp,
)
from paimon_features.definitions import aggregates as agg
from paimon_features.definitions.aggregates import EVENT_TIME_MAX, Aggregate, Reading
from paimon_features.definitions.aggregates.fold import fold
from paimon_features.testing.sizes import cases

SCOPE: dict[str, DataType] = {
    "n": Int64,
    "x": Float64,
    "s": String,
    "b": Bool,
    "d": Date,
    "t": Timestamp,
    "m": Decimal(12, 2),
    "v": List(Int64, 3),
}
AGGREGATES: list[Aggregate] = [
    *(agg.Last(column) for column in SCOPE),
    *(agg.First(column, tie="n") for column in SCOPE),
    *(agg.TopK(column, n=3) for column in SCOPE if column != "v"),
    agg.LastN("s", n=2),
    agg.Max("s"),
    agg.TopCategories("s"),
    agg.ApproxCountDistinct("s"),
]
ALPHABET = "\0\1\2+,:'-. 019amXYZ²é"


def damaged_text(rng: random.Random) -> str:
    """Something like an item, a list of items, or a time and a value."""
    items = [
        rng.choice(("", "+2:", "0" * 15 + "1", "\1"))
        + rng.choice((int_text(rng.randrange(-(10**18), 10**18)), string_text("a,b", last=True)))
        for _ in range(rng.randrange(1, 4))
    ]
    text = list(rng.choice((",", "\1")).join(items))
    for _ in range(rng.randrange(4)):
        text[rng.randrange(len(text))] = rng.choice(ALPHABET) * rng.randrange(3)
    return "".join(text)


def damaged_sketch(rng: random.Random) -> bytes:
    sketch = bytearray(sketch_of(digest_of("a")))
    if rng.random() < 0.5:
        runs = rng.randrange(3)
        sketch = bytearray(b"\x3b\x30\0\0\1\0\0\0\0" + runs.to_bytes(2, "little"))
        sketch += rng.randbytes(4 * runs)
    for _ in range(rng.randrange(3)):
        sketch[rng.randrange(len(sketch))] = rng.choice((0, 1, 255))
    return bytes(sketch[: rng.choice((None, None, rng.randrange(len(sketch))))])


@pytest.mark.parametrize("aggregate", AGGREGATES, ids=lambda one: one.stem)
@given(seed=st.integers(0, 2**32 - 1))
@cases(30)
def test_a_damaged_value_has_no_other_error(aggregate: Aggregate, seed: int) -> None:
    rng = random.Random(seed)
    (partial,) = aggregate.partials(SCOPE)
    damaged = damaged_sketch if partial.type.text == "bytes" else damaged_text
    values = np.empty(4, object)
    values[:] = [damaged(rng) for _ in range(4)]
    columns = {partial.name: Column(values), EVENT_TIME_MAX.name: Column(np.arange(4))}
    try:
        merged = fold([partial], columns, np.array([0, 1, 4, 4]), 1)
        aggregate.finish(SCOPE, [merged[partial.name]], Reading(0, np.zeros(3, np.int64), 1))
    except DamagedValueError:
        pass
