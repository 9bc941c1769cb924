"""``init``, ``check installation`` and ``jars`` as a user runs them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from paimon_features.cli import cli
from paimon_features.core.configuration.project_config import read_config
from paimon_features.core.installation.jars import DEFAULT_GROUPS, FetchedJar, locked_jars
from paimon_features.definitions import load_definitions


def test_init_writes_a_project_whose_settings_and_definitions_are_right(tmp_path: Path) -> None:
    folder = tmp_path / "Churn-2011"
    answer = CliRunner().invoke(cli, ["init", str(folder)])
    assert answer.exit_code == 0, answer.output
    assert f"cd {folder} && paimon-features plan" in answer.output
    config = read_config(folder)
    assert config.name == "churn_2011"
    assert config.warehouse == str(folder.resolve() / "lake")
    assert config.flink.checkpoint_interval_ms == 1_000
    definitions = load_definitions(config.definitions)
    assert list(definitions.services) == ["churn_v1"]
    assert [feature.name for feature in definitions.view("customer_spend").compiled.features] == [
        "sum_amount_1h",
        "sum_amount_1d",
        "sum_amount_30d",
        "count_7d",
        "decayed_sum_amount_h1d_30d",
        "last_country_30d",
    ]


def test_what_init_writes_are_the_defaults_of_the_settings(tmp_path: Path) -> None:
    folder = tmp_path / "shop"
    CliRunner().invoke(cli, ["init", str(folder)])
    written = read_config(folder)
    (folder / "paimon-features.toml").write_text("")
    assert read_config(folder) == written


def test_init_never_overwrites_and_writes_nothing_then(tmp_path: Path) -> None:
    (tmp_path / "features.py").write_text("# mine")
    answer = CliRunner().invoke(cli, ["init", str(tmp_path)])
    assert answer.exit_code == 2
    assert f"{tmp_path} already contains features.py; nothing was written" in answer.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["features.py"]
    assert (tmp_path / "features.py").read_text() == "# mine"


@pytest.fixture
def healthy_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No jobs run here, so that neither Java nor jars are needed; a cache of our own."""
    monkeypatch.setattr(
        "paimon_features.cli.checks.check_installation.has_extra", lambda extra: False
    )
    monkeypatch.setenv("PAIMON_FEATURES_CACHE", str(tmp_path / "cache"))
    return tmp_path


def test_doctor_is_content_with_a_machine_that_has_what_its_install_needs(
    healthy_machine: Path,
) -> None:
    answer = CliRunner().invoke(cli, ["check", "installation", "--project", str(healthy_machine)])
    assert answer.exit_code == 0, answer.output
    assert "OK       Python: 3.1" in answer.stdout
    assert "MISSING" not in answer.stdout


def test_doctor_exits_1_and_says_what_to_do_where_something_is_missing(
    healthy_machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "paimon_features.cli.checks.check_installation.has_extra", lambda extra: True
    )
    project = healthy_machine / "shop"
    CliRunner().invoke(cli, ["init", str(project)])
    monkeypatch.setenv("PAIMON_FEATURES_ONLINE_URL", "redis://127.0.0.1:1/0")
    answer = CliRunner().invoke(cli, ["check", "installation", "--project", str(project), "--json"])
    assert answer.exit_code == 1
    document = json.loads(answer.stdout)
    assert document["healthy"] is False
    checks = {check["name"]: check for check in document["checks"]}
    assert checks["project"]["found"] == f"shop in {project}"
    assert checks["warehouse"]["state"] == "ok"
    assert checks["online store"]["state"] == "missing"
    assert checks["jars flink"]["remedy"] == "run: paimon-features jars --group flink"


def test_doctor_reports_settings_that_are_wrong(healthy_machine: Path) -> None:
    (healthy_machine / "paimon-features.toml").write_text("[lake]\nwarhouse = 'lake'\n")
    answer = CliRunner().invoke(cli, ["check", "installation", "--project", str(healthy_machine)])
    assert answer.exit_code == 1
    assert "unknown key 'warhouse'" in answer.stdout


@pytest.fixture
def fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[FetchedJar]:
    """Jars of a few bytes, one of them just downloaded."""
    jars = []
    for index, jar in enumerate(locked_jars(DEFAULT_GROUPS)):
        path = tmp_path / jar.file_name
        path.write_bytes(b"x" * 1_500_000)
        jars.append(FetchedJar(jar, path, "cache" if index else "download"))

    def details(groups: tuple[str, ...], progress: object) -> list[FetchedJar]:
        return [item for item in jars if item.jar.group in groups]

    monkeypatch.setattr("paimon_features.cli.jars.fetch_jar_details", details)
    return jars


def test_jars_tells_of_each_jar_its_size_and_where_it_came_from(fetched: list[FetchedJar]) -> None:
    answer = CliRunner().invoke(cli, ["jars"])
    assert answer.exit_code == 0
    lines = answer.stdout.splitlines()
    assert len(lines) == len(fetched)
    assert lines[0].split() == [
        fetched[0].jar.coordinate,
        "1.5",
        "MB",
        "download",
        str(fetched[0].path),
    ]


def test_jars_as_json_is_one_document_with_the_hashes(fetched: list[FetchedJar]) -> None:
    answer = CliRunner().invoke(cli, ["jars", "--group", "kafka", "--json"])
    (entry,) = json.loads(answer.stdout)
    (kafka,) = (item for item in fetched if item.jar.group == "kafka")
    assert entry == {
        "group": "kafka",
        "coordinate": kafka.jar.coordinate,
        "sha256": kafka.jar.sha256,
        "origin": "cache",
        "size_bytes": 1_500_000,
        "path": str(kafka.path),
    }


def test_jars_is_quiet_when_there_was_nothing_to_do(fetched: list[FetchedJar]) -> None:
    assert CliRunner().invoke(cli, ["jars", "--quiet", "--group", "kafka"]).stdout == ""
    assert CliRunner().invoke(cli, ["jars", "--quiet"]).stdout != ""


def test_jars_as_a_class_path_are_paths_and_nothing_else(fetched: list[FetchedJar]) -> None:
    answer = CliRunner().invoke(cli, ["jars", "--group", "flink", "--class-path"])
    wanted = [str(item.path) for item in fetched if item.jar.group == "flink"]
    assert answer.stdout == ":".join(wanted) + "\n"


def test_an_unknown_group_of_jars_is_wrong_use_and_shows_the_known_ones() -> None:
    answer = CliRunner().invoke(cli, ["jars", "--group", "kafak"])
    assert answer.exit_code == 2
    assert "'kafka'" in answer.stderr


@pytest.mark.parametrize(
    ("url", "state", "found"),
    [
        ("memory://", "ok", "each process has its own"),
        ("redis+cluster://:secret@127.0.0.1:1", "missing", "127.0.0.1:1: Connection refused"),
        ("http://:secret@h", "missing", "expected redis://"),
    ],
)
def test_doctor_looks_at_a_store_of_any_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, state: str, found: str
) -> None:
    folder = tmp_path / "shop"
    CliRunner().invoke(cli, ["init", str(folder)])
    monkeypatch.setenv("PAIMON_FEATURES_ONLINE_URL", url)
    output = (
        CliRunner()
        .invoke(cli, ["check", "installation", "--project", str(folder), "--json"])
        .output
    )
    (check,) = [c for c in json.loads(output)["checks"] if c["name"] == "online store"]
    assert (check["state"], found in check["found"]) == (state, True), check
    assert "secret" not in output
