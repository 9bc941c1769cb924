"""Supersteps in a session cluster: an epoch is a job, and nothing of a failed one remains."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyflink")

from paimon_features.core.errors import JobError
from paimon_features.iteration import DataStreamList, IterationBodyResult
from paimon_features.iteration.flink.superstep_runner import FlinkSuperstepRunner
from paimon_features.iteration.supersteps.executor import SuperstepExecutor
from paimon_features.lake import Lake, snapshots
from tests.iteration.superstep_programs import loop, random_program, witness

pytestmark = pytest.mark.flink


@pytest.fixture
def cluster(session_cluster: Any) -> str:
    """The address of a running cluster."""
    address: str = session_cluster.address
    return address


@pytest.fixture
def runner(cluster: str) -> FlinkSuperstepRunner:
    return FlinkSuperstepRunner(cluster, mode="thread", attempts=1)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake.open(tmp_path / "lake", "shop")


# programs whose nodes have several inputs, widths, side outputs and partitionings
@pytest.mark.long
@pytest.mark.parametrize("seed", [4])
def test_random_programs_equal_the_run_in_one_process(
    lake: Lake, runner: FlinkSuperstepRunner, seed: int
) -> None:
    program = random_program(seed)
    local = SuperstepExecutor(lake, "local").run(program)
    found = SuperstepExecutor(lake, "flink", runner=runner).run(program)
    assert [Counter(values) for values in found] == [Counter(values) for values in local]
    assert any(local)


@pytest.mark.long
def test_a_failed_job_can_be_repeated_and_leaves_no_data(
    lake: Lake, cluster: str, tmp_path: Path
) -> None:
    once = tmp_path / "failed once"

    def body(variables: DataStreamList, data: DataStreamList) -> IterationBodyResult:
        def more(value: int) -> int:
            # the other subtask has written its files by then, or not
            if value == 2 and not once.exists():
                once.touch()
                raise RuntimeError("the disk is full")
            return value + 1

        less = variables.get(0).map(more).filter(lambda value: value < 4)
        return IterationBodyResult(DataStreamList.of(less), DataStreamList.of(less))

    program = loop(body, [[0, 1, 2]], parallelism=2)
    patient = FlinkSuperstepRunner(cluster, mode="thread", attempts=2)
    (found,) = SuperstepExecutor(lake, "failing", runner=patient).run(program)
    assert sorted(found) == [1, 2, 2, 3, 3, 3]
    once.unlink()
    with pytest.raises(JobError, match="the disk is full"):
        SuperstepExecutor(
            lake, "raised", runner=FlinkSuperstepRunner(cluster, mode="thread", attempts=1)
        ).run(program)


KILLED = """
import sys
from paimon_features.iteration.flink.superstep_runner import FlinkSuperstepRunner
from paimon_features.iteration.supersteps.executor import SuperstepExecutor
from paimon_features.lake import Lake
from tests.iteration.superstep_programs import loop, witness

lake = Lake.open(sys.argv[1], "shop")
runner = FlinkSuperstepRunner(sys.argv[2], mode="thread")
report = lambda state: print(state.epoch, flush=True)
program = loop(witness(9), [[1]], [[10, 20]])
SuperstepExecutor(lake, "sums", runner=runner, on_epoch=report).run(program)
"""


@pytest.mark.long
def test_another_driver_continues_after_one_that_was_killed_inside_an_epoch(
    lake: Lake, runner: FlinkSuperstepRunner, cluster: str
) -> None:
    program: Any = loop(witness(9), [[1]], [[10, 20]])
    command = [sys.executable, "-c", KILLED, str(lake.warehouse), cluster]
    here = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    with subprocess.Popen(command, env=here, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if int(line) >= 2:
                break
        time.sleep(0.2)  # the next epoch runs
        process.send_signal(signal.SIGKILL)
    (found,) = SuperstepExecutor(lake, "sums", runner=runner).run(program)
    (expected,) = SuperstepExecutor(lake, "whole").run(program)
    assert Counter(found) == Counter(expected)
    epochs = [s.properties["iteration.epoch"] for s in snapshots(lake, "iteration_sums")]
    assert epochs == [*map(str, range(10)), "9"]
