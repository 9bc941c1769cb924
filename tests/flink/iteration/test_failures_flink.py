"""Failures on Flink: what is committed is what the naive interpreter says, whatever fails.

Checkpoints come every 100 ms. The suite runs a sample. ``make chaos`` runs the whole matrix, and
as many random failures as PAIMON_FEATURES_KILLS says; a failing one reports the seed that repeats
it, for PAIMON_FEATURES_SEED.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from paimon_features.iteration import IterationStream
from tests.chaos import CHAOS, part_of_chaos
from tests.iteration import faults, probes, programs, sums, translation
from tests.iteration.faults import POINTS, PROGRAMS, FailAtRandom, FailOnce, LoseWire, failing
from tests.iteration.interpreter import interpret
from tests.iteration.programs import Program
from tests.iteration.sums import expected, summing
from tests.iteration.test_naive_differential import check, some_program
from tests.iteration.translation import builder

pytest.importorskip("pyflink", reason="pip install 'paimon-features[flink]'")

import cloudpickle

from paimon_features.flink.workers import write_python
from paimon_features.iteration.flink import IterationJob, IterationSettings, open_stream_environment

pytestmark = [
    pytest.mark.flink,
    pytest.mark.redis,
    # process mode here runs in this process, where Beam's threads and sockets die with a task
    pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

KILLS = int(os.environ.get("PAIMON_FEATURES_KILLS", "0"))
SEED = int(os.environ.get("PAIMON_FEATURES_SEED", random.randrange(10**6)))
KILLS_OF_A_RUN = 5

only_chaos = part_of_chaos("the whole matrix of failures")

# where the job runs there are no tests
for module in (faults, probes, programs, sums, translation):
    cloudpickle.register_pickle_by_value(module)

Run = Callable[..., Any]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """``run(mode, wire, build)``: all jobs of a mode in one environment.

    The watchdog of the job ends what stands still, with an error that says what it waits for.
    """
    state_dir = tmp_path_factory.mktemp("failures")
    env: dict[str, Any] = {}
    # of the hundreds of workers of `make chaos` none imports pyflink by itself
    forked = {"python.executable": str(write_python(state_dir / "bin") / "python")}

    def run(mode: Any, wire: str, build: Any) -> Any:
        if mode not in env:
            workers = CHAOS or mode == "thread"
            env[mode] = open_stream_environment(state_dir=state_dir, workers=workers)
        settings = IterationSettings(
            mode=mode,
            wire=wire,
            checkpoint_interval_ms=100,
            restarts=100,
            # a process starts for each subtask of each operator, after a failure once more
            stuck_s=120.0 if mode == "thread" else 600.0,
            conf=forked if CHAOS and mode == "process" else {},
        )
        return IterationJob(env[mode], settings=settings, state_dir=state_dir).run(build)

    return run


def together(builds: Mapping[str, Callable[[Any], Mapping[str, IterationStream]]]) -> Any:
    """Several programs as one; its outputs are named ``program/number``."""

    def build(job: Any) -> dict[str, IterationStream]:
        return {
            f"{name}/{number}": stream
            for name, one in builds.items()
            for number, stream in one(job).items()
        }

    return build


def check_together(some: Mapping[str, Program], outputs: Mapping[str, Any]) -> None:
    """Each program's own outputs against what is right for it."""
    for name, program in some.items():
        own = {
            number: values
            for one, values in outputs.items()
            for prefix, _, number in [one.rpartition("/")]
            if prefix == name
        }
        check(program, interpret(program), own)


@pytest.mark.long
def test_a_failure_with_the_redis_wire_flushed_changes_no_row_of_any_kind_of_program(
    run: Run, tmp_path: Path, redis_url: str
) -> None:
    """All-round, per-round, mixed and unbounded iterations, side by side in one job."""
    function = FailOnce("watermark", 3, tmp_path / "marker", 0.03, LoseWire(redis_url))
    builds = {name: builder(program, failing(function)) for name, program in PROGRAMS.items()}
    check_together(PROGRAMS, run("thread", redis_url, together(builds)))
    assert (tmp_path / "marker").exists()


def check_sums(run: Run, mode: str, url: str, function: FailOnce, marker: Path) -> None:
    shape = 2, 8, 3_000, 2  # arrays that Redis keeps apart from the notices
    received = run(mode, url, summing(*shape, between=failing(function)))
    assert sorted(received) == sorted(expected(*shape))
    assert marker.exists()


