"""Supersteps: the rules of the iteration, one commit per epoch, exact whoever is killed when."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from paimon_features.core.errors import DefinitionError, JobError, OwnershipError
from paimon_features.core.types.schema import Int64
from paimon_features.iteration import (
    DataStreamList,
    IterationBodyResult,
    IterationConfig,
    IterationListener,
    OperatorLifeCycle,
    ReferenceExecutor,
    ReplayableDataStreamList,
    for_each_round,
    iterate_bounded_streams_until_termination,
    iterate_unbounded_streams,
)
from paimon_features.iteration.supersteps.executor import (
    EpochTask,
    LocalSuperstepRunner,
    NodeOutput,
    SuperstepExecutor,
)
from paimon_features.iteration.supersteps.variable_table import CommittedEpoch, VariableTable
from paimon_features.lake import Lake, TableSpec, append_arrow, snapshots
from paimon_features.lake.ownership.lease import ProcessHolder, acquire
from paimon_features.testing.sizes import seeds
from tests.iteration.superstep_programs import Build, loop, random_program, witness


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake.open(tmp_path / "lake", "shop")


def test_every_epoch_reads_variables_and_data_and_ends_with_its_watermark(lake: Lake) -> None:
    program = loop(witness(2), [[1]], [[10, 20]])
    (heard,) = SuperstepExecutor(lake, "sums").run(program)
    assert heard == [
        ("variable", 0, 1),
        ("data", 0, 10),
        ("data", 0, 20),
        ("watermark", 0, 31),
        ("end", 0, 31),
        ("variable", 1, 32),
        ("data", 1, 10),
        ("data", 1, 20),
        ("watermark", 1, 62),
        ("end", 1, 62),
        # the records of the epoch that ends it are delivered, data are not replayed
        ("variable", 2, 63),
        ("terminated", 2, 63),
        ("end", 2, 63),
    ]
    (reference,) = ReferenceExecutor().run(program)
    assert Counter(heard) == Counter(reference)


@pytest.mark.parametrize("chosen", [2, -1, None])
def test_a_partitioner_that_names_no_subtask_loses_no_record(lake: Lake, chosen: Any) -> None:
    def body(variables: DataStreamList, data: DataStreamList) -> IterationBodyResult:
        parts = data.get(0).partition_custom(lambda *_: chosen, lambda value: value)
        found = parts.map(lambda value: value).set_parallelism(2)
        back = variables.get(0).map(lambda value: value)
        return IterationBodyResult(DataStreamList.of(back), DataStreamList.of(found), None)

    expected = f"returned subtask {chosen!r}; expected an integer from 0 to 1"
    with pytest.raises(JobError, match=expected):
        SuperstepExecutor(lake, "lost").run(loop(body, [[1]], [[10]], max_rounds=2))


@pytest.mark.parametrize(
    ("rounds", "feed_back", "with_criteria", "epochs"),
    [
        # no record at all: round 1 is the last, round 0 never is
        (0, False, False, 1),
        # feedback alone: continues until there is none
        (3, True, False, 4),
        # no feedback, but criteria: continues
        (3, False, True, 4),
        # criteria that are empty end it, whatever is fed back
        (2, True, True, 3),
    ],
)
def test_rounds_end_by_records_and_criteria(
    lake: Lake, rounds: int, feed_back: bool, with_criteria: bool, epochs: int
) -> None:
    class Until(IterationListener):
        def process_element(self, value: int, ctx: Any, out: Any) -> None: ...

        def on_epoch_watermark_incremented(self, epoch: int, ctx: Any, out: Any) -> None:
            out.side("epochs", epoch)
            if epoch < rounds:
                out.side("continue", epoch)

    def body(variables: DataStreamList, data: DataStreamList) -> IterationBodyResult:
        until = variables.get(0).union(data.get(0)).process(Until())
        going = until.get_side_output("continue")
        back = going if feed_back else until
        both = feed_back and with_criteria
        fed = until.get_side_output("epochs").map(lambda e: e) if both else back.map(lambda e: e)
        return IterationBodyResult(
            DataStreamList.of(fed),
            DataStreamList.of(until.get_side_output("epochs")),
            going.map(lambda e: e) if with_criteria else None,
        )

    program = loop(body, [[7]], [[1]])
    (found,) = SuperstepExecutor(lake, "until").run(program)
    assert found == list(range(epochs))
    assert ReferenceExecutor().run(program) == [found]


def test_at_most_so_many_rounds_as_the_configuration_says(lake: Lake) -> None:
    def body(variables: DataStreamList, data: DataStreamList) -> IterationBodyResult:
        more = variables.get(0).map(lambda value: value + 1)
        return IterationBodyResult(DataStreamList.of(more), DataStreamList.of(more))

    (found,) = SuperstepExecutor(lake, "count").run(loop(body, [[0]], max_rounds=3))
    # three rounds, and the records that the third gave for a fourth
    assert found == [1, 2, 3, 4]


@pytest.mark.parametrize("seed", seeds(8))
def test_random_programs_equal_the_reference(lake: Lake, seed: int) -> None:
    program = random_program(seed)
    found = SuperstepExecutor(lake, "random").run(program)
    expected = ReferenceExecutor(seed=seed).run(program)
    assert [Counter(values) for values in found] == [Counter(values) for values in expected]


def test_data_of_a_table_are_those_of_one_snapshot_in_all_epochs_and_runs(lake: Lake) -> None:
    lake.create(TableSpec("amounts", {"n": Int64}))
    append_arrow(lake, "amounts", pa.table({"n": list(range(100))}))
    append_arrow(lake, "amounts", pa.table({"n": [1000]}))

    def body(variables: DataStreamList, data: DataStreamList) -> IterationBodyResult:
        sums = data.get(0).map(lambda batch: (pc.sum(batch["n"]).as_py(), batch.num_rows))
        more = variables.get(0).map(lambda value: value + 1)
        return IterationBodyResult(DataStreamList.of(more), DataStreamList.of(sums))

    def build(job: Any) -> DataStreamList:
        return iterate_bounded_streams_until_termination(
            DataStreamList.of(job.from_collection([0])),
            ReplayableDataStreamList.replay(job.from_table(lake, "amounts", ["n"], 30, 2)),
            IterationConfig(lifecycle=OperatorLifeCycle.PER_ROUND, max_rounds=3),
            body,
        )

    with pytest.raises(RuntimeError, match="fails"):
        SuperstepExecutor(lake, "sums", runner=Failing({3})).run(build)
    append_arrow(lake, "amounts", pa.table({"n": [5]}))
    (found,) = SuperstepExecutor(lake, "sums").run(build)
    # blocks of at most 30 rows, three times the rows that were there at the beginning
    assert Counter(rows for _, rows in found) == {30: 9, 10: 3, 1: 3}
    assert sum(total for total, _ in found) == 3 * (99 * 50 + 1000)


# whoever fails, whenever


class Failing(LocalSuperstepRunner):
    """Fails at chosen calls, after the work of the epoch was done and written."""

    def __init__(self, fails_at: set[int]) -> None:
        self.fails_at, self.calls = fails_at, 0

    def run(self, work: EpochTask) -> list[NodeOutput]:
        done = super().run(work)
        self.calls += 1
        if self.calls in self.fails_at:
            raise RuntimeError(f"call {self.calls} fails")
        return done


def test_a_failed_epoch_is_run_again_and_its_outputs_are_committed_once(lake: Lake) -> None:
    program = loop(witness(5), [[1]], [[10, 20]])
    (expected,) = SuperstepExecutor(lake, "whole").run(program)
    runner = Failing(fails_at={1, 3, 4, 9})
    executor = SuperstepExecutor(lake, "failing", runner=runner)
    for _ in range(4):
        with pytest.raises(RuntimeError, match="fails"):
            executor.run(program)
    (found,) = executor.run(program)
    assert found == expected
    # the start, five epochs and the end, and those that failed
    assert runner.calls == 7 + 4


def test_a_finished_iteration_is_read_and_not_run(lake: Lake) -> None:
    program = loop(witness(2), [[1]], [[10]])
    first = SuperstepExecutor(lake, "sums").run(program)
    runner = Failing(fails_at={1})
    assert SuperstepExecutor(lake, "sums", runner=runner).run(program) == first
    assert runner.calls == 0


def test_the_snapshot_contains_the_epoch_and_older_variables_can_be_read(lake: Lake) -> None:
    states: list[CommittedEpoch] = []
    SuperstepExecutor(lake, "sums", on_epoch=states.append).run(loop(witness(2), [[1]], [[10]]))
    reported = [(state.snapshot_id, state.epoch, state.phase) for state in states]
    assert reported == [
        (1, 0, "running"),
        (2, 1, "running"),
        (3, 2, "terminating"),
        (4, 2, "finished"),
    ]
    table = VariableTable(lake, "sums")
    assert list(table.variables(states[1], 0)) == [(0, [12])]
    made = [snapshot.properties["iteration.epoch"] for snapshot in snapshots(lake, table.table)]
    assert made == ["0", "1", "2", "2"]


KILLED = """
import sys, time
from tests.iteration.superstep_programs import loop, witness
from paimon_features.iteration.supersteps.executor import LocalSuperstepRunner, SuperstepExecutor
from paimon_features.lake import Lake

