"""What frameworks wrap around a loader must not lose, repeat or reshape rows."""

from __future__ import annotations

import os
from typing import Any

import pytest

from paimon_features.core.errors import ConfigurationError
from paimon_features.lake.catalog import Lake
from trainer_bridge import FollowingReader
from trainer_bridge.readers.snapshot_reader import SnapshotReader
from trainer_bridge.samplers import BalancedBatchSampler, WeightedRandomSampler
from trainer_bridge.testing.sample_tables import make_samples

pytestmark = pytest.mark.torch

SIZES = (9, 3, 17, 30, 1, 26)


@pytest.fixture
def adapter() -> Any:
    from trainer_bridge.adapters import torch

    return torch


@pytest.fixture
def table(lake: Lake) -> str:
    return make_samples(lake, SIZES)


def reader(lake: Lake, table: str, **options: Any) -> SnapshotReader:
    return SnapshotReader(lake, table, columns=["x"], batch_size=9, threads=0, **options)


@pytest.mark.parametrize(("workers", "size"), [(0, 1), (0, 4), (1, 1)])
def test_a_data_loader_that_collates_batches_says_what_to_write(
    lake: Lake, table: str, adapter: Any, workers: int, size: int
) -> None:
    from torch.utils.data import DataLoader

    data = adapter.loader(reader(lake, table))
    with pytest.raises(ConfigurationError, match=r"write DataLoader\(loader, batch_size=None\)"):
        next(iter(DataLoader(data, batch_size=size, num_workers=workers)))
    stream = adapter.loader(FollowingReader(lake, table, columns=["x"], batch_size=9))
    if not workers:
        with pytest.raises(ConfigurationError, match="batch_size=None"):
            next(iter(DataLoader(stream, batch_size=size)))


@pytest.mark.long
def test_rows_of_a_loader_may_be_collated_by_a_dataset_of_ones_own(
    lake: Lake, table: str, adapter: Any
) -> None:
    from torch.utils.data import DataLoader, IterableDataset

    class Rows(IterableDataset):  # type: ignore[type-arg]
        def __init__(self, loader: Any) -> None:
            self.loader = loader

        def __iter__(self) -> Any:
            for batch in self.loader:
                yield from batch["x"]

    rows = DataLoader(Rows(adapter.loader(reader(lake, table))), batch_size=4)
    assert sorted(x for part in rows for x in part.tolist()) == list(range(sum(SIZES)))


@pytest.mark.long
@pytest.mark.parametrize("workers", [0, 1])
def test_a_reader_in_a_data_loader_says_what_to_write(lake: Lake, table: str, workers: int) -> None:
    from torch.utils.data import DataLoader

    with pytest.raises(ConfigurationError, match=r"DataLoader\(loader\(reader\), batch_size=None"):
        next(iter(DataLoader(reader(lake, table), num_workers=workers)))  # type: ignore[arg-type]
    with FollowingReader(lake, table, columns=["x"], batch_size=9) as following:
        with pytest.raises(TypeError, match=r"DataLoader\(loader\(reader\), batch_size=None"):
            next(iter(DataLoader(following)))  # type: ignore[arg-type]
        with pytest.raises(ConfigurationError, match="no rows by index"):
            following[0]
        assert following  # whether there is one is no question of its length


