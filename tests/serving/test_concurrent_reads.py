"""Readers concurrent with a writer: each reply is correct for one snapshot of one generation."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from paimon_features.core.errors import (
    OnlineStoreError,
    PaimonFeaturesError,
)
from paimon_features.core.types.schema import Int64, String
from paimon_features.core.windows import DAY_MS, HOUR_MS, MINUTE_MS
from paimon_features.definitions import Entity, EventSource, FeatureRef, FeatureView, Selection
from paimon_features.definitions.aggregates import Count, Last, Sum
from paimon_features.online.store import MemoryStore, OnlineStore, ViewState, open_store
from paimon_features.online.store.keys import ViewKeys
from paimon_features.online.store.settings import from_url
from paimon_features.serving.reading.cached_fetcher import CachedFetcher
from paimon_features.serving.reading.coalesce import Coalescer
from paimon_features.serving.reading.fetcher import FeatureFetcher
from paimon_features.serving.reading.query import FeatureQuery
from paimon_features.serving.replies.response import OnlineResponse
from paimon_features.testing.reference.features import answer
from paimon_features.testing.sizes import many
from tests.long_cases import quick_cases
from tests.serving.coalesced import answered
from tests.tile_lake import PROJECT, TileLake
from tests.waiting import LONG_S

SOURCE = EventSource(
    "clicks", schema={"user": Int64, "t": Int64, "n": Int64, "word": String}, event_time="t"
)
VIEW = FeatureView(
    "v", source=SOURCE, entity=Entity("user", keys={"user": Int64}), max_staleness="90min",
    features=[Sum("n", windows=["1h", "1d"]), Count(windows=[None]), Last("word", windows=["1d"])],
)  # fmt: skip
SELECTION = Selection.of([FeatureRef("v", feature.name) for feature in VIEW.compiled.features])
NOW = 1_700_000_000_000 // DAY_MS * DAY_MS + 12 * HOUR_MS
Q_MS = NOW + 10 * MINUTE_MS
USERS = 6


@dataclass
class Writer:
    """Commits, applies, rebuilds, and at times puts another generation in place.

    Events of generation ``g`` have ``n`` times ``1000^g``, so that values identify it. ``history``
    has the events up to each snapshot of each generation.
    """

    lake: TileLake
    store: OnlineStore
    rng: random.Random
    history: dict[int, list[list[dict[str, Any]]]] = field(default_factory=dict)
    generation_of: dict[str, int] = field(default_factory=dict)
    deck: list[str] = field(default_factory=list)
    clock_ms: int = NOW

    def __post_init__(self) -> None:
        self.keys = ViewKeys(PROJECT, "v")
        self._begin()
        self._apply()

    def step(self) -> None:
        """One of the things that may happen."""
        if not self.deck:
            self.deck = ["commit", "two", "rebuild", "generation"]
            self.rng.shuffle(self.deck)
        what = self.deck.pop()
        for _ in range(2 if what == "two" else 1):
            self._commit([*self.history[self._generation][-1], *self._some_events()])
        if what == "rebuild":
            self.worker.request_rebuild()
        elif what == "generation":
            self.lake.new_generation(self.rng.choice((1, 2, 3)))
            self._begin()
        self._apply()

    @property
    def _generation(self) -> int:
        return self.lake.record.generation

    def _begin(self) -> None:
        events = [e for known in list(self.history.values())[-1:] for e in known[-1]]
        self.history[self._generation] = [[]]
        self._commit([*events, *self._some_events()])
        self.worker = self.lake.materializer(
            self.store, clock=lambda: self.clock_ms, max_rows=self.rng.choice((2, 1000))
        )

    def _commit(self, events: list[dict[str, Any]]) -> None:
        known = self.history[self._generation]
        new = events[len(known[-1]) :]
        factor = 1000 ** (self._generation % 4)
        self.lake.commit([{**event, "n": event["n"] * factor} for event in new])
        known.append(events)

    def _apply(self) -> None:
        assert self.worker.run_once().caught_up
        [raw] = self.store.get_many([self.keys.state])
        assert raw is not None
        epoch = ViewState.from_bytes(raw).epoch
        assert epoch is not None
        self.generation_of[epoch] = self._generation

    def _some_events(self) -> list[dict[str, Any]]:
        rng = self.rng
        return [
            {"user": rng.randrange(USERS - 1), "t": NOW - rng.randrange(3 * HOUR_MS),
             "n": rng.randrange(1, 10), "word": rng.choice("abc")}
            for _ in range(rng.randint(1, 6))
        ]  # fmt: skip


class Truth:
    """The oracle's answers, each worked out once."""

    def __init__(self, history: Mapping[int, list[list[dict[str, Any]]]]) -> None:
        self._history = history
        self._known: dict[tuple[int, int, int, int], tuple[str, Any]] = {}

    def check(self, response: OnlineResponse, generation: int) -> None:
        """Each entity's row is right as of some snapshot from the one that the reply names."""
        rows, statuses = response.to_pylist(), response.statuses.to_pylist()
        first = response.freshness["v"].applied_snapshot
        last = len(self._history[generation]) - 1
        for row, reported in zip(rows, statuses, strict=True):
            user = row.pop("user")
            [status] = set(reported.values())
            got = ("PRESENT" if status == "STALE" else status, row)
            possible = [
                self._at(generation, snapshot, user, response.as_of_ms)
                for snapshot in range(first, last + 1)
            ]
            assert got in possible, (generation, first, user, got, possible)

    def _at(self, generation: int, snapshot: int, user: int, as_of_ms: int) -> tuple[str, Any]:
        key = (generation, snapshot, user, as_of_ms)
        if key not in self._known:
            factor = 1000 ** (generation % 4)
            own = [
                {**event, "n": event["n"] * factor}
                for event in self._history[generation][snapshot]
                if event["user"] == user
            ]
            expected = answer(VIEW, own, as_of_ms, online=True)
            self._known[key] = (expected.status, expected.values)
        return self._known[key]


