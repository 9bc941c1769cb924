"""The differential matrix of windows: one set of hard cases for every path.

A cell is a kind of windows, a tile, a grain of event times and an order in which events arrive.
It has a view with every sort of window, events on the edges of its windows, and requests
``(user, q)`` on the same edges. ``wrong`` compares the results of a path with the oracle's,
exactly if that is guaranteed.

Views of one tile differ in nothing but their windows, so one tile table serves all kinds, and a
path that makes tiles can make those of all cells of a tile in one job: users are named after
the origin of their events.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from typing import Any, NamedTuple

from paimon_features.core.types.schema import Bool, Float64, Int64, String
from paimon_features.core.windows import (
    DAY_MS,
    HOUR_MS,
    KINDS,
    MAX_TIME_MS,
    MIN_TIME_MS,
    MINUTE_MS,
    Kind,
    parse_duration,
)
from paimon_features.definitions import Entity, EventSource, FeatureView
from paimon_features.definitions.aggregates import (
    Aggregate,
    ApproxCountDistinct,
    Count,
    CountBy,
    DecayedCount,
    DecayedSum,
    FirstN,
    Last,
    LastN,
    Max,
    Mean,
    Min,
    Quantile,
    StdDev,
    Sum,
    TimeSinceLast,
    TopCategories,
    TopK,
)
from paimon_features.definitions.aggregates import (
    Any as AnyOf,
)
from paimon_features.testing.reference.compare import differences
from paimon_features.testing.reference.features import Answer, Entered, Event, answer, entered
from paimon_features.testing.reference.windows import bounds

GRAINS = ("1ms", "5min", "1h", "1d")
"""Event times are multiples of this."""
ORDERS = ("sorted", "shuffled", "duplicated", "late", "retracted")
"""How events arrive: by time; in random order; some of them twice; the oldest ones last; or in
random order, some retracted before or after they arrive, some retractions without an event."""
USERS = 2
BATCHES = 3
QUESTIONS = 18
NEWEST_PART = 2
"""One request in this many is near the newest event, like reads of an online store."""

# in London clocks changed on 27 March and 30 October 2011
ANCHORS_MS = (1_301_187_600_000, -400 * DAY_MS, MAX_TIME_MS - 2 * DAY_MS, MIN_TIME_MS + 2 * DAY_MS)
"""Times around which events lie: in 2011, before 1970, and at both ends of time."""

SOURCE = EventSource(
    "matrix",
    schema={"user": String, "t": Int64, "n": Int64, "x": Float64, "word": String},
    event_time="t",
    max_skew="3d",
)


RETRACTED_SOURCE = EventSource(
    "matrix_retracted",
    schema={**SOURCE.schema, "gone": Bool},
    event_time="t",
    max_skew="3d",
    retraction="gone",
)


class Question(NamedTuple):
    """A request to a path: all features of one user at one time."""

    user: str
    as_of_ms: int


Given = tuple[Mapping[str, Any], Mapping[str, str]]
"""The result of a path: a value and a status for each feature."""


_UNITS = ["today", "this_week", "this_month", "this_year"]
_SUMS: Sequence[Aggregate] = (
    Count(windows=["5min", "1h", "13h", "12d", *_UNITS, None]),
    Count(windows=["1h", "12d", "today", "this_month", None], offset="1h"),
    Sum("n", windows=["1d"], offset="7min"),
    Sum("n", windows=["90min", "12d"]),
    Sum("x", windows=["this_week"], scale=2),
    DecayedSum("x", half_life="1h", windows=["12d"]),
    DecayedCount(half_life="1d", windows=["13h"], offset="1h"),
)
"""Aggregates that support retractions."""
_REST: Sequence[Aggregate] = (
    Mean("x", windows=["12d"]),
    StdDev("x", windows=["13h"], scale=1, offset="7min"),
    Min("n", windows=["1h"]),
    Max("x", windows=["12d"], offset="1ms"),
    Last("word", windows=["1h", "this_month"]),
    LastN("word", n=2, tie="n", windows=["90min", None]),
    FirstN("n", n=3, windows=["today"], offset="1h"),
    TopK("n", n=2, by="x", windows=["this_week"]),
    TopCategories("word", n=2, windows=["13h"]),
    ApproxCountDistinct("x", windows=["12d"], offset="7min"),
    CountBy("word", values=["a", "ü"], windows=["1h"]),
    AnyOf(condition="n > 1", name="any_large", windows=["today"]),
    TimeSinceLast("n", windows=["12d"], offset="1ms"),
    Quantile("x", q=0.5, edges=[0, 1, 2, 5], windows=["90min"]),
)


@cache
def matrix_view(kind: Kind, tile: str, order: str = "sorted") -> FeatureView:
    """Every sort of window: lengths, calendar units, lifetime, with and without an offset."""
    retracted = order == "retracted"
    means = [Mean("x", windows=["12d"], scale=2), StdDev("n", windows=["13h"], offset="7min")]
    return FeatureView(
        f"matrix_{tile}_retracted" if retracted else f"matrix_{tile}",
        source=RETRACTED_SOURCE if retracted else SOURCE,
        entity=Entity("user", keys={"user": String}),
        tile=tile,
        kind=kind,
        time_zone="Europe/London",
        features=[*_SUMS, *(means if retracted else _REST)],
        ttl="20d",
    )


@dataclass(frozen=True)
class Cell:
    """One cell of the matrix; everything about it follows from these few values."""

    kind: Kind
    tile: str
    grain: str
    order: str
    seed: int = 0

    @property
    def stem(self) -> str:
        """The name of the events; cells of other kinds and tiles share them."""
        return f"{self.grain}-{self.order}-{self.seed}"

    def __str__(self) -> str:
        return f"{self.kind}-{self.tile}-{self.stem}"

    @property
    def view(self) -> FeatureView:
        """The view that is read."""
        return matrix_view(self.kind, self.tile, self.order)

    @property
    def batches(self) -> tuple[tuple[Event, ...], ...]:
        """The events in the order of their arrival, as they are committed."""
        return _arriving(self.grain, self.order, self.stem, tuple(self._moments))

    @cached_property
    def questions(self) -> list[Question]:
        """Times on the edges of windows of some event, and one millisecond next to them."""
        rng = self._rng("questions")
        events = [event for batch in self.batches for event in batch]
        newest = max(event["t"] for event in events)
        questions = [Question(f"{self.stem}-nobody", self._moments[0])]
        while len(questions) < QUESTIONS:
            around_newest = len(questions) % NEWEST_PART == 0
            time = newest if around_newest else rng.choice(events)["t"]
            moments = () if around_newest else self._moments
            as_of_ms = rng.choice((time, _as_edge(rng, time, self.view), *moments))
            as_of_ms = min(max(as_of_ms + rng.choice((-1, 0, 0, 1)), MIN_TIME_MS), MAX_TIME_MS)
            questions.append(Question(f"{self.stem}-{rng.randrange(USERS)}", as_of_ms))
        return questions

    @cached_property
    def _moments(self) -> list[int]:
        """Read times whose windows have events at their edges."""
        rng = self._rng("moments")
        place = GRAINS.index(self.grain) + ORDERS.index(self.order) + self.seed
        anchor = ANCHORS_MS[place % len(ANCHORS_MS)]
        steps = (MINUTE_MS, 5 * MINUTE_MS, HOUR_MS, DAY_MS, 5 * DAY_MS)
        near = [anchor + rng.randint(-9, 9) * rng.choice(steps) for _ in range(3)]
        return [anchor, *(time + rng.choice((-1, 0, 1, rng.randrange(HOUR_MS))) for time in near)]

    def _rng(self, part: str) -> random.Random:
        return random.Random(f"{self.stem}-{part}")

    # -- expected answers ----------------------------------------------------------------

    @cached_property
    def _known(self) -> dict[tuple[str, int], Entered]:
        return {}

    @cached_property
    def _expected(self) -> dict[tuple[Question, int, bool], Answer]:
        return {}

    def events_of(self, user: str, batches: int = BATCHES) -> Entered:
        """Return the accepted events of a user in the first batches."""
        if (user, batches) not in self._known:
            rows = [e for batch in self.batches[:batches] for e in batch if e["user"] == user]
            self._known[user, batches] = entered(self.view, rows)
        return self._known[user, batches]

    def expected(
        self, question: Question, *, batches: int = BATCHES, online: bool = False
    ) -> Answer:
        """Return the oracle's result; computed once for all paths."""
        key = (question, batches, online)
        if key not in self._expected:
            events = self.events_of(question.user, batches)
            self._expected[key] = answer(self.view, events, question.as_of_ms, online=online)
        return self._expected[key]


