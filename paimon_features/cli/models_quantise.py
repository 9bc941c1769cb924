"""``models quantise``: a version in int8 or fp16, registered if it is faster."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Literal

import click

from paimon_features.cli._model_names import named_version
from paimon_features.cli._options import JSON, PROJECT, message_printer
from paimon_features.project import Project


@click.command()
@click.argument("model")
@click.argument("method", type=click.Choice(["int8-static", "int8-dynamic", "fp16"]))
@click.option("--force", is_flag=True, help="Register it even if there is no gain.")
@PROJECT
@JSON
def quantise(
    model: str,
    method: Literal["int8-static", "int8-dynamic", "fp16"],
    force: bool,
    path: str,
    as_json: bool,
) -> None:
    """Quantise a version, and report its speed and accuracy.

    \b
    int8-static   calibrated by rows of the training set
    int8-dynamic  scaled at each call
    fp16          half precision, for a GPU

    MODEL is NAME@VERSION, or NAME for the newest version. Accuracy is measured on the validation
    rows of its training set, speed on one thread of this machine. The result is registered as a
    candidate, whose parent the version is, if it is faster by 5 % for one row or for 64 at a time,
    at most 5 % slower for the other, and its loss no more than 1 % higher; otherwise it is
    refused, with exit code 1.

    \b
    paimon-features models quantise churn@3 int8-dynamic
    paimon-features models quantise churn@3 int8-static --force
    """
    name, number = named_version(model)
    project = Project.open(path)
    project.models.manifest(name, number)  # before torch is imported
    from trainer_bridge.training.quantise import quantise as run

    result = run(project, name, number, method, force=force, on_message=message_printer(as_json))
    if as_json:
        document = {**asdict(result), "manifest": None}
        document["version"] = None if result.manifest is None else str(result.manifest)
        click.echo(json.dumps(document))
        sys.exit(result.manifest is None)
    click.echo(f"{result.parent} in {method}, on {result.rows:,} validation rows:")
    for name, old, new in result.metrics:
        click.echo(f"  {name:<20} {old:12.5f} -> {new:12.5f}")
    click.echo(f"  {'largest difference':<20} {'':12}    {result.difference:12.5f}")
    for count, (old, new) in result.microseconds.items():
        name = f"us a row, {count} at a time"
        click.echo(f"  {name:<20} {old:12.1f} -> {new:12.1f}   {old / new:.2f} x")
    old_size, new_size = result.size
    click.echo(f"  {'bytes':<20} {old_size:12,} -> {new_size:12,}   {old_size / new_size:.2f} x")
    if result.manifest is None:
        click.echo(f"refused, because {'; '.join(result.reasons)}; --force registers it")
        sys.exit(1)
    if result.reasons:
        click.echo(f"no gain ({'; '.join(result.reasons)}), and --force was given")
    click.echo(f"{result.manifest}: registered")
