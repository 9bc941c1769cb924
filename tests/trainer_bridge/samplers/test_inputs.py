"""What samplers take: lists, NumPy, Arrow, pandas, Polars, a difficulty; and what they refuse."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from paimon_features.core.errors import ConfigurationError, RequestError
from trainer_bridge.feedback.difficulty import Difficulty
from trainer_bridge.samplers import (
    AdvancedSampler,
    BalancedBatchSampler,
    BinnedDifficultySampler,
    CurriculumSampler,
    DifficultyWeightedSampler,
    HardExampleMiningSampler,
    PoissonSampler,
    StratifiedSampler,
    WeightedRandomSampler,
)

Make = Callable[[Any], AdvancedSampler]

BY_NUMBER: dict[str, Make] = {
    "weighted": lambda numbers: WeightedRandomSampler(numbers, 3),
    "without replacement": lambda numbers: WeightedRandomSampler(numbers, 2, replacement=False),
    "difficulty": lambda numbers: DifficultyWeightedSampler(numbers, 3),
    "binned": lambda numbers: BinnedDifficultySampler(numbers, 3),
    "poisson": lambda numbers: PoissonSampler(numbers, 2),
    "curriculum": lambda numbers: CurriculumSampler(numbers, {0: 0.7}, 3),
    "hard": lambda numbers: HardExampleMiningSampler(2, numbers),
}
BY_LABEL: dict[str, Make] = {
    "stratified": StratifiedSampler,
    "balanced": lambda labels: BalancedBatchSampler(labels, 3),
}
number_samplers = pytest.mark.parametrize("make", BY_NUMBER.values(), ids=BY_NUMBER)
label_samplers = pytest.mark.parametrize("make", BY_LABEL.values(), ids=BY_LABEL)


@number_samplers
def test_numbers_come_in_any_form(make: Make) -> None:
    forms = [
        [1.0, 2.0, 3.5, 4.0],
        (1.0, 2.0, 3.5, 4.0),
        np.array([1.0, 2.0, 3.5, 4.0], dtype=np.float32),
        pa.array([1.0, 2.0, 3.5, 4.0]),
        pa.chunked_array([[1.0, 2.0], [3.5, 4.0]]),
        pd.Series([1.0, 2.0, 3.5, 4.0], index=[9, 8, 7, 6]),
        pd.Series([1.0, 2.0, 3.5, 4.0], dtype="Float64"),
        pl.Series([1.0, 2.0, 3.5, 4.0]),
    ]
    assert len({tuple(make(form)) for form in forms}) == 1
    whole = [[1, 2, 3, 4], np.array([1, 2, 3, 4], dtype=np.int16), pa.array([1, 2, 3, 4])]
    assert len({tuple(make(form)) for form in whole}) == 1


@label_samplers
def test_labels_come_in_any_form_and_type(make: Make) -> None:
    words = ["b", "a", "a", "c", "a", "b", "a"]
    numbers = [1, 0, 0, 2, 0, 1, 0]
    text = pa.array(words)
    forms = [
        words,
        tuple(words),
        np.array(words),
        np.array(words, dtype=object),
        text,
        pa.chunked_array([text[:3], text[3:]]),
        text.dictionary_encode(),
        pa.chunked_array([text[:3].dictionary_encode(), text[3:].dictionary_encode()]),
        pd.Series(words),
        pd.Series(words, dtype="category"),
        pl.Series(words),
        pl.Series(words, dtype=pl.Categorical),
        numbers,
        np.array(numbers, dtype=np.uint8),
        np.array(numbers, dtype=np.float64),
        pa.array([n + 2**62 for n in numbers]),
    ]
    assert len({str(list(make(form))) for form in forms}) == 1
    assert make([word != "a" for word in words]).num_rows == 7


@number_samplers
@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ([1.0, float("nan"), 1.0], "number 1 is nan"),
        ([float("inf"), 1.0, 1.0], "number 0 is inf"),
        ([], "expected one number per row"),
        ([[1.0], [2.0]], "shape \\(2, 1\\)"),
        (["a", "b", "c"], "expected numbers"),
        ([1.0, None, 2.0], "1 of 3 are null"),
        (pa.array([1.0, None, 2.0]), "1 of 3 are null"),
        (pa.chunked_array([[1.0], [None, 2.0]]), "1 of 3 are null"),
        (pd.Series([1.0, None, 2.0]), "1 of 3 are null"),
        (pd.Series([1, None, 2], dtype="Int64"), "1 of 3 are null"),
        (pl.Series([1.0, None, 2.0]), "1 of 3 are null"),
    ],
)
def test_numbers_that_are_none_are_refused(make: Make, numbers: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make(numbers)


@pytest.mark.parametrize("name", ["weighted", "difficulty", "binned", "poisson"])
def test_negative_weights_are_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="number 1 is -1.0"):
        BY_NUMBER[name]([1.0, -1.0, 2.0])


def test_weights_that_add_up_to_nothing_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="sum is 0.0"):
        WeightedRandomSampler([0.0, 0.0], 1)


@pytest.mark.parametrize("name", ["weighted", "difficulty", "poisson"])
def test_weights_that_add_up_to_more_than_a_float_holds_are_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="sum is inf; expected a finite total"):
        BY_NUMBER[name]([1e308, 1e308, 1e308])


@number_samplers
def test_a_place_that_is_none_is_refused(make: Make) -> None:
    sampler = make([1.0, 2.0, 3.5, 4.0])
    state = sampler.state_dict()
    for change in ({"position": -1}, {"position": 0.5}, {"epoch": -1}, {"epoch": None}):
        with pytest.raises(RequestError, match="a sampler's state with .*; expected an integer"):
            sampler.load_state_dict({**state, **change})
    assert sampler.state_dict() == state


def test_half_a_sample_is_refused() -> None:
    with pytest.raises(
        ConfigurationError, match="1.5 samples of 2 rows: expected integers of at least 1"
    ):
        WeightedRandomSampler([1, 2], 1.5)  # type: ignore[arg-type]


@label_samplers
@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (["a", None], "null or NaN"),
        ([1.0, float("nan")], "null or NaN"),
        (pa.array([1, None]), "null or NaN"),
        (pd.Series(["a", None]), "null or NaN"),
        (pl.Series([1, None]), "null or NaN"),
        ([], "got none"),
        (np.zeros((2, 2)), "shape \\(2, 2\\)"),
        (["a", 1], "labels of one type"),
    ],
)
def test_labels_that_are_none_are_refused(make: Make, labels: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make(labels)


@pytest.mark.parametrize(("many", "dtype"), [(256, "uint8"), (257, "uint16"), (70_000, "uint32")])
def test_labels_take_as_few_bytes_as_there_are_classes(many: int, dtype: str) -> None:
    sampler = StratifiedSampler(np.arange(many)[::-1])
    assert sampler._codes.dtype == dtype
    assert sorted(sampler) == list(range(many))


@number_samplers
@pytest.mark.parametrize("other", [[2.0, 1.0, 3.0], [1.0, 2.0, 3.5]])
def test_the_state_of_other_or_reordered_numbers_is_refused(make: Make, other: list[float]) -> None:
    state = make([1.0, 2.0, 3.0]).state_dict()
    make([1.0, 2.0, 3.0]).load_state_dict(state)
    if make is BY_NUMBER["binned"] and other == [1.0, 2.0, 3.5]:
        other = [1.0, 2.0, 4.5]
    with pytest.raises(RequestError, match="does not fit this sampler"):
        make(other).load_state_dict(state)


@pytest.mark.parametrize("name", ["difficulty", "binned", "curriculum", "hard"])
def test_a_difficulty_gives_its_scores_and_its_snapshot(name: str) -> None:
    day = 86_400_000
    features = pa.table({"id": [1, 2], "loss_decayed": [4.0, 2.0], "last_seen_ms": [0, 0]})
    difficulty = Difficulty(pa.table({"id": [2, 1, 9]}), features, as_of_ms=day, snapshot_id=12)
    sampler = BY_NUMBER[name](difficulty)
    assert sampler.identity()["score_snapshot_id"] == 12
    assert list(sampler) == list(BY_NUMBER[name](difficulty.scores()))


@pytest.mark.parametrize(("rank", "world"), [(-1, 2), (2, 2), (0, 0)])
def test_a_rank_outside_the_world_is_refused(rank: int, world: int) -> None:
    with pytest.raises(ConfigurationError, match="0 <= rank < world_size"):
        WeightedRandomSampler([1.0], 1, rank=rank, world_size=world)


def test_no_samples_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="expected integers of at least 1"):
        WeightedRandomSampler([1.0], 0)


def test_arguments_that_are_numpy_integers_make_states_that_json_knows() -> None:
    n = np.int64(3)
    for sampler in (
        WeightedRandomSampler([1.0] * 4, n, seed=n, rank=n - 3, world_size=n),
        BalancedBatchSampler([0, 1, 0, 1], n, num_batches=n, seed=n),
        StratifiedSampler([0, 1, 0, 1], n, seed=n),
        CurriculumSampler([1, 2, 3, 4], {np.int64(0): np.float32(0.5)}, n, seed=n),
        HardExampleMiningSampler(n, [1, 2, 3, 4], seed=n),
        PoissonSampler([1, 2, 3, 4], n, seed=n),
    ):
        assert json.loads(json.dumps(sampler.state_dict())) == sampler.state_dict()
        assert len(list(sampler)) > 0
