"""``fitted``: the versions of fitted transformers, and their files for serving hosts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import click

from paimon_features.cli._options import JSON, PROJECT, OutputFile, time_text
from paimon_features.cli._tables import table_lines
from paimon_features.models.fitted_table import fitted_names, fitted_versions
from paimon_features.project import Project
from paimon_features.transformers import FittedVersion
from paimon_features.transformers.fitted_version import path_of


@click.command()
@click.argument("name", required=False)
@click.argument("version", type=click.IntRange(min=1), required=False)
@click.option("--versions", is_flag=True, help="List all versions of NAME.")
@click.option(
    "--export",
    is_flag=True,
    help="Write fitted/NAME/vVERSION.json, which services pin. Repeating it has no effect; a file "
    "with different content is an error.",
)
@click.option("--onnx", "onnx_file", type=OutputFile(), help="Write an ONNX model to this file.")
@click.option(
    "--dtype",
    type=click.Choice(["float32", "float64"]),
    default="float32",
    show_default=True,
    help="With --onnx: type of the model's inputs and outputs.",
)
@PROJECT
@JSON
def fitted(
    name: str | None,
    version: int | None,
    versions: bool,
    export: bool,
    onnx_file: Path | None,
    dtype: str,
    path: str,
    as_json: bool,
) -> None:
    """List fitted transformers, or show or export one of NAME: VERSION, or the newest.

    \b
    paimon-features fitted                                # all versions of all transformers
    paimon-features fitted amount_scaler                  # with its fitted parameters
    paimon-features fitted amount_scaler --versions
    paimon-features fitted amount_scaler 3 --export       # fitted/amount_scaler/v3.json
    paimon-features fitted amount_scaler 3 --onnx amount_scaler.onnx

    'fit' saves them, or Python: project.fitted.save("amount_scaler", scaler). A service pins a
    version and reads it from the file of --export, next to the definitions, on hosts without access
    to the lake: keep both under version control. The ONNX model has one input per column; its
    metadata name the version.
    """
    if name is None and (export or onnx_file is not None):
        raise click.UsageError("--export and --onnx require NAME")
    if export and onnx_file is not None:
        raise click.UsageError("pass --export or --onnx, not both")
    if versions and (name is None or version is not None or export or onnx_file is not None):
        raise click.UsageError("--versions takes NAME, and nothing else")
    project = Project.open(path)
    if name is None or versions:
        _list(project, fitted_names(project.lake) if name is None else [name], as_json)
        return
    saved = project.fitted.load(name, version)
    if export or onnx_file is not None:
        _export(project, saved, onnx_file, dtype, as_json)
    elif as_json:
        click.echo(json.dumps(saved.to_document(), indent=2))
    else:
        click.echo("\n".join(_details(saved)))


def _export(
    project: Project, saved: FittedVersion, onnx_file: Path | None, dtype: str, as_json: bool
) -> None:
    if onnx_file is None:
        file = project.fitted.export(saved.name, saved.version)
        note = (
            "\npin it in a definition: "
            f'pf.Transformed(..., pf.Fitted("{saved.name}", version={saved.version}))'
        )
    else:
        from paimon_features.transformers.onnx_export import to_onnx

        file, model = onnx_file, to_onnx(saved, dtype=dtype)
        file.write_bytes(model.SerializeToString())
        note = f", inputs {', '.join(one.name for one in model.graph.input)}"
    if as_json:
        click.echo(json.dumps({"version": str(saved), "file": str(file)}))
    else:
        click.echo(f"{saved}: {file}{note}")


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
