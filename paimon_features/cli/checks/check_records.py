"""``check records``: the records next to the tables that were lost."""

from __future__ import annotations

import json
import sys

import click

from paimon_features.lake.marked_records import LOSSES, Record, lost_records
from paimon_features.project import Project

ACCEPTED = ("commits", "leases", "removals", "scores")
"""Kinds whose loss this command accepts; the others are rebuilt by a command of their own."""


def check_records(accept_loss: bool, path: str, as_json: bool) -> None:
    """Show lost records, or continue without them; exit with 1 if any is lost."""
    lake = Project.open(path).lake
    lost = lost_records(lake)
    if accept_loss:
        for record in lost:
            if record.kind in ACCEPTED:
                record.accept_loss()
        lost = [record for record in lost if record.kind not in ACCEPTED]
    if as_json:
        click.echo(json.dumps([_document(record) for record in lost], indent=2))
    elif not lost:
        click.echo("no record is lost")
    for record in () if as_json else lost:
        click.echo(str(record.error()))
    sys.exit(1 if lost else 0)


def _document(record: Record) -> dict[str, str | None]:
    loses, remedy = LOSSES[record.kind]
    return {
        "kind": record.kind,
        "name": record.name,
        "table": record.table,
        "path": str(record.path),
        "lost": loses,
        "remedy": remedy,
    }
