"""Rates of clients, over all workers of a server: token buckets in memory that they share.

A bucket is kept as one time, the one at which it is full again (the "theoretical arrival time" of
the generic cell rate algorithm), so a bucket that is full needs no entry, and a table of a fixed
size is enough for any number of clients: an entry is replaced when its bucket is full. Workers
write without a lock. Two that write at the same instant may lose one of the two requests: a rate is
exceeded by as much at most.
"""

from __future__ import annotations

import math
import mmap
import struct
import time
from pathlib import Path

from paimon_features.serving.http.access.access import Rights
from paimon_features.serving.http.http_errors import RequestRejected

SLOTS = 16_384
_ENTRY = struct.Struct("=16sdd")
_TIMES = struct.Struct("=dd")
_PROBES = 16
BURST_S = 1.0
"""Of a rate, this much may come at once."""
_LONGEST_S = 3_600


class Quotas:
    """The buckets of all clients. All times are of the monotonic clock, which processes share.

    ``path`` is a file that the workers of a server map; None for a single process.
    """

    def __init__(self, path: Path | None = None) -> None:
        size = SLOTS * _ENTRY.size
        if path is None:
            self._map = mmap.mmap(-1, size)
            return
        with path.open("a+b") as file:
            file.truncate(size)  # zeros, or what other workers have written
            self._map = mmap.mmap(file.fileno(), size)

    def take_request(self, rights: Rights, now_s: float | None = None) -> None:
        """Count a request of a client that has a quota.

        Raises
        ------
        RequestRejected
            429 if it is over its rate; then nothing is counted.
        """
        assert rights.quota is not None
        if rights.quota.requests_per_s is not None:
            self._take(rights, 0, 1, rights.quota.requests_per_s, now_s)

    def take_rows(self, rights: Rights, rows: int, now_s: float | None = None) -> None:
        """Count the rows of a request; see ``take_request``."""
        assert rights.quota is not None
        if rights.quota.rows_per_s is not None:
            self._take(rights, 1, rows, rights.quota.rows_per_s, now_s)

    def _take(
        self, rights: Rights, which: int, amount: int, per_s: float, now_s: float | None
    ) -> None:
        now_s = time.monotonic() if now_s is None else now_s
        at = self._entry(rights.quota_key, now_s)
        times = [*_TIMES.unpack_from(self._map, at + 16)]
        full_s = max(times[which], now_s)
        takes_s = amount / per_s
        # what is larger than a bucket passes when the bucket is full, and is paid for afterwards; a
        # rate below one per burst has a bucket of one request
        wait_s = full_s + min(takes_s, BURST_S) - BURST_S - now_s
        if wait_s > 1e-9:
            rights.usage.refused += 1
            raise _rejection(rights, which, amount, per_s, wait_s)
        times[which] = full_s + takes_s
        _TIMES.pack_into(self._map, at + 16, *times)

    def _entry(self, key: bytes, now_s: float) -> int:
        """Return the offset of a client's entry, which is written if there is none.

        The one that it replaces is free, or has full buckets; where all have something left to
        wait for, the one that is full first.
        """
        first = int.from_bytes(key[:8], "little")
        best, best_s = 0, math.inf
        for probe in range(_PROBES):
            at = (first + probe) % SLOTS * _ENTRY.size
            entry_key, requests_s, rows_s = _ENTRY.unpack_from(self._map, at)
            if entry_key == key:
                return at
            until_s = max(requests_s, rows_s)
            if until_s < best_s:
                best, best_s = at, until_s
        _ENTRY.pack_into(self._map, best, key, 0.0, 0.0)
        return best


def _rejection(
    rights: Rights, which: int, amount: int, per_s: float, wait_s: float
) -> RequestRejected:
    limit = f"{per_s:g} {('requests', 'rows')[which]} per second"
    of = f" (this request has {amount:,})" if which else ""
    seconds = min(max(1, math.ceil(wait_s)), _LONGEST_S)
    return RequestRejected(
        "quota_exceeded",
        f"the client {rights.client!r} is over its quota of {limit}{of}; retry after {seconds} s, "
        "or let an operator raise it in the server's token file",
        ((b"retry-after", str(seconds).encode()),),
        "quota",
    )
