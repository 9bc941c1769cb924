"""Every edge, kind, grain and order of events, through every path: all equal the oracle.

Another path is added as a fixture here: its tiles go to ``matrix_paths.from_tiles``, or its
answers to ``matrix.wrong``.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paimon_features.testing.matrix import BATCHES, Cell, cells, random_cell, wrong
from paimon_features.testing.matrix_paths import MatrixLake, from_tiles, naive_tiles

CELLS = cells([("sawtooth", "5min"), ("hop", "5min"), ("exact", "5min"), ("exact", "1ms")])
ONLINE = [cell for cell in CELLS if cell.view.compiled.is_online]

# with the profile for fuzzing, millions of values
EXAMPLES = settings().max_examples if settings().max_examples > 1_000 else 25

Lakes = Callable[[Cell], MatrixLake]


@pytest.fixture(scope="module")
def lake_of(tmp_path_factory: pytest.TempPathFactory) -> Lakes:
    """A lake for each tile, grain and order; all kinds read the same one."""

    @cache
    def made(cell: Cell) -> MatrixLake:
        return MatrixLake(tmp_path_factory.mktemp("matrix"), cell)

    return lambda cell: made(replace(cell, kind="exact"))


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_the_join_over_tiles_equals_the_oracle(cell: Cell) -> None:
    given = from_tiles(cell, naive_tiles(cell), cell.questions)
    assert not wrong(cell, cell.questions, given)


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_the_lake_as_of_each_commit_equals_the_oracle(cell: Cell, lake_of: Lakes) -> None:
    for batches in range(1, BATCHES + 1):
        questions = cell.questions[batches - 1 :: BATCHES]
        given = lake_of(cell).as_of(cell, questions, batches)
        assert not wrong(cell, questions, given, batches=batches)


@pytest.mark.parametrize("cell", ONLINE, ids=str)
def test_the_online_store_equals_the_oracle(cell: Cell, lake_of: Lakes) -> None:
    answered, given = lake_of(cell).online(cell, cell.questions)
    assert len(answered) > len(cell.questions) // 4
    assert not wrong(cell, answered, given, online=True)


@given(st.integers(0, 2**32))
@settings(max_examples=EXAMPLES)
def test_any_cell_of_any_tile_equals_the_oracle(seed: int) -> None:
    cell = random_cell(random.Random(seed))
    given = from_tiles(cell, naive_tiles(cell), cell.questions)
    assert not wrong(cell, cell.questions, given)
