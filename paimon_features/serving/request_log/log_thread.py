"""A log that a thread writes: bounded memory, and nothing that a request waits for."""

from __future__ import annotations

import logging
import os
import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, TypeVar

from paimon_features.core.errors import ConfigurationError
from paimon_features.serving.request_log.spool_folder import RequestLogStats

LOGGER = logging.getLogger("paimon_features.serve")

CLOSE_S = 5.0
"""So long a server that ends waits for what is still to be written."""

Noted = TypeVar("Noted")


class LogThread(ABC, Generic[Noted]):
    """Passes what servers note to a thread, at most ``max_pending`` rows at once.

    Raises
    ------
    ConfigurationError
        For an invalid bound.
    """

    def __init__(self, name: str, worker: str | None, max_pending: int, interval_s: float) -> None:
        if max_pending < 1:
            raise ConfigurationError(f"request log: max_pending={max_pending}; expected 1 or more")
        self.worker = worker or f"{socket.gethostname()}-{os.getpid()}"
        self.stats = RequestLogStats()
        self._max_pending = max_pending
        self._lock = threading.Lock()
        self._waiting: list[tuple[Noted, int]] = []
        self._waiting_rows = 0
        self._in_work_rows = 0
        self._gave_up = False
        self._closing = threading.Event()
        self._interval_s = interval_s
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def close(self, timeout_s: float | None = None) -> None:
        """Write waiting rows, complete the files and end the thread. A repeat is harmless.

        What still waits after ``timeout_s``, by default ``CLOSE_S``, is dropped and counted.
        """
        self._closing.set()
        self._thread.join(CLOSE_S if timeout_s is None else timeout_s)
        if self._thread.is_alive():
            self._drop_waiting()

    def _drop_waiting(self) -> None:
        """Drop what the thread has not begun to write; the process may end before it does."""
        with self._lock:
            rows, in_work = self._waiting_rows, self._in_work_rows
            self._waiting, self._waiting_rows = [], 0
            self.stats.dropped_overload += rows
            warned, self._gave_up = self._gave_up, True
        if not warned:
            LOGGER.warning(
                "the %s could not be completed in time: %d rows are dropped, and %d that are being "
                "written may be lost", self._thread.name.replace("-", " "), rows, in_work,
            )  # fmt: skip

    def _add(self, noted: Noted, rows: int) -> None:
        """Let something of so many rows wait, or drop it; the caller has the lock."""
        if self._waiting_rows + rows > self._max_pending or self._closing.is_set():
            self.stats.dropped_overload += rows
        else:
            self._waiting.append((noted, rows))
            self._waiting_rows += rows

    def _dropped(self, rows: int, error: Exception) -> None:
        """Count rows that a defect has dropped; it must not end the thread."""
        self.stats.dropped_defect += rows
        self.stats.last_error = f"{type(error).__name__}: {error}"

    def _run(self) -> None:
        self._begin()
        while True:
            closing = self._closing.wait(self._interval_s)
            with self._lock:
                noted, self._waiting = self._waiting, []
                self._in_work_rows, self._waiting_rows = self._waiting_rows, 0
            self._write(noted)
            self._in_work_rows = 0
            if closing:
                self._complete()
                return

    @abstractmethod
    def _begin(self) -> None:
        """Prepare the thread, which calls this first."""

    @abstractmethod
    def _write(self, noted: Sequence[tuple[Noted, int]]) -> None:
        """Write what was noted, with its number of rows; called often, also for nothing."""

    @abstractmethod
    def _complete(self) -> None:
        """Complete all files."""
