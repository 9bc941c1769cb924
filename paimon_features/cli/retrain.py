"""``retrain``: a model continues with new training rows, behind a gate."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from paimon_features.cli._options import JSON, PROJECT
from paimon_features.cli._progress import Progress
from paimon_features.cli._signals import stop_event
from paimon_features.core.errors import ConfigurationError, MissingExtraError
from paimon_features.project import Project

if TYPE_CHECKING:
    from trainer_bridge.training.retraining import RetrainDecision


@click.command()
@click.argument("model")
@click.argument("overrides", nargs=-1)
@click.option("--follow", is_flag=True, help="Wait for more rows after each round.")
@click.option(
    "--rounds", type=click.IntRange(min=1), help="With --follow: stop after this many rounds."
)
@click.option(
    "--every",
    type=click.FloatRange(min=0.05),
    default=1.0,
    show_default=True,
    help="With --follow: poll interval in seconds.",
)
@click.option(
    "--no-promote",
    is_flag=True,
    help="Register versions and say what the gate found; leave what is served to a person.",
)
@PROJECT
@JSON
def retrain(
    model: str,
    overrides: tuple[str, ...],
    follow: bool,
    rounds: int | None,
    every: float,
    no_promote: bool,
    path: str,
    as_json: bool,
) -> None:
    """Continue the version of MODEL that is in production with new rows of its training set.

    A round reads the rows that were committed since ('paimon-features training-set --append'),
    trains on them and on a sample of older ones, from the weights of production, and holds the
    newest back. The candidate is registered with what the gate finds on these: it replaces
    production if its loss is lower with a confidence, not higher in a named segment, and its
    predictions are in range. Then it is watched: if it is worse than its parent on the rows that
    follow, it is rolled back. Trees are fitted again on the same rows.

    \b
    paimon-features retrain churn                          # one round, if there are enough rows
    paimon-features retrain churn --follow                 # a round for every 500 new rows
    paimon-features retrain churn --follow retrain.min_rows=100 retrain.holdout=0.2
    paimon-features retrain churn 'retrain.segments=[country]' retrain.tolerance=0.02
    paimon-features retrain churn --no-promote             # then: models promote churn 4

    OVERRIDES change settings of the version's configuration (groups retrain, optimiser, schedule,
    trainer), and stay with the versions made. A round that was interrupted is resumed by the same
    command. Why a version was promoted or not: 'paimon-features models show'. With --json it
    prints a line for each decision. Exit code 1 if a version could not be made.
    """
    if rounds is not None and not follow:
        raise click.UsageError("--rounds requires --follow")
    settings = dict(_setting(text) for text in overrides)
    project = Project.open(path)
    project.models.states(model)  # before torch is imported
    from trainer_bridge.training import retraining

    stop = stop_event() if follow else None
    count = failed = 0
    # between rounds nothing is done, so that nothing is to be shown
    with Progress("preparing", as_json, unit="batches", ticks=not follow) as progress:
        if follow:
            progress.message(f"waiting for new training rows of {model}; Ctrl-C ends it")
        for decision in retraining.retrain(
            project,
            model,
            follow=follow,
            rounds=rounds,
            poll_s=every,
            promote=not no_promote,
            settings=settings,
            stop=stop,
            on_message=progress.message,
            on_phase=progress,
        ):
            count += 1
            failed += decision.action == "failed"
            progress.clear()
            _show(decision, model, as_json)
    if not count and not follow:
        if as_json:
            click.echo(json.dumps({"action": "waiting", "version": "", "text": "too few new rows"}))
        else:
            click.echo(f"{model}: too few new training rows for a round (retrain.min_rows)")
    sys.exit(1 if failed and not follow else 0)


def _setting(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ConfigurationError(f"{text[:80]!r}: expected SETTING=VALUE: retrain.min_rows=100")
    try:
        from yaml import YAMLError, safe_load
    except ImportError as error:
        raise MissingExtraError.of("PyYAML", "train", "'paimon-features retrain'") from error
    try:
        return name, safe_load(value)
    except YAMLError as error:
        raise ConfigurationError(f"{text[:80]!r}: the value cannot be read: {error}") from error


def _show(decision: RetrainDecision, model: str, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(asdict(decision)))
        return
    subject = decision.version or model
    action = decision.action.replace("_", " ")
    click.echo(f"{subject}: {action} after {decision.seconds:.1f} s; {decision.text}")
    if decision.action == "passed":
        click.echo(f"serve it:  paimon-features models promote {subject.replace('@', ' ')}")
