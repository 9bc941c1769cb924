"""What a project holds and what is made of what: describe and draw it."""

from paimon_features.lineage.describe import describe, describe_all
from paimon_features.lineage.drawing import to_svg, to_text
from paimon_features.lineage.graph import Graph, Node, lineage

__all__ = ["Graph", "Node", "describe", "describe_all", "lineage", "to_svg", "to_text"]
