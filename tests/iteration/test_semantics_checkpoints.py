"""S27 to S30: whatever fails, and whenever, results are those of a run without failures."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from paimon_features.core.errors import JobError
from paimon_features.iteration import ReferenceExecutor
from paimon_features.iteration.config import ReplayMemory
from paimon_features.iteration.operators.subtask import (
    SubtaskRunner,
    source_end,
    source_records,
)
from paimon_features.iteration.operators.tail import TailRunner
from paimon_features.iteration.program import JobBuilder, build_program
from paimon_features.iteration.reference.attempt import (
    Attempt,
    InjectedFailure,
    ReferenceCheckpoint,
)
from paimon_features.iteration.reference.queue_wire import QueueWire
from paimon_features.iteration.state_backend import MemoryState
from paimon_features.testing.sizes import every_seed, seeds
from tests.iteration.faults import POINTS, PROGRAMS, FailOnce, failing
from tests.iteration.interpreter import interpret
from tests.iteration.programs import Node, Program, Source
from tests.iteration.test_naive_differential import check, some_program
from tests.iteration.translation import builder


def failing_executor(rng: random.Random) -> ReferenceExecutor:
    """Checkpoints often, fails several times, and may lose what is on the wire."""
    return ReferenceExecutor(
        seed=rng.randrange(2**32),
        checkpoint_every=rng.choice([3, 10, 40]),
        random_failures=rng.randint(1, 4),
        lose_wire=rng.random() < 0.5,
        # all replayed data in memory, none, or the first of them
        replay_memory=ReplayMemory(rng.choice([2**20, 0, 60])),
    )


@every_seed(60)
def test_a_random_program_with_failures_has_the_same_results(seed: int) -> None:
    """S27, S28, S29."""
    rng = random.Random(f"failures {seed}")
    program, right = some_program(rng)
    check(program, right, failing_executor(rng).run(builder(program)))


@pytest.mark.parametrize("name", PROGRAMS)
def test_each_kind_of_program_is_exact_with_many_failures(name: str) -> None:
    """S27, S28, S29: several restarts a run, with per-round instances and replays under way."""
    program = PROGRAMS[name]
    right = interpret(program)
    attempts = checkpoints = 0
    for seed in seeds(8):
        executor = failing_executor(random.Random(f"{name} {seed}"))
        check(program, right, executor.run(builder(program)))
        attempts += executor.attempts
        checkpoints += executor.checkpoints
    assert attempts > len(seeds(8))
    assert checkpoints > len(seeds(8))


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_function_that_fails_at_any_point_is_called_again(
    name: str, point: str, tmp_path: Any
) -> None:
    """S29: also at the very end, after checkpoints taken while the iteration ends."""
    program = PROGRAMS[name]
    right = interpret(program)
    for seed in seeds(3):
        marker = tmp_path / str(seed)
        function = FailOnce(point, 2, marker, 0.0, error=InjectedFailure)
        executor = ReferenceExecutor(seed=seed, checkpoint_every=7, lose_wire=bool(seed % 2))
        check(program, right, executor.run(builder(program, failing(function))))
        assert executor.attempts == 2
        assert marker.exists()


@every_seed(12)
def test_many_records_on_their_way_back_survive_failure_after_failure(seed: int) -> None:
    """S27: a checkpoint cuts the loop between any two feedback entries of a tail."""
    program = Program(
        sources=(Source("variable", tuple(range(60, 90)), 1), Source("variable", (90, 80), 2)),
        nodes=(Node("union", (0, 1), 1, 2),),
        feedback=(0, 1),
        outputs=(2,),
        unbounded=True,
    )
    rng = random.Random(f"many {seed}")
    executor = ReferenceExecutor(
        seed=rng.randrange(2**32),
        checkpoint_every=rng.randint(1, 4),
        failures=rng.sample(range(150), 10),
        lose_wire=rng.random() < 0.5,
    )
    check(program, interpret(program), executor.run(builder(program)))
    assert executor.attempts > 5


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_acknowledged_and_decided_is_not_kept(name: str) -> None:
    """S27: in the end nothing is in flight; a long iteration does not fill its state."""
    plan = build_program(JobBuilder(), builder(PROGRAMS[name])).plan
    attempt = Attempt(plan, [QueueWire() for _ in plan.controls], None, random.Random(1))
    most = 0
    while attempt.step():
        entries = 0
        for actor, runner in attempt._runners.items():
            runner.flush()
            entries += len([*attempt._states[actor].scan("entry")])
            for one in runner._runners.values():
                if isinstance(one, TailRunner):
                    entries += len(one._small)
                    # a round is decided before the next one can be closed by all
                    assert len(one._closed) <= 2
        most = max(most, entries)
    assert most > 0
    assert entries == 0


@pytest.mark.parametrize("name", PROGRAMS)
def test_an_iteration_restored_while_ending_still_ends(name: str) -> None:
    """S29: checkpoints and failures between the decision to end and the last subtask's end."""
    program = PROGRAMS[name]
    right = interpret(program)
    build = builder(program)
    for seed in seeds(6):
        plain = ReferenceExecutor(seed=seed, checkpoint_every=2)
        plain.run(build)
        rng = random.Random(f"{name} {seed}")
        last = range(max(0, plain.steps - 60), plain.steps)
        executor = ReferenceExecutor(
            seed=seed, checkpoint_every=2, failures=rng.sample(last, min(3, len(last)))
        )
        check(program, right, executor.run(build))
        assert executor.attempts > 1


