"""Streams of a program: they record what is to be done; nothing runs while a body is called."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NoReturn, Self

from paimon_features.errors import DefinitionError
from paimon_features.iteration.dataflow import (
    DataflowGraph,
    DataflowNode,
    InputLink,
    NodeKind,
    Partition,
    StreamScope,
)
from paimon_features.iteration.operators.record_operators import (
    CoMapOperator,
    CoProcessOperator,
    FilterOperator,
    FlatMapOperator,
    MapOperator,
    ProcessOperator,
    ReduceOperator,
)
from paimon_features.iteration.operators.window_operators import (
    CountWindowOperator,
    EndJoinOperator,
    EndWindowOperator,
)

KeySelector = Callable[[Any], Any]


class IterationStream:
    """A stream of Python values, as :mod:`pyflink` programs know it.

    What is made from streams has the largest parallelism among them until ``set_parallelism``.
    Records go straight on to the subtask of the same number where the parallelism is the same,
    else in turn to all; ``rebalance``, ``broadcast``, ``partition_custom`` and ``key_by`` say
    otherwise.
    """

    def __init__(
        self, graph: DataflowGraph, scope: StreamScope, links: tuple[InputLink, ...]
    ) -> None:
        self._graph = graph
        self._scope = scope
        self._links = links

    @property
    def parallelism(self) -> int:
        """Number of subtasks that make this stream."""
        return max(self._graph.nodes[link.node].parallelism for link in self._links)

    def set_parallelism(self, parallelism: int) -> Self:
        """Number of subtasks of the operation that made this stream."""
        if parallelism < 1:
            raise DefinitionError(f"parallelism is {parallelism}; it is at least 1")
        node = self._maker("set_parallelism")
        if node.kind is not NodeKind.OPERATOR:
            raise DefinitionError(
                f"parallelism of {node.name!r} is given where it is made; "
                "set that of a map after it instead"
            )
        if isinstance(node.operator, CountWindowOperator) and parallelism != 1:
            raise DefinitionError(f"{node.name!r} counts all records: its parallelism is 1")
        node.parallelism = parallelism
        return self

    def name(self, name: str) -> Self:
        """Name of the operation that made this stream, for messages and Flink's web page."""
        self._maker("name").name = name
        return self

    # one record at a time

    def map(self, function: Any) -> IterationStream:
        """One value for each value: a callable, or an object with ``map(value)``."""
        return self._apply("map", MapOperator(function))

    def flat_map(self, function: Any) -> IterationStream:
        """Any number of values for each: a callable, or ``flat_map(value)``, giving an iterable."""
        return self._apply("flat_map", FlatMapOperator(function))

    def filter(self, function: Any) -> IterationStream:
        """The values for which the callable (or ``filter(value)``) is true."""
        return self._apply("filter", FilterOperator(function))

    def process(self, function: Any) -> IterationStream:
        """Anything: an object with ``process_element(value, ctx, out)``, see ``functions``."""
        return self._apply("process", ProcessOperator(function))

    # more than one stream

    def connect(self, other: IterationStream) -> ConnectedIterationStreams:
        """Two streams read by one function."""
        return ConnectedIterationStreams(self, other)

    def union(self, *others: IterationStream) -> IterationStream:
        """All records of all streams, in no order between them."""
        _check_streams("union", *others)
        self._check("union")
        links = sum((stream._links for stream in others), self._links)
        return IterationStream(self._graph, self._scope, links)

    def join(self, other: IterationStream) -> JoinedStreams:
        """Pairs of equal key at the end of both inputs.

        ``a.join(b).where(key of a).equal_to(key of b).apply(function(left, right))``
        """
        return JoinedStreams(self, other)

    # where records go

    def rebalance(self) -> IterationStream:
        """The same stream, dealt in turn to the subtasks of its reader."""
        return self._partitioned(Partition.REBALANCE)

    def broadcast(self) -> IterationStream:
        """The same stream, every record to all subtasks of its reader."""
        return self._partitioned(Partition.BROADCAST)

    def partition_custom(
        self, partitioner: Callable[[Any, int], int], key_selector: KeySelector
    ) -> IterationStream:
        """The same stream; record ``r`` goes to ``partitioner(key_selector(r), subtasks)``."""
        return self._partitioned(Partition.CUSTOM, key=key_selector, partitioner=partitioner)

    def key_by(self, key_selector: KeySelector) -> KeyedIterationStream:
        """The same stream, all records of one key to one subtask, with state by key.

        Keys are numbers, strings, bytes, ``None``, or tuples of them.
        """
        self._check("key_by")
        links = tuple(
            replace(link, partition=Partition.HASH, key=key_selector) for link in self._links
        )
        return KeyedIterationStream(self._graph, self._scope, links)

    def get_side_output(self, tag: str) -> IterationStream:
        """What the function that made this stream emitted with ``out.side(tag, value)``."""
        node = self._maker("get_side_output")
        return IterationStream(self._graph, self._scope, (InputLink(node.id, tag),))

    # windows

    def count_window_all(self, size: int, function: Any) -> IterationStream:
        """``function(list of values) -> value`` of every ``size`` values, by one subtask.

        What is left at the end and does not fill a window is dropped, as Flink does.
        """
        stream = self._apply("count_window_all", CountWindowOperator(function, size))
        return stream.set_parallelism(1)

    def window_all_at_end(self, function: Any) -> IterationStream:
        """``function(list of values) -> iterable`` once per subtask, at the end of its input.

        The end is that of the iteration for an all-round function, that of the epoch for a
        per-round one.
        """
        return self._apply("window_all_at_end", EndWindowOperator(function))

    # what a body may not do

    def assign_timestamps_and_watermarks(self, *_: Any) -> NoReturn:
        """Not allowed: event-time watermarks do not enter an iteration."""
        raise DefinitionError(
            "timestamps-in-body: event-time watermarks do not enter an iteration; "
            "assign timestamps to the Flink stream before job.from_stream"
        )

    def sink_to(self, *_: Any) -> NoReturn:
        """Not allowed: give the stream back from ``build``, and the job its sinks."""
        raise DefinitionError(
            "sink-in-body: return the stream among the outputs and give the job its sinks: "
            "job.execute(build, sinks=...)"
        )

    add_sink = sink_to
    print = sink_to

    def iterate(self, *_: Any) -> NoReturn:
        """Not allowed: loops are made by ``iterate_*`` functions."""
        raise DefinitionError(
            "nested-iteration: use iterate_bounded_streams_until_termination or "
            "iterate_unbounded_streams, outside of any body"
        )

    def _apply(self, name: str, operator: Any) -> IterationStream:
        return _operation(name, operator, self)

    def _partitioned(self, partition: Partition, **more: Any) -> IterationStream:
        self._check(partition.value)
        links = tuple(
            replace(link, **{"key": None, "partitioner": None, **more}, partition=partition)
            for link in self._links
        )
        return IterationStream(self._graph, self._scope, links)

    def _maker(self, what: str) -> DataflowNode:
        self._check(what)
        if len(self._links) != 1:
            raise DefinitionError(f"bare-union: {what} of a union; put a map after it")
        return self._graph.nodes[self._links[0].node]

    def _check(self, what: str) -> None:
        if self._graph.scope is not self._scope:
            names = " and ".join(repr(self._graph.nodes[link.node].name) for link in self._links)
            raise DefinitionError(
                f"captured-stream: {what} on a stream ({names}) of another scope; "
                "a body uses the streams that it is given, and only what it returns leaves it"
            )


