"""``cluster``: a Flink session cluster on this machine."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from paimon_features.cli import SuggestingGroup
from paimon_features.cli._options import JSON, PROJECT
from paimon_features.cli._shared_options import grouped
from paimon_features.lake.storage.file_path import note_stores
from paimon_features.project import Project

if TYPE_CHECKING:
    from paimon_features.flink.cluster import ClusterStatus, LocalCluster, Manager, Scheduler


@click.group(cls=SuggestingGroup)
def cluster() -> None:
    """Start, stop or inspect a Flink session cluster on this machine.

    It runs from the installed Flink wheel, on the loopback interface and free ports, with
    configuration, logs and checkpoints in the project's state folder. Jobs on it
    keep running after their client exits.

    \b
    paimon-features cluster start --slots 8
    paimon-features submit customer_spend --cluster
    paimon-features cluster status
    paimon-features cluster stop
    """


SCHEDULER = click.option(
    "--scheduler",
    type=click.Choice(["default", "adaptive"]),
    default=None,
    help="Of streaming jobs: wait for all their slots, or run with those there are (adaptive).",
)
HA = click.option(
    "--ha",
    metavar="ADDRESS",
    help="High availability: zookeeper://HOST:PORT[,HOST:PORT...][/NAME].",
)


OFF_HEAP = click.option(
    "--off-heap-mb",
    type=int,
    default=None,
    help="Of a worker's memory, MiB outside its heap, for iterations in process mode with large "
    "records: four times the largest one; default: 0.",
)


@cluster.command()
@click.option("--task-managers", type=int, default=None, help="Worker processes; default: 1.")
@click.option("--slots", type=int, default=None, help="Task slots per worker; default: 8.")
@click.option(
    "--memory-mb", type=int, default=None, help="Memory per worker in MiB; default: 2048."
)
@OFF_HEAP
@SCHEDULER
@HA
@PROJECT
@JSON
def start(
    task_managers: int | None,
    slots: int | None,
    memory_mb: int | None,
    off_heap_mb: int | None,
    scheduler: Scheduler | None,
    ha: str | None,
    path: str,
    as_json: bool,
) -> None:
    """Start the cluster; no effect if it is running.

    \b
    paimon-features cluster start
    paimon-features cluster start --task-managers 2 --slots 4 --memory-mb 4096
    paimon-features cluster start --ha zookeeper://127.0.0.1:2181

    A process of the cluster that ends is started again, after 0.5 to 30 s. A lost task manager
    costs a job a restart from its last checkpoint. A lost job manager ends its jobs, which
    'submit' resumes; with --ha they continue by themselves. With '--scheduler adaptive' a
    streaming job continues with fewer tasks while a task manager is missing.
    """
    from paimon_features.flink.cluster import ClusterShape

    given: dict[str, Any] = {
        "task_managers": task_managers, "slots": slots, "task_manager_mb": memory_mb,
        "scheduler": scheduler, "off_heap_mb": off_heap_mb,
    }  # fmt: skip
    chosen = {name: value for name, value in given.items() if value is not None}
    local = _local_cluster(path)
    local.start(ClusterShape(**chosen) if chosen else None, ha)
    _show(local.status(), as_json)


@cluster.command()
@PROJECT
@JSON
def status(path: str, as_json: bool) -> None:
    """Show address, slots, processes and jobs. Exit code 1 if no cluster is running.

    \b
    paimon-features cluster status
    paimon-features cluster status --json
    """
    state = _local_cluster(path).status()
    _show(state, as_json)
    if not state.running:
        sys.exit(1)


@cluster.command()
@PROJECT
@JSON
def stop(path: str, as_json: bool) -> None:
    """Stop the cluster and its jobs; their checkpoints stay. No effect if none is running.

    'paimon-features cancel VIEW' and 'paimon-features ingest topic SOURCE --stop' stop a job with a
    savepoint first.

    \b
    paimon-features cluster stop
    """
    pids = _local_cluster(path).stop()
    if as_json:
        click.echo(json.dumps({"stopped_pids": pids}))
    elif pids:
        click.echo(f"stopped; the processes {', '.join(map(str, pids))} have ended")
    else:
        click.echo("no cluster runs")


LISTEN = click.option(
    "--listen", default="0.0.0.0", show_default=True, help="Address to listen on."
)
HOST = click.option(
    "--host", help="Name under which others reach this host; default: its host name."
)
REST_PORT = click.option(
    "--rest-port",
    type=int,
    default=8081,
    show_default=True,
    help="Port of the job manager's REST API.",
)
RPC_PORT = click.option(
    "--rpc-port", type=int, default=6123, show_default=True, help="RPC port of the job manager."
)

METRICS = click.option(
    "--metrics-port",
    type=click.IntRange(1, 65535),
    help="Port at which Prometheus reads Flink's metrics, 9249 by custom; default: none.",
)


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where a process of the cluster listens, and the name under which others reach it."""

    host: str | None
    listen: str
    rest_port: int
    rpc_port: int
    metrics_port: int | None


