"""Progress of a materializer."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from paimon_features.lake.metadata.snapshots import Snapshot


class RebuildNeeded(Exception):  # noqa: N818 - control flow, not an error
    """The online store cannot be advanced by deltas; the message is the reason.

    Never leaves the materializer, which rebuilds.
    """


class RecordsLost(RebuildNeeded):
    """The online store has lost keys that it must contain."""


@dataclass(frozen=True, slots=True)
class MaterializeProgress:
    """The state of a materializer after a unit of work.

    ``applied_snapshot`` is the oldest one among its buckets, ``latest_snapshot`` that of the
    table (0: none yet). ``tiles`` counts rows of the tile table folded since the pass started,
    ``pending`` the rows left in the pass, and ``records`` the records written. ``rebuilding`` is
    the reason of a rebuild, ``lost`` whether it is a loss of keys in the store, and ``held`` the
    other materializers that own buckets of this one.
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
    lost: bool = False

    @property
    def lag_snapshots(self) -> int:
        """The number of snapshots not applied yet."""
        return max(0, self.latest_snapshot - self.applied_snapshot)

    @property
    def caught_up(self) -> bool:
        """Whether every bucket of this materializer is up to date with the table.

        Also if another materializer owns a bucket and has brought it up to date.
        """
        return self.lag_snapshots == 0 and self.rebuilding is None

    @property
    def tiles_per_s(self) -> float:
        """Rows folded per second in this pass; 0 before any time has passed."""
        return self.tiles / self.seconds if self.seconds > 0 else 0.0


class PassRecorder:
    """Counts the work of one pass and reports it to ``callback``.

    ``expected`` is the number of rows that the pass will fold.
    """

    def __init__(self, view: str, callback: Callable[[MaterializeProgress], None]) -> None:
        self._view = view
        self._callback = callback
        self._started = time.monotonic()
        self.applied = 0
        self.expected = 0
        self.tiles = 0
        self.records = 0
        self.rebuilding: str | None = None
        self.lost = False

    def report(self, latest: Snapshot | None) -> None:
        """Report the progress of the pass."""
        self._callback(self._at(self.applied, latest, ()))

    def end(
        self, applied: int, latest: Snapshot | None, held: tuple[str, ...] = ()
    ) -> MaterializeProgress:
        """Return the result of the pass; reported to the callback if there was any work."""
        progress = self._at(applied, latest, held)
        if self.tiles or held or self.rebuilding:
            self._callback(progress)
        return progress

    def _at(
        self, applied: int, latest: Snapshot | None, held: tuple[str, ...]
    ) -> MaterializeProgress:
        return MaterializeProgress(
            self._view,
            applied,
            0 if latest is None else latest.id,
            self.tiles,
            max(0, self.expected - self.tiles),
            self.records,
            time.monotonic() - self._started,
            self.rebuilding,
            held,
            self.lost,
        )
