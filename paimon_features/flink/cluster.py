"""A session cluster on this machine, run from the Flink wheel: its jobs outlive their client.

Its configuration, logs and process ids are files under ``<state folder>/cluster``; nothing is
written into the wheel. It listens on the loopback interface only, on free ports. A process of its
own runs its processes, and starts those again that end (``supervisor``).
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NoReturn

from paimon_features.core.errors import ConfigurationError, JobError
from paimon_features.core.installation.jars import checkpoint_store
from paimon_features.core.process.flink_rest import FlinkRest, JobSummary
from paimon_features.core.process.ports import free_ports
from paimon_features.core.process.process_holder import is_running
from paimon_features.flink.environment import SORT_SHUFFLE_BUFFERS, host_cluster
from paimon_features.flink.gateway import flink_home, opened_modules, script_environment
from paimon_features.flink.high_availability import HighAvailability
from paimon_features.flink.metrics import prometheus_options
from paimon_features.flink.supervisor import (
    PROCESSES,
    TASKS,
    ProcessState,
    SupervisedTask,
    read_states,
)
from paimon_features.flink.workers import write_python
from paimon_features.lake.ownership.lease import ProcessHolder
from paimon_features.lake.ownership.locks import locked
from paimon_features.lake.storage.json_files import read_json, write_json, write_plain_json

START_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 15.0
CANCEL_TIMEOUT_S = 30.0
START_ATTEMPTS = 2
"""A cluster that is starting has failed once one of its processes was restarted so often."""
JOB_MANAGER = "jobmanager"
REST_PORT, RPC_PORT = 8081, 6123
"""Flink's own ports, for clusters of several hosts."""
PYTHON_DRIVER = "org.apache.flink.client.python.PythonDriver"
"""The class by which Flink's entry points run a Python program."""

MALLOC_ARENAS = "2"

LOCAL_CLUSTER = "local"
"""Stands for the session cluster that the project runs itself, in place of ``host:port``."""

Manager = Literal["jobmanager", "taskmanager"]


Scheduler = Literal["default", "adaptive"]
ADAPTIVE = {
    "jobmanager.scheduler": "adaptive",
    # Flink waits for as long to see whether there are more slots, and rescales no sooner than
    # that after the last time: by default 10, 60 and 30 s
    "jobmanager.adaptive-scheduler.submission.resource-stabilization-timeout": "2 s",
    "jobmanager.adaptive-scheduler.executing.resource-stabilization-timeout": "10 s",
    "jobmanager.adaptive-scheduler.executing.cooldown-after-rescaling": "10 s",
}


@dataclass(frozen=True, slots=True)
class ClusterShape:
    """The size of a cluster. Memory is that of a complete process, in MB.

    ``off_heap_mb`` of a task manager's memory are outside its heap, for large records of Python
    processes (see ``IterationSettings.max_record_bytes``).

    With the ``adaptive`` scheduler, streaming jobs run with the slots that there are, and are
    rescaled from their last checkpoints when that number changes.
    """

    task_managers: int = 1
    slots: int = 8
    task_manager_mb: int = 2048
    job_manager_mb: int = 1024
    scheduler: Scheduler = "default"
    off_heap_mb: int = 0

    def __post_init__(self) -> None:
        for name, least in (
            ("task_managers", 1),
            ("slots", 1),
            # Flink's fixed parts (metaspace, overhead, network) leave no heap below these
            ("task_manager_mb", 1024),
            ("job_manager_mb", 768),
            ("off_heap_mb", 0),
        ):
            if getattr(self, name) < least:
                raise ConfigurationError(
                    f"cluster: {name} = {getattr(self, name)}; expected at least {least}"
                )
        # besides shares of the process Flink takes 435 MB; 230 MB more are for the heap
        most = max(int(0.72 * self.task_manager_mb) - 665, 0)
        if self.off_heap_mb > most:
            raise ConfigurationError(
                f"cluster: off_heap_mb = {self.off_heap_mb}; expected at most {most}, which leaves "
                f"room for the other parts of task_manager_mb = {self.task_manager_mb}"
            )


