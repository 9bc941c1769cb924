"""``backfill --from --to``: compute the tiles of some days again from the events."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from datetime import date, datetime
from typing import TYPE_CHECKING

import click

from paimon_features.cli._progress import Progress

if TYPE_CHECKING:
    from paimon_features.tiles.flink.repair import RepairReport
    from paimon_features.tiles.jobs.target import TileTarget
    from paimon_features.tiles.tile_comparison import DayComparison

_EPOCH = date(1970, 1, 1)


@dataclass(frozen=True, slots=True)
class Days:
    """The options of ``backfill`` that choose days, and what is done about these."""

    first: datetime | None
    last: datetime | None
    dry_run: bool

    def to_range(self) -> tuple[int, int]:
        """Return the first and the last day since 1970; UsageError if there are none."""
        if self.first is None or self.last is None:
            raise click.UsageError("pass both --from and --to")
        if self.first > self.last:
            raise click.UsageError(
                f"--from {self.first:%Y-%m-%d} is after --to {self.last:%Y-%m-%d}"
            )
        return (self.first.date() - _EPOCH).days, (self.last.date() - _EPOCH).days


def compare_days(target: TileTarget, days: Days, as_json: bool) -> None:
    """Replace the tiles of days that differ from the events, or only show them.

    Exits with 1 if differences remain.
    """
    from paimon_features.tiles.flink.repair import repair

    day_range = days.to_range()
    with Progress("comparing", as_json, unit="days") as progress:
        report = repair(
            target,
            *day_range,
            fix=not days.dry_run,
            on_phase=progress,
            on_message=progress.message,
        )
    if as_json:
        click.echo(json.dumps(_document(report), indent=2, default=str))
    else:
        click.echo("\n".join(_summary(report, days.dry_run)))
    if not report.ok:
        sys.exit(1)


def _summary(report: RepairReport, dry_run: bool) -> list[str]:
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
    if dry_run:
        return [*lines, "nothing was written; without --dry-run these days are replaced"]
    resumes = f"'paimon-features submit {report.view} --resume' resumes the job"
    return [*lines, f"replaced, tiles at snapshot {report.snapshot}; {resumes}"]


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
                "examples": [asdict(change) for change in day.examples],
            }
            for day in report.days
        ],
    }
