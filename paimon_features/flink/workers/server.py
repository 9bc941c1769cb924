"""Forks the Python workers of one task manager: ``python server.py SOCKET PID``.

It imports once what every worker needs, and starts no thread; a worker is a fork that continues
like a new interpreter. It ends with the process PID, after an hour without requests, or when an
imported file has changed: the next worker starts another server.
"""

from __future__ import annotations

import fcntl
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import struct
import sys
import time
from contextlib import suppress
from typing import Any, NamedTuple

IMPORTED = (
    "pyflink.fn_execution.beam.beam_sdk_worker_main",
    "pyflink.datastream",
    "pyarrow",
    "redis",
    "paimon_features.iteration.flink.hosts",
)
"""Modules imported for the workers; the first one must exist."""
IDLE_S = 3600.0
REQUEST_S = 10.0
LOCK_S = 10.0
STALE, FORKED, ENDED = b"s", b"f", b"e"
"""Responses, see ``client``."""


class Worker(NamedTuple):
    """The program of a worker, and its environment."""

    arguments: list[str]
    directory: str
    environment: dict[str, str]


class Client(NamedTuple):
    """A client that waits for a worker: its connection, and a handle of the worker."""

    connection: socket.socket
    worker: int


class WorkerServer:
    """Serves one request after another."""

    def __init__(self, listener: socket.socket, owner: int) -> None:
        self._listener = listener
        # a process id may be reused; a handle always refers to the same process
        self._owner = os.pidfd_open(owner)
        self._clients: dict[int, Client] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ, self._accept)
        self._selector.register(self._owner, selectors.EVENT_READ, self._stop)
        self._files = imported_files()
        self._running = True
        self._worker: Worker | None = None
        self._own_client: socket.socket | None = None

    def serve(self) -> Worker | None:
        """Serve until the end and return None; in a worker's process, return what to run."""
        while self._running:
            ready = self._selector.select(IDLE_S)
            if not ready and not self._clients:
                break
            for key, _ in ready:
                key.data()
                if self._worker is not None:
                    return self._worker
        return None

    def _stop(self) -> None:
        self._running = False

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        connection.settimeout(REQUEST_S)
        try:
            streams, worker = _receive(connection)
        except (OSError, ValueError, TypeError):
            connection.close()
            return
        pid = None
        if imported_files() == self._files:
            pid = os.fork()
            if pid == 0:
                self._become(worker, streams, connection)
                return
        for stream in streams:
            os.close(stream)
        if pid is not None:
            self._watch(pid, connection)
            return
        # no client must find this server any more
        os.unlink(self._listener.getsockname())
        self._stop()
        _respond(connection, STALE)
        connection.close()

    def _watch(self, pid: int, connection: socket.socket) -> None:
        """Send the worker's end to the client, and terminate the worker when the client ends."""
        handle = os.pidfd_open(pid)
        self._clients[pid] = Client(connection, handle)

        def forget_client() -> None:
            self._selector.unregister(connection)
            connection.close()

        def client_ended() -> None:
            forget_client()
            signal.pidfd_send_signal(handle, signal.SIGTERM)

        def worker_ended() -> None:
            _, status = os.waitpid(pid, 0)
            self._selector.unregister(handle)
            os.close(handle)
            del self._clients[pid]
            if connection.fileno() >= 0:
                _respond(connection, ENDED + f"{status}\n".encode("ascii"))
                forget_client()

        self._selector.register(handle, selectors.EVENT_READ, worker_ended)
        self._selector.register(connection, selectors.EVENT_READ, client_ended)

    def _become(self, worker: Worker, streams: list[int], connection: socket.socket) -> None:
        """In the worker: close everything of the server except the connection to the client. It
        ends with both of them, so that the client outlives a server whose worker continues."""
        _respond(connection, FORKED)
        self._worker, self._own_client = worker, connection
        self._selector.close()
        self._listener.close()
        os.close(self._owner)
        for client in self._clients.values():
            client.connection.close()
            os.close(client.worker)
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)


def _respond(connection: socket.socket, answer: bytes) -> None:
    with suppress(OSError):  # the client has ended, which is handled elsewhere
        connection.sendall(answer)


def _receive(connection: socket.socket) -> tuple[list[int], Worker]:
    about = struct.Struct("3i")
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, about.size)
    if about.unpack(credentials)[1] != os.getuid():
        raise ValueError("not of this user")
    _, streams, _, _ = socket.recv_fds(connection, 1, 3)
    try:
        if len(streams) != 3:
            raise ValueError("without its standard streams")
        with connection.makefile("rb") as lines:
            return streams, Worker(**json.loads(lines.readline()))
    except (OSError, ValueError, TypeError):
        for stream in streams:
            os.close(stream)
        raise


def imported_files() -> dict[str, tuple[int, int] | None]:
    """Return modification time and size of every imported file."""
    files: dict[str, tuple[int, int] | None] = {}
    for module in list(sys.modules.values()):
        path = getattr(module, "__file__", None)
        if path is not None:
            try:
                about = os.stat(path)
                files[path] = about.st_mtime_ns, about.st_size
            except OSError:
                files[path] = None
    return files


def run(worker: Worker) -> None:
    """Continue as ``python -m MODULE ARGUMENTS`` does in a new interpreter."""
    os.environ.clear()
    os.environ.update(worker.environment)
    os.chdir(worker.directory)
    if not sys.flags.safe_path:
        sys.path.insert(0, worker.directory)
    importlib.invalidate_caches()
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:  # all workers would draw the same numbers; random reseeds itself
        numpy.random.seed()
    _, module, *arguments = worker.arguments
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def main() -> None:
    """Run the server; in a worker's process, run the worker."""
    own_folder = os.path.dirname(os.path.abspath(__file__))
    if sys.path and sys.path[0] == own_folder:  # added for this script; a worker does not have it
        del sys.path[0]
    address, owner = sys.argv[1], int(sys.argv[2])
    lock = _lock(address)
    if lock is None:
        return
    with suppress(FileNotFoundError):
        os.unlink(address)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(address)
    # clients can connect from here on, during the imports
    listener.listen(128)
    worker, failed = None, True
    try:
        importlib.import_module(IMPORTED[0])
        for name in IMPORTED[1:]:
            with suppress(ImportError):
                importlib.import_module(name)
        # garbage collection would write to every shared page
        gc.freeze()
        server = WorkerServer(listener, owner)
        worker, failed = server.serve(), False
    finally:
        if worker is None:
            for path in (address, f"{address}.lock", *(() if failed else (f"{address}.log",))):
                with suppress(FileNotFoundError):
                    os.unlink(path)
        os.close(lock)
    if worker is not None:
        run(worker)


def _lock(address: str) -> int | None:
    """Acquire the lock of the server; None if another one listens."""
    path = f"{address}.lock"
    deadline = time.monotonic() + LOCK_S
    while time.monotonic() < deadline:
        lock = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # not the lock file that an ending server has just removed
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(lock), os.stat(path)):
                    return lock
        except BlockingIOError:
            if _listens(address):
                os.close(lock)
                return None
        os.close(lock)
        time.sleep(0.01)
    return None


def _listens(address: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(address)
        except OSError:
            return False
        return True


if __name__ == "__main__":
    main()
