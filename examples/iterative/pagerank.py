"""PageRank on the graph of purchases, block by block.

A node is a customer or a product; an edge is a purchase, in both directions, weighted by the number
of purchases. Each node distributes its rank along its edges in proportion to their weights:

    rank(v) = (1 - damping) * restart(v)
              + damping * (sum over u of rank(u) * share(u -> v) + lost * restart(v))

``lost`` is the rank of nodes without edges; ``restart`` is the distribution of restarts of a walk:
anywhere, or at chosen nodes, in which case the scores measure proximity to these (Page et al., The
PageRank Citation Ranking, 1999).

The ranks are the variables, one record per block of nodes; the edges are data that is
replayed in every epoch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from common import AtEnd, Total, by_block

from paimon_features.core.types.array_types import Floats, Ints
from paimon_features.iteration import (
    DataStreamList,
    IterationBody,
    IterationBodyResult,
    IterationConfig,
    IterationListener,
    OperatorLifeCycle,
    ReplayableDataStreamList,
    iterate_bounded_streams_until_termination,
    terminate_on_max_iter_or_tol,
)

CONFIG = IterationConfig(lifecycle=OperatorLifeCycle.PER_ROUND)


class Ranks(NamedTuple):
    """The ranks of a block of nodes, at the start of an epoch."""

    block: int
    values: Floats


class Edges(NamedTuple):
    """Edges that leave one block.

    ``source`` are positions in the block, ``target`` positions in ``targets``, ascending numbers
    of nodes; ``share`` is the part of the source's rank that is sent along the edge.
    """

    block: int
    source: Ints
    target: Ints
    targets: Ints
    share: Floats


class Contribution(NamedTuple):
    """Values for the nodes at ``positions`` of a block, or for the block if it is None."""

    block: int
    kind: str
    positions: Ints | None
    values: Floats


@dataclass(frozen=True)
class PurchaseGraph:
    """Nodes in blocks of neighbouring numbers, and the edges of each block.

    ``starts`` has the first node of each block and the number of nodes; ``restart`` sums to 1.
    """

    starts: Ints
    restart: Floats
    dangling: npt.NDArray[np.bool_]
    edges: Sequence[Edges]

    @classmethod
    def of(
        cls, source: Ints, target: Ints, weight: Floats, restart: Floats, blocks: int
    ) -> PurchaseGraph:
        """Create a graph from weighted edges; ``restart`` has a weight per node."""
        nodes = len(restart)
        starts = np.linspace(0, nodes, blocks + 1).astype(np.int64)
        out = np.bincount(source, weight, minlength=nodes)
        share = weight / out[source]
        of_block = np.searchsorted(starts, source, side="right") - 1
        edges = []
        for block in range(blocks):
            own = np.flatnonzero(of_block == block)
            targets, position = np.unique(target[own], return_inverse=True)
            edges.append(Edges(block, source[own] - starts[block], position, targets, share[own]))
        return cls(starts, restart / restart.sum(), out == 0, edges)

    @property
    def blocks(self) -> int:
        return len(self.starts) - 1

    def slice(self, block: int) -> slice:
        """Return the nodes of a block."""
        return slice(int(self.starts[block]), int(self.starts[block + 1]))

    def start(self) -> list[Ranks]:
        """Return the ranks of epoch 0: the distribution of restarts."""
        return [Ranks(block, self.restart[self.slice(block)]) for block in range(self.blocks)]


class Spread:
    """Sends each block's ranks along its edges: one sum per receiving node."""

    def __init__(self, graph: PurchaseGraph) -> None:
        self.starts, self.dangling = graph.starts, graph.dangling

    def process_element1(self, ranks: Ranks, ctx: Any, out: Any) -> None:
        ctx.state.map("ranks").put(ranks.block, ranks.values)
        out.collect(Contribution(ranks.block, "before", None, ranks.values))
        first = int(self.starts[ranks.block])
        lost = ranks.values[self.dangling[first : first + len(ranks.values)]].sum()
        if lost:
            for block in range(len(self.starts) - 1):
                out.collect(Contribution(block, "lost", None, np.array([lost])))
        waiting = ctx.state.map("edges").get(ranks.block)
        for edges in waiting or ():
            self._send(edges, ranks.values, out)

    def process_element2(self, edges: Edges, ctx: Any, out: Any) -> None:
        values = ctx.state.map("ranks").get(edges.block)
        if values is not None:
            self._send(edges, values, out)
            return
        waiting = ctx.state.map("edges")
        waiting.put(edges.block, [*(waiting.get(edges.block) or ()), edges])

    def _send(self, edges: Edges, ranks: Floats, out: Any) -> None:
        carried = ranks[edges.source] * edges.share
        sums = np.bincount(edges.target, carried, minlength=len(edges.targets))
        # targets ascend: those of one block are adjacent
        cuts = np.searchsorted(edges.targets, self.starts)
        for block in range(len(self.starts) - 1):
            own = slice(int(cuts[block]), int(cuts[block + 1]))
            if own.start < own.stop:
                positions = edges.targets[own] - self.starts[block]
                out.collect(Contribution(block, "sum", positions, sums[own]))


