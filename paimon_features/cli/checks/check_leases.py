"""``check leases``: who owns each table."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping

import click

from paimon_features.cli._tables import table_lines
from paimon_features.lake.ownership.lease import holders, state_of
from paimon_features.project import Project

_HEADINGS = ("TABLE", "OWNER", "TO", "SINCE (UTC)", "NUMBER", "STATE")


def check_leases(path: str, as_json: bool) -> None:
    """Show which process or job owns each table, and whether that owner is alive."""
    lake = Project.open(path).lake
    rows = [
        {
            "table": record.table,
            "owner": str(record.holder),
            "purpose": record.purpose,
            "since_ms": record.since_ms,
            "number": record.number,
            "state": state_of(lake, record),
        }
        for record in holders(lake)
    ]
    if as_json:
        click.echo(json.dumps(rows, indent=2))
    elif not rows:
        click.echo("no table has an owner")
    else:
        click.echo("\n".join(table_lines([_HEADINGS, *map(_cells, rows)])))


def _cells(row: Mapping[str, object]) -> tuple[str, ...]:
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(int(str(row["since_ms"])) / 1000))
    return (
        str(row["table"]), str(row["owner"]), str(row["purpose"]), since, str(row["number"]),
        str(row["state"]),
    )  # fmt: skip
