"""``check warehouse``: read a warehouse completely and report damaged files."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

import click

from paimon_features.cli._options import moment_ms
from paimon_features.cli._progress import steps
from paimon_features.core.errors import DamagedFileError, UnknownNameError
from paimon_features.core.times.clock import now_ms
from paimon_features.lake import Lake
from paimon_features.lake.marked_records import lost_records
from paimon_features.lake.reading.scrub import Damage, ScrubReport, scrub_side_folder, scrub_table
from paimon_features.lake.specs import TRAINING_PREFIX
from paimon_features.offline.training_set import pins_of
from paimon_features.project import Project


def check_warehouse(
    tables: Sequence[str], since: str | None, sample: float, path: str, as_json: bool
) -> None:
    """Read tables, or all, and report every damaged file; exit with 1 if there is any."""
    lake = Project.open(path).lake
    unknown = [name for name in tables if not lake.exists(name)]
    if unknown:
        raise UnknownNameError.of("table", unknown[0], lake.list())
    since_ms = None if since is None else moment_ms(since, now_ms())
    reports = []
    for name in tables or lake.list():
        with steps(f"checking {name}", as_json) as progress:
            report = scrub_table(lake, name, since_ms=since_ms, share=sample, progress=progress)
        reports.append(report)
        if not as_json:
            click.echo(_line(report))
    damages = [damage for report in reports for damage in report.damages]
    if not tables:
        damages += scrub_side_folder(lake)
        damages += [
            Damage(record.table or "", str(record.path), str(record.error()))
            for record in lost_records(lake)
        ]
    documents = [_document(lake, damage) for damage in damages]
    if as_json:
        summary = {"ok": not damages, "tables": [_counts(r) for r in reports], "damages": documents}
        click.echo(json.dumps(summary, indent=2))
    for document in () if as_json else documents:
        click.echo(_text(document))
    sys.exit(1 if damages else 0)


def _counts(report: ScrubReport) -> dict[str, object]:
    return {**asdict(report), "damages": len(report.damages)}


def _line(report: ScrubReport) -> str:
    if report.dropped:
        return f"{report.table}: dropped meanwhile"
    parts = [
        f"{report.table}: {report.snapshots} snapshots, {report.manifests} manifests, "
        f"{report.files} data files ({report.bytes:,} bytes, {report.pages:,} pages)"
    ]
    if report.skipped:
        parts.append(f"{report.skipped} data files not read")
    if report.pages_without_crc:
        parts.append(f"{report.pages_without_crc:,} pages have no CRC32")
    parts.append(f"{len(report.damages)} damaged" if report.damages else "no damage found")
    return "; ".join(parts)


def _document(lake: Lake, damage: Damage) -> dict[str, object]:
    training = _training_sets(lake, damage)
    return {**asdict(damage), "training_sets": training, "remedy": _remedy(damage)}


def _training_sets(lake: Lake, damage: Damage) -> list[str]:
    """Return the training sets that were computed from a snapshot with the damage."""
    names = []
    for table in lake.list():
        if table.startswith(TRAINING_PREFIX):
            name = table.removeprefix(TRAINING_PREFIX)
            try:
                pins = pins_of(lake, name)
            except DamagedFileError:  # reported by itself
                continue
            if any(p.table == damage.table and p.snapshot_id in damage.snapshots for p in pins):
                names.append(name)
    return names


def _remedy(damage: Damage) -> str:
    restore = "restore the file from a backup"
    if damage.table.startswith("tiles_"):
        return (
            f"{restore}, or compute the tiles again from the events: 'paimon-features submit VIEW "
            "--rebuild' or 'paimon-features backfill VIEW --rebuild'"
        )
    if damage.table.startswith(TRAINING_PREFIX):
        return f"{restore}, or build the training set again under another name"
    return f"{restore}, or roll the table back to a snapshot before it"


def _text(document: dict[str, object]) -> str:
    lines = [f"DAMAGED {document['path']}", f"  {document['problem']}"]
    for name in ("snapshots", "tags", "training_sets"):
        values = document[name]
        if isinstance(values, (list, tuple)) and values:
            shown = ", ".join(map(str, values[:10])) + (", ..." if len(values) > 10 else "")
            lines.append(f"  in {name.replace('_', ' ')}: {shown}")
    return "\n".join([*lines, f"  to do: {document['remedy']}"])
