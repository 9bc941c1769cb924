"""Progress in a notebook: one output that is replaced while work continues.

It uses IPython's displays alone, which every kernel has: no widgets, which a front end may lack,
and nothing at all outside a notebook.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from paimon_features.core.notebook.markup import Markup, card, escaped

REDRAWN_S = 0.2
"""Seconds between two drawings, at least; the first and the last report are always drawn."""


def in_notebook() -> bool:
    """Return True if a Jupyter kernel runs this code; imports nothing to find out."""
    if "ipykernel" not in sys.modules or "IPython" not in sys.modules:
        return False
    shell = sys.modules["IPython"].get_ipython()
    return shell is not None and getattr(shell, "kernel", None) is not None


class ProgressBar:
    """Shows reports of long work below the cell that runs it; a context manager.

    It is called with the units done and their total, or with one of the progress objects of
    ingestion and backfills, which say in words how far they are. Outside a notebook it shows
    nothing.

    >>> with ProgressBar("backfill") as bar:
    ...     bar(1, 2)
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._handle: Any = None
        self._began = time.monotonic()
        self._drawn = 0.0
        self._last: Markup | None = None
        self._shown = in_notebook()

    def __call__(self, done: Any, total: int | None = None) -> None:
        if not self._shown:
            return
        elapsed = time.monotonic() - self._began
        if total is None:
            message, share = " ".join(str(done).split()), _share(done)
        else:
            share = done / total if total else None
            rate = done / elapsed if elapsed > 0 else 0.0
            left = f", {(total - done) / rate:,.0f} s left" if rate and done < total else ""
            message = f"{done:,} of {total:,}, {rate:,.0f}/s{left}"
        self._last = _bar(message, share)
        now = time.monotonic()
        if self._handle is None or now - self._drawn >= REDRAWN_S:
            self._draw(self._last, now)

    def _draw(self, body: Markup, now: float) -> None:
        from IPython.display import HTML, display

        shown = HTML(card(self._what, body))  # type: ignore[no-untyped-call]
        if self._handle is None:
            self._handle = display(shown, display_id=True)  # type: ignore[no-untyped-call]
        else:
            self._handle.update(shown)
        self._drawn, self._last = now, None

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *_: object) -> None:
        if self._last is not None:
            self._draw(self._last, time.monotonic())


def _share(report: Any) -> float | None:
    """Return how much is done, where the report knows: a local backfill does."""
    done, total = getattr(report, "events_read", None), getattr(report, "events", None)
    return done / total if isinstance(done, int) and isinstance(total, int) and total else None


def _bar(message: str, share: float | None) -> Markup:
    value = "" if share is None else f' value="{min(max(share, 0.0), 1.0):.4f}"'
    bar = f'<progress max="1"{value} style="width:20em"></progress>'
    return Markup(f"<p>{bar} {escaped(message)}</p>")
