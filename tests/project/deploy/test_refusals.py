"""What cannot run on Kubernetes, or would publish a secret, is refused with a remedy."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from paimon_features.cli import cli
from tests.project.deploy.projects import base_project, full_project

CLAIM = ("--warehouse-volume", "lake", "--open")


def refused(project: Path, *options: str) -> str:
    done = CliRunner().invoke(cli, ["deploy", "render", "--project", str(project), *options])
    assert done.exit_code == 2, done.output
    assert done.stdout == ""
    return done.stderr


def change(project: Path, table: str, line: str) -> Path:
    """Add a line to a table of the configuration."""
    path = project / "paimon-features.toml"
    text = path.read_text()
    header = f"[{table}]\n"
    key = line.partition("=")[0].strip()
    lines = [each for each in text.splitlines() if not each.startswith(f"{key} =")]
    text = "\n".join(lines) + "\n"
    text = (
        text.replace(header, f"{header}{line}\n") if header in text else f"{text}{header}{line}\n"
    )
    path.write_text(text)
    return project


def test_a_warehouse_of_this_host_needs_a_volume(tmp_path: Path) -> None:
    project = base_project(tmp_path)
    output = refused(project, "--open")
    assert f"the warehouse {project / 'lake'} is a folder of this host" in output
    assert "--warehouse-volume CLAIM" in output


def test_a_remote_warehouse_needs_a_volume_for_the_state_only(tmp_path: Path) -> None:
    project = full_project(tmp_path)
    assert "--state-volume CLAIM" in refused(project)
    output = refused(project, "--state-volume", "state", "--warehouse-volume", "lake")
    assert "the warehouse s3://lake/shop is not a folder" in output


@pytest.mark.parametrize(
    ("table", "line", "message"),
    [
        ("online", 'url = "redis://shop:hunter22@db:6379/0"', "[online] url contains a password"),
        ("flink", 'wire = "redis://:hunter22@db:6379/1"', "[flink] wire contains a password"),
        ("lake.options", '"s3.secret-key" = "hunter22"', "[lake.options] s3.secret-key is a"),
        ("lake.options", '"s3.access-key" = "hunter22"', "[lake.options] s3.access-key is a"),
        ("online", 'url = "memory://"', "pods share nothing"),
        ("models", 'mlflow = "https://me:hunter22@mlflow"', "[models] mlflow contains a password"),
        ("lake.options", '"s3.endpoint.bogus" = "x"', "is a folder; options and side_folder apply"),
        ("online", "retries = 99", "[online] retries = 99; expected"),
        ("online", 'url = "http://db:6379"', "expected"),
        ("kafka", 'brokers = "kafka"', "'kafka' is not host:port"),
        ("inputs.retail", 'delimeter = ";"', "did you mean 'delimiter'"),
        ("lineage", 'openlineage = "events.jsonl"', "a file of one host, and pods have none"),
        ("serve", 'bundle = "shop.bundle"', "set [serve] bundle = 'online'"),
    ],
)
def test_settings_that_pods_must_not_or_cannot_have(
    table: str, line: str, message: str, tmp_path: Path
) -> None:
    error = refused(change(base_project(tmp_path), table, line), *CLAIM)
    assert message in error
    assert "hunter22" not in error


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('"s3.endpoint.bogus" = "x"', "unknown option 's3.endpoint.bogus'"),
        ('"addressing-style" = "sideways"', "addressing style 'sideways'"),
    ],
)
def test_what_plan_refuses_of_a_warehouse_is_not_rendered(
    line: str, message: str, tmp_path: Path
) -> None:
    project = change(full_project(tmp_path), "lake.options", line)
    assert message in refused(project, "--state-volume", "state")
    planned = CliRunner().invoke(cli, ["plan", "--project", str(project)])
    assert planned.exit_code == 2
    assert message in planned.stderr


def test_an_open_server_is_asked_for(tmp_path: Path) -> None:
    output = refused(base_project(tmp_path), "--warehouse-volume", "lake")
    assert "[serve] tokens" in output
    assert "--open" in output


def test_a_module_of_the_definitions_must_be_among_the_files(tmp_path: Path) -> None:
    project = base_project(tmp_path)
    (project / "shop_units_for_render.py").write_text("CENTS = 100\n")
    features = project / "features.py"
    features.write_text(features.read_text() + "\nimport shop_units_for_render\n")
    output = refused(project, *CLAIM)
    assert "add --file shop_units_for_render.py" in output
    options = ["deploy", "render", "--project", str(project), *CLAIM]
    done = CliRunner().invoke(cli, [*options, "--file", "shop_units_for_render.py"])
    assert done.exit_code == 0, done.output
    assert "mountPath: /project/shop_units_for_render.py" in done.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--kafka", "retail=kafka/retail"), "expected SOURCE=HOST:PORT,.../TOPIC"),
        (("--kafka", "retial=kafka:9092/retail"), "retial"),
        (("--iterate", "Train=train.py:build"), "expected NAME=FILE.py:FUNCTION"),
        (("--iterate", "train=missing.py:build"), "is not a file in the project's folder"),
        (("--file", "/etc/hostname"), "is not a file in the project's folder"),
        (("--namespace", "My Shop"), "not a name that Kubernetes accepts"),
        (("--tag", "a b"), "expected a tag of an image"),
        (("--set", "replicas=11"), "max_replicas = 10; expected at least replicas, 11"),
        (("--set", "replicas=0"), "replicas = 0; expected 1 or more"),
        (("--set", "slots=many"), "--set slots=many: expected an integer of 1 or more"),
        (("--set", "slots"), "--set slots: expected NAME=VALUE"),
        (
            ("--set", "replica=3"),
            "unknown setting 'replica' of --set; available: flink_service_account,",
        ),
        (("--set", "lake_secret=A b"), "not a name that Kubernetes accepts"),
    ],
)
def test_wrong_options_are_named(options: tuple[str, ...], message: str, tmp_path: Path) -> None:
    assert message in refused(base_project(tmp_path), *CLAIM, *options)


def test_a_source_has_one_topic(tmp_path: Path) -> None:
    twice = ("--kafka", "retail=kafka:9092/a", "--kafka", "retail=kafka:9092/b")
    output = refused(base_project(tmp_path), *CLAIM, *twice)
    assert "two objects would be FlinkDeployment 'shop-ingest-retail'" in output


def test_too_large_a_project_is_refused(tmp_path: Path) -> None:
    project = base_project(tmp_path)
    (project / "large.bin").write_bytes(b"\xff" * 1_000_001)
    assert "a ConfigMap at most 1,000,000" in refused(project, *CLAIM, "--file", "large.bin")


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    output = refused(base_project(tmp_path), *CLAIM, "--into", str(tmp_path / "file" / "out"))
    assert "cannot write into" in output


def test_the_token_file_is_not_published(tmp_path: Path) -> None:
    project = change(base_project(tmp_path), "serve", 'tokens = "tokens.toml"')
    (project / "tokens.toml").write_text("")
    output = refused(project, *CLAIM, "--file", "tokens.toml")
    assert "tokens.toml is the file of [serve] tokens" in output


def test_a_rest_catalog_needs_its_token_from_a_secret(tmp_path: Path) -> None:
    project = change(base_project(tmp_path), "lake.catalog", 'uri = "https://catalog"')
    change(project, "lake.catalog", 'warehouse = "shop"')
    output = refused(project, *CLAIM)
    assert "a Secret with the entry PAIMON_FEATURES_CATALOG_TOKEN by --set lake_secret" in output
    options = ["deploy", "render", "--project", str(project), *CLAIM, "--set", "lake_secret=lake"]
    assert CliRunner().invoke(cli, options).exit_code == 0
    change(project, "lake.catalog", 'uri = "https://user:hunter2@catalog"')
    output = refused(project, *CLAIM, "--set", "lake_secret=lake")
    assert "[lake.catalog] uri contains a password" in output
    assert "hunter2" not in output


@pytest.mark.parametrize("digest", ["jobs", "jobs=latest", f"training=sha256:{'0' * 64}"])
def test_a_digest_is_one_of_an_image_that_runs_there(tmp_path: Path, digest: str) -> None:
    output = refused(base_project(tmp_path), *CLAIM, "--digest", digest)
    assert "expected IMAGE=sha256:... with 64 hexadecimal digits" in output
