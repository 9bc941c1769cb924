"""``jobs iterate``: programs by name, what is shown while they run, and what they leave."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from paimon_features.cli import cli
from paimon_features.cli.jobs_iterate import Watch
from paimon_features.core.configuration.project_config import FlinkConfig
from paimon_features.core.errors import ConfigurationError
from paimon_features.flink.stream_jobs import StreamJob, list_stream_jobs
from paimon_features.iteration.program_file import load_program
from paimon_features.project import Project
from tests.flink.iteration.halving_program import PROGRAM
from tests.long_cases import quick_cases
from tests.waiting import await_true


@pytest.fixture
def program(tmp_path: Path) -> Path:
    (tmp_path / "paimon-features.toml").write_text(
        '[project]\nname = "shop"\n[flink]\ncheckpoint_interval = "200ms"\n'
    )
    path = tmp_path / "halve_it.py"
    path.write_text(PROGRAM)
    return path


def test_a_program_is_found_by_file_or_by_module(program: Path) -> None:
    assert load_program(str(program)).__name__ == "build"
    assert load_program(f"{program}:build").__name__ == "build"
    assert (
        load_program("paimon_features.iteration.program_file:load_program").__name__
        == "load_program"
    )


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("there/is/none.py", "no such file"),
        ("there_is.none:build", "no module 'there_is.none'"),
        (
            "paimon_features.iteration.program_file:nothing",
            "'nothing' of .*; available: load_program",
        ),
    ],
)
def test_a_missing_program_is_named(name: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        load_program(name)


def test_the_watched_line_shows_epoch_loss_and_rate() -> None:
    shown: list[str] = []
    watch = Watch(lambda progress: shown.append(str(progress)))
    watch([{}])
    watch([{"state": "running", "epoch": 10, "at": 100.0, "loss": 0.5, "records": 4}])
    watch([{"state": "running", "epoch": 60, "at": 100.5, "loss": 0.25, "records": 4}])
    assert "starting" in shown[0]
    assert "epoch 60  loss 0.25  100.0 epochs/s  4 records  running" in shown[2]


def test_conflicting_options_are_rejected(program: Path) -> None:
    arguments = ["jobs", "iterate", str(program), "--detach", "--project", str(program.parent)]
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 2
    assert "--detach requires --cluster" in result.output


def test_a_job_on_a_cluster_needs_a_wire_and_never_takes_the_online_store(program: Path) -> None:
    arguments = ["jobs", "iterate", str(program), "--cluster", "127.0.0.1:1"]
    result = CliRunner().invoke(cli, [*arguments, "--project", str(program.parent)])
    assert result.exit_code == 2
    assert "pass --wire redis://HOST:6379/0, or set [flink] wire" in result.stderr
    choose_wire = pytest.importorskip("paimon_features.iteration.flink.job_settings").choose_wire
    configured = FlinkConfig(wire="redis://127.0.0.1:6379/1")
    assert choose_wire(None, configured, "127.0.0.1:1") == configured.wire
    assert choose_wire("memory", configured, "127.0.0.1:1") == "memory"
    assert choose_wire(None, FlinkConfig(), None) == "memory"


@pytest.mark.flink
def test_a_program_runs_from_the_command_line(program: Path) -> None:
    project = ["--project", str(program.parent)]
    result = CliRunner().invoke(cli, ["jobs", "iterate", str(program), "--json", *project])
    assert result.exit_code == 0, result.output
    assert result.stderr == "", "libraries have nothing to say in a normal run"
    reported = json.loads(result.stdout)
    assert reported["outputs"] == {"model": 1}
    assert reported["epochs"] == [10]  # 64 / 2**10 is the first that is at most 0.1
    listed = CliRunner().invoke(cli, ["jobs", "--json", *project])
    (job,) = json.loads(listed.stdout)
    assert (job["kind"], job["state"], job["where"]) == ("iteration", "FINISHED", "local")
    assert job["writes"] == [str(Path(reported["output"]) / "model")]


@pytest.mark.long
@pytest.mark.flink
def test_an_interrupted_iteration_resumes_as_its_message_says(program: Path) -> None:
    # half a second a round: time for a checkpoint, and for Ctrl-C
    slow = program.with_name("slowly.py")
    slow.write_text(PROGRAM.replace("value = self", "__import__('time').sleep(0.5); value = self"))
    state = program.parent / ".paimon-features"
    project = ["--project", str(program.parent)]

    running: list[dict[str, object]] = []

    def interrupt() -> None:
        while not any(state.glob("checkpoints/*/chk-*/_metadata")):
            time.sleep(0.01)
        command = [sys.executable, "-m", "paimon_features", "jobs", "--json", *project]
        running.extend(
            json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
        )
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    result = CliRunner().invoke(cli, ["jobs", "iterate", str(slow), *project])
    assert result.exit_code == 1
    listed = CliRunner().invoke(cli, ["jobs", "--json", *project])
    assert [job["state"] for job in json.loads(listed.stdout)] == ["STOPPED"]
    (last,) = running
    assert (last["state"], last["view"], last["detail"]) == ("RUNNING", None, None)
    assert (last["restarts"], last["last_error"]) == (0, None)
    found = re.search(r"--resume (\S+) --output (\S+)", result.stderr)
    assert found is not None, result.stderr
    slow.write_text(PROGRAM)
    how = ["--resume", found[1], "--output", found[2], "--json"]
    result = CliRunner().invoke(cli, ["jobs", "iterate", str(slow), *how, *project])
    assert result.exit_code == 0, result.output
    reported = json.loads(result.stdout)
    assert (reported["outputs"], reported["epochs"]) == ({"model": 1}, [10])
    assert not list(state.glob("savepoints/*")), "of what is over nothing is kept"


# process mode runs in this process, where Beam's threads end with a failed task
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.flink
@pytest.mark.parametrize("mode", quick_cases(["thread", "process"], "thread"))
def test_restarts_of_a_local_job_are_listed_with_their_reason(program: Path, mode: str) -> None:
    failed, seen = program.with_name("failed"), program.with_name("seen")
    # fails once, and then ends only after that has been seen
    text = f"""import pathlib, time
        failed, seen = pathlib.Path({str(failed)!r}), pathlib.Path({str(seen)!r})
        if not failed.exists():
            failed.touch()
            raise ValueError("the disk of this worker is full")
        while not seen.exists():
            time.sleep(0.01)
        value = self"""
    program.write_text(PROGRAM.replace("value = self", text))
    project = ["--project", str(program.parent)]
    state_dir = program.parent / ".paimon-features"
    lake = Project.open(program.parent).lake
    jobs: list[StreamJob] = []

    def watch() -> None:
        def is_restarted() -> bool:
            jobs[:] = list_stream_jobs(lake, state_dir)
            # Flink reports the number of restarts and the error at different times
            return any(job.state == "RUNNING" and job.restarts and job.last_error for job in jobs)

        try:
            await_true(is_restarted)
        finally:
            seen.touch()

    watcher = threading.Thread(target=watch)
    watcher.start()
    arguments = ["jobs", "iterate", str(program), "--mode", mode, "--json", *project]
    result = CliRunner().invoke(cli, arguments)
    watcher.join()
    assert result.exit_code == 0, result.output
    (job,) = jobs
    assert (job.where, job.restarts) == ("local", 1)
    assert "the disk of this worker is full" in str(job.last_error)


def test_jobs_still_lists_the_jobs(program: Path) -> None:
    result = CliRunner().invoke(cli, ["jobs", "--help"])
    assert "iterate" in result.output
    assert "--release" in result.output
