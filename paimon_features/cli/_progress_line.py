"""The progress of a job: one line on a terminal, occasional lines in a log."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Protocol

import click

from paimon_features import verbosity

LOG_EVERY_S = 10.0


class _Progress(Protocol):
    """Any text, with the elapsed time."""

    @property
    def elapsed_s(self) -> float: ...


class ProgressLine:
    """Shows each report on one line of a terminal, or one every ten seconds in a log.

    ``silent`` shows nothing. On exit it ends the line, so that later output starts a new one.
    """

    def __init__(self, silent: bool) -> None:
        self.silent = silent
        self.live = sys.stderr.isatty()
        self.printed_s = 0.0
        self.width = 0

    def __call__(self, progress: _Progress) -> None:
        if self.silent or verbosity.quiet():
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.width:
            click.echo(err=True)
