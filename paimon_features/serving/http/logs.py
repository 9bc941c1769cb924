"""Logs: one JSON object per line, on stderr.

Lines of requests are collected and written together a few times a second, since a write for each
costs more than the rest of its bookkeeping. Everything else goes through ``logging``, in the same
form, at once.
"""

from __future__ import annotations

import datetime as dt
import functools
import io
import logging
import random
import sys
import time
from collections.abc import Callable
from typing import TextIO

import msgspec

from paimon_features.core.documents.redaction import redact
from paimon_features.serving.http.messages import Reply, Request

LOGGER = logging.getLogger("paimon_features.serve")
_WAITING_AT_MOST = 1_000
_REPEAT_EVERY_S = 10.0
_RECOVERED_AFTER_S = 1.0
"""The store counts as recovered when nothing has failed for this long."""
_encode = msgspec.json.Encoder().encode


class AccessLog:
    """Lines about requests. ``sample`` is the share of successful requests that is logged."""

    def __init__(
        self, level: str = "info", sample: float = 1.0, stream: TextIO | None = None
    ) -> None:
        self._stream = stream
        self._sample = sample if level in ("debug", "info") else 0.0
        self._bad = level != "error"
        self._lines: list[bytes] = []
        self._random = random.Random()

    def wants(self, status: int) -> bool:
        """Return True if a request with this status gets a line."""
        if status >= 500:
            return True
        if status >= 400:
            return self._bad
        return self._sample >= 1 or self._random.random() < self._sample

    def add(self, line: bytes) -> None:
        """Collect a line, to be written with the next ones."""
        self._lines.append(line)
        if len(self._lines) >= _WAITING_AT_MOST:
            self.flush()

    def flush(self) -> None:
        """Write the collected lines."""
        if not self._lines:
            return
        self._lines.append(b"")
        data = b"\n".join(self._lines)
        self._lines = []
        stream = self._stream or sys.stderr
        try:
            if isinstance(stream, io.TextIOWrapper):  # bytes already: nothing to encode
                stream.flush()
                stream.buffer.write(data)
            else:
                stream.write(data.decode())
            stream.flush()
        except (OSError, ValueError):
            return  # the reader of the log is gone; serving continues


class StoreLog:
    """Logs that reads of the online store fail, and why, and that they succeed again.

    Lines of requests have the code only. A reason is logged every ten seconds at most, however
    often it occurs: one view may be unavailable while others are read.

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
        self._logged_s: dict[str, float] = {}

    def failed(self, code: str, reason: str) -> bool:
        """Note a failed read; returns whether it was logged."""
        now_s = self._last_s = self._clock()
        if not self.is_failing:
            self.is_failing, self._since_s = True, now_s
        if now_s - self._logged_s.get(code, -_REPEAT_EVERY_S) < _REPEAT_EVERY_S:
            return False
        self._logged_s[code] = now_s
        LOGGER.error("requests are rejected (%s): %s", code, reason)
        return True

    def not_ready(self, reason: str) -> bool:
        """Note that a readiness check failed; returns whether it was logged."""
        now_s = self._clock()
        if now_s - self._logged_s.get("health", -_REPEAT_EVERY_S) < _REPEAT_EVERY_S:
            return False
        self._logged_s["health"] = now_s
        LOGGER.error("the server is not ready: %s", reason)
        return True

    def answered(self) -> bool:
        """Note a successful read, only needed if ``is_failing``; returns whether it was logged."""
        now_s = self._clock()
        if not self.is_failing or now_s - self._last_s < _RECOVERED_AFTER_S:
            return False
        self.is_failing = False
        LOGGER.warning(
            "requests are answered again; some were rejected for %.1f s",
            self._last_s - self._since_s,
        )
        return True


def access_line(request: Request, reply: Reply, took_s: float) -> bytes:
    """Return the access log's line of a request, as JSON.

    It is put together from parts that were encoded before, in a third of an encoder's time.
    """
    status = reply.status
    more = b""
    if reply.rows:
        more = b',"entities":%d,"features":%d' % (reply.rows, reply.features)
    if reply.code is not None:
        more += b',"code":' + _json_text(reply.code)
    if request.client:
        more += b',"client":' + _json_text(request.client)
    if request.traceparent and (trace := request.trace()) is not None:
        more += b',"trace_id":"%b","span_id":"%b"' % (trace[0].encode(), trace[1].encode())
    return (
        b'{"time":"%b","level":"%b","request_id":%b,"method":%b,"path":%b,"status":%d,"ms":%.3f,'
        b'"bytes":%d%b}'
        % (
            time_text(time.time()).encode(),
            b"info" if status < 500 else b"error",
            _encode(request.request_id),
            _json_text(request.method),
            _json_text(request.path[:200]),
            status,
            took_s * 1_000,
            len(reply.body),
            more,
        )
    )


@functools.lru_cache(maxsize=1_024)
def _json_text(text: str) -> bytes:
    return _encode(text)


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": time_text(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": redact(record.getMessage()),
            "pid": record.process,
        }
        if record.exc_info:
            line["traceback"] = redact(self.formatException(record.exc_info))
        line.update(getattr(record, "fields", {}))
        return _encode(line).decode()


def set_up_logging(level: str) -> None:
    """Log everything in this process to stderr as JSON, from ``level`` on."""
    handler = logging.StreamHandler()
    handler.setFormatter(_JsonLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())


def time_text(seconds: float) -> str:
    """Return a Unix time as UTC text with milliseconds.

    >>> time_text(1_700_000_000.25)
    '2023-11-14T22:13:20.250Z'
    """
    whole = int(seconds)
    return f"{_second_text(whole)}.{int((seconds - whole) * 1000):03d}Z"


@functools.lru_cache(maxsize=16)
def _second_text(seconds: int) -> str:
    return dt.datetime.fromtimestamp(seconds, dt.UTC).strftime("%Y-%m-%dT%H:%M:%S")
