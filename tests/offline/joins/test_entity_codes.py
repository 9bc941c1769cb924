"""Entities and times as integers: numbered, sorted and found as a loop over pairs would."""

from __future__ import annotations

from bisect import bisect_left

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paimon_features.core.windows import MAX_TIME_MS, MIN_TIME_MS
from paimon_features.offline.joins import entity_codes
from paimon_features.offline.joins.entity_codes import EntityCodes, TimeKeys, positions, sort_order

KEYS = st.tuples(st.sampled_from([None, 0, 1, 7]), st.sampled_from([None, "", "a", "ü"]))
ROWS = st.lists(KEYS, max_size=30)
SORTED = st.lists(st.integers(0, 40), max_size=40).map(sorted)


def table(rows: list[tuple[int | None, str | None]], chunks: int = 1) -> pa.Table:
    schema = pa.schema({"user": pa.int64(), "shop": pa.string()})
    cut = len(rows) // chunks
    parts = [rows[:cut], rows[cut:]] if chunks > 1 else [rows]
    return pa.concat_tables(
        pa.table({"user": [u for u, _ in part], "shop": [s for _, s in part]}, schema=schema)
        for part in parts
    )


@given(ROWS, ROWS)
def test_entities_are_numbered_densely_and_found_again_in_other_tables(
    rows: list[tuple[int | None, str | None]], others: list[tuple[int | None, str | None]]
) -> None:
    entities = EntityCodes(table(rows, chunks=2), ["user", "shop"])
    known: dict[tuple[int | None, str | None], int] = {}
    for row, code in zip(rows, entities.codes.tolist(), strict=True):
        assert (code == -1) == (None in row)
        if code >= 0:
            assert known.setdefault(row, code) == code
    assert sorted(known.values()) == list(range(entities.count))
    expected = [known.get(row, -1) for row in others]
    assert entities.codes_of(table(others)).tolist() == expected
    users, shops = entities.columns()
    assert {(users[c], shops[c]): c for c in range(entities.count)} == known


INTEGERS = st.sampled_from([None, -(2**63), -5, 0, 1, 3, 200_000, 2**63 - 1])


@given(st.lists(INTEGERS, max_size=8), st.lists(INTEGERS, max_size=12))
def test_integers_are_found_by_a_table_or_by_their_hash(
    rows: list[int | None], others: list[int | None]
) -> None:
    entities = EntityCodes(pa.table({"user": pa.array(rows, pa.int64())}), ["user"])
    numbers = dict(zip(rows, entities.codes.tolist(), strict=True))
    asked = pa.table({"user": pa.array(others, pa.int64())})
    expected = [-1 if other is None else numbers.get(other, -1) for other in others]
    assert entities.codes_of(asked).tolist() == expected
    assert entities.rows_of(asked).tolist() == [i for i, code in enumerate(expected) if code >= 0]
    known = [row for row in rows if row is not None]
    many = list(range(0, 2**40, 2**37)) * 2  # few of them are known
    asked = pa.table({"user": pa.array(many)})
    assert entities.codes_of(asked).tolist() == [numbers.get(number, -1) for number in many]
    for least, greatest in ((0, 3), (2, 5), (-(2**63), -6), (201_000, 2**63 - 1)):
        assert entities.may_have(least, greatest) == any(least <= r <= greatest for r in known)
    assert entities.may_have("a", "b")


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(-9, 9)), max_size=30),
    st.lists(st.tuples(st.integers(0, 4), st.integers(-9_000, 9_000)), max_size=30),
    st.sampled_from([1, 250, 300_000]),
)
def test_time_keys_sort_and_are_found_like_pairs_of_entity_and_time(
    listed: list[tuple[int, int]], requested: list[tuple[int, int]], step_ms: int
) -> None:
    pairs = sorted((code, tick * step_ms) for code, tick in listed)
    codes, times = (np.array([p[i] for p in pairs], np.int64) for i in (0, 1))
    keys = TimeKeys(times, entities=5, step_ms=step_ms)
    stored = keys.of(codes, times)
    assert stored.tolist() == sorted(stored.tolist())
    assert keys.codes(stored).tolist() == codes.tolist()
    wanted = [(code, tick // 250 * step_ms) for code, tick in requested]
    found = np.searchsorted(
        stored, keys.of(*(np.array([w[i] for w in wanted], np.int64) for i in (0, 1)))
    )
    for (code, time), place in zip(wanted, found.tolist(), strict=True):
        inside = [p for p in pairs if p[0] == code]
        first = bisect_left(pairs, (code, -(10**18)))
        assert place == first + bisect_left(inside, (code, time))


def test_time_keys_of_ten_thousand_years_of_milliseconds_fit_by_counting_the_times() -> None:
    times = np.array([MIN_TIME_MS, 0, MAX_TIME_MS])
    keys = TimeKeys(times, entities=10**6, step_ms=1)
    codes = np.array([0, 0, 0, 999_999])
    requested = np.array([MIN_TIME_MS, 0, MAX_TIME_MS, MAX_TIME_MS])
    found = keys.of(codes, requested)
    assert found.tolist() == sorted(set(found.tolist()))
    assert keys.codes(found).tolist() == codes.tolist()


@given(st.lists(st.integers(0, 2**62), max_size=40), st.booleans())
def test_sorting_keeps_equal_keys_in_their_order(numbers: list[int], small: bool) -> None:
    keys = np.array([n % 7 for n in numbers] if small else numbers, np.int64)
    order, found = sort_order(keys)
    expected = sorted(range(len(numbers)), key=lambda i: (keys[i], i))
    assert order.tolist() == expected
    assert found.tolist() == keys[expected].tolist()


@given(SORTED, st.lists(st.integers(-3, 43), max_size=60), st.booleans(), st.booleans())
def test_positions_are_those_of_a_binary_search(
    keys: list[int], requested: list[int], ordered: bool, native: bool
) -> None:
    numbers = np.array(sorted(requested) if ordered else requested, np.int64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(entity_codes, "_MANY", 5)
        if not native:
            patch.setattr(entity_codes, "CORE", None)
        found = positions(np.array(keys, np.int64), numbers)
    assert found.tolist() == [bisect_left(keys, number) for number in numbers.tolist()]
