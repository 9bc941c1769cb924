"""Interfaces between the runners of a subtask's nodes, and of the subtask itself.

Runners call the subtask (:class:`Task`), and routes inside a subtask call runners
(:class:`Receiver`). Neither needs to import the class behind it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from paimon_features.iteration.config import ReplayMemory
from paimon_features.iteration.execution_plan import ExecutionStage
from paimon_features.iteration.state_backend import Key, StateCache
from paimon_features.iteration.wires import Notice, Wire


class Receiver(Protocol):
    """A node's runner, as an upstream node of the same subtask calls it."""

    def records(
        self, input_index: int, epoch: int, values: list[Any], keys: list[Any] | None
    ) -> None:
        """Process a batch of records of one epoch."""
        ...

    def watermark(self, channel: int, epoch: int) -> None:
        """Process the epoch watermark of one channel."""
        ...


class Task(Protocol):
    """The subtask that a runner belongs to."""

    @property
    def stage(self) -> ExecutionStage:
        """The stage that this is a subtask of."""
        ...

    @property
    def subtask(self) -> int:
        """Index of the subtask, from 0."""
        ...

    @property
    def state(self) -> StateCache:
        """State of the subtask, shared by its runners."""
        ...

    @property
    def results(self) -> list[tuple[int, list[Any]]]:
        """Results of the current call as (index of the program's output, values)."""
        ...

    @property
    def replay_memory(self) -> ReplayMemory:
        """Limits for replayed data."""
        ...

    def touch(self) -> None:
        """Mark the state of a runner as changed: ``snapshot`` is called at the next flush."""
        ...

    def do_in_parts(self, work: Iterator[None]) -> None:
        """Run ``work`` before the next envelope; its output is sent whenever it yields."""
        ...

    def stored(self, node: int) -> list[tuple[Key, Any]]:
        """Return the restored feedback entries of a node; only while runners are constructed."""
        ...

    def wire(self, iteration: int) -> Wire:
        """Return the wire of an iteration."""
        ...

    def publish(self, iteration: int, generation: int, notices: list[Notice]) -> None:
        """Publish notices at the end of the current call, together with those of other runners."""
        ...
