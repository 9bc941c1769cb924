"""``describe``: what a project defines."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from paimon_features.cli._names import ANY_NAME
from paimon_features.cli._options import JSON, PROJECT, OutputFile
from paimon_features.cli._tables import table_lines
from paimon_features.core.windows import format_duration
from paimon_features.project import Project
from paimon_features.project.lineage import describe as describe_one
from paimon_features.project.lineage import describe_all, describe_stored, lineage, to_svg, to_text

Document = Mapping[str, Any]


@click.command()
@click.argument("name", required=False, shell_complete=ANY_NAME)
@click.option("--graph", is_flag=True, help="Show the lineage graph; of NAME, if it is given.")
@click.option(
    "--format", "form", type=click.Choice(["text", "svg", "json"]), default="text",
    show_default=True, help="With --graph: a tree, a picture, or nodes and edges.",
)  # fmt: skip
@click.option(
    "--output", type=OutputFile(), help="With --graph: write to a file instead of stdout."
)
@PROJECT
@JSON
def describe(
    name: str | None, graph: bool, form: str, output: Path | None, path: str, as_json: bool
) -> None:
    """Show a line per definition, training set and model, or the details of NAME.

    \b
    paimon-features describe                    # a line each
    paimon-features describe customer_spend     # features, versions, generations, lineage
    paimon-features describe churn              # also a training set or a model
    paimon-features describe --graph            # sources, views, services, training sets
    paimon-features describe customer_spend --graph --format svg --output lineage.svg

    With --graph and NAME, only its ancestors and descendants are shown.
    """
    if not graph and (form != "text" or output is not None):
        raise click.UsageError("--format and --output require --graph")
    project = Project.open(path)
    if graph:
        _draw(project, name, "json" if as_json else form, output)
        return
    if name is None:
        documents = describe_all(project.definitions, project.lake) + describe_stored(project.lake)
    else:
        documents = describe_one(project.definitions, project.lake, name)
    if as_json:
        click.echo(json.dumps(documents, indent=2))
    elif name is None:
        click.echo("\n".join(table_lines([_row(row) for row in documents], heading=False)))
    else:
        click.echo("\n\n".join("\n".join(_whole(document)) for document in documents))


def _draw(project: Project, name: str | None, form: str, output: Path | None) -> None:
    subgraph = lineage(project.definitions, project.lake)
    if name is not None:
        subgraph = subgraph.around(subgraph.find(name))
    if form == "text":
        drawn = to_text(subgraph) + "\n"
    elif form == "svg":
        drawn = to_svg(subgraph, f"{project.name}: {name or 'lineage'}")
    else:
        drawn = json.dumps(subgraph.to_document(), indent=2) + "\n"
    if output is None:
        click.echo(drawn, nl=False)
    else:
        output.write_text(drawn, "utf-8")
        click.echo(f"{output}: {len(subgraph.nodes)} nodes, {len(subgraph.edges)} edges")


def _row(document: Document) -> list[str]:
    tags = ", ".join(f"{key}={value}" for key, value in document["tags"].items())
    about = (document["state"], document["owner"], tags, document["description"])
    return [_words(document["kind"]), document["name"], *about]


_HEAD = ("description", "owner", "tags", "expression", "of", "fitted", "type",
         "request", "entity", "source",
         "view", "size", "session_gap", "keys", "tile", "buckets", "partition_days",
         "time_zone", "derive", "where", "ttl_ms", "max_staleness_ms", "event_time", "max_skew_ms",
         "schema", "label", "state")  # fmt: skip


def _whole(document: Document) -> Iterator[str]:
    yield f"{_words(document['kind'])} {document['name']}"
    facts = [
        [_words(k.removesuffix("_ms")), _fact(k, document[k])] for k in _HEAD if document.get(k)
    ]
    yield from table_lines(facts, "  ", heading=False)
    features = document.get("features", [])
    if features and isinstance(features[0], str):
        yield "  features"
        yield from (f"    {feature}" for feature in features)
    elif features:
        yield f"  features ({len(features)})"
        yield from table_lines([_feature(feature) for feature in features], "    ", heading=False)
    for section in ("generations", "tables"):
        if document.get(section):
            yield f"  {section}"
            yield from table_lines(
                [_stored(table) for table in document[section]], "    ", heading=False
            )
    for section, title in (("made_of", "derived from"), ("used_by", "used by")):
        if document.get(section):
            others = (f"{_words(other['kind'])} {other['name']}" for other in document[section])
            yield f"  {title}: {', '.join(others)}"
    if document["versions"]:
        yield "  versions"
        yield from table_lines(
            [_version(version) for version in document["versions"]], "    ", heading=False
        )


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
