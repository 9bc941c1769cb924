"""Delivers the records of a data stream again in every epoch (S21)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jobs.iteration.envelope import WATERMARK, Envelope
from jobs.iteration.epochs import END, NONE
from jobs.iteration.operators.node import NodeRunner

if TYPE_CHECKING:
    from jobs.iteration.graph import Node
    from jobs.iteration.operators.subtask import SubtaskRunner


class ReplayRunner(NodeRunner):
    """Passes records on in epoch 0 and keeps them; epochs come from the control head.

    One epoch's replay is one call: a snapshot is before or after it, never inside.
    """

    def __init__(self, task: SubtaskRunner, node: Node, channels: int) -> None:
        super().__init__(task, node, channels)
        self._decided = NONE
        self._emitted = NONE
        self._over = False
        self._kept = 0
        self._batches: list[list[Any]] = []
        for _, values in sorted(task.stored("replay", node.id)):
            self._kept += 1
            self._keep(values)

    def records(
        self, input_index: int, epoch: int, values: list[Any], keys: list[Any] | None
    ) -> None:
        self.task.state.put(("replay", self.node.id, self._kept), values)
        self._kept += 1
        self._keep(values)
        self.outlet.records(0, values)

    def _keep(self, values: list[Any]) -> None:
        """In memory small batches become large ones; their state entries stay as they came."""
        batches = self._batches
        if batches and len(batches[-1]) + len(values) <= self.task.stage.batch:
            batches[-1].extend(values)
        else:
            batches.append(list(values))

    def control(self, envelope: Envelope) -> None:
        if envelope.kind == WATERMARK:
            if envelope.epoch == END:
                self._over = True
            else:
                self._decided = max(self._decided, envelope.epoch)
            self.task.touch()
            self._go_on()

    def advance(self, before: int, watermark: int) -> None:
        self._go_on()

    def _go_on(self) -> None:
        """Replay every decided epoch, also when the data end only after the iteration."""
        if self.tracker.watermark != END or self._emitted == END:
            return
        while self._emitted < self._decided:
            epoch = self._emitted = self._emitted + 1
            if epoch > 0:
                for values in self._batches:
                    self.outlet.records(epoch, values)
            self.outlet.watermark(epoch)
        if self._over:
            self._emitted = END
            self.outlet.watermark(END)

    def snapshot(self) -> Any:
        return self._decided, self._emitted, self._over, self.tracker.snapshot()

    def restore(self, held: Any) -> None:
        self._decided, self._emitted, self._over, tracker = held
        self.tracker.restore(tracker)