@dataclass(frozen=True, slots=True)
class ClusterRecord:
    """A started cluster: its address, and the process that runs its processes.

    ``ha`` is the address of ZooKeeper, None without high availability.
    """

    address: str
    shape: ClusterShape
    supervisor: ProcessHolder
    ha: str | None = None


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """The state of a cluster. ``address`` is None if none runs.

    ``pids`` are its running processes: job manager, task managers. ``processes`` has their states,
    with what was restarted; ``supervisor`` is the process that does that. ``starting``: the job
    manager does not answer now, because it is being restarted.
    """

    address: str | None = None
    slots_total: int = 0
    slots_free: int = 0
    pids: tuple[int, ...] = ()
    processes: tuple[ProcessState, ...] = ()
    supervisor: int | None = None
    jobs: tuple[JobSummary, ...] = ()
    log_dir: str = ""
    ha: str | None = None
    running: bool = field(default=False)
    starting: bool = field(default=False)


def cluster_address(state_dir: Path, cluster: str | None) -> str | None:
    """Return the ``host:port`` of a cluster; ``"local"`` is that of the project.

    None is this process's JVM, or, in a program that Flink started, Flink's cluster.

    Raises
    ------
    ConfigurationError
        If the project's own cluster is meant and does not run.
    """
    if cluster is None:
        return host_cluster()
    if cluster != LOCAL_CLUSTER:
        return cluster
    address = LocalCluster(state_dir).status().address
    if address is None:
        raise ConfigurationError(
            "no local cluster runs; 'paimon-features cluster start' starts one, or name one: "
            "--cluster HOST:PORT"
        )
    return address


