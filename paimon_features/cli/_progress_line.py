"""The progress of a job: one line on a terminal, occasional lines in a log."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Protocol

import click

from paimon_features.core.process import verbosity

LOG_EVERY_S = 10.0


class _Progress(Protocol):
    """Any text, with the elapsed time; a dataclass."""

    @property
    def elapsed_s(self) -> float: ...


def _document(progress: Any) -> Mapping[str, object]:
    """Return the progress for a program: what it says of itself, or its fields."""
    if hasattr(progress, "to_document"):
        document: Mapping[str, object] = progress.to_document()
        return document
    return asdict(progress)


class ProgressLine:
    """Shows each report on one line of a terminal, or one every ten seconds in a log.

    ``silent`` shows nothing; with ``events`` as well, JSON objects every ten seconds.
    On exit it ends the line, so that later output starts a new one.
    """

    def __init__(self, silent: bool, *, events: bool = False) -> None:
        self.silent, self.events = silent, events
        self.live = sys.stderr.isatty()
        self.printed_s = 0.0
        self.width = 0

    def __call__(self, progress: _Progress) -> None:
        if verbosity.quiet():
            return
        if self.silent:
            if self.events and progress.elapsed_s - self.printed_s >= LOG_EVERY_S:
                self.printed_s = progress.elapsed_s
                event = {"event": "progress", **_document(progress)}
                click.echo(json.dumps(event), err=True)
            return
        if self.live:
            text = str(progress)
            click.echo(f"\r{text.ljust(self.width)}", nl=False, err=True)
            self.width = len(text)
        elif progress.elapsed_s - self.printed_s >= LOG_EVERY_S:
            self.printed_s = progress.elapsed_s
            click.echo(str(progress), err=True)

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(self, *_: object) -> None:
        if self.width:
            click.echo(err=True)
