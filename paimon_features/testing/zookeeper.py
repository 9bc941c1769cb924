"""A real ZooKeeper server for tests: one node on the loopback interface, from the locked jars."""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from paimon_features.errors import SetupError
from paimon_features.ports import free_ports
from paimon_features.setup.child import bound_to_us
from paimon_features.setup.jars import class_path
from paimon_features.setup.java import find_java_home

JAR_GROUPS = ("kafka-broker", "zookeeper")
_TIMEOUT_S = 60.0
_JAVA = ("-Xmx96m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


class ZooKeeper:
    """A server, as a context manager; ``address`` is what ``cluster start --ha`` takes.

    Raises
    ------
    SetupError
        If there is no Java or no jar, or it does not start.
    """

    def __init__(self) -> None:
        (self.port,) = free_ports(1)
        self._folder = Path(tempfile.mkdtemp(prefix="paimon-features-zookeeper-"))
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"zookeeper://127.0.0.1:{self.port}/tests"

    def start(self) -> None:
        """Start it, or start it again with its data, and wait until it answers."""
        settings = {
            "tickTime": 500,
            "minSessionTimeout": 2_000,
            "dataDir": self._folder / "data",
            "clientPort": self.port,
            "clientPortAddress": "127.0.0.1",
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "srvr",
        }
        path = self._folder / "zoo.cfg"
        path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        java = str(find_java_home() / "bin" / "java")
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        with (self._folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                bound_to_us([java, *_JAVA, "-cp", class_path(JAR_GROUPS), main, str(path)]),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + _TIMEOUT_S
        while b"Mode:" not in self._asked():
            if self._process.poll() is not None or time.monotonic() > deadline:
                end = (self._folder / "server.log").read_text(errors="replace")[-1_000:]
                raise SetupError(f"ZooKeeper did not start; its log ends with: {end}")
            time.sleep(0.05)

    def kill(self) -> None:
        """End the process by SIGKILL; its data remain for ``start``."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _asked(self) -> bytes:
        with (
            suppress(OSError),
            socket.create_connection(("127.0.0.1", self.port), timeout=1.0) as connection,
        ):
            connection.sendall(b"srvr")
            parts = []
            while part := connection.recv(4_096):
                parts.append(part)
            return b"".join(parts)
        return b""

    def __enter__(self) -> ZooKeeper:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)
