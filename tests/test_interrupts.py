"""Ctrl-C and SIGTERM set a flag once, and interrupt the second time."""

from __future__ import annotations

import signal
import threading

import pytest

from paimon_features.interrupts import interruptible


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
