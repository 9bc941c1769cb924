"""Windows folded by ranges and by running sums, and folded cell by cell: one result."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from paimon_features.core.columns.column import Column
from paimon_features.definitions.aggregates import Merge
from paimon_features.definitions.aggregates.range_folds import (
    is_decayed,
    is_reduced,
    is_running_sum,
)
from paimon_features.online.store.codec import RecordLayout, cell_key
from paimon_features.serving.reading.window_features import Borders, KeyRange, WindowCells
from paimon_features.testing.sizes import cases
from tests import generators


def random_column(rng: random.Random, kind: str, count: int) -> Column:
    if kind == "int64":
        pool = [0, 1, -1, 2**62, -(2**63), 2**63 - 1, rng.randrange(-99, 99)]
        values = np.array([rng.choice(pool) for _ in range(count)], np.int64)
    else:
        values = np.array(
            [rng.choice((0.0, -0.0, 1e6, 0.1, rng.gauss(0, 9))) for _ in range(count)]
        )
    share = rng.choice((0.0, 0.0, 0.4, 1.0))
    valid = np.array([rng.random() >= share for _ in range(count)], np.bool_)
    return Column(values, valid if share else None)


@given(seed=st.integers(0, 2**32 - 1))
@cases(120)
def test_each_fold_equals_the_general_one(seed: int) -> None:
    rng = random.Random(seed)
    compiled = generators.random_view(rng).compiled
    layout = RecordLayout(compiled)
    plain = [p for p in compiled.partials if p.type.is_numeric]
    sizes = [rng.choice((0, 1, 5, 30)) for _ in range(rng.choice((0, 1, 4)))]
    # ascending keys of three levels for each row
    keys = [
        np.array(
            sorted(rng.sample([cell_key(level, i) for level in (0, 1, 2) for i in range(12)], n)),
            np.int64,
        )
        for n in sizes
    ]
    count = sum(sizes)
    columns = {
        p.name: random_column(rng, p.type.text, count)
        if p in plain
        else Column(np.full(count, "" if p.type.text == "string" else b"", object))
        for p in compiled.partials
    }
    # event times ascend with the time of the cells: the finest level has the newest
    all_keys = np.concatenate([*keys, np.empty(0, np.int64)])
    level, index = all_keys >> 56, all_keys & 0xFFFF
    columns["p_event_time_max"] = Column((3 - level) * 1_000_000 + index * 10)
    columns["p_rows"] = Column(np.ones(count, np.int64))
    rows = layout.cells(all_keys, columns)
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    cells = WindowCells(layout, rows, offsets)
    windows: list[list[KeyRange]] = []
    for _ in range(rng.randint(1, 4)):
        ranges = []
        for at in sorted(rng.sample((0, 1, 2), rng.randint(0, 3))):
            low, high = sorted((rng.randrange(13), rng.randrange(13)))
            ranges.append((cell_key(at, low), cell_key(at, high)))
        windows.append([(low, high) for low, high in ranges if low < high])
    every = range(len(windows))
    folds = cells.folds(Borders.of(windows))
    own = sorted(rng.sample(range(len(windows)), rng.randint(1, len(windows))))
    sums = [p.name for p in plain if is_running_sum(p)]
    for name, column in folds.sums(sums).items():
        assert_same(column, folds.general([name], every)[name], exact=True)
    for partial in plain:
        if is_reduced(partial):
            expected = folds.general([partial.name], own)[partial.name]
            exact = partial.merge is not Merge.SUM
            assert_same(folds.reduced(partial.name, own), expected, exact)
        elif is_decayed(partial):
            expected = folds.general([partial.name], own)[partial.name]
            got = folds.decayed(partial.name, own)
            if got is not None:
                assert_same(got, expected, exact=False)
    newest = folds.general(["p_event_time_max"], every)["p_event_time_max"]
    expected_times = np.where(newest.mask, newest.values, -(2**62))
    assert folds.newest.ravel().tolist() == expected_times.tolist()


def assert_same(got: Column, expected: Column, exact: bool) -> None:
    assert got.mask.tolist() == expected.mask.tolist()
    values, others = got.values[got.mask], expected.values[expected.mask]
    assert values.dtype == others.dtype
    if exact:
        assert values.tolist() == others.tolist()
    else:  # another order of adding
        np.testing.assert_allclose(values, others, rtol=1e-12, atol=1e-8)