def cells(kinds: Iterable[tuple[Kind, str]], seed: int = 0) -> list[Cell]:
    """All grains and orders of these kinds over these tiles."""
    return [
        Cell(kind, tile, grain, order, seed)
        for kind, tile in kinds
        for grain in GRAINS
        for order in ORDERS
    ]


def random_cell(rng: random.Random) -> Cell:
    """Any cell, of any tile."""
    tiles = ("1ms", "1min", "5min", "1h", "1d")
    kind: Kind = rng.choice(KINDS)
    # other kinds have no windows shorter than a tile
    tile = rng.choice(tiles if kind == "exact" else tiles[:3])
    return Cell(kind, tile, rng.choice(GRAINS), rng.choice(ORDERS), rng.randrange(2**40))


def wrong(
    cell: Cell,
    questions: Sequence[Question],
    given: Sequence[Given],
    *,
    batches: int = BATCHES,
    online: bool = False,
) -> list[str]:
    """Return how the results of a path differ from the oracle's; empty if they do not.

    ``batches`` is the number that the path has read; ``online`` paths include the complete open
    tile
    of sawtooth windows.
    """
    found = []
    for question, (values, statuses) in zip(questions, given, strict=True):
        events = cell.events_of(question.user, batches)
        right = cell.expected(question, batches=batches, online=online)
        texts = differences(
            cell.view, events, question.as_of_ms, right, values, statuses, online=online
        )
        found += [f"{cell}, {question}: {text}" for text in texts]
    return found


