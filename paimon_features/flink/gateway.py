"""The JVM that a process talks to Flink through: started once, and gone with its process.

pyflink starts a JVM at its first call and leaves two things open that hurt: its standard error
is a pipe that nobody reads (the JVM stands still once it is full), and its number is not known.
Here the same JVM is started with the class path of the lock file, bounded memory, its log in
the project's state folder, and a handle by which it is ended.

It ends with its client in every case. It calls its client back all the time, and exits when that
connection breaks (2 s after a ``kill -9`` of the client). At a regular exit, and after Ctrl-C, it
is told to go, waited for, and killed by its number if it does not.
"""

from __future__ import annotations

import atexit
import getpass
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
from pathlib import Path
from typing import Any

from paimon_features.errors import JobError, MissingExtraError
from paimon_features.setup import class_path, find_java_home
from paimon_features.setup.cache import cache_root

JAR_GROUPS = ("flink", "kafka", "parquet")
"""The jars that every JVM of ours has on its class path, client and cluster alike."""

DEFAULT_HEAP = "1500m"
COMPILE_LATER = (
    "-XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 "
    "-XX:Tier4CompileThreshold=150000 -XX:Tier4BackEdgeThreshold=400000"
)
"""Ten times Java's own thresholds of its second compiler. That one spends 8 to 10 s of processor
time on Flink's planner and start-up code, which is over before it gains anything; what stays hot
is compiled all the same (ingesting 541,909 rows: 15 s, not 23 s; JVM_ARGS can say otherwise)."""
BRIEF = "-XX:TieredStopAtLevel=1"
"""No second compiler at all, for a JVM that lives for seconds: a backfill of 541,909 events takes
another third less processor time. From some five million events on it gives back what it costs."""
BLAS_THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
START_TIMEOUT_S = 90.0
STOP_TIMEOUT_S = 15.0
KEPT_LOGS = 10

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
_running: Gateway | None = None


