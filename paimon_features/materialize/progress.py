"""What a materializer tells about its work."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from paimon_features.tables.snapshots import Snapshot


class RebuildNeeded(Exception):  # noqa: N818 - a change of course, not an error
    """The online store cannot be brought forward by deltas; the message says why.

    It never leaves the materializer: it is what makes it rebuild.
    """


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a materializer is after a piece of work.

    ``applied_snapshot`` is the oldest one among its buckets, ``latest_snapshot`` that of the
    table (0: none yet). ``tiles`` counts rows of the tile table folded since the pass began,
    ``pending`` those that the pass has yet to fold, and ``records`` those written.
    ``rebuilding`` says why everything is read anew, ``held`` names the other materializers that
    hold buckets of this one.
    """

    view: str
    applied_snapshot: int
    latest_snapshot: int
    tiles: int = 0
    pending: int = 0
    records: int = 0
    seconds: float = 0.0
    rebuilding: str | None = None
    held: tuple[str, ...] = ()

    @property
    def lag_snapshots(self) -> int:
        """How many snapshots are not applied yet."""
        return max(0, self.latest_snapshot - self.applied_snapshot)

    @property
    def caught_up(self) -> bool:
        """Whether every bucket of this materializer holds all that the table held.

        Also where another one holds a bucket, and has brought it there.
        """
        return self.lag_snapshots == 0 and self.rebuilding is None

    @property
    def tiles_per_s(self) -> float:
        """Rate of the pass; 0 before any time has passed."""
        return self.tiles / self.seconds if self.seconds > 0 else 0.0


class Work:
    """Counts the work of one pass and tells ``callback`` about it.

    ``expected`` are the rows that the pass means to fold.
    """

    def __init__(self, view: str, callback: Callable[[Progress], None]) -> None:
        self._view = view
        self._callback = callback
        self._started = time.monotonic()
        self.applied = 0
        self.expected = 0
        self.tiles = 0
        self.records = 0
        self.rebuilding: str | None = None

    def report(self, latest: Snapshot | None) -> None:
        """Tell how far the pass is."""
        self._callback(self._at(self.applied, latest, ()))

    def end(self, applied: int, latest: Snapshot | None, held: tuple[str, ...] = ()) -> Progress:
        """The result of the pass; the callback is told if there was anything to do."""
        progress = self._at(applied, latest, held)
        if self.tiles or held or self.rebuilding:
            self._callback(progress)
        return progress

    def _at(self, applied: int, latest: Snapshot | None, held: tuple[str, ...]) -> Progress:
        return Progress(
            self._view,
            applied,
            0 if latest is None else latest.id,
            self.tiles,
            max(0, self.expected - self.tiles),
            self.records,
            time.monotonic() - self._started,
            self.rebuilding,
            held,
        )
