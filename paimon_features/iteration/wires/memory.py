"""The wire inside one process, for thread mode in one task manager, local runs and tests."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paimon_features.core.errors import JobError
from paimon_features.iteration.wires import Notice


class _Shared:
    """State shared by all tasks of one iteration in this process."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.generation = 0
        self.notices: list[Notice] = []
        self.status: dict[str, Any] = {}


_lock = threading.Lock()
_iterations: dict[str, _Shared] = {}


class MemoryWire:
    """A list under a lock, shared by all wires of the same name in this process.

    ``status_file`` receives the reported status, for readers in other processes.

    Examples
    --------
    >>> head, tail = MemoryWire("doctest"), MemoryWire("doctest")
    >>> generation = head.begin()
    >>> tail.publish(generation, [Notice(kind=2, node=7, subtask=0)])
    >>> tail.publish(generation - 1, [Notice(kind=2, node=8, subtask=0)])  # of a dead attempt
    >>> [notice.node for notice in head.poll(wait_ms=10)]
    [7]
    >>> discard("doctest")
    """

    def __init__(self, name: str, status_file: Path | None = None) -> None:
        with _lock:
            self._shared = _iterations.setdefault(name, _Shared())
        self._status_file = status_file
        self._generation = 0

    def begin(self) -> int:
        with self._shared.changed:
            # derived from the time, so that it exceeds those of earlier processes
            self._shared.generation = max(self._shared.generation + 1, time.time_ns() >> 10)
            self._shared.notices.clear()
            self._shared.changed.notify_all()
            self._generation = self._shared.generation
            return self._generation

    def publish(self, generation: int, notices: Sequence[Notice]) -> None:
        with self._shared.changed:
            if generation == self._shared.generation:
                self._shared.notices += notices
                self._shared.changed.notify_all()

    def poll(self, wait_ms: int) -> list[Notice]:
        with self._shared.changed:
            if not self._shared.notices and wait_ms > 0:
                self._shared.changed.wait(wait_ms / 1000)
            if self._shared.generation != self._generation:
                # the task of an old attempt that has not been cancelled yet
                raise JobError("iteration: the wire in memory belongs to a newer attempt")
            notices, self._shared.notices = self._shared.notices, []
            return notices

    def take(self, generation: int, notice: Notice, readers: int = 1) -> bytes:
        raise AssertionError("every notice of this wire has its payload")

    def report(self, status: Mapping[str, Any]) -> None:
        with self._shared.changed:
            self._shared.status.update(status)
            text = json.dumps(self._shared.status)
        if self._status_file is not None:
            _replace(self._status_file, text)

    def status(self) -> dict[str, Any]:
        """Return the last reported status."""
        if self._status_file is not None:
            try:
                status = json.loads(self._status_file.read_text("utf-8"))
            except FileNotFoundError:
                return {}
            assert isinstance(status, dict)
            return status
        with self._shared.changed:
            return dict(self._shared.status)


def discard(name: str) -> None:
    """Delete the state of an iteration that has ended."""
    with _lock:
        _iterations.pop(name, None)


def _replace(path: Path, text: str) -> None:
    """Replace a file atomically; without fsync, as it is only read while the job runs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}")
    temporary.write_text(text, "utf-8")
    os.replace(temporary, path)
