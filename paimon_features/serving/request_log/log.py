"""The request log: a sample of served replies, so that they can be compared with the lake later.

A server passes each response to ``note``. Those of the sample wait in bounded memory for a thread
that writes them to spool files (see ``spool``); ``paimon-features request-log`` commits these to
the lake. The log neither slows a request down nor fails it: rows without room, in memory or on
the disk, are dropped and counted.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from paimon_features.core._arrow import pa, require_arrow
from paimon_features.core.configuration.project_config import SALT_VARIABLE, ServeConfig
from paimon_features.core.errors import ConfigurationError
from paimon_features.core.times.clock import now_ms
from paimon_features.serving.replies.response import OnlineResponse
from paimon_features.serving.request_log.log_rows import (
    EntityText,
    LogRowBuilder,
    SampledReply,
    log_schema,
)
from paimon_features.serving.request_log.log_thread import LogThread
from paimon_features.serving.request_log.spool import described_schema
from paimon_features.serving.request_log.spool_folder import SpoolFolder, SpoolLimits

_SALT_CHARACTERS = 16
MAX_ENTITIES = 100
"""Of a request for more entities, this many are logged, evenly spread."""
_SPREAD = 2_654_435_761


def share_of(text: str) -> int:
    """Return a number below 2**32 that spreads texts evenly: a text is in a sample where it is
    below the sample's share of 2**32."""
    return zlib.crc32(text.encode("utf-8", "replace")) * _SPREAD & 0xFFFFFFFF


def threshold_of(name: str, rate: float) -> int:
    """Return the bound for ``share_of`` of a rate.

    ConfigurationError if it is not in 0.0 to 1.0.
    """
    if not 0 <= rate <= 1:
        raise ConfigurationError(f"request log: {name}={rate}; expected a share from 0.0 to 1.0")
    return round(rate * 2**32)


def salt_of_environment() -> bytes:
    """Return the secret for hashing entities.

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


def optional_salt() -> bytes | None:
    """Return the secret for hashing entities, None where it is not set; ConfigurationError if it
    is too short."""
    return salt_of_environment() if os.environ.get(SALT_VARIABLE) else None


class RequestLog(LogThread[SampledReply]):
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
    max_file_bytes, max_age_s, max_spool_bytes
        See ``SpoolLimits``.
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
        self._threshold = threshold_of("rate", rate)
        super().__init__("request-log", worker, max_pending, flush_interval_s)
        self._clock_ms = clock_ms
        self._maker = LogRowBuilder(project, self.worker, EntityText(salt))
        self._spool = SpoolFolder(
            Path(folder),
            described_schema(log_schema(), project, self.worker),
            self.worker,
            clock_ms(),
            SpoolLimits(max_file_bytes, max_age_s, max_spool_bytes),
            self.stats,
        )
        self._thread.start()

    def note(self, request_id: str, service: str, response: OnlineResponse) -> bool:
        """Log a response if it is in the sample; returns whether it is. Never raises.

        ``service`` is "" where features were listed.
        """
        if share_of(request_id) >= self._threshold:
            return False
        return self._note(request_id, service, response)

    # -- in the server's threads ---------------------------------------------------------------

    def _note(self, request_id: str, service: str, response: OnlineResponse) -> bool:
        count = len(response)
        chosen = chosen_rows(response)
        selection = response.selection
        rows = len(chosen) * (len(response.batch.reads) + bool(selection.interactions))
        stats, at_ms = self.stats, self._clock_ms()
        with self._lock:
            stats.noted += 1
            stats.rows += rows
            stats.left_out += count - len(chosen)
            if chosen:
                number = stats.noted
                reply = SampledReply(request_id, number, service, at_ms, response, chosen, rows)
                self._add(reply, rows)
        return True

    # -- in the writing thread -----------------------------------------------------------------

    def _begin(self) -> None:
        self._spool.recover()

    def _write(self, noted: Sequence[tuple[SampledReply, int]]) -> None:
        rows: list[dict[str, Any]] = []
        for one, count in noted:
            try:
                rows += self._maker.rows(one)
            except Exception as error:
                self._dropped(count, error)
        if rows:
            self._spool.append(pa.RecordBatch.from_pylist(rows, log_schema()))
        self._spool.complete_old()

    def _complete(self) -> None:
        self._spool.complete()


def chosen_rows(response: OnlineResponse) -> Sequence[int]:
    """Return the rows of a response that are logged: none from a cache, which knows no
    snapshots."""
    count = len(response)
    if not response.batch.reads:
        return []
    if count > MAX_ENTITIES:
        return [i * count // MAX_ENTITIES for i in range(MAX_ENTITIES)]
    return range(count)


def open_request_log(project: str, config: ServeConfig) -> RequestLog | None:
    """Return the request log of a worker by its configuration; None if it is not configured.

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
    return RequestLog(
        config.request_log,
        project,
        rate=config.request_log_rate,
        salt=salt,
        max_age_s=config.spool_age_ms / 1000,
    )
