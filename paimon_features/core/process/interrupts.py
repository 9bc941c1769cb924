"""Delays Ctrl-C and SIGTERM to a safe point: inside a call they would break a connection, or lose a
process that has been started."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def interruptible() -> Iterator[threading.Event]:
    """Yield an event that SIGINT and SIGTERM set inside the block; a second one interrupts as
    usual.
    """
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def on_signal(number: int, _: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    previous = {s: signal.signal(s, on_signal) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Delay SIGINT and SIGTERM to the end of the block, for a few steps that belong together.

    A process that is started and noted by who ends it, for example: between the two a
    KeyboardInterrupt would leave it running.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # Python runs handlers in the main thread only
        return
    delayed: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM)
    previous = {s: signal.signal(s, lambda number, _: delayed.append(number)) for s in numbers}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        if delayed:
            signal.raise_signal(delayed[0])
