"""``cluster``: a Flink session cluster on this machine."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

import click

from paimon_features.cli import SuggestingGroup
from paimon_features.cli._options import JSON, PROJECT, check_options
from paimon_features.cli._shared_options import grouped
from paimon_features.core.errors import UnknownNameError
from paimon_features.core.suggestions import did_you_mean
from paimon_features.lake.storage.file_path import note_stores
from paimon_features.project import Project

if TYPE_CHECKING:
    from paimon_features.flink.cluster import ClusterStatus, LocalCluster, Scheduler

APPLICATIONS = ("tiles", "ingest", "history", "iterate")
"""Programs that run in application mode."""


@click.group(cls=SuggestingGroup, invoke_without_command=True)
@PROJECT
@JSON
@click.pass_context
def cluster(context: click.Context, path: str, as_json: bool) -> None:
    """Start, stop or inspect a Flink session cluster on this machine.

    Without a command, it shows address, slots, processes and jobs. Exit code 1 if no cluster runs.

    It runs from the installed Flink wheel, on the loopback interface and free ports, with
    configuration, logs and checkpoints in the project's state folder. Jobs on it
    keep running after their client exits.

    \b
    paimon-features cluster start --slots 8
    paimon-features submit customer_spend --cluster
    paimon-features cluster                  # also with --json
    paimon-features cluster stop
    """
    if context.invoked_subcommand is not None:
        return
    state = _local_cluster(path).status()
    _show(state, as_json)
    if not state.running:
        sys.exit(1)


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
def stop(path: str, as_json: bool) -> None:
    """Stop the cluster and its jobs; their checkpoints stay. No effect if none is running.

    'paimon-features submit VIEW --stop' and 'paimon-features ingest topic SOURCE --stop' stop a job
    with a savepoint first.

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


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where a process of the cluster listens, and the name under which others reach it."""

    host: str | None
    listen: str
    rest_port: int
    rpc_port: int
    metrics_port: int | None


_ADDRESSES = {"listen", "rest_port", "rpc_port", "metrics_port"}
_MANAGER = {"address", "slots", "memory_mb", "off_heap_mb", "host", "scheduler", "ha", *_ADDRESSES}
_APPLICATION = {"arguments", "address", "memory_mb", "job_id", *_ADDRESSES}


@cluster.command(name="run", context_settings={"ignore_unknown_options": True})
@click.argument("process", type=click.Choice(["jobmanager", "taskmanager", "application"]))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[PROGRAM [OPTIONS]...]")
@click.option(
    "--address",
    metavar="HOST",
    help="Host name of the job manager; default for an application: 127.0.0.1.",
)
@click.option(
    "--slots", type=int, default=8, show_default=True, help="Task slots of a task manager."
)
@click.option(
    "--memory-mb",
    type=int,
    help="Memory of the process in MiB; default: 1024, of a task manager 2048.",
)
@OFF_HEAP
@click.option("--host", help="Name under which others reach this host; default: its host name.")
@click.option("--listen", default="0.0.0.0", show_default=True, help="Address to listen on.")
@click.option(
    "--rest-port",
    type=int,
    default=8081,
    show_default=True,
    help="Port of the job manager's REST API.",
)
@click.option(
    "--rpc-port", type=int, default=6123, show_default=True, help="RPC port of the job manager."
)
@click.option(
    "--metrics-port",
    type=click.IntRange(1, 65535),
    help="Port at which Prometheus reads Flink's metrics, 9249 by custom; default: none.",
)
@SCHEDULER
@HA
@click.option(
    "--job-id",
    help="application: Flink's id of the job, 32 hexadecimal digits; default: random.",
)
@grouped(Addresses, "addresses")
@PROJECT
def run_(
    process: Literal["jobmanager", "taskmanager", "application"],
    arguments: tuple[str, ...],
    address: str | None,
    slots: int,
    memory_mb: int | None,
    off_heap_mb: int | None,
    addresses: Addresses,
    scheduler: Scheduler | None,
    ha: str | None,
    job_id: str | None,
    path: str,
) -> None:
    """Run a process of a multi-host cluster, or a job, in the foreground.

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

    \b
    paimon-features cluster run application tiles --address tiles-1 --view customer_spend
    paimon-features cluster run taskmanager --address tiles-1 --slots 4
    paimon-features cluster run application iterate train.py:build --mode thread

    An application is a job manager that starts one PROGRAM itself: 'tiles' is the job of 'submit',
    'history' that of 'training-set --engine flink --output', 'ingest' and 'iterate' those of the
    commands of that name. It ends with the job. To recover from a failure start the same command
    again: 'tiles' and a topic's 'ingest' resume from their last checkpoints. Options of the program
    follow its name; see docs/how-to/serving/application-mode.md.
    """
    if process == "application":
        check_options({"process", *_APPLICATION}, "'cluster run application'")
        _run_application(arguments, address or "127.0.0.1", memory_mb, job_id, addresses, path)
        return
    if arguments:
        options = [name for p in click.get_current_context().command.params for name in p.opts]
        near = did_you_mean(arguments[0], options)
        raise click.UsageError(f"'cluster run {process}' takes no {arguments[0]}{near}")
    check_options({"process", *_MANAGER}, f"'cluster run {process}'")
    if address is None:
        raise click.UsageError("--address is required: the host name of the job manager")
    from paimon_features.flink.cluster import ClusterShape, run_manager

    size = {"jobmanager": "job_manager_mb", "taskmanager": "task_manager_mb"}[process]
    sizes: dict[str, Any] = {} if memory_mb is None else {size: memory_mb}
    if scheduler is not None:
        sizes["scheduler"] = scheduler
    if off_heap_mb is not None:
        sizes["off_heap_mb"] = off_heap_mb
    config = Project.open(path).config
    note_stores(config)
    shape = ClusterShape(slots=slots, **sizes)
    run_manager(process, config.state_dir, address, shape, ha=ha, **asdict(addresses))


def _run_application(
    arguments: Sequence[str],
    address: str,
    memory_mb: int | None,
    job_id: str | None,
    addresses: Addresses,
    path: str,
) -> None:
    from paimon_features.flink.cluster import ClusterShape, run_manager
    from paimon_features.project.programs import program

    if not arguments:
        raise click.UsageError(f"pass the PROGRAM of the application: {', '.join(APPLICATIONS)}")
    if arguments[0] not in APPLICATIONS:
        raise UnknownNameError.of("program", arguments[0], APPLICATIONS)
    if job_id is not None and not re.fullmatch("[0-9a-f]{32}", job_id):
        raise click.BadParameter(f"{job_id!r} is not 32 hexadecimal digits", param_hint="--job-id")
    config = Project.open(path).config
    note_stores(config)
    shape = ClusterShape() if memory_mb is None else ClusterShape(job_manager_mb=memory_mb)
    name, *options = arguments
    run_manager(
        "jobmanager",
        config.state_dir,
        address,
        shape,
        application=[str(program(name)), *options, "--project", str(config.root)],
        job_id=job_id,
        **asdict(replace(addresses, host=address)),
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
