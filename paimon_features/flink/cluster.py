"""A session cluster on this machine, run from the Flink wheel: its jobs outlive their client.

Its configuration, logs and process ids are files under ``<state folder>/cluster``; nothing is
written into the wheel. It listens on the loopback interface only, on free ports.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, NoReturn

from paimon_features.errors import ConfigurationError, JobError
from paimon_features.flink.environment import SORT_SHUFFLE_BUFFERS, host_cluster
from paimon_features.flink.gateway import flink_environment, flink_home
from paimon_features.flink.workers import write_python
from paimon_features.flink_rest import FlinkRest, JobSummary
from paimon_features.ports import free_ports
from paimon_features.setup.jars import checkpoint_store
from paimon_features.tables.files import locked, read_json, write_json
from paimon_features.tables.lease import ProcessHolder

START_TIMEOUT_S = 90.0
STOP_TIMEOUT_S = 15.0
REST_PORT, RPC_PORT = 8081, 6123
"""Flink's own ports, for clusters of several hosts."""
PYTHON_DRIVER = "org.apache.flink.client.python.PythonDriver"
"""The class by which Flink's entry points run a Python program."""

LOCAL_CLUSTER = "local"
"""Stands for the session cluster that the project runs itself, in place of ``host:port``."""

Manager = Literal["jobmanager", "taskmanager"]


@dataclass(frozen=True, slots=True)
class ClusterShape:
    """The size of a cluster. Memory is that of a complete process, in MB."""

    task_managers: int = 1
    slots: int = 8
    task_manager_mb: int = 2048
    job_manager_mb: int = 1024

    def __post_init__(self) -> None:
        for name, least in (
            ("task_managers", 1),
            ("slots", 1),
            # Flink's fixed parts (metaspace, overhead, network) leave no heap below these
            ("task_manager_mb", 1024),
            ("job_manager_mb", 768),
        ):
            if getattr(self, name) < least:
                raise ConfigurationError(
                    f"cluster: {name} = {getattr(self, name)}; expected at least {least}"
                )


@dataclass(frozen=True, slots=True)
class ClusterRecord:
    """A started cluster: its address and processes."""

    address: str
    shape: ClusterShape
    job_manager: ProcessHolder
    task_managers: tuple[ProcessHolder, ...]

    @property
    def processes(self) -> tuple[ProcessHolder, ...]:
        return (self.job_manager, *self.task_managers)


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """The state of a cluster. ``address`` is None if none runs."""

    address: str | None = None
    slots_total: int = 0
    slots_free: int = 0
    pids: tuple[int, ...] = ()
    lost_pids: tuple[int, ...] = ()
    jobs: tuple[JobSummary, ...] = ()
    log_dir: str = ""
    running: bool = field(default=False)


