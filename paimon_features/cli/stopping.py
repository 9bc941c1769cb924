"""Ctrl-C and a termination signal as an event, for commands that go on until they are stopped."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import click


def stop_event() -> threading.Event:
    """An event that SIGINT and SIGTERM set from now on, until the command has ended."""
    return click.get_current_context().with_resource(_signalled())


@contextmanager
def _signalled() -> Iterator[threading.Event]:
    stop = threading.Event()
    before = {
        number: signal.signal(number, lambda *_: stop.set())
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