@pytest.fixture(params=["memory", pytest.param("redis", marks=pytest.mark.redis)])
def store(request: pytest.FixtureRequest) -> Iterator[OnlineStore]:
    """Each kind of store, empty."""
    if request.param == "memory":
        yield MemoryStore()
        return
    # three threads and a writer on a machine that others use: slowness is not what is tested
    settings = replace(from_url(request.getfixturevalue("redis_url")), timeout_ms=60_000)
    store = open_store(settings)
    yield store
    store.close()


def random_users(rng: random.Random) -> list[int]:
    return [rng.randrange(USERS) for _ in range(rng.choice((1, 1, 2, 5)))]


@pytest.mark.long
def test_each_reply_is_of_one_generation_and_right_as_of_a_snapshot(
    tmp_path: Path, store: OnlineStore
) -> None:
    writer = Writer(TileLake(tmp_path, VIEW), store, random.Random(7))
    fetcher = FeatureFetcher(PROJECT, [VIEW.compiled], store, clock=lambda: Q_MS)
    done = threading.Event()
    replies: list[OnlineResponse] = []
    errors: list[Exception] = []

    def read(seed: int) -> None:
        rng = random.Random(seed)
        cached = CachedFetcher(fetcher, ttl_ms=HOUR_MS, recheck_ms=rng.choice((0, 10**9)))
        while not done.is_set():
            queries = [
                FeatureQuery(SELECTION, {"user": random_users(rng)})
                for _ in range(rng.randint(1, 8))
            ]
            reader = cached if seed == 0 else fetcher
            for got in reader.get_many(queries):
                if isinstance(got, OnlineResponse):
                    replies.append(got)
                else:
                    errors.append(got)
            if rng.random() < 0.2:
                cached.clear()

    readers = [threading.Thread(target=read, args=(seed,)) for seed in range(3)]
    for reader in readers:
        reader.start()
    try:
        for _ in range(many(12)):
            writer.step()
    finally:
        done.set()
        for reader in readers:
            reader.join()
    assert not errors
    assert len({reply.batch.epochs["v"] for reply in replies}) > 1
    truth = Truth(writer.history)
    for reply in random.Random(1).sample(replies, min(len(replies), 2_000)):
        # an epoch that no one had seen to its end yet is of the generation that came with it
        truth.check(reply, writer.generation_of[reply.batch.epochs["v"]])


