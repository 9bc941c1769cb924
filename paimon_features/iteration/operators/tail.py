"""The tail of a feedback edge: its records stay in its state until they are acknowledged."""

from __future__ import annotations

import pickle
from typing import Any

from paimon_features.iteration.dataflow import DataflowNode
from paimon_features.iteration.envelope import ACK, CLOSED, Envelope, dumps
from paimon_features.iteration.epochs import END
from paimon_features.iteration.operators.all_reduce import check_parts
from paimon_features.iteration.operators.protocols import Task
from paimon_features.iteration.operators.reporter import ReportingRunner
from paimon_features.iteration.operators.runner_states import TailState
from paimon_features.iteration.wires import ENDED, ENTRY, ROUND_CLOSED, Notice

_SMALL_BYTES = 8192


class TailRunner(ReportingRunner):
    """Numbers, stores and publishes feedback records, with their epoch plus one (S3).

    Its state is exactly the in-flight data between it and its head: its snapshot is the snapshot
    of the feedback channel (S27).
    """

    state_type = TailState

    # epochs are those after the edge: the epoch of the records plus one
    def __init__(self, task: Task, node: DataflowNode, channels: int) -> None:
        super().__init__(task, node, channels)
        self._next = 1
        self._counts: dict[int, int] = {}
        self._closed: dict[int, tuple[int, bytes | None]] = {}
        self._pending: dict[int, list[Any]] = {}
        stored = task.stored(node.id)
        self._entries = {key[2]: Notice(*fields) for key, fields in sorted(stored)}
        # small entries are part of the snapshot, which saves two state accesses per epoch
        self._small: dict[int, Notice] = {}
        self._small_bytes = 0

    def records(
        self, input_index: int, epoch: int, values: list[Any], keys: list[Any] | None
    ) -> None:
        if epoch == END:  # dropped (S16)
            return
        epoch += 1
        if self.node.reduces:
            check_parts(values, self.node.name, self.task.subtask)
        self._counts[epoch] = self._counts.get(epoch, 0) + len(values)
        self.task.touch()
        self._pending.setdefault(epoch, []).extend(values)

    def advance(self, before: int, watermark: int) -> None:
        self._publish_pending()
        # at the end all open ones: a tail that depends on no variable ends before the iteration
        closed = sorted(self._counts) if watermark == END else range(before + 2, watermark + 2)
        for epoch in closed:
            self._closed[epoch] = self._counts.pop(epoch, 0), self._measure()
            self.report(self._marker(epoch))
        if watermark == END:
            self.report(self.notice(ENDED))

    def control(self, envelope: Envelope) -> None:
        if envelope.kind == ACK:
            self._forget(upto=envelope.epoch)
        elif envelope.kind == CLOSED:
            self._closed.pop(envelope.epoch, None)
            self.task.touch()
        else:
            self._publish_pending()
            super().control(envelope)

    def finish_call(self) -> None:
        self._publish_pending()
        super().finish_call()

    def _publish_pending(self) -> None:
        """Publish the records of this call, one entry per epoch."""
        for epoch, values in self._pending.items():
            seq, self._next = self._next, self._next + 1
            payload = dumps(values)
            entry = self.notice(ENTRY, epoch, seq=seq, records=len(values), payload=payload)
            if self._small_bytes + len(payload) <= _SMALL_BYTES:
                self._small[seq] = entry
                self._small_bytes += len(payload)
            else:
                self._entries[seq] = entry
                self.task.state.put(("entry", self.node.id, seq), tuple(entry))
            self.report(entry)
        self._pending.clear()

    def _forget(self, upto: int) -> None:
        """Drop entries that the head has emitted, before any later barrier."""
        for seq in [seq for seq in self._small if seq <= upto]:
            self._small_bytes -= len(self._small.pop(seq).payload or b"")
            self.task.touch()
        while self._entries and (seq := next(iter(self._entries))) <= upto:
            del self._entries[seq]
            self.task.state.delete(("entry", self.node.id, seq))

    def _marker(self, epoch: int) -> Notice:
        records, measure = self._closed[epoch]
        return self.notice(ROUND_CLOSED, epoch, records=records, payload=measure)

    def _measure(self) -> bytes | None:
        """Return the pickled loss to report for a closed round."""
        return None

    def open_notices(self) -> list[Notice]:
        entries = self._entries | self._small
        notices = [entries[seq] for seq in sorted(entries)]
        notices += [self._marker(epoch) for epoch in sorted(self._closed)]
        if self.tracker.watermark == END:
            notices.append(self.notice(ENDED))
        return notices

    def snapshot(self) -> TailState:
        return TailState(
            self.tracker.snapshot(),
            self._next,
            dict(self._counts),
            dict(self._closed),
            tuple(self._small.values()),
        )

    def restore(self, state: TailState) -> None:
        super().restore(state)
        self._next = state.next_seq
        self._counts, self._closed = dict(state.counts), dict(state.closed)
        self._small = {entry.seq: entry for entry in state.small}
        self._small_bytes = sum(len(entry.payload or b"") for entry in state.small)


class CriteriaRunner(TailRunner):
    """The tail of the termination criteria: only the number of records is published (S14).

    The latest numeric value, such as a loss, is part of the reported status.
    """

    _loss: float | None = None

    def records(
        self, input_index: int, epoch: int, values: list[Any], keys: list[Any] | None
    ) -> None:
        if epoch == END:
            return
        self._counts[epoch + 1] = self._counts.get(epoch + 1, 0) + len(values)
        self.task.touch()
        if isinstance(values[-1], (int, float)):
            self._loss = float(values[-1])

    def _measure(self) -> bytes | None:
        return None if self._loss is None else pickle.dumps(self._loss)
