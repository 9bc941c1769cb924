"""A sweep of 20 trials beside the same runs one after another.

    python -m benchmarks.sweep --jobs 2

Contenders train the same network on 20 learning rates, each on one thread: a loop in one process,
the sweep without pruning, and the sweep that prunes by the median. What a single
``paimon-features train`` takes is added for a loop of commands, which imports and exports each
time. Seconds include the start of worker processes and the registration of the best.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from paimon_features.project import Project
from tests.trainer_bridge.training.shop import make_shop
from trainer_bridge.training import run
from trainer_bridge.training.config import compose
from trainer_bridge.training.sweep import Pruner, sweep

NETWORK = ("model.dim=32", "model.layers=2", "model.heads=4", "trainer.patience=null")


def loop(project: Project, settings: list[str], rates: list[str]) -> tuple[float, float]:
    """One after another in this process: seconds, and the least validation loss."""
    torch.set_num_threads(1)
    began, losses = time.perf_counter(), []
    for number, rate in enumerate(rates):
        config = compose(project.root / "churn.yaml", [*settings, f"optimiser.lr={rate}"])
        folder = project.root / f"loop-{number}"
        losses.append(run.validate(project, config, folder)["log_loss"].value)
    return time.perf_counter() - began, min(losses)


def swept(
    project: Project, settings: list[str], rates: list[str], jobs: int, pruner: Pruner
) -> tuple[float, float, int]:
    """As a sweep: seconds, the least validation loss, and how many trials were pruned."""
    began = time.perf_counter()
    overrides = [*settings, f"optimiser.lr={','.join(rates)}"]
    result = sweep(project, project.root / "churn.yaml", overrides, jobs=jobs, pruner=pruner)
    assert result.best.loss is not None
    pruned = sum(each.state == "pruned" for each in result.trials)
    return time.perf_counter() - began, result.best.loss, pruned


def one_command(project: Project, settings: list[str], rate: str) -> float:
    """Seconds of ``paimon-features train``."""
    began = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "paimon_features", "train", str(project.root / "churn.yaml"),
         *settings, f"optimiser.lr={rate}", "--quiet", "--project", str(project.root)],
        check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    settings = [*NETWORK, f"trainer.epochs={arguments.epochs}"]
    # from too slow to too fast
    rates = [f"{1e-4 * 1_000 ** (n / (arguments.trials - 1)):.6g}" for n in range(arguments.trials)]
    with tempfile.TemporaryDirectory() as folder:
        project = make_shop(Path(folder))
        rows: list[tuple[str, float, float, int]] = []
        command_s = one_command(project, settings, rates[0])
        spent, loss = loop(project, settings, rates)
        rows.append(("a loop in one process", spent, loss, 0))
        for name, pruner in (("sweep, nothing pruned", "none"), ("sweep, median", "median")):
            rows.append((name, *swept(project, settings, rates, arguments.jobs, pruner)))  # type: ignore[arg-type]
    print(f"{arguments.trials} trials, {arguments.jobs} jobs of one thread")
    print(f"{'':24} {'seconds':>8} {'x loop':>7} {'best loss':>10} {'pruned':>7}")
    for name, seconds, best, pruned in rows:
        print(f"{name:24} {seconds:8.1f} {rows[0][1] / seconds:7.2f} {best:10.4f} {pruned:7}")
    print(f"one command: {command_s:.1f} s")


if __name__ == "__main__":
    main()
