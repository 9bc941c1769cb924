"""``graph``: the lineage graph."""

from __future__ import annotations

import json
from pathlib import Path

import click

from paimon_features.cli._names import ANY_NAME
from paimon_features.cli._options import PROJECT, OutputFile
from paimon_features.project import Project
from paimon_features.project.lineage import lineage, to_svg, to_text


@click.command()
@click.argument("name", required=False, shell_complete=ANY_NAME)
@click.option(
    "--format", "form", type=click.Choice(["text", "svg", "json"]), default="text",
    show_default=True, help="A tree, a picture, or nodes and edges.",
)  # fmt: skip
@click.option("--output", type=OutputFile(), help="Write to a file instead of stdout.")
@PROJECT
def graph(name: str | None, form: str, output: Path | None, path: str) -> None:
    """Show the lineage graph: sources, feature views, interactions, services, training sets.

    With NAME, only its ancestors and descendants.

    \b
    paimon-features graph
    paimon-features graph customer_spend --format svg --output lineage.svg
    """
    project = Project.open(path)
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