def cluster_address(state_dir: Path, cluster: str | None) -> str | None:
    """The ``host:port`` of a cluster; ``"local"`` is that of the project.

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
        """The record of the started cluster, None if none was started or it was stopped."""
        raw = read_json(self._record_path)
        if raw is None:
            return None
        return ClusterRecord(
            raw["address"],
            ClusterShape(**raw["shape"]),
            ProcessHolder(**raw["job_manager"]),
            tuple(ProcessHolder(**holder) for holder in raw["task_managers"]),
        )

    def start(self, shape: ClusterShape | None = None) -> ClusterRecord:
        """Start the cluster and wait until all its slots are available (about 6 s).

        A running one is returned unchanged; remaining processes of a broken one are ended first.

        Raises
        ------
        ConfigurationError
            If one of another shape runs, and ``shape`` is given.
        JobError
            If it does not start; its processes are ended again.
        SetupError, MissingExtraError
            If Java, a jar or pyflink is missing.
        """
        with locked(self.folder / "lock", "the local cluster", timeout_s=START_TIMEOUT_S):
            found = self.record()
            if found is not None and all(_alive(process) for process in found.processes):
                if shape is not None and shape != found.shape:
                    raise ConfigurationError(
                        f"a cluster of another shape runs at {found.address} ({found.shape}); "
                        "'paimon-features cluster stop' ends it"
                    )
                self._await_slots(found)
                return found
            if found is not None:
                self._end(found)
            return self._start(shape or ClusterShape())

    def stop(self) -> tuple[int, ...]:
        """End the cluster's processes; returns the process ids of those that ran.

        Its jobs end with it; they can resume from their last checkpoints, which are kept.

        Raises
        ------
        JobError
            If a process cannot be ended.
        """
        with locked(self.folder / "lock", "the local cluster", timeout_s=START_TIMEOUT_S):
            found = self.record()
            return () if found is None else self._end(found)

    def status(self) -> ClusterStatus:
        """The current state; ``lost_pids`` are processes that ended without being stopped."""
        found = self.record()
        if found is None:
            return ClusterStatus(log_dir=str(self.log_dir))
        alive = [process.pid for process in found.processes if _alive(process)]
        lost = [process.pid for process in found.processes if process.pid not in alive]
        known = ClusterStatus(pids=tuple(alive), lost_pids=tuple(lost), log_dir=str(self.log_dir))
        if found.job_manager.pid not in alive:
            return known
        rest = FlinkRest(found.address)
        overview = rest.overview()
        return ClusterStatus(
            found.address,
            int(overview["slots-total"]),
            int(overview["slots-available"]),
            known.pids,
            known.lost_pids,
            tuple(rest.jobs()),
            known.log_dir,
            running=True,
        )

    def job_manager_at(self, address: str) -> ProcessHolder | None:
        """The job manager's process if this cluster was started at ``address``, else None."""
        found = self.record()
        return found.job_manager if found is not None and found.address == address else None

    @property
    def _record_path(self) -> Path:
        return self.folder / "cluster.json"

    def _start(self, shape: ClusterShape) -> ClusterRecord:
        rest_port, rpc_port = free_ports(2)
        own = "127.0.0.1"
        place = _Endpoint(own, own, own, rest_port, rpc_port, self.folder / "tmp")
        environment = _prepare(self.folder, self.log_dir, _options(shape, place, self.state_dir))
        pids = Path(environment["FLINK_PID_DIR"])
        managers = ["jobmanager", *["taskmanager"] * shape.task_managers]
        try:
            _run([flink_home() / "bin" / f"{manager}.sh" for manager in managers], environment)
            holders = [ProcessHolder.of(pid) for pid in _written_pids(pids)]
            address = f"127.0.0.1:{rest_port}"
            record = ClusterRecord(address, shape, holders[0], tuple(holders[1:]))
            # written before the wait, so that stop() finds the processes in any case
            write_json(self._record_path, asdict(record))
            self._await_slots(record)
        except BaseException:
            _terminate(_written_pids(pids))
            self._record_path.unlink(missing_ok=True)
            raise
        return record

    def _await_slots(self, record: ClusterRecord) -> None:
        wanted = record.shape.task_managers * record.shape.slots
        rest = FlinkRest(record.address)
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            if rest.alive() and int(rest.overview()["slots-total"]) >= wanted:
                return
            dead = [process.pid for process in record.processes if not _alive(process)]
            if dead or time.monotonic() > deadline:
                what = f"process {dead[0]} has ended" if dead else "not all slots are available"
                raise JobError(
                    f"the cluster at {record.address} did not start: {what}; "
                    f"its logs are in {self.log_dir}"
                )
            time.sleep(0.2)

    def _end(self, record: ClusterRecord) -> tuple[int, ...]:
        # a process id may be reused by now: only those that were started here
        running = [process.pid for process in record.processes if _alive(process)]
        _terminate(running)
        shutil.rmtree(self.folder / "pid", ignore_errors=True)
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
) -> NoReturn:
    """Run one process of a cluster of several hosts in the foreground, for containers.

    ``address`` is the host name of the job manager for all others, with the ports ``rpc_port`` and
    ``rest_port``, ``host`` that of this process (by default the machine's host name), and
    ``listen`` the address on which it listens: clients can run code there, so it belongs in
    a private network. ``state_dir`` contains checkpoints and must be the same for all
    processes. The log goes to the standard output.

    With ``application``, the path of a program and its arguments, the job manager runs that
    program itself (application mode), and ends when the program and its job have ended. The job
    then has the id ``job_id``, by default a random one.

    Raises
    ------
    SetupError, MissingExtraError
        If Java, a jar or pyflink is missing.
    """
    own = host or socket.gethostname()
    folder = state_dir / "cluster" / f"{manager}-{own}"
    place = _Endpoint(address, own, listen, rest_port, rpc_port, Path(tempfile.gettempdir()))
    environment = _prepare(folder, folder / "log", _options(shape, place, state_dir))
    script, arguments = f"{manager}.sh", ["start-foreground"]
    if application:
        script = "standalone-job.sh"
        arguments += ["--job-classname", PYTHON_DRIVER]
        arguments += ["--job-id", job_id] if job_id else []
        arguments += ["-py", *application]
    command = ["bash", str(flink_home() / "bin" / script), *arguments]
    os.execvpe("bash", command, environment)


