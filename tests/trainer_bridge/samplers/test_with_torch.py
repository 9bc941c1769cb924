"""Samplers in torch's DataLoader, as they are and as torch samplers."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from paimon_features.core.errors import RequestError
from tests.long_cases import quick_cases
from trainer_bridge.samplers import (
    BalancedBatchSampler,
    HardExampleMiningSampler,
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


def indices(batches: Iterable[Any]) -> list[int]:
    return [index for batch in batches for index in batch[0].tolist()]


WITH_WORKERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "rows": (lambda **of: StratifiedSampler(LABELS, seed=1, **of), {"batch_size": 3}),
    "all rows drawn at once": (
        lambda **of: StratifiedSampler(LABELS, seed=1, **of),
        {"batch_size": 5, "prefetch_factor": 8},
    ),
    "last rows dropped": (
        lambda **of: WeightedRandomSampler(np.arange(40), 31, seed=1, **of),
        {"batch_size": 3, "drop_last": True},
    ),
    "persistent workers": (
        lambda **of: PoissonSampler(np.ones(40), 30, seed=1, **of),
        {"batch_size": 4, "persistent_workers": True},
    ),
    "batches": (lambda **of: BalancedBatchSampler(LABELS, 4, seed=1, **of), {}),
}


@pytest.mark.parametrize(("make", "options"), WITH_WORKERS.values(), ids=WITH_WORKERS)
@pytest.mark.parametrize("wrapped", quick_cases([False, True], True))
def test_a_loop_with_workers_that_was_left_early_is_continued_without_a_loss(
    data: Any, make: Any, options: dict[str, Any], wrapped: bool
) -> None:
    from torch.utils.data import DataLoader

    from trainer_bridge.adapters.torch import as_sampler

    of = {"rank": 1, "world_size": 2} if wrapped else {}

    def loader_of(sampler: Any, workers: int) -> Any:
        given = as_sampler(sampler) if wrapped else sampler
        key = "sampler" if "batch_size" in options else "batch_sampler"
        of_workers = ("persistent_workers", "prefetch_factor")
        kept = {k: v for k, v in options.items() if workers or k not in of_workers}
        return DataLoader(data, **{key: given}, num_workers=workers, **kept)

    alone = loader_of(make(**of), 0)
    wanted = [indices(alone) for _ in range(2)]
    sampler = make(**of)
    loader = loader_of(sampler, 2)
    seen: list[int] = []
    for stop in (2, 1):
        batches = iter(loader)
        seen += indices(next(batches) for _ in range(stop))
        state = sampler.state_dict()
        if stop == 2:
            del batches  # the other one is still there when the next loop begins
    resumed = make(**of)
    resumed.load_state_dict(state)
    assert seen + indices(loader_of(resumed, 0)) == wanted[0]
    assert seen + indices(loader) == wanted[0]
    assert sampler.state_dict()["epoch"] == 1
    assert indices(loader) == wanted[1]


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata calls it
def test_a_stateful_data_loader_stores_what_it_has_drawn(data: Any) -> None:
    from torchdata.stateful_dataloader import StatefulDataLoader

    def loader() -> Any:
        return StatefulDataLoader(
            data, sampler=StratifiedSampler(LABELS, seed=1), batch_size=3, num_workers=2
        )

    wanted = list(StratifiedSampler(LABELS, seed=1))
    first, second = loader(), loader()
    batches = iter(first)
    seen = indices(next(batches) for _ in range(4))
    second.load_state_dict(first.state_dict())
    assert seen + indices(second) == wanted


def test_where_a_loop_with_workers_stands_is_not_guessed(data: Any) -> None:
    from torch.utils.data import DataLoader

    class InPairs:
        def __init__(self, sampler: Any) -> None:
            self.sampler = sampler

        def __iter__(self) -> Any:
            rows = iter(self.sampler)
            return iter(lambda: list(itertools.islice(rows, 2)), [])

    sampler = StratifiedSampler(LABELS, seed=1)
    loader: Any = DataLoader(data, batch_sampler=InPairs(sampler), num_workers=2)
    wanted = list(StratifiedSampler(LABELS, seed=1))
    assert indices(loader) == wanted  # a complete loop needs no position within it
    sampler.set_epoch(0)
    next(iter(loader))
    for use in (sampler.state_dict, lambda: next(iter(sampler)), lambda: copy.copy(sampler)):
        with pytest.raises(RequestError, match="say where to continue by"):
            use()
    sampler.set_epoch(0)
    assert indices(loader) == wanted


def test_scores_that_are_replaced_in_a_loop_with_workers_do_not_mix_two_orders(data: Any) -> None:
    from torch.utils.data import DataLoader

    sampler = HardExampleMiningSampler(12, np.arange(40.0))
    loader: Any = DataLoader(data, sampler=sampler, batch_size=3, num_workers=2)
    next(iter(loader))  # draws all of them
    sampler.update_difficulty_scores(-np.arange(40.0))
    with pytest.raises(RequestError, match="scores were replaced"):
        next(iter(loader))
    sampler.set_epoch(1)
    fresh = HardExampleMiningSampler(12, -np.arange(40.0))
    fresh.set_epoch(1)
    assert indices(loader) == list(fresh)
