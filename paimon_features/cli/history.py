"""``history``: features of entity rows at their own times, as a file."""

from __future__ import annotations

import json
from pathlib import Path

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
    show_not_included,
)
from paimon_features.cli._progress_bar import steps
from paimon_features.project import Project
from paimon_features.project.engines import EngineName, EngineOptions


@click.command("history")
@click.option(
    "--features",
    required=True,
    help="A feature service, a view, or references 'view:feature' separated by commas.",
)
@ROWS
@click.option(
    "--output",
    required=True,
    type=OutputFile(),
    help="The file to write: .parquet, .csv, .csv.gz, .arrow or .feather; an existing one is "
    "replaced once the new one is complete.",
)
@AS_OF
@click.option("--statuses", is_flag=True, help="Add a column <feature>__status for each feature.")
@ENGINE
@CLUSTER
@MEMORY
@SPILL
@PROJECT
@JSON
def history(
    features: str,
    rows: str,
    output: Path,
    as_of: tuple[str, ...],
    statuses: bool,
    engine: EngineName,
    cluster: str | None,
    memory_mb: float | None,
    spill_folder: str | None,
    path: str,
    as_json: bool,
) -> None:
    """Write entity rows with their features, each at its own event_time_ms, to a file.

    A row sees the events before its event_time_ms, never one at or after it. Rows and features
    may be larger than memory: they are spilled to disk.

    \b
    paimon-features history --features churn_v1 --rows rows.parquet --output features.parquet
    paimon-features history --features spend:count_7d --rows 'rows/*.parquet' \\
        --output out.parquet --as-of tiles_spend_g1@12 --as-of events_retail@30
    paimon-features history --features churn_v1 --rows rows@3 --output out.parquet \\
        --engine flink --cluster 10.0.0.7:8081
    """
    check_engine(engine, cluster)
    project = Project.open(path)
    names = features.split(",") if "," in features else features
    with steps("reading rows", as_json) as progress:
        written = project.write_historical_features(
            names,
            rows,
            output,
            as_of=pins(as_of),
            statuses=statuses,
            progress=progress,
            memory_mb=memory_mb,
            spill_folder=spill_folder,
            engine=EngineOptions(engine, cluster, message_printer(as_json)),
        )
    if as_json:
        click.echo(json.dumps(written.to_document(), indent=2))
        return
    click.echo(f"{written.path}: {written.rows:,} rows, {len(written.features)} features")
    for source in written.sources:
        click.echo(f"  from {source.describe()}")
    show_not_included(written.commits_not_included)
