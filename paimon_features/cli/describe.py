"""``describe`` and ``graph``: what a project holds, and what is made of what."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from paimon_features.cli.options import JSON, PROJECT
from paimon_features.lineage import describe_all, lineage, to_svg, to_text
from paimon_features.lineage import descriptions as describe_one
from paimon_features.project import Project
from paimon_features.windows import format_duration

Document = Mapping[str, Any]


@click.command()
@click.argument("name", required=False)
@PROJECT
@JSON
def describe(name: str | None, path: str, as_json: bool) -> None:
    """Tell about everything that is defined, or all there is to know of NAME.

    \b
    paimon-features describe                    # a line for each definition
    paimon-features describe customer_spend     # features, versions, generations, lineage
    """
    project = Project.open(path)
    if name is None:
        found = describe_all(project.definitions, project.lake)
    else:
        found = describe_one(project.definitions, project.lake, name)
    if as_json:
        click.echo(json.dumps(found, indent=2))
    elif name is None:
        click.echo("\n".join(_table([_row(document) for document in found])))
    else:
        click.echo("\n\n".join("\n".join(_whole(document)) for document in found))


@click.command()
@click.argument("name", required=False)
@click.option(
    "--format", "form", type=click.Choice(["text", "svg", "json"]), default="text",
    show_default=True, help="A tree, a picture, or nodes and edges.",
)  # fmt: skip
@click.option("--output", type=click.Path(path_type=Path), help="A file instead of the screen.")
@PROJECT
def graph(name: str | None, form: str, output: Path | None, path: str) -> None:
    """Draw what is made of what: sources, feature views, interactions, services, training sets.

    With NAME only what it is made of and what is made of it.

    \b
    paimon-features graph
    paimon-features graph customer_spend --format svg --output lineage.svg
    """
    project = Project.open(path)
    found = lineage(project.definitions, project.lake)
    if name is not None:
        found = found.around(found.find(name))
    if form == "text":
        drawn = to_text(found) + "\n"
    elif form == "svg":
        drawn = to_svg(found, f"{project.name}: {name or 'lineage'}")
    else:
        drawn = json.dumps(found.to_document(), indent=2) + "\n"
    if output is None:
        click.echo(drawn, nl=False)
    else:
        output.write_text(drawn, "utf-8")
        click.echo(f"{output}: {len(found.nodes)} nodes, {len(found.edges)} edges")


def _row(document: Document) -> list[str]:
    tags = ", ".join(f"{key}={value}" for key, value in document["tags"].items())
    about = (document["state"], document["owner"], tags, document["description"])
    return [_words(document["kind"]), document["name"], *about]


def _table(rows: Sequence[Sequence[str]], indent: str = "") -> list[str]:
    """Rows in columns of equal width; columns with nothing in them are left out."""
    used = [i for i, column in enumerate(zip(*rows, strict=True)) if any(column)]
    widths = {i: max(len(row[i]) for row in rows) for i in used}
    return [indent + "  ".join(row[i].ljust(widths[i]) for i in used).rstrip() for row in rows]


_HEAD = ("description", "owner", "tags", "expression", "of", "fitted", "type",
         "request", "entity", "source",
         "view", "size", "session_gap", "keys", "tile", "buckets", "time_zone", "derive", "where",
         "ttl_ms", "max_staleness_ms", "event_time", "max_skew_ms", "schema", "state")  # fmt: skip


def _whole(document: Document) -> Iterator[str]:
    yield f"{_words(document['kind'])} {document['name']}"
    facts = [
        [_words(k.removesuffix("_ms")), _fact(k, document[k])] for k in _HEAD if document.get(k)
    ]
    yield from _table(facts, "  ")
    features = document.get("features", [])
    if features and isinstance(features[0], str):
        yield "  features"
        yield from (f"    {feature}" for feature in features)
    elif features:
        yield f"  features ({len(features)})"
        yield from _table([_feature(feature) for feature in features], "    ")
    for what in ("generations", "tables"):
        if document.get(what):
            yield f"  {what}"
            yield from _table([_stored(table) for table in document[what]], "    ")
    for what in ("made_of", "used_by"):
        if document.get(what):
            others = (f"{_words(other['kind'])} {other['name']}" for other in document[what])
            yield f"  {_words(what)}: {', '.join(others)}"
    if document["versions"]:
        yield "  versions"
        yield from _table([_version(version) for version in document["versions"]], "    ")


def _fact(key: str, value: Any) -> str:
    if key.endswith("_ms"):
        return format_duration(value)
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {text}" for name, text in value.items())
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return str(value)


def _feature(feature: Document) -> list[str]:
    window = "lifetime"
    if feature["window_ms"] is not None:
        hop = format_duration(feature["hop_ms"])
        window = f"last {format_duration(feature['window_ms'])}, hop {hop}"
    return [feature["name"], feature["type"], window, ", ".join(feature["partials"])]


def _stored(table: Document) -> list[str]:
    out = [f"{table['generation']} {table['state']}"] if "generation" in table else []
    snapshot = "empty" if table["snapshot"] is None else f"snapshot {table['snapshot']}"
    note = "" if table.get("fits", True) else "for an older definition"
    return [*out, table["table"], f"{table['rows']:,} rows", snapshot, note]


def _version(version: Document) -> list[str]:
    applied = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(version["applied_at_ms"] / 1000))
    return [str(version["version"]), applied, "dropped" if version["dropped"] else ""]


def _words(name: str) -> str:
    return name.replace("_", " ")
