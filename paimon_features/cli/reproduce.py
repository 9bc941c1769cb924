"""``reproduce``: a version's training run again, compared."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import asdict

import click

from paimon_features.cli._options import JSON, PROJECT
from paimon_features.cli._progress import Progress
from paimon_features.core.errors import ConfigurationError
from paimon_features.project import Project

_NAME = re.compile(r"([a-z][a-z0-9_]*)(?:@([1-9][0-9]{0,8}))?")


@click.command()
@click.argument("model")
@PROJECT
@JSON
def reproduce(model: str, path: str, as_json: bool) -> None:
    """Run the training of a version again, and compare weights, metrics and predictions.

    MODEL is NAME@VERSION, or NAME for the newest version. On a processor the weights are equal to
    the bit with the same code, libraries and number of threads; what differs is listed. Exits with
    1 if the runs differ. Nothing is registered.

    \b
    paimon-features reproduce churn@3
    """
    match = _NAME.fullmatch(model)
    if match is None:
        raise ConfigurationError(f"{model[:80]!r}: expected NAME@VERSION, such as churn@3")
    project = Project.open(path)
    number = None if match[2] is None else int(match[2])
    project.models.manifest(match[1], number)  # before torch is imported
    from trainer_bridge.training import run

    with Progress("preparing", as_json, unit="batches") as progress:
        result = run.reproduce(
            project, match[1], number, on_message=progress.message, on_phase=progress
        )
    if as_json:
        click.echo(json.dumps({**asdict(result), "same": result.is_same}))
    elif result.is_same:
        click.echo(f"{result.version}: the same weights, metrics and predictions, to the bit")
    else:
        click.echo(
            f"{result.version}: {'the same' if result.same_weights else 'other'} weights, "
            f"{'the same' if result.same_metrics else 'other'} metrics, predictions differ by up "
            f"to {result.difference:.3g}"
        )
    if not as_json:
        for name, then, now in result.changes:
            click.echo(f"  {name}: {then} -> {now}")
    sys.exit(0 if result.is_same else 1)
