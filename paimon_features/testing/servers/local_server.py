"""What the local servers for tests and first steps have in common: a folder, a process, a log."""

from __future__ import annotations

import atexit
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, Self

from paimon_features.core.errors import SetupError
from paimon_features.core.process.supervision import bound_to_us

_LOG = "server.log"


class LocalServer:
    """A server of this process, which ends with it, and its temporary folder; a context manager.

    A subclass names itself, and starts with ``_make_folder`` and ``_launch``.
    """

    title: ClassVar[str]
    """What messages call the server, such as ``"the Kafka broker"``."""
    short_name: ClassVar[str]
    """A part of the temporary folder's name."""
    stop_timeout_s: ClassVar[float] = 5.0
    """How long the server has to end by itself before it is killed."""

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process id of the running server.

        Raises
        ------
        SetupError
            If it is not running.
        """
        if self._process is None:
            raise SetupError(f"{self.title} is not running; call start() first")
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process is there."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> Self:
        """Start the server and wait until it responds; does nothing if it is running."""
        raise NotImplementedError

    def kill(self) -> None:
        """End the process by SIGKILL, as a crash does; its folder remains for ``start``."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        """End the process and drop all data; idempotent."""
        self._end_process()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None
        atexit.unregister(self.stop)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _make_folder(self) -> Path:
        """Return a new temporary folder, removed with the server."""
        self._folder = Path(tempfile.mkdtemp(prefix=f"paimon-features-{self.short_name}-"))
        atexit.register(self.stop)
        return self._folder

    def _launch(
        self, folder: Path, command: list[str], environment: Mapping[str, str] | None = None
    ) -> None:
        """Start the process; what it prints goes to a log in ``folder``."""
        with (folder / _LOG).open("wb") as log:
            self._process = subprocess.Popen(
                bound_to_us(command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
            )

    def _end_process(self) -> None:
        if self._process is not None:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(self.stop_timeout_s)
            self.kill()

    def _log_end(self) -> str:
        """Return the last lines of the log, for a message."""
        if self._folder is None:
            return ""
        return last_messages((self._folder / _LOG).read_text(errors="replace"))


def last_messages(log: str) -> str:
    """Return the end of a log in one line, without Java's lists of places in the code."""
    lines = [line for line in log.strip().splitlines() if not line.startswith("\t")]
    return " | ".join(lines[-8:])[-2_000:]