class Gather(IterationListener):
    """Sums the contributions to its blocks, and emits the new ranks at the end of the epoch."""

    def __init__(self, graph: PurchaseGraph, damping: float) -> None:
        self.restart, self.starts, self.damping = graph.restart, graph.starts, damping

    def process_element(self, part: Contribution, ctx: Any, out: Any) -> None:
        state = ctx.state.map(part.kind)
        if part.kind == "before":
            state.put(part.block, part.values)
            return
        known = state.get(part.block)
        if known is None:
            size = self.starts[part.block + 1] - self.starts[part.block]
            known = np.zeros(size if part.kind == "sum" else 1)
        if part.positions is None:
            known = known + part.values
        else:
            known = known.copy()  # values of a state must not be modified
            known[part.positions] += part.values  # each position once
        state.put(part.block, known)

    def on_epoch_watermark_incremented(self, epoch: int, ctx: Any, out: Any) -> None:
        change = 0.0
        sums, lost = ctx.state.map("sum"), ctx.state.map("lost")
        for block, before in sorted(ctx.state.map("before").items(), key=lambda item: item[0]):
            restart = self.restart[self.starts[block] : self.starts[block + 1]]
            received, again = sums.get(block), lost.get(block)
            moved = 0.0 if received is None else received
            moved = moved + (0.0 if again is None else again[0]) * restart
            after = (1 - self.damping) * restart + self.damping * moved
            change += float(np.abs(after - before).sum())
            out.collect(Ranks(block, after))
        out.side("change", change)


class PageRank(IterationBody):
    """The loop: at most ``max_rounds`` epochs, or until the ranks move by less than ``tol``."""

    def __init__(
        self, graph: PurchaseGraph, damping: float = 0.85, max_rounds: int = 50, tol: float = 1e-8
    ) -> None:
        self.graph, self.damping, self.max_rounds, self.tol = graph, damping, max_rounds, tol

    def process(self, variables: DataStreamList, data: DataStreamList) -> IterationBodyResult:
        ranks, edges = variables.get(0), data.get(0)
        home = (by_block, lambda record: record.block)
        spread = ranks.partition_custom(*home).connect(edges.partition_custom(*home))
        parts = spread.process(Spread(self.graph)).name("spread")
        after = parts.partition_custom(*home).process(Gather(self.graph, self.damping))
        change = after.name("gather").get_side_output("change")
        total = change.process(Total()).set_parallelism(1).name("change")
        criteria = total.flat_map(terminate_on_max_iter_or_tol(self.max_rounds, self.tol))
        last = ranks.process(AtEnd()).name("ranks at the end")
        return IterationBodyResult(
            DataStreamList.of(after), DataStreamList.of(last, total), criteria
        )


def build(graph: PurchaseGraph, parallelism: int = 2, **settings: Any) -> Any:
    """Return the program: its results are the last ranks of all blocks, and the changes."""

    def program(job: Any) -> Any:
        ranks = job.from_collection(graph.start(), parallelism=parallelism, name="start")
        edges = job.from_collection(list(graph.edges), parallelism=parallelism, name="edges")
        return iterate_bounded_streams_until_termination(
            DataStreamList.of(ranks),
            ReplayableDataStreamList.replay(edges),
            CONFIG,
            PageRank(graph, **settings),
        )

    return program


def joined(blocks: Sequence[Ranks]) -> Floats:
    """Return the ranks of all blocks as one array."""
    return np.concatenate([ranks.values for ranks in sorted(blocks, key=lambda r: r.block)])
