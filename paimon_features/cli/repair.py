"""``repair``: recompute the tiles of some days from the events."""

from __future__ import annotations

import json
import sys
from datetime import date, datetime
from typing import TYPE_CHECKING

import click

from paimon_features.cli._names import VIEW_NAME
from paimon_features.cli._options import JSON, PROJECT
from paimon_features.cli._progress import Progress
from paimon_features.project import Project

if TYPE_CHECKING:
    from paimon_features.tiles.flink.repair import RepairReport
    from paimon_features.tiles.tile_comparison import DayComparison

_EPOCH = date(1970, 1, 1)
_DATE = click.DateTime(["%Y-%m-%d"])


@click.command()
@click.argument("view", shell_complete=VIEW_NAME)
@click.option("--from", "first", type=_DATE, required=True, help="First day (UTC), inclusive.")
@click.option("--to", "last", type=_DATE, required=True, help="Last day (UTC), inclusive.")
@click.option(
    "--fix/--dry-run", default=False, help="Replace the days that differ; default: only show them."
)
@click.option("--generation", type=int, help="Default: the one that matches the definition.")
@PROJECT
@JSON
def repair(
    view: str,
    first: datetime,
    last: datetime,
    fix: bool,
    generation: int | None,
    path: str,
    as_json: bool,
) -> None:
    """Recompute the tiles of VIEW for some days and show differences from the table.

    Nothing is written without --fix. With it, a bounded run first catches up with the newest
    event, then each day that differs is replaced. The tile job resumes afterwards with
    'submit --resume'; the materializer rebuilds automatically.

    \b
    paimon-features cancel customer_spend                      # no job may be writing
    paimon-features repair customer_spend --from 2011-12-01 --to 2011-12-09
    paimon-features repair customer_spend --from 2011-12-01 --to 2011-12-09 --fix
    paimon-features submit customer_spend --resume

    Exit code 1 if differences remain. Days are event-time days; if a partition of the tiles
    contains several, they are compared and replaced together. --fix removes tiles whose events
    are no longer in the events table: check the report first.
    """
    from paimon_features.tiles.flink.repair import repair as run
    from paimon_features.tiles.jobs.target import TileTarget

    days = [(given.date() - _EPOCH).days for given in (first, last)]
    if days[0] > days[1]:
        raise click.UsageError(f"--from {first:%Y-%m-%d} is after --to {last:%Y-%m-%d}")
    target = TileTarget.of(Project.open(path), view, generation)
    with Progress("comparing", as_json, unit="days") as progress:
        report = run(
            target,
            *days,
            fix=fix,
            on_phase=progress,
            on_message=progress.message,
        )
    if as_json:
        click.echo(json.dumps(_document(report), indent=2, default=str))
    else:
        click.echo("\n".join(_summary(report, fix)))
    if not report.ok:
        sys.exit(1)


def _summary(report: RepairReport, fix: bool) -> list[str]:
    lines = [
        f"{report.view} g{report.generation}: {report.checked_days} days, {report.events:,} events "
        f"(snapshot {report.events_snapshot or '-'}), {report.tiles:,} tiles"
    ]
    for day in report.days:
        counts = ((day.changed, "differ"), (day.missing, "are missing"), (day.spurious, "too much"))
        counted = ", ".join(f"{count:,} {kind}" for count, kind in counts if count)
        partials = ", ".join(f"{name} {count:,}" for name, count in sorted(day.partials.items()))
        lines.append(
            f"{_dates(day)}: tiles of {day.entities:,} "
            f"entities: {counted}" + (f" ({partials})" if partials else "")
        )
        lines += [f"    {change}" for change in day.examples[:5]]
    if not report.days:
        return [*lines, "nothing differs"]
    if not fix:
        return [*lines, "nothing was written; --fix replaces these days"]
    resumes = f"'paimon-features submit {report.view} --resume' resumes the job"
    return [*lines, f"repaired, tiles at snapshot {report.snapshot}; {resumes}"]


def _date(day: int) -> str:
    """Return the date of a day since 1970.

    Of one outside the years 1 to 9999, the first or the last.
    """
    return str(date.fromordinal(min(max(_EPOCH.toordinal() + day, 1), date.max.toordinal())))


def _dates(found: DayComparison) -> str:
    """Return the day, or the first and the last of several."""
    first, last = _date(found.day), _date(found.day + found.days - 1)
    return first if found.days == 1 else f"{first} to {last}"


def _document(report: RepairReport) -> dict[str, object]:
    return {
        "view": report.view,
        "generation": report.generation,
        "events_snapshot": report.events_snapshot,
        "checked_days": report.checked_days,
        "events": report.events,
        "tiles": report.tiles,
        "snapshot": report.snapshot,
        "days": [
            {
                "day": _date(day.day),
                "days": day.days,
                "entities": day.entities,
                "changed": day.changed,
                "missing": day.missing,
                "spurious": day.spurious,
                "partials": dict(day.partials),
                "examples": [
                    {
                        "keys": change.keys,
                        "tile_start": change.tile_start,
                        "partial": change.partial,
                        "found": change.found,
                        "expected": change.expected,
                    }
                    for change in day.examples
                ],
            }
            for day in report.days
        ],
    }
