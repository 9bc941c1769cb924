"""A program: ``build(job)`` creates streams from sources and returns its result streams."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paimon_features.core.configuration.arguments import checked_integer, checked_text, shown
from paimon_features.core.errors import DefinitionError
from paimon_features.iteration.dataflow import DataflowGraph, InputLink, NodeKind
from paimon_features.iteration.execution_plan import ExecutionPlan, make_plan
from paimon_features.iteration.sources import CollectionSource, SnapshotSource
from paimon_features.iteration.streams import IterationStream
from paimon_features.iteration.validation import check_source

if TYPE_CHECKING:
    from paimon_features.lake import Lake


class JobBuilder:
    """The ``job`` argument of a program's ``build``; engines add sources of their own."""

    def __init__(self, parallelism: int = 1) -> None:
        self.graph = DataflowGraph()
        self.parallelism = checked_integer("parallelism", parallelism)
        """Parallelism requested by the caller; a program may pass it to its sources."""

    def from_collection(
        self,
        values: Iterable[Any],
        parallelism: int = 1,
        name: str | None = None,
        bounded: bool = True,
    ) -> IterationStream:
        """Return a stream of the given values.

        Parameters
        ----------
        values
            Any picklable values, distributed round-robin to the subtasks.
        parallelism
            Number of subtasks that emit them.
        name
            Name in messages and in Flink's web UI.
        bounded
            Whether the stream ends after the last value; otherwise it stays open without records.
        """
        if not isinstance(bounded, bool):
            raise DefinitionError(f"from_collection: bounded={shown(bounded)}; expected bool")
        return self.from_source(
            CollectionSource(tuple(values), bounded), parallelism, name or "collection"
        )

    def from_table(
        self,
        lake: Lake,
        table: str,
        columns: Sequence[str] | None = None,
        block_rows: int = 8192,
        parallelism: int = 1,
    ) -> IterationStream:
        """Return the rows of a table as Arrow record batches.

        Every subtask reads its own splits. The snapshot is the latest one at the time of the call,
        also after a failure.

        Parameters
        ----------
        columns
            All by default.
        block_rows
            Maximum number of rows in a batch.

        Raises
        ------
        UnknownNameError
            If there is no such table or column.
        DefinitionError
            If ``block_rows`` is not a positive integer.
        """
        block_rows = checked_integer("block_rows", block_rows)
        from paimon_features.lake.reading.splits import plan_splits

        source = SnapshotSource(plan_splits(lake, table, columns), block_rows)
        return self.from_source(source, parallelism, table)

    def from_source(self, source: Any, parallelism: int, name: str) -> IterationStream:
        """Return a stream of a source that the engine can read."""
        check_source(self.graph, checked_text("the name of a source", name))
        node = self.graph.add(NodeKind.SOURCE, name, parallelism, source=source)
        return IterationStream(self.graph, self.graph.scope, (InputLink(node.id),))


BuildResult = IterationStream | Iterable[IterationStream] | Mapping[str, IterationStream]


@dataclass(frozen=True, slots=True)
class IterationProgram:
    """A built program: its plan and the shape of its results."""

    plan: ExecutionPlan
    shape: str
    """``"one"``, ``"list"`` or ``"dict"``."""

    def shape_results(self, results: list[list[Any]]) -> Any:
        """Return the results in the shape that ``build`` returned: a list of values, a list of
        lists, or a dictionary of lists."""
        if self.shape == "one":
            return results[0]
        if self.shape == "dict":
            return dict(zip(self.plan.results, results, strict=True))
        return results


def build_program(job: JobBuilder, build: Callable[[Any], BuildResult]) -> IterationProgram:
    """Call ``build`` and plan the program that it returns.

    Raises
    ------
    DefinitionError
        The program breaks a rule, or ``build`` returned something other than streams.
    """
    returned = build(job)
    if isinstance(returned, IterationStream):
        shape, named = "one", {"result": returned}
    elif isinstance(returned, Mapping):
        shape, named = "dict", dict(returned)
    elif not isinstance(returned, Iterable):
        raise DefinitionError(
            f"build-result: build returned a {type(returned).__name__}; "
            "it returns a stream, a list of streams or a dictionary of streams"
        )
    else:
        shape, named = "list", {f"result {i}": stream for i, stream in enumerate(returned)}
    for index, (name, stream) in enumerate(named.items()):
        if not isinstance(stream, IterationStream):
            raise DefinitionError(
                f"build-result: build returned a {type(stream).__name__} as {name!r}; "
                "it returns a stream, a list of streams or a dictionary of streams"
            )
        stream._check(name)
        job.graph.add(NodeKind.RESULT, name, stream.parallelism, (stream._links,), index=index)
    return IterationProgram(make_plan(job.graph), shape)
