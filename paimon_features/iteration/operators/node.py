"""Base class of the state machines: one node in one subtask."""

from __future__ import annotations

from typing import Any, ClassVar

from paimon_features.iteration.dataflow import DataflowNode
from paimon_features.iteration.envelope import Envelope
from paimon_features.iteration.epoch_tracker import EpochTracker
from paimon_features.iteration.operators.outlet import Outlet
from paimon_features.iteration.operators.protocols import Task
from paimon_features.iteration.operators.runner_states import NodeState


class NodeRunner:
    """Processes records, watermarks and control records of its node; emits through ``outlet``.

    Everything that has to survive a failure is either in the subtask's ``state`` or part of
    ``snapshot``. A runner calls ``self.task.touch()`` after any change of the latter.
    """

    state_type: ClassVar[type[NodeState]] = NodeState

    def __init__(self, task: Task, node: DataflowNode, channels: int) -> None:
        self.task = task
        self.node = node
        self.outlet = Outlet()
        self.tracker = EpochTracker(channels)

    def open(self) -> None:
        """Prepare for the first call; after ``restore`` if there is a state to restore."""

    def records(
        self, input_index: int, epoch: int, values: list[Any], keys: list[Any] | None
    ) -> None:
        """Process a batch of records of one epoch."""
        raise NotImplementedError

    def watermark(self, channel: int, epoch: int) -> None:
        """Process a channel's watermark; calls ``advance`` when it raises the node's."""
        before = self.tracker.watermark
        self.task.touch()
        for watermark in self.tracker.advance(channel, epoch):
            self.advance(before, watermark)
            before = watermark

    def advance(self, before: int, watermark: int) -> None:
        """Process a new watermark of the node, the minimum over its channels."""
        raise NotImplementedError

    def control(self, envelope: Envelope) -> None:
        """Process a record of the control head."""
        raise NotImplementedError

    def finish_call(self) -> None:
        """Finish a call, after all its envelopes."""

    def snapshot(self) -> NodeState:
        """Return the state to save, of type ``state_type``; small."""
        return NodeState(self.tracker.snapshot())

    def restore(self, state: Any) -> None:
        """Continue from a state of type ``state_type``."""
        self.tracker.restore(state.channels)

    def close(self) -> None:
        """Release resources, at the end of the attempt."""
