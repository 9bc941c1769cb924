"""Every edge, kind, grain and order of events, through every path: all equal the oracle.

The suite takes each kind with each order once, the grains in turn, and random cells; every second
order is left to ``make test-long``, for raw events those that the other paths take. ``make chaos``,
which sets ``PAIMON_FEATURES_RANDOM_JOBS``, takes every cell.

To add a path, pass its tiles to ``matrix_paths.from_tiles``, or its answers to ``matrix.wrong``.
"""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paimon_features.core.windows import KINDS
from paimon_features.lake.duckdb_engine import DuckDBEngine
from paimon_features.testing.sizes import cases
from tests.matrix import (
    BATCHES,
    GRAINS,
    ORDERS,
    Cell,
    cells,
    random_cell,
    wrong,
)
from tests.matrix_paths import (
    MatrixLake,
    duckdb_tiles,
    from_events,
    from_tiles,
    reference_tiles,
)
from tests.patient_stores import patient_store

ALL = cells([("sawtooth", "5min"), ("hop", "5min"), ("exact", "5min"), ("exact", "1ms")])


def in_turn(cell: Cell, offset: int = 0) -> bool:
    """Each kind and tile with each order once, the grains in turn."""
    turn = KINDS.index(cell.kind) + ORDERS.index(cell.order) + offset
    return GRAINS[turn % len(GRAINS)] == cell.grain


def is_chosen(cell: Cell) -> bool:
    # another grain for tiles of a millisecond
    return in_turn(cell) if cell.tile == "5min" else in_turn(cell, 2)


CELLS = ALL if "PAIMON_FEATURES_RANDOM_JOBS" in os.environ else [c for c in ALL if is_chosen(c)]
ONLINE = [cell for cell in CELLS if cell.view.compiled.is_online]
# tiles play no role over raw events
TILELESS = [cell for cell in CELLS if cell.tile == "5min"]
SLICE = [cell for cell in ONLINE if in_turn(cell)]

Lakes = Callable[[Cell], MatrixLake]


@pytest.fixture(scope="module")
def lake_of(tmp_path_factory: pytest.TempPathFactory) -> Lakes:
    """A lake for each tile, grain and order; all kinds read the same one."""

    @cache
    def made(cell: Cell) -> MatrixLake:
        return MatrixLake(tmp_path_factory.mktemp("matrix"), cell)

    return lambda cell: made(replace(cell, kind="exact"))


@pytest.fixture(scope="module")
def engine() -> Iterator[DuckDBEngine]:
    with DuckDBEngine(threads=1) as opened:
        yield opened


def groups(chosen: Sequence[Cell], first: int = 0) -> Iterable[object]:
    """The cells of one tile and order in one test, so that they share their lakes.

    Every second test is marked ``long``, but not the one of the number ``first``, 0 or 1.
    """
    by_lake: dict[str, list[Cell]] = {}
    for cell in chosen:
        by_lake.setdefault(f"{cell.tile}-{cell.order}", []).append(cell)
    marks = ([], [pytest.mark.long])
    return [
        pytest.param(group, id=name, marks=marks[(number + first) % 2])
        for number, (name, group) in enumerate(by_lake.items())
    ]


@pytest.mark.parametrize("group", groups(CELLS))
def test_tiles_answer_like_the_oracle(group: Sequence[Cell], engine: DuckDBEngine) -> None:
    for cell in group:
        for tiles in (reference_tiles(cell), duckdb_tiles(cell, engine)):
            given = from_tiles(cell, tiles, cell.questions)
            assert not wrong(cell, cell.questions, given), cell


@pytest.mark.parametrize("group", groups(TILELESS, first=1))
def test_the_local_engine_over_raw_events_equals_the_oracle(group: Sequence[Cell]) -> None:
    for cell in group:
        assert not wrong(cell, cell.questions, from_events(cell, cell.questions)), cell


@pytest.mark.parametrize("group", groups(CELLS))
def test_the_lake_as_of_each_commit_equals_the_oracle(
    group: Sequence[Cell], lake_of: Lakes
) -> None:
    for cell in group:
        for batches in range(1, BATCHES + 1):
            questions = cell.questions[batches - 1 :: BATCHES]
            given = lake_of(cell).as_of(cell, questions, batches)
            assert not wrong(cell, questions, given, batches=batches), (cell, batches)


@pytest.mark.parametrize("group", groups(ONLINE))
def test_the_online_store_equals_the_oracle(group: Sequence[Cell], lake_of: Lakes) -> None:
    for cell in group:
        answered, given = lake_of(cell).online(cell, cell.questions)
        assert len(answered) > len(cell.questions) // 4, cell
        assert not wrong(cell, answered, given, online=True), cell


@pytest.mark.redis
@pytest.mark.parametrize("cell", SLICE, ids=str)
def test_a_real_server_equals_the_oracle(cell: Cell, lake_of: Lakes, redis_url: str) -> None:
    with closing(patient_store(redis_url)) as store:
        answered, given = lake_of(cell).online(cell, cell.questions, store)
    assert len(answered) > len(cell.questions) // 4
    assert not wrong(cell, answered, given, online=True)


@given(st.integers(0, 2**32))
@cases(12)
def test_any_cell_of_any_tile_equals_the_oracle(engine: DuckDBEngine, seed: int) -> None:
    cell = random_cell(random.Random(seed))
    for tiles in (reference_tiles(cell), duckdb_tiles(cell, engine)):
        given = from_tiles(cell, tiles, cell.questions)
        assert not wrong(cell, cell.questions, given)
    assert not wrong(cell, cell.questions, from_events(cell, cell.questions))


@given(st.integers(0, 2**32))
@cases(3)
def test_any_cell_in_a_lake_and_online_equals_the_oracle(seed: int) -> None:
    rng = random.Random(seed)
    cell = random_cell(rng)
    with tempfile.TemporaryDirectory() as folder:
        lake = MatrixLake(Path(folder), cell)
        batches = rng.randint(1, BATCHES)
        given = lake.as_of(cell, cell.questions, batches)
        assert not wrong(cell, cell.questions, given, batches=batches)
        if cell.view.compiled.is_online:
            answered, given = lake.online(cell, cell.questions)
            assert not wrong(cell, answered, given, online=True)
