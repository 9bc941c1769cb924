"""The progress of a command: phase, share, rate and time left.

A line that changes on a terminal; in a log a line every ten seconds; with ``--json`` events, one
JSON object a line on stderr. Nothing before two seconds have passed, and nothing with ``--quiet``.
It is also shown while the command waits for something and reports nothing.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

from paimon_features.core.process import verbosity

FIRST_S = 2.0
LOG_EVERY_S = 10.0
LIVE_EVERY_S = 0.1
TICK_S = 1.0
"""How often it is looked whether something is to be shown although nothing was reported."""


class Progress:
    """Shows how far a command is; a context manager.

    ``unit`` is what is counted; without a total there is no share and no time left. ``silent``
    shows nothing, as ``--quiet`` does; without ``ticks`` nothing is shown between two reports.
    """

    def __init__(
        self,
        phase: str,
        as_json: bool = False,
        *,
        unit: str = "",
        silent: bool = False,
        ticks: bool = True,
    ) -> None:
        self.phase, self.as_json, self.unit = phase, as_json, unit
        self.silent = silent or verbosity.quiet()
        self.ticks = ticks and not self.silent
        self.live = sys.stderr.isatty() and not as_json
        self.done, self.total = 0, 0
        self.began = self.phase_began = time.monotonic()
        self.shown_s = 0.0
        self.width = 0
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._ticker: threading.Thread | None = None

    def __call__(self, phase: str, done: int, total: int) -> None:
        """Report the state, as an ``OnPhase``."""
        self.start(phase, total)
        self.update(done, total)

    def message(self, line: str) -> None:
        """Print a line of its own, as an ``OnMessage``; none with ``--json`` and ``--quiet``."""
        if self.as_json or self.silent:
            return
        with self._lock:
            self._clear()
            click.echo(line, err=True)

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
        self._tick()

    def _tick(self) -> None:
        with self._lock:  # or the ticker and a report show the same moment
            elapsed = time.monotonic() - self.began
            every = LIVE_EVERY_S if self.live else LOG_EVERY_S
            first = 0.5 if self.live else FIRST_S if self.as_json else LOG_EVERY_S
            if elapsed < first or (self.shown_s and elapsed - self.shown_s < every):
                return
            self.shown_s = elapsed
            if not self.silent:
                self._show(elapsed)

    def document(self) -> dict[str, object]:
        """Return the state, as an event of ``--json``."""
        elapsed = time.monotonic() - self.began
        rate = self.done / max(time.monotonic() - self.phase_began, 1e-9)
        has_end = bool(self.total) and self.done <= self.total
        return {
            "event": "progress",
            "phase": self.phase,
            "done": self.done,
            "total": self.total if has_end else None,
            "unit": self.unit,
            "percent": round(100 * self.done / self.total, 1) if has_end else None,
            "rate_per_s": round(rate, 1),
            "elapsed_s": round(elapsed, 3),
            "remaining_s": round((self.total - self.done) / rate, 1) if has_end and rate else None,
        }

    def text(self) -> str:
        """Return the state as a line."""
        state = self.document()
        unit = f" {self.unit}" if self.unit else ""
        if not self.total and not self.done:  # nothing that could be counted
            return f"{self.phase}  {state['elapsed_s']:.0f} s" if self.live else self.phase
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

    def clear(self) -> None:
        """Remove the line, before something else is printed."""
        with self._lock:
            self._clear()

    def _clear(self) -> None:
        if self.width:
            click.echo(f"\r{' ' * self.width}\r", nl=False, err=True)
            self.width = 0

    def _tick_until_over(self) -> None:
        while not self._over.wait(TICK_S):
            self._tick()

    def __enter__(self) -> Progress:
        if self.ticks:
            # a daemon: a command that is killed does not wait for it
            self._ticker = threading.Thread(
                target=self._tick_until_over, name="progress", daemon=True
            )
            self._ticker.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._ticker is not None:
            self._ticker.join()
        self._clear()  # the line was about something that is over


@contextmanager
def steps(phase: str, as_json: bool) -> Iterator[Callable[[int, int], None]]:
    """Yield a callback ``(done, total)`` that shows the progress."""
    with Progress(phase, as_json) as progress:
        yield progress.update