@cluster.command(name="run")
@click.argument("manager", type=click.Choice(["jobmanager", "taskmanager"]))
@click.option("--address", required=True, metavar="HOST", help="Host name of the job manager.")
@click.option(
    "--slots", type=int, default=8, show_default=True, help="Task slots of a task manager."
)
@click.option(
    "--memory-mb",
    type=int,
    help="Memory of the process in MiB; default: 1024 (jobmanager), 2048 (taskmanager).",
)
@OFF_HEAP
@HOST
@LISTEN
@REST_PORT
@RPC_PORT
@METRICS
@SCHEDULER
@HA
@grouped(Addresses, "addresses")
@PROJECT
def run_(
    manager: Manager,
    address: str,
    slots: int,
    memory_mb: int | None,
    off_heap_mb: int | None,
    addresses: Addresses,
    scheduler: Scheduler | None,
    ha: str | None,
    path: str,
) -> None:
    """Run one process of a multi-host cluster in the foreground.

    Made for containers and service managers.

    \b
    paimon-features cluster run jobmanager --address jobs-1
    paimon-features cluster run taskmanager --address jobs-1 --slots 4 --memory-mb 4096
    paimon-features submit customer_spend --cluster jobs-1:8081

    All hosts, including the one that submits, must see the project folder and the lake under the
    same paths. With the same --ha on all of them, jobs continue after the loss of a job manager;
    see docs/how-to/serving/high-availability.md. Anyone who can reach the cluster's ports (8081,
    6123, those of the task managers) can run code in it: keep it in a private network. docker/ has
    an example compose file.
    """
    from paimon_features.flink.cluster import ClusterShape, run_manager

    size = {"jobmanager": "job_manager_mb", "taskmanager": "task_manager_mb"}[manager]
    sizes: dict[str, Any] = {} if memory_mb is None else {size: memory_mb}
    if scheduler is not None:
        sizes["scheduler"] = scheduler
    if off_heap_mb is not None:
        sizes["off_heap_mb"] = off_heap_mb
    config = Project.open(path).config
    note_stores(config)
    shape = ClusterShape(slots=slots, **sizes)
    run_manager(manager, config.state_dir, address, shape, ha=ha, **asdict(addresses))


@cluster.command(context_settings={"ignore_unknown_options": True})
@click.argument("program", type=click.Choice(["tiles", "ingest", "history", "iterate"]))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--address", default="127.0.0.1", show_default=True, metavar="HOST", help="Of this host."
)
@click.option("--memory-mb", type=int, help="Of this process; default: 1024.")
@click.option("--job-id", help="Flink's id of the job, 32 hexadecimal digits; default: random.")
@LISTEN
@REST_PORT
@RPC_PORT
@METRICS
@PROJECT
def application(
    program: str,
    arguments: tuple[str, ...],
    address: str,
    memory_mb: int | None,
    job_id: str | None,
    listen: str,
    rest_port: int,
    rpc_port: int,
    metrics_port: int | None,
    path: str,
) -> None:
    """Run a PROGRAM in application mode, without a client.

    \b
    paimon-features cluster application tiles --address tiles-1 --view customer_spend
    paimon-features cluster run taskmanager --address tiles-1 --slots 4
    paimon-features cluster application iterate train.py:build --mode thread

    A job manager of its own runs in the foreground and starts the program itself: 'tiles' is the
    job of 'submit', 'ingest', 'history' and 'iterate' are those of the commands of that name. Task
    managers are started separately and connect to --address. The process ends with the job. To
    recover from a failure start the same command again: 'tiles' and a topic's 'ingest' resume
    from their last checkpoints. Options of the program follow its name; see
    docs/how-to/serving/application-mode.md.
    """
    from paimon_features.flink.cluster import ClusterShape, run_manager
    from paimon_features.project.programs import program as program_file

    if job_id is not None and not re.fullmatch("[0-9a-f]{32}", job_id):
        raise click.BadParameter(f"{job_id!r} is not 32 hexadecimal digits", param_hint="--job-id")
    config = Project.open(path).config
    note_stores(config)
    shape = ClusterShape() if memory_mb is None else ClusterShape(job_manager_mb=memory_mb)
    run_manager(
        "jobmanager",
        config.state_dir,
        address,
        shape,
        host=address,
        listen=listen,
        rest_port=rest_port,
        rpc_port=rpc_port,
        application=[str(program_file(program)), *arguments, "--project", str(config.root)],
        job_id=job_id,
        metrics_port=metrics_port,
    )


def _local_cluster(path: str) -> LocalCluster:
    from paimon_features.flink.cluster import LocalCluster

    config = Project.open(path).config
    note_stores(config)
    return LocalCluster(config.state_dir)


def _show(found: ClusterStatus, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(asdict(found), indent=2))
        return
    if not found.running:
        click.echo("no cluster runs; 'paimon-features cluster start' starts one")
        return
    click.echo(f"address  {found.address}   (http://{found.address} shows its jobs)")
    if found.starting:
        click.echo("slots    the job manager does not answer; it is being restarted")
    else:
        click.echo(f"slots    {found.slots_free} free of {found.slots_total}")
    click.echo(f"pids     {', '.join(map(str, found.pids))}")
    if found.ha is not None:
        click.echo(f"ha       {found.ha}")
    for process in found.processes:
        if process.restarts:
            click.echo(f"process  {process}")
    click.echo(f"logs     {found.log_dir}")
    for job in found.jobs:
        since = datetime.fromtimestamp(job.start_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
        click.echo(f"job      {job.id}  {job.state:<10} since {since} UTC  {job.name}")
