"""Model versions as a user meets them: list, show, diff, promote, roll back, export."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from paimon_features.models import Metric, TrainingPins
from paimon_features.project import Project
from tests import commands
from tests.models.networks import manifest, network

run = partial(commands.run, "models")


def register(project: Project, weight: float) -> None:
    made = manifest()
    pins = TrainingPins("training_churn", "3@ab", 900, {"order": int(weight)})
    metrics = {"auc": Metric(0.5 + weight / 4, 0.78, 0.84, 200, "DeLong")}
    made = replace(made, training=pins, metrics=metrics, card=f"# Churn\nweight {weight}\n")
    config = json.dumps({"optimiser": {"lr": weight / 1000}}).encode()
    files = {"network.onnx": network(weight).SerializeToString(), "config.json": config}
    project.models.register(made, files)


def test_the_life_of_a_model(project: Project, tmp_path: Path) -> None:
    assert "no model is registered yet" in run("show").output
    for weight in (1.0, 2.0, 3.0):
        register(project, weight)
    lines = run("show").output.splitlines()
    assert lines[0].split()[:3] == ["MODEL", "VERSION", "STATE"]
    assert [line.split()[:3] for line in lines[1:]] == [
        ["churn", str(number), "candidate"] for number in (1, 2, 3)
    ]
    assert run("promote", "churn", "1").output == "churn@1: production, 100 %\n"
    assert run("promote", "churn", "2", "--as", "challenger", "--traffic", "12.5").output == (
        "churn@1: production, 87.5 %\nchurn@2: challenger, 12.5 %\n"
    )
    run("promote", "churn", "3", "--as", "shadow")
    published = project.models.place.read().models["churn"]
    assert {each.version: each.state for each in published.versions} == {
        1: "production", 2: "challenger", 3: "shadow",
    }  # fmt: skip
    for state in published.versions:
        assert project.models.place.load("churn", state).manifest.version == state.version
    assert run("promote", "churn", "2").output == (
        "churn@2: production, 100 %\nchurn@3: shadow, 0 %\n"
    )
    after = json.loads(run("promote", "churn", "--previous", "--json").stdout)
    assert {each["version"]: each["state"] for each in after["versions"]} == {
        1: "production", 2: "archived", 3: "shadow",
    }  # fmt: skip
    listed = json.loads(run("show", "churn", "--versions", "--json").stdout)[0]
    assert listed["change"] == after["serial"]
    assert [each["metrics"]["auc"] for each in listed["versions"]] == [0.75, 1.0, 1.25]


def test_show_and_diff(project: Project) -> None:
    register(project, 1.0)
    register(project, 2.0)
    shown = run("show", "churn").output
    for text in ("churn@2: wide_and_deep, candidate", "spend:sum_amount_30d: float64",
                 "training_churn, snapshot 3@ab, 900 rows", "95 %: 0.78 to 0.84, DeLong",
                 "weight 2.0", "network.onnx"):  # fmt: skip
        assert text in shown
    document = json.loads(run("show", "churn", "1", "--json").stdout)
    assert json.loads(run("show", "churn@1", "--json").stdout) == document
    assert (document["version"], document["state"]["state"]) == (1, "candidate")
    lines = run("compare", "churn", "1", "2", "--manifests").output.splitlines()
    assert run("compare", "churn@1", "churn@2", "--manifests").output.splitlines() == lines
    assert "configuration.optimiser.lr: 0.001 -> 0.002" in lines
    assert "training.seeds.order: 1 -> 2" in lines
    assert "+weight 2.0" in lines
    assert not any(line.startswith(("version", "created")) for line in lines)
    assert "differ only in" in run("compare", "churn", "1", "1", "--manifests").output


def test_export_writes_files_once(project: Project, tmp_path: Path) -> None:
    register(project, 1.0)
    run("export", "churn")
    written = sorted(path.name for path in (tmp_path / "churn-1").iterdir())
    assert written == ["config.json", "manifest.json", "network.onnx"]
    assert "exists already" in run("export", "churn", code=2).output
    run("export", "churn", "1", "--into", "x", "--file", "network.onnx")
    assert (tmp_path / "x" / "network.onnx").read_bytes() == network(1.0).SerializeToString()
    assert "unknown file" in run("export", "churn", "--file", "y", code=2).output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["show", "chrun"], "unknown model 'chrun'; available: churn"),
        (["show", "churn", "9"], "has no version 9; it has: 1"),
        (["promote", "churn", "1", "--traffic", "5"], "a production has no traffic"),
        (["promote", "churn", "1", "--as", "challenger"], "a challenger has traffic"),
        (["promote", "churn", "1", "--as", "challenger", "--traffic", "0.001"], "0.01 to 99.99"),
        (["promote", "churn"], "pass the VERSION to promote, or --previous"),
        (["promote", "churn", "1", "--previous"], "--previous takes neither VERSION"),
        (["promote", "churn", "--previous"], "no version was in production before"),
    ],
)
def test_wrong_use_is_explained(project: Project, arguments: list[str], message: str) -> None:
    register(project, 1.0)
    assert message in run(*arguments, code=2).output


def test_a_change_that_was_overtaken_does_nothing(project: Project) -> None:
    register(project, 1.0)
    register(project, 2.0)
    run("promote", "churn", "1", "--if-change", "2")
    done = run("promote", "churn", "2", "--if-change", "2", code=1)
    assert "changed meanwhile" in done.output
    assert project.models.states("churn").production.version == 1  # type: ignore[union-attr]


def test_what_cannot_be_published_stays_in_the_lake_and_says_so(project: Project) -> None:
    register(project, 1.0)
    Path("paimon-features.toml").write_text(
        '[project]\nname = "shop"\n[serve]\nbundle = "online"\n'
        '[online]\nurl = "redis://127.0.0.1:1/0"\nconnect_timeout = "100ms"\nretries = 0\n'
    )
    done = run("promote", "churn", "1", code=1)
    assert "'paimon-features models promote --publish' publishes it" in done.output
    Path("paimon-features.toml").write_text('[project]\nname = "shop"\n')
    assert "published churn@1" in run("promote", "--publish").output


OFFLINE = """
import paimon_features as pf

rows = pf.TableSource("rows", schema={"customer_id": pf.Int64, "t": pf.Int64, "x": pf.Float64},
                      event_time="t")
customer = pf.Entity("customer", keys={"customer_id": pf.Int64})
profile = pf.TableView("profile", source=rows, entity=customer)
churn_v1 = pf.FeatureService("churn_v1", [profile])
"""


def test_a_model_over_features_that_cannot_be_served_is_not_promoted(project: Project) -> None:
    register(project, 1.0)
    Path("features.py").write_text(OFFLINE)
    for state in (["--as", "shadow"], []):
        refused = run("promote", "churn", "1", *state, code=2).output
        assert "it reads feature service 'churn_v1', which cannot be served: table view" in refused
    assert run("promote", "churn", "1", "--as", "archived").exit_code == 0
