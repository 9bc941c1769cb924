"""The data head of a variable, where its initial stream and its feedback enter the body."""

from __future__ import annotations

import pickle
from typing import Any

from paimon_features.iteration.envelope import DELIVER, WATERMARK, Envelope
from paimon_features.iteration.epochs import END, NONE
from paimon_features.iteration.operators.all_reduce import AllReduceSum
from paimon_features.iteration.operators.reporter import ReportingRunner
from paimon_features.iteration.operators.runner_states import HeadState
from paimon_features.iteration.wires import ENDED, INIT_ENDED, Notice


class HeadRunner(ReportingRunner):
    """Emits the initial records as epoch 0, then the records named by the control head.

    It never advances by itself: the control head sends watermark 0, too, after the initial
    streams of all variables have ended (S8).
    """

    state_type = HeadState
    _emitted = NONE
    _total: AllReduceSum | None = None

    def records(
        self, input_index: int, epoch: int, values: list[Any], keys: list[Any] | None
    ) -> None:
        self.outlet.records(0, values)

    def advance(self, before: int, watermark: int) -> None:
        if watermark == END:
            self.report(self.notice(INIT_ENDED, self._emitted))

    def control(self, envelope: Envelope) -> None:
        if envelope.kind == DELIVER:
            if self._emitted != END:
                self._deliver(envelope.values)
        elif envelope.kind == WATERMARK:
            if envelope.epoch > self._emitted:
                self._emit_total()
                self._emitted = envelope.epoch
                self.task.touch()
                self.outlet.watermark(envelope.epoch)
                if envelope.epoch == END:
                    self.report(self.notice(ENDED))
        else:
            super().control(envelope)

    def _deliver(self, notice: Notice) -> None:
        payload = notice.payload
        if payload is None:
            assert self.node.iteration is not None
            assert self._generation is not None
            readers = self.node.parallelism if self.node.reduces else 1
            payload = self.task.wire(self.node.iteration).take(self._generation, notice, readers)
        values = pickle.loads(payload)
        if not self.node.reduces:
            self.outlet.records(notice.epoch, values)
            return
        if self._total is None:
            self._total = AllReduceSum(notice.epoch)
        for value in values:
            self._total.add(value, notice.subtask)

    def _emit_total(self) -> None:
        """Emit the sum of an all-reduced round; its deliveries and its watermark come in one call,
        so that it is never part of a snapshot."""
        if self._total is not None:
            total, self._total = self._total, None
            self.outlet.records(total.epoch, [total.value])

    def open_notices(self) -> list[Notice]:
        if self._emitted == END:
            return [self.notice(ENDED)]
        if self.tracker.watermark == END:
            return [self.notice(INIT_ENDED, self._emitted)]
        return []

    def snapshot(self) -> HeadState:
        return HeadState(self.tracker.snapshot(), self._emitted)

    def restore(self, state: HeadState) -> None:
        super().restore(state)
        self._emitted = state.emitted
