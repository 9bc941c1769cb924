"""A job inside the caller's process whose JVM is killed, as by the system when memory is short."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.long_cases import quick_cases

pytest.importorskip("pyflink", reason="pip install 'paimon-features[flink]'")

pytestmark = pytest.mark.flink

PROGRAM = """
import os, signal, sys, threading, time
from tests.long_cases import quick_cases
from paimon_features.core.errors import JobError
from paimon_features.flink.gateway import start_gateway
from paimon_features.iteration.flink import IterationJob, IterationSettings
from paimon_features.iteration import *

def same(value):
    time.sleep(0.2)
    return value

class Count:
    def process_element(self, value, ctx, out):
        open("epoch", "w").write(str(ctx.epoch))
        ctx.state.value("epoch").update(ctx.epoch)
        out.collect(value)

def body(variables, data):
    counted = variables.get(0).process(Count())
    return IterationBodyResult(
        DataStreamList.of(counted.map(same)), DataStreamList.of(counted))

def build(job):
    return iterate_bounded_streams_until_termination(
        DataStreamList.of(job.from_collection([0])), ReplayableDataStreamList.not_replay(),
        IterationConfig(max_rounds=500), body).get(0)

def kill():
    while not os.path.exists("epoch") or int(open("epoch").read() or 0) < 3:
        time.sleep(0.05)
    os.kill(start_gateway().pid, signal.SIGKILL)

threading.Thread(target=kill, daemon=True).start()
variables, hook = dict(os.environ), threading.excepthook
settings = IterationSettings(wire="memory", mode=sys.argv[1], checkpoint_interval_ms=200)
job = IterationJob(settings=settings)
for run in range(2):
    try:
        job.run(build)
    except JobError as error:
        print("JobError", str(error).split(";")[0])
print(threading.excepthook is hook, "_PYTHON_WORKER_MEMORY" in os.environ)
"""


@pytest.mark.parametrize("mode", quick_cases(["process", "thread"], "thread"))
def test_a_caller_outlives_its_jvm_and_gets_a_job_error(mode: str, tmp_path: Path) -> None:
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM, mode],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    *errors, last = found.stdout.splitlines()
    assert [line.startswith("JobError the JVM of this process (pid ") for line in errors] == [
        True,
        True,
    ]
    assert "has ended with code -9" in errors[0]
    assert last == "True False"
