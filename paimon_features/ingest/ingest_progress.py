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
    those of files all at once at the end. ``phase`` is reading, or what is done before and after;
    ``rows`` is the number of all rows, where the files say it.
    """

    elapsed_s: float
    rows_read: int
    rows_per_s: float
    lag: int | None = None
    phase: str = "reading"
    rows: int | None = None

    @property
    def shown_phase(self) -> str:
        """The phase; a job that has not read a row is starting."""
        return "starting" if self.phase == "reading" and not self.rows_read else self.phase

    @property
    def remaining_s(self) -> float | None:
        """Seconds left at the rate since the start; None where the rows are unknown."""
        rate = self.rows_read / self.elapsed_s if self.elapsed_s else 0.0
        return max(0, self.rows - self.rows_read) / rate if self.rows and rate else None

    def __str__(self) -> str:
        behind = "" if self.lag is None else f"  {self.lag:>12,} behind"
        if self.rows and self.remaining_s is not None:
            share = min(1.0, self.rows_read / self.rows)
            behind += f"  {share:.0%}, {self.remaining_s:.0f} s left"
        return (
            f"{self.elapsed_s:6.0f} s  {self.shown_phase}  {self.rows_read:>12,} rows read  "
            f"{self.rows_per_s:>9,.0f}/s{behind}"
        )

    def to_document(self) -> dict[str, object]:
        """Return as ``paimon-features ingest --json`` prints it."""
        return {
            "seconds": round(self.elapsed_s, 3),
            "rows_read": self.rows_read,
            "rows_per_s": round(self.rows_per_s, 1),
            "lag": self.lag,
            "phase": self.shown_phase,
            "rows": self.rows,
            "remaining_s": None if self.remaining_s is None else round(self.remaining_s, 1),
        }


OnIngestProgress = Callable[[IngestProgress], None]
