"""Rounds of ``retrain``: which rows they read, the gate, promotion, rollback, and kills."""

from __future__ import annotations

import shutil
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

torch = pytest.importorskip("torch", reason="pip install torch")
pytest.importorskip("lightning", reason="pip install lightning")
pytest.importorskip("onnxscript", reason="pip install onnxscript")
onnxruntime = pytest.importorskip("onnxruntime", reason="pip install onnxruntime")

from paimon_features.core.errors import (  # noqa: E402
    ConfigurationError,
    OnlineStoreError,
    OwnershipError,
    SnapshotExpiredError,
    UnknownNameError,
    VerificationError,
)
from paimon_features.core.windows import DAY_MS  # noqa: E402
from paimon_features.lake import append_arrow, read_arrow  # noqa: E402
from paimon_features.online.store import MemoryStore  # noqa: E402
from paimon_features.project import Project  # noqa: E402
from paimon_features.project.models import ProjectModels  # noqa: E402
from tests.models.networks import manifest, network  # noqa: E402
from tests.trainer_bridge.training.shop import END, START, make_shop, new_rows  # noqa: E402
from trainer_bridge.models import (  # noqa: E402
    InputShapes,
    SequenceTransformerNetwork,
    TabularTransformerNetwork,
)
from trainer_bridge.training import export, run  # noqa: E402
from trainer_bridge.training.config import compose  # noqa: E402
from trainer_bridge.training.module import TrainingModule  # noqa: E402
from trainer_bridge.training.quantise import quantise  # noqa: E402
from trainer_bridge.training.retraining import (  # noqa: E402
    RetrainDecision,
    Retrainer,
    retrain,
)
from trainer_bridge.training.rounds import RoundTable  # noqa: E402
from trainer_bridge.training.training_table import TrainingTable  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("one_torch_thread")]

WIDE = ("model=wide_and_deep", "model.dim=16", "model.layers=1", "trainer.epochs=1",
        "feedback.loop=losses")  # fmt: skip
SETTINGS = {"retrain.min_rows": 100, "retrain.epochs": 3, "optimiser.lr": 0.05,
            "trainer.checkpoint_every": 2}  # fmt: skip


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with churn@1, a network, and trees@1 in production."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("shop")
    project = make_shop(folder)
    version, _ = run.train(project, compose(folder / "churn.yaml", [*WIDE]))
    project.models.promote("churn", version.version)
    trees = ["name=trees", "model=gradient_boosting", "model.trees=20"]
    run.train(project, compose(folder / "churn.yaml", trees))
    project.models.promote("trees", 1)
    torch.set_num_threads(threads)
    return folder


def copy_of(shop: Path, folder: Path) -> Project:
    shutil.copytree(shop, folder, dirs_exist_ok=True)
    return Project.open(folder)


@pytest.fixture
def project(shop: Path, tmp_path: Path) -> Project:
    return copy_of(shop, tmp_path)


def commit(project: Project, rows: pa.Table) -> None:
    append_arrow(project.lake, "training_churn", rows)


WATCHING = {**SETTINGS, "retrain.min_rows": 250}
"""No round of the rows that only the alarm is to judge."""


def decisions(
    project: Project, name: str = "churn", settings: dict[str, Any] = SETTINGS, **options: Any
) -> list[RetrainDecision]:
    return list(retrain(project, name, settings=settings, **options))


def states(project: Project, name: str = "churn") -> dict[int, str]:
    return {each.version: each.state for each in project.models.states(name).versions}


class KilledError(Exception):
    pass


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> list[RoundTable]:
    """The rows of the rounds that are run."""
    seen: list[RoundTable] = []
    original = run.run

    def recorded(project: Project, config: Any, table: Any, *rest: Any, **options: Any) -> Any:
        seen.append(table)
        return original(project, config, table, *rest, **options)

    monkeypatch.setattr(run, "run", recorded)
    return seen


def samples(rows: pa.Table, columns: str = "sample_id") -> set[int]:
    return set(rows[columns].to_pylist())


