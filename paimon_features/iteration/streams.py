"""Streams of a program. They only record operations; nothing runs while a body is called."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NoReturn, Self

from paimon_features.core.configuration.arguments import checked_integer, checked_text, shown
from paimon_features.core.errors import DefinitionError
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
    """A stream of Python values, similar to a ``DataStream`` of pyflink.

    An operation has the largest parallelism of its inputs unless ``set_parallelism`` is called.
    Records are forwarded to the subtask with the same index if the parallelism is the same, and
    distributed round-robin otherwise; ``rebalance``, ``broadcast``, ``partition_custom`` and
    ``key_by`` change that.
    """

    def __init__(
        self, graph: DataflowGraph, scope: StreamScope, links: tuple[InputLink, ...]
    ) -> None:
        self._graph = graph
        self._scope = scope
        self._links = links

    @property
    def parallelism(self) -> int:
        """Number of subtasks that produce this stream."""
        return max(self._graph.nodes[link.node].parallelism for link in self._links)

    def set_parallelism(self, parallelism: int) -> Self:
        """Set the number of subtasks of the operation that produces this stream."""
        parallelism = checked_integer("parallelism", parallelism)
        node = self._producer("set_parallelism")
        if node.kind is not NodeKind.OPERATOR:
            raise DefinitionError(
                f"parallelism of {node.name!r} is set where it is created; "
                "set that of a map after it instead"
            )
        if isinstance(node.operator, CountWindowOperator) and parallelism != 1:
            raise DefinitionError(f"{node.name!r} counts all records: its parallelism must be 1")
        node.parallelism = parallelism
        return self

    def name(self, name: str) -> Self:
        """Set the name of this stream's operation, for messages and Flink's web UI."""
        self._producer("name").name = checked_text("the name of an operation", name)
        return self

    # one record at a time

    def map(self, function: Any) -> IterationStream:
        """Map each value to one value: a callable, or an object with ``map(value)``."""
        return self._apply("map", MapOperator(function))

    def flat_map(self, function: Any) -> IterationStream:
        """Map each value to an iterable of values: a callable, or ``flat_map(value)``."""
        return self._apply("flat_map", FlatMapOperator(function))

    def filter(self, function: Any) -> IterationStream:
        """Keep the values for which the callable (or ``filter(value)``) is true."""
        return self._apply("filter", FilterOperator(function))

    def process(self, function: Any) -> IterationStream:
        """Apply an object with ``process_element(value, ctx, out)``, see ``user_functions``."""
        return self._apply("process", ProcessOperator(function))

    # more than one stream

    def connect(self, other: IterationStream) -> ConnectedIterationStreams:
        """Connect two streams, to be read by one function."""
        return ConnectedIterationStreams(self, other)

    def union(self, *others: IterationStream) -> IterationStream:
        """Merge streams; the order between records of different streams is undefined."""
        _check_streams("union", *others)
        self._check("union")
        links = sum((stream._links for stream in others), self._links)
        return IterationStream(self._graph, self._scope, links)

    def join(self, other: IterationStream) -> JoinedStreams:
        """Join two streams by key, at the end of both inputs.

        ``a.join(b).where(key of a).equal_to(key of b).apply(function(left, right))``
        """
        return JoinedStreams(self, other)

    # partitioning

    def rebalance(self) -> IterationStream:
        """Distribute records round-robin to the subtasks of the reader."""
        return self._partitioned(Partition.REBALANCE)

    def broadcast(self) -> IterationStream:
        """Send every record to all subtasks of the reader."""
        return self._partitioned(Partition.BROADCAST)

    def all_reduce(self) -> IterationStream:
        """Feed back the elementwise sum of this stream's records, to every subtask of the variable.

        The records are float64 arrays of one shape, the same for all records of an epoch, usually
        one per subtask. The next epoch of the variable has one record in each subtask: their sum,
        added up in the order of the subtasks, and of the records in a subtask, so that it is the
        same to the bit whatever arrives first; none if the epoch had no record. It can only be fed
        back, in a bounded iteration. Where the sum must be known within the epoch, ``broadcast``
        the records to an operator that adds them up: one more stage.

        Raises
        ------
        DefinitionError
            The stream was partitioned already (``all-reduce``).
        JobError
            While it runs: a record is not a float64 array, or two have different shapes.
        """
        return self._partitioned(Partition.ALL_REDUCE)

    def partition_custom(
        self, partitioner: Callable[[Any, int], int], key_selector: KeySelector
    ) -> IterationStream:
        """Send record ``r`` to the subtask ``partitioner(key_selector(r), subtasks)``."""
        _check_callable("the partitioner of partition_custom", partitioner)
        _check_callable("the key selector of partition_custom", key_selector)
        return self._partitioned(Partition.CUSTOM, key=key_selector, partitioner=partitioner)

    def key_by(self, key_selector: KeySelector) -> KeyedIterationStream:
        """Partition by key: all records of a key are sent to one subtask, with state by key.

        Keys are numbers, strings, bytes, ``None``, or tuples of them; any other key is a
        ``JobError`` while it runs, whatever the parallelism.
        """
        self._check("key_by")
        _check_callable("the key selector of key_by", key_selector)
        links = tuple(
            replace(link, partition=Partition.HASH, key=key_selector) for link in self._links
        )
        return KeyedIterationStream(self._graph, self._scope, links)

    def get_side_output(self, tag: str) -> IterationStream:
        """Return the values that this stream's function emits with ``out.side(tag, value)``."""
        checked_text("the tag of a side output", tag)
        node = self._producer("get_side_output")
        return IterationStream(self._graph, self._scope, (InputLink(node.id, tag),))

    # windows

    def count_window_all(self, size: int, function: Any) -> IterationStream:
        """Apply ``function(list of values) -> value`` to every ``size`` values, in one subtask.

        An incomplete window at the end is dropped, as in Flink.
        """
        stream = self._apply("count_window_all", CountWindowOperator(function, size))
        return stream.set_parallelism(1)

    def window_all_at_end(self, function: Any) -> IterationStream:
        """Apply ``function(list of values) -> iterable`` once per subtask, at the end of its input.

        This is the end of the iteration for an all-round function, and the end of the epoch for a
        per-round function.
        """
        return self._apply("window_all_at_end", EndWindowOperator(function))

    # not allowed in a body

    def assign_timestamps_and_watermarks(self, *_: Any) -> NoReturn:
        """Raise DefinitionError: event-time watermarks are dropped at the entry of an iteration."""
        raise DefinitionError(
            "timestamps-in-body: event-time watermarks are dropped at the entry of an iteration; "
            "assign timestamps to the Flink stream before job.from_stream"
        )

    def sink_to(self, *_: Any) -> NoReturn:
        """Raise DefinitionError: return the stream from ``build``, pass the sinks to the job."""
        raise DefinitionError(
            "sink-in-body: return the stream as an output and pass the sinks to the job: "
            "job.execute(build, sinks=...)"
        )

    add_sink = sink_to
    print = sink_to

    def iterate(self, *_: Any) -> NoReturn:
        """Raise DefinitionError: loops are created by the ``iterate_*`` functions."""
        raise DefinitionError(
            "nested-iteration: use iterate_bounded_streams_until_termination or "
            "iterate_unbounded_streams, outside of any body"
        )

    def _apply(self, name: str, operator: Any) -> IterationStream:
        return _operation(name, operator, self)

    def _partitioned(self, partition: Partition, **more: Any) -> IterationStream:
        self._check(partition.value)
        if any(link.partition is Partition.ALL_REDUCE for link in self._links):
            raise DefinitionError(
                f"all-reduce: {partition.value} of a stream of all_reduce(), which can only be "
                "fed back"
            )
        links = tuple(
            replace(link, **{"key": None, "partitioner": None, **more}, partition=partition)
            for link in self._links
        )
        return IterationStream(self._graph, self._scope, links)

    def _producer(self, what: str) -> DataflowNode:
        self._check(what)
        if len(self._links) != 1:
            raise DefinitionError(f"bare-union: {what} of a union; put a map after it")
        return self._graph.nodes[self._links[0].node]

    def _check(self, what: str) -> None:
        if self._graph.scope is not self._scope:
            names = " and ".join(repr(self._graph.nodes[link.node].name) for link in self._links)
            raise DefinitionError(
                f"captured-stream: {what} on a stream ({names}) of another scope; "
                "a body can use only its arguments, and only the streams that it returns leave it"
            )