class LocalCluster:
    """The session cluster of one project; ``state_dir`` is the project's state folder."""

    def __init__(self, state_dir: Path) -> None:
        self.state_dir = state_dir
        self.folder = state_dir / "cluster"
        self.log_dir = self.folder / "log"

    def record(self) -> ClusterRecord | None:
        """Return the record of the started cluster, None if none was started or it was stopped."""
        raw = read_json(self._record_path)
        if raw is None:
            return None
        if "supervisor" not in raw:
            raise ConfigurationError(
                f"{self._record_path} is of an earlier version, whose cluster may still run: end "
                "its processes (their ids are in that file), then delete the file"
            )
        return ClusterRecord(
            raw["address"],
            ClusterShape(**raw["shape"]),
            ProcessHolder(**raw["supervisor"]),
            raw["ha"],
        )

    def start(self, shape: ClusterShape | None = None, ha: str | None = None) -> ClusterRecord:
        """Start the cluster and wait until all its slots are available (about 6 s).

        A running one is returned unchanged. Its processes are restarted when they end, until
        ``stop``. With ``ha``, ``zookeeper://HOST:PORT``, jobs continue when the job manager was
        restarted; otherwise they are lost then, and have to be resumed.

        Raises
        ------
        ConfigurationError
            If one of another shape runs, and ``shape`` is given, or one with another ``ha``; or if
            ``ha`` is not an address of ZooKeeper.
        JobError
            If it does not start; its processes are ended again.
        SetupError, MissingExtraError
            If Java, a jar or pyflink is missing.
        """
        if ha is not None:
            HighAvailability.parse(ha)
        with locked(self.folder / "lock", "the local cluster", timeout_s=START_TIMEOUT_S):
            record = self.record()
            if record is not None and _alive(record.supervisor):
                other = shape is not None and shape != record.shape
                if other or (ha is not None and ha != record.ha):
                    raise ConfigurationError(
                        f"a cluster of another shape runs at {record.address} ({record.shape}, "
                        f"high availability: {record.ha}); 'paimon-features cluster stop' ends it"
                    )
                self._await_slots(record)
                return record
            if record is not None:
                self._end(record)
            return self._start(shape or ClusterShape(), ha)

    def stop(self) -> tuple[int, ...]:
        """End the cluster's processes; returns the process ids of those that ran.

        Its jobs end with it; they can resume from their last checkpoints, which are kept.

        Raises
        ------
        JobError
            If a process cannot be ended.
        """
        with locked(self.folder / "lock", "the local cluster", timeout_s=START_TIMEOUT_S):
            record = self.record()
            return () if record is None else self._end(record)

    def status(self) -> ClusterStatus:
        """Return the current state."""
        record = self.record()
        if record is None or not _alive(record.supervisor):
            return ClusterStatus(log_dir=str(self.log_dir))
        states = read_states(self.folder)
        pids = tuple(
            state.pid for state in states if state.pid is not None and is_running(state.pid)
        )
        without_rest = ClusterStatus(
            address=record.address,
            pids=pids,
            processes=states,
            supervisor=record.supervisor.pid,
            log_dir=str(self.log_dir),
            ha=record.ha,
            running=True,
        )
        rest = FlinkRest(record.address)
        try:
            overview = rest.overview()
            jobs = tuple(rest.jobs())
        except JobError:
            return replace(without_rest, starting=True)
        return replace(
            without_rest,
            slots_total=int(overview["slots-total"]),
            slots_free=int(overview["slots-available"]),
            jobs=jobs,
        )

    def process_of(self, address: str) -> ProcessHolder | None:
        """Return the process with which the jobs at ``address`` end, if this cluster was started
        there.

        That is the job manager; with high availability jobs outlive it, but not the supervisor.
        None for another cluster.
        """
        record = self.record()
        if record is None or record.address != address:
            return None
        if record.ha is not None:
            return record.supervisor
        pids = [state.pid for state in read_states(self.folder) if state.name == JOB_MANAGER]
        if not pids or pids[0] is None or not is_running(pids[0]):
            raise JobError(
                f"the job manager at {address} is being restarted; repeat the command in a moment"
            )
        return ProcessHolder.of(pids[0])

    @property
    def _record_path(self) -> Path:
        return self.folder / "cluster.json"

    def _start(self, shape: ClusterShape, ha: str | None) -> ClusterRecord:
        rest_port, rpc_port = free_ports(2)
        loopback = "127.0.0.1"
        place = _Endpoint(loopback, loopback, loopback, rest_port, rpc_port, self.folder / "tmp")
        options = _options(shape, place, self.state_dir, self._availability(ha))
        # a lost process is missed after some seconds, and is then there again
        options["heartbeat.interval"] = 2_000
        environment = _prepare(self.folder, self.log_dir, options)
        conf = Path(environment["FLINK_CONF_DIR"])
        # in the foreground, too, Flink writes its log files, and not to the standard output
        shutil.copy(conf / "log4j.properties", conf / "log4j-console.properties")
        managers = ["jobmanager", *["taskmanager"] * shape.task_managers]
        names = [JOB_MANAGER, *(f"taskmanager-{n + 1}" for n in range(shape.task_managers))]
        scripts = [str(flink_home() / "bin" / f"{manager}.sh") for manager in managers]
        bash = shutil.which("bash") or "/bin/bash"
        tasks = [
            asdict(SupervisedTask(name, (bash, script, "start-foreground")))
            for name, script in zip(names, scripts, strict=True)
        ]
        write_plain_json(self.folder / TASKS, {"tasks": tasks})
        (self.folder / PROCESSES).unlink(missing_ok=True)
        supervisor = _supervisor(self.folder, self.log_dir, environment)
        try:
            record = ClusterRecord(
                f"{loopback}:{rest_port}", shape, ProcessHolder.of(supervisor), ha
            )
            # written before the wait, so that stop() finds the processes in any case
            write_json(self._record_path, asdict(record))
            self._await_slots(record)
        except BaseException:
            _terminate([supervisor])
            self._record_path.unlink(missing_ok=True)
            raise
        return record

    def _availability(self, ha: str | None) -> dict[str, str]:
        """Return the options of high availability. A name of its own for each start: what a cluster
        that was killed left in ZooKeeper is not continued, its jobs may have been resumed
        elsewhere."""
        if ha is None:
            return {}
        requested = HighAvailability.parse(ha)
        named = HighAvailability(requested.quorum, f"{requested.cluster_id}-{secrets.token_hex(4)}")
        store = checkpoint_store()
        shutil.rmtree(self.folder / "ha", ignore_errors=True)
        return named.options(f"{store.address}/ha" if store else (self.folder / "ha").as_uri())

    def _await_slots(self, record: ClusterRecord) -> None:
        wanted = record.shape.task_managers * record.shape.slots
        rest = FlinkRest(record.address)
        deadline = time.monotonic() + START_TIMEOUT_S
        before = {state.name: state.restarts for state in read_states(self.folder)}
        while True:
            with suppress(JobError):  # not alive yet, or restarted since
                if int(rest.overview()["slots-total"]) >= wanted:
                    return
            restarts = {s: s.restarts - before.get(s.name, 0) for s in read_states(self.folder)}
            failing = max(restarts.values(), default=0) >= START_ATTEMPTS
            gone = not _alive(record.supervisor)
            if failing or gone or time.monotonic() > deadline:
                reason = "not all slots are available"
                if gone:
                    reason = "its supervisor has ended"
                elif failing:
                    reason = "; ".join(str(state) for state, count in restarts.items() if count)
                raise JobError(
                    f"the cluster at {record.address} did not start: {reason}; "
                    f"its logs are in {self.log_dir}"
                )
            time.sleep(0.2)

    def _end(self, record: ClusterRecord) -> tuple[int, ...]:
        if record.ha is not None and _alive(record.supervisor):
            _cancel_all(FlinkRest(record.address))
        states = read_states(self.folder)
        pids = [state.pid for state in states if state.pid is not None]
        # a process id may be reused by now: only those that this cluster has
        running = [pid for pid in pids if is_running(pid) and _is_of(pid, self.folder)]
        if _alive(record.supervisor):
            _terminate([record.supervisor.pid])
        _terminate([pid for pid in running if is_running(pid)])
        for name in ("pid", "ha"):
            shutil.rmtree(self.folder / name, ignore_errors=True)
        self._record_path.unlink(missing_ok=True)
        return tuple(running)


