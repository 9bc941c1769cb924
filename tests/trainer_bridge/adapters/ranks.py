"""Processes that train together over gloo, for ``test_torch_ranks``: what they saw, as JSON.

Run as a program of its own: its ranks are forked from a process in which nothing has run yet.
"""

from __future__ import annotations

import datetime
import itertools
import json
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from paimon_features.core.process.waiting import wait_until
from paimon_features.lake.catalog import Lake
from tests.os_processes import is_running
from tests.trainer_bridge.leaks import shared_memory
from tests.waiting import LONG_S
from trainer_bridge.adapters.torch import TorchLoader, loader
from trainer_bridge.readers.snapshot_reader import SnapshotReader

FORK = multiprocessing.get_context("fork")
BATCH = 12


def run_ranks(world: int, work: Callable[..., Any], *arguments: Any) -> Any:
    """What ``work(rank, ...)`` gives on each of ``world`` ranks of one process group."""
    with tempfile.TemporaryDirectory() as folder:
        pipes = [FORK.Pipe(duplex=False) for _ in range(world)]
        processes = [
            FORK.Process(target=rank_main, args=(rank, world, folder, send, work, arguments))
            for rank, (_, send) in enumerate(pipes)
        ]
        for process in processes:
            process.start()
        for _, send in pipes:
            send.close()
        found = []
        for receive, _ in pipes:
            try:
                found.append(receive.recv() if receive.poll(180) else "no answer in 180 s")
            except EOFError:
                found.append("killed")
        for process in processes:
            process.join(120)
            if process.is_alive():
                process.kill()
                found.append("did not end")
        return found


def rank_main(
    rank: int,
    world: int,
    folder: str,
    answer: Any,
    work: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=world,
        timeout=datetime.timedelta(seconds=LONG_S),
    )
    answer.send(work(*arguments))
    dist.destroy_process_group()


def make(lake: Lake, **options: Any) -> TorchLoader:
    """A loader whose rank is that of the process group."""
    options = {"columns": ["x", "y"], "global_batch_size": BATCH, "threads": 1, **options}
    options |= {"block_rows": 16, "canonical_streams": 12, "seed": 3}
    return loader(SnapshotReader(lake, "samples", **options))


# --- all ranks together ---


def read(lake: Lake, options: dict[str, Any], workers: int) -> list[list[int]]:
    """This rank's batches; every step waits for all ranks, as a training step does."""
    data: Any = make(lake, **options)
    if workers:
        data = DataLoader(data, batch_size=None, num_workers=workers)
    seen = []
    for batch in data:
        dist.all_reduce(torch.ones(1))
        seen.append(batch["x"].tolist())
    return seen


def worlds(lake: Lake) -> dict[str, Any]:
    """Per world size and rule for the last rows: the batches of each rank."""
    rules: dict[str, dict[str, Any]] = {
        "short": {},
        "drop": {"drop_last": True},
        "pad": {"pad_last": True},
    }
    return {
        f"{world} {rule}": run_ranks(world, read, lake, options, 1 if rule == "pad" else 0)
        for world in (1, 2, 3)
        for rule, options in rules.items()
    }


# --- elastic training ---


def train(lake: Lake, checkpoint: str, steps: int | None) -> dict[str, Any]:
    """Resume from the checkpoint, if there is one, for some steps or to the epoch's end."""
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(1, 1, dtype=torch.float64))
    optimiser = torch.optim.Adam(model.parameters(), lr=0.1)
    data = make(lake)
    if os.path.exists(checkpoint):
        saved = torch.load(checkpoint)
        model.module.load_state_dict(saved["model"])
        optimiser.load_state_dict(saved["optimiser"])
        data.load_state_dict(saved["loader"])
    seen = []
    for batch in itertools.islice(data, steps):
        x = batch["y"][:, None] / 100
        # gradients are averaged over ranks: the sum over rows, times ranks, over the batch
        rows = torch.tensor(float(len(x)))
        dist.all_reduce(rows)
        loss = ((model(x) - 3 * x) ** 2).sum() * dist.get_world_size() / rows
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        seen.append(batch["x"].tolist())
    if dist.get_rank() == 0:
        saved = {"model": model.module.state_dict(), "optimiser": optimiser.state_dict()}
        torch.save({**saved, "loader": data.state_dict()}, checkpoint)
    weights = [parameter.item() for parameter in model.parameters()]
    return {"seen": seen, "weights": weights, "state": data.state_dict()}


def elastic(lake: Lake, folder: str) -> dict[str, Any]:
    """One epoch by 4, then 3, then 5 ranks; and by one, for comparison."""
    checkpoint = f"{folder}/checkpoint"
    parts = [
        run_ranks(world, train, lake, checkpoint, steps)
        for world, steps in ((4, 3), (3, 3), (5, None))
    ]
    return {"parts": parts, "alone": run_ranks(1, train, lake, f"{folder}/alone", None)}


# --- one rank is killed ---


def lose_one(lake: Lake, folder: str) -> str:
    """Rank 1 kills itself at its third step; the error that this rank got, and when."""
    data = iter(DataLoader(make(lake), batch_size=None, num_workers=1))
    pids = [os.getpid(), *(child.pid for child in multiprocessing.active_children())]
    Path(folder, f"rank {dist.get_rank()}").write_text(json.dumps(pids))
    started = time.monotonic()
    try:
        for step, _ in enumerate(data):
            if dist.get_rank() == 1 and step == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            dist.all_reduce(torch.ones(1))
    except RuntimeError as error:
        return f"{type(error).__name__} after {time.monotonic() - started:.0f} s"
    return "no error"


def files_of(folder: str) -> list[str]:
    return sorted(map(str, Path(folder).rglob("*")))


def killed(lake: Lake, folder: str) -> dict[str, Any]:
    """What the others got, and what is left."""
    before = files_of(lake.warehouse)
    errors = run_ranks(3, lose_one, lake, folder)
    pids = [json.loads(Path(folder, f"rank {rank}").read_text()) for rank in range(3)]
    workers = pids[1][1:]
    # an orphan looks for its parent every 5 s
    wait_until(lambda: not any(is_running(pid) for pid in workers), LONG_S)
    return {
        "errors": errors,
        "workers": len(workers),
        "alive": [pid for pid in workers if is_running(pid)],
        "children": len(multiprocessing.active_children()),
        "files": sorted(set(files_of(lake.warehouse)) - set(before)),
        "shared_memory": [name for own in pids for pid in own for name in shared_memory(pid)],
    }


def main() -> None:
    warehouse, folder = sys.argv[1:]
    lake = Lake.open(warehouse, "features")
    # so that what these import is there before the forks, and not once in each of them
    torch.optim.Adam([torch.zeros(1)])
    lake.schema("samples")
    found = {"worlds": worlds(lake), "elastic": elastic(lake, folder)}
    print(json.dumps({**found, "killed": killed(lake, folder)}))


if __name__ == "__main__":
    main()
