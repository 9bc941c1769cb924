"""Reference executor: runs a program in one process without an engine, as the oracle for Flink.

It uses the same runners as on Flink, under a scheduler that delivers one message at a time: in a
fixed order, or with a seed in any order that first-in first-out channels allow. It can take
checkpoints with aligned barriers, fail, and continue from the last checkpoint: the exactly-once
protocol is tested here over thousands of interleavings.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from typing import Any

from paimon_features.core.configuration.arguments import checked_integer
from paimon_features.core.errors import JobError
from paimon_features.iteration.config import ReplayMemory
from paimon_features.iteration.program import IterationProgram, JobBuilder, build_program
from paimon_features.iteration.reference.attempt import (
    Attempt,
    InjectedFailure,
    ReferenceCheckpoint,
)
from paimon_features.iteration.reference.queue_wire import QueueWire


class ReferenceExecutor:
    """Deterministic, or randomly interleaved, execution in memory.

    Parameters
    ----------
    seed
        Seed for the order of deliveries and the sizes of source batches; ``None`` for the fixed
        order.
    checkpoint_every
        Number of steps between checkpoints, unless one is in progress; ``None`` for none.
    failures
        Steps before which the attempt fails, counted from 0 over all attempts. A function may
        also raise ``InjectedFailure``.
    random_failures
        Number of additional failures, at steps drawn from the seed.
    lose_wire
        Whether a failure also empties the wire.
    replay_memory
        Limits for the replayed data of a subtask.
    max_steps
        Number of steps after which the program is considered not to terminate.

    Examples
    --------
    >>> executor = ReferenceExecutor()
    >>> executor.run(lambda job: job.from_collection([1, 2, 3]).map(lambda value: value * 2))
    [2, 4, 6]
    """

    def __init__(
        self,
        seed: int | None = None,
        *,
        checkpoint_every: int | None = None,
        failures: Collection[int] = (),
        random_failures: int = 0,
        lose_wire: bool = False,
        replay_memory: ReplayMemory | None = None,
        max_steps: int = 5_000_000,
    ) -> None:
        for name, value, minimum in (
            ("seed", seed, -(2**63)),
            ("checkpoint_every", checkpoint_every, 1),
            ("random_failures", random_failures, 0),
            ("max_steps", max_steps, 1),
        ):
            if value is not None:
                checked_integer(f"reference executor: {name}", value, minimum)
        self._random = None if seed is None else random.Random(seed)
        self._checkpoint_every = checkpoint_every
        self._failures = set(failures)
        self._random_failures = random_failures
        self._lose_wire = lose_wire
        self._replay_memory = replay_memory
        self._max_steps = max_steps
        self.steps = 0
        """Steps of the last run, over all its attempts."""
        self.attempts = 0
        """Attempts of the last run; 1 without failures."""
        self.checkpoints = 0
        """Checkpoints that the last run completed."""
        self.wires: list[QueueWire] = []
        """Wires of the last run by iteration, with their ``status``."""

    def run(self, build: Callable[[Any], Any]) -> Any:
        """Build a program and run it until there is nothing left to do.

        Returns
        -------
        list or dict
            A list of values if ``build`` returned one stream, a list of lists for several,
            a dictionary of lists for a dictionary. Values are in the order in which subtasks
            emitted them. With an unbounded source: the values emitted until all channels are empty.

        Raises
        ------
        DefinitionError
            The program breaks a rule.
        JobError
            It does not end within ``max_steps``, or is deadlocked before its end.
        """
        return self.run_program(build_program(JobBuilder(), build))

    def run_program(self, program: IterationProgram) -> Any:
        """Run a program of ``build_program``."""
        draw = self._random
        self.steps = self.attempts = self.checkpoints = 0
        inline = 2**20 if draw is None else draw.choice([0, 200, 2**20])
        self.wires = [QueueWire(inline) for _ in program.plan.controls]
        latest: ReferenceCheckpoint | None = None
        committed: list[tuple[int, int, Any]] = []
        random_left = self._random_failures
        while True:
            self.attempts += 1
            attempt = Attempt(program.plan, self.wires, latest, draw, self._replay_memory)
            try:
                while attempt.step():
                    self.steps += 1
                    if self.steps - 1 in self._failures:
                        raise InjectedFailure(f"at step {self.steps - 1}")
                    if random_left and draw is not None and draw.random() < 0.01:
                        random_left -= 1
                        raise InjectedFailure("by chance")
                    if self.steps >= self._max_steps:
                        raise JobError(
                            f"the program did not end within {self._max_steps} steps; "
                            f"{attempt.pending()}"
                        )
                    if self._checkpoint_every and self.steps % self._checkpoint_every == 0:
                        attempt.begin_checkpoint()
                    if attempt.completed is not None:
                        latest, attempt.completed = attempt.completed, None
                        committed += latest.results
                        self.checkpoints += 1
                attempt.check_ended()
                committed += attempt.uncommitted()
                break
            except InjectedFailure:
                if self._lose_wire:
                    for wire in self.wires:
                        wire.flush()
            finally:
                attempt.close()
        results: list[list[Any]] = [[] for _ in program.plan.results]
        for _, index, values in committed:
            results[index] += values
        return program.shape_results(results)
