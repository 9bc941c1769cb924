"""Ray and Hugging Face ``datasets`` over a table, run by the Python of an environment with both.

``python ray_and_datasets_checks.py FOLDER``; ``test_ray_and_datasets.py`` runs it.
"""

from __future__ import annotations

import contextlib
import json
import sys
from typing import Any

import numpy as np
import pyarrow as pa

from paimon_features.errors import ConfigurationError
from paimon_features.tables import Lake, append_arrow
from trainer_bridge import SnapshotReader

ROWS = 1_003


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
