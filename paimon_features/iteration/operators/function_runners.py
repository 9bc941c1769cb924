"""Runners of user functions: one instance for all rounds, or one per round."""

from __future__ import annotations

import copy
from typing import Any

from paimon_features.iteration.config import OperatorLifeCycle
from paimon_features.iteration.dataflow import DataflowNode, Partition
from paimon_features.iteration.epochs import END
from paimon_features.iteration.operators.context import NO_KEY, FunctionContext, OutBuffer
from paimon_features.iteration.operators.node import NodeRunner
from paimon_features.iteration.operators.protocols import Task
from paimon_features.iteration.operators.record_operators import FunctionOperator
from paimon_features.iteration.operators.runner_states import AllRoundState, PerRoundState


class FunctionInstance:
    """One copy of a function with its context."""

    __slots__ = ("ctx", "operator")

    def __init__(self, operator: FunctionOperator, ctx: FunctionContext) -> None:
        self.operator = operator
        self.ctx = ctx


class OperatorRunner(NodeRunner):
    """Base class of both life cycles: creates instances, calls them, emits their output."""

    def __init__(self, task: Task, node: DataflowNode, channels: int) -> None:
        super().__init__(task, node, channels)
        self._out = OutBuffer()
        self._keyed = any(
            link.partition is Partition.HASH for links in node.inputs for link in links
        )

    def create(self, scope: tuple[Any, ...], epoch: int) -> FunctionInstance:
        node, task = self.node, self.task
        ctx = FunctionContext(
            node.name, task.subtask, node.parallelism, task.state, scope, self._keyed
        )
        ctx.epoch = epoch
        operator = copy.deepcopy(node.operator)
        operator.open(ctx)
        return FunctionInstance(operator, ctx)

    def handle(
        self,
        instance: FunctionInstance,
        input_index: int,
        epoch: int,
        values: list[Any],
        keys: list[Any] | None,
    ) -> None:
        instance.ctx.epoch = epoch
        instance.operator.records(input_index, values, keys, instance.ctx, self._out)
        self.send(epoch)

    def end(self, instance: FunctionInstance, epoch: int) -> None:
        """End the input of an instance: ``end_input``, timers, ``close`` (S23, S24)."""
        ctx, out = instance.ctx, self._out
        ctx.epoch = epoch
        instance.operator.end_input(ctx, out)

        def call(timestamp: int, key: Any) -> None:
            ctx.current = key
            instance.operator.timer(timestamp, ctx, out)
            ctx.current = NO_KEY

        ctx.timer_service().fire(call)
        instance.operator.close()
        self.send(epoch)

    def send(self, epoch: int) -> None:
        out = self._out
        if out.values or out.sides:
            values, sides = out.values, out.sides
            out.clear()
            self.outlet.records(epoch, values)
            for tag, emitted in sides.items():
                self.outlet.records(epoch, emitted, tag)


class AllRoundRunner(OperatorRunner):
    """One instance for the complete iteration; also for functions outside of iterations."""

    state_type = AllRoundState
    _instance: FunctionInstance | None = None
    _terminated = False

    def open(self) -> None:
        if not self._terminated:
            self._instance = self.create(("all", self.node.id), self.tracker.watermark)

    def records(
        self, input_index: int, epoch: int, values: list[Any], keys: list[Any] | None
    ) -> None:
        assert self._instance is not None
        self.handle(self._instance, input_index, epoch, values, keys)

    def advance(self, before: int, watermark: int) -> None:
        instance = self._instance
        assert instance is not None
        ctx, out, inside = instance.ctx, self._out, self.node.iteration is not None
        if watermark != END:
            for epoch in range(before + 1, watermark + 1):
                ctx.epoch = epoch
                instance.operator.watermark(epoch, ctx, out)
                self.send(epoch)
                self.outlet.watermark(epoch)
            return
        ctx.epoch = END
        if inside:
            instance.operator.terminated(ctx, out)
            self.send(END)
        self.end(instance, END)
        self._terminated, self._instance = True, None
        self.outlet.watermark(END)

    def snapshot(self) -> AllRoundState:
        return AllRoundState(self.tracker.snapshot(), self._terminated)

    def restore(self, state: AllRoundState) -> None:
        super().restore(state)
        self._terminated = state.terminated

    def close(self) -> None:
        if self._instance is not None:
            self._instance.operator.close()


class PerRoundRunner(OperatorRunner):
    """One instance per epoch, from the epoch's first record to its watermark (S24)."""

    state_type = PerRoundState
    _live: dict[int, FunctionInstance]
    _restored: tuple[int, ...] = ()

    def open(self) -> None:
        self._live = {epoch: self._create(epoch) for epoch in self._restored}

    def _create(self, epoch: int) -> FunctionInstance:
        return self.create(("round", self.node.id, epoch), epoch)

    def records(
        self, input_index: int, epoch: int, values: list[Any], keys: list[Any] | None
    ) -> None:
        instance = self._live.get(epoch)
        if instance is None:
            instance = self._live[epoch] = self._create(epoch)
            self.task.touch()
        self.handle(instance, input_index, epoch, values, keys)

    def advance(self, before: int, watermark: int) -> None:
        if watermark == END:
            for epoch in sorted(self._live):
                self._finish(epoch, terminated=True)
            self.outlet.watermark(END)
            return
        for epoch in range(before + 1, watermark + 1):
            if epoch in self._live:
                self._finish(epoch, terminated=False)
            self.outlet.watermark(epoch)

    def _finish(self, epoch: int, *, terminated: bool) -> None:
        instance = self._live.pop(epoch)
        ctx, out = instance.ctx, self._out
        ctx.epoch = epoch
        if terminated:
            instance.operator.terminated(ctx, out)
        else:
            instance.operator.watermark(epoch, ctx, out)
        self.end(instance, epoch)
        self.task.state.drop_round(self.node.id, epoch)

    def snapshot(self) -> PerRoundState:
        return PerRoundState(self.tracker.snapshot(), tuple(self._live))

    def restore(self, state: PerRoundState) -> None:
        super().restore(state)
        self._restored = state.epochs

    def close(self) -> None:
        for instance in self._live.values():
            instance.operator.close()


def operator_runner(task: Task, node: DataflowNode, channels: int) -> OperatorRunner:
    """Return the runner for the node's life cycle."""
    per_round = node.life_cycle is OperatorLifeCycle.PER_ROUND
    return (PerRoundRunner if per_round else AllRoundRunner)(task, node, channels)
