"""Ctrl-C and SIGTERM set a flag and interrupt the second time, or wait for the end of a block."""

from __future__ import annotations

import signal
import subprocess
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from examples.retail.processes import Processes
from paimon_features.core.process.interrupts import interruptible, uninterrupted


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_sets_the_event_and_the_second_interrupts(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with interruptible() as stop:
        assert not stop.is_set()
        signal.raise_signal(number)
        assert stop.is_set()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
    assert signal.getsignal(number) is before


def test_in_another_thread_there_is_an_event_that_nothing_sets() -> None:
    seen: list[bool] = []

    def work() -> None:
        with interruptible() as stop:
            seen.append(stop.is_set())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [False]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_waits_for_the_end_of_the_block(number: signal.Signals) -> None:
    received: list[int] = []
    before = signal.signal(number, lambda number, _: received.append(number))
    try:
        with uninterrupted():
            signal.raise_signal(number)
            signal.raise_signal(number)
            assert received == []
        assert received == [number]
        with suppress(ZeroDivisionError), uninterrupted():
            signal.raise_signal(number)
            1 / 0  # noqa: B018
        assert received == [number, number]
    finally:
        signal.signal(number, before)
    assert signal.getsignal(number) is before


@pytest.mark.parametrize("method", ["command", "background"])
def test_a_command_that_is_interrupted_while_it_starts_is_ended(
    tmp_path: Path, method: str
) -> None:
    started: list[subprocess.Popen[str]] = []

    class Interrupted(Processes):
        def _start(self, *arguments: Any, **options: Any) -> subprocess.Popen[str]:
            started.append(super()._start(*arguments, **options))
            signal.raise_signal(signal.SIGINT)
            return started[-1]

    with pytest.raises(KeyboardInterrupt), Interrupted(tmp_path) as processes:
        getattr(processes, method)("ui", "--project", str(tmp_path))
    assert [process.poll() is None for process in started] == [False]
