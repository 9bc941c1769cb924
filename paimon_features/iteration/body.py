"""``iterate_*``: build the loop from variables, data streams and a body."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from paimon_features.core.errors import DefinitionError
from paimon_features.iteration.config import IterationConfig, OperatorLifeCycle
from paimon_features.iteration.dataflow import (
    DataflowGraph,
    InputLink,
    Iteration,
    NodeKind,
    Partition,
    StreamScope,
)
from paimon_features.iteration.stream_lists import DataStreamList, ReplayableDataStreamList
from paimon_features.iteration.streams import IterationStream
from paimon_features.iteration.validation import (
    check_arguments,
    check_inputs,
    check_result,
    check_round_inputs,
    check_round_outputs,
    streams_of,
)


@dataclass(frozen=True, slots=True)
class IterationBodyResult:
    """The result of an iteration body.

    Parameters
    ----------
    feedback
        The next values of the variables, in their order and with their parallelism.
    outputs
        Streams that leave the iteration; they end when it has ended.
    termination_criteria
        The iteration ends with the first round in which this stream is empty. Bounded iterations
        only.
    """

    feedback: DataStreamList
    outputs: DataStreamList
    termination_criteria: IterationStream | None = None


class IterationBody:
    """The body of an iteration; a callable with the same arguments is accepted as well."""

    def process(self, variables: DataStreamList, data: DataStreamList) -> IterationBodyResult:
        """Build the body from the variable streams and the data streams.

        Called once, when the program is built; it only records the operations.
        """
        raise NotImplementedError


BodyFunction = IterationBody | Callable[[DataStreamList, DataStreamList], IterationBodyResult]


def iterate_bounded_streams_until_termination(
    init_variables: DataStreamList,
    data: ReplayableDataStreamList,
    config: IterationConfig,
    body: BodyFunction,
) -> DataStreamList:
    """Iterate over bounded streams until a round has no record or the criteria are empty.

    Epoch 0 contains the initial records, epoch e + 1 the records that were fed back in epoch e.
    The iteration ends with the first round from 1 on without any record in the feedback and
    criteria streams, or, if there is a criteria stream, without a record in that one.

    Parameters
    ----------
    init_variables
        Initial values of the variables, at least one stream.
    data
        Further streams that the body reads; it receives the replayed ones first.
    config
        Life cycle of the body's functions, maximum number of rounds, wire.
    body
        Takes the variables and the data streams; returns feedback, outputs and criteria.

    Raises
    ------
    DefinitionError
        The program breaks a rule; the message starts with the rule's name.
    """
    if not isinstance(data, ReplayableDataStreamList):
        raise DefinitionError(
            f"streams: the data of a bounded iteration are of type {type(data).__name__}; expected "
            "ReplayableDataStreamList.replay(...) or .not_replay(...)"
        )
    return _iterate(init_variables, data.replayed, data.not_replayed, config, body, bounded=True)


def iterate_unbounded_streams(
    init_variables: DataStreamList,
    data: DataStreamList,
    body: BodyFunction,
    config: IterationConfig | None = None,
) -> DataStreamList:
    """Iterate over streams that may be unbounded.

    Records circulate as they arrive; there are no termination criteria. If all inputs end, the
    iteration ends with the first round without a record.

    Raises
    ------
    DefinitionError
        The program breaks a rule; the message starts with the rule's name.
    """
    data_streams = streams_of(data, "the data of an unbounded iteration")
    return _iterate(
        init_variables, (), data_streams, config or IterationConfig(), body, bounded=False
    )


def for_each_round(
    inputs: DataStreamList, sub_body: Callable[[DataStreamList], DataStreamList]
) -> DataStreamList:
    """Run a part of a body with one instance of each of its functions per epoch.

    Called inside a body, whatever the iteration's life cycle. ``sub_body`` may use only the
    streams in its argument; the streams that it returns can be used in the body.

    Raises
    ------
    DefinitionError
        ``inputs`` is empty, the call is outside of a body, or ``sub_body`` uses other streams.
    """
    streams = check_round_inputs(inputs)
    graph = streams[0]._graph
    outer = graph.scope
    part = StreamScope(outer.iteration, OperatorLifeCycle.PER_ROUND)
    with graph.inside(part):
        result = sub_body(DataStreamList(*(_in_scope(stream, part) for stream in streams)))
        outputs = check_round_outputs(result, graph)
    return DataStreamList(*(_in_scope(stream, outer) for stream in outputs))


def _iterate(
    init_variables: Iterable[IterationStream],
    replayed: tuple[IterationStream, ...],
    not_replayed: tuple[IterationStream, ...],
    config: IterationConfig,
    body: BodyFunction,
    *,
    bounded: bool,
) -> DataStreamList:
    variables = streams_of(init_variables, "init_variables")
    check_arguments(config, body)
    graph = check_inputs(variables, (*replayed, *not_replayed), config, bounded=bounded)
    outer = graph.scope
    iteration = Iteration(len(graph.iterations), config, bounded)
    inner = StreamScope(iteration.id, config.lifecycle)
    graph.iterations.append(iteration)
    with graph.inside(inner):
        heads = [
            _append_node(graph, NodeKind.HEAD, f"variable {index}", index, stream)
            for index, stream in enumerate(variables)
        ]
        replays = [
            _append_node(graph, NodeKind.REPLAY, f"replayed data {index}", index, stream)
            for index, stream in enumerate(replayed)
        ]
        data = [*replays, *(_in_scope(stream, inner) for stream in not_replayed)]
        build = body.process if isinstance(body, IterationBody) else body
        result = build(DataStreamList(*heads), DataStreamList(*data))
        check_result(result, heads, graph, bounded=bounded)
        iteration.heads = [_node_id(stream) for stream in heads]
        iteration.replays = [_node_id(stream) for stream in replays]
        for index, (stream, head) in enumerate(zip(result.feedback, iteration.heads, strict=True)):
            reduces = stream._links[0].partition is Partition.ALL_REDUCE
            graph.nodes[head].reduces = reduces
            tail = _append_node(
                graph, NodeKind.TAIL, f"feedback {index}", index, stream, reduces=reduces
            )
            iteration.tails.append(_node_id(tail))
        if result.termination_criteria is not None:
            criteria = graph.add(
                NodeKind.TAIL,
                "termination criteria",
                result.termination_criteria.parallelism,
                (result.termination_criteria._links,),
                criteria=True,
            )
            iteration.criteria = criteria.id
        outputs = [
            _append_node(graph, NodeKind.OUTPUT, f"output {index}", index, stream)
            for index, stream in enumerate(result.outputs)
        ]
        iteration.outputs = [_node_id(stream) for stream in outputs]
    return DataStreamList(*(_in_scope(stream, outer) for stream in outputs))


def _append_node(
    graph: DataflowGraph,
    kind: NodeKind,
    name: str,
    index: int,
    stream: IterationStream,
    *,
    reduces: bool = False,
) -> IterationStream:
    """Append a node of the runtime to a stream, with the stream's parallelism."""
    node = graph.add(kind, name, stream.parallelism, (stream._links,), index=index, reduces=reduces)
    return IterationStream(graph, graph.scope, (InputLink(node.id),))


def _in_scope(stream: IterationStream, scope: StreamScope) -> IterationStream:
    return IterationStream(stream._graph, scope, stream._links)


def _node_id(stream: IterationStream) -> int:
    return stream._links[0].node
