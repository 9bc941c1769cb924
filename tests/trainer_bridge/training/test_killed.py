"""``train`` and ``retrain`` killed at random moments: what is visible, what a resumed run makes.

The same at chosen moments, without processes, is in ``test_run.py`` and ``test_retraining.py``.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="pip install torch")
pytest.importorskip("lightning", reason="pip install lightning")
pytest.importorskip("onnxscript", reason="pip install onnxscript")

from paimon_features.lake import append_arrow  # noqa: E402
from paimon_features.project import Project  # noqa: E402
from tests.trainer_bridge.training.shop import make_shop  # noqa: E402
from tests.trainer_bridge.training.test_retraining import SETTINGS, WIDE, new_rows  # noqa: E402
from trainer_bridge.training import run  # noqa: E402
from trainer_bridge.training.config import compose  # noqa: E402
from trainer_bridge.training.retraining import retrain  # noqa: E402

KILLS = int(os.environ.get("PAIMON_FEATURES_KILLS", "0")) // 10
FORK = multiprocessing.get_context("forkserver")
# the server has imported what a run needs, and nothing has run in it yet
FORK.set_forkserver_preload(
    ["trainer_bridge.training.retraining", "trainer_bridge.training.network_run", "onnxruntime",
     "onnxscript"]
)  # fmt: skip
LONGEST_S = 6.0
"""A run is killed within so many seconds; it takes about that long."""
pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(KILLS == 0, reason="a minute for three kills: `make chaos` does it"),
    pytest.mark.timeout(300 + 120 * KILLS),
]


def _train(folder: str, started: Any) -> None:
    torch.set_num_threads(1)
    project = Project.open(folder)
    started.set()
    settings = (*WIDE, "trainer.epochs=40", "trainer.patience=null", "trainer.checkpoint_every=2",
                "model.dropout=0.3", "optimiser.lr=0.01")  # fmt: skip
    run.train(project, compose(Path(folder) / "churn.yaml", settings))


def _retrain(folder: str, started: Any) -> None:
    torch.set_num_threads(1)
    project = Project.open(folder)
    started.set()
    list(retrain(project, "churn", settings=SETTINGS))


def finished(target: Any, folder: Path, delay_s: float | None) -> bool:
    """Run in a process of its own, killed after a delay; whether it came to its end."""
    started = FORK.Event()
    process = FORK.Process(target=target, args=(str(folder), started))
    process.start()
    assert started.wait(300)
    process.join(delay_s)
    done = process.exitcode is not None
    if not done:
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert not done or process.exitcode == 0
    return done


def check_visible(project: Project) -> int:
    """Every version that is there is complete, and so is what is published; how many there are."""
    if "churn" not in project.models.names():
        return 0
    manifests = project.models.manifests("churn")
    assert sorted(manifests) == list(range(1, len(manifests) + 1))
    for manifest in manifests.values():
        assert {name: project.models.file(manifest, name) for name in manifest.files}
    published = project.models.place.read().models.get("churn")
    if published is not None and published.production is not None:
        assert project.models.place.load("churn", published.production).manifest.version <= len(
            manifests
        )
    return len(manifests)


def killed_until_it_ends(target: Any, folder: Path, kills: int, dice: random.Random) -> None:
    count = 0
    for _ in range(kills):
        if finished(target, folder, dice.uniform(0, LONGEST_S)):
            break
        found = check_visible(Project.open(folder))
        assert found >= count  # nothing is lost
        count = found
        time.sleep(0.05)
    else:
        run_to_the_end(target, folder)


def run_to_the_end(target: Any, folder: Path) -> None:
    assert finished(target, folder, None)


def test_killed_runs_make_the_versions_of_runs_that_were_not(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    seed = int(os.environ.get("PAIMON_FEATURES_SEED", str(time.time_ns() % 2**32)))
    print(f"PAIMON_FEATURES_SEED={seed}")
    dice = random.Random(seed)
    projects = []
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
        projects.append(make_shop(tmp_path / name))
    whole, killed = projects
    run_to_the_end(_train, whole.root)
    killed_until_it_ends(_train, killed.root, KILLS, dice)
    for project in projects:
        project.models.promote("churn", 1)
    for number in range(3):
        rows = new_rows(300, 2 + 5 * number, seed=number + 1, turned=number == 1)
        for project in projects:
            append_arrow(project.lake, "training_churn", rows)
        run_to_the_end(_retrain, whole.root)
        killed_until_it_ends(_retrain, killed.root, KILLS, dice)
        run_to_the_end(_retrain, killed.root)  # what a killed one had left to do
        one, other = ([m.training for m in p.models.manifests("churn").values()] for p in projects)
        assert [pins and pins.weights for pins in one] == [pins and pins.weights for pins in other]
        notes = [[(n.version, n.action) for n in p.models.notes("churn")] for p in projects]
        assert notes[0] == notes[1]
        states = [[(v.version, v.state) for v in p.models.states("churn").versions]
                  for p in projects]  # fmt: skip
        assert states[0] == states[1]
        published = killed.models.place.read().models["churn"].production
        assert published == killed.models.states("churn").production
