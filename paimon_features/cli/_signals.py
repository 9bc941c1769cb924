"""Ctrl-C and termination signals as an event, for commands that run until they are stopped."""

from __future__ import annotations

import threading

import click

from paimon_features.core.process.interrupts import interruptible


def stop_event() -> threading.Event:
    """Return an event that SIGINT and SIGTERM set until the command ends."""
    return click.get_current_context().with_resource(interruptible())