@pytest.mark.long
def test_random_split_says_how_to_split_and_that_way_is_right(
    lake: Lake, table: str, adapter: Any
) -> None:
    from torch.utils.data import Subset, random_split

    for data in (reader(lake, table), adapter.loader(reader(lake, table))):
        for lengths in ([0.8, 0.2], [70, 16]):
            with pytest.raises(ConfigurationError, match="in place of random_split"):
                random_split(data, lengths)
        with pytest.raises(ConfigurationError, match="no rows by index"):
            Subset(data, [1, 2])[0]  # type: ignore[arg-type]
    bucket = "hash_bucket(CAST(x AS STRING), 10)"
    parts = [
        [x for batch in reader(lake, table, where=f"{bucket} {half}") for x in batch["x"].tolist()]
        for half in ("< 8", ">= 8")
    ]
    assert all(parts)
    assert sorted(parts[0] + parts[1]) == list(range(sum(SIZES)))


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_what_torch_itself_shards_again_is_refused(lake: Lake, table: str, adapter: Any) -> None:
    from torch.utils.data import DistributedSampler
    from torch.utils.data.datapipes.iter import IterableWrapper

    def pipe(world: int) -> Any:
        data = adapter.loader(reader(lake, table, rank=0, world_size=world))
        return IterableWrapper(data, deepcopy=False).sharding_filter()

    with pytest.raises(ConfigurationError, match="share of rank 0 of 2 already"):
        next(iter(pipe(2)))
    assert len(list(pipe(1))) == 10

    class Again(DistributedSampler):  # type: ignore[type-arg]
        """As wrappers of samplers are written everywhere."""

        def __iter__(self) -> Any:
            drawn = list(self.dataset)  # type: ignore[call-overload]
            return iter([drawn[i] for i in super().__iter__()])

    for world, message in ((2, "this sampler has the share of rank 0 of 2"), (1, None)):
        for sampler in (
            WeightedRandomSampler([1.0] * 8, 8, rank=0, world_size=world),
            BalancedBatchSampler([0, 1] * 4, 2, rank=0, world_size=world),
        ):
            again = Again(sampler, num_replicas=2, rank=0)  # type: ignore[arg-type]
            if message is None:
                assert len(list(again)) == len(sampler) // 2
            else:
                with pytest.raises(ConfigurationError, match=message):
                    list(again)


def test_accelerate_gets_the_share_of_its_own_rank_or_an_error(
    lake: Lake, table: str, adapter: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    accelerate = pytest.importorskip("accelerate", reason="pip install accelerate")
    from accelerate.state import AcceleratorState

    from trainer_bridge.adapters.accelerate import accelerated

    alone = adapter.loader(reader(lake, table))
    with monkeypatch.context() as patched:  # as torchrun sets them
        patched.setenv("RANK", "1")
        patched.setenv("WORLD_SIZE", "2")
        other = adapter.loader(reader(lake, table))
    try:
        accelerator = accelerate.Accelerator(cpu=True, device_placement=False)
        message = "share of rank 1 of 2, the accelerator is rank 0 of 1: make it after the Accelera"
        with pytest.raises(ConfigurationError, match=message):
            accelerated(other, accelerator)
        data = accelerated(alone, accelerator)
        assert accelerator.prepare(data) is data
        assert sorted(x for batch in data for x in batch["x"].tolist()) == list(range(sum(SIZES)))
        assert data.end_of_dataloader
    finally:
        AcceleratorState._reset_state(True)


def test_a_stream_in_worker_processes_says_what_to_write(
    lake: Lake, table: str, adapter: Any
) -> None:
    from torch.utils.data import DataLoader

    stream = adapter.loader(FollowingReader(lake, table, columns=["x"], batch_size=9))
    with pytest.raises(ConfigurationError, match="a stream in 1 worker processes: .*num_workers=0"):
        next(iter(DataLoader(stream, batch_size=None, num_workers=1)))


@pytest.mark.long
def test_a_loader_made_before_its_rank_was_known_is_refused(
    lake: Lake, table: str, adapter: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch.utils.data import DataLoader

    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    early = adapter.loader(reader(lake, table))
    chosen = adapter.loader(reader(lake, table), rank=0, world_size=1)
    given = adapter.loader(reader(lake, table, rank=0, world_size=1))
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert os.environ["RANK"] == "1"
    for data in (early, DataLoader(early, batch_size=None)):
        with pytest.raises(ConfigurationError, match="rank 0 of 1, and it is rank 1 of 2 now"):
            next(iter(data))
    # for validation, every rank may read everything
    assert len(list(chosen)) == len(list(given)) == 10
    assert adapter.loader(reader(lake, table)).reader.world_size == 2
