"""A process that is stopped takes the JVM that commits for it along, before others take over."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from paimon_features.flink.jvm_watchdog import BEAT_S, LOOKS
from paimon_features.lake.ownership import claims, lease
from tests.servers.online_servers import wait_for

PATIENT, HASTY = 2_400, 100
"""Looks: a process that is only slow is not killed within two minutes, or five seconds."""

PARENT = """
import subprocess, sys
from paimon_features.flink.jvm_watchdog import JvmWatchdog

worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
watchdog = JvmWatchdog(worker.pid, beat_s=0.05, looks=int(sys.argv[1]))
print(worker.pid, watchdog.process.pid, flush=True)
for line in sys.stdin:
    if line == "close\\n":
        watchdog.close()
        watchdog.process.wait()
        print("closed", flush=True)
"""


def state(pid: int) -> str:
    """The state of a process by its letter, "" if there is none."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return ""


@pytest.fixture(params=[PATIENT])
def parent(request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[str]]:
    if not os.path.exists("/proc/self/stat"):
        pytest.skip("needs /proc")
    process = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(request.param)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    yield process
    process.send_signal(signal.SIGCONT)
    process.kill()
    process.communicate()


def pids(parent: subprocess.Popen[str]) -> tuple[int, int]:
    assert parent.stdout is not None
    worker, watchdog = parent.stdout.readline().split()
    return int(worker), int(watchdog)


@pytest.mark.parametrize("parent", [HASTY], indirect=True)
def test_it_is_killed_when_its_parent_is_stopped(parent: subprocess.Popen[str]) -> None:
    worker, watchdog = pids(parent)
    assert state(worker) in ("R", "S", "D")
    parent.send_signal(signal.SIGSTOP)
    wait_for(lambda: state(worker) == "Z", "the worker is killed")  # the parent waits for nobody
    wait_for(lambda: state(watchdog) == "Z", "the watchdog has ended")
    assert state(parent.pid) == "T"


def test_it_lives_on_when_the_watch_is_closed(parent: subprocess.Popen[str]) -> None:
    worker, watchdog = pids(parent)
    assert parent.stdin is not None
    assert parent.stdout is not None
    parent.stdin.write("close\n")
    parent.stdin.flush()
    assert parent.stdout.readline() == "closed\n"
    assert state(watchdog) == ""
    assert state(worker) in ("R", "S", "D")
    os.kill(worker, signal.SIGKILL)


def test_the_watchdog_ends_with_the_parent(parent: subprocess.Popen[str]) -> None:
    worker, watchdog = pids(parent)
    parent.kill()
    parent.wait()
    wait_for(lambda: state(watchdog) in ("", "Z"), "the watchdog has ended")
    os.kill(worker, signal.SIGKILL)  # a JVM notices by itself


def test_it_is_killed_before_anybody_takes_the_tables_over() -> None:
    patience_s = claims.BEAT_S * claims.SILENT_BEATS * lease._PATIENCE
    assert patience_s > BEAT_S * (LOOKS + 1) + claims.BEAT_S
