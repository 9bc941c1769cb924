"""Construction rules (S31); every message starts with the rule's short name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from paimon_features.core.errors import DefinitionError
from paimon_features.iteration.dataflow import Partition

if TYPE_CHECKING:
    from paimon_features.iteration.config import IterationConfig
    from paimon_features.iteration.dataflow import DataflowGraph
    from paimon_features.iteration.streams import IterationStream


def streams_of(given: Any, what: str) -> tuple[IterationStream, ...]:
    """Return the streams of a list of streams; raise DefinitionError for anything else."""
    from paimon_features.iteration.streams import IterationStream

    try:
        streams = tuple(given)
    except TypeError:
        raise DefinitionError(
            f"streams: {what} is of type {type(given).__name__}; expected a DataStreamList, "
            "also of one stream: DataStreamList.of(stream)"
        ) from None
    for stream in streams:
        if not isinstance(stream, IterationStream):
            raise DefinitionError(
                f"streams: {what} contains a value of type {type(stream).__name__}; "
                "expected streams"
            )
    return streams


def check_arguments(config: Any, body: Any) -> None:
    """Check the types of the configuration and the body."""
    from paimon_features.iteration.config import IterationConfig

    if not isinstance(config, IterationConfig):
        raise DefinitionError(
            f"iteration-config: got {config!r}; expected an IterationConfig, for example "
            "IterationConfig()"
        )
    if isinstance(body, type) or not (hasattr(body, "process") or callable(body)):
        raise DefinitionError(
            f"body: got {body!r}; expected an object of an IterationBody, or a callable"
        )


def check_inputs(
    variables: Sequence[IterationStream],
    data: Sequence[IterationStream],
    config: IterationConfig,
    *,
    bounded: bool,
) -> DataflowGraph:
    """Reject an iteration without variables, a nested one, and unsuitable input streams."""
    if not variables:
        raise DefinitionError(
            "no-variable-stream: an iteration needs at least one initial variable stream"
        )
    graph = variables[0]._graph
    if graph.scope.iteration is not None:
        raise DefinitionError(
            "nested-iteration: an iteration inside the body of another one; "
            "merge the two loops, or run one after the other"
        )
    for stream in (*variables, *data):
        _check_same_graph(stream, graph)
        stream._check("iterate")
        if bounded and (name := _unbounded_source(stream, graph)) is not None:
            raise DefinitionError(
                f"unbounded-stream: {name!r} never ends, so a bounded iteration over it would "
                "never end its round 0; use iterate_unbounded_streams"
            )
    if config.max_rounds is not None and not bounded:
        raise DefinitionError(
            f"criteria-unbounded: max_rounds is {config.max_rounds}; an unbounded iteration has "
            "no termination criteria, it ends when its inputs have ended and a round has no record"
        )
    return graph


def check_result(
    result: Any, heads: Sequence[IterationStream], graph: DataflowGraph, *, bounded: bool
) -> None:
    """Reject feedback that does not match the variables, and criteria that are not allowed."""
    for name in ("feedback", "outputs", "termination_criteria"):
        if not hasattr(result, name):
            raise DefinitionError(
                f"body-result: a body returned {type(result).__name__}; "
                "it returns an IterationBodyResult"
            )
    feedback = streams_of(result.feedback, "the feedback")
    if len(feedback) != len(heads):
        raise DefinitionError(
            f"feedback-count: the body feeds back {len(feedback)} streams for {len(heads)} "
            "variables; expected one for each"
        )
    for index, (stream, head) in enumerate(zip(feedback, heads, strict=True)):
        _check_edge(stream, graph, f"feedback {index}")
        if not bounded and stream._links[0].partition is Partition.ALL_REDUCE:
            raise DefinitionError(
                f"all-reduce: feedback {index} of an unbounded iteration, whose epochs may never "
                "end; broadcast the records and add them up as they arrive"
            )
        if stream.parallelism != head.parallelism:
            raise DefinitionError(
                f"parallelism-mismatch: feedback {index} has parallelism {stream.parallelism}, "
                f"its variable has {head.parallelism}; put a map with "
                f"set_parallelism({head.parallelism}) after it"
            )
    criteria = result.termination_criteria
    if criteria is not None:
        if not bounded:
            raise DefinitionError(
                "criteria-unbounded: an unbounded iteration has no termination criteria; "
                "it ends when its inputs have ended and a round has no record"
            )
        streams_of([criteria], "the termination criteria")
        _check_edge(criteria, graph, "termination criteria")
    for index, stream in enumerate(streams_of(result.outputs, "the outputs of a body")):
        _check_same_graph(stream, graph)
        stream._check(f"output {index}")


def check_round_inputs(inputs: Iterable[IterationStream]) -> tuple[IterationStream, ...]:
    """Reject ``for_each_round`` without streams, or outside of a body."""
    streams = streams_of(inputs, "the input of for_each_round")
    if not streams:
        raise DefinitionError("empty-for-each-round: for_each_round needs at least one stream")
    graph = streams[0]._graph
    for stream in streams:
        _check_same_graph(stream, graph)
        stream._check("for_each_round")
    if graph.scope.iteration is None:
        raise DefinitionError(
            "for-each-round-outside: for_each_round is called outside of a body; "
            "rounds exist only inside an iteration"
        )
    return streams


def check_round_outputs(result: Any, graph: DataflowGraph) -> tuple[IterationStream, ...]:
    """Reject outputs of ``for_each_round`` that are not streams of its scope."""
    streams = streams_of(result, "the result of for_each_round")
    for stream in streams:
        _check_same_graph(stream, graph)
        stream._check("the result of for_each_round")
    return streams


def check_source(graph: DataflowGraph, name: str) -> None:
    """Reject a source inside a body."""
    if graph.scope.iteration is not None:
        raise DefinitionError(
            f"source-in-body: {name!r} is a source inside a body; create it outside, and pass its "
            "stream to the iteration as a variable or as data"
        )


def _unbounded_source(stream: IterationStream, graph: DataflowGraph) -> str | None:
    """Return the name of an unbounded source of the stream, or ``None``."""
    links = list(stream._links)
    while links:
        node = graph.nodes[links.pop().node]
        if not getattr(node.source, "bounded", True):
            return node.name
        links += [link for group in node.inputs for link in group]
    return None


def _check_edge(stream: IterationStream, graph: DataflowGraph, what: str) -> None:
    _check_same_graph(stream, graph)
    stream._check(what)
    if len(stream._links) != 1:
        raise DefinitionError(
            f"bare-union: {what} is a union of {len(stream._links)} streams; put a map after it"
        )


def _check_same_graph(stream: IterationStream, graph: DataflowGraph) -> None:
    if stream._graph is not graph:
        raise DefinitionError(
            "captured-stream: streams of two jobs are used together; "
            "all streams of a program must come from the job that is passed to build"
        )