def run_manager(
    manager: Manager,
    state_dir: Path,
    address: str,
    shape: ClusterShape,
    *,
    host: str | None = None,
    listen: str = "0.0.0.0",
    rest_port: int = REST_PORT,
    rpc_port: int = RPC_PORT,
    application: Sequence[str] = (),
    job_id: str | None = None,
    ha: str | None = None,
    metrics_port: int | None = None,
) -> NoReturn:
    """Run one process of a cluster of several hosts in the foreground, for containers.

    ``address`` is the host name of the job manager for all others, with the ports ``rpc_port`` and
    ``rest_port``, ``host`` that of this process (by default the machine's host name), and
    ``listen`` the address on which it listens: clients can run code there, so it belongs in
    a private network. ``state_dir`` contains checkpoints and must be the same for all
    processes. The log goes to the standard output.

    With ``ha``, ``zookeeper://HOST:PORT[,...]/NAME``, which must be the same for all processes of
    a cluster, jobs continue after the loss of the job manager, and there may be several: one leads,
    the others wait. Task managers find the one that leads.

    With ``application``, the path of a program and its arguments, the job manager runs that
    program itself (application mode), and ends when the program and its job have ended. The job
    then has the id ``job_id``, by default a random one.

    With ``metrics_port`` the process shows Prometheus Flink's metrics of itself and its jobs.

    Raises
    ------
    SetupError, MissingExtraError
        If Java, a jar or pyflink is missing.
    """
    hostname = host or socket.gethostname()
    folder = state_dir / "cluster" / f"{manager}-{hostname}"
    place = _Endpoint(address, hostname, listen, rest_port, rpc_port, Path(tempfile.gettempdir()))
    options = _options(shape, place, state_dir, {})
    if ha is not None:
        store = checkpoint_store()
        storage = f"{store.address}/ha" if store else (state_dir / "cluster" / "ha").as_uri()
        options |= HighAvailability.parse(ha).options(storage)
    if metrics_port is not None:
        options |= prometheus_options(metrics_port)
    environment = _prepare(folder, folder / "log", options)
    script, arguments = f"{manager}.sh", ["start-foreground"]
    if application:
        script = "standalone-job.sh"
        arguments += ["--job-classname", PYTHON_DRIVER]
        arguments += ["--job-id", job_id] if job_id else []
        arguments += ["-py", *application]
    command = ["bash", str(flink_home() / "bin" / script), *arguments]
    os.execvpe("bash", command, environment)


def _prepare(folder: Path, log_dir: Path, options: Mapping[str, Any]) -> dict[str, str]:
    """Write the configuration under ``folder``; returns the environment for Flink's scripts."""
    conf, pids = folder / "conf", folder / "pid"
    for fresh in (conf, pids):
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(parents=True)
    log_dir.mkdir(parents=True, exist_ok=True)
    for path in (flink_home() / "conf").glob("log*"):
        shutil.copy(path, conf)
    modules = opened_modules()
    java = f"env.java.opts.all: {modules}\n" if modules else ""
    (conf / "config.yaml").write_text(java + _lines(options), "utf-8")
    environment = script_environment(write_python(folder / "bin"))
    return environment | {
        "FLINK_CONF_DIR": str(conf),
        "FLINK_LOG_DIR": str(log_dir),
        "FLINK_PID_DIR": str(pids),
        # a fixed ident makes the names of the pid files predictable
        "FLINK_IDENT_STRING": "local",
        # by default glibc keeps freed memory in eight heaps for each core, outside Flink's limits
        "MALLOC_ARENA_MAX": environment.get("MALLOC_ARENA_MAX", MALLOC_ARENAS),
    }


