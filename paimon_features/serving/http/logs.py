"""Logs: one JSON object a line, on stderr.

Lines of requests are collected and written together a few times a second, since a line of its
own for each costs more than the rest of its bookkeeping. What is not about a request goes
through ``logging``, in the same form, at once.
"""

from __future__ import annotations

import datetime as dt
import functools
import logging
import random
import sys
import time
from collections.abc import Callable
from typing import TextIO

import msgspec

LOGGER = logging.getLogger("paimon_features.serve")
_WAITING_AT_MOST = 1_000
_TOLD_EVERY_S = 10.0
_WELL_AFTER_S = 1.0
"""The store is well again when nothing failed for so long."""
_encode = msgspec.json.Encoder().encode


class AccessLog:
    """Lines about requests. ``sample`` is the share of the good ones that is logged."""

    def __init__(
        self, level: str = "info", sample: float = 1.0, stream: TextIO | None = None
    ) -> None:
        self._stream = stream
        self._sample = sample if level in ("debug", "info") else 0.0
        self._bad = level != "error"
        self._lines: list[bytes] = []
        self._random = random.Random()

    def wants(self, status: int) -> bool:
        """Whether a request with this status gets a line."""
        if status >= 500:
            return True
        if status >= 400:
            return self._bad
        return self._sample >= 1 or self._random.random() < self._sample

    def add(self, line: dict[str, object]) -> None:
        """A line, to be written with the next ones."""
        self._lines.append(_encode(line))
        if len(self._lines) >= _WAITING_AT_MOST:
            self.flush()

    def flush(self) -> None:
        """Write what was collected."""
        if not self._lines:
            return
        text = b"\n".join(self._lines).decode() + "\n"
        self._lines = []
        stream = self._stream or sys.stderr
        try:
            stream.write(text)
            stream.flush()
        except (OSError, ValueError):
            return  # whoever read the log is gone; serving goes on


class StoreLog:
    """Says that reads get no answer from the store, and why, and that they do again.

    Lines of requests have the code only. A reason is told every ten seconds at most, however
    often it is met: a view may be away while others are read.

    >>> now = [0.0]
    >>> store_log = StoreLog(lambda: now[0])
    >>> store_log.failed("not_ready", "it is being built"), store_log.is_failing
    (True, True)
    >>> store_log.failed("not_ready", "it is being built")
    False
    >>> store_log.answered()  # another view, perhaps
    False
    >>> now[0] = 3.0
    >>> store_log.answered(), store_log.is_failing
    (True, False)
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.is_failing = False
        self._clock = clock
        self._since_s = self._last_s = 0.0
        self._told_s: dict[str, float] = {}

    def failed(self, code: str, reason: str) -> bool:
        """A read had no answer; whether it was news."""
        now_s = self._last_s = self._clock()
        if not self.is_failing:
            self.is_failing, self._since_s = True, now_s
        if now_s - self._told_s.get(code, -_TOLD_EVERY_S) < _TOLD_EVERY_S:
            return False
        self._told_s[code] = now_s
        LOGGER.error("requests are refused (%s): %s", code, reason)
        return True

    def answered(self) -> bool:
        """A read was answered, to be told only if ``is_failing``; whether it was news."""
        now_s = self._clock()
        if not self.is_failing or now_s - self._last_s < _WELL_AFTER_S:
            return False
        self.is_failing = False
        LOGGER.warning(
            "requests are answered again; some were refused for %.1f s",
            self._last_s - self._since_s,
        )
        return True


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": time_text(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "pid": record.process,
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        line.update(getattr(record, "fields", {}))
        return _encode(line).decode()


def set_up_logging(level: str) -> None:
    """Everything that is logged in this process goes to stderr as JSON, from ``level`` on."""
    handler = logging.StreamHandler()
    handler.setFormatter(_JsonLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # a client that breaks off or sends no HTTP is no matter of the server's
    logging.getLogger("uvicorn.error").setLevel(max(logging.WARNING, root.level))


def time_text(seconds: float) -> str:
    """UTC with milliseconds.

    >>> time_text(1_700_000_000.25)
    '2023-11-14T22:13:20.250Z'
    """
    whole = int(seconds)
    return f"{_second_text(whole)}.{int((seconds - whole) * 1000):03d}Z"


@functools.lru_cache(maxsize=16)
def _second_text(seconds: int) -> str:
    return dt.datetime.fromtimestamp(seconds, dt.UTC).strftime("%Y-%m-%dT%H:%M:%S")