@lru_cache(maxsize=64)
def _arriving(
    grain: str, order: str, stem: str, moments: tuple[int, ...]
) -> tuple[tuple[Event, ...], ...]:
    """The batches of all cells of a grain and an order.

    Each retraction has a matching event, except for the twentieth of the events that never
    arrives.
    """
    rng = random.Random(f"{stem}-order")
    events = _events(random.Random(f"{stem}-events"), stem, moments, parse_duration(grain))
    if order == "sorted":
        events.sort(key=lambda event: int(event["t"]))
    else:
        rng.shuffle(events)
    if order == "duplicated":
        events += [dict(event) for event in rng.sample(events, len(events) // 3)]
    if order == "late":
        events.sort(key=lambda event: -(event["t"] // (5 * DAY_MS)))
    if order == "retracted":
        taken = [{**event, "gone": True} for event in rng.sample(events, len(events) // 2)]
        events = [{**event, "gone": False} for event in events[len(events) // 20 :]] + taken
        rng.shuffle(events)
    cuts = sorted(rng.sample(range(1, len(events)), BATCHES - 1))
    return tuple(tuple(events[a:b]) for a, b in itertools.pairwise([0, *cuts, len(events)]))


def _events(
    rng: random.Random, stem: str, moments: Sequence[int], grain_ms: int
) -> list[dict[str, Any]]:
    """Events on and next to the edges of all kinds of windows, read at these moments."""
    edges: set[int] = set()
    for kind in KINDS:
        for feature in matrix_view(kind, "5min").compiled.features:
            for as_of_ms in moments:
                start, end = bounds(feature.window, as_of_ms)
                edges.update(int(e) for e in (start, end) if MIN_TIME_MS <= e <= MAX_TIME_MS)
    events: list[dict[str, Any]] = []
    for edge in rng.sample(sorted(edges), min(len(edges), 24)):
        for time in (edge + rng.choice((-1, 0, 1)), edge + rng.choice((-1, 0)) * grain_ms):
            time = time // grain_ms * grain_ms
            if MIN_TIME_MS <= time <= MAX_TIME_MS:
                events.append(
                    {
                        "user": f"{stem}-{rng.randrange(USERS)}",
                        "t": time,
                        "n": rng.choice((None, 1, 2, -3, 2**33, rng.randint(-9, 9))),
                        "x": rng.choice((None, 0.5, 0.1, 2.675, -1e6, rng.gauss(5, 2))),
                        "word": rng.choice((None, "a", "b", "ü", "\U0001f600")),
                    }
                )
    return events


def _as_edge(rng: random.Random, time_ms: int, view: FeatureView) -> int:
    """A read time for which ``time_ms`` is the start or the end of a window."""
    window = rng.choice(view.compiled.windows)
    length = window.length if isinstance(window.length, int) else rng.choice((0, DAY_MS))
    return time_ms + window.offset_ms + rng.choice((0, length))