class KeyedIterationStream(IterationStream):
    """A stream by key: state in its functions is kept for each key apart."""

    def reduce(self, function: Any) -> IterationStream:
        """Running ``function(reduced so far, value)`` of each key, emitted for every record."""
        return self._apply("reduce", ReduceOperator(function))

    def window_at_end(self, function: Any) -> IterationStream:
        """``function(key, list of values) -> iterable`` once per key, at the end of the input."""
        return self._apply("window_at_end", EndWindowOperator(function, keyed=True))


class ConnectedIterationStreams:
    """Two streams for one function; with keys of their own when both are keyed."""

    def __init__(self, first: IterationStream, second: IterationStream) -> None:
        _check_streams("connect", first, second)
        self._first = first
        self._second = second

    def key_by(self, first: KeySelector, second: KeySelector) -> ConnectedIterationStreams:
        """Both streams by key, state shared between records of equal key."""
        return ConnectedIterationStreams(self._first.key_by(first), self._second.key_by(second))

    def map(self, function: Any) -> IterationStream:
        """An object with ``map1(value)`` and ``map2(value)``."""
        return _operation("co_map", CoMapOperator(function), self._first, self._second)

    def process(self, function: Any) -> IterationStream:
        """An object with ``process_element1`` and ``process_element2`` ``(value, ctx, out)``."""
        return _operation("co_process", CoProcessOperator(function), self._first, self._second)


class JoinedStreams:
    """A join on its way: ``where``, ``equal_to``, ``apply``, each once and in this order."""

    def __init__(self, left: IterationStream, right: IterationStream) -> None:
        _check_streams("join", left, right)
        self._left = left
        self._right = right

    def where(self, key_selector: KeySelector) -> JoinedStreams:
        """Key of the left records."""
        return JoinedStreams(self._left.key_by(key_selector), self._right)

    def equal_to(self, key_selector: KeySelector) -> JoinedStreams:
        """Key of the right records."""
        return JoinedStreams(self._left, self._right.key_by(key_selector))

    def apply(self, function: Any) -> IterationStream:
        """``function(left, right) -> value`` of every pair: a callable or ``join``."""
        for stream in (self._left, self._right):
            if not isinstance(stream, KeyedIterationStream):
                raise DefinitionError("a join needs where(key) and equal_to(key) before apply")
        return _operation("join", EndJoinOperator(function), self._left, self._right)


def _check_streams(what: str, *streams: Any) -> None:
    for stream in streams:
        if not isinstance(stream, IterationStream):
            raise DefinitionError(f"{what} got a {type(stream).__name__}; it takes streams")
        stream._check(what)


def _operation(name: str, operator: Any, *streams: IterationStream) -> IterationStream:
    for stream in streams:
        stream._check(name)
    graph, scope = streams[0]._graph, streams[0]._scope
    node = graph.add(
        NodeKind.OPERATOR,
        name,
        max(stream.parallelism for stream in streams),
        tuple(stream._links for stream in streams),
        operator=operator,
    )
    return IterationStream(graph, scope, (InputLink(node.id),))
