"""The minimum of epoch watermarks over channels, with repeats as after a restore."""

from __future__ import annotations

import random

from paimon_features.iteration.epoch_tracker import EpochTracker
from paimon_features.iteration.epochs import END, NONE
from paimon_features.testing.sizes import every_seed


def test_a_watermark_that_is_not_greater_changes_nothing() -> None:
    tracker = EpochTracker(2)
    assert tracker.advance(0, 5) == ()
    assert tracker.advance(1, 4) == (4,)
    for repeated in (0, 3, 4):
        assert tracker.advance(1, repeated) == ()
        assert tracker.watermark == 4
    assert tracker.advance(1, 9) == (5,)


def test_a_channel_that_has_ended_stays_ended() -> None:
    tracker = EpochTracker(2)
    tracker.advance(0, 1)
    assert tracker.advance(0, END) == ()
    for repeated in (0, 1, 7, END):
        assert tracker.advance(0, repeated) == ()
    assert tracker.advance(1, 2) == (2,)
    assert tracker.advance(1, END) == (END,)


def test_rounds_that_a_channel_without_any_delayed_come_before_the_end() -> None:
    tracker = EpochTracker(2)
    assert [tracker.advance(0, epoch) for epoch in (0, 1, END)] == [(), (), ()]
    assert tracker.advance(1, END) == (1, END)


@every_seed(100)
def test_the_watermark_is_the_minimum_of_the_greatest_ones(seed: int) -> None:
    rng = random.Random(seed)
    channels = rng.randint(1, 4)
    tracker, seen = EpochTracker(channels), [NONE] * channels
    reported = [NONE]
    for _ in range(60):
        channel = rng.randrange(channels)
        epoch = END if rng.random() < 0.05 else rng.randint(0, 12)
        new = tracker.advance(channel, epoch)
        seen[channel] = max(seen[channel], epoch)
        assert tracker.watermark == min(seen)
        assert list(new) == sorted(set(new))
        assert all(one > reported[-1] for one in new)
        reported += new
        if rng.random() < 0.1:  # a failure
            restored = EpochTracker(channels)
            restored.restore(tracker.snapshot())
            tracker = restored
    assert reported[-1] == min(seen)
