"""``train``: a training run, from a configuration to a registered model version."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import click

from paimon_features.cli._options import JSON, PROJECT, message_printer
from paimon_features.project import Project


@click.command()
@click.argument("config", type=click.Path(path_type=Path))
@click.argument("overrides", nargs=-1)
@click.option("--show", is_flag=True, help="Print the complete configuration; train nothing.")
@click.option("--quiet", is_flag=True, help="Print no progress.")
@PROJECT
@JSON
def train(
    config: Path, overrides: tuple[str, ...], show: bool, quiet: bool, path: str, as_json: bool
) -> None:
    """Train a model by a configuration file, and register it as a candidate.

    \b
    # churn.yaml
    defaults: [base, _self_]
    name: churn                     # of the model
    data:
      training_set: churn           # of 'paimon-features training-set churn'
      service: churn_v1             # the feature service that will serve it
      gap: 7d                       # a label looks a week ahead

    \b
    paimon-features train churn.yaml
    paimon-features train churn.yaml model=wide_and_deep optimiser.lr=0.003
    paimon-features train churn.yaml model=gradient_boosting         # a baseline
    paimon-features train churn.yaml --show                          # every setting

    OVERRIDES choose a group (model=tabular_transformer, sequence_transformer, wide_and_deep,
    gradient_boosting; optimiser=adamw, sgd; schedule=warmup_cosine, constant; trainer=standard,
    quick; objective=binary, multiclass, regression) or change a setting (model.layers=2), in the
    syntax of Hydra.

    The newest rows by time are for validation and for the report. An interrupted run is resumed by
    the same command, in the middle of an epoch. Everything that a run depends on is stored with
    the version: 'paimon-features reproduce churn@1' runs it again.
    """
    from trainer_bridge.training.config import compose

    settings = compose(config, overrides)
    if show:
        click.echo(json.dumps(settings.to_document(), indent=2))
        return
    project = Project.open(path)
    from trainer_bridge.training import run

    report = message_printer(quiet or as_json)
    bar = sys.stderr.isatty() and not (quiet or as_json)
    manifest, is_new = run.train(project, settings, on_message=report, progress=bar)
    if as_json:
        click.echo(json.dumps({"new": is_new, **asdict(manifest)}))
        return
    click.echo(f"{manifest}: " + ("registered" if is_new else "is this run, registered before"))
    click.echo(f"look at it:  paimon-features models show {manifest.name} {manifest.version}")
    click.echo(f"serve it:    paimon-features models promote {manifest.name} {manifest.version}")


def named_settings(config: Path, overrides: tuple[str, ...]) -> dict[str, str]:
    """The names of the model and of its training set, for lineage."""
    from trainer_bridge.training.config import compose

    settings = compose(config, overrides)
    return {"name": settings.name, "training_set": settings.data.training_set}
