"""What is made of what, and how it is drawn."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from paimon_features.core.errors import UnknownNameError
from paimon_features.core.types.schema import Int64
from paimon_features.definitions import (
    Definitions,
    Entity,
    EventSource,
    FeatureService,
    FeatureView,
    Interaction,
)
from paimon_features.definitions.aggregates import Count
from paimon_features.project.lineage import LineageGraph, LineageNode, lineage, to_svg, to_text

CLICKS = EventSource("clicks", schema={"user": Int64, "t": Int64}, event_time="t")
ORDERS = EventSource("orders", schema={"user": Int64, "t": Int64}, event_time="t")
USER = Entity("user", keys={"user": Int64})


def view(name: str, source: EventSource) -> FeatureView:
    return FeatureView(name, source=source, entity=USER, features=[Count(windows=["1h"])])


@pytest.fixture(scope="module")
def graph() -> LineageGraph:
    taste, spend, idle = view("taste", CLICKS), view("spend", ORDERS), view("idle", CLICKS)
    both = Interaction("both", "taste:count_1h + spend:count_1h")
    services = [FeatureService("rank", [taste, both]), FeatureService("churn", [spend])]
    return lineage(Definitions.of([*services, idle]))


def test_every_definition_is_a_node_and_every_use_an_edge(graph: LineageGraph) -> None:
    assert {(a.name, b.name) for a, b in graph.edges} == {
        ("clicks", "taste"), ("orders", "spend"), ("clicks", "idle"),
        ("taste", "both"), ("spend", "both"),
        ("taste", "rank"), ("both", "rank"), ("spend", "churn"),
    }  # fmt: skip
    assert {node.name for node in graph.nodes} == {
        "clicks", "orders", "taste", "spend", "idle", "both", "rank", "churn"
    }  # fmt: skip


def test_the_surroundings_of_a_node_are_its_ancestors_and_descendants(graph: LineageGraph) -> None:
    around = graph.around(graph.find("spend"))
    assert {node.name for node in around.nodes} == {"orders", "spend", "both", "rank", "churn"}
    assert len(around.edges) == 4


def test_an_unknown_name_is_refused_with_what_there_is(graph: LineageGraph) -> None:
    with pytest.raises(UnknownNameError, match="idle"):
        graph.find("idel")


def test_the_text_names_every_node_and_spells_out_each_one_once(graph: LineageGraph) -> None:
    text = to_text(graph)
    for node in graph.nodes:
        assert node.title in text
    assert text.splitlines()[0].startswith("source ")
    assert text.count("feature view spend") == 1
    assert text.count("service rank") == 2  # under its view and its interaction


def test_the_svg_is_well_formed_and_holds_every_node_once_and_every_edge(
    graph: LineageGraph,
) -> None:
    root = ElementTree.fromstring(to_svg(graph, "a <b> & c"))
    space = {"s": "http://www.w3.org/2000/svg"}
    titles = [t.text for t in root.findall("s:g/s:title", space)]
    assert sorted(map(str, titles)) == sorted(node.title for node in graph.nodes)
    assert len(root.findall("s:path", space)) == len(graph.edges)
    boxes = [(r.get("x"), r.get("y")) for r in root.findall("s:g/s:rect", space)]
    assert len(set(boxes)) == len(graph.nodes), "no two nodes stand at one place"


def test_an_edge_passes_between_nodes_and_not_behind_them() -> None:
    a, b, c, d = (
        LineageNode(k, "x") for k in ("source", "feature_view", "service", "training_set")
    )
    root = ElementTree.fromstring(to_svg(LineageGraph((a, b, c, d), ((a, b), (b, c), (b, d))), "x"))
    boxes = root.findall("{http://www.w3.org/2000/svg}g/{http://www.w3.org/2000/svg}rect")
    service_y = float(boxes[2].get("y") or 0)
    (long,) = (
        path.get("d") or ""
        for path in root.findall("{http://www.w3.org/2000/svg}path")
        if "L" in (path.get("d") or "")
    )
    y_beside_the_service = float(long.split("L")[1].split()[0].split(",")[1])
    assert not service_y <= y_beside_the_service <= service_y + float(boxes[2].get("height") or 0)


def test_edges_run_from_left_to_right(graph: LineageGraph) -> None:
    root = ElementTree.fromstring(to_svg(graph, "x"))
    for path in root.findall("{http://www.w3.org/2000/svg}path"):
        numbers = (path.get("d") or "").replace("M", "").replace("C", "").replace(",", " ").split()
        assert float(numbers[0]) < float(numbers[-2])


def test_an_empty_graph_is_drawn_as_nothing() -> None:
    empty = LineageGraph((), ())
    assert to_text(empty) == ""
    ElementTree.fromstring(to_svg(empty, "empty"))


def test_long_names_are_cut_in_the_box_and_whole_in_its_tooltip() -> None:
    node = LineageNode("source", "a" * 60)
    drawn = to_svg(LineageGraph((node,), ()), "x")
    assert "a" * 60 in drawn
    assert f">{'a' * 27}…<" in drawn
