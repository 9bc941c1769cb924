"""MLflow has a copy of versions and promotions, and stops nothing."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mlflow", reason="pip install mlflow-skinny")
pytest.importorskip("sqlalchemy", reason="a database of MLflow needs sqlalchemy")

from paimon_features.core.process.ports import free_ports
from paimon_features.models.mlflow_tracking import URI, Tracker
from paimon_features.project import Project
from tests.models.networks import manifest, network
from tests.waiting import LONG_S

HISTORY = [
    {"batch": 1.0, "train_loss": 0.7},
    {"batch": 2.0, "train_loss": 0.5},
    {"batch": 2.0, "val_loss": 0.6},
]


@pytest.fixture(params=["database", "server"])
def address(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """Where MLflow is; a real server, which takes half a minute to start, in 'make chaos'."""
    monkeypatch.chdir(tmp_path)  # artifacts of a database are in the working directory
    if request.param == "database":
        yield f"sqlite:///{tmp_path / 'mlflow.db'}"
        return
    if "PAIMON_FEATURES_KILLS" not in os.environ:
        pytest.skip("a server of MLflow is started by 'make chaos'")
    pytest.importorskip("flask")
    pytest.importorskip("uvicorn")
    folder = tmp_path / "server"
    folder.mkdir()
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port",
               str(port), "--workers", "1", "--backend-store-uri", f"sqlite:///{folder / 'db'}",
               "--artifacts-destination", str(folder / "artifacts")]  # fmt: skip
    environment = {name: value for name, value in os.environ.items() if name != URI}
    environment["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] = "false"
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=log, stderr=log, start_new_session=True
        )
    try:
        for _ in range(600):
            assert process.poll() is None, (folder / "log").read_text()[-2_000:]
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2):
                    break
            except OSError:
                time.sleep(0.2)
        else:
            pytest.fail((folder / "log").read_text()[-2_000:])
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def project_with(folder: Path, mlflow: str | None) -> Project:
    (folder / "features.py").write_text("")
    models = "" if mlflow is None else f'[models]\nmlflow = "{mlflow}"\n'
    (folder / "paimon-features.toml").write_text(f'[project]\nname = "shop"\n{models}')
    return Project.open(folder)


def register(project: Project, weight: float, history: Any = ()) -> None:
    files = {
        "network.onnx": network(weight).SerializeToString(),
        "config.json": b'{"name": "churn", "model": {"dim": 16}, "seed": 3}',
    }
    project.models.register(manifest(), files, history)


@pytest.mark.filterwarnings("ignore")  # of MLflow
def test_versions_are_runs_and_promotions_are_aliases(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.delenv(URI, raising=False)
    monkeypatch.setattr("paimon_features.models.mlflow_tracking.TIMEOUT_S", LONG_S)
    # the first version is from before there was a server
    register(project_with(tmp_path, None), 1.0)
    project = project_with(tmp_path, address)
    register(project, 2.0, HISTORY)
    project.models.promote("churn", 1)
    assert [each for each in caplog.records if each.levelno >= logging.WARNING] == []

    import mlflow

    client = mlflow.MlflowClient(tracking_uri=address, registry_uri=address)
    versions = {
        each.tags["paimon_features.version"]: each
        for each in client.search_model_versions("name = 'shop.churn'")
    }
    states = {number: each.tags["paimon_features.state"] for number, each in versions.items()}
    assert states == {"1": "production", "2": "candidate"}
    assert str(client.get_model_version_by_alias("shop.churn", "production").version) == str(
        versions["1"].version
    )
    run = client.get_run(versions["2"].run_id)
    assert run.info.run_name == "churn@2"
    assert run.info.status == "FINISHED"
    assert run.data.params.items() >= {("model.dim", "16"), ("seed", "3")}
    steps = client.get_metric_history(run.info.run_id, "train_loss")
    assert [(each.step, each.value) for each in steps] == [(1, 0.7), (2, 0.5)]
    assert {each.path for each in client.list_artifacts(run.info.run_id, "model")} == {
        "model/network.onnx", "model/config.json", "model/manifest.json"
    }  # fmt: skip
    # aliases follow
    project.models.promote("churn", 2)
    project.models.promote("churn", 1, "challenger", traffic=1_000)
    aliases = client.get_registered_model("shop.churn").aliases
    assert {alias: int(number) for alias, number in aliases.items()} == {
        "production": int(versions["2"].version), "challenger": int(versions["1"].version)
    }  # fmt: skip
    project.models.promote("churn", 1, "archived")
    assert set(client.get_registered_model("shop.churn").aliases) == {"production"}


@pytest.mark.filterwarnings("ignore")
def test_a_server_that_is_away_is_reported_without_its_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (port,) = free_ports(1)  # nobody listens
    monkeypatch.setenv(URI, f"http://user:hunter22@127.0.0.1:{port}")
    project = project_with(tmp_path, None)
    with caplog.at_level(logging.WARNING, "paimon_features"):
        register(project, 1.0)
        project.models.promote("churn", 1)
    states = project.models.states("churn")
    assert states.production is not None
    texts = [record.getMessage() for record in caplog.records
             if record.name == "paimon_features.models.mlflow_tracking"]  # fmt: skip
    assert [text.split(" is not in MLflow")[0] for text in texts] == [
        "model churn@1", "model 'churn'"
    ]  # fmt: skip
    assert "hunter22" not in " ".join(texts)


def test_a_server_that_never_answers_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv(URI, raising=False)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        project = project_with(tmp_path, f"http://127.0.0.1:{silent.getsockname()[1]}")
        made = manifest()
        with caplog.at_level(logging.WARNING, "paimon_features"):
            Tracker(project.config, timeout_s=0.2).registered(made, lambda name: b"")
    assert "no end within 0.2 s" in caplog.text