@pytest.mark.long
def test_a_failure_with_the_redis_wire_flushed_changes_no_bit_of_an_all_reduced_sum(
    run: Run, tmp_path: Path, redis_url: str
) -> None:
    marker = tmp_path / "marker"
    function = FailOnce("watermark", 3, marker, 0.03, LoseWire(redis_url))
    check_sums(run, "thread", redis_url, function, marker)


@only_chaos
@pytest.mark.parametrize("mode", ["thread", "process"] if CHAOS else [])
@pytest.mark.parametrize("lose", [False, True] if CHAOS else [])
@pytest.mark.parametrize("point", POINTS if CHAOS else [])
def test_the_failure_matrix_of_all_reduced_sums(
    run: Run, tmp_path: Path, redis_url: str, point: str, lose: bool, mode: str
) -> None:
    marker = tmp_path / "marker"
    lost = LoseWire(redis_url) if lose else None
    function = FailOnce(point, 3 if point != "end" else 0, marker, 0.03, lost)
    check_sums(run, mode, redis_url, function, marker)


@only_chaos  # test_workers_flink.py kills a worker of process mode
def test_a_failure_in_process_mode_changes_no_row(run: Run, tmp_path: Path, redis_url: str) -> None:
    program = PROGRAMS["small"]
    function = FailOnce("record", 2, tmp_path / "marker", 0.03, LoseWire(redis_url))
    variables = dict(os.environ)
    outputs = run("process", redis_url, builder(program, failing(function)))
    check(program, interpret(program), outputs)
    # pyflink leaves those of a worker behind: no JVM could be started any more
    assert {n: v for n, v in os.environ.items() if n != "PYTEST_CURRENT_TEST"} == {
        n: v for n, v in variables.items() if n != "PYTEST_CURRENT_TEST"
    }
    assert (tmp_path / "marker").exists()


@pytest.mark.long
def test_random_programs_on_flink_equal_the_naive_interpreter(run: Run) -> None:
    rng = random.Random(SEED)
    some = {str(number): some_program(rng)[0] for number in range(3)}
    builds = {name: builder(program) for name, program in some.items()}
    try:
        check_together(some, run("thread", "memory", together(builds)))
    except Exception as error:
        error.add_note(f"PAIMON_FEATURES_SEED={SEED}")
        raise


@only_chaos
@pytest.mark.parametrize("mode", ["thread", "process"] if CHAOS else [])
@pytest.mark.parametrize("lose", [False, True] if CHAOS else [])
@pytest.mark.parametrize("point", POINTS if CHAOS else [])
@pytest.mark.parametrize("name", PROGRAMS if CHAOS else [])
def test_the_failure_matrix(
    run: Run, tmp_path: Path, redis_url: str, name: str, point: str, lose: bool, mode: str
) -> None:
    program = PROGRAMS[name]
    lost = LoseWire(redis_url) if lose else None
    function = FailOnce(point, 3 if point != "end" else 0, tmp_path / "marker", 0.03, lost)
    outputs = run(mode, redis_url, builder(program, failing(function)))
    check(program, interpret(program), outputs)
    assert (tmp_path / "marker").exists()


@only_chaos
@pytest.mark.parametrize("number", range(-(-KILLS // KILLS_OF_A_RUN)))
def test_random_failures_change_no_row(
    run: Run, tmp_path: Path, redis_url: str, number: int
) -> None:
    rng = random.Random(f"{SEED} {number}")
    # a restart in process mode takes seconds for each subtask of each operator
    mode = "process" if number % 10 == 9 else "thread"
    name = "small" if mode == "process" else rng.choice([*PROGRAMS])
    program = PROGRAMS[name]
    # the workers of process mode are processes of their own here
    wire = redis_url if mode == "process" else rng.choice(["memory", redis_url])
    lost = LoseWire(redis_url) if wire != "memory" and rng.random() < 0.5 else None
    most = min(KILLS_OF_A_RUN, KILLS - number * KILLS_OF_A_RUN)
    jobs = failed = 0
    try:
        # a short program often ends before it has failed so many times
        while failed < most:
            jobs += 1
            pause_s = rng.choice([0.0, 0.03])
            often = 3.0 if name == "small" else 1.0
            function = FailAtRandom(rng.randrange(2**32), most, tmp_path, pause_s, lost, often)
            outputs = run(mode, wire, builder(program, failing(function)))
            check(program, interpret(program), outputs)
            failed = len([*tmp_path.iterdir()])
            assert jobs < 50
    except Exception as error:
        error.add_note(f"run {number} ({name}) of PAIMON_FEATURES_SEED={SEED}")
        raise
    print(f"{mode}, {name}, wire {'lost' if lost else 'kept'}: {failed} failures of {jobs} jobs")
