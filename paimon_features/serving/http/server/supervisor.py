"""The main process: one listening socket, the workers that share it, and their life cycles.

It imports nothing heavy, keeps no state of requests, and does four things: it restarts workers
that die, forwards SIGHUP, shuts workers down gracefully, and reports when all are ready.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from paimon_features.core.configuration.project_config import ServeConfig
from paimon_features.core.errors import ConfigurationError, SetupError

WORKER = "paimon_features.serving.http.server.worker"
START_TIMEOUT_S = 60.0
GRACE_S = 35.0
"""A little more than a worker grants its requests."""
_BACKLOG = 2_048
_LIVED_WELL_S = 10.0
_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0

OnEvent = Callable[[Mapping[str, object]], None]


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 takes a free one.

    Raises
    ------
    ConfigurationError
        If the address cannot be listened on.
    """
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = addresses[0]
        listening = socket.socket(family, kind, protocol)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(_BACKLOG)
    except OSError as error:
        raise ConfigurationError(f"cannot listen on {host}:{port}: {error}") from error
    listening.set_inheritable(True)
    return listening


def is_loopback(listening: socket.socket) -> bool:
    """Return True if the socket can only be reached from this host."""
    host: str = listening.getsockname()[0]
    return host.startswith("127.") or host == "::1"


