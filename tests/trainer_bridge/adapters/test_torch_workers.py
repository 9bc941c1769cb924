"""Worker processes of DataLoader and StatefulDataLoader: the same batches, the right place."""

from __future__ import annotations

import copy
import gc
import json
import multiprocessing
import os
import pickle
from typing import Any

import pytest

from paimon_features.core.errors import ConfigurationError, RequestError
from paimon_features.lake.catalog import Lake
from tests.chaos import CHAOS
from tests.trainer_bridge.leaks import kept_each_time, shared_memory
from tests.waiting import await_true
from trainer_bridge.readers.snapshot_reader import SnapshotReader
from trainer_bridge.testing.sample_tables import make_samples

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),  # more than there are cores
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),  # torchdata calls it
]

SIZES = (9, 3, 17, 30, 1, 26)
OPTIONS: dict[str, Any] = {"columns": ["x"], "batch_size": 9, "seed": 3, "threads": 0}


@pytest.fixture
def adapter() -> Any:
    from trainer_bridge.adapters import torch

    return torch


@pytest.fixture
def table(lake: Lake) -> str:
    return make_samples(lake, SIZES)


def epochs(lake: Lake, table: str, count: int) -> list[list[list[int]]]:
    """The batches of whole epochs, as the reader gives them in this process."""
    with SnapshotReader(lake, table, **OPTIONS) as reader:
        return [[batch["x"].tolist() for batch in reader] for _ in range(count)]


def values(batches: Any) -> list[list[int]]:
    return [batch["x"].tolist() for batch in batches]


WORKERS = [(0, False), (3, False), (1, True), (4, True)]
if CHAOS:
    WORKERS += [(1, False), (2, True)]


@pytest.mark.parametrize(("workers", "persistent"), WORKERS)
def test_epoch_follows_epoch_for_any_number_of_workers(
    lake: Lake, table: str, adapter: Any, workers: int, persistent: bool
) -> None:
    from torch.utils.data import DataLoader

    wanted = epochs(lake, table, 6)
    loader = adapter.loader(SnapshotReader(lake, table, **OPTIONS))
    data = DataLoader(loader, batch_size=None, num_workers=workers, persistent_workers=persistent)
    assert len(data) == len(wanted[0])
    assert [values(data) for _ in range(2)] == wanted[:2]
    loader.set_epoch(2)  # there it stands already
    assert values(data) == wanted[2]
    loader.set_epoch(5)
    assert values(data) == wanted[5]
    loader.set_epoch(5)
    loader.set_epoch(2)
    assert values(data) == wanted[2]
    for step, _ in enumerate(data):
        if step == 3:
            break  # in the middle of epoch 3
    loader.load_state_dict(loader.state_after(4))
    assert loader.state_dict()["position"] == 4 * 9
    assert values(data) == wanted[3][4:]
    loader.set_epoch(4)
    assert loader.state_dict()["epoch"] == 4
    assert values(data) == wanted[4]


@pytest.mark.long
def test_a_started_worker_process_reads_the_same(lake: Lake, table: str, adapter: Any) -> None:
    from torch.utils.data import DataLoader

    wanted = epochs(lake, table, 3)
    loader = adapter.loader(SnapshotReader(lake, table, **{**OPTIONS, "threads": 2}))
    data = DataLoader(
        loader,
        batch_size=None,
        num_workers=1,
        persistent_workers=True,
        multiprocessing_context="spawn",
    )
    assert values(data) == wanted[0]
    loader.set_epoch(2)
    assert values(data) == wanted[2]


