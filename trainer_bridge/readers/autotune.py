"""Finds threads, chunk size and prefetch depth while a reader runs; never changes the order.

Once per window of time it compares who waited for whom:

::

    decoding threads --blocks--> producer --chunks--> trainer
                       |                     |
                  decode_wait_s       wait_s: the trainer waited, it is starved
                                   blocked_s: the producer waited, it is ahead

If the trainer is not starved, nothing changes. If it is starved while the producer is ahead at
other times, the queue becomes deeper; while the producer waits for blocks, a thread is added;
otherwise chunks become larger. A change that did not help within its window is reverted and not
tried again. All choices stay within the byte budget, which the block store enforces.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from trainer_bridge.readers.read_stats import ReadStats

log = logging.getLogger(__name__)

STARVED = 0.05
"""Share of the time that a trainer may wait before something is changed."""
_GAIN = 1.03
_FIRST_CHUNK_ROWS = 8_192
_REMOTE_THREADS = 4


@dataclass(frozen=True, slots=True)
class Choices:
    """Decoding threads, rows per chunk at most, and finished chunks that may wait."""

    threads: int = 2
    chunk_rows: int = 65_536
    prefetch: int = 2


@dataclass(frozen=True, slots=True)
class WaitTimes:
    """A stretch of time: rows delivered, and how long each side waited."""

    seconds: float
    rows: int
    wait_s: float
    blocked_s: float
    decode_wait_s: float

    @property
    def rate(self) -> float:
        return self.rows / self.seconds

    @property
    def starved(self) -> bool:
        return self.wait_s > STARVED * self.seconds


def most_threads(remote: bool) -> int:
    """Return the number of processors that this process may use; more threads for a network."""
    processors = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    )
    return (processors or 1) * (_REMOTE_THREADS if remote else 1)


def next_choices(now: Choices, seen: WaitTimes, limits: Choices) -> Choices:
    """Return what to try after a window; ``now`` if nothing can be gained.

    >>> now, limits = Choices(), Choices(threads=4, chunk_rows=262_144, prefetch=8)
    >>> next_choices(now, WaitTimes(1.0, 100, wait_s=0.0, blocked_s=0.9, decode_wait_s=0.0), limits)
    Choices(threads=2, chunk_rows=65536, prefetch=2)
    >>> next_choices(now, WaitTimes(1.0, 100, wait_s=0.5, blocked_s=0.0, decode_wait_s=0.7), limits)
    Choices(threads=3, chunk_rows=65536, prefetch=2)
    >>> next_choices(now, WaitTimes(1.0, 100, wait_s=0.2, blocked_s=0.4, decode_wait_s=0.1), limits)
    Choices(threads=2, chunk_rows=65536, prefetch=3)
    >>> next_choices(now, WaitTimes(1.0, 100, wait_s=0.5, blocked_s=0.0, decode_wait_s=0.0), limits)
    Choices(threads=2, chunk_rows=131072, prefetch=2)
    """
    if not seen.starved:
        return now
    if seen.blocked_s > 0.2 * seen.seconds and now.prefetch < limits.prefetch:
        return replace(now, prefetch=now.prefetch + 1)
    if seen.decode_wait_s > 0.3 * seen.seconds:
        return replace(now, threads=min(now.threads + 1, limits.threads))
    return replace(now, chunk_rows=min(2 * now.chunk_rows, limits.chunk_rows))


class Autotune:
    """The choices of one reader, which are kept from epoch to epoch.

    Parameters
    ----------
    limits
        The most that may be chosen.
    window_s
        How long a choice is observed before the next.
    clock
        Seconds, as of ``time.perf_counter``.
    """

    def __init__(
        self,
        limits: Choices,
        window_s: float = 0.5,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.limits = limits
        self.choices = Choices(
            min(2, limits.threads), min(65_536, limits.chunk_rows), min(2, limits.prefetch)
        )
        self.history: list[str] = []
        self._window_s, self._clock = window_s, clock
        self._before: tuple[Choices, float] | None = None
        self._refused: set[Choices] = set()
        self._ramp = _FIRST_CHUNK_ROWS
        self._since: tuple[float, ReadStats] | None = None

    def start(self, stats: ReadStats) -> None:
        """Begin an iteration: what happened before it is ignored."""
        self._since = (self._clock(), replace(stats))

    def next_chunk_rows(self) -> int:
        """Return the rows of the next chunk; the first ones are small, so that the first batch
        of a reader is ready soon."""
        rows = min(self._ramp, self.choices.chunk_rows)
        self._ramp = min(2 * self._ramp, self.limits.chunk_rows)
        return rows

    def observe(self, stats: ReadStats) -> Choices:
        """Take the statistics after a chunk, and return the choices from now on."""
        assert self._since is not None, "observe() comes after start()"
        now_s, (began_s, then) = self._clock(), self._since
        if now_s - began_s < self._window_s:
            return self.choices
        self._since = (now_s, replace(stats))
        seen = WaitTimes(
            now_s - began_s,
            stats.rows_delivered - then.rows_delivered,
            stats.wait_s - then.wait_s,
            stats.blocked_s - then.blocked_s,
            stats.decode_wait_s - then.decode_wait_s,
        )
        self._decide(seen)
        return self.choices

    def _decide(self, seen: WaitTimes) -> None:
        before, self._before = self._before, None
        if before is not None and seen.rate < _GAIN * before[1]:
            self._refused.add(self.choices)
            self._choose(before[0], f"{seen.rate:,.0f} rows/s were no gain")
            return
        wanted = next_choices(self.choices, seen, self.limits)
        if wanted != self.choices and wanted not in self._refused:
            self._before = (self.choices, seen.rate)
            starved = seen.wait_s / seen.seconds
            self._choose(wanted, f"{seen.rate:,.0f} rows/s, the trainer waits {starved:.0%}")

    def _choose(self, choices: Choices, reason: str) -> None:
        old, self.choices = self.choices, choices
        changes = ", ".join(
            f"{name} {getattr(old, name)} -> {getattr(choices, name)}"
            for name in ("threads", "chunk_rows", "prefetch")
            if getattr(old, name) != getattr(choices, name)
        )
        self.history.append(f"{changes} ({reason})")
        log.info("autotune: %s", self.history[-1])
