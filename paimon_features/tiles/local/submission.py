"""``backfill --engine local``: the same backfill by DuckDB, in this process, without Java.

It acquires the same leases, writes the same record and commits the same way as the Flink job, so
that a stream can continue after it. If it ends early, by Ctrl-C for example, the tables stay empty.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from paimon_features.core.process.callbacks import OnMessage, ignore_message
from paimon_features.lake.duckdb_engine import DuckDBEngine
from paimon_features.lake.ownership.lease import ProcessHolder
from paimon_features.tiles.jobs.backfill import (
    TileJobResult,
    begin_backfill,
    end_backfill,
    local_backfill,
)
from paimon_features.tiles.jobs.jobs import check_not_running
from paimon_features.tiles.jobs.target import TileTarget
from paimon_features.tiles.local.backfill import TilesComputed, write_tiles


@dataclass(frozen=True, slots=True)
class BackfillProgress:
    """How far a local backfill is; ``rate_per_s`` is the mean since its start."""

    elapsed_s: float
    events_read: int
    events: int
    tiles: int

    @property
    def rate_per_s(self) -> float:
        return self.events_read / self.elapsed_s if self.elapsed_s > 0 else 0.0

    @property
    def remaining_s(self) -> float | None:
        """Seconds left at this rate; None before the first events."""
        left = self.events - self.events_read
        return left / self.rate_per_s if self.rate_per_s else None

    def to_document(self) -> dict[str, object]:
        """Return as ``paimon-features backfill --json`` reports it on stderr."""
        left = self.remaining_s
        return {
            "seconds": round(self.elapsed_s, 3),
            "phase": "computing tiles" if self.events_read else "starting",
            "events_read": self.events_read,
            "events": self.events,
            "tiles": self.tiles,
            "rate_per_s": round(self.rate_per_s, 1),
            "remaining_s": None if left is None else round(left, 1),
        }

    def __str__(self) -> str:
        left = "" if self.remaining_s is None else f"  {self.remaining_s:.0f} s left"
        return (
            f"{self.elapsed_s:6.0f} s  {self.events_read / max(self.events, 1):4.0%}  "
            f"{self.events_read:>12,} of {self.events:,} events  "
            f"{self.rate_per_s:>9,.0f}/s  {self.tiles:,} tiles{left}"
        )


def backfill(
    target: TileTarget,
    *,
    memory: str | None = None,
    threads: int | None = None,
    rebuild: bool = False,
    progress: Callable[[BackfillProgress], None] = lambda _: None,
    on_message: OnMessage = ignore_message,
) -> TileJobResult:
    """Compute the tiles of all events up to the newest snapshot S, as one atomic commit.

    Interchangeable with ``tiles.flink.submission.backfill``, which documents what is recorded and
    how ``submit`` continues at S + 1. ``memory`` (``"4GB"``) and ``threads`` limit DuckDB; what
    does not fit is spilled below the project's state folder.

    Raises
    ------
    OwnershipError, GenerationError
        As ``tiles.flink.submission.backfill``.
    JobError
        If DuckDB cannot compute it; nothing is committed then.
    MissingExtraError
        If DuckDB is not installed.
    """
    holder = ProcessHolder.current()
    with (
        DuckDBEngine(memory=memory, threads=threads, folder=target.state_dir / "spill") as engine,
        target.owned(holder, "backfill it"),
    ):
        check_not_running(target)
        job = local_backfill(target, holder)
        begun = begin_backfill(target, job, rebuild, on_message)
        if begun is None:
            return end_backfill(target, job, begun, on_message)
        began, events = time.monotonic(), begun.total_records

        def computed(done: TilesComputed) -> None:
            elapsed = time.monotonic() - began
            progress(BackfillProgress(elapsed, done.events, events, done.tiles))

        try:
            # Flink appends a UUID to the name as well
            user = f"{target.record().commit_user}_{uuid.uuid4()}"
            write_tiles(
                engine, target.lake, target.view, target.generation, begun.id, user, computed
            )
        except BaseException:
            target.update(job={**job, "state": "FAILED"})
            raise
        return end_backfill(target, job, begun, on_message)
