"""Renders a lineage graph as text for a terminal, and as SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from paimon_features.project.lineage.nodes_and_edges import KINDS, LineageNode, NodesAndEdges


def to_text(graph: NodesAndEdges) -> str:
    """Render one tree per source; a node with several parents is expanded once.

    >>> a = LineageNode("source", "clicks")
    >>> b = LineageNode("feature_view", "taste", "user, 3 features")
    >>> print(to_text(NodesAndEdges((a, b), ((a, b),))))
    source clicks
    └─ feature view taste  (user, 3 features)
    """
    lines: list[str] = []
    expanded: set[LineageNode] = set()

    def render(node: LineageNode, first: str, rest: str) -> None:
        again = node in expanded
        children = graph.children(node)
        note = f"  ({node.note})" if node.note else ""
        more = "  (see above)" if again and children else ""
        lines.append(f"{first}{node.title}{more or note}")
        if again:
            return
        expanded.add(node)
        for i, child in enumerate(children):
            last = i == len(children) - 1
            render(child, rest + ("└─ " if last else "├─ "), rest + ("   " if last else "│  "))

    for node in graph.nodes:
        if not graph.parents(node):
            render(node, "", "")
    return "\n".join(lines)


_WIDTH, _HEIGHT = 230, 46
_ACROSS, _DOWN = 310, 64
_MARGIN, _HEAD = 24, 56
_SHOWN = 28
"""Number of characters of a name that fit into a box."""
_FILLS: Mapping[str, str] = {
    "source": "#dbeafe",
    "table_view": "#ccfbf1",
    "feature_view": "#dcfce7",
    "derived_view": "#ecfccb",
    "interaction": "#fef9c3",
    "fitted_transformer": "#e0e7ff",
    "transformed": "#fee2e2",
    "service": "#fae8ff",
    "training_set": "#ffedd5",
    "model": "#fee2e2",
}


def to_svg(graph: NodesAndEdges, title: str) -> str:
    """Render the graph in columns, one per kind, with edges from left to right.

    Nodes are placed near their parents. The SVG is self-contained, without references.
    """
    columns = _columns(graph)
    place = {
        slot: (_MARGIN + x * _ACROSS, _HEAD + y * _DOWN)
        for x, column in enumerate(columns)
        for y, slot in enumerate(column)
    }
    width = 2 * _MARGIN + (max(len(columns), 1) - 1) * _ACROSS + _WIDTH
    height = _HEAD + max((len(column) for column in columns), default=1) * _DOWN + _MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="Helvetica, Arial, sans-serif">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for x, kind in enumerate(_kinds(graph)):
        parts.append(
            f'<text x="{_MARGIN + x * _ACROSS}" y="32" font-size="13" fill="#555">'
            f"{kind.replace('_', ' ')}s</text>"
        )
    for start, end in graph.edges:
        passed = [place[slot] for slot in _passing(columns, (start, end))]
        parts.append(_edge([place[start], *passed, place[end]]))
    nodes = {slot: at for slot, at in place.items() if isinstance(slot, LineageNode)}
    for node, (x, y) in nodes.items():
        parts += _box(node, x, y)
    return "\n".join([*parts, "</svg>", ""])


def _box(node: LineageNode, x: int, y: int) -> list[str]:
    return [
        f"<g><title>{escape(node.title)}</title>",
        f'<rect x="{x}" y="{y}" width="{_WIDTH}" height="{_HEIGHT}" rx="6" '
        f'fill="{_FILLS.get(node.kind, "#eee")}" stroke="#777"/>',
        f'<text x="{x + 10}" y="{y + 19}" font-size="13" font-weight="bold">'
        f"{escape(_shortened(node.name))}</text>",
        f'<text x="{x + 10}" y="{y + 36}" font-size="11" fill="#444">'
        f"{escape(_shortened(node.note))}</text></g>",
    ]


def _shortened(text: str) -> str:
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


def _edge(places: Sequence[tuple[int, int]]) -> str:
    """Return a curve from the right border of the first box to the left border of the last."""
    middle = _HEIGHT // 2
    x, y = places[0][0] + _WIDTH, places[0][1] + middle
    path = [f"M{x},{y}"]
    for left, top in places[1:]:
        bend, y2 = (left - x) // 2, top + middle
        path.append(f"C{x + bend},{y} {left - bend},{y2} {left},{y2}")
        x, y = left + _WIDTH, y2
        path.append(f"L{x},{y}")
    # the last segment would cross the target box
    return f'<path d="{" ".join(path[:-1])}" fill="none" stroke="#999" stroke-width="1.5"/>'


Edge = tuple[LineageNode, LineageNode]
Slot = LineageNode | Edge
"""An item in a column: a node, or an edge that passes between nodes."""


def _kinds(graph: NodesAndEdges) -> list[str]:
    """Return the kinds that occur; each is a column."""
    return [kind for kind in KINDS if any(node.kind == kind for node in graph.nodes)]


def _columns(graph: NodesAndEdges) -> list[list[Slot]]:
    """Return the nodes of each kind and the edges that pass it, ordered near their parents."""
    kinds = _kinds(graph)
    column_of = {node: kinds.index(node.kind) for node in graph.nodes}
    columns: list[list[Slot]] = []
    for x in range(len(kinds)):
        before = columns[-1] if columns else []
        slots: list[Slot] = [node for node in graph.nodes if column_of[node] == x]
        rows = {slot: y for y, slot in enumerate(before)}
        slots += [(a, b) for a, b in graph.edges if column_of[a] < x < column_of[b]]
        middle = {slot: _middle(graph, slot, rows) for slot in slots}
        slots.sort(key=str)
        slots.sort(key=middle.__getitem__)
        columns.append(slots)
    return columns


def _middle(graph: NodesAndEdges, slot: Slot, before: Mapping[Slot, int]) -> float:
    """Return the mean row, in the column before, of the origins of a slot's edges."""
    edges = (
        [(a, b) for a, b in graph.edges if b == slot] if isinstance(slot, LineageNode) else [slot]
    )
    rows = [before.get(edge, before.get(edge[0])) for edge in edges]
    placed = [row for row in rows if row is not None]
    return sum(placed) / len(placed) if placed else 0.0


def _passing(columns: Sequence[Sequence[Slot]], edge: Edge) -> list[Slot]:
    return [edge for column in columns if edge in column]
