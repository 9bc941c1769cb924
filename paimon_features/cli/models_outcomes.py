"""``models outcomes`` and ``models compare``: what became of predictions."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from paimon_features.cli._model_names import NAME, VersionsCommand
from paimon_features.cli._options import (
    JSON,
    PROJECT,
    OutputFile,
    check_options,
    moment_ms,
    time_ms,
    time_text,
)
from paimon_features.cli._shared_options import grouped
from paimon_features.cli._signals import stop_event
from paimon_features.core.errors import OwnershipError
from paimon_features.core.times.clock import now_ms
from paimon_features.core.windows import parse_duration
from paimon_features.project import Project
from paimon_features.project.outcomes.rule import TAKES

if TYPE_CHECKING:
    from paimon_features.project.outcomes.record import OutcomeStats


@dataclass(frozen=True, slots=True)
class OutcomeOptions:
    """The options that say what an outcome is; they take the place of ``[outcomes.NAME]``."""

    source: str | None
    rows: str | None
    where: str | None
    label: str | None
    take: str | None
    otherwise: float | None
    within: str | None
    lateness: str | None
    columns: tuple[str, ...]

    def to_settings(self) -> dict[str, Any]:
        """Return the settings of a rule, under the names of the configuration."""
        settings = asdict(self)
        pairs = [pair.partition("=") for pair in settings.pop("columns")]
        if not all(name and column for name, _, column in pairs):
            raise click.UsageError("--column: expected NAME=COLUMN")
        columns = {name: column for name, _, column in pairs}
        return {**settings, "time": columns.pop("event_time_ms", None), "keys": columns}


@click.command()
@NAME
@click.option("--source", help="Outcomes are events of this source.")
@click.option(
    "--rows", help="Outcomes are rows of a table of the lake, or of Parquet or CSV files."
)
@click.option("--where", help="Only events for which this expression is true.")
@click.option(
    "--label",
    help="The expression whose value is the label; without it a prediction with an outcome has 1, "
    "others 0.",
)
@click.option(
    "--take",
    type=click.Choice(TAKES),
    help="Of several outcomes of a prediction: the first (default), last, max, min or sum.",
)
@click.option("--otherwise", type=float, help="The label of a prediction without an outcome.")
@click.option("--within", help="How long after a prediction an event is its outcome, such as 7d.")
@click.option(
    "--lateness", help="How far the newest outcome is ahead of those that are complete: 5min."
)
@click.option(
    "--column", "columns", multiple=True, metavar="NAME=COLUMN",
    help="The column with an entity key, or with event_time_ms, the time of an outcome, where it "
    "has another name; repeatable.",
)  # fmt: skip
@click.option(
    "--since",
    default="30d",
    show_default=True,
    help="Predictions served since a time, or within a duration.",
)
@click.option("--known-until", help="The time up to which outcomes are known.")
@click.option("--follow/--once", default=False, help="Keep running; default: once.")
@click.option("--poll", default="1min", show_default=True, help="With --follow: the poll interval.")
@grouped(OutcomeOptions, "options")
@PROJECT
@JSON
def outcomes(
    name: str,
    options: OutcomeOptions,
    since: str,
    known_until: str | None,
    follow: bool,
    poll: str,
    path: str,
    as_json: bool,
) -> None:
    """Join logged predictions with outcomes: rows with labels.

    An outcome is an event of the same entity from the time of a prediction on (inclusive) until
    --within later (exclusive). A prediction is joined once it is mature: once the newest event is
    --lateness past the end of its window. Each gets one row in the table outcomes_NAME: the entity
    keys, event_time_ms, label, version, prediction. 'models compare' reads them, and they are
    entity rows of a training set: --rows outcomes_NAME --label label.

    What outcomes are can be declared in paimon-features.toml; options take its place:

    \b
    [outcomes.churn]
    source = "retail"
    where = "amount > 0"
    within = "7d"

    \b
    paimon-features models outcomes churn --source retail --within 7d
    paimon-features models outcomes churn --rows labels.parquet --label churned --within 30d
    paimon-features models outcomes churn --follow

    Repeating it changes nothing. Predictions come from [serve] prediction_log by 'request-log'.
    """
    from paimon_features.project.outcomes.record import OutcomeRecorder
    from paimon_features.project.outcomes.rule import outcome_rule
    from paimon_features.serving.request_log.log import optional_salt

    project = Project.open(path)
    rule = outcome_rule(name, project.config.outcomes.get(name), options.to_settings())
    stop = stop_event() if follow else threading.Event()
    until_ms = None if known_until is None else time_ms(known_until)
    while True:
        clock_ms = now_ms()
        recorder = OutcomeRecorder(project, name, rule, salt=optional_salt())
        try:
            done = recorder.run_once(moment_ms(since, clock_ms), until_ms)
        except OwnershipError as error:
            if not follow:
                raise
            click.echo(f"tried again in {poll}: {error}", err=True)
        else:
            if as_json:
                click.echo(json.dumps(asdict(done)))
            elif not follow or done.written:
                click.echo("\n".join(_outcome_lines(recorder.table, done)))
        if not follow or stop.wait(parse_duration(poll) / 1_000):
            return


@click.command(cls=VersionsCommand)
@NAME
@click.argument("first", type=click.IntRange(min=1), required=False)
@click.argument("second", type=click.IntRange(min=1), required=False)
@click.option(
    "--metric", help="The loss that decides: brier, log_loss; squared_error, absolute_error."
)
@click.option(
    "--alpha",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=0.05,
    show_default=True,
    help="The probability of ever naming a winner of two equal versions.",
)
@click.option(
    "--since",
    default="90d",
    show_default=True,
    help="Predictions served since a time, or within a duration.",
)
@click.option("--until", help="Predictions served before this time.")
@click.option(
    "--out",
    type=OutputFile(),
    help="Also write a page with pictures, a .html file.",
)
@click.option(
    "--manifests",
    is_flag=True,
    help="Show what differs in inputs, training, metrics and configuration instead of outcomes.",
)
@PROJECT
@JSON
def compare(
    name: str,
    first: int | None,
    second: int | None,
    metric: str | None,
    alpha: float,
    since: str,
    until: str | None,
    out: Path | None,
    manifests: bool,
    path: str,
    as_json: bool,
) -> None:
    """Compare two versions: outcomes of their predictions, or manifests.

    By default the version in production with the newest challenger or shadow. The interval of the
    difference holds at all times at once (a confidence sequence): look as often as you like, and
    stop as soon as there is a winner. The brier score has an interval that holds for any number of
    rows; those of other losses hold approximately, from 100 rows on. That of the AUC is an
    ordinary one, for a single look.

    \b
    paimon-features models compare churn
    paimon-features models compare churn 3 4 --metric log_loss --out compare.html
    paimon-features models compare churn --json | jq .winner
    paimon-features models compare churn@3 churn@4 --manifests

    Outcomes are read from the table outcomes_NAME: see 'models outcomes'. --manifests reads none,
    and requires both versions.
    """
    if manifests:
        check_options({"name", "first", "second", "manifests"}, "--manifests")
        if first is None or second is None:
            raise click.UsageError("--manifests requires two versions: churn 3 4")
        from paimon_features.cli._manifest_differences import show_differences

        show_differences(Project.open(path), name, (first, second), as_json)
        return
    from paimon_features.project.outcomes.compare import compare_versions
    from paimon_features.project.outcomes.comparison_report import (
        comparison_lines,
        write_comparison,
    )
    from paimon_features.project.outcomes.drift_by_day import drift_by_day

    project = Project.open(path)
    clock_ms = now_ms()
    since_ms = moment_ms(since, clock_ms)
    until_ms = clock_ms + 1 if until is None else moment_ms(until, clock_ms)
    result = compare_versions(
        project, name, first, second,
        metric=metric, alpha=alpha, since_ms=since_ms, until_ms=until_ms,
    )  # fmt: skip
    drift = drift_by_day(project, name, (result.first, result.second), since_ms, until_ms)
    if out is not None:
        write_comparison(result, drift, out)
    if as_json:
        document = {**result.to_document(), "drift": [asdict(day) for day in drift]}
        click.echo(json.dumps(document, indent=2))
        return
    click.echo("\n".join(comparison_lines(result, drift)))


def _outcome_lines(table: str, done: OutcomeStats) -> Iterator[str]:
    yield f"{done.written:,} predictions with labels written to {table}"
    if done.written:
        yield f"  {done.with_outcome:,} had an outcome"
    until = done.known_until_ms
    for count, reason in (
        (
            done.immature,
            "are not mature: outcomes are known until "
            + ("nowhere" if until is None else time_text(until)),
        ),
        (done.without_label, "have no outcome, and --otherwise says no label for that"),
        (done.without_keys, "have null keys: their entity is hashed, and no outcome shows it"),
        (done.other_salt, "have an entity hashed with another salt"),
        (done.not_numbers, "are of several numbers, which have no outcome here"),
    ):
        if count:
            yield f"  {count:,} {reason}"
