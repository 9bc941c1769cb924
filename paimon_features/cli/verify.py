"""``verify``: compare the values of all paths."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import click

from paimon_features.cli._names import READ_NAME
from paimon_features.cli._options import JSON, PROJECT, moment_ms
from paimon_features.cli._progress import Progress
from paimon_features.cli._shared_options import grouped
from paimon_features.core.times.clock import now_ms
from paimon_features.project import Project
from paimon_features.project.verification.parity import verify as run_verify

SHOWN = 20


@dataclass(frozen=True, slots=True)
class Sampling:
    """Options of the comparison: its sample, and how long a difference may last."""

    sample: int
    times: int
    seed: int
    wait_s: float


@dataclass(frozen=True, slots=True)
class Served:
    """Which served values are compared again: of a time and, in the request log, of a service."""

    since: str | None
    until: str | None
    service: str | None

    def to_keywords(self, sampling: Sampling) -> dict[str, Any]:
        """Return the arguments of both comparisons of what was served."""
        from paimon_features.serving.request_log.log import optional_salt

        clock_ms = now_ms()
        return {
            "since_ms": moment_ms(self.since or "1d", clock_ms),
            "until_ms": clock_ms + 1 if self.until is None else moment_ms(self.until, clock_ms),
            "sample": sampling.sample,
            "seed": sampling.seed,
            "salt": optional_salt(),
        }


@click.command()
@click.argument("features", required=False, shell_complete=READ_NAME)
@click.option(
    "--sample", default=50, show_default=True, help="Entities per view, or requests of the log."
)
@click.option("--times", default=6, show_default=True, help="Times per entity.")
@click.option(
    "--seed", default=0, show_default=True, help="Seed for sampling entities, times, requests."
)
@click.option(
    "--wait", "wait_s", default=20.0, show_default=True,
    help="Seconds to wait for a difference to disappear while events stream in.",
)  # fmt: skip
@click.option("--from-log", is_flag=True, help="Compare served values from the request log.")
@click.option("--predictions", is_flag=True, help="Compute logged predictions again from the lake.")
@click.option("--model", "models", multiple=True, help="With --predictions: only this model.")
@click.option(
    "--since",
    help="With --from-log and --predictions: only what was served since a time, or within a "
    "duration such as 2h. Default: 1d.",
)
@click.option("--until", help="With these: only what was served before this time.")
@click.option("--service", help="With --from-log: only requests for this service.")
@grouped(Sampling, "sampling")
@grouped(Served, "served")
@PROJECT
@JSON
@click.pass_context
def verify(
    ctx: click.Context,
    features: str | None,
    sampling: Sampling,
    from_log: bool,
    predictions: bool,
    models: tuple[str, ...],
    served: Served,
    path: str,
    as_json: bool,
) -> None:
    """Compare online store, tiles and raw events for FEATURES (a service or a view).

    Samples entities and times, computes each value three ways, prints differences beyond the
    documented tolerance, and exits with 1 on any.

    With --from-log it samples logged requests (see 'request-log') instead, and compares the
    served values with the lake at the snapshot they were served from. Values that can no longer
    be compared, for example because a snapshot has expired, are counted with the reason.
    Hashed entities need the servers' PAIMON_FEATURES_REQUEST_LOG_SALT.

    With --predictions it samples logged predictions (see 'request-log'), of shadow versions, too:
    their features are read again as of that time, and go through the ONNX network of the version
    in the registry, transformers included. The result has to be what was served, to 1e-6 and a
    relative 1e-5. This needs onnxruntime (extra 'predict').

    \b
    paimon-features verify will_buy_v1
    paimon-features verify customer_spend --sample 500 --seed 7
    paimon-features verify --from-log --since 2h --service will_buy_v1
    paimon-features verify --predictions --model churn --since 2h
    """

    if predictions:
        if features is not None or from_log or served.service:
            raise click.UsageError(
                "--predictions takes --model; no FEATURES, --from-log, --service"
            )
        with Progress("reading predictions", as_json) as progress:
            status = _predictions(path, models, served, sampling, as_json, progress.message)
        ctx.exit(status)
    if models:
        raise click.UsageError("--model requires --predictions")
    if from_log:
        if features is not None:
            raise click.UsageError("--from-log takes --service, not FEATURES")
        with Progress("reading the request log", as_json) as progress:
            status = _from_log(path, served, sampling, as_json, progress.message)
        ctx.exit(status)
    if features is None or served != Served(None, None, None):
        raise click.UsageError("pass FEATURES; --since, --until and --service require --from-log")
    project = Project.open(path)
    with Progress("comparing", as_json, unit="entities") as progress:
        report = run_verify(
            project,
            features,
            **asdict(sampling),
            on_message=progress.message,
            on_phase=progress,
        )
    if as_json:
        summary = {
            "ok": report.ok,
            "compared": report.compared,
            "entities": report.entities,
            "moved": report.moved,
            "largest_relative_difference": report.largest,
            "differences": [str(difference) for difference in report.differences],
            "pairs": [
                {"feature": name, "online": online, "raw": raw}
                for name, online, raw in report.pairs
            ],
        }
        click.echo(json.dumps(summary, indent=2))
    else:
        _print_first(report.differences)
        if not report.compared:
            click.echo(
                "nothing could be compared: the events of all sampled entities were committed in "
                "the last 10 s; repeat it when they have settled"
            )
            ctx.exit(1)
        verdict = "all agree" if report.ok else f"{len(report.differences)} differ"
        click.echo(
            f"{report.compared:,} values of {report.entities} entities compared: {verdict} "
            f"(largest relative difference {report.largest:.1e}, {report.moved} too new to compare)"
        )
    ctx.exit(0 if report.ok else 1)


def _print_first(differences: Sequence[object]) -> None:
    for difference in differences[:SHOWN]:
        click.echo(str(difference))
    if len(differences) > SHOWN:
        click.echo(f"... and {len(differences) - SHOWN} more")


def _from_log(
    path: str,
    served: Served,
    sampling: Sampling,
    as_json: bool,
    show: Callable[[str], None],
) -> int:
    """Compare the request log, print what was found; the exit code."""
    from paimon_features.project.verification.request_log.check import check_log

    project, options = Project.open(path), served.to_keywords(sampling)
    report = check_log(project, service=served.service, on_message=show, **options)
    if as_json:
        summary = {
            "ok": report.ok,
            "requests": report.requests,
            "rows": report.rows,
            "values": report.values,
            "by_events": report.by_events,
            "tiles_only": dict(report.tiles_only),
            "unchecked": dict(report.unchecked),
            "differences": [asdict(difference) for difference in report.differences],
        }
        click.echo(json.dumps(summary, indent=2))
        return 0 if report.ok else 1
    _print_first(report.differences)
    count = len(report.differences)
    verdict = f"{count} differ" if count else ("all agree" if report.ok else "nothing compared")
    click.echo(
        f"{report.values:,} values of {report.requests:,} requests compared: {verdict} "
        f"({report.by_events:,} of {report.rows:,} rows with raw events, too)"
    )
    for reason, rows in report.tiles_only.most_common():
        click.echo(f"  {rows:,} rows by tiles alone: {reason}")
    for reason, rows in report.unchecked.most_common():
        click.echo(f"  {rows:,} rows cannot be checked: {reason}")
    return 0 if report.ok else 1


def _predictions(
    path: str,
    models: tuple[str, ...],
    served: Served,
    sampling: Sampling,
    as_json: bool,
    show: Callable[[str], None],
) -> int:
    """Compute logged predictions again, print what was found; the exit code."""
    from paimon_features.project.verification.predictions import check_predictions

    project, options = Project.open(path), served.to_keywords(sampling)
    report = check_predictions(project, models, on_message=show, **options)
    features = report.features
    if as_json:
        summary = {
            "ok": report.ok,
            "requests": report.requests,
            "compared": report.compared,
            "from_lake": report.from_lake,
            "largest_difference": report.largest,
            "unchecked": dict(report.unchecked),
            "differences": [asdict(difference) for difference in report.differences],
            "features": {
                "values": features.values,
                "rows": features.rows,
                "by_events": features.by_events,
                "unchecked": dict(features.unchecked),
                "differences": [asdict(difference) for difference in features.differences],
            },
        }
        click.echo(json.dumps(summary, indent=2))
        return 0 if report.ok else 1
    _print_first([*report.differences, *features.differences])
    count = len(report.differences)
    verdict = f"{count} differ" if count else ("all agree" if report.compared else "none")
    click.echo(
        f"{report.compared:,} predictions of {report.requests:,} requests computed again: "
        f"{verdict} (largest difference {report.largest:.1e}; {report.from_lake:,} with features "
        "from the lake)"
    )
    click.echo(
        f"{features.values:,} feature values compared: {len(features.differences)} differ "
        f"({features.by_events:,} of {features.rows:,} rows with raw events, too)"
    )
    for reason, rows in report.unchecked.most_common():
        click.echo(f"  {rows:,} predictions cannot be checked: {reason}")
    for reason, rows in features.unchecked.most_common():
        click.echo(f"  {rows:,} reads cannot be repeated: {reason}")
    return 0 if report.ok else 1
