"""``fitted``: the versions of fitted transformers, and their files for serving hosts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
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


@fitted.command()
@click.argument("name", required=False)
@VERSION
@click.option("--versions", is_flag=True, help="List all versions of NAME.")
@PROJECT
@JSON
def show(name: str | None, version: int | None, versions: bool, path: str, as_json: bool) -> None:
    """List all versions, or show one of NAME, by default the newest.

    \b
    paimon-features fitted show
    paimon-features fitted show amount_scaler             # with its fitted parameters
    paimon-features fitted show amount_scaler 3 --json
    paimon-features fitted show amount_scaler --versions
    """
    if versions and (name is None or version is not None):
        raise click.UsageError("--versions takes NAME, and no VERSION")
    project = Project.open(path)
    if name is None or versions:
        _list(project, fitted_names(project.lake) if name is None else [name], as_json)
        return
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


def _list(project: Project, names: Iterable[str], as_json: bool) -> None:
    saved = [
        version
        for name in names
        for version in (fitted_versions(project.lake, name) or [project.fitted.load(name)])
    ]
    if as_json:
        click.echo(json.dumps([_summary(project, version) for version in saved], indent=2))
        return
    if not saved:
        click.echo("no transformer is saved yet; see project.fitted.save")
        return
    lines = [[_cell(value) for value in _summary(project, version).values()] for version in saved]
    heads = ["name", "version", "kind", "columns", "rows", "fitted at", "digest", "exported"]
    click.echo("\n".join(table_lines([heads, *lines])))


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
