"""The execution plan of a program: stages and the routes between them.

Forward neighbours with equal parallelism are fused into one stage, because every Python stage of a
Flink job costs milliseconds per epoch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from paimon_features.iteration.dataflow import (
    DataflowGraph,
    DataflowNode,
    InputLink,
    Iteration,
    NodeKind,
    Partition,
)


@dataclass(frozen=True, slots=True)
class StageRoute:
    """A link between two nodes, from the point of view of its source."""

    source: int
    tag: str | None
    target: int
    target_stage: int
    target_parallelism: int
    input: int
    """Logical input of the target."""
    channel: int
    """First channel number of this link at the target; unless the partition is ``FORWARD``,
    subtask ``s`` sends on ``channel + s``."""
    partition: Partition
    """``FORWARD`` also between two nodes of parallelism 1."""
    keyed: bool
    """Whether records are sent with their keys."""
    key: Callable[[Any], Any] | None
    partitioner: Callable[[Any, int], int] | None


@dataclass(frozen=True, slots=True)
class ExecutionStage:
    """Nodes that run in one function. All of it can be pickled (cloudpickle)."""

    id: int
    name: str
    parallelism: int
    nodes: tuple[DataflowNode, ...]
    """In topological order; source nodes without their source."""
    routes: tuple[StageRoute, ...]
    """All links that start in this stage, including those that end in it."""
    channels: dict[int, int]
    """Number of channels on which a node receives watermarks, by node."""
    batch: int
    """Maximum number of records in one envelope."""


class ControlledNode(NamedTuple):
    """A node that the control head sends to, with its stage."""

    node: int
    stage: int
    parallelism: int


@dataclass(frozen=True, slots=True)
class ControlPlan:
    """The part of the plan that the control head of one iteration needs."""

    iteration: int
    heads: tuple[ControlledNode, ...]
    """Data heads in the order of the variables."""
    tails: tuple[ControlledNode, ...]
    """Feedback tails in the same order."""
    reduced: frozenset[int]
    """Tails whose rounds are delivered as a whole, to all subtasks of the data head."""
    criteria: ControlledNode | None
    replays: tuple[ControlledNode, ...]
    outputs: tuple[ControlledNode, ...]
    max_rounds: int | None
    wait_ms: int
    wire: str

    @property
    def targets(self) -> tuple[int, ...]:
        """Stages that the control head sends to, in ascending order."""
        members = [*self.heads, *self.tails, *self.replays, *self.outputs]
        if self.criteria is not None:
            members.append(self.criteria)
        return tuple(sorted({member.stage for member in members}))


@dataclass(frozen=True, slots=True)
class ExecutionPlan:
    """The plan of a program."""

    stages: tuple[ExecutionStage, ...]
    """In topological order; ``stages[i].id == i``."""
    edges: tuple[tuple[int, int], ...]
    """(from stage, to stage), each pair once, without cycles; edges of control heads are in
    ``controls``."""
    sources: tuple[DataflowNode, ...]
    """Source nodes with their source; the host reads it."""
    controls: tuple[ControlPlan, ...]
    results: tuple[str, ...]
    """Names of the program's results by ``DataflowNode.index`` of the result nodes."""

    def stage_of(self, node: int) -> ExecutionStage:
        """Return the stage that runs a node."""
        return next(stage for stage in self.stages if node in stage.channels)


class _PlannedLink(NamedTuple):
    """A link with its target and its effective partitioning."""

    link: InputLink
    target: int
    input: int
    partition: Partition


