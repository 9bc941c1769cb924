"""One superstep as a flow without a loop: each node sees one epoch, from first record to end.

A step is a part of a program's graph whose first nodes are fed (variables, data) and whose last
ones are collected (feedback, criteria, outputs). A node's subtask is driven by envelopes alone and
needs no order between its channels, so the same runs serve a loop in this process and a Flink job.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from paimon_features.iteration.dataflow import DataflowGraph, DataflowNode, InputLink, Partition
from paimon_features.iteration.envelope import RECORDS, WATERMARK, Envelope
from paimon_features.iteration.epochs import END
from paimon_features.iteration.operators.context import FunctionContext, OutBuffer
from paimon_features.iteration.partitioning import stable_hash
from paimon_features.iteration.state_backend import Key, StateCache

AddressedEnvelopes = list[tuple[int, Envelope]]
"""Envelopes with the subtask that each is for."""


@dataclass(frozen=True)
class OutputEdge:
    """Where one output of a node goes: an input of another node, over the link's partitioning."""

    target: int
    input: int
    parallelism: int
    link: InputLink
    straight: bool
    """Each subtask sends to the one with its number, and to no other."""


@dataclass(frozen=True)
class Superstep:
    """What runs in one epoch. Everything in it pickles (cloudpickle).

    ``fed`` are the nodes whose records come from outside, ``collected`` those whose records go
    there; ``ending`` says that the epoch ends the iteration: no node hears its watermark.
    """

    nodes: Mapping[int, DataflowNode]
    fed: tuple[int, ...]
    collected: tuple[int, ...]
    epoch: int
    ending: bool = False
    outs: Mapping[int, tuple[OutputEdge, ...]] = field(default_factory=dict)
    senders: Mapping[int, int] = field(default_factory=dict)
    """Node to how often each of its subtasks will be told that a sender has ended."""


def make_superstep(
    graph: DataflowGraph,
    fed: Sequence[int],
    collected: Sequence[int],
    epoch: int,
    ending: bool = False,
) -> Superstep:
    """The part of a graph that leads from ``fed`` to ``collected`` nodes."""
    nodes: dict[int, DataflowNode] = {}
    waiting = list(collected)
    while waiting:
        node = graph.nodes[waiting.pop()]
        if node.id in nodes:
            continue
        nodes[node.id] = node
        if node.id not in fed:
            waiting += [link.node for links in node.inputs for link in links]
    outs: dict[int, list[OutputEdge]] = {number: [] for number in nodes}
    senders = dict.fromkeys(nodes, 0)
    for node in nodes.values():
        if node.id in fed:
            continue
        for index, links in enumerate(node.inputs):
            for link in links:
                width = nodes[link.node].parallelism
                straight = link.partition is Partition.FORWARD and width == node.parallelism
                outs[link.node].append(OutputEdge(node.id, index, node.parallelism, link, straight))
                senders[node.id] += 1 if straight else width
    return Superstep(
        dict(sorted(nodes.items())),
        tuple(number for number in fed if number in nodes),
        tuple(collected),
        epoch,
        ending,
        {number: tuple(found) for number, found in outs.items()},
        senders,
    )


