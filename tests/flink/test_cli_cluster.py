"""The command ``cluster`` without a running cluster; test_cluster_flink has a real one."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from paimon_features.core.process.flink_rest import JobSummary
from paimon_features.flink.cluster import ClusterRecord, ClusterShape, ClusterStatus, LocalCluster
from paimon_features.flink.supervisor import ProcessState
from tests.commands import invoke

run = partial(invoke, "cluster")


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "paimon-features.toml").write_text('[project]\nname = "shop"\n')
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_help_shows_the_life_cycle_of_a_cluster() -> None:
    lines = [line.strip() for line in run("--help").output.splitlines()]
    at = lines.index("paimon-features cluster start --slots 8")
    assert lines[at : at + 4] == [
        "paimon-features cluster start --slots 8",
        "paimon-features submit customer_spend --cluster",
        "paimon-features cluster                  # also with --json",
        "paimon-features cluster stop",
    ]
    for command in ("start", "stop", "run"):
        assert f"paimon-features cluster {command}" in run(command, "--help").output


def test_without_a_cluster_status_exits_with_one_and_stop_does_nothing() -> None:
    found = run()
    assert (found.exit_code, found.stdout) == (
        1,
        "no cluster runs; 'paimon-features cluster start' starts one\n",
    )
    as_json = run("--json")
    assert as_json.exit_code == 1
    assert json.loads(as_json.stdout)["running"] is False
    stopped = run("stop")
    assert (stopped.exit_code, stopped.stdout) == (0, "no cluster runs\n")
    assert json.loads(run("stop", "--json").stdout) == {"stopped_pids": []}


def test_invalid_sizes_are_rejected_by_name_before_anything_starts() -> None:
    for option, value, message in (
        ("--task-managers", "0", "task_managers = 0; expected at least 1"),
        ("--slots", "0", "slots = 0; expected at least 1"),
        ("--memory-mb", "500", "task_manager_mb = 500; expected at least 1024"),
        ("--off-heap-mb", "-1", "off_heap_mb = -1; expected at least 0"),
        ("--off-heap-mb", "810", "off_heap_mb = 810; expected at most 809"),
    ):
        done = run("start", option, value)
        assert done.exit_code == 2
        assert message in done.stderr


def test_outside_a_project_there_is_no_cluster(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    done = run()
    assert done.exit_code == 2
    assert "'paimon-features init' creates a project" in done.stderr


def test_size_options_determine_the_cluster_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes: list[ClusterShape | None] = []

    def start(
        self: LocalCluster, shape: ClusterShape | None = None, ha: str | None = None
    ) -> ClusterRecord | None:
        shapes.append(shape)
        return None

    monkeypatch.setattr(LocalCluster, "start", start)
    run("start")
    run("start", "--slots", "3", "--memory-mb", "1500")
    assert shapes == [None, ClusterShape(slots=3, task_manager_mb=1500)]


def test_a_status_shows_jobs_and_restarted_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    job = JobSummary("ab" * 16, "ingest retail", "RUNNING", 1_291_191_960_000, None)
    processes = (
        ProcessState("jobmanager", 11),
        ProcessState("taskmanager-1", None, 1, -9, 1_291_191_960_000),
        ProcessState("taskmanager-2", 13, 3, 1, 1_291_191_960_000),
    )
    found = ClusterStatus(
        address="127.0.0.1:8081",
        slots_total=8,
        slots_free=7,
        pids=(11, 13),
        processes=processes,
        supervisor=10,
        jobs=(job,),
        log_dir="/log",
        ha="zookeeper://zk:2181",
        running=True,
    )
    monkeypatch.setattr(LocalCluster, "status", lambda self: found)
    assert run().stdout.splitlines() == [
        "address  127.0.0.1:8081   (http://127.0.0.1:8081 shows its jobs)",
        "slots    7 free of 8",
        "pids     11, 13",
        "ha       zookeeper://zk:2181",
        "process  taskmanager-1: waits for its restart, restarted once, last after signal 9",
        "process  taskmanager-2: pid 13, restarted 3 times, last after exit code 1",
        "logs     /log",
        f"job      {'ab' * 16}  RUNNING    since 2010-12-01 08:26:00 UTC  ingest retail",
    ]
    starting = replace(found, starting=True, jobs=())
    monkeypatch.setattr(LocalCluster, "status", lambda self: starting)
    done = run()
    assert done.exit_code == 0
    assert "slots    the job manager does not answer; it is being restarted" in done.stdout


def test_an_address_of_high_availability_is_checked_before_anything_starts() -> None:
    done = run("start", "--ha", "etcd://host:2379")
    assert done.exit_code == 2
    assert "'etcd://host:2379': expected zookeeper://HOST:PORT" in done.stderr


def test_an_application_has_an_id_that_flink_accepts() -> None:
    done = run("run", "application", "tiles", "--view", "spend", "--job-id", "first")
    assert done.exit_code == 2
    assert "'first' is not 32 hexadecimal digits" in done.output
    unknown = run("run", "application", "tails", "--view", "spend")
    assert unknown.exit_code == 2
    assert "unknown program 'tails'; available: history, ingest, iterate, tiles" in unknown.output
    nothing = run("run", "application")
    assert "pass the PROGRAM of the application: tiles, ingest" in nothing.output


def test_an_option_of_another_process_is_refused() -> None:
    for arguments, message in (
        (("jobmanager", "--address", "h", "--slotz", "3"), "takes no --slotz; did you mean"),
        (("jobmanager", "--address", "h", "--job-id", "a" * 32), "'--job-id' does not apply to"),
        (("application", "tiles", "--slots", "3"), "'--slots' does not apply to"),
        (("jobmanager",), "--address is required"),
    ):
        done = run("run", *arguments)
        assert done.exit_code == 2
        assert message in done.output
