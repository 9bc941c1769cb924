"""The control head: the one decision maker of an iteration (S13 to S15). It keeps no state.

Greetings, deliveries, acknowledgements and watermarks all leave it in one order. A barrier that
passes between two of its calls therefore cuts all of them at one place: every data head has
emitted, and every tail has dropped, exactly what was delivered before it.
"""

from __future__ import annotations

import pickle
import time
from typing import Any

from paimon_features.iteration.envelope import (
    ACK,
    CLOSED,
    CONTROL,
    DELIVER,
    HELLO,
    WATERMARK,
    Envelope,
    StageMessage,
)
from paimon_features.iteration.epochs import END, NONE
from paimon_features.iteration.execution_plan import ControlledNode, ControlPlan
from paimon_features.iteration.wires import ENDED, ENTRY, INIT_ENDED, ROUND_CLOSED, Notice, Wire

ReporterId = tuple[int, int]
"""Node and subtask of a reporter."""


class ControlHead:
    """Runs with parallelism 1, chained to the ticks.

    Where sending is dear, a call that hears of a round's end from some waits for the others, for
    up to ``gather_ms``: nothing can be decided without them.

    After a restore it learns from the reporters all it has to know: they publish again what
    no decision covered, and data heads that have ended say so.
    """

    def __init__(self, plan: ControlPlan, wire: Wire, gather_ms: int = 0) -> None:
        self._plan = plan
        self._gather_ms = gather_ms
        self._wire = wire
        self.greeted = False
        self._boxes: dict[ReporterId, list[Envelope]] = {}
        self._head_of = {tail.node: head for tail, head in zip(plan.tails, plan.heads, strict=True)}
        self._tails = [*plan.tails, *([plan.criteria] if plan.criteria else [])]
        self._heads = _subtasks(plan.heads)
        self._closers = _subtasks(self._tails)
        self._waited_for = self._heads | self._closers | _subtasks(plan.outputs)
        self._epoch: int | None = None
        self._positions: dict[ReporterId, int] = {}
        self._ended: set[ReporterId] = set()
        self._closed: dict[int, dict[ReporterId, int]] = {}
        self._terminated = False
        self._status: dict[str, Any] = {}

    @property
    def finished(self) -> bool:
        """All reporters have passed on the end: the job may be drained."""
        return self._ended >= self._waited_for

    def standing(self) -> str:
        """Who has not ended yet, for messages of a watchdog."""
        names = {member.node: "data head" for member in self._plan.heads}
        names |= {member.node: "tail" for member in self._tails}
        names |= {member.node: "output" for member in self._plan.outputs}
        left = sorted(self._waited_for - self._ended)
        reporters = ", ".join(f"{names[node]} {node}/{subtask}" for node, subtask in left)
        return (
            f"iteration {self._plan.iteration}: {self._status or 'no epoch yet'}; "
            f"not ended: {reporters or 'none'}"
        )

    def tick(self, wait_ms: int | None = None) -> list[StageMessage]:
        """Wait for notices (``None``: as configured), and say what has to be sent now.

        The first call begins a generation, greets all reporters and does not wait.
        """
        if not self.greeted:
            self.greeted = True
            generation = self._wire.begin()
            for member in (*self._plan.heads, *self._tails, *self._plan.outputs):
                self._send(member, HELLO, generation)
            return self._take()
        notices = self._wire.poll(self._plan.wait_ms if wait_ms is None else wait_ms)
        if not notices:
            return []
        delivered: dict[ReporterId, int] = {}
        deadline = time.monotonic() + self._gather_ms / 1000
        while True:
            for notice in notices:
                self._note(notice, delivered)
            left_ms = int(1000 * (deadline - time.monotonic()))
            if left_ms < 1 or not self._closed_by_some():
                break
            notices = self._wire.poll(left_ms)
        for member in self._plan.tails:
            for subtask in range(member.parallelism):
                upto = delivered.get((member.node, subtask))
                if upto is not None:
                    self._send_one(
                        member, subtask, Envelope(member.node, ACK, upto, CONTROL, CONTROL)
                    )
        self._decide()
        return self._take()

    def _note(self, notice: Notice, delivered: dict[ReporterId, int]) -> None:
        who = notice.node, notice.subtask
        if notice.kind == ENTRY:
            if not self._terminated:
                head = self._head_of[notice.node]
                deliver = Envelope(head.node, DELIVER, notice.epoch, CONTROL, CONTROL, notice)
                self._send_one(head, notice.subtask, deliver)
            delivered[who] = notice.seq
        elif notice.kind == ROUND_CLOSED:
            self._closed.setdefault(notice.epoch, {})[who] = notice.records
            if notice.payload is not None:
                self._status["loss"] = pickle.loads(notice.payload)
        elif notice.kind == INIT_ENDED:
            self._positions[who] = notice.epoch
        elif notice.kind == ENDED:
            self._ended.add(who)
            self._terminated = self._terminated or who in self._heads

    def _closed_by_some(self) -> bool:
        """Whether the next round has ended for some of those who tell, and not for others."""
        if self._epoch is None or self._terminated:
            return False
        counts = self._closed.get(self._epoch + 1)
        return counts is not None and not (counts.keys() | self._ended) >= self._closers

    def _decide(self) -> None:
        """Everything that can be decided now, in the order of the rounds."""
        if self._epoch is None and self._positions.keys() >= self._heads:
            # a restored head tells how far it is: all are where the barrier cut
            self._epoch = max(self._positions.values())
            if self._epoch == NONE:
                self._epoch = 0
                self._advance(0)
            self._report(epoch=self._epoch, state="running")
        while self._epoch is not None and not self._terminated:
            epoch = self._epoch + 1
            counts = self._closed.get(epoch, {})
            if not (counts.keys() | self._ended) >= self._closers:
                break
            self._closed.pop(epoch, None)
            self._epoch = epoch
            for tail in self._tails:
                self._send(tail, CLOSED, epoch)
            self._terminated = self._is_last(epoch, counts)
            self._advance(END if self._terminated else epoch)
            state = "ending" if self._terminated else "running"
            self._report(epoch=epoch, records=sum(counts.values()), state=state)
        if self.finished:
            self._report(state="finished")

    def _is_last(self, epoch: int, counts: dict[ReporterId, int]) -> bool:
        """Whether the iteration ends with this round, whose records were delivered (S14).

        A tail that has ended before, since it depends on no variable, counts as one that gave
        nothing. ``max_rounds`` is a criterion that is never empty before its round.
        """
        plan = self._plan
        if plan.max_rounds is not None and epoch >= plan.max_rounds:
            return True
        if plan.criteria is not None:
            node = plan.criteria.node
            return not any(count for (tail, _), count in counts.items() if tail == node)
        return plan.max_rounds is None and not any(counts.values())

    def _advance(self, epoch: int) -> None:
        for member in (*self._plan.heads, *self._plan.replays):
            self._send(member, WATERMARK, epoch)

    def _report(self, **status: Any) -> None:
        self._status.update(status)
        self._wire.report(self._status)

    def _send(self, member: ControlledNode, kind: int, epoch: int) -> None:
        envelope = Envelope(member.node, kind, epoch, CONTROL, CONTROL)
        for subtask in range(member.parallelism):
            self._send_one(member, subtask, envelope)

    def _send_one(self, member: ControlledNode, subtask: int, envelope: Envelope) -> None:
        self._boxes.setdefault((member.stage, subtask), []).append(envelope)

    def _take(self) -> list[StageMessage]:
        boxes, self._boxes = self._boxes, {}
        return [StageMessage(stage, subtask, sent) for (stage, subtask), sent in boxes.items()]


def _subtasks(members: tuple[ControlledNode, ...] | list[ControlledNode]) -> set[ReporterId]:
    return {(member.node, subtask) for member in members for subtask in range(member.parallelism)}
