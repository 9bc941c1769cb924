"""How far an ingestion is, whichever engine runs it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

REPORT_S = 1.0
"""Seconds between two reports, at least."""


@dataclass(frozen=True, slots=True)
class IngestProgress:
    """How far a running job is: rows read since its start, and per second since the last report.

    ``lag`` is the number of messages that are in the topic and not read yet, None where that is
    unknown or nothing but a topic is read. Rows are visible in the tables once they are committed;
    those of files all at once at the end. ``phase`` is reading, or what is done before and after.
    """

    elapsed_s: float
    rows_read: int
    rows_per_s: float
    lag: int | None = None
    phase: str = "reading"

    def __str__(self) -> str:
        behind = "" if self.lag is None else f"  {self.lag:>12,} behind"
        return (
            f"{self.elapsed_s:6.0f} s  {self.phase}  {self.rows_read:>12,} rows read  "
            f"{self.rows_per_s:>9,.0f}/s{behind}"
        )

    def to_document(self) -> dict[str, object]:
        """As ``paimon-features ingest --json`` prints it."""
        return {
            "seconds": round(self.elapsed_s, 3),
            "rows_read": self.rows_read,
            "rows_per_s": round(self.rows_per_s, 1),
            "lag": self.lag,
            "phase": self.phase,
        }


OnIngestProgress = Callable[[IngestProgress], None]
