"""Two gloo ranks by Accelerate, Transformers and Lightning: all rows, each once, or an error."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from paimon_features.lake.catalog import Lake
from trainer_bridge.readers.snapshot_reader import SnapshotReader
from trainer_bridge.testing.sample_tables import make_samples

pytestmark = pytest.mark.torch

ROWS, BATCH, WORLD = 130, 20, 2
"""The last global batch has 10 rows."""
STEPS = -(-ROWS // BATCH)
ROOT = Path(__file__).parents[3]


@pytest.fixture
def samples(lake: Lake) -> Lake:
    make_samples(lake, [40, 30, 60])
    return lake


def run(lake: Lake, name: str) -> list[dict[str, Any]]:
    """What each rank saw: see ``framework_ranks.py``."""
    pytest.importorskip(name, reason=f"pip install {name}")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
    for variable in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        environment.pop(variable, None)
    done = subprocess.run(
        [
            sys.executable,
            str(ROOT / "tests/trainer_bridge/adapters/framework_ranks.py"),
            name,
            lake.warehouse,
        ],
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


def global_batches(lake: Lake, epochs: int) -> list[list[int]]:
    """The batches of one process, without a framework."""
    options: dict[str, Any] = {"columns": ["x"], "global_batch_size": BATCH, "seed": 3}
    with SnapshotReader(lake, "samples", **options) as reader:
        return [sorted(batch["x"].tolist()) for _ in range(epochs) for batch in reader]


def together(ranks: list[list[list[int]]]) -> list[list[int]]:
    return [sorted(itertools.chain.from_iterable(step)) for step in zip(*ranks, strict=True)]


@pytest.mark.long
def test_accelerate_trains_on_every_row_once_and_restores_the_position(samples: Lake) -> None:
    found = run(samples, "accelerate")
    wanted = global_batches(samples, 3)
    for rank, own in enumerate(found):
        assert f"rank {rank} of 2 already, and Accelerate deals the batches" in own["refused"]
        assert "accelerated(loader, accelerator)" in own["refused"]
        assert "this sampler has the share" in own["sampler"]
        assert "BatchSamplerShard" in own["sampler"]
    for workers in ("workers 0", "workers 1"):
        parts = [own[workers] for own in found]
        for epoch in range(2):
            batches = together([part["seen"][epoch] for part in parts])
            assert batches == wanted[epoch * STEPS : (epoch + 1) * STEPS]
        # gradients of 4 batches, and of the 3 that are left at the end of each epoch
        assert [part["steps"] for part in parts] == [2 * 2] * WORLD
        left = together([part["left"][0] + part["left"][1] for part in parts])
        assert left == wanted[2 * STEPS :]
        assert all(part["restored"] for part in parts)


@pytest.mark.long
def test_the_trainer_of_transformers_trains_on_every_row_once_and_resumes(samples: Lake) -> None:
    found = run(samples, "transformers")
    wanted = global_batches(samples, 2)
    for rank, own in enumerate(found):
        assert f"share of rank {rank} of 2 already" in own["refused"]
    assert together([own["seen"] for own in found]) == wanted
    assert together([own["resumed"] for own in found]) == wanted[12:]


@pytest.mark.long
def test_lightning_trains_on_every_row_once_and_validates_on_all(samples: Lake) -> None:
    found = run(samples, "lightning")
    assert together([own["seen"] for own in found]) == global_batches(samples, 2)
    for own in found:
        for epoch in range(2):
            rows = itertools.chain.from_iterable(own["checked"][epoch * 3 : (epoch + 1) * 3])
            assert sorted(rows) == list(range(ROWS))
        assert "use_distributed_sampler=False" in own["sampler"]
