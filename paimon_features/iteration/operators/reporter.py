"""Base class of runners that report to the control head through the wire."""

from __future__ import annotations

from paimon_features.iteration.dataflow import DataflowNode
from paimon_features.iteration.envelope import HELLO, Envelope
from paimon_features.iteration.operators.node import NodeRunner
from paimon_features.iteration.operators.protocols import Task
from paimon_features.iteration.wires import Notice


class ReportingRunner(NodeRunner):
    """Publishes nothing before the hello of the control head, then all open notices.

    The generation is not part of the state: a restored reporter waits for the new attempt's hello.
    """

    def __init__(self, task: Task, node: DataflowNode, channels: int) -> None:
        super().__init__(task, node, channels)
        self._generation: int | None = None
        self._unsent: list[Notice] = []

    def control(self, envelope: Envelope) -> None:
        if envelope.kind == HELLO:
            self._generation = envelope.epoch
            self._unsent = self.open_notices()

    def open_notices(self) -> list[Notice]:
        """Return all notices that the control head may not have received, in order."""
        raise NotImplementedError

    def report(self, notice: Notice) -> None:
        """Publish at the end of this call."""
        if self._generation is not None:
            self._unsent.append(notice)

    def notice(
        self,
        kind: int,
        epoch: int = 0,
        *,
        seq: int = 0,
        records: int = 0,
        payload: bytes | None = None,
    ) -> Notice:
        """Return a notice of this reporter."""
        return Notice(kind, self.node.id, self.task.subtask, epoch, seq, records, payload)

    def finish_call(self) -> None:
        if self._unsent and self._generation is not None:
            assert self.node.iteration is not None
            self.task.publish(self.node.iteration, self._generation, self._unsent)
            self._unsent = []
