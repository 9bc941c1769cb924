"""The entry point of containers: Flink's scripts find this installation's Flink, Java and jars."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from paimon_features.flink.cluster import PYTHON_DRIVER
from paimon_features.flink.gateway import flink_home

pytestmark = pytest.mark.flink

ROOT = Path(__file__).parents[2]


def run(command: str, folder: Path = ROOT, **variables: str) -> str:
    """Run a command as Kubernetes does, in a folder; returns its output."""
    done = subprocess.run(
        [sys.executable, "-m", "paimon_features.flink.entrypoint", "bash", "-c", command],
        cwd=folder,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_scripts_of_kubernetes_are_on_path_and_read_its_configuration(tmp_path: Path) -> None:
    names = "kubernetes-jobmanager.sh kubernetes-taskmanager.sh jobmanager.sh standalone-job.sh"
    found = run(f"command -v {names}", TMPDIR=str(tmp_path)).split()
    assert found == [str(flink_home() / "bin" / name) for name in names.split()]
    output = run("echo $FLINK_CONF_DIR $FLINK_LOG_DIR; command -v python", TMPDIR=str(tmp_path))
    # only the temporary folder is written: the root file system of a container is read-only
    assert output.split() == [
        "/opt/flink/conf",
        f"{tmp_path}/flink-log",
        f"{tmp_path}/flink-bin/python",
    ]
    assert run("echo $FLINK_CONF_DIR", FLINK_CONF_DIR="/etc/flink") == "/etc/flink\n"


def test_java_runs_with_opened_modules_and_finds_the_class_that_runs_python(tmp_path: Path) -> None:
    (tmp_path / "Modules.java").write_text(
        "public class Modules { public static void main(String[] names) throws Exception {"
        f' Class.forName("{PYTHON_DRIVER}", false, Modules.class.getClassLoader());'
        ' System.out.println(java.util.List.class.getModule().isOpen("java.util",'
        " Modules.class.getModule())); } }"
    )
    classes = f"{tmp_path}:$HADOOP_CLASSPATH:{flink_home()}/lib/*"
    command = f'"$JAVA_HOME/bin/java" -cp "{classes}" {tmp_path}/Modules.java'
    assert run(command, TMPDIR=str(tmp_path)) == "true\n"


def test_what_a_project_on_s3_needs_is_there(tmp_path: Path) -> None:
    (tmp_path / "paimon-features.toml").write_text(
        '[project]\nname = "shop"\n[lake]\nwarehouse = "s3://lake/shop"\n'
        '[flink]\ncheckpoints = "s3://lake/jobs"\n'
    )
    output = run(
        "echo $HADOOP_CLASSPATH; ls $FLINK_PLUGINS_DIR", tmp_path, TMPDIR=str(tmp_path),
        PYTHONPATH=str(ROOT),
    )  # fmt: skip
    jars, *plugins = output.splitlines()
    assert "paimon-s3" in jars
    assert "s3-checkpoints" in plugins
    assert "paimon-s3" not in run("echo $HADOOP_CLASSPATH", TMPDIR=str(tmp_path))


def test_without_a_command_it_explains_itself() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "paimon_features.flink.entrypoint"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "kubernetes.entry.path" in done.stderr