def url_of(listening: socket.socket) -> str:
    """Return the address for a client on this host."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def check_open(listening: socket.socket, config: ServeConfig, may_be_open: bool) -> None:
    """Raise ConfigurationError for a server that is open to other hosts by mistake."""
    if config.tokens is None and not may_be_open and not is_loopback(listening):
        raise ConfigurationError(
            f"{url_of(listening)} can be reached from other hosts, and no token file is set: "
            "anybody could read every feature. Create a token ('paimon-features serve token "
            "--service NAME') and set the file ([serve] tokens), listen on 127.0.0.1, or pass "
            "--open"
        )


@dataclass
class _Worker:
    """A worker process. ``status_fd`` is None once it has reported the result of its start."""

    slot: int
    process: subprocess.Popen[bytes]
    status_fd: int | None
    since_s: float
    status: bytes = b""


class Supervisor:
    """Runs the workers of one server until SIGTERM or SIGINT."""

    def __init__(
        self,
        root: Path,
        listening: socket.socket,
        workers: int,
        overrides: Mapping[str, object],
        on_event: OnEvent,
    ) -> None:
        self._root = root
        self._listening = listening
        self._count = workers
        self._overrides = dict(overrides)
        self._on_event = on_event
        self._workers: dict[int, _Worker] = {}
        self._restart_at: dict[int, float] = {}
        self._pause_s = dict.fromkeys(range(workers), _PAUSE_S)
        self._stopping_since: float | None = None
        self._reload = False
        self._ready: set[int] = set()
        self._announced = False
        self._wake_read, self._wake_write = os.pipe()
        # workers have the read end: it ends when this process does, however that happens
        self._alive_read, self._alive_write = os.pipe()

    def run(self) -> None:
        """Serve; returns when all workers have ended.

        Raises
        ------
        SetupError
            If a worker cannot start before the server was ready once.
        """
        for fd in (self._wake_read, self._wake_write):
            os.set_blocking(fd, False)
        before = {
            number: signal.signal(number, self._on_signal)
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)
        }
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        try:
            with tempfile.TemporaryDirectory(prefix="paimon-features-serve-") as folder:
                self._folder = folder
                for slot in range(self._count):
                    self._start(slot)
                while self._workers or self._restart_at:
                    self._turn()
        finally:
            self._kill_all()
            signal.set_wakeup_fd(-1)
            for number, handler in before.items():
                signal.signal(number, handler)
            for fd in (self._wake_read, self._wake_write, self._alive_read, self._alive_write):
                os.close(fd)

    # -- one turn --------------------------------------------------------------------------

    def _turn(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._wake_read, selectors.EVENT_READ)
            for worker in self._workers.values():
                if worker.status_fd is not None:
                    selector.register(worker.status_fd, selectors.EVENT_READ, worker)
            for key, _ in selector.select(self._timeout_s()):
                if isinstance(key.data, _Worker):
                    self._receive_status(key.data)
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_read, 4_096)
        if self._reload:
            self._reload = False
            self._forward(signal.SIGHUP)
        self._reap()
        now = time.monotonic()
        if self._stopping_since is not None:
            self._restart_at.clear()
            if now - self._stopping_since > GRACE_S:
                self._forward(signal.SIGKILL)
        for slot in [s for s, at in self._restart_at.items() if at <= now]:
            del self._restart_at[slot]
            self._start(slot)

    def _timeout_s(self) -> float:
        now = time.monotonic()
        return max(0.0, min([at - now for at in self._restart_at.values()] + [1.0]))

    def _start(self, slot: int) -> None:
        status_read, status_write = os.pipe()
        settings = {
            "root": str(self._root),
            "slot": slot,
            "listen_fd": self._listening.fileno(),
            "status_fd": status_write,
            "alive_fd": self._alive_read,
            "folder": self._folder,
            "overrides": self._overrides,
        }
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "paimon_features.serving.http.server.worker",
                json.dumps(settings),
            ],
            pass_fds=(self._listening.fileno(), status_write, self._alive_read),
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,
            # signals of the terminal go to this process, which forwards them once
            start_new_session=True,
        )
        os.close(status_write)
        self._workers[slot] = _Worker(slot, process, status_read, time.monotonic())

    def _receive_status(self, worker: _Worker) -> None:
        assert worker.status_fd is not None
        data = os.read(worker.status_fd, 65_536)
        worker.status += data
        if data:
            return
        os.close(worker.status_fd)
        worker.status_fd = None
        if worker.status == b"ready":
            self._ready.add(worker.slot)
            if len(self._ready) == self._count and not self._announced:
                self._announced = True
                self._on_event(
                    {
                        "event": "ready",
                        "url": url_of(self._listening),
                        "pid": os.getpid(),
                        "workers": [w.process.pid for w in self._workers.values()],
                    }
                )

    def _reap(self) -> None:
        for slot, worker in [*self._workers.items()]:
            code = worker.process.poll()
            if code is None:
                continue
            while worker.status_fd is not None:
                self._receive_status(worker)
            del self._workers[slot]
            self._ready.discard(slot)
            if self._stopping_since is not None:
                continue
            reason = worker.status.decode(errors="replace")
            if not self._announced:
                if reason and reason != "ready":
                    raise SetupError(f"the server does not start: {reason}")
                raise SetupError(
                    f"the server does not start: a worker ended with code {code}; see the log above"
                )
            lived_s = time.monotonic() - worker.since_s
            pause_s = _PAUSE_S if lived_s > _LIVED_WELL_S else self._pause_s[slot]
            self._pause_s[slot] = min(2 * pause_s, _LONGEST_PAUSE_S)
            self._restart_at[slot] = time.monotonic() + pause_s
            self._on_event(
                {
                    "event": "worker_died",
                    "worker": worker.process.pid,
                    "code": code,
                    "reason": "" if reason == "ready" else reason,
                    "restart_in_s": pause_s,
                }
            )

    # -- signals ---------------------------------------------------------------------------

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            self._reload = True
        elif number in (signal.SIGTERM, signal.SIGINT):
            if self._stopping_since is None:
                self._stopping_since = time.monotonic()
                self._forward(signal.SIGTERM)
            elif number == signal.SIGINT:
                self._forward(signal.SIGKILL)  # interrupted twice by hand: at once

    def _forward(self, number: int) -> None:
        for worker in self._workers.values():
            # a worker that is still starting has no handlers yet, and reads the files anyway
            if number != signal.SIGHUP or worker.slot in self._ready:
                worker.process.send_signal(number)

    def _kill_all(self) -> None:
        for worker in self._workers.values():
            worker.process.kill()
            worker.process.wait()
            if worker.status_fd is not None:
                os.close(worker.status_fd)
        self._workers.clear()
