"""The request log: a sample of served replies, so that they can be compared with the lake later.

A server passes each response to ``note``. Those of the sample wait in bounded memory for a thread
that writes them to spool files (see ``spool``); ``paimon-features request-log`` commits these to
the lake. The log neither slows a request down nor fails it: rows without room, in memory or on
the disk, are dropped and counted.
"""

from __future__ import annotations

import os
import socket
import threading
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paimon_features._arrow import pa, require_arrow
from paimon_features.clock import now_ms
from paimon_features.config import ServeConfig
from paimon_features.errors import ConfigurationError
from paimon_features.serving.request_log.log_rows import (
    EntityText,
    LogRowBuilder,
    SampledReply,
    log_schema,
)
from paimon_features.serving.request_log.spool import (
    SpoolFile,
    described_schema,
    new_token,
    recover,
    spool_bytes,
    stem_of,
)
from paimon_features.serving.response import OnlineResponse

SALT_VARIABLE = "PAIMON_FEATURES_REQUEST_LOG_SALT"
"""The environment variable with the secret for hashing entities."""
_SALT_CHARACTERS = 16
MAX_ENTITIES = 100
"""Of a request for more entities, this many are logged, evenly spread."""
_SPREAD = 2_654_435_761
_RETRY_S = 5.0


@dataclass
class RequestLogStats:
    """Counts since the start.

    ``noted`` requests were sampled; of ``rows`` rows ``written`` are in files. Dropped rows:
    ``dropped_overload`` for lack of room in memory, ``dropped_disk`` on the disk (none left, no
    permission, or the spool folder over its limit), ``dropped_defect`` because of a bug.
    ``left_out`` entities were not logged: of large requests, or answered from a cache.
    ``files`` were completed, and ``recovered`` are files of dead workers found at the start.
    """

    noted: int = 0
    rows: int = 0
    written: int = 0
    dropped_overload: int = 0
    dropped_disk: int = 0
    dropped_defect: int = 0
    left_out: int = 0
    files: int = 0
    recovered: int = 0
    last_error: str = ""


def salt_of_environment() -> bytes:
    """The secret for hashing entities.

    Raises
    ------
    ConfigurationError
        If it is not set, or too short.
    """
    salt = os.environ.get(SALT_VARIABLE, "")
    if len(salt) < _SALT_CHARACTERS:
        raise ConfigurationError(
            f"the request log hashes entities, and {SALT_VARIABLE} "
            f"{'has ' + str(len(salt)) + ' characters' if salt else 'is not set'}; set it to a "
            f"secret of at least {_SALT_CHARACTERS} characters (openssl rand -hex 32), the same "
            "for all servers and for 'verify --from-log'"
        )
    return salt.encode()


