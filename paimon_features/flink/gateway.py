"""The JVM through which a process talks to Flink: started once, ended with its process.

pyflink starts a JVM at its first call, with two defects: its standard error is a pipe that nobody
reads (the JVM blocks once it is full), and its process id is unknown. Here the same JVM is started
with the class path of the lock file, bounded memory, its log in the project's state folder, and a
handle that ends it.

It ends with its client in every case. It calls back to its client continuously, and exits when
that connection breaks (2 s after a ``kill -9`` of the client). A client that is stopped (SIGSTOP)
leaves it to ``JvmWatchdog``. At a regular exit, and after
Ctrl-C, it is requested to exit, waited for, and killed by its process id if it does not.

A program that Flink itself starts (``flink run -py``, application mode) uses the JVM of Flink's
client or job manager, which started it: none is started here, and none ended.

Each thread of Python keeps the connections it opened (`ThreadConnections`), so that all its calls
run in one thread of Java.
"""

from __future__ import annotations

import atexit
import getpass
import hashlib
import logging
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from paimon_features.core.errors import JobError, MissingExtraError
from paimon_features.core.installation import class_path, find_java_home
from paimon_features.core.installation.cache import cache_root
from paimon_features.core.installation.jars import (
    CHECKPOINT_GROUP,
    checkpoint_store,
    fetch_jars,
    jars_for,
    needed_groups,
)
from paimon_features.flink.class_archive import archive_folder, jvm_options
from paimon_features.flink.jvm_watchdog import JvmWatchdog

JAR_GROUPS = ("flink", "kafka", "parquet")
"""The jar groups on the class path of client and cluster."""

DEFAULT_HEAP = "1500m"
COMPILE_LATER = (
    "-XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 "
    "-XX:Tier4CompileThreshold=150000 -XX:Tier4BackEdgeThreshold=400000"
)
"""Ten times the default thresholds of Java's second compiler, which otherwise spends 8 to 10 s of
CPU time on Flink's planner and start-up code without any gain; code that stays hot is compiled all
the same (ingesting 541,909 rows: 15 s instead of 23 s; JVM_ARGS overrides it)."""
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m"
"""No second compiler, for a JVM that lives for seconds: a backfill of 541,909 events takes another
third less CPU time. Above about five million events the second compiler pays off. Without it Java
would reserve 48 MB for compiled code, which the jobs of a notebook fill one by one."""
BLAS_THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
START_TIMEOUT_S = 90.0
STOP_TIMEOUT_S = 15.0
END_S = 2.0
"""How long after a broken connection a JVM that died is still a process."""
KEPT_LOGS = 10
CHECKPOINT_FOLDERS = ("execution.checkpointing.dir", "execution.state-recovery.path")
"""Flink's options that name a folder of checkpoints or savepoints."""
HOST_PORT = "PYFLINK_GATEWAY_PORT"
"""The variable by which Flink passes the address of its JVM to a program that it starts."""

_LOG4J = """\
rootLogger.level = ${env:ROOT_LOG_LEVEL:-WARN}
rootLogger.appenderRef.file.ref = FileAppender
appender.file.name = FileAppender
appender.file.type = FILE
appender.file.append = false
appender.file.fileName = ${sys:log.file}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{yyyy-MM-dd HH:mm:ss,SSS} %-5p %-60c %x - %m%n
"""

_lock = threading.Lock()
_running: Gateway | HostGateway | None = None
_with_checkpoints = False
"""Whether this process's JVM has Flink's file system for checkpoints on S3."""
_groups: set[str] | None = None
"""The groups of jars on the class path of this process's JVM."""


class ThreadConnections:
    """py4j's idle connections, a stack for each thread of Python.

    A connection is a thread of Java. py4j has one stack for all threads: when another thread (a
    garbage collection there is enough, which releases Java's objects) uses the last connection, the
    next call opens a new one. Flink's planner keeps state by thread of Java, from the parsing of a
    statement to its plan, and fails where the thread has changed (``NullPointerException:
    metadataHandlerProvider``).

    It replaces ``GatewayClient.deque``. Within a thread, calls are nested (a garbage collection
    inside a call), and a stack returns the connection of the outer call to the next outer call.
    There is no lock, which a nested call could not take: operations of dictionaries and lists are
    atomic. A new thread may continue the stack of an ended one, whose identifier it has.
    """

    def __init__(self, idle: Iterable[Any] = ()) -> None:
        self._idle: dict[int, list[Any]] = {threading.get_ident(): list(idle)}

    def append(self, connection: Any) -> None:
        """Keep an idle connection for the calling thread."""
        self._idle.setdefault(threading.get_ident(), []).append(connection)

    def pop(self) -> Any:
        """Return the connection that the calling thread kept last.

        Raises
        ------
        IndexError
            If it has no idle one; py4j then opens one.
        """
        return self._idle.get(threading.get_ident(), []).pop()

    def __len__(self) -> int:
        """Return the number of idle connections of the calling thread."""
        return len(self._idle.get(threading.get_ident(), ()))

    def close(self) -> None:
        """Close the idle connections of all threads."""
        for connections in list(self._idle.values()):
            while connections:
                connections.pop().close(False)


