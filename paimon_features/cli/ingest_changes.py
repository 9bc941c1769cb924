"""``ingest changes``: the change log of a table of the warehouse."""

from __future__ import annotations

import json

import click

from paimon_features.cli._ingest_jobs import (
    COLUMNS,
    SOURCE,
    STATUS,
    STOP,
    STOPPED,
    print_running,
    stop_or_show,
    stream_options,
)
from paimon_features.cli._options import CLUSTER, JSON, PROJECT, cluster_address
from paimon_features.cli._progress_line import ProgressLine
from paimon_features.cli._shared_options import changes_data
from paimon_features.core.errors import ConfigurationError
from paimon_features.project import Project


@click.command()
@SOURCE
@click.argument("table", metavar="[DATABASE.TABLE]", required=False)
@click.option("--bounded", is_flag=True, help="Stop after ingesting all current changes.")
@COLUMNS
@CLUSTER
@STOP
@STATUS
@changes_data("stop", "status")
@PROJECT
@JSON
def changes(
    source: str,
    table: str | None,
    bounded: bool,
    columns: tuple[str, ...],
    cluster: str | None,
    stop: bool,
    status: bool,
    path: str,
    as_json: bool,
) -> None:
    """Ingest the change log of a table of the warehouse into SOURCE.

    The table has a primary key and a change log (changelog-producer): its current rows are read,
    then each change. The retraction column of SOURCE is set from the row kind.

    \b
    paimon-features ingest changes orders shop.orders             # until Ctrl-C
    paimon-features ingest changes orders shop.orders --bounded   # all current changes
    paimon-features ingest changes orders shop.orders --cluster   # detached
    paimon-features ingest changes orders --stop

    The job runs on Flink and resumes from its last checkpoint when started again: each change
    counts once, whatever was killed in between. To read the complete table a second time, define a
    source under another name.
    """
    if stop_or_show(path, source, stop, status, as_json):
        return
    if not table:
        raise ConfigurationError("name the table whose changes to ingest")
    from paimon_features.ingest.flink.topic import ingest_change_log
    from paimon_features.ingest.input_columns import parse_mapping

    project = Project.open(path)
    address = cluster_address(project.config.state_dir, cluster)
    try:
        with ProgressLine(as_json, events=as_json) as line:
            job_id = ingest_change_log(
                project.lake,
                project.definitions.source(source),
                table,
                parse_mapping(columns),
                bounded=bounded,
                **stream_options(project, address, line),
            )
    except KeyboardInterrupt:
        click.echo(STOPPED, err=True)
        return
    if bounded:
        _print_end(project, source, table, job_id, as_json)
    else:
        print_running(f"changes {source}", job_id, address, as_json)


def _print_end(project: Project, source: str, table: str, job_id: str, as_json: bool) -> None:
    from paimon_features.lake import latest_snapshot

    events = project.definitions.source(source).table
    newest = latest_snapshot(project.lake, events)
    snapshot = None if newest is None else newest.id
    if as_json:
        click.echo(json.dumps({"job_id": job_id, "events_snapshot": snapshot}))
    else:
        click.echo(
            f"the changes of {table} so far are in, and all its rows are among the events; "
            f"{events} is at snapshot {snapshot or '-'}; the same command continues from there"
        )