class Gateway:
    """A running JVM: its process, and the tail of what it wrote to its standard error."""

    def __init__(self, process: subprocess.Popen[bytes], log_dir: Path) -> None:
        self.process = process
        self.log_dir = log_dir
        self.complaints: deque[str] = deque(maxlen=50)
        threading.Thread(target=self._drain, name="flink-stderr", daemon=True).start()

    @property
    def pid(self) -> int:
        return self.process.pid

    def stop(self) -> None:
        """End the JVM: ask it, then kill it by its number. Harmless to repeat."""
        from pyflink import java_gateway

        gateway = java_gateway._gateway
        if gateway is not None and self.process.poll() is None:
            # closes the connections by which the JVM sees its client; it then exits by itself
            gateway.shutdown()
        try:
            self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.process.stdin is not None:
            self.process.stdin.close()

    def _drain(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as lines:
            for line in lines:
                self.complaints.append(line.decode("utf-8", "replace").rstrip())


def start_gateway(
    state_dir: Path | None = None, heap: str = DEFAULT_HEAP, *, short_lived: bool = False
) -> Gateway:
    """Start the JVM of this process, or return the one that runs; pyflink then uses it.

    ``state_dir`` is the project's state folder, for the log (by default the user's cache);
    ``heap`` the greatest heap of the JVM, in which local jobs run, too; ``short_lived`` says
    that it
    has little to do: a small job, or one that it sends away. All three count for the first call
    only.

    Raises
    ------
    SetupError
        If there is no Java, or a jar cannot be had.
    MissingExtraError
        If pyflink is not installed.
    JobError
        If the JVM does not start, or has ended since (a process cannot start a second one).
    """
    global _running
    with _lock:
        if _running is not None:
            if _running.process.poll() is not None:
                raise JobError(
                    f"the JVM of this process (pid {_running.pid}) has ended with code "
                    f"{_running.process.returncode}; start the command again. "
                    f"Its last words: {' | '.join(_running.complaints) or 'none'}; "
                    f"its log is in {_running.log_dir}"
                )
            return _running
        _running = _start(log_folder(state_dir), heap, BRIEF if short_lived else COMPILE_LATER)
        atexit.register(_running.stop)
        return _running


def log_folder(state_dir: Path | None) -> Path:
    """Where the logs of the client's JVM are."""
    return (cache_root() if state_dir is None else state_dir) / "logs"


def flink_home() -> Path:
    """The folder of the Flink distribution inside the wheel.

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
    """The environment in which a JVM of Flink starts, of a client or of a cluster.

    The virtual environment's programs come first on PATH: Python functions that run inside the
    JVM (thread mode) find their packages through the first ``python`` there. NumPy's BLAS has one
    thread in them, unless a variable of this process has another number: subtasks are the
    parallelism, and a thread per core for each of them would have them wait for one another.
    """
    environment = {**dict.fromkeys(BLAS_THREADS, "1"), **os.environ}
    # the variables of another Flink installation would mix its jars and settings with ours
    for name in ("FLINK_HOME", "FLINK_CONF_DIR", "FLINK_LIB_DIR", "FLINK_OPT_DIR"):
        environment.pop(name, None)
    own = environment.get("HADOOP_CLASSPATH", "")
    jars = class_path(JAR_GROUPS)
    environment["HADOOP_CLASSPATH"] = os.pathsep.join(filter(None, [jars, own]))
    environment["JAVA_HOME"] = str(find_java_home())
    scripts = str(Path(sys.executable).parent)
    environment["PATH"] = os.pathsep.join([scripts, environment.get("PATH", os.defpath)])
    # Python functions there import the ``jobs`` that sends them, a checkout's too
    own_packages = str(Path(__file__).parents[2])
    known = environment.get("PYTHONPATH", "").split(os.pathsep)
    environment["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(filter(None, [own_packages, *known])))
    return environment


def _start(log_dir: Path, heap: str, compilers: str) -> Gateway:
    flink_home()
    from pyflink import java_gateway
    from pyflink.pyflink_gateway_server import launch_gateway_server_process

    environment = flink_environment()
    log_dir.mkdir(parents=True, exist_ok=True)
    _remove_old_logs(log_dir)
    log4j = log_dir / "log4j-client.properties"
    log4j.write_text(_LOG4J, "utf-8")
    environment.update(
        FLINK_LOG_DIR=str(log_dir),
        # one log per client: several may run at once
        FLINK_IDENT_STRING=f"{getpass.getuser()}-{os.getpid()}",
        LOG4J_PROPERTIES=str(log4j),
        JVM_ARGS=f"-Xmx{heap} {compilers} {environment.get('JVM_ARGS', '')}".strip(),
    )
    # pyflink looks JAVA_HOME up in the environment of this process
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
            time.sleep(0.2)  # let the last lines of its standard error arrive
            raise JobError(
                f"Flink's JVM did not start: {' | '.join(gateway.complaints) or 'no message'}; "
                f"'paimon-features doctor' checks Java and the jars; its log is in "
                f"{gateway.log_dir}"
            )
        time.sleep(0.02)
    return int(struct.unpack("!I", address.read_bytes()[:4])[0])


def _is_no_interrupt(record: logging.LogRecord) -> bool:
    """False for what py4j logs, with a traceback, of a Ctrl-C before it raises it."""
    return record.msg != "KeyboardInterrupt while sending command."


def _connect(java_gateway: Any, port: int) -> None:
    logging.getLogger().addFilter(_is_no_interrupt)
    # set for this one call only: a child process must not take our JVM for its own
    os.environ["PYFLINK_GATEWAY_PORT"] = str(port)
    try:
        java_gateway.get_gateway()
    finally:
        del os.environ["PYFLINK_GATEWAY_PORT"]


def _remove_old_logs(log_dir: Path) -> None:
    logs = [p for p in log_dir.iterdir() if re.fullmatch(r"flink-.*-\d+-python-.*\.log", p.name)]
    for path in sorted(logs, key=lambda p: p.stat().st_mtime)[: -KEPT_LOGS or None]:
        path.unlink(missing_ok=True)
