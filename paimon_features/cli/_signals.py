"""Ctrl-C and a termination signal as an event, for commands that go on until they are stopped."""

from __future__ import annotations

import threading

import click

from paimon_features.interrupts import interruptible


def stop_event() -> threading.Event:
    """An event that SIGINT and SIGTERM set from now on, until the command has ended."""
    return click.get_current_context().with_resource(interruptible())
