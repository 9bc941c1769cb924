"""Two loops over one object: nothing is lost in silence, whatever it is that is iterated over."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import paimon_features as pf
from paimon_features.core.errors import RequestError
from paimon_features.lake import Lake, TableSpec, append_arrow
from trainer_bridge import FollowingReader, SnapshotReader, mix
from trainer_bridge.dataframe import Dataset
from trainer_bridge.preprocess import PreprocessPipeline
from trainer_bridge.samplers import (
    AdvancedSampler,
    BalancedBatchSampler,
    HardExampleMiningSampler,
    PoissonSampler,
    StratifiedSampler,
    WeightedRandomSampler,
)

ROWS = 100


@pytest.fixture
def filled(lake: Lake) -> Lake:
    lake.create(TableSpec("t", {"x": pf.Int64}))
    append_arrow(lake, "t", pa.table({"x": np.arange(ROWS)}))
    return lake


def reader(lake: Lake) -> SnapshotReader:
    return SnapshotReader(lake, "t", batch_size=10, seed=1)


OBJECTS: dict[str, Callable[[Lake], Iterable[Any]]] = {
    "reader": reader,
    "reader with a sampler": lambda lake: reader(lake).with_sampler(
        WeightedRandomSampler(np.ones(ROWS), ROWS, replacement=False)
    ),
    "mixture": lambda lake: mix([reader(lake), reader(lake)], [1, 1], rows_per_epoch=100),
    "following reader": lambda lake: FollowingReader(lake, "t", batch_size=10, until_snapshot=1),
    "pipeline": lambda lake: PreprocessPipeline(lake, "t").select("x").batch(10).open(),
    "pipeline that prefetches": lambda lake: (
        PreprocessPipeline(lake, "t").select("x").batch(10).prefetch(2).open()
    ),
    "data frame": lambda lake: Dataset.from_table(lake, "t").batch(10),
    "weighted sampler": lambda lake: WeightedRandomSampler(np.ones(ROWS), 10),
    "hard sampler": lambda lake: HardExampleMiningSampler(10, np.arange(ROWS)),
    "Poisson sampler": lambda lake: PoissonSampler(np.ones(ROWS), 20),
    "stratified sampler": lambda lake: StratifiedSampler(np.arange(ROWS) % 2),
    "balanced sampler": lambda lake: BalancedBatchSampler(np.arange(ROWS) % 2, 10),
}


@pytest.mark.parametrize("make", OBJECTS.values(), ids=OBJECTS)
def test_a_loop_that_another_one_interrupts_has_all_batches_or_an_error(
    filled: Lake, make: Callable[[Lake], Iterable[Any]]
) -> None:
    wanted = [str(item) for item in make(filled)]
    iterable, seen = make(filled), []
    error = None
    try:
        for step, item in enumerate(iterable):
            seen.append(str(item))
            if step == 2:
                next(iter(iterable))  # a look at one batch
    except RequestError as raised:
        error = str(raised)
    if error is None:
        assert seen == wanted
    else:
        assert "another loop" in error
        assert len(seen) == 3


@pytest.mark.parametrize("make", OBJECTS.values(), ids=OBJECTS)
def test_a_loop_that_has_come_to_its_end_stays_there(
    filled: Lake, make: Callable[[Lake], Iterable[Any]]
) -> None:
    iterable = make(filled)
    first = iter(iterable)
    list(first)
    next(iter(iterable), None)
    assert list(first) == []


def move_to_another_epoch(found: Any) -> None:
    found.set_epoch(3)


def move_to_a_state(found: Any) -> None:
    found.load_state_dict(found.state_dict())


@pytest.mark.parametrize("move", [move_to_another_epoch, move_to_a_state])
@pytest.mark.parametrize("name", ["reader", "mixture", "pipeline", "stratified sampler"])
def test_a_loop_whose_object_is_moved_meanwhile_ends_with_an_error(
    filled: Lake, name: str, move: Callable[[Any], None]
) -> None:
    iterable = OBJECTS[name](filled)
    loop = iter(iterable)
    next(loop)
    if isinstance(iterable, AdvancedSampler) and move is move_to_a_state:
        next(loop)
        state = {**iterable.state_dict(), "position": 0}
        iterable.load_state_dict(state)
    else:
        move(iterable)
    with pytest.raises(RequestError, match="moved|another loop"):
        list(loop)
