"""``fitted``: the versions of fitted transformers, and their files for serving hosts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from paimon_features.cli import SuggestingGroup
from paimon_features.cli._options import JSON, PROJECT, OutputFile, time_text
from paimon_features.cli._tables import table_lines
from paimon_features.models.fitted_table import fitted_names, fitted_versions
from paimon_features.project import Project
from paimon_features.transformers import FittedVersion
from paimon_features.transformers.fitted_version import path_of

NAME = click.argument("name")
VERSION = click.argument("version", type=click.IntRange(min=1), required=False)


@click.group(cls=SuggestingGroup)
def fitted() -> None:
    """Show fitted transformers and export the versions that services pin.

    Python saves them: project.fitted.save("amount_scaler", scaler). A service pins a
    version and reads it from the file that 'export' writes next to the definitions: keep both
    under version control.
    """


@fitted.command("list")
@click.argument("names", nargs=-1)
@PROJECT
@JSON
def list_(names: tuple[str, ...], path: str, as_json: bool) -> None:
    """List all versions in the lake, or those of NAMES.

    \b
    paimon-features fitted list
    paimon-features fitted list amount_scaler --json
    """
    project = Project.open(path)
    saved = [
        version
        for name in names or fitted_names(project.lake)
        for version in (fitted_versions(project.lake, name) or [project.fitted.load(name)])
    ]
    if as_json:
        click.echo(json.dumps([_summary(project, version) for version in saved], indent=2))
        return
    if not saved:
        click.echo("no transformer is saved yet; see project.fitted.save")
    lines = [[_cell(value) for value in _summary(project, version).values()] for version in saved]
    heads = ["name", "version", "kind", "columns", "rows", "fitted at", "digest", "exported"]
    if lines:
        click.echo("\n".join(table_lines([heads, *lines])))


@fitted.command()
@NAME
@VERSION
@PROJECT
@JSON
def show(name: str, version: int | None, path: str, as_json: bool) -> None:
    """Show a version and its fitted parameters; default: the newest.

    \b
    paimon-features fitted show amount_scaler
    paimon-features fitted show amount_scaler 3 --json
    """
    project = Project.open(path)
    loaded = project.fitted.load(name, version)
    if as_json:
        click.echo(json.dumps(loaded.to_document(), indent=2))
        return
    for line in _details(loaded):
        click.echo(line)


@fitted.command()
@NAME
@VERSION
@click.option(
    "--onnx",
    "onnx_file",
    type=OutputFile(),
    help="Write an ONNX model to this file instead.",
)
@click.option(
    "--dtype",
    type=click.Choice(["float32", "float64"]),
    default="float32",
    show_default=True,
    help="Type of the ONNX model's inputs and outputs.",
)
@PROJECT
def export(name: str, version: int | None, onnx_file: Path | None, dtype: str, path: str) -> None:
    """Export a version as fitted/NAME/vVERSION.json; default: the newest.

    Services read the file, on hosts without access to the lake. Exporting again has no effect; a
    file with different content is an error. With --onnx it is an ONNX model with one input per
    column; its metadata name the version.

    \b
    paimon-features fitted export amount_scaler 3
    paimon-features fitted export amount_scaler 3 --onnx amount_scaler.onnx
    """
    project = Project.open(path)
    saved = project.fitted.load(name, version)
    if onnx_file is not None:
        from paimon_features.transformers.onnx_export import to_onnx

        model = to_onnx(saved, dtype=dtype)
        onnx_file.write_bytes(model.SerializeToString())
        click.echo(f"{saved}: {onnx_file}, inputs {', '.join(i.name for i in model.graph.input)}")
        return
    click.echo(f"{saved}: {project.fitted.export(name, saved.version)}")
    click.echo(
        f'pin it in a definition: pf.Transformed(..., pf.Fitted("{name}", version={saved.version}))'
    )


def _summary(project: Project, version: FittedVersion) -> dict[str, Any]:
    return {
        "name": version.name,
        "version": version.version,
        "kind": version.kind,
        "columns": version.transformer.width,
        "rows": version.transformer.rows_seen,
        "fitted_at_ms": version.fitted_at_ms,
        "digest": version.digest,
        "exported": path_of(project.fitted.folder, version.name, version.version).is_file(),
    }


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) and value >= 10**11:
        return time_text(value)
    return f"{value:,}" if isinstance(value, int) else str(value)


def _details(version: FittedVersion) -> Iterator[str]:
    yield f"{version}: {version.kind} of {version.transformer.width} columns"
    yield f"  digest     {version.digest}"
    yield f"  fitted at  {time_text(version.fitted_at_ms)}"
    yield f"  rows       {version.transformer.rows_seen:,}"
    for key, value in version.fitted_on.items():
        yield f"  on {key:<7} {value}"
    for key, value in version.transformer.to_params().items():
        if key not in ("kind", "rows"):
            yield f"  {key:<10} {json.dumps(value)}"
