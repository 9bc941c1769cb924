"""The progress of a command: phase, share, rate and time left.

A line that changes on a terminal; in a log a line every ten seconds; with ``--json`` events, one
JSON object a line on stderr. Nothing before two seconds have passed, and nothing with ``--quiet``.
"""

from __future__ import annotations

import json
import sys
import time

import click

from paimon_features import verbosity

FIRST_S = 2.0
LOG_EVERY_S = 10.0
LIVE_EVERY_S = 0.1


class Progress:
    """Shows how far a command is; a context manager.

    ``unit`` is what is counted; without a total there is no share and no time left.
    """

    def __init__(self, phase: str, as_json: bool = False, *, unit: str = "") -> None:
        self.phase, self.as_json, self.unit = phase, as_json, unit
        self.live = sys.stderr.isatty() and not as_json
        self.done, self.total = 0, 0
        self.began = self.phase_began = time.monotonic()
        self.shown_s = 0.0
        self.width = 0

    def start(self, phase: str, total: int = 0) -> None:
        """Begin another phase."""
        if phase != self.phase:
            self.phase, self.done, self.phase_began = phase, 0, time.monotonic()
        self.total = total

    def add(self, count: int) -> None:
        """Count more units as done."""
        self.update(self.done + count, self.total)

    def update(self, done: int, total: int = 0) -> None:
        """Report the units done so far, and their total."""
        self.done, self.total = done, total
        elapsed = time.monotonic() - self.began
        every = LIVE_EVERY_S if self.live else LOG_EVERY_S
        first = 0.5 if self.live else FIRST_S if self.as_json else LOG_EVERY_S
        if elapsed < first or (self.shown_s and elapsed - self.shown_s < every):
            return
        self.shown_s = elapsed
        if not verbosity.quiet():
            self._show(elapsed)

    def document(self) -> dict[str, object]:
        """The state, as an event of ``--json``."""
        elapsed = time.monotonic() - self.began
        rate = self.done / max(time.monotonic() - self.phase_began, 1e-9)
        known = bool(self.total) and self.done <= self.total
        return {
            "event": "progress",
            "phase": self.phase,
            "done": self.done,
            "total": self.total if known else None,
            "unit": self.unit,
            "percent": round(100 * self.done / self.total, 1) if known else None,
            "rate_per_s": round(rate, 1),
            "elapsed_s": round(elapsed, 3),
            "remaining_s": round((self.total - self.done) / rate, 1) if known and rate else None,
        }

    def text(self) -> str:
        """The state as a line."""
        state = self.document()
        unit = f" {self.unit}" if self.unit else ""
        parts = [f"{self.phase}:"]
        if state["percent"] is not None:
            parts.append(f"{state['percent']} %, {self.done:,} of {self.total:,}{unit}")
        else:
            parts.append(f"{self.done:,}{unit}")
        parts.append(f"{state['rate_per_s']:,.0f}/s")
        if state["remaining_s"] is not None:
            parts.append(f"{state['remaining_s']:,.0f} s left")
        return "  ".join(parts)

    def _show(self, elapsed: float) -> None:
        if self.as_json:
            click.echo(json.dumps(self.document()), err=True)
        elif self.live:
            text = self.text()
            click.echo(f"\r{text.ljust(self.width)}", nl=False, err=True)
            self.width = len(text)
        else:
            click.echo(f"{elapsed:6.0f} s  {self.text()}", err=True)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self.width:
            # the line was about something that is over
            click.echo(f"\r{' ' * self.width}\r", nl=False, err=True)