def _alive(process: ProcessHolder) -> bool:
    return process.alive()[0]


def _terminate(pids: list[int]) -> None:
    """End processes by id: SIGTERM, wait, SIGKILL; raises JobError for one that remains."""
    for number, wait_s in ((signal.SIGTERM, 2 * STOP_TIMEOUT_S), (signal.SIGKILL, STOP_TIMEOUT_S)):
        for pid in pids:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue
        deadline = time.monotonic() + wait_s
        while pids and time.monotonic() < deadline:
            pids = [pid for pid in pids if is_running(pid)]
            time.sleep(0.05)
    if pids:
        raise JobError(f"the processes {', '.join(map(str, pids))} cannot be ended")


def _is_of(pid: int, folder: Path) -> bool:
    """Return True if a process was started with the configuration in ``folder``."""
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return not Path("/proc/self").exists()  # no way to tell
    return f"FLINK_CONF_DIR={folder / 'conf'}".encode() in variables


def _cancel_all(rest: FlinkRest) -> None:
    """End the jobs, so that nothing of them is left in ZooKeeper."""
    with suppress(JobError):
        for job in rest.jobs():
            if job.running:
                rest.cancel(job.id, CANCEL_TIMEOUT_S)


def _supervisor(folder: Path, log_dir: Path, environment: Mapping[str, str]) -> int:
    """Start the supervisor; returns its process id."""
    program = [sys.executable, "-m", "paimon_features.flink.supervisor"]
    with (log_dir / "supervisor.out").open("wb") as output:
        started = subprocess.run(
            [*program, str(folder), str(log_dir), "--detach"],
            env={**environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=output,
            check=False,
        )
    if not started.stdout.isdigit():
        raise JobError(f"the cluster's supervisor did not start; see {output.name}")
    return int(started.stdout)


@dataclass(frozen=True, slots=True)
class _Endpoint:
    """The addresses and temporary folder of a process: job manager, own host, listen address."""

    job_manager: str
    own: str
    listen: str
    rest_port: int
    rpc_port: int
    tmp: Path


def _options(
    shape: ClusterShape, place: _Endpoint, state_dir: Path, availability: Mapping[str, str]
) -> dict[str, Any]:
    store = checkpoint_store()
    base = state_dir.as_uri() if store is None else store.address
    return {
        **({} if store is None else store.options),
        **availability,
        **(ADAPTIVE if shape.scheduler == "adaptive" else {}),
        "jobmanager.rpc.address": place.job_manager,
        "jobmanager.rpc.port": place.rpc_port,
        "jobmanager.bind-host": place.listen,
        "jobmanager.memory.process.size": f"{shape.job_manager_mb}m",
        "taskmanager.bind-host": place.listen,
        "taskmanager.host": place.own,
        "taskmanager.numberOfTaskSlots": shape.slots,
        "taskmanager.memory.process.size": f"{shape.task_manager_mb}m",
        "taskmanager.memory.task.off-heap.size": f"{shape.off_heap_mb}m",
        # the jobs keep no state in Flink's managed memory
        "taskmanager.memory.managed.fraction": 0.1,
        "taskmanager.network.sort-shuffle.min-buffers": SORT_SHUFFLE_BUFFERS,
        "rest.address": place.job_manager,
        "rest.bind-address": place.listen,
        "rest.port": place.rest_port,
        "rest.bind-port": place.rest_port,
        "web.submit.enable": False,
        "web.cancel.enable": True,
        "execution.checkpointing.dir": f"{base}/checkpoints",
        "execution.checkpointing.savepoint-dir": f"{base}/savepoints",
        "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
        # the classes of a job stay loaded for a while after its end
        "taskmanager.memory.jvm-metaspace.size": "384m",
        "io.tmp.dirs": str(place.tmp),
    }


def _lines(options: Mapping[str, Any]) -> str:
    return "".join(f"{key}: {_yaml(value)}\n" for key, value in options.items())


def _yaml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return json.dumps(value) if isinstance(value, str) else str(value)
