"""Samplers that choose the rows of a snapshot reader."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from paimon_features.core.errors import ConfigurationError, RequestError
from paimon_features.lake.catalog import Lake
from trainer_bridge.readers.snapshot_reader import SnapshotReader
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
from trainer_bridge.testing.sample_tables import make_samples, x_by_row_number
from trainer_bridge.testing.sampler_contract import flat

SCORES = np.arange(86) % 7
LABELS = np.arange(86) % 5 == 0

SAMPLERS: dict[str, Callable[[], AdvancedSampler]] = {
    "weighted": lambda: WeightedRandomSampler(SCORES, 100, seed=2),
    "without replacement": lambda: WeightedRandomSampler(SCORES, 50, False, seed=2),
    "difficulty": lambda: DifficultyWeightedSampler(SCORES, 100, score_snapshot_id=3, seed=2),
    "binned": lambda: BinnedDifficultySampler(SCORES, 100, seed=2),
    "poisson": lambda: PoissonSampler(SCORES + 1, 50, seed=2),
    "stratified": lambda: StratifiedSampler(LABELS, seed=2),
    "balanced": lambda: BalancedBatchSampler(LABELS, 20, seed=2),
    "hard": lambda: HardExampleMiningSampler(50, SCORES, seed=2),
    "curriculum": lambda: CurriculumSampler(SCORES, {0: 0.5, 130: 1.0}, 100, seed=2),
}


@pytest.mark.parametrize("make", SAMPLERS.values(), ids=SAMPLERS)
def test_a_reader_gives_the_rows_that_the_sampler_draws(
    lake: Lake, make: Callable[[], AdvancedSampler]
) -> None:
    table = make_samples(lake, (9, 3, 17, 30, 1, 26))
    x = np.array(x_by_row_number(lake, table))
    sampler = make()
    whole = [flat(list(sampler)) for _ in range(2)]
    for world in (1, 2, 5):
        counts, seen = set(), []
        for rank in range(world):
            options: dict[str, Any] = {
                "columns": ["x"],
                "global_batch_size": 20,
                "rank": rank,
                "world_size": world,
                "threads": 0 if world == 5 else 2,
                "block_rows": 8,
                "byte_budget": 3_000,
            }
            with SnapshotReader(lake, table, **options) as plain:
                reader = plain.with_sampler(make())
                states, batches = [], []
                for epoch in range(2):
                    lengths = (len(reader), reader.remaining())
                    for batch in reader:
                        states.append(json.loads(json.dumps(reader.state_dict())))
                        batches.append(batch)
                        assert batch.epoch == epoch
                    assert lengths == (sum(b.epoch == epoch for b in batches),) * 2
            for batch in batches:
                end = max(batch.position + 20, len(whole[batch.epoch]) - world)
                wanted = whole[batch.epoch][batch.position + rank : end : world]
                wanted = wanted[: len(batch)]
                assert batch.row_numbers.tolist()[: len(wanted)] == wanted
                assert batch["x"].tolist() == x[batch.row_numbers].tolist()
                if (weights := sampler.loss_weights(batch.row_numbers)) is not None:
                    assert np.allclose(batch["sample_weight"], weights)
                    assert batch["sample_weight"].dtype == np.float32
                else:
                    assert "sample_weight" not in batch.columns
                if batch.epoch == 0:
                    seen += batch.row_numbers[: len(wanted)].tolist()
            counts.add(len(batches))
            for consumed in range(0, len(batches), 3):
                again = plain.with_sampler(make())
                again.load_state_dict(states[consumed])
                following = batches[consumed + 1 :]
                rest = [batch["x"].tolist() for batch in again] if following else []
                same = [b["x"].tolist() for b in following if b.epoch == following[0].epoch]
                assert rest == same
        assert len(counts) == 1
        assert sorted(seen) == sorted(whole[0])


def test_every_global_batch_of_balanced_batches_is_balanced(lake: Lake) -> None:
    table = make_samples(lake, (9, 3, 17, 30, 1, 26))
    labels = np.arange(86) == 3  # a single row of the class
    for size in (10, 20):
        sampler = BalancedBatchSampler(labels, 10, seed=1)
        batches: dict[int, list[int]] = {}
        for rank in range(3):
            options: dict[str, Any] = {"global_batch_size": size, "rank": rank, "world_size": 3}
            with SnapshotReader(lake, table, columns=["x"], **options) as plain:
                for batch in plain.with_sampler(sampler):
                    batches.setdefault(batch.position, []).extend(batch.row_numbers.tolist())
        assert {(len(rows), rows.count(3)) for rows in batches.values()} == {(size, size // 2)}
    with (
        SnapshotReader(lake, table, columns=["x"], batch_size=16) as plain,
        pytest.raises(ConfigurationError, match="batches of 10 rows, the reader global .* of 16"),
    ):
        plain.with_sampler(sampler)


def test_a_reader_keeps_the_scores_it_was_made_with(lake: Lake) -> None:
    table = make_samples(lake, (9, 3))
    sampler = HardExampleMiningSampler(6, np.arange(12.0))
    with SnapshotReader(lake, table, columns=["x"], batch_size=4) as plain:
        old = plain.with_sampler(sampler)
        before = [batch.row_numbers.tolist() for batch in old]
        sampler.update_difficulty_scores(-np.arange(12.0), score_snapshot_id=9)
        old.set_epoch(0)
        assert [batch.row_numbers.tolist() for batch in old] == before
        new = plain.with_sampler(sampler)
        assert [batch.row_numbers.tolist() for batch in new] != before
        with pytest.raises(RequestError, match="'score_snapshot_id': 9"):
            new.load_state_dict(old.state_dict())


def test_a_reader_refuses_a_sampler_of_another_table_and_a_state_of_other_scores(
    lake: Lake,
) -> None:
    table = make_samples(lake, (9, 3))
    reader = SnapshotReader(lake, table, columns=["x"], batch_size=4)
    with pytest.raises(ConfigurationError, match="draws from 8 rows, table 'samples' has 12"):
        reader.with_sampler(DifficultyWeightedSampler(np.arange(8)))
    scores = np.arange(12)
    old = reader.with_sampler(DifficultyWeightedSampler(scores, score_snapshot_id=1))
    new = reader.with_sampler(DifficultyWeightedSampler(scores, score_snapshot_id=2))
    with pytest.raises(RequestError, match="'score_snapshot_id': 1.*'score_snapshot_id': 2"):
        new.load_state_dict(old.state_dict())


@pytest.mark.parametrize("make", SAMPLERS.values(), ids=SAMPLERS)
def test_a_reader_takes_the_seed_of_the_sampler_from_a_state(
    lake: Lake, make: Callable[[], AdvancedSampler]
) -> None:
    table = make_samples(lake, (9, 3, 17, 30, 1, 26))
    plain = SnapshotReader(lake, table, columns=["x"], batch_size=20, threads=0, seed=4)
    other = make()
    other.reseed(9)
    with plain.with_sampler(other) as first, plain.with_sampler(make()) as resumed:
        next(iter(first))
        next(iter(resumed))
        resumed.load_state_dict(json.loads(json.dumps(first.state_dict())))
        for _ in range(2):
            assert [b["x"].tolist() for b in resumed] == [b["x"].tolist() for b in first]


def test_scores_that_were_modified_cannot_be_ranked_by_another_seed() -> None:
    for sampler_of in (
        lambda scores, seed: HardExampleMiningSampler(4, scores, seed=seed),
        lambda scores, seed: CurriculumSampler(scores, {0: 0.5, 4: 1.0}, seed=seed),
    ):
        scores = np.arange(8.0)
        state = sampler_of(scores, 2).state_dict()
        sampler = sampler_of(scores, 1)
        before = list(sampler_of(scores, 1))
        scores[0] = 7
        with pytest.raises(RequestError, match="with the seed of the state"):
            sampler.load_state_dict(state)
        assert list(sampler) == before
