"""``import-feast``: a definitions file from a Feast repository."""

from __future__ import annotations

import json
from pathlib import Path

import click

from paimon_features.cli._options import JSON, OutputFile
from paimon_features.core.documents.generated_text import check_definitions
from paimon_features.core.errors import ConfigurationError
from paimon_features.definitions import load_definitions
from paimon_features.integrations.feast.repository_import import convert, read_repository


@click.command("import-feast")
@click.argument("repository", type=click.Path(path_type=Path))
@click.option(
    "--output", type=OutputFile(), help="The file to write; default: stdout.",
)  # fmt: skip
@click.option("--replace", is_flag=True, help="Overwrite an existing file.")
@JSON
def import_feast(repository: Path, output: Path | None, replace: bool, as_json: bool) -> None:
    """Convert the definitions of a Feast REPOSITORY, a folder or one file.

    Entities, FeatureViews with file, push or stream sources, aggregations and FeatureServices
    are converted; what has no counterpart is listed with the reason. Feast need not be
    installed. The repository's files are executed, as 'feast apply' does.

    A FeatureView without aggregations becomes a TableView: the newest row at each time, within
    its ttl. One with aggregations becomes a FeatureView.

    \b
    paimon-features import-feast feature_repo --output features.py
    paimon-features plan
    """
    if output is not None and output.exists() and not replace:
        raise ConfigurationError(f"{output} already exists; choose another file, or --replace")
    root = repository if repository.is_dir() else repository.parent
    done = convert(read_repository(repository), root)
    check_definitions(done.text)
    if output is not None:
        output.write_text(done.text, "utf-8")
        if done.mapped:
            load_definitions(output)  # fail here if the result cannot be loaded
    if as_json:
        click.echo(
            json.dumps(
                {
                    "mapped": done.mapped,
                    "unmapped": [{"what": item, "why": why} for item, why in done.unmapped],
                    "notes": done.notes,
                    "loads": done.loads,
                },
                indent=2,
            )
        )
        return
    if output is None:
        click.echo(done.text, nl=False)
    counts = ", ".join(f"{count} {kind}" for kind, count in done.mapped.items()) or "nothing"
    lines = [f"mapped: {counts}"]
    for title, texts in (
        ("did not map", [f"{item}: {why}" for item, why in done.unmapped]),
        ("to know", done.notes),
        ("to load the data, once the definitions are applied", done.loads),
    ):
        if texts:
            lines += [f"{title}:", *(f"  {text}" for text in texts)]
    click.echo("\n".join(lines), err=output is None)