class HostGateway:
    """The JVM that started this program: ``flink run``, or the job manager of an application."""

    ended = False
    """If it ends, so does this program."""

    @property
    def pid(self) -> int:
        return os.getppid()

    def stop(self, timeout_s: float = 0) -> None:
        """Nothing: it is not ours to end."""


class Gateway:
    """A running JVM: its process, and the last lines of its standard error."""

    def __init__(self, process: subprocess.Popen[bytes], log_dir: Path) -> None:
        self.process = process
        self.log_dir = log_dir
        self.last_lines: deque[str] = deque(maxlen=50)
        self._watchdog = JvmWatchdog(process.pid)
        threading.Thread(target=self._drain, name="flink-stderr", daemon=True).start()

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    def end(self) -> JobError:
        """Return the error of a caller whose JVM has ended."""
        return JobError(
            f"the JVM of this process (pid {self.pid}) has ended with code "
            f"{self.process.returncode}; run the command again, in a notebook after a restart of "
            f"its kernel. Its last output: {' | '.join(self.last_lines) or 'none'}; "
            f"its log is in {self.log_dir}"
        )

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """End the JVM: request its exit, then kill it by its process id. Idempotent."""
        from pyflink import java_gateway

        gateway = java_gateway._gateway
        if gateway is not None and self.process.poll() is None:
            # closes the connections that the JVM watches; it then exits by itself
            connections = gateway._gateway_client.deque
            gateway.shutdown()
            connections.close()
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._watchdog.close()
        if self.process.stdin is not None:
            self.process.stdin.close()

    def _drain(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as lines:
            for line in lines:
                self.last_lines.append(line.decode("utf-8", "replace").rstrip())
        self._watchdog.close()  # it has ended: its number may become another process's


def check_jars(warehouse: str) -> None:
    """Raise JobError if this process's JVM was started before it was known to need some jars."""
    lacking = set(jars_for(warehouse)) - (_groups or set())
    if lacking and isinstance(_running, Gateway):
        raise JobError(
            f"the JVM of this process was started without the jars of group {min(lacking)!r}, "
            f"which the warehouse {warehouse!r} needs: open the lake before the first Flink job"
        )


def jvm_end(error: BaseException) -> JobError | None:
    """Return the error to raise if a call to the JVM failed because the JVM has ended.

    Else None.
    """
    lost = isinstance(error, OSError | EOFError) or type(error).__module__.startswith("py4j.")
    if not lost or not isinstance(_running, Gateway):
        return None
    # its connections break a moment before the process is gone
    with suppress(subprocess.TimeoutExpired):
        _running.process.wait(END_S)
    return _running.end() if _running.ended else None


def started_by_flink() -> bool:
    """Return True if Flink runs this program (``flink run -py``, application mode), as its
    client."""
    return HOST_PORT in os.environ


def start_gateway(
    state_dir: Path | None = None, heap: str = DEFAULT_HEAP, *, short_lived: bool = False
) -> Gateway | HostGateway:
    """Start the JVM of this process, or return the one that runs; pyflink then uses it.

    ``state_dir`` is the project's state folder, for the log (by default the user's cache);
    ``heap`` the maximum heap of the JVM, in which local jobs run as well; ``short_lived`` is for
    a JVM with little work: a small job, or one that is submitted to a cluster. All three have an
    effect on the first call only.

    Raises
    ------
    SetupError
        If there is no Java, or a jar cannot be fetched.
    MissingExtraError
        If pyflink is not installed.
    JobError
        If the JVM does not start, or has ended since (a process cannot start a second one).
    """
    global _running, _groups, _with_checkpoints
    with _lock:
        if _running is not None:
            if isinstance(_running, Gateway) and _running.ended:
                raise _running.end()
            return _running
        if started_by_flink():
            from pyflink import java_gateway

            _bind_connections(java_gateway.get_gateway())
            _running = HostGateway()
            return _running
        _groups = set(needed_groups(JAR_GROUPS))
        compilers = SHORT_LIVED if short_lived else COMPILE_LATER
        _running = _start(log_folder(state_dir), heap, compilers)
        atexit.register(_running.stop)
        _with_checkpoints = checkpoint_store() is not None
        _load_file_systems()
        return _running


def log_folder(state_dir: Path | None) -> Path:
    """Return the folder of the logs of the client's JVM."""
    return (cache_root() if state_dir is None else state_dir) / "logs"


def flink_home() -> Path:
    """Return the folder of the Flink distribution inside the wheel.

    Raises
    ------
    MissingExtraError
        If pyflink is not installed.
    """
    try:
        import pyflink
    except ImportError as error:
        raise MissingExtraError.of("apache-flink", "flink", "running Flink jobs") from error
    return Path(pyflink.__file__).parent


def flink_environment() -> dict[str, str]:
    """Return the environment variables of a JVM of Flink, of a client or of a cluster.

    The virtual environment's programs come first on PATH: Python functions that run inside the
    JVM (thread mode) find their packages through the first ``python`` there. NumPy's BLAS has one
    thread in them, unless a variable of this process overrides it: subtasks are the parallelism,
    and a thread per core in each of them would compete for the cores.
    """
    environment = {**dict.fromkeys(BLAS_THREADS, "1"), **os.environ}
    # variables of another Flink installation would mix its jars and settings with these
    for name in ("FLINK_HOME", "FLINK_CONF_DIR", "FLINK_LIB_DIR", "FLINK_OPT_DIR"):
        environment.pop(name, None)
    classpath = environment.get("HADOOP_CLASSPATH", "")
    jars = class_path(needed_groups(JAR_GROUPS))
    environment["HADOOP_CLASSPATH"] = os.pathsep.join(filter(None, [jars, classpath]))
    environment["JAVA_HOME"] = str(find_java_home())
    store = checkpoint_store()
    if store is not None:
        environment |= store.variables
        environment["FLINK_PLUGINS_DIR"] = str(plugin_folder())
    scripts = str(Path(sys.executable).parent)
    environment["PATH"] = os.pathsep.join([scripts, environment.get("PATH", os.defpath)])
    # Python functions there import this package, also when it is a checkout
    own_packages = str(Path(__file__).parents[2])
    packages = environment.get("PYTHONPATH", "").split(os.pathsep)
    environment["PYTHONPATH"] = os.pathsep.join(
        dict.fromkeys(filter(None, [own_packages, *packages]))
    )
    return environment


def script_environment(programs: Path) -> dict[str, str]:
    """Return ``flink_environment`` of Flink's scripts.

    The program ``python`` in the folder ``programs`` is first on PATH, and Flink's Python API on
    the class path, for Python operators of any client's jobs: shipped with each job, a second class
    loader could not load the interpreter's library again.
    """
    environment = flink_environment()
    python = sorted(str(path) for path in (flink_home() / "opt").glob("flink-python-*.jar"))
    classes = [environment.get("HADOOP_CLASSPATH", ""), *python]
    return environment | {
        "PATH": os.pathsep.join([str(programs), environment["PATH"]]),
        "HADOOP_CLASSPATH": os.pathsep.join(filter(None, classes)),
    }


def opened_modules() -> str:
    """Return the options that open Java's modules for Flink, from its standard configuration."""
    lines = (flink_home() / "conf" / "config.yaml").read_text("utf-8").splitlines()
    options = (line.strip().removeprefix("all: ") for line in lines if "all: --add-" in line)
    return next(options, "")


def plugin_folder() -> Path:
    """Return a folder of links to Flink's plugins, and to its file system for checkpoints on S3.

    Flink loads each plugin with its own classes; on the class path this one and the Hadoop of
    the other jars exclude each other. The wheel itself is not changed.
    """
    plugins = flink_home() / "plugins"
    jars = fetch_jars([CHECKPOINT_GROUP])
    name = hashlib.sha256(repr((str(plugins), *map(str, jars))).encode()).hexdigest()[:12]
    folder = cache_root() / "plugins" / name
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            draft = Path(scratch) / name
            draft.mkdir()
            for plugin in plugins.iterdir():
                (draft / plugin.name).symlink_to(plugin)
            (draft / CHECKPOINT_GROUP).mkdir()
            for jar in jars:
                (draft / CHECKPOINT_GROUP / jar.name).symlink_to(jar)
            with suppress(OSError):  # another process was faster
                draft.rename(folder)
    return folder


def check_checkpoint_store(options: Mapping[str, str]) -> None:
    """Check that this process's JVM can write the checkpoints of a job with these options.

    Raises
    ------
    JobError
        If they are on S3, and the JVM was started before that was known.
    """
    folders = (options.get(name, "") for name in CHECKPOINT_FOLDERS)
    remote = next((f for f in folders if "://" in f and not f.startswith("file:")), None)
    if remote is not None and isinstance(_running, Gateway) and not _with_checkpoints:
        raise JobError(
            f"the JVM of this process was started without Flink's file system for {remote}: open "
            "the project whose checkpoints are there before the first Flink job, or run it in a "
            "process of its own"
        )


def _load_file_systems() -> None:
    """Jobs inside this JVM load no plugins by themselves."""
    store = checkpoint_store()
    if store is None:
        return
    from pyflink.java_gateway import get_gateway

    jvm: Any = get_gateway().jvm
    configuration = jvm.org.apache.flink.configuration.Configuration()
    for name, value in store.options.items():
        configuration.setString(name, value)
    plugins = jvm.org.apache.flink.core.plugin.PluginUtils.createPluginManagerFromRootFolder(
        configuration
    )
    jvm.org.apache.flink.core.fs.FileSystem.initialize(configuration, plugins)


def _start(log_dir: Path, heap: str, compilers: str) -> Gateway:
    from pyflink import java_gateway
    from pyflink.pyflink_gateway_server import launch_gateway_server_process

    environment = flink_environment()
    java_home = Path(environment["JAVA_HOME"])
    archive = jvm_options(archive_folder(java_home, flink_home(), JAR_GROUPS))
    given = environment.get("JVM_ARGS")
    log_dir.mkdir(parents=True, exist_ok=True)
    _remove_old_logs(log_dir)
    log4j = log_dir / "log4j-client.properties"
    log4j.write_text(_LOG4J, "utf-8")
    environment.update(
        FLINK_LOG_DIR=str(log_dir),
        # one log per client: several may run at once
        FLINK_IDENT_STRING=f"{getpass.getuser()}-{os.getpid()}",
        LOG4J_PROPERTIES=str(log4j),
        JVM_ARGS=" ".join(filter(None, [f"-Xmx{heap}", compilers, archive, given])),
    )
    # pyflink reads JAVA_HOME from the environment of this process
    os.environ["JAVA_HOME"] = environment["JAVA_HOME"]
    folder = Path(tempfile.mkdtemp(prefix="paimon-features-gateway-"))
    try:
        address = folder / "port"
        environment["_PYFLINK_CONN_INFO_PATH"] = str(address)
        arguments = ["-c", "org.apache.flink.client.python.PythonGatewayServer", "local"]
        gateway = Gateway(launch_gateway_server_process(environment, arguments), log_dir)
        try:
            port = _await_port(gateway, address)
            _connect(java_gateway, port)
        except BaseException:
            gateway.stop()
            raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return gateway


def _await_port(gateway: Gateway, address: Path) -> int:
    deadline = time.monotonic() + START_TIMEOUT_S
    while not address.is_file() or address.stat().st_size < 4:
        if gateway.process.poll() is not None or time.monotonic() > deadline:
            time.sleep(0.2)  # for the last lines of its standard error
            raise JobError(
                f"Flink's JVM did not start: {' | '.join(gateway.last_lines) or 'no message'}; "
                f"'paimon-features check installation' checks Java and the jars; its log is in "
                f"{gateway.log_dir}"
            )
        time.sleep(0.02)
    return int(struct.unpack("!I", address.read_bytes()[:4])[0])


def _is_no_interrupt(record: logging.LogRecord) -> bool:
    """Return False for py4j's log record, with a traceback, of a Ctrl-C that it also raises."""
    return record.msg != "KeyboardInterrupt while sending command."


def _is_no_missing_store(record: logging.LogRecord) -> bool:
    """Return False for Beam's log record about a cloud store of its own, which no job of ours
    uses."""
    return not str(record.msg).startswith("Failed to import GCSFileSystem")


def _connect(java_gateway: Any, port: int) -> None:
    logging.getLogger().addFilter(_is_no_interrupt)
    # pyflink imports Beam for Python functions
    logging.getLogger("apache_beam.io.filesystems").addFilter(_is_no_missing_store)
    # set for this one call only: a child process must not use this JVM as its own
    os.environ[HOST_PORT] = str(port)
    try:
        _bind_connections(java_gateway.get_gateway())
    finally:
        del os.environ[HOST_PORT]


def _bind_connections(gateway: Any) -> None:
    client = gateway._gateway_client
    client.deque = ThreadConnections(client.deque)


def _remove_old_logs(log_dir: Path) -> None:
    logs = [p for p in log_dir.iterdir() if re.fullmatch(r"flink-.*-\d+-python-.*\.log", p.name)]
    for path in sorted(logs, key=lambda p: p.stat().st_mtime)[: -KEPT_LOGS or None]:
        path.unlink(missing_ok=True)
