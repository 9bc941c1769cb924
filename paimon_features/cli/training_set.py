"""``training-set``: features of entity rows at their own times, as a table."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from paimon_features.cli.options import JSON, PROJECT
from paimon_features.errors import ConfigurationError, RequestError
from paimon_features.project import Project


@click.command("training-set")
@click.argument("name")
@click.option("--service", required=True, help="Feature service, or 'view:feature'.")
@click.option(
    "--rows",
    "rows_path",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Entity rows, Parquet or CSV: keys, event_time_ms, request inputs, a label, any others.",
)
@click.option("--label", help="Column of the rows that is the label.")
@click.option(
    "--as-of",
    help="See only what had been committed by then: UTC milliseconds, or 2011-12-09T12:50:00.",
)
@click.option("--replace", is_flag=True, help="Replace a different training set of this name.")
@PROJECT
@JSON
def training_set(
    name: str,
    service: str,
    rows_path: Path,
    label: str | None,
    as_of: str | None,
    replace: bool,
    path: str,
    as_json: bool,
) -> None:
    """Write the table training_NAME: each entity row with its features at its own time.

    A row sees the events before its event_time_ms, never one at or after it. The table says
    which snapshots it was made from; the same command on the same snapshots changes nothing.

    \b
    paimon-features training-set churn --service will_buy_v1 --rows rows.parquet --label will_buy
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    project = Project.open(path)
    rows = _read(rows_path)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    console = Console(stderr=True)
    quiet = as_json or not console.is_terminal  # elsewhere it would leave an empty line
    with Progress(*columns, console=console, transient=True, disable=quiet) as bar:
        task = bar.add_task("rows", total=rows.num_rows)
        built = project.build_training_set(
            name,
            service,
            rows,
            label=label,
            as_of=None if as_of is None else time_ms(as_of),
            replace=replace,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    if as_json:
        click.echo(json.dumps(built.to_document(), indent=2))
        return
    click.echo(f"{built.table}: {built.rows:,} rows, {len(built.features)} features")
    if built.rows_without_features:
        click.echo(
            f"  {built.rows_without_features:,} rows have no feature: a null key, or an entity "
            "that was not known at that time"
        )
    for source in built.sources:
        at = "no snapshot yet" if source.snapshot_id is None else f"snapshot {source.snapshot_id}"
        click.echo(f"  from {source.table}, {at}")


def time_ms(text: str) -> int:
    """UTC milliseconds of a number of them, or of an ISO 8601 time (UTC unless it says).

    >>> time_ms("1323434999000"), time_ms("2011-12-09T12:49:59"), time_ms("2011-12-09T13:50+01:00")
    (1323434999000, 1323434999000, 1323435000000)

    Raises
    ------
    ConfigurationError
        For anything else, and for a number that means a time before 1973: rather a year, or
        seconds.
    """
    import datetime as dt

    try:
        if text.isdecimal() and int(text) >= 10**11:
            return int(text)
        moment = dt.datetime.fromisoformat(text)
    except ValueError:
        raise ConfigurationError(
            f"time {text!r}: expected UTC milliseconds, or a time such as 2011-12-09T12:50:00"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=dt.UTC)
    return (moment - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(milliseconds=1)


def _read(path: Path) -> pa.Table:
    try:
        if path.suffix == ".csv":
            return pyarrow.csv.read_csv(path)
        return pq.read_table(path)
    except pa.ArrowException as error:
        raise RequestError(f"entity rows {path}: {error}") from error