def make_plan(graph: DataflowGraph) -> ExecutionPlan:
    """Return the stages and routes of a graph.

    Two nodes share a stage if every link between them is forward and the stages form no cycle.
    """
    wired = [
        _PlannedLink(link, node.id, index, _partition(graph, link, node))
        for node in graph.nodes
        for index, links in enumerate(node.inputs)
        for link in links
    ]
    group = _fuse(len(graph.nodes), wired)
    order = _order(group, wired)
    assert order is not None
    number = {leader: stage for stage, leader in enumerate(order)}
    stage_of = [number[leader] for leader in group]
    channels = [0] * len(graph.nodes)
    routes: list[list[StageRoute]] = [[] for _ in order]
    for link, target, index, partition in wired:
        node = graph.nodes[target]
        routes[stage_of[link.node]].append(
            StageRoute(
                link.node,
                link.tag,
                target,
                stage_of[target],
                node.parallelism,
                index,
                channels[target],
                partition,
                link.partition is Partition.HASH,
                link.key,
                link.partitioner,
            )
        )
        forward = partition is Partition.FORWARD
        channels[target] += 1 if forward else graph.nodes[link.node].parallelism
    for node in graph.nodes:
        if node.kind is NodeKind.SOURCE:
            channels[node.id] = 1
    batch = min((i.config.channel_batch for i in graph.iterations), default=512)
    stages = []
    for stage in range(len(order)):
        nodes = tuple(
            replace(node, source=None) for node in graph.nodes if stage_of[node.id] == stage
        )
        stages.append(
            ExecutionStage(
                stage,
                " > ".join(node.name for node in nodes),
                nodes[0].parallelism,
                nodes,
                tuple(routes[stage]),
                {node.id: channels[node.id] for node in nodes},
                batch,
            )
        )
    crossing = {(stage_of[link.node], stage_of[target]) for link, target, _, _ in wired}
    results = sorted(
        (node for node in graph.nodes if node.kind is NodeKind.RESULT), key=lambda node: node.index
    )
    return ExecutionPlan(
        tuple(stages),
        tuple(sorted((source, target) for source, target in crossing if source != target)),
        tuple(node for node in graph.nodes if node.kind is NodeKind.SOURCE),
        tuple(_control(graph, iteration, stage_of) for iteration in graph.iterations),
        tuple(node.name for node in results),
    )


def _partition(graph: DataflowGraph, link: InputLink, target: DataflowNode) -> Partition:
    """Return the effective partitioning, given the parallelism of both ends."""
    source = graph.nodes[link.node].parallelism
    if source == target.parallelism == 1 or link.partition is Partition.ALL_REDUCE:
        return Partition.FORWARD  # the tail of an all-reduce has the parallelism of its stream
    if link.partition is Partition.FORWARD and source != target.parallelism:
        return Partition.REBALANCE
    return link.partition


def _fuse(count: int, wired: list[_PlannedLink]) -> list[int]:
    """Return the leader (a node) of the stage of every node."""
    group = list(range(count))
    for link, target, _, partition in wired:
        one, other = group[link.node], group[target]
        if one == other or partition is not Partition.FORWARD:
            continue
        merged = [one if leader == other else leader for leader in group]
        inner_is_forward = all(
            between.partition is Partition.FORWARD
            for between in wired
            if merged[between.link.node] == merged[between.target]
        )
        if inner_is_forward and _order(merged, wired) is not None:
            group = merged
    return group


def _order(group: list[int], wired: list[_PlannedLink]) -> list[int] | None:
    """Return the leaders in topological order, or ``None`` if they form a cycle."""
    waiting: dict[int, set[int]] = {leader: set() for leader in group}
    for link, target, _, _ in wired:
        if group[link.node] != group[target]:
            waiting[group[target]].add(group[link.node])
    order: list[int] = []
    while waiting:
        ready = next((leader for leader, before in waiting.items() if not before), None)
        if ready is None:
            return None
        order.append(ready)
        del waiting[ready]
        for before in waiting.values():
            before.discard(ready)
    return order


def _control(graph: DataflowGraph, iteration: Iteration, stage_of: list[int]) -> ControlPlan:
    def members(nodes: list[int]) -> tuple[ControlledNode, ...]:
        return tuple(
            ControlledNode(node, stage_of[node], graph.nodes[node].parallelism) for node in nodes
        )

    criteria = [] if iteration.criteria is None else [iteration.criteria]
    return ControlPlan(
        iteration.id,
        members(iteration.heads),
        members(iteration.tails),
        frozenset(node for node in iteration.tails if graph.nodes[node].reduces),
        next(iter(members(criteria)), None),
        members(iteration.replays),
        members(iteration.outputs),
        iteration.config.max_rounds,
        iteration.config.wait_ms,
        iteration.config.wire,
    )
