"""Progress of long reads whose total is known, or becomes known."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from paimon_features.cli._progress import Progress


@contextmanager
def steps(what: str, as_json: bool) -> Iterator[Callable[[int, int], None]]:
    """Yield a callback ``(done, total)`` that shows the progress; see ``Progress``."""
    with Progress(what, as_json) as progress:
        yield progress.update
