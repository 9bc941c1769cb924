"""The supervisor of a local cluster, with programs that end in place of Flink's."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from paimon_features.core.errors import JobError
from paimon_features.flink import cluster as module
from paimon_features.flink.cluster import ClusterShape, LocalCluster
from paimon_features.flink.supervisor import TASKS, read_states
from tests.os_processes import is_running
from tests.waiting import await_true

pytest.importorskip("pyflink", reason="pip install 'paimon-features[flink]'")

SLEEPER = [sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)"]
Start = Callable[[dict[str, list[str]]], subprocess.Popen[bytes]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a supervisor of programs by name."""
    started: list[subprocess.Popen[bytes]] = []

    def run(programs: dict[str, list[str]]) -> subprocess.Popen[bytes]:
        tasks = [{"name": name, "command": command} for name, command in programs.items()]
        (tmp_path / TASKS).write_text(json.dumps({"tasks": tasks}))
        command = [sys.executable, "-m", "paimon_features.flink.supervisor", *2 * [str(tmp_path)]]
        started.append(subprocess.Popen(command))
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.wait()


def pids(folder: Path) -> list[int | None]:
    return [state.pid for state in read_states(folder)]


def all_run(folder: Path, count: int) -> bool:
    found = pids(folder)
    return len(found) == count and all(map(is_running, found))


def test_a_killed_process_is_started_again_and_the_others_go_on(
    tmp_path: Path, start: Start
) -> None:
    process = start({"a": SLEEPER, "b": SLEEPER})
    await_true(lambda: all_run(tmp_path, 2))
    killed, other = pids(tmp_path)
    assert killed is not None
    os.kill(killed, signal.SIGKILL)
    await_true(lambda: read_states(tmp_path)[0].restarts == 1)
    await_true(lambda: all_run(tmp_path, 2))
    a, b = read_states(tmp_path)
    assert (a.exit_code, b.restarts, b.pid) == (-signal.SIGKILL, 0, other)
    assert a.pid != killed
    process.send_signal(signal.SIGTERM)
    assert process.wait(120) == 0
    assert not any(map(is_running, [a.pid, b.pid]))
    log = (tmp_path / "supervisor.log").read_text()
    assert f"a (pid {killed}) has ended with -9; it is started again in 0.5 s" in log


def test_the_wait_before_each_restart_doubles(tmp_path: Path, start: Start) -> None:
    start({"fails": [sys.executable, "-I", "-S", "-c", "raise SystemExit(3)"]})
    await_true(lambda: [s.restarts >= 3 for s in read_states(tmp_path)] == [True])
    (state,) = read_states(tmp_path)
    assert state.exit_code == 3
    log = (tmp_path / "supervisor.log").read_text()
    assert [f"again in {wait} s" in log for wait in (0.5, 1, 2)] == [True] * 3


@pytest.mark.skipif(sys.platform != "linux", reason="the parent's death is a signal on Linux only")
def test_nothing_outlives_a_killed_supervisor(tmp_path: Path, start: Start) -> None:
    process = start({"a": SLEEPER, "b": SLEEPER})
    await_true(lambda: all_run(tmp_path, 2))
    found = pids(tmp_path)
    process.kill()
    process.wait()
    await_true(lambda: not any(map(is_running, found)))


def test_a_cluster_that_fails_to_start_leaves_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    (home / "bin").mkdir(parents=True)
    (home / "conf").mkdir()
    for name in ("log4j.properties", "config.yaml"):
        (home / "conf" / name).touch()
    (home / "bin" / "jobmanager.sh").write_text("echo no Java here; exit 3")
    (home / "bin" / "taskmanager.sh").write_text("exec sleep 600")
    monkeypatch.setattr(module, "flink_home", lambda: home)
    monkeypatch.setattr(module, "script_environment", lambda programs: dict(os.environ))
    started: list[int] = []
    supervisor = module._supervisor

    def noted(folder: Path, log_dir: Path, environment: Mapping[str, str]) -> int:
        started.append(supervisor(folder, log_dir, environment))
        return started[-1]

    monkeypatch.setattr(module, "_supervisor", noted)
    local = LocalCluster(tmp_path / "state")
    with pytest.raises(JobError, match="did not start: jobmanager: .* last after exit code 3"):
        local.start(ClusterShape())
    assert not is_running(started[0])
    assert local.record() is None
    assert not local.status().running
    assert "no Java here" in (local.log_dir / "jobmanager.out").read_text()
