"""The server and the materializer as an operator runs them, and a proxy that spoils connections."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.os_processes import is_running
from tests.servers.online_servers import wait_for

ROOT = Path(__file__).parents[3]


def resident_mb(pid: int) -> float:
    """The memory of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1_024


def _start(folder: Path, log: Path, *words: str, stdout: int | None = None) -> Any:
    with log.open("a") as out:
        return subprocess.Popen(
            [sys.executable, "-m", "paimon_features", *words],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=out if stdout is None else stdout,
            stderr=out,
            text=True,
        )


class Server:
    """``paimon-features serve``, with two workers by default; started again, on the same port."""

    def __init__(self, folder: Path, workers: int = 2) -> None:
        self._folder, self._number = folder, workers
        self.log = folder.parent / "server.log"
        self.port = 0
        self.start()

    def start(self) -> None:
        options = ("--workers", str(self._number), "--port", str(self.port), "--log-sample", "0")
        self.process = _start(
            self._folder, self.log, "serve", "--json", *options, stdout=subprocess.PIPE
        )
        line = self.process.stdout.readline()
        assert line, f"the server did not start: {self.log.read_text()[-3_000:]}"
        event = json.loads(line)
        self.port = urlsplit(event["url"]).port or 0
        self.pids: list[int] = event["workers"]
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        for _ in self.process.stdout:
            pass  # else the pipe is full one day

    @property
    def workers(self) -> list[int]:
        """The workers that run now."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [int(pid) for pid in children.read_text().split() if is_running(int(pid))]

    def kill_worker(self, rng: random.Random) -> None:
        os.kill(rng.choice(self.workers), signal.SIGKILL)

    def kill(self) -> None:
        """Kill its first process; the others end with it."""
        pids = self.workers
        self.process.kill()
        self.process.wait()
        wait_for(lambda: not any(map(is_running, pids)), "its workers end, too")
        self._reader.join()
        self.process.stdout.close()

    def stop(self) -> None:
        """End it as an operator does; nothing of it is left."""
        pids = [self.process.pid, *self.workers]
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(120)
        self._reader.join()
        self.process.stdout.close()
        assert code == 0
        wait_for(lambda: not any(map(is_running, pids)), "no process of the server is left")


class Follower:
    """``paimon-features materialize --follow``, started again when it was killed."""

    def __init__(self, folder: Path, poll_ms: int = 20) -> None:
        self._folder, self._poll_ms = folder, poll_ms
        self.log = folder.parent / "materializer.log"
        self.start()

    def start(self) -> None:
        words = ("materialize", "--follow", "--poll-ms", str(self._poll_ms), "--json")
        self._logged_before = self.log.stat().st_size if self.log.exists() else 0
        self.process = _start(self._folder, self.log, *words)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(120)
        if code == -signal.SIGTERM:  # while it was starting: it has done and said nothing
            code = self.log.stat().st_size - self._logged_before
        assert code == 0, f"exit code {code}: {self.log.read_text()[-3_000:]}"


class Proxy:
    """Passes bytes on to a port; on request late, or cut off in the middle of a reply, or not."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port: int = self._listener.getsockname()[1]
        self.delay_s = 0.0
        self.cut = 0.0
        """The share of replies that end too early."""
        self._rng = random.Random(self.port)
        self._lock = threading.Lock()
        self._interrupted = False
        self._clients: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def interrupt(self) -> None:
        """Cut all connections, and each new one, until ``restore``."""
        with self._lock:
            self._interrupted = True
            for client in self._clients:
                with contextlib.suppress(OSError):
                    client.shutdown(socket.SHUT_RDWR)

    def restore(self) -> None:
        self._interrupted = False

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                with self._lock:
                    if self._interrupted:
                        client.close()
                        continue
                    self._clients.add(client)
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with socket.create_connection(("127.0.0.1", self._target)) as server:
                server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                back = threading.Thread(target=self._back, args=(server, client), daemon=True)
                back.start()
                with contextlib.suppress(OSError):
                    while data := client.recv(1 << 16):
                        server.sendall(data)
                with contextlib.suppress(OSError):
                    server.shutdown(socket.SHUT_RDWR)
                back.join()
        with self._lock:
            self._clients.discard(client)

    def _back(self, server: socket.socket, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(1 << 16):
                if self.delay_s:
                    time.sleep(self.delay_s)
                if self._rng.random() < self.cut:
                    client.sendall(data[: self._rng.randrange(len(data))])
                    break
                client.sendall(data)
        with contextlib.suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)