def test_requests_through_a_coalescer_lose_nothing_while_definitions_are_replaced(
    tmp_path: Path, store: OnlineStore
) -> None:
    writer = Writer(TileLake(tmp_path, VIEW), store, random.Random(8))
    replies: list[OnlineResponse] = []
    done = threading.Event()

    def fetcher() -> FeatureFetcher:
        return FeatureFetcher(PROJECT, [VIEW.compiled], store, clock=lambda: Q_MS)

    async def send_queries(coalescer: Coalescer, rng: random.Random) -> None:
        while not done.is_set():
            replies.append(
                await answered(coalescer, FeatureQuery(SELECTION, {"user": random_users(rng)}))
            )

    async def give_up(coalescer: Coalescer) -> None:
        while not done.is_set():
            try:
                async with asyncio.timeout(0.0005):
                    await answered(coalescer, FeatureQuery(SELECTION, {"user": [1]}))
            except TimeoutError:
                continue

    async def main() -> None:
        coalescer = Coalescer(fetcher())
        readers = [asyncio.create_task(send_queries(coalescer, random.Random(i))) for i in range(6)]
        readers.append(asyncio.create_task(give_up(coalescer)))
        loop = asyncio.get_running_loop()
        try:
            for _ in range(many(6)):
                await loop.run_in_executor(None, writer.step)
                coalescer.fetcher = fetcher()
            async with asyncio.timeout(LONG_S):
                while len(replies) <= 50:
                    await asyncio.sleep(0.001)
        finally:
            done.set()
            await asyncio.gather(*readers)
            coalescer.close()

    asyncio.run(main())
    truth = Truth(writer.history)
    assert len(replies) > 50
    for reply in random.Random(1).sample(replies, min(len(replies), 500)):
        truth.check(reply, writer.generation_of[reply.batch.epochs["v"]])


@pytest.mark.parametrize("skew_min", [-600, -100, -61, -30, 0, 30, 89, 91, 600])
def test_a_readers_clock_ahead_or_behind_is_reported_or_refused_never_wrong(
    tmp_path: Path, skew_min: int
) -> None:
    #  the writer's clock: NOW;   the reader's: NOW + skew, its time of reading unless it names one
    store = MemoryStore(lambda: NOW)
    writer = Writer(TileLake(tmp_path, VIEW), store, random.Random(9))
    reader_ms = NOW + skew_min * MINUTE_MS
    fetcher = FeatureFetcher(PROJECT, [VIEW.compiled], store, clock=lambda: reader_ms)
    named, clocked = fetcher.get_many(
        [
            FeatureQuery(SELECTION, {"user": list(range(USERS))}, as_of_ms)
            for as_of_ms in (Q_MS, None)
        ]
    )
    truth = Truth(writer.history)
    generation = writer.lake.record.generation
    assert isinstance(named, OnlineResponse)
    truth.check(named, generation)
    known = {s for row in named.statuses.to_pylist() for s in row.values()} - {"MISSING"}
    assert known == {"STALE" if skew_min > 90 else "PRESENT"}
    high_ms = max(event["t"] for event in writer.history[generation][-1])
    if reader_ms < high_ms - VIEW.compiled.margin_ms:
        assert isinstance(clocked, OnlineStoreError)
    elif isinstance(clocked, PaimonFeaturesError):
        # what counts is the newest event of the buckets in question, not of all
        raise AssertionError(str(clocked))
    else:
        assert isinstance(clocked, OnlineResponse)
        truth.check(clocked, generation)


@pytest.mark.parametrize("skew_min", quick_cases([-600, -91, -89, 0, 89, 600], -91, 89))
def test_a_writers_clock_ahead_or_behind_shifts_what_is_stale_and_no_value(
    tmp_path: Path, skew_min: int
) -> None:
    store = MemoryStore(lambda: NOW)
    clock_ms = NOW + skew_min * MINUTE_MS
    writer = Writer(TileLake(tmp_path, VIEW), store, random.Random(10), clock_ms=clock_ms)
    fetcher = FeatureFetcher(PROJECT, [VIEW.compiled], store, clock=lambda: NOW)
    truth = Truth(writer.history)
    for _ in range(3):
        writer.step()
        [reply] = fetcher.get_many([FeatureQuery(SELECTION, {"user": list(range(USERS))}, Q_MS)])
        assert isinstance(reply, OnlineResponse)
        truth.check(reply, writer.lake.record.generation)
        known = {s for row in reply.statuses.to_pylist() for s in row.values()} - {"MISSING"}
        assert known == {"STALE" if skew_min < -90 else "PRESENT"}
