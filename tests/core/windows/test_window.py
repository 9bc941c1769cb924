"""From when to when a window is, for every kind, offset and length."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paimon_features.core.windows import (
    DAY_MS,
    HOUR_MS,
    KINDS,
    MAX_TIME_MS,
    MIN_TIME_MS,
    MINUTE_MS,
    CalendarUnit,
    Kind,
    Length,
    Window,
)
from paimon_features.testing.reference import windows as naive_windows
from paimon_features.testing.sizes import cases
from tests.generators import ZONES

M = MINUTE_MS


def window(
    length: Length, kind: Kind = "sawtooth", *, hop: int = 5 * M, tile: int = 5 * M, offset: int = 0
) -> Window:
    zone = "Europe/London" if isinstance(length, CalendarUnit) else None
    return Window(length, hop, tile, kind, offset, zone)


def random_window(rng: random.Random) -> Window:
    tile = rng.choice((1, M, 5 * M, HOUR_MS))
    kind = rng.choice(KINDS)
    hop = tile if kind == "exact" else tile * rng.choice((1, 2, 12, 24))
    lengths: tuple[Length, ...] = (None, 1, M, HOUR_MS, 12 * DAY_MS, *CalendarUnit)
    length = rng.choice((*lengths, rng.randint(1, 30 * DAY_MS)))
    if isinstance(length, int) and kind != "exact":
        length = max(length, tile)
    offset = rng.choice((0, 0, 1, 7 * M, HOUR_MS, rng.randint(1, 3 * DAY_MS)))
    zone = rng.choice(ZONES) if isinstance(length, CalendarUnit) else None
    return Window(length, hop, tile, kind, offset, zone)


@cases(150)
@given(st.integers(0, 2**32))
def test_bounds_equal_the_oracle(seed: int) -> None:
    rng = random.Random(seed)
    one = random_window(rng)
    middle = rng.choice((0, -(10**12), 10**12, MIN_TIME_MS + DAY_MS, MAX_TIME_MS - DAY_MS))
    step = rng.choice((1, M, 5 * M, HOUR_MS, DAY_MS))
    times = [middle // step * step + rng.randint(-9, 9) * step + rng.choice((-1, 0, 1))
             for _ in range(20)]  # fmt: skip
    times += [rng.randint(MIN_TIME_MS, MAX_TIME_MS) for _ in range(3)]
    starts, ends = one.bounds(np.array(times))
    for q, start, end in zip(times, starts.tolist(), ends.tolist(), strict=True):
        expected = naive_windows.bounds(one, q)
        assert end == expected[1]
        if one.length is None:
            assert start <= MIN_TIME_MS
        else:
            assert start == expected[0]
            assert start <= end
        assert one.bounds(q) == (start, end)
        assert end <= q - one.offset_ms
        assert end > q - one.lag_ms
        assert one.reach_ms is None or start > q - one.reach_ms
        assert one.read_time(q) == naive_windows.read_time(one, q)
        assert start % one.start_step_ms == 0
        assert end % one.end_step_ms == 0
        assert one.needs_head or end % one.tile_ms == 0
        assert one.needs_tail or start % one.tile_ms == 0
    order = np.argsort(times, kind="stable")
    assert (np.diff(starts[order]) >= 0).all()
    assert (np.diff(ends[order]) >= 0).all()


#  q = 10:07:30.001, tiles of 5 min
Q = 10 * HOUR_MS + 7 * M + 30_001


@pytest.mark.parametrize(
    ("of", "start", "end"),
    [
        (window(HOUR_MS), 9 * HOUR_MS + 5 * M, Q),
        (window(HOUR_MS, hop=HOUR_MS), 9 * HOUR_MS, Q),
        (window(HOUR_MS, offset=HOUR_MS), 8 * HOUR_MS + 5 * M, 9 * HOUR_MS + 5 * M),
        (window(HOUR_MS, offset=1), 9 * HOUR_MS + 5 * M, 10 * HOUR_MS + 5 * M),
        (window(HOUR_MS, "hop"), 9 * HOUR_MS + 5 * M, 10 * HOUR_MS + 5 * M),
        (window(90 * M, "hop", hop=HOUR_MS), 8 * HOUR_MS, 10 * HOUR_MS),
        (window(HOUR_MS, "hop", offset=8 * M), 8 * HOUR_MS + 55 * M, 9 * HOUR_MS + 55 * M),
        (window(HOUR_MS, "exact"), Q - HOUR_MS, Q),
        (window(M, "exact"), Q - M, Q),
        (window(HOUR_MS, "exact", offset=1), Q - HOUR_MS - 1, Q - 1),
        # in January 1970 it was summer time in London: the day had begun at 23:00 UTC
        (window(CalendarUnit.TODAY), -HOUR_MS, Q),
        (window(CalendarUnit.TODAY, "hop", hop=HOUR_MS), -HOUR_MS, 10 * HOUR_MS),
        (window(CalendarUnit.TODAY, "exact"), -HOUR_MS, Q),
        (window(CalendarUnit.TODAY, offset=12 * HOUR_MS), -25 * HOUR_MS, Q // (5 * M) * 5 * M
         - 12 * HOUR_MS),
        (window(None, "hop"), MIN_TIME_MS, 10 * HOUR_MS + 5 * M),
        (window(None, offset=M), MIN_TIME_MS, 10 * HOUR_MS + 5 * M),
    ],
)  # fmt: skip
def test_a_window_begins_and_ends_as_its_kind_says(of: Window, start: int, end: int) -> None:
    assert of.bounds(Q) == (start, end)


def test_an_event_at_the_start_is_in_and_one_at_the_end_is_out() -> None:
    for of in (window(HOUR_MS), window(HOUR_MS, "hop"), window(HOUR_MS, "exact")):
        start, end = of.bounds(Q)
        times = [start - 1, start, end - 1, end]
        assert naive_windows.members(times, Q, of) == [1, 2]


def test_only_edges_within_tiles_need_raw_events() -> None:
    assert [window(HOUR_MS, kind).needs_head for kind in KINDS] == [True, False, True]
    assert [window(HOUR_MS, kind).needs_tail for kind in KINDS] == [False, False, True]
    delayed = [window(HOUR_MS, kind, offset=M) for kind in KINDS]
    assert [w.needs_head for w in delayed] == [False, False, True]
    finest = [window(HOUR_MS, kind, hop=1, tile=1) for kind in KINDS]
    assert not any(w.needs_head or w.needs_tail for w in finest)
    assert [w.is_online for w in delayed] == [True, True, False]
    assert all(w.is_online for w in finest)


def test_only_exact_windows_shorter_than_a_tile_may_lie_inside_one() -> None:
    lengths: list[Length] = [2 * M, 5 * M - 1, 5 * M, CalendarUnit.TODAY, None]
    found = [window(length, "exact").fits_in_a_tile for length in lengths]
    assert found == [True, True, False, True, False]
    assert not any(window(5 * M, kind).fits_in_a_tile for kind in KINDS)
    # for every read, start and end of a longer one are in different tiles, or its end is an edge
    for as_of_ms in range(Q, Q + 10 * M, 12_345):
        start, end = window(5 * M, "exact").bounds(as_of_ms)
        assert start // (5 * M) < end // (5 * M)


def test_decay_counts_to_the_read_and_in_a_hop_window_to_the_hop() -> None:
    assert window(HOUR_MS, offset=HOUR_MS).read_time(Q) == Q
    assert window(HOUR_MS, "exact", offset=HOUR_MS).read_time(Q) == Q
    assert window(HOUR_MS, "hop").read_time(Q) == Q // (5 * M) * 5 * M
    # the window ends at 9:05, two minutes and an hour before the time that stands for q
    assert window(HOUR_MS, "hop", offset=62 * M).read_time(Q) == 10 * HOUR_MS + 7 * M