class KeyedIterationStream(IterationStream):
    """A keyed stream: its functions have state per key."""

    def reduce(self, function: Any) -> IterationStream:
        """Emit the running ``function(reduced so far, value)`` of each key for every record."""
        return self._apply("reduce", ReduceOperator(function))

    def window_at_end(self, function: Any) -> IterationStream:
        """Apply ``function(key, list of values) -> iterable`` per key, at the end of the input."""
        return self._apply("window_at_end", EndWindowOperator(function, keyed=True))


class ConnectedIterationStreams:
    """Two streams that one function reads; with state per key if both are keyed."""

    def __init__(self, first: IterationStream, second: IterationStream) -> None:
        _check_streams("connect", first, second)
        self._first = first
        self._second = second

    def key_by(self, first: KeySelector, second: KeySelector) -> ConnectedIterationStreams:
        """Partition both streams by key; records with equal keys share state."""
        return ConnectedIterationStreams(self._first.key_by(first), self._second.key_by(second))

    def map(self, function: Any) -> IterationStream:
        """Apply an object with ``map1(value)`` and ``map2(value)``."""
        return _operation("co_map", CoMapOperator(function), self._first, self._second)

    def process(self, function: Any) -> IterationStream:
        """Apply an object with ``process_element1`` and ``process_element2`` (value, ctx, out)."""
        return _operation("co_process", CoProcessOperator(function), self._first, self._second)


class JoinedStreams:
    """An unfinished join: call ``where``, ``equal_to`` and ``apply``, once each, in this order."""

    def __init__(self, left: IterationStream, right: IterationStream) -> None:
        _check_streams("join", left, right)
        self._left = left
        self._right = right

    def where(self, key_selector: KeySelector) -> JoinedStreams:
        """Set the key of the left records."""
        return JoinedStreams(self._left.key_by(key_selector), self._right)

    def equal_to(self, key_selector: KeySelector) -> JoinedStreams:
        """Set the key of the right records."""
        return JoinedStreams(self._left, self._right.key_by(key_selector))

    def apply(self, function: Any) -> IterationStream:
        """Emit ``function(left, right) -> value`` for every pair: a callable or ``join``."""
        for stream in (self._left, self._right):
            if not isinstance(stream, KeyedIterationStream):
                raise DefinitionError("a join needs where(key) and equal_to(key) before apply")
        return _operation("join", EndJoinOperator(function), self._left, self._right)


def _check_streams(what: str, *streams: Any) -> None:
    for stream in streams:
        if not isinstance(stream, IterationStream):
            raise DefinitionError(f"{what} got a {type(stream).__name__}; expected streams")
        stream._check(what)


def _check_callable(what: str, value: Any) -> None:
    if not callable(value):
        raise DefinitionError(f"{what} is {shown(value)}; expected a callable")


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
