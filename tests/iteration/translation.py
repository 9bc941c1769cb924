"""A program of :mod:`tests.iteration.programs`, built with ``paimon_features.iteration``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from paimon_features.iteration import (
    DataStreamList,
    IterationBodyResult,
    IterationConfig,
    IterationListener,
    IterationStream,
    OperatorLifeCycle,
    ReplayableDataStreamList,
    for_each_round,
    iterate_bounded_streams_until_termination,
    iterate_unbounded_streams,
    terminate_on_max_iter,
)
from tests.iteration.programs import Node, Program, apply, counted, decayed, summed


class Tag:
    """The epoch and the value."""

    def process_element(self, value: int, ctx: Any, out: Any) -> None:
        out.collect((ctx.epoch, value))


class Apply:
    """An operator without state."""

    def __init__(self, kind: str, number: int) -> None:
        self.kind = kind
        self.number = number

    def flat_map(self, value: int) -> list[int]:
        return apply(self.kind, self.number, value, 0)

    def process_element1(self, value: int, ctx: Any, out: Any) -> None:
        for one in apply(self.kind, self.number, value, 0):
            out.collect(one)

    def process_element2(self, value: int, ctx: Any, out: Any) -> None:
        for one in apply(self.kind, self.number, value, 1):
            out.collect(one)


class Count:
    """The how many-th of its key and epoch; one instance for the iteration, or one a round."""

    def __init__(self, number: int, per_round: bool) -> None:
        self.number = number
        self.per_round = per_round

    def process_element(self, value: int, ctx: Any, out: Any) -> None:
        if self.per_round:
            state = ctx.state.value("count")
            so_many = (state.value() or 0) + 1
            state.update(so_many)
        else:
            counts = ctx.state.map("counts")
            so_many = (counts.get(ctx.epoch) or 0) + 1
            counts.put(ctx.epoch, so_many)
        out.collect(counted(self.number, value, so_many))


class Hold(IterationListener):
    """Keeps values until the watermark of their epoch, or the end."""

    def process_element(self, value: int, ctx: Any, out: Any) -> None:
        held = ctx.state.map("held")
        held.put(ctx.epoch, [*(held.get(ctx.epoch) or []), value])

    def on_epoch_watermark_incremented(self, epoch: int, ctx: Any, out: Any) -> None:
        held = ctx.state.map("held")
        self.give(held.get(epoch) or [], out)
        held.remove(epoch)

    def on_iteration_terminated(self, ctx: Any, out: Any) -> None:
        held = ctx.state.map("held")
        for epoch in sorted(held.keys()):
            self.give(held.get(epoch), out)
            held.remove(epoch)

    def give(self, values: list[int], out: Any) -> None:
        for value in values:
            out.collect(value + 1)


class Sum(Hold):
    """Sums by key of what was kept."""

    def __init__(self, number: int) -> None:
        self.number = number

    def give(self, values: list[int], out: Any) -> None:
        totals: dict[int, int] = {}
        for value in values:
            key = value % self.number
            totals[key] = totals.get(key, 0) + value
        for key, total in totals.items():
            out.collect(summed(key, total))


class RoundSum:
    """Sums by key of all that one instance sees."""

    def __init__(self, number: int) -> None:
        self.number = number

    def process_element(self, value: int, ctx: Any, out: Any) -> None:
        totals = ctx.state.map("totals")
        key = value % self.number
        totals.put(key, (totals.get(key) or 0) + value)

    def end_input(self, ctx: Any, out: Any) -> None:
        for key, total in ctx.state.map("totals").items():
            out.collect(summed(key, total))


def to_subtask(key: int, subtasks: int) -> int:
    return key % subtasks


Between = Callable[[IterationStream], IterationStream]
"""Puts something that changes no record on a stream."""


def builder(
    program: Program, between: Between | None = None, wire: str = "memory"
) -> Callable[[Any], dict[str, IterationStream]]:
    """``build(job)``; output i is named ``str(i)`` and contains pairs (epoch, value).

    ``between`` is put on every variable stream where it enters the body.
    """

    def build(job: Any) -> dict[str, IterationStream]:
        sources = {
            role: [
                job.from_collection(list(source.values), parallelism=source.parallelism)
                for source in program.sources
                if source.role == role
            ]
            for role in ("variable", "replay", "once")
        }
        variables = DataStreamList.of(*sources["variable"])
        cycle = OperatorLifeCycle.PER_ROUND if program.per_round else OperatorLifeCycle.ALL_ROUND
        config = IterationConfig(lifecycle=cycle, max_rounds=program.max_rounds, wire=wire)

        def body(given: DataStreamList, data: DataStreamList) -> IterationBodyResult:
            variables = [*given] if between is None else [between(stream) for stream in given]
            return _body(program, variables, [*data])

        if program.unbounded:
            once = DataStreamList.of(*sources["once"])
            result = iterate_unbounded_streams(variables, once, body, config)
        else:
            replayed = ReplayableDataStreamList.replay(*sources["replay"])
            data = replayed.and_not_replay(*sources["once"])
            result = iterate_bounded_streams_until_termination(variables, data, config, body)
        return {str(number): stream for number, stream in enumerate(result)}

    return build


def _body(
    program: Program, variables: list[IterationStream], data: list[IterationStream]
) -> IterationBodyResult:
    # the body has replayed data before the rest
    roles = {
        "variable": iter(variables),
        "replay": iter(data[: sum(1 for one in program.sources if one.role == "replay")]),
        "once": iter(data[sum(1 for one in program.sources if one.role == "replay") :]),
    }
    streams = [next(roles[source.role]) for source in program.sources]
    for node in program.nodes:
        inputs = [streams[stream] for stream in node.inputs]
        made = _node(node, inputs, program.per_round)
        streams.append(made.set_parallelism(node.parallelism))
    feedback = [
        streams[stream].flat_map(decayed).set_parallelism(variable.parallelism)
        for stream, variable in zip(program.feedback, variables, strict=True)
    ]
    criteria = None
    if program.criteria is not None:
        reported = streams[program.criteria]
        most = program.max_iter
        criteria = (
            reported.map(int) if most is None else reported.flat_map(terminate_on_max_iter(most))
        )
    return IterationBodyResult(
        DataStreamList.of(*feedback),
        DataStreamList.of(*(streams[stream].process(Tag()) for stream in program.outputs)),
        criteria,
    )


def _node(node: Node, inputs: list[IterationStream], per_round: bool) -> IterationStream:
    number = node.number
    first = inputs[0]
    match node.kind:
        case "union":
            return first.union(*inputs[1:]).map(int)
        case "connect":
            return first.connect(inputs[1]).process(Apply(node.kind, number))
        case "copies":
            return first.broadcast().map(int)
        case "count":
            return first.key_by(lambda value: value % number).process(Count(number, per_round))
        case "hold":
            return first.process(Hold())
        case "sum":
            keyed = first.partition_custom(to_subtask, lambda value: value % number)
            return keyed.process(Sum(number))
        case "round":

            def part(inputs: DataStreamList) -> DataStreamList:
                keyed = inputs.get(0).partition_custom(to_subtask, lambda value: value % number)
                made = keyed.process(RoundSum(number))
                return DataStreamList.of(made.set_parallelism(node.parallelism))

            return for_each_round(DataStreamList.of(first), part).get(0).map(int)
        case _:
            return first.flat_map(Apply(node.kind, number))