class Slow(LocalSuperstepRunner):
    def run(self, work):
        time.sleep(0.02)
        done = super().run(work)
        time.sleep(0.02)
        return done

lake = Lake.open(sys.argv[1], "shop")
report = lambda state: print(state.epoch, state.phase, flush=True)
program = loop(witness(int(sys.argv[2])), [[1]], [[10, 20]])
SuperstepExecutor(lake, sys.argv[3], runner=Slow(), on_epoch=report).run(program)
"""


@pytest.fixture
def started(lake: Lake) -> Iterator[Callable[[int, str], subprocess.Popen[str]]]:
    """Starts processes that iterate; ends those that are left."""
    processes: list[subprocess.Popen[str]] = []

    def start(rounds: int, name: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", KILLED, str(lake.warehouse), str(rounds), name]
        here = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
        processes.append(subprocess.Popen(command, env=here, stdout=subprocess.PIPE, text=True))
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@pytest.mark.long
def test_after_a_kill_at_any_moment_each_epoch_is_committed_once(
    lake: Lake, started: Callable[[int, str], subprocess.Popen[str]]
) -> None:
    rng = random.Random(os.environ.get("PAIMON_FEATURES_SEED", "7"))
    kills = int(os.environ.get("PAIMON_FEATURES_KILLS", "2"))
    rounds = 20
    program = loop(witness(rounds), [[1]], [[10, 20]])
    (expected,) = SuperstepExecutor(lake, "whole").run(program)
    killed = iterations = 0
    while killed < kills:
        iterations += 1
        name = f"sums{iterations}"
        reached, ended = 0, False
        while killed < kills and not ended:
            process = started(rounds, name)
            assert process.stdout is not None
            # behind its start, which takes seconds, at any moment of an epoch or between two
            first = process.stdout.readline()
            if not first:  # it was killed when all was done, and says nothing more
                break
            assert int(first.split()[0]) >= reached
            time.sleep(rng.random() * 0.5)
            process.send_signal(signal.SIGKILL)
            lines = [first, *process.stdout]
            reached = max(int(line.split()[0]) for line in lines)
            ended = process.wait() == 0
            killed += not ended
        (found,) = SuperstepExecutor(lake, name).run(program)
        assert found == expected
        epochs = [s.properties["iteration.epoch"] for s in snapshots(lake, f"iteration_{name}")]
        assert epochs == [*map(str, range(rounds + 1)), str(rounds)]
    print(f"{killed} processes killed in {iterations} iterations of {rounds} epochs")


def test_a_second_run_of_the_same_iteration_is_refused(lake: Lake) -> None:
    program = loop(witness(1), [[1]], [[10]])
    VariableTable(lake, "sums").create()
    with (
        acquire(lake, "iteration_sums", ProcessHolder.of(os.getppid())),
        pytest.raises(OwnershipError),
    ):
        SuperstepExecutor(lake, "sums").run(program)


# what is refused


def identity(variables: DataStreamList, data: DataStreamList) -> IterationBodyResult:
    same = variables.get(0).map(lambda value: value)
    return IterationBodyResult(DataStreamList.of(same), DataStreamList.of(same))


def test_another_program_under_the_same_name_is_refused(lake: Lake) -> None:
    SuperstepExecutor(lake, "sums").run(loop(witness(1), [[1]], [[10]]))
    with pytest.raises(JobError, match="'sums' was started by another program: it had variables"):
        SuperstepExecutor(lake, "sums").run(loop(identity, [[1], [2]][:1], parallelism=2))


def bounded(config: IterationConfig, *, replay: bool = True, body: Any = identity) -> Build:
    def build(job: Any) -> DataStreamList:
        data = job.from_collection([1])
        how = ReplayableDataStreamList
        return iterate_bounded_streams_until_termination(
            DataStreamList.of(job.from_collection([1])),
            how.replay(data) if replay else how.not_replay(data),
            config,
            body,
        )

    return build


def reads_data(variables: DataStreamList, data: DataStreamList) -> IterationBodyResult:
    same = variables.get(0).union(data.get(0)).map(lambda value: value)
    return IterationBodyResult(DataStreamList.of(same), DataStreamList.of(same))


PER_ROUND = IterationConfig(lifecycle=OperatorLifeCycle.PER_ROUND)


@pytest.mark.parametrize(
    ("build", "rule"),
    [
        (lambda job: job.from_collection([1]), "superstep-iterations: the program has 0"),
        (bounded(IterationConfig()), "superstep-per-round: 'map' lives for all rounds"),
        (bounded(PER_ROUND, replay=False, body=reads_data), "superstep-replay: 'map' reads data"),
        (
            lambda job: iterate_unbounded_streams(
                DataStreamList.of(job.from_collection([1])), DataStreamList.of(), identity
            ),
            "superstep-bounded: supersteps run bounded",
        ),
    ],
)
def test_programs_that_supersteps_cannot_run_are_rejected_by_rule(
    lake: Lake, build: Build, rule: str
) -> None:
    with pytest.raises(DefinitionError, match=rule):
        SuperstepExecutor(lake, "refused").run(build)
    assert not lake.exists("iteration_refused")


def test_a_body_whose_functions_all_live_for_a_round_is_taken(lake: Lake) -> None:
    def body(variables: DataStreamList, data: DataStreamList) -> IterationBodyResult:
        (less,) = for_each_round(
            DataStreamList.of(variables.get(0)),
            lambda given: DataStreamList.of(
                given.get(0).map(lambda v: v - 1).filter(lambda v: v >= 0)
            ),
        )
        return IterationBodyResult(DataStreamList.of(less), DataStreamList.of(less))

    assert SuperstepExecutor(lake, "part").run(bounded(IterationConfig(), body=body)) == [[0]]
