"""Folding many row ranges equals folding each of them by a loop."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from functools import reduce
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from paimon_features.core.columns.column import Column
from paimon_features.core.types.schema import Bytes, Float64, Int64, String
from paimon_features.core.windows import MINUTE_MS
from paimon_features.definitions.aggregates import EVENT_TIME_MAX, Merge, Partial
from paimon_features.definitions.aggregates.range_index import RangeIndex
from paimon_features.testing.reference.merges import merged, sketch_of
from paimon_features.testing.sizes import seeds

TILE_MS = 5 * MINUTE_MS
HALF_LIFE_MS = 60 * MINUTE_MS
PARTIALS = [
    EVENT_TIME_MAX,
    Partial("n", Int64, Merge.SUM, ""),
    Partial("low", Int64, Merge.MIN, ""),
    Partial("high", Float64, Merge.MAX, ""),
    Partial("x", Float64, Merge.SUM, ""),
    Partial("word", String, Merge.MAX, ""),
    Partial("first_word", String, Merge.MIN, ""),
    Partial("decayed", Float64, Merge.DECAYED_SUM, "", HALF_LIFE_MS),
    Partial("best", String, Merge.TOP, "", limit=2),
    Partial("least", String, Merge.BOTTOM, "", limit=3),
    Partial("counts", String, Merge.COUNTS, ""),
    Partial("sketch", Bytes, Merge.REGISTERS, ""),
]
WORDS = ("", "a", "B", "ä", "\uffff", "\U0001f600")


def random_rows(
    rng: random.Random, entities: int, nulls: float
) -> tuple[list[dict[str, Any]], list[int]]:
    """Rows sorted by entity and time, and where each entity begins (the end last)."""
    rows: list[dict[str, Any]] = []
    begins = [0]
    for _ in range(entities):
        time = rng.randint(-10, 10) * TILE_MS
        for _ in range(rng.choice((1, 2, 3, 17, 64))):
            time += rng.choice((1, 1, 2, 500, 100_000)) * TILE_MS
            values = {
                "n": rng.choice((1, -3, 2**62)),
                "low": rng.randint(-(2**63), 2**63 - 1),
                "high": rng.gauss(0, 1e9),
                "x": rng.choice((0.1, 1e15, -1e15, 3.7)),
                "word": rng.choice(WORDS),
                "first_word": rng.choice(WORDS),
                "decayed": rng.gauss(0, 1),
                "best": random_list(rng),
                "least": random_list(rng),
                "counts": random_list(rng) + rng.choice(("", ",+3:'a", ",+2:'ä")),
                "sketch": sketch_of(
                    {rng.randrange(2**16) for _ in range(rng.randint(1, 9))}, False
                ),
            }
            row = {k: None if rng.random() < nulls else v for k, v in values.items()}
            rows.append({"p_event_time_max": time + rng.randrange(TILE_MS), **row})
        begins.append(len(rows))
    return rows, begins


def random_list(rng: random.Random) -> str:
    """A list as the lake joins it: in any order, items more than once."""
    return ",".join(f"'{rng.choice(WORDS)}" for _ in range(rng.choice((1, 1, 2, 5))))


def random_sketch(rng: random.Random) -> bytes | None:
    return sketch_of({rng.randrange(2**16) for _ in range(rng.randint(1, 9))}, best_only=False)


def columns_of(rows: Sequence[dict[str, Any]]) -> dict[str, Column]:
    return {
        p.name: Column.from_arrow(pa.array([row[p.name] for row in rows], p.type.arrow))
        for p in PARTIALS
    }


def naive_fold(partial: Partial, rows: Sequence[dict[str, Any]]) -> Any:
    """The partial of a range, by a loop; floats exactly rounded."""
    values = [row[partial.name] for row in rows if row[partial.name] is not None]
    if not values:
        return None
    if partial.type is Bytes or partial.merge in (Merge.TOP, Merge.BOTTOM, Merge.COUNTS):
        return reduce(lambda left, right: merged(partial, left, right), values, None)
    if partial.merge is Merge.MIN:
        return min(values)
    if partial.merge is Merge.MAX:
        return max(values)
    if partial.type is Int64:
        return (sum(values) + 2**63) % 2**64 - 2**63
    if partial.merge is Merge.SUM:
        return math.fsum(values)
    ends = [row["p_event_time_max"] // TILE_MS * TILE_MS for row in rows]
    return math.fsum(
        row[partial.name] * 2.0 ** (-(max(ends) - end) / HALF_LIFE_MS)
        for row, end in zip(rows, ends, strict=True)
        if row[partial.name] is not None
    )


@pytest.mark.parametrize("seed", seeds(30))
def test_every_range_of_every_entity_equals_the_loop(seed: int) -> None:
    rng = random.Random(seed)
    rows, begins = random_rows(rng, entities=rng.randint(1, 6), nulls=rng.choice((0, 0.3, 1)))
    lo, hi = [], []
    for begin, end in pairwise(begins):
        for _ in range(40):
            a, b = sorted((rng.randint(begin, end), rng.randint(begin, end)))
            lo.append(a)
            hi.append(b)
    index = RangeIndex(PARTIALS, columns_of(rows), np.diff(begins), TILE_MS)
    folded = index.fold(np.array(lo), np.array(hi))
    for i, (a, b) in enumerate(zip(lo, hi, strict=True)):
        for partial in PARTIALS:
            column = folded[partial.name]
            got = column.values[i] if column.mask[i] else None
            expected = naive_fold(partial, rows[a:b])
            if partial.type is Float64 and expected is not None and partial.merge is not Merge.MAX:
                size = math.fsum(abs(r[partial.name] or 0) for r in rows[a:b])
                assert got == pytest.approx(expected, rel=0, abs=(b - a + 40) * 2.0**-52 * size)
            else:
                assert got == expected, (partial.name, a, b)


def test_a_small_range_after_a_large_sum_keeps_its_digits() -> None:
    rows = [{"p_event_time_max": i * TILE_MS, "x": 1e18 if i < 100 else 0.1} for i in range(200)]
    partial = Partial("x", Float64, Merge.SUM, "")
    columns = {
        "p_event_time_max": Column(np.array([row["p_event_time_max"] for row in rows])),
        "x": Column(np.array([row["x"] for row in rows])),
    }
    index = RangeIndex([partial], columns, np.array([200]), TILE_MS)
    folded = index.fold(np.array([100, 150]), np.array([103, 200]))["x"]
    assert folded.values.tolist() == pytest.approx([0.3, 5.0], rel=1e-15)


def test_integer_sums_are_right_although_the_running_sum_wraps() -> None:
    values = np.full(10, 2**62)
    columns = {"p_event_time_max": Column(np.arange(10)), "n": Column(values)}
    sizes = np.array([10])
    index = RangeIndex([Partial("n", Int64, Merge.SUM, "")], columns, sizes, TILE_MS)
    assert index.fold(np.arange(10), np.arange(10) + 1)["n"].values.tolist() == [2**62] * 10


def test_a_range_that_ends_before_it_begins_is_empty() -> None:
    columns = {"p_event_time_max": Column(np.arange(3)), "n": Column(np.arange(3))}
    index = RangeIndex([Partial("n", Int64, Merge.SUM, "")], columns, np.array([3]), TILE_MS)
    folded = index.fold(np.array([2, 3]), np.array([1, 3]))["n"]
    assert not folded.mask.any()


def test_no_rows_at_all_fold_to_nulls() -> None:
    columns = columns_of([])
    index = RangeIndex(PARTIALS, columns, np.zeros(0, np.int64), TILE_MS)
    folded = index.fold(np.zeros(4, np.int64), np.zeros(4, np.int64))
    assert all(not folded[p.name].mask.any() and len(folded[p.name]) == 4 for p in PARTIALS)


def test_only_the_named_partials_are_folded() -> None:
    rows, begins = random_rows(random.Random(0), 1, 0)
    index = RangeIndex(PARTIALS, columns_of(rows), np.diff(begins), TILE_MS)
    assert list(index.fold(np.array([0]), np.array([1]), ["n", "x"])) == ["n", "x"]


def test_a_float_sum_has_the_same_bits_whoever_else_is_there() -> None:
    rng = random.Random(3)
    rows, begins = random_rows(rng, entities=7, nulls=0.1)
    whole = RangeIndex(PARTIALS, columns_of(rows), np.diff(begins), TILE_MS)
    for begin, end in pairwise(begins):
        alone = RangeIndex(PARTIALS, columns_of(rows[begin:end]), np.array([end - begin]), TILE_MS)
        lo = np.arange(end - begin)
        hi = np.full(end - begin, end - begin)
        for name in ("x", "decayed"):
            expected = alone.fold(lo, hi)[name].values.tolist()
            assert whole.fold(lo + begin, hi + begin)[name].values.tolist() == expected
