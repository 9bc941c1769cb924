"""Programs of one per-round iteration over replayed data, for both runners of supersteps."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from paimon_features.iteration import (
    DataStreamList,
    IterationBodyResult,
    IterationConfig,
    IterationListener,
    OperatorLifeCycle,
    ReplayableDataStreamList,
    iterate_bounded_streams_until_termination,
    terminate_on_max_iter,
)

Build = Callable[[Any], Any]


def loop(
    body: Callable[[DataStreamList, DataStreamList], IterationBodyResult],
    variables: list[list[Any]],
    data: list[list[Any]] | None = None,
    parallelism: int = 1,
    **config: Any,
) -> Build:
    """A program of one iteration; lists are the first variables, and data that are replayed."""

    def build(job: Any) -> DataStreamList:
        return iterate_bounded_streams_until_termination(
            DataStreamList.of(*(job.from_collection(v, parallelism) for v in variables)),
            ReplayableDataStreamList.replay(
                *(job.from_collection(d, parallelism) for d in data or [])
            ),
            IterationConfig(wire="memory", lifecycle=OperatorLifeCycle.PER_ROUND, **config),
            body,
        )

    return build


class Witness(IterationListener):
    """Emits its calls; feeds back the sum of an epoch plus one."""

    def open(self, ctx: Any) -> None:
        self.sum = 0  # an instance per epoch: this is never the sum of two

    def process_element1(self, value: int, ctx: Any, out: Any) -> None:
        self.sum += value
        out.side("heard", ("variable", ctx.epoch, value))

    def process_element2(self, value: int, ctx: Any, out: Any) -> None:
        self.sum += value
        out.side("heard", ("data", ctx.epoch, value))

    def on_epoch_watermark_incremented(self, epoch: int, ctx: Any, out: Any) -> None:
        out.side("heard", ("watermark", epoch, self.sum))
        out.collect(self.sum + 1)

    def on_iteration_terminated(self, ctx: Any, out: Any) -> None:
        out.side("heard", ("terminated", ctx.epoch, self.sum))
        out.collect(-1)  # goes to feedback, which is dropped

    def end_input(self, ctx: Any, out: Any) -> None:
        out.side("heard", ("end", ctx.epoch, self.sum))


def witness(rounds: int) -> Callable[[DataStreamList, DataStreamList], IterationBodyResult]:
    def body(variables: DataStreamList, data: DataStreamList) -> IterationBodyResult:
        made = variables.get(0).connect(data.get(0)).process(Witness())
        criteria = made.flat_map(terminate_on_max_iter(rounds))
        heard = made.get_side_output("heard")
        return IterationBodyResult(DataStreamList.of(made), DataStreamList.of(heard), criteria)

    return body


class Spread(IterationListener):
    """Collects numbers; at the end of an epoch emits some, independent of their order."""

    def __init__(self, salt: int) -> None:
        self.salt = salt

    def process_element(self, value: int, ctx: Any, out: Any) -> None:
        ctx.state.union_list("seen").add(value)
        if value % 3 == self.salt % 3:
            out.side("third", value)

    def on_epoch_watermark_incremented(self, epoch: int, ctx: Any, out: Any) -> None:
        seen = sorted(ctx.state.union_list("seen").get())
        for number in range(min(len(seen), 4)):
            out.collect((sum(seen) * 31 + seen[number] + self.salt + epoch) % 1000)
        out.side("seen", (ctx.subtask, epoch, len(seen), sum(seen)))

    def on_iteration_terminated(self, ctx: Any, out: Any) -> None:
        out.side("seen", (ctx.subtask, "end", sum(ctx.state.union_list("seen").get())))


def random_program(seed: int) -> Build:
    """Some nodes, each behind a random one, over random partitionings and parallelism."""
    rng = random.Random(seed)
    widths = [rng.randint(1, 3) for _ in range(2)]
    values = [[rng.randrange(100) for _ in range(rng.randrange(6))] for _ in range(3)]
    plan = [(rng.random(), rng.randrange(5), rng.randint(1, 3)) for _ in range(rng.randint(1, 3))]
    rounds, with_criteria = rng.randint(1, 4), rng.random() < 0.7
    picks = [rng.random() for _ in range(4)]

    def sent(stream: Any, how: int, width: int) -> Any:
        if how == 0 and width == 1:
            return stream.rebalance()  # else the order would say who gets what
        if how == 1:
            return stream.broadcast()
        if how == 3:
            return stream.key_by(lambda value: value % 7)
        if how == 4 and stream.parallelism == width:
            return stream
        return stream.partition_custom(lambda key, n: key % n, lambda value: value // 2)

    def body(variables: DataStreamList, data: DataStreamList) -> IterationBodyResult:
        made: list[Any] = [*variables, *data]
        nodes: list[Any] = []
        for number, (pick, how, width) in enumerate(plan):
            chosen = made[int(pick * len(made))]
            alike = chosen is not made[0] and chosen.parallelism == made[0].parallelism
            source = chosen.union(made[0]) if how == 4 and alike else chosen
            node = sent(source, how, width).process(Spread(number)).set_parallelism(width)
            made += [node, node.get_side_output("third")]
            nodes.append(node)
            outputs.append(node.get_side_output("seen"))
        # what is emitted at an epoch's end: else records of later epochs run ahead of the end
        back = [
            sent(nodes[int(pick * len(nodes))], 2, width)
            .map(lambda value: value)
            .set_parallelism(width)
            for pick, width in zip(picks, widths, strict=False)
        ]
        ended = nodes[0].map(lambda value: value % 5)
        criteria = ended.flat_map(terminate_on_max_iter(rounds)) if with_criteria else None
        return IterationBodyResult(DataStreamList.of(*back), DataStreamList.of(*outputs), criteria)

    outputs: list[Any] = []

    def build(job: Any) -> DataStreamList:
        outputs.clear()
        variables = [
            job.from_collection(v, width) for v, width in zip(values, widths, strict=False)
        ]
        return iterate_bounded_streams_until_termination(
            DataStreamList.of(*variables),
            ReplayableDataStreamList.replay(job.from_collection(values[2], 2)),
            IterationConfig(
                wire="memory", lifecycle=OperatorLifeCycle.PER_ROUND, max_rounds=rounds + 2
            ),
            body,
        )

    return build
