"""``training-set``: features of entity rows at their own times, as a table or a file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
    OutputFile,
    check_engine,
    message_printer,
    pins,
    show_sources,
)
from paimon_features.cli._progress import steps
from paimon_features.cli._shared_options import changes_data, grouped
from paimon_features.core.process.callbacks import OnProgress
from paimon_features.project import Project
from paimon_features.project.engines import EngineName, EngineOptions

if TYPE_CHECKING:
    from paimon_features.offline.feature_file import WrittenFile
    from paimon_features.offline.training_set import TrainingSet


@dataclass(frozen=True, slots=True)
class JoinOptions:
    """Where a join runs, what it reads, and the memory that it may use."""

    engine: EngineName
    cluster: str | None
    memory_mb: float | None
    spill_folder: str | None
    as_of: tuple[str, ...]

    def to_keywords(self, progress: OnProgress, as_json: bool) -> dict[str, Any]:
        """Return the arguments that all joins take."""
        return {
            "as_of": pins(self.as_of),
            "progress": progress,
            "memory_mb": self.memory_mb,
            "spill_folder": self.spill_folder,
            "engine": EngineOptions(self.engine, self.cluster, message_printer(as_json)),
        }


@click.command("training-set")
@click.argument("name", required=False)
@click.option(
    "--service",
    required=True,
    help="A feature service, a view, or references 'view:feature' separated by commas.",
)
@ROWS
@click.option(
    "--output",
    type=OutputFile(),
    help="Write a file instead of the table: .parquet, .csv, .csv.gz, .arrow or .feather; an "
    "existing one is replaced once the new one is complete.",
)
@click.option("--statuses", is_flag=True, help="With --output: add columns <feature>__status.")
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
@changes_data()
@grouped(JoinOptions, "joining")
@PROJECT
@JSON
def training_set(
    name: str | None,
    service: str,
    rows: str | None,
    output: Path | None,
    statuses: bool,
    label: str | None,
    replace: bool,
    append: bool,
    joining: JoinOptions,
    path: str,
    as_json: bool,
) -> None:
    """Write the table training_NAME, or a file: entity rows with their features, as of their times.

    A row sees the events before its event_time_ms, never one at or after it. The table
    records its source snapshots; the same command on the same snapshots changes nothing.
    Rows and features may be larger than memory: they are spilled to disk.

    \b
    paimon-features training-set churn --service will_buy_v1 --rows rows.parquet --label will_buy
    paimon-features training-set churn --service will_buy_v1 --rows rows --engine flink
    paimon-features training-set churn --service will_buy_v1 --rows new.parquet --append
    paimon-features training-set --service churn_v1 --rows rows.csv --output features.parquet
    paimon-features training-set --service spend:count_7d --rows 'rows/*.parquet' \\
        --output out.parquet --as-of tiles_spend_g1@12 --as-of events_retail@30
    """
    check_engine(joining.engine, joining.cluster)
    if (name is None) == (output is None):
        raise click.UsageError("pass either the NAME of a table or --output FILE")
    if append and (replace or label is not None):
        raise click.UsageError("--append keeps the label, and replaces nothing")
    if output is not None and (append or replace or label is not None):
        raise click.UsageError("--label, --replace and --append apply to a table, not to --output")
    if statuses and output is None:
        raise click.UsageError("--statuses requires --output")
    project = Project.open(path)
    features = service.split(",") if "," in service else service
    with steps("reading rows", as_json) as progress:
        options = joining.to_keywords(progress, as_json)
        if output is not None:
            written = project.write_historical_features(
                features, rows, output, statuses=statuses, **options
            )
        elif append:
            built = project.append_training_rows(str(name), features, rows, **options)
        else:
            built = project.build_training_set(
                str(name), features, rows, label=label, replace=replace, **options
            )
    if output is not None:
        _show_file(written, as_json)
    else:
        _show_table(built, append, as_json)


def _show_file(written: WrittenFile, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(written.to_document(), indent=2))
        return
    click.echo(f"{written.path}: {written.rows:,} rows, {len(written.features)} features")
    show_sources(written.sources, written.commits_not_included)


def _show_table(built: TrainingSet, appended: bool, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(built.to_document(), indent=2))
        return
    unit = "rows appended" if appended else "rows"
    click.echo(f"{built.table}: {built.rows:,} {unit}, {len(built.features)} features")
    if built.rows_without_features:
        click.echo(
            f"  {built.rows_without_features:,} rows have no feature value: a null key, or an "
            "entity unknown at that time"
        )
    show_sources(built.sources, built.commits_not_included)
