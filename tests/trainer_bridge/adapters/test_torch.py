"""Readers and samplers in torch: no copies, any number of workers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from paimon_features.core.errors import ConfigurationError, RequestError, UnknownNameError
from paimon_features.core.types.schema import Bool, Float32, Float64, Int32, Int64
from paimon_features.lake.catalog import Lake
from paimon_features.lake.specs import TableSpec
from paimon_features.lake.writing.table_writer import append_arrow
from trainer_bridge.readers.snapshot_reader import SnapshotReader
from trainer_bridge.samplers import DifficultyWeightedSampler, WeightedRandomSampler
from trainer_bridge.testing.sample_tables import make_samples

pytestmark = pytest.mark.torch

SIZES = (9, 3, 17, 30, 1, 26)
COLUMNS = ["x", "y", "flag"]


@pytest.fixture
def adapter() -> Any:
    from trainer_bridge.adapters import torch

    return torch


def test_batches_are_dicts_of_tensors_in_the_readers_order(lake: Lake, adapter: Any) -> None:
    import torch

    table = make_samples(lake, SIZES)
    options: dict[str, Any] = {"columns": COLUMNS, "batch_size": 10, "seed": 1}
    plain = list(SnapshotReader(lake, table, **options))
    loader = adapter.loader(SnapshotReader(lake, table, **options), row_numbers=True)
    tensors = list(loader)
    assert len(loader) == len(tensors) == len(plain)
    for batch, arrays in zip(tensors, plain, strict=True):
        assert list(batch) == [*COLUMNS, "row_number"]
        assert (batch["x"].dtype, batch["flag"].dtype) == (torch.int64, torch.bool)
        for name in COLUMNS:
            assert batch[name].tolist() == arrays[name].tolist()
        assert batch["row_number"].tolist() == arrays.row_numbers.tolist()


def test_tensors_share_memory_with_the_readers_blocks(lake: Lake, adapter: Any) -> None:
    table = make_samples(lake, SIZES)
    for shuffle in (True, False):
        reader = SnapshotReader(lake, table, columns=COLUMNS, batch_size=10, shuffle=shuffle)
        loader = adapter.loader(reader)
        for batch in reader:
            tensors = loader.tensors(batch)
            for name in COLUMNS:
                assert np.shares_memory(tensors[name].numpy(), batch[name])
                tensors[name].zero_()  # writable, without a warning


def test_stacked_columns_of_one_dtype_are_a_matrix_and_not_copied(adapter: Any, lake: Lake) -> None:
    names = ["a", "b", "c"]
    lake.create(TableSpec("t", dict.fromkeys(names, Float32) | {"label": Int64}))
    append_arrow(
        lake,
        "t",
        pa.table(
            {**{n: pa.array(np.arange(6) * k, pa.float32()) for k, n in enumerate(names)}}
            | {"label": pa.array(range(6))}
        ),
    )
    reader = SnapshotReader(lake, "t", batch_size=4, shuffle=False)
    loader = adapter.loader(reader, stack={"features": ["b", "c"], "swapped": ["c", "a"]})
    batch = next(iter(reader))
    tensors = loader.tensors(batch)
    assert list(tensors) == ["label", "features", "swapped"]
    assert tensors["features"].tolist() == [[0, 0], [1, 2], [2, 4], [3, 6]]
    assert tensors["swapped"].tolist() == [[0, 0], [2, 0], [4, 0], [6, 0]]
    assert np.shares_memory(tensors["features"].numpy(), batch.blocks["float32"])
    side_by_side = adapter.loader(reader, stack={"m": ["b", "c", "label"]}, stack_dtype="float64")
    cast = side_by_side.tensors(batch)["m"]
    assert cast.tolist() == [[0, 0, 0], [1, 2, 1], [2, 4, 2], [3, 6, 3]]
    with pytest.raises(UnknownNameError, match="'z'"):
        adapter.loader(reader, stack={"features": ["a", "z"]})
    with pytest.raises(ConfigurationError, match="float32 and int64.*stack_dtype='float32'"):
        adapter.loader(reader, stack={"features": ["a", "label"]})
    with pytest.raises(ConfigurationError, match="stack_dtype='int32': expected 'float32' or"):
        adapter.loader(reader, stack={"features": ["a", "label"]}, stack_dtype="int32")
    with pytest.raises(ConfigurationError, match="called like another column"):
        adapter.loader(reader, stack={"label": ["a", "b"]})
    arrow = SnapshotReader(lake, "t", batch_size=4, output="arrow")
    with pytest.raises(ConfigurationError, match="no NumPy columns"):
        adapter.loader(arrow)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_counts_and_means_are_one_matrix_where_a_dtype_is_declared(
    adapter: Any, lake: Lake, dtype: str
) -> None:
    kinds = {
        "n": Int64,
        "mean": Float64,
        "many": Int32,
        "short": Float32,
        "yes": Bool,
        "key": Int64,
    }
    lake.create(TableSpec("t", kinds))
    dice = np.random.default_rng(1)
    rows = {
        "n": [0, 2**24 + 1, -(2**53) - 1, 2**63 - 1],
        "mean": [0.1, 1e300, -0.0, 5e-324],
        "many": dice.integers(-9, 9, 4),
        "short": dice.random(4),
        "yes": [True, False, True, True],
        "key": np.arange(4),
    }
    append_arrow(lake, "t", pa.table(rows).cast(lake.schema("t")))
    reader = SnapshotReader(lake, "t", batch_size=3, shuffle=False)
    stack = {"x": ["n", "mean", "many", "short", "yes"], "w": ["short"], "z": ["key", "n"]}
    data = adapter.loader(reader, stack=stack, stack_dtype=dtype)
    seen = list(data)
    batch = next(iter(reader))
    for name, columns in stack.items():
        found = np.concatenate([b[name].numpy() for b in seen])
        with np.errstate(over="ignore"):
            wanted = np.stack(
                [
                    pa.table(rows).cast(lake.schema("t"))[c].to_numpy().astype(dtype)
                    for c in columns
                ],
                axis=1,
            )
        assert found.dtype == dtype
        assert np.array_equal(found, wanted)
    moved = seen[0].to("cpu")
    assert all(np.array_equal(moved[name], seen[0][name]) for name in stack)
    # what was cast is not moved a second time
    assert set(batch.blocks) - set(moved.blocks) == {
        "int64",
        "int32",
        "bool",
        "float32",
        "float64",
    } - {dtype}


@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more than there are cores
@pytest.mark.parametrize("workers", [0, 1, 2, 3, 4])
def test_worker_processes_change_nothing_about_the_batches(
    lake: Lake, adapter: Any, workers: int
) -> None:
    from torch.utils.data import DataLoader

    table = make_samples(lake, SIZES)
    options: dict[str, Any] = {
        "columns": ["x"],
        "global_batch_size": 9,
        "rank": 1,
        "world_size": 3,
        "threads": 0,
    }
    plain = [batch["x"].tolist() for batch in SnapshotReader(lake, table, **options)]
    reader = SnapshotReader(lake, table, **options)
    data = DataLoader(adapter.loader(reader), batch_size=None, num_workers=workers)
    assert [batch["x"].tolist() for batch in data] == plain
    if workers:
        reader.load_state_dict(reader.state_after(3))
        data = DataLoader(adapter.loader(reader), batch_size=None, num_workers=workers)
        assert [batch["x"].tolist() for batch in data] == plain[3:]
        assert reader.state_after(99)["epoch"] == 1


def test_state_and_epoch_of_a_loader_are_the_readers(lake: Lake, adapter: Any) -> None:
    table = make_samples(lake, SIZES)
    options: dict[str, Any] = {"columns": ["x"], "batch_size": 10}
    whole = [batch["x"].tolist() for batch in SnapshotReader(lake, table, **options)]
    loader = adapter.loader(SnapshotReader(lake, table, **options))
    iterator = iter(loader)
    assert [next(iterator)["x"].tolist() for _ in range(4)] == whole[:4]
    other = adapter.loader(SnapshotReader(lake, table, **options))
    other.load_state_dict(loader.state_dict())
    assert [batch["x"].tolist() for batch in other] == whole[4:]
    other.set_epoch(0)
    assert [batch["x"].tolist() for batch in other] == whole


def test_samplers_work_in_a_dataloader(adapter: Any) -> None:
    import torch
    from torch.utils.data import DataLoader, Sampler, TensorDataset

    data = TensorDataset(torch.arange(8))
    for rank in range(2):
        sampler = WeightedRandomSampler(np.arange(8), 21, rank=rank, world_size=2)
        wrapped = adapter.as_sampler(sampler)
        assert isinstance(wrapped, Sampler)
        loader = DataLoader(data, sampler=wrapped, batch_size=4)
        drawn = torch.cat([batch[0] for batch in loader]).tolist()
        assert len(drawn) == len(wrapped) == 11 - rank
        assert len(loader) == 3
        again = WeightedRandomSampler(np.arange(8), 21, rank=rank, world_size=2)
        assert drawn == list(again)
        wrapped.set_epoch(0)
        assert list(wrapped) == drawn
        state = wrapped.state_dict()
        wrapped.load_state_dict(state)
        assert wrapped.state_dict() == state


def test_loss_weights_come_as_a_float32_tensor(lake: Lake, adapter: Any) -> None:
    import torch

    table = make_samples(lake, SIZES)
    sampler = DifficultyWeightedSampler(np.arange(86), seed=1)
    reader = SnapshotReader(lake, table, columns=["x"], batch_size=40).with_sampler(sampler)
    for batch in adapter.loader(reader):
        assert batch["sample_weight"].dtype == torch.float32
        assert batch["sample_weight"].shape == batch["x"].shape


@pytest.mark.parametrize(
    "how", ["loader", "data loader", "restarting loader", "reader of the loader"]
)
def test_a_second_loop_over_a_loader_ends_the_first_with_an_error(
    lake: Lake, adapter: Any, how: str
) -> None:
    from torch.utils.data import DataLoader

    reader = SnapshotReader(lake, make_samples(lake, SIZES), columns=["x"], batch_size=10)
    loader = adapter.loader(reader, restart=how == "restarting loader")
    data: Any = DataLoader(loader, batch_size=None) if how == "data loader" else loader
    first = iter(data)
    next(first)
    next(iter(reader if how == "reader of the loader" else data))
    with pytest.raises(RequestError, match="used by another loop"):
        list(first)


@pytest.mark.parametrize("move", ["set_epoch", "load_state_dict", "remaining"])
def test_a_loader_that_is_moved_ends_its_loop_with_an_error(
    lake: Lake, adapter: Any, move: str
) -> None:
    reader = SnapshotReader(lake, make_samples(lake, SIZES), columns=["x"], batch_size=10)
    loader = adapter.loader(reader)
    first = iter(loader)
    next(first)
    arguments = {"set_epoch": (3,), "load_state_dict": (loader.state_dict(),), "remaining": ()}
    getattr(loader, move)(*arguments[move])
    with pytest.raises(RequestError, match=move):
        next(first)
