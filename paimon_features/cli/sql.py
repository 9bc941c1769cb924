"""``sql``: queries over the tables of the lake."""

from __future__ import annotations

import base64
import csv
import datetime as dt
import decimal
import itertools
import json
import math
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import click

from paimon_features.cli._options import JSON, PROJECT
from paimon_features.cli._tables import table_lines
from paimon_features.cli._values import shown
from paimon_features.core.errors import UnknownNameError
from paimon_features.lake import latest_snapshot
from paimon_features.project import Project

_WIDEST = 60


@click.command()
@click.argument("statement", required=False)
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV with a header.")
@click.option(
    "--param",
    "texts",
    multiple=True,
    metavar="NAME=VALUE",
    help="The text of $NAME in the statement; repeatable.",
)
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    default=1_000,
    show_default=True,
    help="Print at most this many rows; 0: all.",
)
@click.option(
    "--memory-mb",
    type=click.FloatRange(min=64),
    default=1_024.0,
    show_default=True,
    help="Memory of the query in MiB; more is spilled to disk.",
)
@click.option(
    "--fail-on-rows",
    is_flag=True,
    help="Exit code 1 if there is a row: a check that finds what must not be.",
)
@PROJECT
@JSON
def sql(
    statement: str | None,
    as_csv: bool,
    texts: tuple[str, ...],
    limit: int,
    memory_mb: float,
    fail_on_rows: bool,
    path: str,
    as_json: bool,
) -> None:
    """Run a SELECT over the tables of the lake; without one, list the tables. Changes nothing.

    \b
    paimon-features sql
    paimon-features sql "SELECT country, count(*) FROM events_retail GROUP BY 1"
    paimon-features sql 'SELECT * FROM "events_retail@12"' --csv --limit 0 > events.csv
    paimon-features sql "SELECT * FROM events_retail WHERE country = \\$c" --param c=France
    paimon-features sql - < report.sql

    The SQL is DuckDB's. A table is read at its newest snapshot, or at "table@snapshot". A
    statement reads tables of the lake only: no files, no settings, no writes.
    """
    if as_csv and as_json:
        raise click.UsageError("--csv and --json exclude one another")
    project = Project.open(path)
    if statement is None:
        _list(project, as_json)
        return
    if statement == "-":
        statement = sys.stdin.read()
    parameters = _parameters(texts)
    reader = project.sql(statement, parameters, memory_mb=memory_mb)
    names = reader.schema.names
    values = (row for batch in reader for row in zip(*_columns(batch), strict=True))
    first = next(values, None)
    rows = itertools.chain([] if first is None else [first], values)
    left = None if limit == 0 else limit
    if as_csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(names)
        more = _print(rows, left, lambda row: writer.writerow(map(_cell, row)))
    elif as_json:
        more = _print_json(rows, names, left)
    else:
        lines: list[list[str]] = []
        more = _print(rows, left, lambda row: lines.append([_short(value) for value in row]))
        click.echo("\n".join(table_lines([names, *lines])))
    if more:
        click.echo(f"the first {limit:,} rows; --limit 0 prints all", err=True)
    if fail_on_rows and first is not None:
        sys.exit(1)


def _list(project: Project, as_json: bool) -> None:
    lake = project.lake
    tables: list[dict[str, Any]] = []
    for table in lake.list():
        with suppress(UnknownNameError):  # dropped meanwhile
            newest = latest_snapshot(lake, table)
            tables.append(
                {
                    "table": table,
                    "snapshot": None if newest is None else newest.id,
                    "rows": 0 if newest is None else newest.total_records,
                    "columns": {field.name: str(field.type) for field in lake.schema(table)},
                }
            )
    if as_json:
        click.echo(json.dumps(tables, indent=2))
        return
    rows = [["table", "rows", "snapshot", "columns"]]
    for one in tables:
        columns = ", ".join(one["columns"])
        snapshot = "empty" if one["snapshot"] is None else str(one["snapshot"])
        rows.append([one["table"], f"{one['rows']:,}", snapshot, _cut(columns)])
    click.echo("\n".join(table_lines(rows)))


def _parameters(texts: tuple[str, ...]) -> dict[str, str] | None:
    pairs = [text.partition("=") for text in texts]
    wrong = next((name for name, equals, _ in pairs if not (name and equals)), None)
    if wrong is not None:
        raise click.UsageError(f"--param {wrong}: expected NAME=VALUE")
    return {name: value for name, _, value in pairs} or None


def _columns(batch: Any) -> list[list[Any]]:
    return [column.to_pylist() for column in batch.columns]


def _print(rows: Iterable[tuple[Any, ...]], left: int | None, write: Any) -> bool:
    """Write rows up to the limit; whether there are more."""
    for number, row in enumerate(rows):
        if number == left:
            return True
        write(row)
    return False


def _print_json(rows: Iterable[tuple[Any, ...]], names: list[str], left: int | None) -> bool:
    separator = "["

    def write(row: tuple[Any, ...]) -> None:
        nonlocal separator
        document = dict(zip(names, map(_plain, row), strict=True))
        click.echo(f"{separator}\n  {json.dumps(document)}", nl=False)
        separator = ","

    more = _print(rows, left, write)
    click.echo("[]" if separator == "[" else "\n]")
    return more


def _plain(value: Any) -> Any:
    """Return a value that JSON has a form for.

    Decimals without places (sums of integers) are numbers.
    """
    if isinstance(value, decimal.Decimal):
        return int(value) if value.as_tuple().exponent == 0 else str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, dt.date | dt.time):
        return value.isoformat()
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(name): _plain(item) for name, item in value.items()}
    return value if isinstance(value, str | int | None) else str(value)


def _cell(value: Any) -> Any:
    value = _plain(value)
    return json.dumps(value) if isinstance(value, list | dict) else value


def _short(value: Any) -> str:
    plain = _plain(value)
    return _cut(shown(plain) if isinstance(plain, float | list | None) else str(plain))


def _cut(text: str) -> str:
    # control characters would move a terminal's cursor
    text = "".join(c if c.isprintable() else "�" for c in text)
    return text if len(text) <= _WIDEST else text[: _WIDEST - 1] + "…"