def test_rounds_promote_what_is_better_and_return_when_it_is_worse(
    project: Project, tables: list[RoundTable]
) -> None:
    assert decisions(project, "trees") == []
    commit(project, new_rows(90, 1, seed=9))
    assert decisions(project, "trees") == []  # fewer than min_rows
    commit(project, new_rows(600, 2, seed=1))
    (promoted,) = decisions(project, "trees")
    assert (promoted.action, promoted.version, promoted.production) == (
        "promoted", "trees@2", "trees@2"
    ), promoted.text  # fmt: skip
    assert states(project, "trees") == {1: "archived", 2: "production"}
    published = project.models.place.read().models["trees"].production
    assert published is not None
    assert published.version == 2
    made = project.models.manifest("trees", 2)
    assert made.parents == ("trees@1",)
    assert "## Continues trees@1" in made.card
    assert "Gate: passed." in made.card
    difference = made.metrics["gate_difference"]
    assert difference.high is not None
    assert difference.high < 0
    assert [(n.version, n.action) for n in project.models.notes("trees")] == [(2, "promoted")]
    # the same rows again make no version; labels that turned are an alarm first
    assert decisions(project, "trees") == []
    commit(project, new_rows(300, 6, seed=2, turned=True))
    back, after = decisions(project, "trees")
    assert (back.action, back.version, back.production) == ("rolled_back", "trees@2", "trees@1")
    assert "higher than that of trees@1" in back.text
    assert after.version == "trees@3"
    assert project.models.manifest("trees", 3).parents == ("trees@1",)
    # every row is held out at most once, and never one that was trained on before
    first, second = tables
    held = [samples(table.held_out, "event_time_ms") for table in tables]
    trained = [samples(table.train_rows, "event_time_ms") for table in tables]
    assert not held[0] & held[1]
    assert not held[0] & trained[0]
    assert not held[1] & (trained[0] | trained[1])
    assert held[0] <= trained[1]
    # replayed rows are some that trees@1 was trained on, all of them for trees
    assert first.replayed > 200
    old = first.train_rows["event_time_ms"].to_numpy()[first.new :]
    assert (
        old.max()
        < TrainingTable.open(
            project, run.config_of(project, project.models.manifest("trees", 1)).data
        ).split.train_until_ms
    )
    assert second.new > first.new


