"""One superstep as an acyclic dataflow: each node processes one epoch, from first record to end.

A superstep is a part of a program's graph with external input (variables, data) at its first nodes,
and with collected output (feedback, criteria, outputs) at its last ones. A node's subtask is driven
by envelopes only and needs no order between its channels, so that a loop in this process and a
Flink job can use the same runs.
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
from paimon_features.iteration.partitioning import positions_by_subtask, stable_hash, subtasks_of
from paimon_features.iteration.state_backend import Key, StateCache

AddressedEnvelopes = list[tuple[int, Envelope]]
"""Envelopes with their target subtask."""


@dataclass(frozen=True)
class OutputEdge:
    """An edge from a node to an input of another node, with the link's partitioning."""

    target: int
    input: int
    parallelism: int
    link: InputLink
    straight: bool
    """Whether each subtask sends only to the subtask with its own index."""


@dataclass(frozen=True)
class Superstep:
    """The dataflow of one epoch. All of it can be pickled (cloudpickle).

    ``inputs`` are the nodes with external input, ``collected`` those with collected output; with
    ``ending``, the epoch ends the iteration and no node receives its watermark.
    """

    nodes: Mapping[int, DataflowNode]
    inputs: tuple[int, ...]
    collected: tuple[int, ...]
    epoch: int
    ending: bool = False
    outs: Mapping[int, tuple[OutputEdge, ...]] = field(default_factory=dict)
    senders: Mapping[int, int] = field(default_factory=dict)
    """Number of upstream subtasks that report their end to each subtask, by node."""


def make_superstep(
    graph: DataflowGraph,
    inputs: Sequence[int],
    collected: Sequence[int],
    epoch: int,
    ending: bool = False,
) -> Superstep:
    """Return the part of a graph from ``inputs`` to ``collected`` nodes."""
    nodes: dict[int, DataflowNode] = {}
    waiting = list(collected)
    while waiting:
        node = graph.nodes[waiting.pop()]
        if node.id in nodes:
            continue
        nodes[node.id] = node
        if node.id not in inputs:
            waiting += [link.node for links in node.inputs for link in links]
    outs: dict[int, list[OutputEdge]] = {number: [] for number in nodes}
    senders = dict.fromkeys(nodes, 0)
    for node in nodes.values():
        if node.id in inputs:
            continue
        for index, links in enumerate(node.inputs):
            for link in links:
                width = nodes[link.node].parallelism
                straight = link.partition is Partition.FORWARD and width == node.parallelism
                outs[link.node].append(OutputEdge(node.id, index, node.parallelism, link, straight))
                senders[node.id] += 1 if straight else width
    return Superstep(
        dict(sorted(nodes.items())),
        tuple(number for number in inputs if number in nodes),
        tuple(collected),
        epoch,
        ending,
        {number: tuple(found) for number, found in outs.items()},
        senders,
    )


class NodeRun:
    """One subtask of one node in one superstep."""

    def __init__(self, step: Superstep, node: DataflowNode, subtask: int) -> None:
        self.step, self.node, self.subtask = step, node, subtask
        self.collected: list[Any] = []
        self.ended = False
        self._open_senders = step.senders[node.id]
        self._turn = subtask
        self._operator: Any = None
        self._ctx: FunctionContext
        self._out = OutBuffer()

    def feed(self, values: list[Any]) -> AddressedEnvelopes:
        """Process external input; ``end`` follows after the last batch."""
        return list(self._emit({None: values}))

    def handle(self, envelope: Envelope) -> AddressedEnvelopes:
        """Process an envelope; return the resulting envelopes."""
        if envelope.kind == WATERMARK:
            self._open_senders -= 1
            return self.end() if self._open_senders == 0 else []
        return self._records(envelope)

    def end(self) -> AddressedEnvelopes:
        """End the input: emit the remaining output, close the function, forward the end."""
        sent: AddressedEnvelopes = []
        if self._operator is not None:
            sent += self._close()
        self.ended = True
        for out in self.step.outs[self.node.id]:
            end = Envelope(out.target, WATERMARK, END, out.input)
            readers = [self.subtask] if out.straight else range(out.parallelism)
            sent += [(subtask, end) for subtask in readers]
        return sent

    def _records(self, envelope: Envelope) -> AddressedEnvelopes:
        if self.node.operator is None:
            return list(self._emit({None: envelope.values}))
        if self._operator is None:
            self._open()
        self._operator.records(envelope.input, envelope.values, envelope.keys, self._ctx, self._out)
        return self._take_output()

    def _open(self) -> None:
        node = self.node
        keyed = any(link.partition is Partition.HASH for links in node.inputs for link in links)
        scope = ("round", node.id, self.step.epoch)
        cache = StateCache(_EmptyBackend())
        self._ctx = FunctionContext(node.name, self.subtask, node.parallelism, cache, scope, keyed)
        self._ctx.epoch = self.step.epoch
        # every instance has a copy of the function
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
            sent += self._take_output()
        operator.end_input(ctx, out)
        sent += self._take_output()

        def fire(timestamp: int, key: Any) -> None:
            ctx.current = key
            operator.timer(timestamp, ctx, out)

        ctx.timer_service().fire(fire)
        sent += self._take_output()
        operator.close()
        self._operator = None
        return sent

    def _take_output(self) -> AddressedEnvelopes:
        outputs: dict[str | None, list[Any]] = {None: self._out.values}
        outputs.update(self._out.sides.items())
        self._out.clear()
        return list(self._emit(outputs))

    def _emit(self, outputs: Mapping[str | None, list[Any]]) -> Iterator[tuple[int, Envelope]]:
        if self.node.id in self.step.collected:
            self.collected += outputs[None]
        for out in self.step.outs[self.node.id]:
            values = outputs.get(out.link.tag)
            if values:
                yield from self._routed(out, values)

    def _routed(self, out: OutputEdge, values: list[Any]) -> Iterator[tuple[int, Envelope]]:
        link, readers = out.link, out.parallelism
        keys: list[Any] | None = None
        if link.partition is Partition.BROADCAST:
            for subtask in range(readers):
                yield subtask, self._envelope(out, values)
            return
        if link.partition is Partition.HASH:
            assert link.key is not None
            keys = [link.key(value) for value in values]
            targets = [stable_hash(key) % readers for key in keys]
        elif link.partition is Partition.CUSTOM:
            assert link.partitioner is not None
            key = link.key or (lambda value: value)
            targets = subtasks_of(map(key, values), link.partitioner, readers)
        elif out.straight:
            targets = [self.subtask] * len(values)
        else:
            targets = [(self._turn + number) % readers for number in range(len(values))]
            self._turn += len(values)
        for subtask, positions in sorted(positions_by_subtask(targets).items()):
            of_target = None if keys is None else [keys[position] for position in positions]
            yield subtask, self._envelope(out, [values[p] for p in positions], of_target)

    def _envelope(
        self, out: OutputEdge, values: list[Any], keys: list[Any] | None = None
    ) -> Envelope:
        return Envelope(out.target, RECORDS, self.step.epoch, out.input, 0, values, keys)


class _EmptyBackend:
    """A backend without entries: a failed epoch is run again, so its state is not stored."""

    def get(self, key: Key) -> Any:
        return None

    def put(self, key: Key, value: Any) -> None:
        raise AssertionError("the state of a superstep is not flushed")

    def delete(self, key: Key) -> None:
        raise AssertionError("the state of a superstep is not flushed")

    def scan(self, family: str) -> Iterator[tuple[Key, Any]]:
        return iter(())
