"""A project whose tile table gets commits all the time, and the oracle of what may be answered.

Words of generation ``g`` begin with ``g<g>``, and numbers are ``g`` times as large, so that every
answer identifies its generation.
"""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from paimon_features.core.windows import HOUR_MS, MINUTE_MS
from paimon_features.definitions import load_definitions
from paimon_features.lake import append_arrow
from paimon_features.lake.side_folder import generations
from paimon_features.lake.specs import tiles_spec
from paimon_features.online.store import Marker, OnlineSettings, ViewState, open_store
from paimon_features.online.store.keys import ViewKeys
from paimon_features.online.store.markers import EpochContent
from paimon_features.project import Project
from paimon_features.testing.reference.features import Answer, Event, answer
from paimon_features.testing.reference.tiler import tile_table

USERS = 12
NOBODY = 999
"""A user without events, ever."""
MAX_STALENESS_MS = 3_000
FEATURES = ("sum_n_1h", "sum_n_1d", "count", "last_word_1d")

DEFINITIONS = """
import paimon_features as pf

clicks = pf.EventSource("clicks", event_time="t",
    schema={{"user": pf.Int64, "t": pf.Int64, "n": pf.Int64, "word": pf.String}})
view = pf.FeatureView("clicks", source=clicks, entity=pf.Entity("user", keys={{"user": pf.Int64}}),
    max_staleness="3s", features=[pf.Sum("n", windows={windows}), pf.Count(windows=[None]),
    pf.Last("word", windows=["1d"])])
first = pf.Interaction("first_times", "{factor} * clicks:count")
second = pf.Interaction("second_times", "{factor} * clicks:count")
service = pf.FeatureService("all_v1",
    [first, "clicks:sum_n_1h", "clicks:sum_n_1d", "clicks:count", "clicks:last_word_1d", second])
"""


@dataclass
class Commits:
    """What one generation holds. ``ends[i]`` is how many events snapshot ``i + 1`` has of all."""

    events: list[Event] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    done_ms: list[int] = field(default_factory=list)
    """When each was surely there; the newest may still be on its way."""


class Shop:
    """The project folder: definitions, lake, commits."""

    def __init__(self, folder: Path, url: str, rng: random.Random) -> None:
        self.folder, self.rng = folder, rng
        self.factors = [1]
        self.long = False
        self.start_ms = now_ms()
        self.commits: dict[int, Commits] = {}
        self._events: list[Event] = []
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._writer = threading.Thread(target=self._write)
        folder.mkdir()
        self.configure(url)
        self.define()
        self.project = Project.open(folder)
        self.project.apply()
        self.view = self.project.definitions.view("clicks")
        self.record = self.project.generation(self.view.compiled)
        first = [self._event(user) for user in range(USERS) for _ in range(3)]
        with self._lock:
            self._commit(first)

    def configure(self, url: str) -> None:
        (self.folder / "paimon-features.toml").write_text(
            f'[project]\nname = "shop"\n[lake]\nwarehouse = "lake"\n[online]\nurl = "{url}"\n'
        )

    def define(self) -> None:
        """Write the definitions as they are to be now."""
        windows = ["1h", "1d", "2d"] if self.long else ["1h", "1d"]
        text = DEFINITIONS.format(windows=windows, factor=self.factors[-1])
        (self.folder / "features.py").write_text(text)
        compiled = load_definitions(self.folder / "features.py").view("clicks").compiled
        self.fingerprint = compiled.online_fingerprint

    def __enter__(self) -> Shop:
        self._writer.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._writer.join()

    def new_generation(self) -> None:
        """All events in another table, of other buckets, which is then the one to be served."""
        view = self.view.compiled
        with self._lock:
            number = self.record.generation + 1
            buckets = self.rng.choice((1, 2, 3))
            partials = [(p.name, p.type, p.merge.paimon) for p in view.partials]
            lake = self.project.lake
            lake.create(tiles_spec(view.table(number), view.keys, partials, buckets))
            record = replace(
                self.record, generation=number, table=view.table(number), buckets=buckets,
                state="building",
            )  # fmt: skip
            generations.save(lake, record)
            self.record = record
            self._commit([])
            generations.activate(lake, "clicks", number)

    def committed(self) -> dict[int, int]:
        """How many snapshots of each generation there are at most."""
        return {generation: len(of.ends) for generation, of in [*self.commits.items()]}

    def _write(self) -> None:
        while not self._stop.wait(self.rng.uniform(0.1, 0.4)):
            with self._lock:
                some = [self.rng.randrange(USERS) for _ in range(self.rng.randint(1, 5))]
                self._commit([self._event(user) for user in some])

    def _event(self, user: int) -> Event:
        back_ms = self.rng.randrange(3 * HOUR_MS)
        return {
            "user": user, "t": self.start_ms - back_ms, "n": self.rng.randrange(1, 10),
            "word": self.rng.choice("abc"),
        }  # fmt: skip

    def _commit(self, new: list[Event]) -> None:
        self._events += new
        generation = self.record.generation
        of = self.commits.setdefault(generation, Commits())
        own = [
            {**event, "n": event["n"] * generation, "word": f"g{generation}{event['word']}"}
            for event in self._events[len(of.events) :]
        ]
        of.events += own
        of.ends.append(len(of.events))
        tiles = tile_table(self.view, own)
        newest = append_arrow(
            self.project.lake, self.record.table, tiles, commit_user="tile-job",
            commit_identifier=len(of.ends),
        )  # fmt: skip
        assert newest == len(of.ends)
        of.done_ms.append(now_ms())


