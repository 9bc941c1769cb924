"""Replacement of ``python`` on a task manager: workers are forked, everything else runs as usual.

``python -IS client.py ARGUMENTS`` does the same as ``python ARGUMENTS``. A worker of pyflink is
forked by the task manager's server, which is started if there is none; if that fails for any
reason, the worker is started directly and the reason is printed. Uses only the standard library,
and little of it, because it is imported for every worker.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping

WORKER = ["-m", "pyflink.fn_execution.beam.beam_boot"]
OWN_TO_A_WORKER = frozenset(
    ("BOOT_LOG_DIR", "_PYTHON_WORKER_MEMORY_LIMIT", "python", "PWD", "OLDPWD", "SHLVL", "_")
)
"""Environment variables that may differ between workers of the same server."""
CONNECT_S = 60.0
"""Maximum time until a new server listens; it imports packages afterwards."""
STALE, FORKED, ENDED = b"s", b"f", b"e"
"""Responses: the server ends because an imported file has changed; the worker is forked (it says so
itself, so that no worker runs unknown to its client); it has ended, followed by its wait status."""


class NoServerError(Exception):
    """No server can fork this worker."""


def main() -> None:
    """Behave like the worker towards the process that started it."""
    arguments = sys.argv[1:]
    if arguments[:2] == WORKER:
        try:
            status = run_forked(arguments, os.environ)
        except (NoServerError, OSError) as error:
            why = str(error) or type(error).__name__
            print(f"paimon-features: this worker is not forked: {why}", file=sys.stderr, flush=True)
        else:
            _end_as(status)
    os.execv(sys.executable, [sys.executable, *arguments])


def run_forked(arguments: list[str], environment: Mapping[str, str]) -> int:
    """Run a worker to its end and return its wait status.

    It runs in this directory with these three standard streams, and ends with this process.

    Raises
    ------
    NoServerError, OSError
        If there is no server and none can be started. Nothing has been run then.
    """
    address = server_address(environment, *task_manager())
    request = {"arguments": arguments, "directory": os.getcwd(), "environment": dict(environment)}
    for attempt in range(3):
        with _connect(address) as server:
            answer = _answer(server, request)
            if answer == STALE or not (answer or attempt):
                continue  # without an answer: the server was being killed
            if answer != FORKED:
                raise NoServerError(f"the server has ended{_last_line(address)}")
            return _await_end(server)
    raise NoServerError("the imports of servers keep changing")


def _answer(server: socket.socket, request: Mapping[str, object]) -> bytes:
    try:
        socket.send_fds(server, [b"w"], [0, 1, 2])
        server.sendall(json.dumps(request).encode("ascii") + b"\n")
        return server.recv(1)
    except ConnectionError:
        return b""


def _await_end(server: socket.socket) -> int:
    try:
        with server.makefile("rb") as lines:
            response = lines.readline()
    except OSError:
        response = b""
    # without the server, the status of the worker is unknown
    return int(response[1:]) if response.startswith(ENDED) else 256


def task_manager() -> tuple[int, str]:
    """Return the id and start time of the process that started Flink's script, our parent.

    Raises
    ------
    OSError
        On systems other than Linux.
    """
    owner = int(_stat(os.getppid())[1])
    return owner, _stat(owner)[19]


def server_address(environment: Mapping[str, str], owner: int, began: str) -> str:
    """Return the socket path of the server for workers of this interpreter and environment.

    Raises
    ------
    NoServerError
        If the worker needs packages shipped with its job, or is not a separate process.
    """
    for name, value in environment.items():
        if name in ("PYTHON_LOOPBACK_SERVER_ADDRESS", "_PYTHON_WORKING_DIR") or (
            name.startswith("_PYTHON_REQUIREMENTS_")
        ):
            raise NoServerError(f"{name} is set")
        if name == "PYTHONPATH" and "python-dist-" in value:
            raise NoServerError("files were shipped with the job")
    kept = sorted(item for item in environment.items() if item[0] not in OWN_TO_A_WORKER)
    about = repr((sys.executable, sys.version, owner, began, kept)).encode(
        "utf-8", "backslashreplace"
    )
    path = os.path.join(_folder(environment), hashlib.sha256(about).hexdigest()[:20])
    if len(os.fsencode(path)) > 90:
        raise NoServerError(f"the path {path} is too long for a socket")
    return path


def _folder(environment: Mapping[str, str]) -> str:
    """Return a folder that only this user can write to, and that only this user has created."""
    path = os.path.join(
        environment.get("TMPDIR") or "/tmp", f"paimon-features-workers-{os.getuid()}"
    )
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        status = os.lstat(path)
        if status.st_uid != os.getuid() or (status.st_mode & 0o170777) != 0o040700:
            raise NoServerError(f"{path} is accessible to other users") from None
    return path


def _connect(address: str) -> socket.socket:
    started = None
    deadline = time.monotonic() + CONNECT_S
    while True:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(address)
        except (FileNotFoundError, ConnectionRefusedError):
            connection.close()
        else:
            return connection
        if started is None:
            started = _start_server(address)
        if time.monotonic() > deadline or started.poll() not in (None, 0):
            raise NoServerError(f"the server does not start{_last_line(address)}")
        time.sleep(0.005)


def _last_line(address: str) -> str:
    """Return the last line of a server's log after a colon, or "" if there is none."""
    try:
        with open(f"{address}.log", "rb") as log:
            log.seek(-min(os.fstat(log.fileno()).st_size, 500), os.SEEK_END)
            lines = log.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    return f": {lines[-1]}" if lines else ""


def _start_server(address: str) -> subprocess.Popen[bytes]:
    """Start a server that lives as long as the task manager; of several, only one continues."""
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "server.py")
    with open(f"{address}.log", "ab") as log:
        return subprocess.Popen(
            [sys.executable, script, address, str(task_manager()[0])],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def _stat(pid: int) -> list[str]:
    """Return the fields of a process from its state on; Linux only."""
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as lines:
        return lines.read().rpartition(")")[2].split()


def _end_as(status: int) -> None:
    """End with the status of the worker, or by the same signal."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else 1)


if __name__ == "__main__":
    main()
