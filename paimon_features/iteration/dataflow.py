"""The logical dataflow graph that streams record: nodes, links, iterations, scopes."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from paimon_features.core.configuration.arguments import checked_integer
from paimon_features.core.errors import DefinitionError
from paimon_features.iteration.config import IterationConfig, OperatorLifeCycle


class Partition(enum.Enum):
    """How the records of a link are distributed to the subtasks of the reader."""

    FORWARD = "forward"
    REBALANCE = "rebalance"
    BROADCAST = "broadcast"
    HASH = "hash"
    CUSTOM = "custom"
    ALL_REDUCE = "all_reduce"
    """Only into a tail: its data heads emit the sum over all subtasks."""


class NodeKind(enum.Enum):
    """Kind of a node, which decides what runs it."""

    SOURCE = "source"
    OPERATOR = "operator"
    HEAD = "head"
    REPLAY = "replay"
    TAIL = "tail"
    OUTPUT = "output"
    RESULT = "result"


@dataclass(frozen=True, slots=True)
class InputLink:
    """An upstream node of an input: its main output, or its side output ``tag``."""

    node: int
    tag: str | None = None
    partition: Partition = Partition.FORWARD
    key: Callable[[Any], Any] | None = None
    """Key selector of ``HASH`` and ``CUSTOM`` links."""
    partitioner: Callable[[Any, int], int] | None = None
    """``(key, number of subtasks) -> subtask`` of ``CUSTOM`` links."""


@dataclass(slots=True)
class DataflowNode:
    """An operation. ``inputs`` has one tuple of links (a union) per logical input."""

    id: int
    kind: NodeKind
    name: str
    parallelism: int
    inputs: tuple[tuple[InputLink, ...], ...]
    operator: Any = None
    """Prototype of the operator (see ``operators.record_operators``), copied per instance."""
    iteration: int | None = None
    life_cycle: OperatorLifeCycle = OperatorLifeCycle.ALL_ROUND
    index: int = 0
    """Index among the heads, tails, outputs or results, from 0."""
    criteria: bool = False
    reduces: bool = False
    """Whether a data head or tail belongs to a feedback edge that is all-reduced."""
    source: Any = None


@dataclass(slots=True)
class Iteration:
    """The nodes of one ``iterate_*`` call by their role."""

    id: int
    config: IterationConfig
    bounded: bool
    heads: list[int] = field(default_factory=list)
    tails: list[int] = field(default_factory=list)
    criteria: int | None = None
    replays: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True, eq=False)
class StreamScope:
    """Where a stream may be used: the program, the body of an iteration, or a part of a body."""

    iteration: int | None = None
    life_cycle: OperatorLifeCycle = OperatorLifeCycle.ALL_ROUND


class DataflowGraph:
    """Nodes in the order of their creation, which is a topological order."""

    def __init__(self) -> None:
        self.nodes: list[DataflowNode] = []
        self.iterations: list[Iteration] = []
        self._scopes = [StreamScope()]

    @property
    def scope(self) -> StreamScope:
        """The innermost open scope, to which new nodes belong."""
        return self._scopes[-1]

    @contextmanager
    def inside(self, scope: StreamScope) -> Iterator[None]:
        """Add nodes to ``scope`` inside the ``with`` block."""
        self._scopes.append(scope)
        try:
            yield
        finally:
            self._scopes.pop()

    def add(
        self,
        kind: NodeKind,
        name: str,
        parallelism: int,
        inputs: tuple[tuple[InputLink, ...], ...] = (),
        *,
        operator: Any = None,
        index: int = 0,
        criteria: bool = False,
        reduces: bool = False,
        source: Any = None,
    ) -> DataflowNode:
        """Append a node; it belongs to the innermost open scope."""
        parallelism = checked_integer(f"parallelism of {name!r}", parallelism)
        reduced = any(link.partition is Partition.ALL_REDUCE for links in inputs for link in links)
        if reduced and not reduces:
            raise DefinitionError(
                f"all-reduce: {name!r} reads a stream of all_reduce(), which can only be fed back; "
                "its sums arrive at the variable, one epoch later"
            )
        scope = self.scope
        node = DataflowNode(
            len(self.nodes),
            kind,
            name,
            parallelism,
            inputs,
            operator,
            scope.iteration,
            scope.life_cycle,
            index,
            criteria,
            reduces,
            source,
        )
        self.nodes.append(node)
        return node
