"""Samplers in torch's DataLoader, as they are and as torch samplers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from trainer_bridge.samplers import (
    BalancedBatchSampler,
    PoissonSampler,
    StratifiedSampler,
    WeightedRandomSampler,
)

pytestmark = pytest.mark.torch

LABELS = np.arange(40) % 4 == 0


@pytest.fixture
def data() -> Any:
    import torch
    from torch.utils.data import TensorDataset

    return TensorDataset(torch.arange(40))


@pytest.mark.parametrize(
    "make",
    [
        lambda: WeightedRandomSampler(np.arange(40), 30, seed=1),
        lambda: PoissonSampler(np.ones(40), 30, seed=1),
        lambda: StratifiedSampler(LABELS, seed=1),
    ],
)
def test_a_dataloader_takes_a_sampler_as_it_is(data: Any, make: Any) -> None:
    import torch
    from torch.utils.data import DataLoader

    loader = DataLoader(data, sampler=make(), batch_size=7)
    wanted = make()
    for _ in range(2):
        expected, length = list(wanted), len(loader)
        batches = [batch[0] for batch in loader]
        assert torch.cat(batches).tolist() == expected
        assert len(batches) == length


def test_a_dataloader_takes_balanced_batches_as_they_are(data: Any) -> None:
    from torch.utils.data import DataLoader

    loader = DataLoader(data, batch_sampler=BalancedBatchSampler(LABELS, 8, seed=1))
    batches = [batch[0].tolist() for batch in loader]
    assert batches == list(BalancedBatchSampler(LABELS, 8, seed=1))
    assert len(batches) == len(loader) == 5
    assert {int(LABELS[batch].sum()) for batch in batches} == {4}


def test_as_sampler_makes_torch_samplers_with_the_length_of_the_rank(data: Any) -> None:
    from torch.utils.data import DataLoader, Sampler

    from trainer_bridge.adapters.torch import as_sampler

    for rank in range(3):
        rows = as_sampler(PoissonSampler(np.ones(40), 20, rank=rank, world_size=3))
        assert isinstance(rows, Sampler)
        loader = DataLoader(data, sampler=rows, batch_size=1)
        length = len(loader)
        assert len(list(loader)) == length
        batches = as_sampler(BalancedBatchSampler(LABELS, 8, rank=rank, world_size=3))
        assert isinstance(batches, Sampler)
        assert len(DataLoader(data, batch_sampler=batches)) == 2
        assert len(list(DataLoader(data, batch_sampler=batches))) == 2


def test_weights_and_labels_may_be_tensors() -> None:
    import torch

    weights, labels = torch.arange(40, dtype=torch.float32), torch.from_numpy(LABELS)
    assert list(WeightedRandomSampler(weights, 9)) == list(
        WeightedRandomSampler(np.arange(40.0), 9)
    )
    assert list(StratifiedSampler(labels)) == list(StratifiedSampler(LABELS))
