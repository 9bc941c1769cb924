"""Base of the state machines: one node in one subtask."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paimon_features.iteration.envelope import Envelope
from paimon_features.iteration.operators.outlet import Outlet
from paimon_features.iteration.tracker import EpochTracker

if TYPE_CHECKING:
    from paimon_features.iteration.graph import Node
    from paimon_features.iteration.operators.subtask import SubtaskRunner


class NodeRunner:
    """Takes records, watermarks and control records of its node; sends through ``outlet``.

    Whatever changes and has to survive is either in the subtask's ``state`` or in what
    ``snapshot`` gives, after which it calls ``self.task.touch()``.
    """

    def __init__(self, task: SubtaskRunner, node: Node, channels: int) -> None:
        self.task = task
        self.node = node
        self.outlet = Outlet()
        self.tracker = EpochTracker(channels)

    def open(self) -> None:
        """Called once, after ``restore`` where there is something to restore."""

    def records(
        self, input_index: int, epoch: int, values: list[Any], keys: list[Any] | None
    ) -> None:
        """A batch of one epoch."""
        raise NotImplementedError

    def watermark(self, channel: int, epoch: int) -> None:
        """A channel's watermark; calls ``advance`` when that moves the node's."""
        before = self.tracker.watermark
        self.task.touch()
        for watermark in self.tracker.advance(channel, epoch):
            self.advance(before, watermark)
            before = watermark

    def advance(self, before: int, watermark: int) -> None:
        """The least watermark rose."""
        raise NotImplementedError

    def control(self, envelope: Envelope) -> None:
        """A record of the control head."""
        raise NotImplementedError

    def finish_call(self) -> None:
        """All envelopes of one call were handled."""

    def snapshot(self) -> Any:
        """What ``restore`` needs, small."""
        return self.tracker.snapshot()

    def restore(self, held: Any) -> None:
        """Go on from a snapshot."""
        self.tracker.restore(held)

    def close(self) -> None:
        """The attempt is over."""
