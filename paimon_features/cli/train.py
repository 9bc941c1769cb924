"""``train``: a training run, from a configuration to a registered model version."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, NoReturn

import click

from paimon_features.cli._model_names import named_version
from paimon_features.cli._options import JSON, PROJECT
from paimon_features.cli._progress import Progress
from paimon_features.cli._shared_options import changes_data
from paimon_features.cli._tables import table_lines
from paimon_features.models import ModelManifest
from paimon_features.project import Project

_SHOWN = 20
"""Trials of a sweep that are printed, the best first."""


def _lineage_names(params: Mapping[str, Any]) -> dict[str, str]:
    """Return the names of the model and of its training set."""
    if params["config"] is None:
        return {}
    from trainer_bridge.training.config import compose

    settings = compose(params["config"], params["overrides"])
    return {"name": settings.name, "training_set": settings.data.training_set}


@click.command()
@click.argument("config", type=click.Path(path_type=Path), required=False)
@click.argument("overrides", nargs=-1)
@click.option(
    "--again",
    metavar="NAME[@VERSION]",
    help="Run the training of a registered version again, and compare weights, metrics and "
    "predictions; default: the newest version. Nothing is registered.",
)
@click.option("--show", is_flag=True, help="Print the complete configuration; train nothing.")
@click.option(
    "-m",
    "--multirun",
    is_flag=True,
    help="Train every combination of the values of OVERRIDES and of the section 'sweep' of the "
    "file, in parallel, and register the best one.",
)
@click.option(
    "--trials",
    type=click.IntRange(1, 10_000),
    help="Search with this many trials in place of all combinations (implies -m).",
)
@click.option(
    "--jobs",
    type=click.IntRange(1, 256),
    help="Trials at a time; default: one for each processor, and one with a GPU.",
)
@click.option(
    "--pruner",
    type=click.Choice(("median", "asha", "none")),
    default="median",
    show_default=True,
    help="What ends a trial early, by its validation losses.",
)
@changes_data("again", "show", names=_lineage_names)
@PROJECT
@JSON
def train(
    config: Path | None,
    overrides: tuple[str, ...],
    again: str | None,
    show: bool,
    multirun: bool,
    trials: int | None,
    jobs: int | None,
    pruner: Literal["median", "asha", "none"],
    path: str,
    as_json: bool,
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
    the version: 'paimon-features train --again churn@1' runs it again.
    On a processor the weights are equal to the bit with the same code, libraries and number of
    threads; what differs is listed, and the exit code is 1.

    A sweep is many runs, compared by their loss on the validation rows:

    \b
    paimon-features train churn.yaml -m model.layers=2,4 optimiser.lr=0.001,0.003
    paimon-features train churn.yaml --trials 40 \\
        'optimiser.lr=tag(log,interval(1e-4,1e-2))' 'model.layers=range(1,5)' model.dim=32,64
    \b
    sweep:                            # or in churn.yaml, in the same syntax
      optimiser.lr: tag(log, interval(1e-4, 1e-2))
      model.dim: [32, 64]

    Trials that are worse than others at the same batch end early. The same command continues a
    sweep that was interrupted, and with more --trials one that was finished. Only the best
    configuration is registered; all results stay in the state folder.
    """
    if again is not None:
        if config is not None or show or multirun or trials is not None or jobs is not None:
            raise click.UsageError("--again takes nothing but the version")
        _again(again, path, as_json)
    if config is None:
        raise click.UsageError("pass a configuration file, or --again NAME@VERSION")
    from trainer_bridge.training.config import compose

    if multirun or trials is not None:
        if show:
            raise click.UsageError("--show is for a single run, not for -m and --trials")
        _sweep(config, overrides, trials, jobs, pruner, path, as_json)
        return
    settings = compose(config, overrides)
    if show:
        click.echo(json.dumps(settings.to_document(), indent=2))
        return
    if jobs is not None:
        raise click.UsageError("--jobs is for -m and --trials")
    project = Project.open(path)
    from trainer_bridge.training import run

    with Progress("preparing", as_json, unit="batches") as progress:
        manifest, is_new = run.train(
            project, settings, on_message=progress.message, on_phase=progress
        )
    if as_json:
        click.echo(json.dumps({"new": is_new, **asdict(manifest)}))
        return
    _registered(manifest, is_new)


def _again(version: str, path: str, as_json: bool) -> NoReturn:
    """Run the training of a version again, print what differs, and exit with 1 if anything does."""
    name, number = named_version(version)
    project = Project.open(path)
    project.models.manifest(name, number)  # before torch is imported
    from trainer_bridge.training import run

    with Progress("preparing", as_json, unit="batches") as progress:
        result = run.reproduce(
            project, name, number, on_message=progress.message, on_phase=progress
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
        for part, then, now in result.changes:
            click.echo(f"  {part}: {then} -> {now}")
    sys.exit(0 if result.is_same else 1)


def _registered(manifest: ModelManifest, is_new: bool) -> None:
    click.echo(f"{manifest}: " + ("registered" if is_new else "is this run, registered before"))
    click.echo(f"look at it:  paimon-features models show {manifest.name} {manifest.version}")
    click.echo(f"serve it:    paimon-features models promote {manifest.name} {manifest.version}")


def _sweep(
    file: Path,
    overrides: tuple[str, ...],
    trials: int | None,
    jobs: int | None,
    pruner: Literal["median", "asha", "none"],
    path: str,
    as_json: bool,
) -> None:
    project = Project.open(path)
    from trainer_bridge.training.sweep import sweep

    with Progress("trials", as_json) as progress:
        result = sweep(
            project,
            file,
            overrides,
            trials=trials,
            jobs=jobs,
            pruner=pruner,
            on_message=progress.message,
        )
    if as_json:
        document = {
            "trials": [asdict(trial) for trial in result.trials],
            "best": asdict(result.best),
            "overrides": result.overrides,
            "new": result.is_new,
            "version": str(result.manifest),
        }
        click.echo(json.dumps(document))
        return
    names = [text.split("=", 1)[0] for text in result.best.overrides]
    lines: list[tuple[str, ...]] = [("TRIAL", "LOSS", "STATE", *names, "SECONDS")]
    order = {"finished": 0, "pruned": 1, "failed": 2}
    for trial in sorted(result.trials, key=lambda t: (order[t.state], t.loss or 0.0, t.number)):
        values = [override.split("=", 1)[1] for override in trial.overrides]
        loss = "-" if trial.loss is None else f"{trial.loss:.5f}"
        lines.append((str(trial.number), loss, trial.state, *values, f"{trial.seconds:.1f}"))
    shown = lines[: _SHOWN + 1]
    click.echo("\n".join(table_lines(shown)))
    if len(lines) > len(shown):
        click.echo(f"... and {len(lines) - len(shown)} more")
    click.echo(f"all results: {result.results_file}")
    command = " ".join(map(shlex.quote, (str(file), *result.overrides)))
    click.echo(f"the best:    paimon-features train {command}")
    _registered(result.manifest, result.is_new)
