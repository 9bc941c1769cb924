"""The nodes and edges of a lineage graph: what its renderings read."""

from __future__ import annotations

from dataclasses import dataclass

KINDS = (
    "source", "table_view", "feature_view", "derived_view", "interaction",
    "fitted_transformer", "transformed", "service", "training_set", "model",
)  # fmt: skip
"""Kinds of nodes, from inputs to outputs."""


@dataclass(frozen=True, slots=True, order=True)
class LineageNode:
    """A definition or a written training set; ``note`` is shown next to its name."""

    kind: str
    name: str
    note: str = ""

    @property
    def title(self) -> str:
        """Kind and name, for display.

        >>> LineageNode("feature_view", "spend").title
        'feature view spend'
        """
        return f"{self.kind.replace('_', ' ')} {self.name}"


@dataclass(frozen=True)
class NodesAndEdges:
    """Nodes and edges ``(from, to)``: the second is derived from the first. Acyclic."""

    nodes: tuple[LineageNode, ...]
    edges: tuple[tuple[LineageNode, LineageNode], ...]

    def parents(self, node: LineageNode) -> list[LineageNode]:
        """Return the nodes that a node is derived from."""
        return [a for a, b in self.edges if b == node]

    def children(self, node: LineageNode) -> list[LineageNode]:
        """Return the nodes derived from a node."""
        return [b for a, b in self.edges if a == node]