class Oracle:
    """What the right answers are, each worked out once."""

    def __init__(self, shop: Shop) -> None:
        self._shop = shop
        self._known: dict[tuple[int, int, int, int], Answer] = {}

    def agrees(
        self,
        generation: int,
        user: int,
        as_of_ms: int,
        first: int,
        last: int,
        values: dict[str, Any],
    ) -> bool:
        """Whether these are the values at one of the snapshots ``first`` to ``last``."""
        return any(
            self.at(generation, snapshot, user, as_of_ms).values == values
            for snapshot in range(last, first - 1, -1)
        )

    def at(self, generation: int, snapshot: int, user: int, as_of_ms: int) -> Answer:
        """The answer for one user at one snapshot."""
        of = self._shop.commits[generation]
        own = [e for e in of.events[: of.ends[snapshot - 1]] if e["user"] == user]
        key = (generation, user, len(own), as_of_ms)
        if key not in self._known:
            self._known[key] = answer(self._shop.view, own, as_of_ms, online=True)
        return self._known[key]

    def newest_before(self, generation: int, time_ms: int) -> int:
        """The newest snapshot that was there at a time."""
        return sum(done < time_ms for done in self._shop.commits[generation].done_ms)


class Look:
    """A look into the store by itself: can it be read, and how far is it."""

    def __init__(self, url: str) -> None:
        given = {"url": url, "timeout": "300ms", "connect_timeout": "300ms"}
        self._settings = OnlineSettings.of(given, environ={})
        self._keys = ViewKeys("shop", "clicks")

    def markers(self) -> tuple[EpochContent | None, list[Marker]]:
        """What is read and the markers of its buckets; none if one is missing."""
        store = open_store(self._settings)  # a new one: it waits for no circuit breaker
        try:
            [raw] = store.get_many([self._keys.state])
            state = ViewState() if raw is None else ViewState.from_bytes(raw)
            if state.epoch is None or state.content is None:
                return None, []
            keys = [self._keys.bucket(state.epoch, b).marker for b in range(state.content.buckets)]
            found = [Marker.from_bytes(raw) for raw in store.get_many(keys) if raw is not None]
            complete = len(found) == len(keys) and all(marker.complete for marker in found)
            return state.content, found if complete else []
        finally:
            store.close()

    def is_built(self) -> bool:
        """Whether there is a complete epoch to read."""
        return bool(self.markers()[1])

    def holds(self, generation: int, snapshot: int, fingerprint: str) -> bool:
        """Whether all of a snapshot of this generation is there, by this definition."""
        reported, found = self.markers()
        if reported is None or (reported.generation, reported.online_fingerprint) != (
            generation,
            fingerprint,
        ):
            return False
        return bool(found) and min(marker.applied_snapshot for marker in found) >= snapshot


def now_ms() -> int:
    return time.time_ns() // 1_000_000


QUESTION_AHEAD_MS = 10 * MINUTE_MS
