"""``lookup --explain``: which cells make up a value."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from paimon_features.cli._options import time_text
from paimon_features.cli._tables import STATUS_COLOURS, new_console, new_table
from paimon_features.core.errors import RequestError
from paimon_features.core.windows import format_duration
from paimon_features.definitions import FeatureRef, Output
from paimon_features.project import Project
from paimon_features.serving.reading.fetcher import FeatureFetcher

Document = Mapping[str, Any]
_COLUMNS = 72
_MOST_CELLS = 40


def show_explanation(
    project: Project,
    refs: Sequence[Output],
    entities: Mapping[str, Sequence[object]],
    as_of_ms: int,
    as_json: bool,
    *,
    cells: bool,
) -> None:
    """Show which cells of an entity's record its features are computed from; also list ``cells``.

    Raises
    ------
    RequestError
        For features of several views, of an interaction or a table view, or for several entities.
    """
    view, features = _of_one_view(refs)
    several = [name for name, values in entities.items() if len(values) > 1]
    if several:
        raise RequestError(f"--entity {several[0]}: expected one value: one entity at a time")
    from paimon_features.serving.reading.explain import explain

    fetcher = FeatureFetcher(project.name, [project.view(view)], project.store)
    entity = {name: value for name, [value] in entities.items()}
    _show(explain(fetcher, view, entity, as_of_ms, features), as_json, cells=cells)


def show_event_explanation(
    project: Project, names: Sequence[str], event: Mapping[str, object], as_json: bool
) -> None:
    """Show the same of a read with an event; ``names`` are the service, then what is explained.

    Raises
    ------
    RequestError
        As ``show_explanation``, and for an event that the service does not take.
    """
    service, *texts = names
    refs = [ref for text in texts or [service] for ref in project.refs(text)]
    view, features = _of_one_view(refs)
    from paimon_features.serving.reading.explain import explain_event, service_event

    # a view without a feature stands for those that the service reads
    cells = any(":" in text for text in texts)
    chosen = features if cells else None
    parsed, explained = service_event(project.definitions, service, event, view, chosen)
    fetcher = FeatureFetcher(project.name, [project.view(view)], project.store)
    _show(explain_event(fetcher, view, parsed, explained), as_json, cells=cells)


def _of_one_view(refs: Sequence[Output]) -> tuple[str, list[str]]:
    features = [ref for ref in refs if isinstance(ref, FeatureRef)]
    views = {ref.view for ref in features}
    if len(views) != 1 or len(features) < len(refs):
        raise RequestError("--explain takes one feature view, or features of one: VIEW:FEATURE")
    return views.pop(), [ref.feature for ref in features]


def _show(document: Document, as_json: bool, *, cells: bool) -> None:
    if as_json:
        click.echo(json.dumps(document))
        return
    console = new_console()
    for line in _head(document):
        console.print(line, markup=False)
    for one in document["features"]:
        _print_feature(console, document, one, whole=cells)


def _head(document: Document) -> list[str]:
    keys = ", ".join(f"{name}={value}" for name, value in document["entity"].items())
    record = document["record"]
    lines = [f"{document['view']}: {keys}, read at {time_text(document['as_of_ms'])}"]
    if document["own_event"] is not None:
        lines.append(f"the event of the request is {document['own_event']['state']}")
    if record is None:
        return [*lines, "no record in the online store"]
    high_ms = record["event_high_ms"]
    newest = "none" if high_ms is None else time_text(high_ms)
    lines.append(
        f"record of snapshot {record['applied_snapshot']} (all of its bucket: "
        f"{document['freshness']['applied_snapshot']}), newest event {newest}; generation "
        f"{record['generation']}, incarnation {record['incarnation']}, epoch {record['epoch']}, "
        f"bucket {record['bucket']}; {len(document['cells'])} cells, {record['size_bytes']} bytes"
    )
    return lines


def _print_feature(console: Console, document: Document, feature: Document, whole: bool) -> None:
    status = feature["status"]
    title = Text(f"\n{feature['name']} = {_value(feature['value'])}", style="bold")
    if status != "PRESENT":
        title.append(f" {status}", style=STATUS_COLOURS[status])
    console.print(title)
    console.print(feature["sentence"], markup=False)
    for line in time_line(document, feature):
        console.print(line, markup=False, style="dim" if line.endswith("UTC") else None)
    if whole and (feature["cells"] or feature["own_event"]):
        console.print(_cells(document, feature))
        left = len(feature["cells"]) - _MOST_CELLS
        if left > 0:
            console.print(f"and {left} older ones; --json has all", style="dim")


def _cells(document: Document, feature: Document) -> Table:
    """Return the newest cells of a feature, with the contribution of each."""
    table = new_table()
    for name in ("cell", "from", "to"):
        table.add_column(name)
    for name in ("events", *feature["merged"], "alone"):
        table.add_column(name, justify="right")
    cells = document["cells"]
    newest = sorted(feature["cells"], key=lambda s: cells[s["cell"]]["end_ms"], reverse=True)
    for share in newest[:_MOST_CELLS]:
        cell = cells[share["cell"]]
        lifetime = cell["level"] is None
        table.add_row(
            "lifetime" if lifetime else format_duration(document["levels_ms"][cell["level"]]),
            "the beginning" if lifetime else time_text(cell["start_ms"]),
            time_text(cell["end_ms"]),
            str(cell["events"]),
            *(_value(cell["partials"][name]) for name in feature["merged"]),
            _value(share["alone"]),
        )
    if feature["own_event"] is not None:
        partials = document["own_event"]["partials"]
        table.add_row(
            "the event", time_text(document["as_of_ms"]), "", "1",
            *(_value(partials[name]) for name in feature["merged"]),
            _value(feature["own_event"]["alone"]),
        )  # fmt: skip
    merged = (_value(value) for value in feature["merged"].values())
    table.add_row(
        "together", "", "", str(feature["events"]), *merged, _value(feature["value"]), style="bold"
    )
    return table


def time_line(document: Document, feature: Document) -> list[str]:
    """Return the cells of each level over the time of the window, coarsest first, and its edges
    below.

    ::

        1d   |        ######......|
        1h   |              ###   |
              [              )
    """
    cells = [cell for cell in document["cells"] if cell["level"] is not None]
    if not cells:
        return []
    start_ms, end_ms = feature["start_ms"], max(feature["end_ms"], document["as_of_ms"])
    tile_ms = document["levels_ms"][0]
    low = min(cell["start_ms"] for cell in cells) if start_ms is None else start_ms
    low, high = min(low, end_ms - tile_ms), end_ms
    per_column = (high - low) / _COLUMNS
    used = {share["cell"] for share in feature["cells"]}

    def column(time_ms: int) -> int:
        return min(max(int((time_ms - low) / per_column), 0), _COLUMNS - 1)

    lines = []
    for level in reversed(range(len(document["levels_ms"]))):
        row = [" "] * _COLUMNS
        for i, cell in enumerate(document["cells"]):
            if cell["level"] != level or cell["end_ms"] <= low or cell["start_ms"] >= high:
                continue
            for at in range(column(cell["start_ms"]), column(cell["end_ms"] - 1) + 1):
                row[at] = "#" if i in used or row[at] == "#" else "."
        name = format_duration(document["levels_ms"][level])
        lines.append(f"{name:>6} |{''.join(row)}|")
    edges = [" "] * (_COLUMNS + 1)
    edges[column(feature["end_ms"]) if feature["end_ms"] < high else _COLUMNS] = ")"
    if start_ms is not None:
        edges[0] = "["
    lines.append(f"{'':>6}  {''.join(edges).rstrip()}")
    lines.append(f"{'':>6}  {_times(low, high)}")
    return lines


def _times(low: int, high: int) -> str:
    left, right = time_text(low).removesuffix(" UTC"), time_text(high)
    return left + " " * max(_COLUMNS - len(left) - len(right), 1) + right


def _value(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.6g}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "[" + ", ".join(map(_value, value)) + "]"
    text = "-" if value is None else str(value)
    return text if len(text) <= 40 else text[:39] + "…"
