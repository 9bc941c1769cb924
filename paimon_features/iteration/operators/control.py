"""The control head: decides alone when an epoch or the iteration ends (S13 to S15). Stateless.

Hellos, deliveries, acknowledgements and watermarks leave it in a single order. A barrier between
two of its calls therefore separates all of them at one point: every data head has emitted, and
every tail has dropped, exactly what was delivered before the barrier.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Mapping
from itertools import chain
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
    """Runs with parallelism 1, chained to the tick source.

    If sending is expensive, a call that receives the end of a round from some reporters waits up
    to ``gather_ms`` for the others: nothing can be decided without them.

    After a restore, it rebuilds its knowledge from the reporters: they publish again all notices
    that no decision covered, and data heads that have ended report that.
    """

    def __init__(self, plan: ControlPlan, wire: Wire, gather_ms: int = 0) -> None:
        self._plan = plan
        self._gather_ms = gather_ms
        self._wire = wire
        self.started = False
        self._boxes: dict[ReporterId, list[Envelope]] = {}
        self._head_of = {tail.node: head for tail, head in zip(plan.tails, plan.heads, strict=True)}
        self._tails = [*plan.tails, *([plan.criteria] if plan.criteria else [])]
        self._heads = _subtasks(plan.heads)
        self._closers = _subtasks(self._tails)
        self._expected = self._heads | self._closers | _subtasks(plan.outputs)
        self._epoch: int | None = None
        self._positions: dict[ReporterId, int] = {}
        self._ended: set[ReporterId] = set()
        self._closed: dict[int, dict[ReporterId, int]] = {}
        self._to_reduce: dict[int, list[Notice]] = {}
        self._terminated = False
        self._status: dict[str, Any] = {}

    @property
    def finished(self) -> bool:
        """Whether all reporters have forwarded the end, so that the job can be drained."""
        return self._ended >= self._expected

    def pending(self) -> str:
        """Describe the reporters that have not ended, for error messages."""
        names = {member.node: "data head" for member in self._plan.heads}
        names |= {member.node: "tail" for member in self._tails}
        names |= {member.node: "output" for member in self._plan.outputs}
        left = sorted(self._expected - self._ended)
        reporters = ", ".join(f"{names[node]} {node}/{subtask}" for node, subtask in left)
        return (
            f"iteration {self._plan.iteration}: {self._status or 'no epoch yet'}; "
            f"not ended: {reporters or 'none'}"
        )

    def tick(self, wait_ms: int | None = None) -> list[StageMessage]:
        """Wait for notices (``None``: as long as configured), and return the messages to send.

        The first call starts a generation and sends a hello to all reporters, without waiting.
        """
        if not self.started:
            self.started = True
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
            if left_ms < 1 or not self._round_partly_closed():
                break
            notices = self._wire.poll(left_ms)
        self._acknowledge(delivered)
        self._decide()
        if self._terminated:  # rounds that ran ahead of the last one are dropped
            self._acknowledge(_last_seqs(self._to_reduce))
            self._to_reduce.clear()
        return self._take()

    def _note(self, notice: Notice, delivered: dict[ReporterId, int]) -> None:
        who = notice.node, notice.subtask
        if notice.kind == ENTRY and notice.node in self._plan.reduced and not self._terminated:
            self._to_reduce.setdefault(notice.epoch, []).append(notice)
        elif notice.kind == ENTRY:
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

    def _round_partly_closed(self) -> bool:
        """Return whether some tails, but not all, have closed the next round."""
        if self._epoch is None or self._terminated:
            return False
        counts = self._closed.get(self._epoch + 1)
        return counts is not None and not (counts.keys() | self._ended) >= self._closers

    def _decide(self) -> None:
        """Make all decisions that are possible, in the order of the rounds."""
        if self._epoch is None and self._positions.keys() >= self._heads:
            # a restored head reports its position: all are where the barrier was
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
            self._reduce(epoch)
            for tail in self._tails:
                self._send(tail, CLOSED, epoch)
            self._terminated = self._is_last(epoch, counts)
            self._advance(END if self._terminated else epoch)
            state = "ending" if self._terminated else "running"
            self._report(epoch=epoch, records=sum(counts.values()), state=state)
        if self.finished:
            self._report(state="finished")

    def _reduce(self, epoch: int) -> None:
        """Deliver a round of the all-reduced edges: to all subtasks of a head, in one order.

        Its entries were held until the round was complete. A tail drops them in the same call in
        which every subtask of the head adds them up, so that no barrier comes between.
        """
        held = sorted(
            self._to_reduce.pop(epoch, ()), key=lambda one: (one.node, one.subtask, one.seq)
        )
        for notice in held:
            head = self._head_of[notice.node]
            deliver = Envelope(head.node, DELIVER, epoch, CONTROL, CONTROL, notice)
            for subtask in range(head.parallelism):
                self._send_one(head, subtask, deliver)
        self._acknowledge(_last_seqs({epoch: held}))

    def _acknowledge(self, delivered: Mapping[ReporterId, int]) -> None:
        """Have tails drop what was delivered, up to a sequence number each."""
        for member in self._plan.tails:
            for subtask in range(member.parallelism):
                upto = delivered.get((member.node, subtask))
                if upto is not None:
                    self._send_one(
                        member, subtask, Envelope(member.node, ACK, upto, CONTROL, CONTROL)
                    )

    def _is_last(self, epoch: int, counts: dict[ReporterId, int]) -> bool:
        """Return whether the iteration ends with this round, whose records were delivered (S14).

        A tail that has ended before, because it depends on no variable, counts as having no
        records. ``max_rounds`` is a criterion that is not empty before its round.
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


def _last_seqs(rounds: Mapping[int, list[Notice]]) -> dict[ReporterId, int]:
    """Return the highest sequence number of each reporter."""
    last: dict[ReporterId, int] = {}
    for notice in chain.from_iterable(rounds.values()):
        who = notice.node, notice.subtask
        last[who] = max(last.get(who, 0), notice.seq)
    return last


def _subtasks(members: tuple[ControlledNode, ...] | list[ControlledNode]) -> set[ReporterId]:
    return {(member.node, subtask) for member in members for subtask in range(member.parallelism)}