def test_a_loader_that_workers_read_does_not_guess_its_place(
    lake: Lake, table: str, adapter: Any
) -> None:
    from torch.utils.data import DataLoader

    loader = adapter.loader(SnapshotReader(lake, table, **OPTIONS))
    data = iter(DataLoader(loader, batch_size=None, num_workers=2))
    next(data)
    with pytest.raises(RequestError, match=r"StatefulDataLoader.*state_after\(batches\)"):
        loader.state_dict()
    assert loader.state_after(1)["position"] == 9
    assert loader.state_after(99) == {**loader.state_after(1), "epoch": 1, "position": 0}


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_a_stateful_dataloader_resumes_before_every_batch(
    lake: Lake, table: str, adapter: Any, workers: int
) -> None:
    from torchdata.stateful_dataloader import StatefulDataLoader

    wanted = epochs(lake, table, 3)

    def make(seed: int) -> Any:
        reader = SnapshotReader(lake, table, **{**OPTIONS, "seed": seed})
        return StatefulDataLoader(adapter.loader(reader), batch_size=None, num_workers=workers)

    data, states = make(3), []
    for _ in data:
        states.append(data.state_dict())
    states.append(data.state_dict())  # of the loop's end
    count = len(wanted[0])
    chosen = {count // 2, count, count + 1} if workers else range(1, count + 2)
    for number in chosen:
        other = make(99)  # the state says the seed, whatever the reader was made with
        other.load_state_dict(json.loads(json.dumps(states[number - 1])))
        if number < count:
            assert values(other) == wanted[0][number:]
        elif number == count and workers:
            # torchdata: a loop that had its last batch, without being notified that it was the last
            assert values(other) == []
        assert values(other) == wanted[1]
        assert values(other) == wanted[2]


def test_a_stateful_dataloader_does_not_read_what_was_consumed(
    lake: Lake, table: str, adapter: Any
) -> None:
    from torchdata.stateful_dataloader import StatefulDataLoader

    loader = adapter.loader(SnapshotReader(lake, table, **OPTIONS))
    data = StatefulDataLoader(loader, batch_size=None)
    iterator = iter(data)
    for _ in range(len(loader) - 1):
        next(iterator)
    other = adapter.loader(SnapshotReader(lake, table, **OPTIONS))
    resumed = StatefulDataLoader(other, batch_size=None)
    resumed.load_state_dict(data.state_dict())
    assert len(list(resumed)) == 1
    assert other.reader.stats.rows_delivered == 86 % 9


def test_copies_of_a_loader_go_their_own_ways(lake: Lake, table: str, adapter: Any) -> None:
    wanted = epochs(lake, table, 2)
    loader = adapter.loader(SnapshotReader(lake, table, **OPTIONS))
    iterator = iter(loader)
    next(iterator)
    for other in (pickle.loads(pickle.dumps(loader)), copy.deepcopy(loader)):
        assert values(other) == wanted[0][1:]
        other.set_epoch(1)
        assert values(other) == wanted[1]
    assert values(iterator) == wanted[0][1:]


@pytest.mark.parametrize("workers", [0, 1])
def test_padding_is_reported_with_the_batch(
    lake: Lake, table: str, adapter: Any, workers: int
) -> None:
    from torch.utils.data import DataLoader

    reader = SnapshotReader(lake, table, **OPTIONS, pad_last=True)
    data = list(DataLoader(adapter.loader(reader), batch_size=None, num_workers=workers))
    assert [batch.num_padding for batch in data] == [0] * 9 + [90 - 86]
    assert data[-1].to("cpu").num_padding == 4
    assert {len(batch["x"]) for batch in data} == {9}


def test_nothing_is_left_of_workers_when_a_loop_is_left(
    lake: Lake, table: str, adapter: Any
) -> None:
    from torch.utils.data import DataLoader

    def children() -> set[int | None]:
        return {child.pid for child in multiprocessing.active_children()}

    reader = SnapshotReader(lake, table, **{**OPTIONS, "threads": 2})
    data = DataLoader(adapter.loader(reader, restart=True), batch_size=None, num_workers=2)
    gc.collect()  # workers of an earlier test would end meanwhile
    before, memory = children(), shared_memory(os.getpid())

    def leave_a_loop() -> None:
        iterator = iter(data)
        batch = next(iterator)
        workers = children() - before
        assert len(workers) == 2
        del iterator, batch
        await_true(lambda: not children() - before)
        assert not [name for pid in workers for name in shared_memory(pid)]

    assert kept_each_time(leave_a_loop) <= 0
    assert shared_memory(os.getpid()) == memory


def test_what_workers_cannot_do_is_refused(lake: Lake, table: str, adapter: Any) -> None:
    loader = adapter.loader(SnapshotReader(lake, table, **OPTIONS))
    with pytest.raises(RequestError, match="state of a worker process"):
        loader.load_state_dict({"kind": "worker", "base": "", "batches": 1})


def test_pinned_memory_needs_a_gpu(lake: Lake, table: str, adapter: Any) -> None:
    import torch

    reader = SnapshotReader(lake, table, **OPTIONS)
    if not torch.cuda.is_available():
        with pytest.raises(ConfigurationError, match=r"torch.cuda.is_available\(\)"):
            adapter.loader(reader, pin_memory=True)
        pytest.skip("needs a GPU")
    wanted = epochs(lake, table, 1)[0]
    loader = adapter.loader(reader, pin_memory=True)
    for number, batch in enumerate(loader):
        assert batch["x"].is_pinned()
        assert batch.to("cuda", non_blocking=True)["x"].tolist() == wanted[number]
        if number == 2:
            break
    assert loader.state_dict()["position"] == 3 * 9
    assert values(loader) == wanted[3:]
    assert loader.state_dict()["epoch"] == 1


def test_the_place_is_what_was_handed_out_while_a_thread_is_ahead(
    lake: Lake, table: str, adapter: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = epochs(lake, table, 2)
    loader = adapter.loader(SnapshotReader(lake, table, **OPTIONS))
    # in place of a GPU's memory: the thread that is a batch ahead is the same
    monkeypatch.setattr(adapter.TensorBatch, "pin_memory", lambda batch: batch.to("cpu"))
    loader.pin_memory = True
    for number, batch in enumerate(loader):
        assert batch["x"].tolist() == wanted[0][number]
        if number == 2:
            break
    assert loader.state_dict()["position"] == 3 * 9
    assert values(loader) == wanted[0][3:]
    assert loader.state_dict()["epoch"] == 1
    assert values(loader) == wanted[1]
    loader.set_epoch(0)
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    loader.load_state_dict(state)
    assert values(loader) == wanted[0][1:]


@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("persistent", [False, True])
def test_a_loop_that_was_left_is_continued_by_the_next_one(
    lake: Lake, table: str, adapter: Any, workers: int, persistent: bool
) -> None:
    wanted = epochs(lake, table, 2)
    loader = adapter.loader(SnapshotReader(lake, table, **OPTIONS))
    data = loader.in_workers(workers, persistent_workers=persistent and workers > 0)
    states, seen = [], []
    for batch in data:
        seen.append(batch["x"].tolist())
        states.append(data.state_dict())
        if len(seen) == 3:
            break
    assert seen == wanted[0][:3]
    assert [state["position"] for state in states] == [9, 18, 27]
    assert data.state_dict() == states[-1]
    iterator = iter(data)
    assert next(iterator)["x"].tolist() == wanted[0][3]
    # one that is still there, which the next one ends
    assert values(data) == wanted[0][4:]
    assert data.state_dict()["epoch"] == 1
    assert values(data) == wanted[1]
    data.load_state_dict(states[0])
    assert values(data) == wanted[0][1:]
    data.set_epoch(0)
    assert values(data) == wanted[0]


@pytest.mark.parametrize("persistent", [False, True])
def test_a_plain_data_loader_whose_loop_was_left_asks_where_to_continue(
    lake: Lake, table: str, adapter: Any, persistent: bool
) -> None:
    from torch.utils.data import DataLoader

    wanted = epochs(lake, table, 2)
    loader = adapter.loader(SnapshotReader(lake, table, **OPTIONS))
    data = DataLoader(loader, batch_size=None, num_workers=2, persistent_workers=persistent)
    next(iter(data))
    with pytest.raises(ConfigurationError, match=r"left early.*state_after\(batches\)"):
        next(iter(data))
    loader.load_state_dict(loader.state_after(1))
    assert values(data) == wanted[0][1:]
    assert values(data) == wanted[1]


def test_a_worker_that_starts_while_the_loader_is_moved_takes_one_position(
    lake: Lake, table: str, adapter: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = adapter.loader(SnapshotReader(lake, table, **OPTIONS))
    worker = copy.copy(loader)  # with the same shared memory, as in a process that was just started
    worker.reader, worker._process = copy.copy(loader.reader), -1
    before, text = loader._place.read(), worker._text

    def moved() -> str:
        loader.load_state_dict(loader.state_after(1))
        return str(text())

    monkeypatch.setattr(worker, "_text", moved)
    assert worker._reported_to_start() == before
    assert not worker._late
    assert loader._place.read() != before


@pytest.mark.long
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("persistent", [False, True])
def test_every_loop_of_a_loader_that_restarts_is_the_same_epoch(
    lake: Lake, table: str, adapter: Any, workers: int, persistent: bool
) -> None:
    from torch.utils.data import DataLoader

    wanted = epochs(lake, table, 3)
    loader = adapter.loader(SnapshotReader(lake, table, **OPTIONS), restart=True)
    plain = DataLoader(
        loader, batch_size=None, num_workers=workers, persistent_workers=persistent and workers > 0
    )
    for data in (plain, loader.in_workers(workers)):
        for epoch in (0, 2):
            loader.set_epoch(epoch)
            next(iter(data))
            assert values(data) == wanted[epoch]
            assert values(data) == wanted[epoch]
        loader.set_epoch(0)
    assert values(loader) == wanted[0]


def test_a_second_loop_in_workers_ends_the_first_with_an_error(
    lake: Lake, table: str, adapter: Any
) -> None:
    counted = adapter.loader(SnapshotReader(lake, table, **OPTIONS)).in_workers(2)
    wanted = epochs(lake, table, 1)[0]
    first = iter(counted)
    seen = [next(first)["x"].tolist() for _ in range(3)]
    second = iter(counted)
    seen.append(next(second)["x"].tolist())
    with pytest.raises(RequestError, match="used by another loop"):
        next(first)
    assert [*seen, *values(second)] == wanted