def _prepare(folder: Path, log_dir: Path, options: str) -> dict[str, str]:
    """Write the configuration under ``folder``; returns the environment for Flink's scripts."""
    conf, pids = folder / "conf", folder / "pid"
    for fresh in (conf, pids):
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(parents=True)
    log_dir.mkdir(parents=True, exist_ok=True)
    home = flink_home()
    for path in (home / "conf").glob("log*"):
        shutil.copy(path, conf)
    standard = (home / "conf" / "config.yaml").read_text("utf-8")
    (conf / "config.yaml").write_text(_java_options(standard) + options, "utf-8")
    environment = flink_environment()
    programs = write_python(folder / "bin")
    # for Python operators, also of jobs of other clients; not shipped with each job, because a
    # second class loader could not load the interpreter's library again
    python = sorted(str(path) for path in (home / "opt").glob("flink-python-*.jar"))
    classes = [environment.get("HADOOP_CLASSPATH", ""), *python]
    return environment | {
        "PATH": os.pathsep.join([str(programs), environment["PATH"]]),
        "HADOOP_CLASSPATH": os.pathsep.join(filter(None, classes)),
        "FLINK_CONF_DIR": str(conf),
        "FLINK_LOG_DIR": str(log_dir),
        "FLINK_PID_DIR": str(pids),
        # a fixed ident makes the names of the pid files predictable
        "FLINK_IDENT_STRING": "local",
    }


def _alive(process: ProcessHolder) -> bool:
    return process.alive()[0]


def _terminate(pids: list[int]) -> None:
    """End processes by id: SIGTERM, wait, SIGKILL; raises JobError for one that remains."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in pids:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while pids and time.monotonic() < deadline:
            pids = [pid for pid in pids if _exists(pid)]
            time.sleep(0.05)
    if pids:
        raise JobError(f"the processes {', '.join(map(str, pids))} cannot be ended")


def _exists(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state[0] not in ("Z", "X")


def _written_pids(folder: Path) -> list[int]:
    """The process ids of the job manager, then of the task managers."""
    found: list[int] = []
    for daemon in ("standalonesession", "taskexecutor"):
        path = folder / f"flink-local-{daemon}.pid"
        if path.is_file():
            found += [int(line) for line in path.read_text("ascii").split()]
    return found


def _run(scripts: list[Path], environment: dict[str, str]) -> None:
    """Run Flink's start scripts in parallel: each takes seconds before its daemon starts."""
    started = [
        subprocess.Popen(
            ["bash", str(script), "start"],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,  # Ctrl-C in the terminal is for the client only
        )
        for script in scripts
    ]
    try:
        for script, process in zip(scripts, started, strict=True):
            output, _ = process.communicate()
            if process.returncode != 0:
                raise JobError(f"{script.name} start failed: {output.strip()[-500:]}")
    finally:
        # also after Ctrl-C: a script writes the pid file only at its end
        for process in started:
            process.wait()


def _java_options(standard: str) -> str:
    """The line of the wheel's configuration that opens Java modules for Flink."""
    lines = [line.strip() for line in standard.splitlines() if line.strip().startswith("all: --")]
    return f"env.java.opts.{lines[0]}\n" if lines else ""


@dataclass(frozen=True, slots=True)
class _Endpoint:
    """The addresses and temporary folder of a process: job manager, own host, listen address."""

    job_manager: str
    own: str
    listen: str
    rest_port: int
    rpc_port: int
    tmp: Path


def _options(shape: ClusterShape, place: _Endpoint, state_dir: Path) -> str:
    store = checkpoint_store()
    base = state_dir.as_uri() if store is None else store.address
    options: dict[str, Any] = {
        **({} if store is None else store.options),
        "jobmanager.rpc.address": place.job_manager,
        "jobmanager.rpc.port": place.rpc_port,
        "jobmanager.bind-host": place.listen,
        "jobmanager.memory.process.size": f"{shape.job_manager_mb}m",
        "taskmanager.bind-host": place.listen,
        "taskmanager.host": place.own,
        "taskmanager.numberOfTaskSlots": shape.slots,
        "taskmanager.memory.process.size": f"{shape.task_manager_mb}m",
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
    return "".join(f"{key}: {_yaml(value)}\n" for key, value in options.items())


def _yaml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)
