"""A small view of clicks with exact features, and its comparison with the oracle.

Sums are of integers, so that results of the online store must be equal, not close.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from paimon_features.core.times.clock import Clock, now_ms
from paimon_features.core.types.schema import Int64, String
from paimon_features.core.windows import DAY_MS, HOUR_MS, MINUTE_MS
from paimon_features.definitions import Entity, EventSource, FeatureRef, FeatureView
from paimon_features.definitions.aggregates import Aggregate, Count, Last, Max, Sum
from paimon_features.online.store.store import OnlineStore
from paimon_features.serving.reading.fetcher import FeatureFetcher
from paimon_features.testing.reference.features import Event, answer
from tests.tile_lake import PROJECT, TileLake

START_MS = 1_700_000_000_000 // DAY_MS * DAY_MS
USERS = 40

CLICKS = EventSource(
    "clicks", schema={"user": Int64, "t": Int64, "n": Int64, "word": String}, event_time="t"
)
USER = Entity("user", keys={"user": Int64})


def clicks_view(lifetime: bool = True, extra: Sequence[Aggregate] = ()) -> FeatureView:
    """Windows on three levels, a text, by default a lifetime, and further features."""
    total = Sum("n", windows=["10min", "1d", None] if lifetime else ["10min", "1d"])
    return FeatureView(
        "clicks",
        source=CLICKS,
        entity=USER,
        features=[
            total,
            Count(windows=["12d"]),
            Max("n", windows=["1h"]),
            Last("word", windows=["30d"]),
            *extra,
        ],
    )


def random_clicks(rng: random.Random, now_ms: int, count: int) -> list[Event]:
    """Clicks of few users around ``now_ms``, one in ten late by up to 40 days."""
    return [
        {
            "user": rng.randrange(USERS),
            "t": now_ms
            - (rng.randrange(40 * DAY_MS) if rng.random() < 0.1 else rng.randrange(2 * HOUR_MS)),
            "n": rng.randint(-1000, 1000),
            "word": rng.choice((None, "a", "b", "long word of more than a few bytes")),
        }
        for _ in range(count)
    ]


class ClickStream:
    """Clicks in successive commits; ``events`` contains all of them so far."""

    def __init__(self, lake: TileLake, seed: int = 0) -> None:
        self.lake = lake
        self.rng = random.Random(seed)
        self.now_ms = START_MS
        self.events: list[Event] = []

    def commit(self, count: int = 30, minutes: int = 10) -> int:
        """Commit new clicks ``minutes`` later; return the snapshot's id."""
        self.now_ms += minutes * MINUTE_MS
        new = random_clicks(self.rng, self.now_ms, count)
        self.events += new
        return self.lake.commit(new)


def wrong_answers(
    view: FeatureView,
    store: OnlineStore,
    events: Sequence[Event],
    as_of_ms: int | None = None,
    clock: Clock = now_ms,
) -> list[str]:
    """Return how the store differs from the oracle, for every user at some times.

    The times are the newest event and up to two days later, or ``as_of_ms`` alone. ``clock`` is the
    reader's.
    """
    newest = max((event["t"] for event in events), default=START_MS)
    times = (newest, newest + 1, newest + 7 * MINUTE_MS, newest + HOUR_MS, newest + 2 * DAY_MS)
    fetcher = FeatureFetcher(PROJECT, [view.compiled], store, clock=clock)
    refs = [FeatureRef(view.name, f.name) for f in view.compiled.features]
    users = list(range(USERS + 1))
    wrong = []
    for q in times if as_of_ms is None else (as_of_ms,):
        got = fetcher.get(refs, {"user": users}, q)
        rows, statuses = got.to_pylist(), got.statuses.to_pylist()
        for user in users:
            own = [event for event in events if event["user"] == user]
            expected = answer(view, own, q, online=True)
            values = {name: rows[user][name] for name in expected.values}
            if values != expected.values or set(statuses[user].values()) != {expected.status}:
                wrong.append(f"user {user} at {q}: {values} {statuses[user]}, not {expected}")
    return wrong