@pytest.mark.long
def test_a_round_that_died_at_any_point_makes_the_same_version(
    shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tables: list[RoundTable]
) -> None:
    parts = copy_of(shop, tmp_path / "parts")
    commit(parts, new_rows(300, 2, seed=1))
    whole = copy_of(tmp_path / "parts", tmp_path / "whole")
    assert [each.action for each in decisions(whole)] == ["promoted"]
    assert 0 < tables[0].replayed <= tables[0].new
    # the parent's graph with other weights: exporting it again would take most of a round
    monkeypatch.setattr(export, "export_program", None)

    def dies(where: Any, name: str, at: int = 1) -> None:
        original, calls = getattr(where, name), 0

        def dying(*arguments: Any, **options: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == at:
                raise KilledError
            return original(*arguments, **options)

        with monkeypatch.context() as patched:
            patched.setattr(where, name, dying)
            with pytest.raises(KilledError):
                decisions(parts)

    # in the middle of an epoch: the resumed run begins at its checkpoint
    dies(TrainingModule, "training_step", at=6)
    dies(ProjectModels, "register")
    assert states(parts) == {1: "production"}
    commit(parts, new_rows(90, 6, seed=3))  # the round that was begun does not see them
    dies(Retrainer, "_decide")
    assert states(parts) == {1: "production", 2: "candidate"}
    dies(ProjectModels, "publish", at=2)  # of the promotion: behind that of the start
    assert states(parts) == {1: "archived", 2: "production"}
    published = parts.models.place.read().models["churn"].production
    assert published is not None
    assert published.version == 1
    assert decisions(parts) == []  # nothing is left to do but to publish
    published = parts.models.place.read().models["churn"].production
    assert published is not None
    assert published.version == 2
    one, other = (each.models.manifest("churn", 2) for each in (whole, parts))
    assert one.training is not None
    assert other.training is not None
    assert one.training.weights == other.training.weights
    assert one.training.weights != whole.models.manifest("churn", 1).training.weights  # type: ignore[union-attr]
    assert one.files["network.onnx"] == other.files["network.onnx"]
    assert one.card == other.card
    # the loss of each row of each epoch is feedback, once
    feedback = read_arrow(parts.lake, "feedback_losses", ["run_id"])["run_id"].to_pylist()
    assert feedback.count(other.training.run) == other.training.rows * SETTINGS["retrain.epochs"]
    assert [n.action for n in parts.models.notes("churn") if n.version == 2] == ["promoted"]
    assert not (parts.config.state_dir / "training" / "churn" / "round.json").exists()
    result = run.reproduce(whole, "churn", 2)
    assert result.is_same, result


@pytest.mark.long
@pytest.mark.parametrize("kind", [TabularTransformerNetwork, SequenceTransformerNetwork])
def test_exported_graphs_take_other_weights(kind: Any) -> None:
    lists = kind is SequenceTransformerNetwork
    shapes = InputShapes(((0, 1), (2,)), (7,) if lists else (), int(lists), 4 if lists else 0)
    networks = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        networks.append(kind(shapes, 1, dim=8, layers=1, heads=2, dropout=0.0).eval())
        with torch.no_grad():
            for parameter in networks[-1].parameters():
                parameter.add_(torch.randn_like(parameter) / 10)
    program, data = export.export_program(networks[0], "binary")
    model = export.program_to_onnx(program, tuple(networks[0].examples()))
    for each in model.graph.initializer:  # as from_raw_features names them
        for node in model.graph.node:
            node.input[:] = [f"network_{n}" if n == each.name else n for n in node.input]
        each.name = f"network_{each.name}"
    old, new = ({n: w.numpy() for n, w in each.state_dict().items()} for each in networks)
    changed = export.graph_with_weights(model.SerializeToString(), old, new)
    assert changed is not None
    dice = np.random.default_rng(0)
    feeds = {name: array.numpy() for name, array in networks[0].examples(5).items()}
    feeds["numbers"] = dice.normal(size=feeds["numbers"].shape).astype(np.float32)
    tensors = {name: torch.from_numpy(array) for name, array in feeds.items()}
    with torch.inference_mode():
        wanted = export.predictions_of(networks[1], "binary", networks[1](**tensors)).numpy()
        again = export.load_program(
            export.program_with_weights(data, networks[1].state_dict())
        )(**tensors).numpy()  # fmt: skip
    session = onnxruntime.InferenceSession(changed, providers=["CPUExecutionProvider"])
    assert session.run(None, feeds)[0] == pytest.approx(wanted, abs=1e-5)
    assert again == pytest.approx(wanted, abs=1e-6)
    # a weight that is not found: the network is exported instead
    assert export.graph_with_weights(model.SerializeToString(), {**old, "x": old["norm.bias"]},
                                     {**new, "x": new["norm.bias"]}) is None  # fmt: skip


@pytest.mark.long
def test_a_person_promotes_where_the_command_may_not(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    timer = threading.Timer(0.3, commit, (project, new_rows(1_200, 2, seed=1)))
    timer.start()
    (passed,) = decisions(project, "trees", follow=True, rounds=1, poll_s=0.05, promote=False)
    timer.join()
    assert (passed.action, passed.production) == ("passed", "trees@1")
    assert states(project, "trees") == {1: "production", 2: "candidate"}
    project.models.promote("trees", 2)
    commit(project, new_rows(200, 6, seed=2, turned=True))
    (alarm,) = decisions(project, "trees", WATCHING, promote=False)
    assert (alarm.action, alarm.production) == ("alarm", "trees@2")
    assert decisions(project, "trees", WATCHING, promote=False) == []  # it is given once
    # somebody else takes the parent out of production during a round
    original = run.run

    def meanwhile(*arguments: Any, **options: Any) -> Any:
        made = original(*arguments, **options)
        project.models.rollback("trees")
        return made

    monkeypatch.setattr(run, "run", meanwhile)
    commit(project, new_rows(60, 7, seed=4, turned=True))
    (late,) = [each for each in decisions(project, "trees", promote=False) if each.is_round]
    assert (late.action, late.production) in (
        ("superseded", "trees@1"), ("rejected", "trees@1")
    )  # fmt: skip


def test_a_version_that_cannot_be_made_changes_nothing(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    def diverged(*arguments: Any, **options: Any) -> Any:
        raise VerificationError("the ONNX graph: its predictions differ from those by nan")

    monkeypatch.setattr(run, "run", diverged)
    commit(project, new_rows(300, 2, seed=1))
    (failed,) = decisions(project)
    assert (failed.action, failed.version) == ("failed", "")
    assert states(project) == {1: "production"}


class Interrupted(MemoryStore):
    """An online store that answers so many more reads; all of them where that is None."""

    answers: int | None = None

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        if self.answers is not None:
            self.answers -= 1
            if self.answers < 0:
                raise OnlineStoreError("the online store does not answer")
        return super().get_many(keys)


class Waits(threading.Event):
    """Does the next step where ``retrain`` waits for new rows; after the last one it is set."""

    def __init__(self, *steps: Callable[[], None]) -> None:
        super().__init__()
        self.steps = list(steps)

    def wait(self, timeout: float | None = None) -> bool:
        if self.steps:
            self.steps.pop(0)()
        else:
            self.set()
        return self.is_set()


@pytest.fixture
def online(project: Project) -> tuple[Project, Interrupted]:
    """The project with its models in an online store."""
    (project.root / "paimon-features.toml").write_text(
        '[project]\nname = "shop"\n[serve]\nbundle = "online"\n'
    )
    project, store = Project.open(project.root), Interrupted()
    project.store = store
    project.models.publish()
    return project, store


def served(project: Project, name: str = "trees") -> int:
    """The version that serving hosts load."""
    found = project.models.place.read().models[name].production
    assert found is not None
    return found.version


@pytest.mark.long
def test_who_follows_waits_for_rows_and_for_the_online_store(
    online: tuple[Project, Interrupted],
) -> None:
    project, store = online

    def rows(answers: int | None, table: pa.Table) -> None:
        store.answers = answers
        commit(project, table)

    def back() -> None:
        store.answers = None
        assert served(project) == published.pop(0)  # the store has what it had before

    published = [1, 2]
    stop = Waits(
        lambda: None,  # nothing is new
        lambda: rows(None, new_rows(90, 1, seed=9)),  # fewer than min_rows
        lambda: rows(0, new_rows(600, 2, seed=1)),
        back,
        lambda: rows(0, new_rows(300, 6, seed=2, turned=True)),
        back,
    )
    messages: list[str] = []
    options: Any = {"settings": SETTINGS, "stop": stop, "on_message": messages.append}
    found = [(each.action, each.version) for each in retrain(project, "trees", follow=True,
                                                             **options)]  # fmt: skip
    assert not stop.steps
    assert found[:2] == [("promoted", "trees@2"), ("rolled_back", "trees@2")]
    unpublished = [each.partition(":")[0] for each in messages if "publish" in each]
    assert unpublished[0] == "trees@2 is promoted, and not published yet"
    assert "trees@2 is rolled back, and not published yet" in unpublished
    again = "the models cannot be published; it is tried again"
    assert set(unpublished[1:]) >= {again}
    production = project.models.states("trees").production
    assert production is not None
    assert served(project) == production.version


def test_a_round_that_cannot_publish_is_an_error_and_the_next_one_does(
    online: tuple[Project, Interrupted],
) -> None:
    project, store = online
    commit(project, new_rows(1_200, 2, seed=1))
    for answers in (0, 1):  # the store is gone at the start; when the version is published
        store.answers = answers
        with pytest.raises(OnlineStoreError, match="does not answer"):
            decisions(project, "trees")
        assert states(project, "trees")[1] == ("production", "archived")[answers]
    store.answers = None
    assert served(project) == 1
    assert decisions(project, "trees") == []
    assert served(project) == 2
    commit(project, new_rows(40, 6, seed=4, turned=True))  # too few rows to judge by
    assert decisions(project, "trees") == []
    commit(project, new_rows(200, 6, seed=2, turned=True))
    store.answers = 1
    with pytest.raises(OnlineStoreError, match="does not answer"):
        decisions(project, "trees")
    store.answers = None
    assert states(project, "trees") == {1: "production", 2: "archived"}
    assert served(project) == 2
    list(retrain(project, "trees", settings={"retrain.min_rows": 1_000}))
    assert served(project) == 1


@pytest.mark.long
def test_states_that_others_change_meanwhile_are_read_again(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = 0

    def after_others(change: Any) -> Any:
        """Somebody else promotes the version in production again, just before."""

        def changed(self: ProjectModels, name: str, *rest: Any, **options: Any) -> Any:
            nonlocal others
            if others:
                others -= 1
                current = self.states(name).production
                assert current is not None
                original(self, name, current.version)
            return change(self, name, *rest, **options)

        return changed

    original = ProjectModels.promote
    for name in ("promote", "rollback"):
        monkeypatch.setattr(ProjectModels, name, after_others(getattr(ProjectModels, name)))
    trees = ["name=trees", "model=gradient_boosting", "model.trees=2"]
    run.train(project, compose(project.root / "churn.yaml", trees))
    commit(project, new_rows(1_200, 2, seed=1))
    others = 1_000
    with pytest.raises(OwnershipError, match="others change its states all the time; trees@3 wait"):
        decisions(project, "trees")
    # a candidate of ``train`` is none of a round, and waits for a person
    assert states(project, "trees") == {1: "production", 2: "candidate", 3: "candidate"}
    others = 2
    (promoted,) = decisions(project, "trees")
    assert (promoted.action, promoted.version, others) == ("promoted", "trees@3", 0)
    commit(project, new_rows(200, 6, seed=2, turned=True))
    others = 1
    assert decisions(project, "trees", WATCHING) == []
    assert states(project, "trees")[3] == "production"
    (back,) = decisions(project, "trees", WATCHING)
    assert (back.action, back.version, back.production) == ("rolled_back", "trees@3", "trees@1")


def test_a_round_reads_commits_up_to_max_rows_and_waits_for_rows_of_both_parts(
    project: Project, tables: list[RoundTable]
) -> None:
    unknown = new_rows(300, 1, seed=3)
    labels = pa.nulls(300, pa.bool_())
    place = unknown.column_names.index("churned")
    commit(project, unknown.set_column(place, "churned", labels))
    assert decisions(project, "trees") == []  # enough rows, and none has a label
    messages: list[str] = []
    same = new_rows(120, 2, seed=1)
    times = pa.array([START] * 120)  # before all rows that the parent has seen
    commit(project, same.set_column(same.column_names.index("event_time_ms"), "event_time_ms",
                                    times))  # fmt: skip
    assert decisions(project, "trees", on_message=messages.append) == []
    assert "trees@1: 0 new rows to train on, and 120 to hold out; waiting for more" in messages[-1]
    assert "retrain.holdout=0.3" in messages[-1]
    assert tables == []
    for day in range(2, 6):
        commit(project, new_rows(150, 5 * day, seed=day))
    (found,) = retrain(project, "trees", settings={**SETTINGS, "retrain.max_rows": 800})
    assert found.is_round
    (table,) = tables
    # the commits of 300, 120 and two of 150 rows are at most 800
    times = samples(pa.concat_tables([table.train_rows, table.held_out]), "event_time_ms")
    assert END + 15 * DAY_MS < max(times) < END + 20 * DAY_MS


def test_numbers_are_predicted_within_twice_their_span(
    project: Project, tables: list[RoundTable]
) -> None:
    settings = ["name=amounts", "model=gradient_boosting", "model.trees=20",
                "objective=regression", "data.label=spent"]  # fmt: skip
    version, _ = run.train(project, compose(project.root / "churn.yaml", settings))
    project.models.promote("amounts", version.version)
    tables.clear()
    rows = new_rows(300, 2, seed=1)
    # of a label that is none, from an outcome that failed: it stops no round
    spent = rows["spent"].to_numpy().copy()
    spent[5], spent[-1] = np.nan, np.inf
    commit(project, rows.set_column(rows.column_names.index("spent"), "spent", pa.array(spent)))
    (found,) = decisions(project, "amounts")
    assert found.action == "promoted", found.text
    assert project.models.manifest("amounts", 2).signature.task == "regression"
    (table,) = tables
    assert table.held_out.num_rows == found.figures["overall"]["rows"] == 90
    for rows in (table.held_out, table.train_rows):
        assert np.isfinite(np.array(rows["spent"])).all()


def test_the_alarm_counts_rows_by_their_weights(project: Project) -> None:
    weighted = ["name=weighted", "model=gradient_boosting", "model.trees=20", "data.weights=weight"]
    version, _ = run.train(project, compose(project.root / "churn.yaml", weighted))
    project.models.promote("weighted", version.version)
    commit(project, new_rows(600, 2, seed=1))
    (promoted,) = decisions(project, "weighted")
    assert promoted.action == "promoted", promoted.text
    watched = project.root / "watched"

    def alarms(of_turned: float, of_others: float) -> list[str]:
        """What follows from rows of which a third has turned labels, by their weights."""
        shutil.rmtree(watched, ignore_errors=True)
        copy = copy_of(project.root, watched)
        for turned, weight in ((True, of_turned), (False, of_others)):
            rows = new_rows(80 if turned else 160, 6, seed=2 + turned, turned=turned)
            weights = pa.array(np.full(rows.num_rows, weight))
            commit(copy, rows.set_column(rows.column_names.index("weight"), "weight", weights))
        return [each.action for each in decisions(copy, "weighted", WATCHING)]

    assert alarms(1.0, 0.01) == ["rolled_back"]
    assert alarms(0.01, 1.0) == []
    assert alarms(1.0, 0.0) == ["rolled_back"]
    assert alarms(0.0, 0.0) == []  # nothing is known of rows that do not count


@pytest.mark.long
def test_rounds_of_another_training_set_do_not_count(project: Project) -> None:
    commit(project, new_rows(600, 2, seed=1))
    (found,) = decisions(project, "trees")
    assert found.version == "trees@2"
    given = ["customer_id", "event_time_ms", "sample_id", "churned", "weight", "spent", "favourite"]
    rows = read_arrow(project.lake, "training_churn", given)
    old = rows.filter(pc.less(rows["event_time_ms"], END)).slice(0, 480)
    project.build_training_set("churn", "basket_v1", old, label="churned", replace=True)
    with pytest.raises(SnapshotExpiredError):
        decisions(project, "trees")
    trees = ["name=trees", "model=gradient_boosting", "model.trees=20"]
    third, _ = run.train(project, compose(project.root / "churn.yaml", trees))
    project.models.promote("trees", third.version)
    assert decisions(project, "trees") == []
    for seed in (1, 2, 3):  # as many commits as before: snapshots have the same numbers
        commit(project, new_rows(300, 2 + 4 * seed, seed=seed))
    (again,) = decisions(project, "trees")
    assert again.is_round
    assert project.models.manifest("trees", 4).parents == ("trees@3",)


def test_who_follows_a_network_has_its_modules_before_the_first_rows(project: Project) -> None:
    stop = Waits()
    assert list(retrain(project, "churn", follow=True, settings=SETTINGS, stop=stop)) == []
    assert stop.is_set()
    assert "trainer_bridge.training.network_run" in sys.modules


def test_a_version_of_another_origin_is_neither_continued_nor_reproduced(project: Project) -> None:
    files = {"network.onnx": network().SerializeToString()}
    version = project.models.register(manifest("foreign"), files)
    project.models.promote("foreign", version.version)
    message = f"model {version} was not trained by 'paimon-features train'"
    for call in (
        lambda: decisions(project, "foreign"),
        lambda: run.reproduce(project, "foreign"),
        lambda: quantise(project, "foreign", None, "fp16"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            call()


def test_trees_are_fitted_again_and_unknown_classes_are_left_out(
    project: Project, tables: list[RoundTable]
) -> None:
    settings = ["name=basket", "model=gradient_boosting", "model.trees=5", "objective=multiclass",
                "data.label=favourite"]  # fmt: skip
    version, _ = run.train(project, compose(project.root / "churn.yaml", settings))
    project.models.promote("basket", version.version)
    tables.clear()
    rows = new_rows(300, 2, seed=1)
    strange = pa.array(["cars"] * 50 + rows["favourite"].to_pylist()[50:])
    commit(project, rows.set_column(rows.column_names.index("favourite"), "favourite", strange))
    (found,) = retrain(project, "basket", settings={"retrain.min_rows": 100})
    (table,) = tables
    assert found.version == "basket@2"
    assert "fitted again" in project.models.manifest("basket", 2).card
    assert not {"cars"} & set(table.train_rows["favourite"].to_pylist())
    # all that the parent has seen, not as many rows as there are new ones
    assert table.replayed > table.new
    assert project.models.manifest("basket", 2).signature.outputs[0].classes == (
        version.signature.outputs[0].classes
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model.dim": 3}, "a round takes settings of retrain"),
        ({"retrain.holdout": 2.0}, "retrain.holdout=2.0: expected 0.01 to 0.9"),
        (
            {"retrain.segments": ["contry"]},
            "unknown column 'contry'.*did you mean 'country'|contry",
        ),
    ],
)
def test_settings_that_are_none_are_explained(
    project: Project, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        list(retrain(project, "churn", settings=settings))


def test_a_model_needs_a_version_in_production(project: Project) -> None:
    with pytest.raises(UnknownNameError, match="available: churn"):
        list(retrain(project, "chrn"))
    project.models.promote("churn", 1, "archived")
    with pytest.raises(ConfigurationError, match="models promote churn 1"):
        list(retrain(project, "churn"))
