"""Ray and Hugging Face ``datasets`` over a table, run by the Python of an environment with both.

``python ray_and_datasets_checks.py FOLDER NAME...``; ``test_ray_and_datasets.py`` runs it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from paimon_features.core.errors import ConfigurationError, RequestError
from paimon_features.lake import Lake, append_arrow
from trainer_bridge import SnapshotReader

ROWS = 1_003
EPOCHS = 2
EVERY = 8
"""After how many batches a training of Ray Train reports."""

PAGE = Path(__file__).parents[3] / "docs/how-to/integrations/ray-and-datasets.md"


def reader(folder: str, **options: Any) -> SnapshotReader:
    lake = Lake.open(folder, "shop")
    options = {"global_batch_size": 50, "output": "arrow", "seed": 3, **options}
    return SnapshotReader(lake, "rows", **options)


def check_datasets(folder: str) -> None:
    from datasets.distributed import split_dataset_by_node
    from torch.utils.data import DataLoader

    from trainer_bridge.adapters import huggingface

    made = reader(folder)
    expected = [n for batch in made for n in batch.arrow["n"].to_pylist()]  # type: ignore[index]
    assert sorted(expected) == list(range(ROWS)) != expected
    found = huggingface.iterable_dataset(reader(folder))
    assert [row["n"] for row in found] == expected
    assert [row["n"] for row in found] == expected, "each iteration begins at the reader's position"

    # blocks pass through as they are
    by_blocks = list(found.with_format("arrow").iter(batch_size=50))
    assert [n for table in by_blocks for n in table["n"].to_pylist()] == expected
    [first, *_] = huggingface.iterable_dataset(reader(folder))._ex_iterable.iter_arrow()
    [batch, *_] = reader(folder)
    assert first[1]["n"].chunk(0).buffers()[1].size == batch.arrow["n"].chunk(0).buffers()[1].size

    # resumed before every row, by a state that went through JSON
    for stop in (0, 1, 49, 50, 51, 500, ROWS - 1):
        running = huggingface.iterable_dataset(reader(folder))
        rows = iter(running)
        seen = [next(rows)["n"] for _ in range(stop)]
        state = json.loads(json.dumps(running.state_dict()))
        rows.close()
        resumed = huggingface.iterable_dataset(reader(folder))
        resumed.load_state_dict(state)
        assert seen + [row["n"] for row in resumed] == expected, stop

    # two nodes, each with two workers; every row once
    parts = []
    for rank in range(2):
        own = split_dataset_by_node(found, rank=rank, world_size=2)
        loader = DataLoader(own.with_format("torch"), batch_size=10, num_workers=2)
        parts.append([int(n) for batch in loader for n in batch["n"]])
    assert all(len(part) > 400 for part in parts)
    assert sorted(parts[0] + parts[1]) == list(range(ROWS))

    # another order in each epoch
    shuffled = found.shuffle(seed=5, buffer_size=1)
    orders = []
    for epoch in range(2):
        shuffled.set_epoch(epoch)
        orders.append([row["n"] for row in shuffled])
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(ROWS))
    assert orders[0] != orders[1] != expected

    whole = huggingface.dataset(reader(folder), ["n"])
    assert whole["n"][:] == list(range(ROWS))
    with contextlib.suppress(ConfigurationError):
        huggingface.iterable_dataset(reader(folder, output="numpy"))
        raise AssertionError("a reader of arrays was taken")


def check_trainer(folder: str) -> None:
    """The ``Trainer`` of Transformers on a data set of the table; stopped, and resumed."""
    import torch
    from transformers import Trainer, TrainingArguments

    from trainer_bridge.adapters import huggingface

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line = torch.nn.Linear(1, 1)
            self.seen: list[float] = []

        def forward(self, x: Any, labels: Any) -> dict[str, Any]:
            self.seen += x.tolist()
            return {"loss": (self.line(x[:, None])[:, 0] - labels).square().mean()}

    def train(steps: int, place: str, resume: bool = False) -> list[float]:
        data = huggingface.iterable_dataset(reader(folder, columns=["x", "label"]))
        arguments = TrainingArguments(
            output_dir=f"{folder}/{place}", max_steps=steps, per_device_train_batch_size=25,
            save_steps=10, report_to=[], use_cpu=True, disable_tqdm=True,
        )  # fmt: skip
        model = Model()
        trainer = Trainer(model=model, args=arguments, train_dataset=data.with_format("torch"))
        trainer.train(resume_from_checkpoint=resume)
        return model.seen

    whole = train(20, "whole")
    assert train(10, "stopped") == whole[:250]
    assert train(20, "stopped", resume=True)[-250:] == whole[250:]


def check_ray(folder: str) -> None:
    import ray

    from trainer_bridge.adapters import ray as ray_adapter

    ray.init(num_cpus=6, include_dashboard=False, object_store_memory=100 << 20)
    try:
        made = ray_adapter.dataset(reader(folder), tasks=2)
        assert made.schema().names == ["n", "x", "label"]
        assert sorted(row["n"] for row in made.take_all()) == list(range(ROWS))
        halves = made.streaming_split(2, equal=False)

        @ray.remote
        def consume(half: Any) -> list[int]:
            return [int(n) for b in half.iter_batches(batch_size=20) for n in b["n"]]

        parts = ray.get([consume.remote(half) for half in halves])
        assert sorted(parts[0] + parts[1]) == list(range(ROWS))

        # resumed: what is left of an epoch
        some = reader(folder)
        seen = [n for _, b in zip(range(7), some, strict=False) for n in b.arrow["n"].to_pylist()]  # type: ignore[index]
        again = reader(folder)
        again.load_state_dict(json.loads(json.dumps(some.state_dict())))
        left = [row["n"] for row in ray_adapter.dataset(again, tasks=2).take_all()]
        assert sorted(seen + left) == list(range(ROWS))
        for wrong in ({"output": "numpy"}, {"rank": 0, "world_size": 2}):
            try:
                ray_adapter.dataset(reader(folder, **wrong))
            except ConfigurationError:
                continue
            raise AssertionError(wrong)
    finally:
        ray.shutdown()


def train(config: dict[str, Any]) -> None:
    """One worker of Ray Train: ``reader``'s rows, and a note of each batch in ``config["log"]``.

    The last worker ends itself after the batch ``config["kill_after"]`` of the first epoch, once.
    """
    import tempfile

    import ray.train
    import torch
    from ray.train.torch import prepare_model

    from trainer_bridge.adapters import ray as ray_adapter
    from trainer_bridge.adapters.torch import loader

    torch.set_num_threads(1)
    torch.manual_seed(0)
    context = ray.train.get_context()
    rank, world = context.get_world_rank(), context.get_world_size()
    data = loader(reader(config["folder"], output="numpy"))
    assert (data.reader.rank, data.reader.world_size) == (rank, world)
    line = torch.nn.Linear(1, 1)
    optimiser = torch.optim.SGD(line.parameters(), lr=1e-6, momentum=0.9)
    checkpoint = ray.train.get_checkpoint() or config.get("start")
    if checkpoint:
        ray_adapter.load_position(checkpoint, data)
        with checkpoint.as_directory() as saved:
            state = torch.load(f"{saved}/state.pt", weights_only=True)
        line.load_state_dict(state["model"])
        optimiser.load_state_dict(state["optimiser"])
    model = prepare_model(line)
    log, killed = Path(config["log"]), Path(config["log"], "killed")
    while (epoch := data.reader.epoch) < EPOCHS:
        first = len(data) - data.remaining()
        for number, batch in enumerate(data, first):
            loss = (model(batch["x"][:, None])[:, 0] - batch["label"]).square().mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            note = {"rank": rank, "at": [epoch, number], "n": batch["n"].tolist()}
            with (log / f"{world}-{os.getpid()}").open("a") as file:
                print(json.dumps(note), file=file)
            if (epoch, number, rank) == (0, config.get("kill_after"), world - 1):
                with contextlib.suppress(FileExistsError):
                    killed.touch(exist_ok=False)
                    os._exit(1)
            if number % EVERY and number < len(data) - 1:
                continue
            with tempfile.TemporaryDirectory() as place:
                checkpoint = ray.train.Checkpoint.from_directory(place) if rank == 0 else None
                if checkpoint:
                    state = {"model": line.state_dict(), "optimiser": optimiser.state_dict()}
                    torch.save(state, f"{place}/state.pt")
                    ray_adapter.save_position(checkpoint, data)
                ray.train.report({"at": [epoch, number]}, checkpoint)


def check_ray_train(folder: str) -> None:
    """Two workers; one killed in mid-epoch and resumed; resumed with another number of workers."""
    import ray
    import ray.train
    import torch
    from ray.train.torch import TorchTrainer

    from trainer_bridge.adapters import ray as ray_adapter

    def fit(name: str, workers: int, failures: int = 0, **config: Any) -> Any:
        (Path(folder) / "logs" / name).mkdir(parents=True, exist_ok=True)
        own = {"folder": folder, "log": f"{folder}/logs/{name}", **config}
        return TorchTrainer(
            train,
            train_loop_config=own,
            scaling_config=ray.train.ScalingConfig(num_workers=workers),
            run_config=ray.train.RunConfig(
                name=name,
                storage_path=f"{folder}/runs",
                failure_config=ray.train.FailureConfig(max_failures=failures),
            ),
        ).fit()

    def notes(name: str) -> list[list[dict[str, Any]]]:
        """What each process noted, batch by batch; by where and as which rank it began."""
        files = [path for path in Path(folder, "logs", name).iterdir() if path.name != "killed"]
        found = [[json.loads(line) for line in path.read_text().splitlines()] for path in files]
        return sorted(found, key=lambda lines: (lines[0]["at"], lines[0]["rank"]))

    def expected(world: int, first: int = 0) -> list[list[dict[str, Any]]]:
        """What plain readers of each rank hand out from a batch of the first epoch on."""
        ranks = []
        for rank in range(world):
            own, lines = reader(folder, output="numpy", rank=rank, world_size=world), []
            for epoch in range(EPOCHS):
                for number, batch in enumerate(own):
                    n = batch.columns["n"].tolist()  # type: ignore[union-attr]
                    lines.append({"rank": rank, "at": [epoch, number], "n": n})
            ranks.append(lines[first:])
        return ranks

    def check_each_row_once(ranks: list[list[dict[str, Any]]]) -> None:
        for epoch in range(EPOCHS):
            lines = [line for own in ranks for line in own if line["at"][0] == epoch]
            assert sorted(n for line in lines for n in line["n"]) == list(range(ROWS))

    def weights(result: Any) -> list[torch.Tensor]:
        with result.checkpoint.as_directory() as place:
            state = torch.load(f"{place}/state.pt", weights_only=True)
        momentum = [own["momentum_buffer"] for own in state["optimiser"]["state"].values()]
        return [*state["model"].values(), *momentum]

    ray.init(num_cpus=3, include_dashboard=False, object_store_memory=100 << 20)
    try:
        whole = fit("whole", 2)
        seen = notes("whole")
        assert seen == expected(2)
        check_each_row_once(seen)
        by_place = {tuple(metrics["at"]): found for found, metrics in whole.best_checkpoints}

        # batches 8 and 16 were reported when one is killed after 18; Ray's controller takes reports
        # from a queue, so that it knows of 8, and of 16 if it was quick
        killed = fit("killed", 2, failures=1, kill_after=18)
        seen = notes("killed")
        before, after = seen[:2], seen[2:]
        for lines, right in zip(before, expected(2), strict=True):
            assert lines == right[: len(lines)]
        assert 17 <= len(before[0]) <= len(before[1]) == 19
        first = after[0][0]["at"][1]
        assert first in (9, 17)
        assert after == expected(2, first)
        check_each_row_once([lines[:first] for lines in before] + after)
        for one, other in zip(weights(killed), weights(whole), strict=True):
            assert torch.equal(one, other)

        # a new run of three workers from a checkpoint of another
        fit("other", 3, start=by_place[0, 8])
        assert notes("other") == expected(3, 9)

        damaged = Path(folder, "damaged")
        damaged.mkdir()
        for text, message in (
            (None, "has no reader's position"),
            ("[" * 5_000, "is not a reader's position"),
            ("[]", "expected a JSON object"),
            (" " * (2 << 20), "more than"),
            ("{}", "a reader state of version"),
        ):
            if text is not None:
                (damaged / "reader.json").write_text(text)
            found = ""
            try:
                checkpoint = ray.train.Checkpoint.from_directory(damaged)
                ray_adapter.load_position(checkpoint, reader(folder))
            except RequestError as error:
                found = str(error)
            assert message in found, (message, found)
    finally:
        ray.shutdown()


def check_ray_example(folder: str) -> None:
    """The example of the page, as the program that a reader would make of it."""
    section = PAGE.read_text(encoding="utf-8").split("## Ray Train")[1].split("\n## ")[0]
    program = Path(folder, "example.py")
    blocks = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    program.write_text("\n".join(blocks), encoding="utf-8")
    assert "TorchTrainer" in program.read_text(encoding="utf-8")
    subprocess.run([sys.executable, program], cwd=folder, check=True)


def main(folder: str, names: list[str]) -> None:
    lake = Lake.open(folder, "shop")
    n = np.arange(ROWS)
    table = pa.table({"n": n, "x": (n / 7).astype(np.float32), "label": n.astype(np.float32)})
    lake.create_like("rows", table.schema)
    append_arrow(lake, "rows", table)
    for name in names:
        globals()[f"check_{name}"](folder)
        print(f"{name}: right")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