class Haunted:
    """Runs a program, while the subtasks of every attempt that failed work on for a while.

    Of such a zombie nothing counts but what it writes to the wire, under its old generation.
    """

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.zombie_steps = 0

    def run(self, build: Any) -> Any:
        program = build_program(JobBuilder(), build)
        rng = self.rng
        wires = [QueueWire(rng.choice([0, 2**20])) for _ in program.plan.controls]
        latest: ReferenceCheckpoint | None = None
        committed: list[tuple[int, int, Any]] = []
        zombies: list[Attempt] = []
        failures = 3
        attempt = Attempt(program.plan, wires, latest, rng)
        while attempt.step():
            if rng.random() < 0.1:
                attempt.begin_checkpoint()
            if attempt.completed is not None:
                latest, attempt.completed = attempt.completed, None
                committed += latest.results
            if zombies and rng.random() < 0.5:
                self.zombie_steps += self._work_on(rng.choice(zombies))
            if failures and rng.random() < 0.02:
                failures -= 1
                zombies.append(attempt)
                attempt = Attempt(program.plan, wires, latest, rng)
        attempt.check_ended()
        committed += attempt.uncommitted()
        results: list[list[Any]] = [[] for _ in program.plan.results]
        for _, index, values in committed:
            results[index] += values
        return program.shape_results(results)

    def _work_on(self, zombie: Attempt) -> bool:
        # its head is stopped by the wire, which belongs to another one by now
        zombie._controls.clear()
        try:
            return zombie.step()
        except JobError:  # what it would take from the wire is gone
            return False


@every_seed(20)
def test_writes_of_tasks_of_old_attempts_are_never_read(seed: int) -> None:
    """S27: generations keep attempts apart."""
    rng = random.Random(f"zombies {seed}")
    name = rng.choice([*PROGRAMS])
    haunted = Haunted(rng)
    check(PROGRAMS[name], interpret(PROGRAMS[name]), haunted.run(builder(PROGRAMS[name])))
    assert haunted.zombie_steps


@pytest.mark.parametrize("stage", range(3))
def test_state_of_another_parallelism_is_refused(stage: int) -> None:
    """S30: of a head, a replayer, a wrapped operator."""
    program = build_program(JobBuilder(), builder(PROGRAMS["all-round, synchronous"])).plan
    wire = QueueWire()
    wanted = ("head", "replay", "operator")[stage]
    (first, *_) = (
        one for one in program.stages if any(node.kind.value == wanted for node in one.nodes)
    )
    state = MemoryState()
    runner = SubtaskRunner(first, 0, state, lambda _: wire)
    for runner_of_node in runner._runners.values():
        runner_of_node.watermark(0, 0)
    runner.flush()
    kept = MemoryState(state.snapshot())
    SubtaskRunner(first, 0, kept, lambda _: wire)
    with pytest.raises(JobError, match="parallelism"):
        SubtaskRunner(replace(first, parallelism=first.parallelism + 1), 0, kept, lambda _: wire)


def test_a_source_that_begins_again_after_its_end_is_refused() -> None:
    program = build_program(JobBuilder(), builder(PROGRAMS["all-round, synchronous"])).plan
    node = program.sources[0].id
    stage = program.stage_of(node)
    state = MemoryState()
    runner = SubtaskRunner(stage, 0, state, lambda _: QueueWire())
    runner.handle([*source_records(node, [1]), *source_end(node)])
    runner.flush()
    resumed = SubtaskRunner(stage, 0, MemoryState(state.snapshot()), lambda _: QueueWire())
    with pytest.raises(JobError, match="delivered records after its end: it began again"):
        resumed.handle(source_records(node, [1]))
