"""How many events a feedback writer may have pending, and for how long."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypedDict

from paimon_features.core.errors import ConfigurationError


class BufferKeywords(TypedDict, total=False):
    """These keywords of :class:`trainer_bridge.FeedbackWriter`; documented there."""

    flush_rows: int
    flush_interval_s: float
    max_pending: int
    max_pending_bytes: int
    max_block_s: float
    on_full: Literal["error", "drop"]
    give_up_s: float


@dataclass(frozen=True, slots=True)
class Buffering:
    """When pending events are committed, how many there may be, and what follows if they are not.

    >>> Buffering(flush_rows=3).is_due(rows=2, waited_s=0.1)
    False
    """

    flush_rows: int = 50_000
    flush_interval_s: float = 1.0
    max_pending: int = 1_000_000
    max_pending_bytes: int = 256 << 20
    max_block_s: float = 1.0
    on_full: Literal["error", "drop"] = "error"
    give_up_s: float = 120.0

    def __post_init__(self) -> None:
        if self.on_full not in ("error", "drop"):
            raise ConfigurationError(f"on_full={self.on_full!r}: expected 'error' or 'drop'")
        least = min(self.flush_rows, self.max_pending, self.max_pending_bytes)
        if least < 1 or self.flush_interval_s < 0:
            raise ConfigurationError(
                f"flush_rows={self.flush_rows}, max_pending={self.max_pending} and "
                f"max_pending_bytes={self.max_pending_bytes} have to be at least 1, "
                f"flush_interval_s={self.flush_interval_s} at least 0"
            )
        if self.max_block_s < 0 or self.give_up_s < 0:
            raise ConfigurationError(
                f"max_block_s={self.max_block_s} and give_up_s={self.give_up_s}: expected 0 or more"
            )

    def is_due(self, rows: int, waited_s: float) -> bool:
        """Return True if this number of rows is committed now, the oldest after this time."""
        return rows >= self.flush_rows or waited_s >= self.flush_interval_s

    def has_room(self, rows: int, size: int) -> bool:
        """Return True if this number of rows and bytes may be pending together."""
        return rows <= self.max_pending and size <= self.max_pending_bytes
