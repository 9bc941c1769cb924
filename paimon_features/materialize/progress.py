"""What a materializer tells about its work."""

from __future__ import annotations

from dataclasses import dataclass


class RebuildNeeded(Exception):  # noqa: N818 - a change of course, not an error
    """The online store cannot be brought forward by deltas; the message says why.

    It never leaves the materializer: it is what makes it rebuild.
    """


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a materializer is after a piece of work.

    ``applied_snapshot`` is the oldest one among its buckets, ``latest_snapshot`` that of the
    table (0: none yet). ``tiles`` counts rows of the tile table folded since the pass began and
    ``records`` those written. ``rebuilding`` says why everything is read anew, ``held`` names
    the other materializers that hold buckets of this one.
    """

    view: str
    applied_snapshot: int
    latest_snapshot: int
    tiles: int = 0
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
        """Whether every bucket of this materializer holds all that the table held."""
        return self.lag_snapshots == 0 and not self.held and self.rebuilding is None

    @property
    def tiles_per_s(self) -> float:
        """Rate of the pass; 0 before any time has passed."""
        return self.tiles / self.seconds if self.seconds > 0 else 0.0