class NodeRun:
    """One subtask of one node, for one step: records in, records out, and then its end."""

    def __init__(self, step: Superstep, node: DataflowNode, subtask: int) -> None:
        self.step, self.node, self.subtask = step, node, subtask
        self.collected: list[Any] = []
        self.ended = False
        self._waits_for = step.senders[node.id]
        self._turn = subtask
        self._operator: Any = None
        self._ctx: FunctionContext
        self._out = OutBuffer()

    def feed(self, values: list[Any]) -> AddressedEnvelopes:
        """Records of a node that is fed; ``end`` says that these were all."""
        return list(self._emit({None: values}))

    def handle(self, envelope: Envelope) -> AddressedEnvelopes:
        """What an envelope for this subtask causes."""
        if envelope.kind == WATERMARK:
            self._waits_for -= 1
            return self.end() if self._waits_for == 0 else []
        return self._records(envelope)

    def end(self) -> AddressedEnvelopes:
        """No record comes any more: say what is left, close, and pass the end on."""
        sent: AddressedEnvelopes = []
        if self._operator is not None:
            sent += self._close()
        self.ended = True
        for out in self.step.outs[self.node.id]:
            told = Envelope(out.target, WATERMARK, END, out.input)
            readers = [self.subtask] if out.straight else range(out.parallelism)
            sent += [(subtask, told) for subtask in readers]
        return sent

    def _records(self, envelope: Envelope) -> AddressedEnvelopes:
        if self.node.operator is None:
            return list(self._emit({None: envelope.values}))
        if self._operator is None:
            self._open()
        self._operator.records(envelope.input, envelope.values, envelope.keys, self._ctx, self._out)
        return self._taken()

    def _open(self) -> None:
        node = self.node
        keyed = any(link.partition is Partition.HASH for links in node.inputs for link in links)
        scope = ("round", node.id, self.step.epoch)
        cache = StateCache(_EmptyBackend())
        self._ctx = FunctionContext(node.name, self.subtask, node.parallelism, cache, scope, keyed)
        self._ctx.epoch = self.step.epoch
        # what an instance keeps is its own
        self._operator = copy.deepcopy(node.operator)
        self._operator.open(self._ctx)

    def _close(self) -> AddressedEnvelopes:
        operator, ctx, out = self._operator, self._ctx, self._out
        sent: AddressedEnvelopes = []
        if self.node.iteration is not None:
            if self.step.ending:
                operator.terminated(ctx, out)
            else:
                operator.watermark(self.step.epoch, ctx, out)
            sent += self._taken()
        operator.end_input(ctx, out)
        sent += self._taken()

        def fire(timestamp: int, key: Any) -> None:
            ctx.current = key
            operator.timer(timestamp, ctx, out)

        ctx.timer_service().fire(fire)
        sent += self._taken()
        operator.close()
        self._operator = None
        return sent

    def _taken(self) -> AddressedEnvelopes:
        made: dict[str | None, list[Any]] = {None: self._out.values}
        made.update(self._out.sides.items())
        self._out.clear()
        return list(self._emit(made))

    def _emit(self, made: Mapping[str | None, list[Any]]) -> Iterator[tuple[int, Envelope]]:
        if self.node.id in self.step.collected:
            self.collected += made[None]
        for out in self.step.outs[self.node.id]:
            values = made.get(out.link.tag)
            if values:
                yield from self._routed(out, values)

    def _routed(self, out: OutputEdge, values: list[Any]) -> Iterator[tuple[int, Envelope]]:
        link, readers = out.link, out.parallelism
        keys: list[Any] | None = None
        if link.partition is Partition.BROADCAST:
            targets: list[int] | None = None
        elif link.partition is Partition.HASH:
            assert link.key is not None
            keys = [link.key(value) for value in values]
            targets = [stable_hash(key) % readers for key in keys]
        elif link.partition is Partition.CUSTOM:
            assert link.partitioner is not None
            key = link.key or (lambda value: value)
            targets = [link.partitioner(key(value), readers) for value in values]
        elif out.straight:
            targets = [self.subtask] * len(values)
        else:
            targets = [(self._turn + number) % readers for number in range(len(values))]
            self._turn += len(values)
        for subtask in range(readers):
            if targets is None:
                yield subtask, Envelope(out.target, RECORDS, self.step.epoch, out.input, 0, values)
                continue
            chosen = [number for number, target in enumerate(targets) if target == subtask]
            if chosen:
                of_target = None if keys is None else [keys[number] for number in chosen]
                yield (
                    subtask,
                    Envelope(
                        out.target,
                        RECORDS,
                        self.step.epoch,
                        out.input,
                        0,
                        [values[number] for number in chosen],
                        of_target,
                    ),
                )


class _EmptyBackend:
    """A backend without entries: an epoch that fails begins anew, so none of its state is kept."""

    def get(self, key: Key) -> Any:
        return None

    def put(self, key: Key, value: Any) -> None:
        raise AssertionError("the state of a superstep is not flushed")

    def delete(self, key: Key) -> None:
        raise AssertionError("the state of a superstep is not flushed")

    def scan(self, family: str) -> Iterator[tuple[Key, Any]]:
        return iter(())
