"""Two processes that train over gloo by Accelerate, Transformers or Lightning: what they saw.

Run as a program of its own by ``test_torch_frameworks``, with the name of the framework.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

from paimon_features.core.errors import ConfigurationError
from paimon_features.core.process.ports import free_ports
from paimon_features.lake.catalog import Lake
from trainer_bridge.adapters.torch import TorchLoader, as_sampler, loader
from trainer_bridge.readers.snapshot_reader import SnapshotReader
from trainer_bridge.samplers import WeightedRandomSampler

FORK = multiprocessing.get_context("fork")
WORLD = 2
BATCH = 20


def make(lake: Lake) -> TorchLoader:
    """A loader whose rank is that of the process group."""
    options: dict[str, Any] = {"columns": ["x", "y"], "float_dtype": "float32", "threads": 1}
    return loader(SnapshotReader(lake, "samples", global_batch_size=BATCH, seed=3, **options))


def refused(work: Callable[[], Any]) -> str:
    """The error of what must not be done."""
    try:
        work()
    except ConfigurationError as error:
        return str(error)
    return "no error"


def by_accelerate(lake: Lake, folder: str) -> dict[str, Any]:
    from accelerate import Accelerator

    from trainer_bridge.adapters.accelerate import accelerated

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
    prepared = accelerator.prepare(DataLoader(make(lake), batch_size=None))
    found: dict[str, Any] = {"refused": refused(lambda: next(iter(prepared)))}
    rows = DataLoader(
        list(range(64)),  # type: ignore[arg-type]
        batch_size=4,
        sampler=as_sampler(
            WeightedRandomSampler([1.0] * 64, 64, rank=accelerator.process_index, world_size=WORLD)
        ),
    )
    found["sampler"] = refused(lambda: next(iter(accelerator.prepare(rows))))
    for workers in (0, 1):
        own = accelerated(make(lake), accelerator, num_workers=workers)
        plain = torch.nn.Linear(1, 1)
        model, optimiser, data = accelerator.prepare(
            plain, torch.optim.SGD(plain.parameters(), lr=1e-6), own
        )
        assert data is own
        accelerator.register_for_checkpointing(data)
        steps = 0
        seen: list[list[list[int]]] = [[], []]
        for epoch in range(2):
            for batch in data:
                with accelerator.accumulate(model):
                    accelerator.backward(model(batch["y"][:, None]).mean())
                    optimiser.step()
                    optimiser.zero_grad()
                    steps += accelerator.sync_gradients
                seen[epoch].append(batch["x"].tolist())
        parts: list[list[list[int]]] = [[], []]
        for batch in data:
            parts[0].append(batch["x"].tolist())
            if len(parts[0]) == 3:
                break
        accelerator.save_state(f"{folder}/state {workers}")
        accelerator.wait_for_everyone()  # the model is saved by the first process, for all
        parts[1] = [batch["x"].tolist() for batch in data]
        accelerator.load_state(f"{folder}/state {workers}")
        again = [batch["x"].tolist() for batch in data]
        found[f"workers {workers}"] = {
            "seen": seen, "steps": steps, "left": parts, "restored": again == parts[1],
        }  # fmt: skip
        accelerator.free_memory()
        accelerator._custom_objects.clear()
    return found


def by_transformers(lake: Lake, folder: str) -> dict[str, Any]:
    from transformers import Trainer, TrainingArguments

    from trainer_bridge.adapters.accelerate import accelerated

    seen: list[tuple[int, list[int]]] = []

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(1, 1)

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
            seen.append((0, x.tolist()))
            return {"loss": self.linear(y[:, None]).square().mean() * 1e-9}

    class OwnTrainer(Trainer):  # type: ignore[misc]
        def get_train_dataloader(self) -> Any:
            return accelerated(self.train_dataset, self.accelerator)

    def trainer(kind: Any, steps: int) -> Any:
        arguments = TrainingArguments(
            f"{folder}/trainer",
            num_train_epochs=2,
            max_steps=steps,
            use_cpu=True,
            report_to=[],
            save_strategy="steps",
            save_steps=12,
            logging_strategy="no",
            disable_tqdm=True,
        )
        return kind(model=Model(), args=arguments, train_dataset=make(lake))

    found: dict[str, Any] = {"refused": refused(trainer(Trainer, -1).train)}
    trainer(OwnTrainer, -1).train()
    found["seen"] = [x for _, x in seen]
    seen.clear()
    trainer(OwnTrainer, -1).train(resume_from_checkpoint=f"{folder}/trainer/checkpoint-12")
    found["resumed"] = [x for _, x in seen]
    return found


def by_lightning(lake: Lake, folder: str) -> dict[str, Any]:
    import lightning
    from lightning.pytorch.plugins.environments import LightningEnvironment

    seen: list[list[int]] = []
    checked: list[list[int]] = []

    class Model(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self, sampler: bool) -> None:
            super().__init__()
            self.linear, self.sampler = torch.nn.Linear(1, 1), sampler

        def train_dataloader(self) -> Any:
            if not self.sampler:
                return make(lake)
            own = WeightedRandomSampler([1.0] * 64, 64, rank=self.global_rank, world_size=WORLD)
            return DataLoader(
                list(range(64)),  # type: ignore[arg-type]
                batch_size=4,
                sampler=as_sampler(own),
            )

        def val_dataloader(self) -> Any:
            reader = SnapshotReader(
                lake, "samples", columns=["x"], batch_size=50, rank=0, world_size=1
            )
            return loader(reader, restart=True)

        def training_step(self, batch: Any, number: int) -> torch.Tensor:
            seen.append(batch["x"].tolist())
            loss: torch.Tensor = self.linear(batch["y"][:, None]).square().mean() * 1e-9
            return loss

        def validation_step(self, batch: Any, number: int) -> None:
            if not self.trainer.sanity_checking:
                checked.append(batch["x"].tolist())

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=1e-6)

    def fit(sampler: bool) -> None:
        lightning.Trainer(
            max_epochs=2,
            accelerator="cpu",
            devices=WORLD,
            strategy="ddp",
            plugins=[_environment(LightningEnvironment)],
            default_root_dir=folder,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            num_sanity_val_steps=2,
        ).fit(Model(sampler))

    fit(sampler=False)
    found = {"seen": list(seen), "checked": list(checked)}
    return {**found, "sampler": refused(lambda: fit(sampler=True))}


def _environment(kind: Any) -> Any:
    class Forked(kind):  # type: ignore[misc]
        """The ranks are there already."""

        creates_processes_externally = True

        def local_rank(self) -> int:
            return int(os.environ["LOCAL_RANK"])

    return Forked()


FRAMEWORKS = {
    "accelerate": by_accelerate,
    "transformers": by_transformers,
    "lightning": by_lightning,
}


def rank_main(rank: int, name: str, port: int, warehouse: str, folder: str, answer: Any) -> None:
    torch.set_num_threads(1)
    for variable, value in {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": WORLD,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "ACCELERATE_USE_CPU": "true",
    }.items():
        os.environ[variable] = str(value)
    lake = Lake.open(warehouse, "features")
    answer.send(FRAMEWORKS[name](lake, folder))
    if dist.is_initialized():
        dist.destroy_process_group()


def main() -> None:
    name, warehouse = sys.argv[1:]
    __import__(name)  # before the forks, and not once in each of them
    (port,) = free_ports(1)
    with tempfile.TemporaryDirectory() as folder:
        pipes = [FORK.Pipe(duplex=False) for _ in range(WORLD)]
        processes = [
            FORK.Process(target=rank_main, args=(rank, name, port, warehouse, folder, send))
            for rank, (_, send) in enumerate(pipes)
        ]
        for process in processes:
            process.start()
        for _, send in pipes:
            send.close()
        found = [receive.recv() for receive, _ in pipes]
        for process in processes:
            process.join(120)
    print("\n" + json.dumps(found))


if __name__ == "__main__":
    main()
