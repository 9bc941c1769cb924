"""Sweeps: what is searched, and trials that outlive their processes."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="pip install torch")
pytest.importorskip("lightning", reason="pip install lightning")
pytest.importorskip("optuna", reason="pip install optuna")

from paimon_features.core.errors import ConfigurationError, JobError  # noqa: E402
from paimon_features.project import Project  # noqa: E402
from paimon_features.serving.prediction.network import OnnxNetwork  # noqa: E402
from tests.trainer_bridge.training.shop import SMALL, make_shop  # noqa: E402
from trainer_bridge.training import run  # noqa: E402
from trainer_bridge.training.config import compose  # noqa: E402
from trainer_bridge.training.search_space import Choice, Interval, SearchSpace  # noqa: E402
from trainer_bridge.training.sweep import sweep  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return make_shop(tmp_path_factory.mktemp("shop"))


def test_overrides_win_over_the_space_of_the_file() -> None:
    section = {
        "optimiser.lr": "tag(log, interval(1e-4, 1e-2))",
        "model.dim": [32, 64],
        "model.layers": "range(1, 5)",
        "data.batch_size": "int(interval(16, 64))",
        "seed": 3,
    }
    space = SearchSpace.of(section, ["model.dim=16", "seed=1,2"])
    assert space.fixed == ("model.dim=16",)
    assert space.dimensions == {
        "optimiser.lr": Interval(1e-4, 1e-2, log=True),
        "model.layers": Choice(("1", "2", "3", "4"), step=1),
        "data.batch_size": Interval(16, 64, integer=True),
        "seed": Choice(("1", "2")),
    }


def test_values_of_the_file_are_words_and_a_later_override_wins() -> None:
    section = {"trainer.patience": [None, 3], "trainer.compile": [True, False]}
    space = SearchSpace.of(section, ["seed=1,2", "seed=3,4", "model.dim=1,2", "model.dim=8"])
    assert space.fixed == ("model.dim=8",)
    assert space.dimensions == {
        "trainer.patience": Choice(("null", "3")),
        "trainer.compile": Choice(("True", "False")),
        "seed": Choice(("3", "4")),
    }
    halves = SearchSpace.of({}, ["optimiser.lr=range(0.5,2,0.5)"]).dimensions["optimiser.lr"]
    assert halves == Choice(("0.5", "1.0", "1.5"))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.layers=range(5,1)", "expected 1 to 10,000 values"),
        ("model.layers=range(1,5,0)", "expected 1 to 10,000 values"),
        ("optimiser.lr=interval(1,1)", "expected low < high"),
        ("optimiser.lr=tag(log,interval(0,1))", "expected more than 0"),
        ("model=choice(", "no viable alternative"),
        ("model=glob(*)", "not supported"),
    ],
)
def test_a_space_that_is_none_is_explained(override: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        SearchSpace.of({}, [override])


def test_a_grid_of_an_interval_or_too_many_values_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="say --trials"):
        SearchSpace.of({}, ["optimiser.lr=interval(0.1,1)"]).grid()
    with pytest.raises(ConfigurationError, match="1,000,000 combinations"):
        SearchSpace.of({}, ["seed=range(0,1000)", "model.dim=range(0,1000)"]).grid()


@pytest.mark.long
@pytest.mark.timeout(1_200)  # five processes import torch and optuna
def test_a_sweep_outlives_its_workers_and_registers_the_best(project: Project) -> None:
    file = project.root / "churn.yaml"
    overrides = ["model=gradient_boosting", "model.trees=2,20", "model.leaves=2,8"]
    messages: list[str] = []

    def on_message(text: str) -> None:
        # the trials that run when the first one has ended lose their process
        if not messages:
            for child in multiprocessing.active_children():
                assert child.pid is not None
                os.kill(child.pid, signal.SIGKILL)
        messages.append(text)

    result = sweep(project, file, overrides, jobs=2, on_message=on_message)
    assert [(each.number, each.state) for each in result.trials] == [
        (number, "finished") for number in range(4)
    ]
    assert any("signal 9; it continues" in text for text in messages)
    losses = {each.overrides: each.loss for each in result.trials}
    assert len(losses) == 4
    assert result.best.loss == min(losses.values(), key=lambda loss: loss or 0.0)
    assert result.is_new
    # only the best one is a version, and its overrides are its configuration
    states = project.models.states("churn")
    assert [each.state for each in states.versions] == ["candidate"]
    assert run.train(project, compose(file, result.overrides)) == (result.manifest, False)
    assert result.best_file.read_text().splitlines() == list(result.overrides)
    assert len(json.loads(result.results_file.read_text())["trials"]) == 4
    # a torn line is what a killed main process leaves
    with (result.folder / "trials.log").open("a") as journal:
        journal.write('{"op_code": 5, "wor')
    again = sweep(project, file, overrides, jobs=2)
    assert (again.trials, str(again.manifest), again.is_new) == (
        result.trials, str(result.manifest), False
    )  # fmt: skip


def test_a_sweep_says_why_no_trial_finished(project: Project) -> None:
    with pytest.raises(JobError, match="divides into heads of an even size"):
        sweep(project, project.root / "churn.yaml", ["model.dim=15,17"], jobs=1)
    with pytest.raises(ConfigurationError, match="nothing varies"):
        sweep(project, project.root / "churn.yaml", ["model.dim=16"])


def test_a_trial_stops_at_the_validation_that_says_so(project: Project, tmp_path: Path) -> None:
    seen: list[tuple[int, float]] = []

    def on_validation(step: int, loss: float) -> bool:
        seen.append((step, loss))
        return len(seen) == 2

    threads = torch.get_num_threads()
    config = compose(project.root / "churn.yaml", [*SMALL, "trainer.epochs=5"])
    metrics = run.validate(project, config, tmp_path, on_validation)
    torch.set_num_threads(threads)
    assert [step for step, _ in seen] == [6, 12]  # batches of two epochs
    assert metrics["log_loss"].value == pytest.approx(min(loss for _, loss in seen), abs=1e-5)


def test_a_trial_that_diverges_fails_and_the_others_finish(tmp_path: Path) -> None:
    project = make_shop(tmp_path)
    settings = [
        "name=amounts", "objective=regression", "data.label=spent", "model=wide_and_deep",
        "model.dim=8", "trainer.epochs=1", "optimiser=sgd", "optimiser.clip=null",
        "optimiser.lr=0.01,900",
    ]  # fmt: skip
    for _ in range(2):  # the second call finds the trials in the journal
        done = sweep(project, project.root / "churn.yaml", [*settings], jobs=1)
        assert [each.state for each in done.trials] == ["finished", "failed"]
        assert done.best.number == 0
        assert "diverged" in done.trials[1].message
    assert done.manifest.version == 1
    project.models.promote("amounts", 1)
    place = project.models.place
    production = place.read().models["amounts"].production
    assert production is not None
    OnnxNetwork(place.load("amounts", production))  # it runs a row of nulls
