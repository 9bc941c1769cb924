"""``verify``: the proof that all paths give the same number."""

from __future__ import annotations

import json

import click

from paimon_features.cli.options import JSON, PROJECT
from paimon_features.project import Project
from paimon_features.verify import verify as run_verify

SHOWN = 20


@click.command()
@click.argument("features")
@click.option("--sample", default=50, show_default=True, help="Entities per view.")
@click.option("--times", default=6, show_default=True, help="Times per entity.")
@click.option("--seed", default=0, show_default=True, help="Chooses entities and times.")
@click.option(
    "--wait", "wait_s", default=20.0, show_default=True,
    help="Seconds to wait for a difference to go away while events stream in.",
)  # fmt: skip
@PROJECT
@JSON
@click.pass_context
def verify(
    ctx: click.Context,
    features: str,
    sample: int,
    times: int,
    seed: int,
    wait_s: float,
    path: str,
    as_json: bool,
) -> None:
    """Compare online store, tiles and raw events for FEATURES (a service or a view).

    Samples entities and times, computes each value three ways, prints what differs beyond the
    stated tolerance, and exits 1 on any difference.

    \b
    paimon-features verify will_buy_v1
    paimon-features verify customer_spend --sample 500 --seed 7
    """

    def show(line: str) -> None:
        if not as_json:
            click.echo(line, err=True)

    project = Project.open(path)
    report = run_verify(
        project, features, sample=sample, times=times, seed=seed, wait_s=wait_s, progress=show
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
        for difference in report.differences[:SHOWN]:
            click.echo(str(difference))
        if len(report.differences) > SHOWN:
            click.echo(f"... and {len(report.differences) - SHOWN} more")
        if not report.compared:
            click.echo(
                "nothing could be compared: the events of all sampled entities were committed in "
                "the last 10 s; repeat it when they have settled"
            )
            ctx.exit(1)
        verdict = "all agree" if report.ok else f"{len(report.differences)} differ"
        click.echo(
            f"{report.compared:,} values of {report.entities} entities compared: {verdict} "
            f"(largest relative difference {report.largest:.1e}, {report.moved} too new to tell)"
        )
    ctx.exit(0 if report.ok else 1)
