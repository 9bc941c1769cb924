"""Descriptions of a project's definitions, and their lineage graph as text or SVG."""

from paimon_features.project.lineage.descriptions import describe, describe_all, describe_stored
from paimon_features.project.lineage.lineage_graph import LineageGraph, lineage
from paimon_features.project.lineage.nodes_and_edges import LineageNode
from paimon_features.project.lineage.rendering import to_svg, to_text

__all__ = [
    "LineageGraph",
    "LineageNode",
    "describe",
    "describe_all",
    "describe_stored",
    "lineage",
    "to_svg",
    "to_text",
]