class RequestLog:
    """Samples the responses of one worker. ``note`` may be called from several threads.

    Parameters
    ----------
    folder
        Where spool files are written; created if missing, for its owner only.
    project
        The project's name.
    rate
        The share of requests that is logged, 0 to 1. It depends on a request's id alone whether
        it is logged, so that all servers agree on an id.
    salt
        If given, entities are hashed with it, and no key is written.
    worker
        The worker's name; by default host and process id.
    max_pending
        Most rows that wait in memory.
    max_file_bytes, max_age_s
        A file is completed at this size or age.
    max_spool_bytes
        Most bytes of all files in the folder, so that the disk does not fill up if the files are
        not committed.
    flush_interval_s
        About how long rows wait until they are written.

    Raises
    ------
    ConfigurationError
        For an invalid rate or limit.
    """

    def __init__(
        self,
        folder: str | Path,
        project: str,
        *,
        rate: float = 0.01,
        salt: bytes | None = None,
        worker: str | None = None,
        max_pending: int = 20_000,
        max_file_bytes: int = 16 << 20,
        max_age_s: float = 60.0,
        max_spool_bytes: int = 1 << 30,
        flush_interval_s: float = 0.5,
        clock_ms: Callable[[], int] = now_ms,
    ) -> None:
        if not 0 <= rate <= 1:
            raise ConfigurationError(f"request log: rate={rate}; expected a share from 0.0 to 1.0")
        for name, bound in (
            ("max_pending", max_pending), ("max_file_bytes", max_file_bytes),
            ("max_spool_bytes", max_spool_bytes),
        ):  # fmt: skip
            if bound < 1:
                raise ConfigurationError(f"request log: {name}={bound}; expected 1 or more")
        self.folder = Path(folder)
        self.worker = worker or f"{socket.gethostname()}-{os.getpid()}"
        self.stats = RequestLogStats()
        self._threshold = round(rate * 2**32)
        self._max_pending, self._max_file_bytes = max_pending, max_file_bytes
        self._max_age_s, self._max_spool_bytes = max_age_s, max_spool_bytes
        self._clock_ms = clock_ms
        self._maker = LogRowBuilder(project, self.worker, EntityText(salt))
        self._schema = described_schema(log_schema(), project, self.worker)
        self._lock = threading.Lock()
        self._waiting: list[SampledReply] = []
        self._waiting_rows = 0
        self._file: SpoolFile | None = None
        self._number = 0
        self._begun = (clock_ms(), new_token())
        self._retry_at_s = 0.0
        self._closing = threading.Event()
        self._interval_s = flush_interval_s
        self._thread = threading.Thread(target=self._run, name="request-log", daemon=True)
        self._thread.start()

    def note(self, request_id: str, service: str, response: OnlineResponse) -> bool:
        """Log a response if it is in the sample; returns whether it is. Never raises.

        ``service`` is "" where features were listed.
        """
        number = zlib.crc32(request_id.encode("utf-8", "replace")) * _SPREAD & 0xFFFFFFFF
        if number >= self._threshold:
            return False
        return self._note(request_id, service, response)

    def close(self, timeout_s: float = 5.0) -> None:
        """Write waiting rows, complete the file and end the thread. A repeat is harmless."""
        self._closing.set()
        self._thread.join(timeout_s)

    def counts(self) -> dict[str, int]:
        """Rows by outcome, for the metrics."""
        stats = self.stats
        return {
            "written": stats.written,
            "dropped_overload": stats.dropped_overload,
            "dropped_disk": stats.dropped_disk,
            "dropped_defect": stats.dropped_defect,
        }

    # -- in the server's threads ---------------------------------------------------------------

    def _note(self, request_id: str, service: str, response: OnlineResponse) -> bool:
        count = len(response)
        chosen: range | list[int] = range(count)
        if not response.batch.reads:  # from a cache, which knows no snapshots
            chosen = []
        elif count > MAX_ENTITIES:
            chosen = [i * count // MAX_ENTITIES for i in range(MAX_ENTITIES)]
        selection = response.selection
        rows = len(chosen) * (len(response.batch.reads) + bool(selection.interactions))
        stats, at_ms = self.stats, self._clock_ms()
        with self._lock:
            stats.noted += 1
            stats.rows += rows
            stats.left_out += count - len(chosen)
            if not chosen:
                return True
            if self._waiting_rows + rows > self._max_pending or self._closing.is_set():
                stats.dropped_overload += rows
            else:
                self._waiting.append(
                    SampledReply(request_id, stats.noted, service, at_ms, response, chosen, rows)
                )
                self._waiting_rows += rows
        return True

    # -- in the writing thread -----------------------------------------------------------------

    def _run(self) -> None:
        self._recover()
        while True:
            closing = self._closing.wait(self._interval_s)
            self._flush()
            if closing:
                self._complete()
                return

    def _recover(self) -> None:
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.stats.recovered = len(recover(self.folder))
        except OSError as error:
            self.stats.last_error = str(error)

    def _flush(self) -> None:
        with self._lock:
            noted, self._waiting = self._waiting, []
            self._waiting_rows = 0
        rows: list[dict[str, Any]] = []
        for one in noted:
            try:
                rows += self._maker.rows(one)
            except Exception as error:  # a defect must not end the thread; it is counted
                self.stats.dropped_defect += one.count
                self.stats.last_error = f"{type(error).__name__}: {error}"
        if rows:
            self._append(pa.RecordBatch.from_pylist(rows, log_schema()))
        file = self._file
        if file is not None and (
            file.size >= self._max_file_bytes or time.monotonic() - file.opened_s >= self._max_age_s
        ):
            self._complete()

    def _append(self, batch: pa.RecordBatch) -> None:
        try:
            self._open_file().append(batch)
        except OSError as error:
            self.stats.dropped_disk += batch.num_rows
            self._failed(error)
        else:
            self.stats.written += batch.num_rows

    def _open_file(self) -> SpoolFile:
        if self._file is None:
            if time.monotonic() < self._retry_at_s:
                raise OSError(self.stats.last_error)
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            waiting = spool_bytes(self.folder)
            if waiting >= self._max_spool_bytes:
                raise OSError(
                    f"{waiting} bytes wait in {self.folder}, at most {self._max_spool_bytes} may; "
                    "is 'paimon-features request-log --follow' running?"
                )
            self._number += 1
            stem = stem_of(self.worker, self._number, *self._begun)
            self._file = SpoolFile(self.folder, stem, self._schema)
        return self._file

    def _complete(self) -> None:
        file, self._file = self._file, None
        if file is None:
            return
        try:
            file.complete()
        except OSError as error:  # the written part stays, under its open name
            self._failed(error)
        else:
            self.stats.files += 1

    def _failed(self, error: OSError) -> None:
        if time.monotonic() >= self._retry_at_s:
            self._retry_at_s = time.monotonic() + _RETRY_S
        self.stats.last_error = str(error)
        file, self._file = self._file, None
        if file is not None:
            # a full disk: the written part is valid, and committing it frees space
            with suppress(OSError):
                file.complete()
                self.stats.files += 1


def open_request_log(project: str, config: ServeConfig) -> RequestLog | None:
    """The request log of a worker by its configuration; None if it is not configured.

    Raises
    ------
    ConfigurationError
        If entities are to be hashed and there is no secret.
    MissingExtraError
        If pyarrow is not installed: the log is written in Arrow's format.
    """
    if config.request_log is None:
        return None
    require_arrow("the request log ([serve] request_log)")
    salt = salt_of_environment() if config.request_log_hash else None
    return RequestLog(config.request_log, project, rate=config.request_log_rate, salt=salt)
