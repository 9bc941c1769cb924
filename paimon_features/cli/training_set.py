"""``training-set``: features of entity rows at their own times, as a table."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import click

from paimon_features.cli._options import (
    AS_OF,
    CLUSTER,
    ENGINE,
    JSON,
    MEMORY,
    PROJECT,
    ROWS,
    SPILL,
    check_engine,
    message_printer,
    pins,
    show_not_included,
)
from paimon_features.cli._progress_bar import steps
from paimon_features.cli._shared_options import grouped
from paimon_features.project import Project
from paimon_features.project.engines import EngineName, EngineOptions


@dataclass(frozen=True, slots=True)
class JoinOptions:
    """Where a join runs, and the memory that it may use."""

    engine: EngineName
    cluster: str | None
    memory_mb: float | None
    spill_folder: str | None


@click.command("training-set")
@click.argument("name")
@click.option("--service", required=True, help="Feature service, or 'view:feature'.")
@ROWS
@click.option("--label", help="The label column of the rows.")
@AS_OF
@click.option("--replace", is_flag=True, help="Replace a different training set of this name.")
@click.option(
    "--append",
    is_flag=True,
    help="Append the rows to this training set, which has the same features; for 'retrain'.",
)
@ENGINE
@CLUSTER
@MEMORY
@SPILL
@grouped(JoinOptions, "joining")
@PROJECT
@JSON
def training_set(
    name: str,
    service: str,
    rows: str,
    label: str | None,
    as_of: tuple[str, ...],
    replace: bool,
    append: bool,
    joining: JoinOptions,
    path: str,
    as_json: bool,
) -> None:
    """Write the table training_NAME: each entity row with its features at its own time.

    A row sees the events before its event_time_ms, never one at or after it. The table
    records its source snapshots; the same command on the same snapshots changes nothing.

    \b
    paimon-features training-set churn --service will_buy_v1 --rows rows.parquet --label will_buy
    paimon-features training-set churn --service will_buy_v1 --rows rows --engine flink
    paimon-features training-set churn --service will_buy_v1 --rows new.parquet --append
    """
    check_engine(joining.engine, joining.cluster)
    if append and (replace or label is not None):
        raise click.UsageError("--append keeps the label, and replaces nothing")
    project = Project.open(path)
    with steps("reading rows", as_json) as progress:
        options: dict[str, Any] = {
            "as_of": pins(as_of),
            "progress": progress,
            "memory_mb": joining.memory_mb,
            "spill_folder": joining.spill_folder,
            "engine": EngineOptions(joining.engine, joining.cluster, message_printer(as_json)),
        }
        if append:
            built = project.append_training_rows(name, service, rows, **options)
        else:
            built = project.build_training_set(
                name, service, rows, label=label, replace=replace, **options
            )
    if as_json:
        click.echo(json.dumps(built.to_document(), indent=2))
        return
    unit = "rows appended" if append else "rows"
    click.echo(f"{built.table}: {built.rows:,} {unit}, {len(built.features)} features")
    if built.rows_without_features:
        click.echo(
            f"  {built.rows_without_features:,} rows have no feature value: a null key, or an "
            "entity unknown at that time"
        )
    for source in built.sources:
        click.echo(f"  from {source.describe()}")
    show_not_included(built.commits_not_included)
