"""The spool files that one worker writes into a folder: bounded in size, age and bytes."""

from __future__ import annotations

import secrets
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from paimon_features.core._arrow import pa
from paimon_features.core.errors import ConfigurationError
from paimon_features.serving.request_log.spool import SpoolFile, recover, spool_bytes

_RETRY_S = 5.0


@dataclass(frozen=True, slots=True)
class SpoolLimits:
    """A file is completed at ``max_file_bytes`` or ``max_age_s``; all files of a folder have at
    most ``max_spool_bytes``, so that the disk does not fill up if they are not committed.

    Raises
    ------
    ConfigurationError
        For a bound below 1.
    """

    max_file_bytes: int = 16 << 20
    max_age_s: float = 60.0
    max_spool_bytes: int = 1 << 30

    def __post_init__(self) -> None:
        for name in ("max_file_bytes", "max_spool_bytes"):
            if getattr(self, name) < 1:
                raise ConfigurationError(
                    f"request log: {name}={getattr(self, name)}; expected 1 or more"
                )


@dataclass
class RequestLogStats:
    """Counts since the start.

    ``noted`` requests were sampled; of ``rows`` rows ``written`` are in files. Dropped rows:
    ``dropped_overload`` for lack of room in memory, or of time when the server ends,
    ``dropped_disk`` on the disk (none left, no permission, or the spool folder over its limit),
    ``dropped_defect`` because of a bug. ``left_out`` entities were not logged: of large requests,
    answered from a cache, or not in the sample. ``files`` were completed, and ``recovered`` are
    files of dead workers found at the start.
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

    def by_result(self) -> dict[str, int]:
        """Return rows by what happened to them, for the metrics."""
        return {
            name: getattr(self, name)
            for name in ("written", "dropped_overload", "dropped_disk", "dropped_defect")
        }


class SpoolFolder:
    """Writes the files of one worker; to be used from one thread. ``stats`` counts what it does.

    An error never leaves it: rows that cannot be written are dropped and counted.
    """

    def __init__(
        self,
        folder: Path,
        schema: pa.Schema,
        worker: str,
        started_ms: int,
        limits: SpoolLimits,
        stats: RequestLogStats,
    ) -> None:
        self.folder = folder
        self._schema = schema
        self._limits, self._stats = limits, stats
        self._file: SpoolFile | None = None
        self._number = 0
        # unique among all starts of one worker
        self._stem = f"{worker}-{started_ms}-{secrets.token_hex(3)}"
        self._retry_at_s = 0.0

    def recover(self) -> None:
        """Complete the files of dead workers."""
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._stats.recovered += len(recover(self.folder))
        except OSError as error:
            self._stats.last_error = str(error)

    def append(self, batch: pa.RecordBatch) -> None:
        """Write rows."""
        try:
            self._open_file().append(batch)
        except OSError as error:
            self._stats.dropped_disk += batch.num_rows
            self._failed(error)
        else:
            self._stats.written += batch.num_rows

    def complete_old(self) -> None:
        """Complete the open file if it is large or old enough."""
        file, limits = self._file, self._limits
        if file is not None and (
            file.size >= limits.max_file_bytes
            or time.monotonic() - file.opened_s >= limits.max_age_s
        ):
            self.complete()

    def complete(self) -> None:
        """Complete the open file, if there is one."""
        file, self._file = self._file, None
        if file is None:
            return
        try:
            file.complete()
        except OSError as error:  # the written part stays, under its open name
            self._failed(error)
        else:
            self._stats.files += 1

    def _open_file(self) -> SpoolFile:
        if self._file is None:
            if time.monotonic() < self._retry_at_s:
                raise OSError(self._stats.last_error)
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            waiting = spool_bytes(self.folder)
            if waiting >= self._limits.max_spool_bytes:
                raise OSError(
                    f"{waiting} bytes wait in {self.folder}, at most "
                    f"{self._limits.max_spool_bytes} may; "
                    "is 'paimon-features request-log --follow' running?"
                )
            self._number += 1
            name = f"{self._stem}-{self._number:06d}"
            self._file = SpoolFile(self.folder, name, self._schema)
        return self._file

    def _failed(self, error: OSError) -> None:
        if time.monotonic() >= self._retry_at_s:
            self._retry_at_s = time.monotonic() + _RETRY_S
        self._stats.last_error = str(error)
        file, self._file = self._file, None
        if file is not None:
            # a full disk: the written part is valid, and committing it frees space
            with suppress(OSError):
                file.complete()
                self._stats.files += 1
