"""Random views and reads of them, chosen to hit edges: the input of differential tests.

Everything follows from a ``random.Random``, so that a seed identifies a failing case.

>>> view = random_view(random.Random(1))
>>> len(view.compiled.features) > 0
True
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from paimon_features.core.times.partition_days import PARTITION_DAYS
from paimon_features.core.types.schema import Bool, DataType, Int64, String, arrow_schema
from paimon_features.core.windows import CalendarUnit, Kind, parse_duration
from paimon_features.definitions import Entity, EventSource, FeatureView
from paimon_features.definitions import aggregates as agg
from paimon_features.definitions.aggregates import Aggregate
from paimon_features.testing.generators import EVENT_TIME, STEPS_MS, USERS, VALUE_COLUMNS
from paimon_features.testing.reference.retractions import LESSENED

_SCALARS = [name for name, kind in VALUE_COLUMNS.items() if kind.is_scalar]
_KEYS: Sequence[Mapping[str, DataType]] = (
    {"user": Int64},
    {"user": String},
    {"user": Int64, "shop": String},
    {"user": String, "flag": Bool},
)
_TILES = ("1ms", "1min", "5min", "1h", "1d")
_WINDOWS = ("5min", "1h", "90min", "12h", "1d", "7d", "12d", "30d")
_UNITS = tuple(unit.value for unit in CalendarUnit)
_OFFSETS = ("1ms", "7min", "1h", "1d", "36h")
ZONES = (
    "UTC", "Europe/London", "America/New_York", "America/Sao_Paulo", "America/St_Johns",
    "Asia/Kathmandu", "Asia/Kolkata", "Australia/Lord_Howe", "Pacific/Apia", "Pacific/Chatham",
)  # fmt: skip
"""Time zones with unusual rules: odd offsets, clocks changed at midnight, a skipped day."""
_WHERES = (None, None, "n > 0", "n IS NOT NULL AND x < 1e6", "flag", "word <> 'a'")
_HALF_LIVES = ("10min", "1h", "1d")
_EDGES = ((0.5,), (-100.0, 0.0, 1.0, 10.0), tuple(float(edge) for edge in range(-20, 30, 2)))
_CATEGORIES: Sequence[Mapping[str, Any]] = (
    {"column": "word", "values": ["a", "ä", "it's"]},
    {"column": "word", "values": ["", "b"]},
    {"column": "small", "values": [0, -1, 2**31 - 1]},
    {"column": "flag", "values": [True]},
)


def random_view(
    rng: random.Random, name: str = "random", *, offline_only: bool = False
) -> FeatureView:
    """A feature view with up to six aggregates, each over up to three windows.

    ``offline_only``: its windows may require reads from the lake.
    """
    keys = rng.choice(_KEYS)
    schema = {**keys, EVENT_TIME: Int64}
    schema.update({k: v for k, v in VALUE_COLUMNS.items() if k not in schema})
    source = EventSource(name, schema=schema, event_time=EVENT_TIME)
    tile = rng.choice(_TILES)
    kind = random_kind(rng, tile, offline_only=offline_only)
    windows = [w for w in _WINDOWS if kind == "exact" or parse_duration(w) >= parse_duration(tile)]
    time_zone = rng.choice((None, *ZONES))
    if time_zone is not None:
        windows += _UNITS
    features: dict[str, Aggregate] = {}
    for _ in range(rng.randint(1, 6)):
        aggregate = random_aggregate(rng, windows)
        if not any(one.stem in features for one in aggregate.each()):
            features.update({one.stem: aggregate for one in aggregate.each()})
    view = FeatureView(
        name,
        source=source,
        entity=Entity("someone", keys=keys),
        tile=tile,
        derive={"amount": "n * x", "twice": "small * 2"},
        where=rng.choice(_WHERES),
        features=list(dict.fromkeys(features.values())),
        kind=kind,
        time_zone=time_zone,
        resolution=random_resolution(rng, kind, tile),
        ttl=rng.choice((None, None, "1h", "2d", "60d")),
    )
    return _retractable(rng, view) if rng.random() < 0.3 else view


def _retractable(rng: random.Random, view: FeatureView) -> FeatureView:
    """The view over a source with retractions, with the aggregates that support them."""
    scope = view.compiled.scope
    features = [
        one
        for aggregate in view.features
        for one in aggregate.each()
        if isinstance(one, LESSENED) and one.why_not_retractable(scope) is None
    ]
    if not features:
        return view
    column, kind = rng.choice((("gone", Bool), ("op", String)))
    schema = {**view.source.schema, column: kind}
    source = replace(view.source, schema=schema, retraction=column)
    return replace(view, source=source, features=features)


def random_kind(rng: random.Random, tile: str, *, offline_only: bool = False) -> Kind:
    """A kind of windows; exact ones are online only where a tile is a millisecond."""
    exact: Sequence[Kind] = ("exact",) if offline_only or tile == "1ms" else ()
    return rng.choice(("sawtooth", "sawtooth", "hop", *exact))


def random_resolution(rng: random.Random, kind: Kind, tile: str) -> Mapping[str, str] | None:
    """Hops of a view, mostly the defaults."""
    if kind == "exact" or tile == "1d":
        return None
    return rng.choice((None, None, {"12h": "1h"}, {"1h": "15min", "2d": "6h"}))


def random_aggregate(rng: random.Random, windows: Sequence[str]) -> Aggregate:
    """One aggregate over some of these windows, or over the lifetime."""
    chosen: list[str | None] = list(rng.sample(windows, min(len(windows), rng.randint(1, 3))))
    if rng.random() < 0.2:
        chosen[0] = None
    where = rng.choice((None, None, None, "n > 1", "x IS NULL OR flag"))
    offset = rng.choice((None, None, None, *_OFFSETS))
    common: dict[str, Any] = {"windows": chosen, "where": where, "offset": offset}
    if where is not None:
        common["name"] = f"some_{rng.randrange(10**6)}"
    return rng.choice(_makers(rng, common))()


def _makers(rng: random.Random, common: Mapping[str, Any]) -> Sequence[Callable[[], Aggregate]]:
    """One factory for each kind of aggregate or variant."""
    number = rng.choice(("n", "small", "x", "price", "amount", "twice"))
    scaled: dict[str, Any] = {"scale": rng.choice((0, 2))} if number in ("x", "amount") else {}
    column, scalar = rng.choice(list(VALUE_COLUMNS)), rng.choice(_SCALARS)
    half_life: Any = rng.choice((*_HALF_LIVES, ["1h", "7d"]))
    edges = rng.choice(_EDGES)
    categories: Mapping[str, Any] = rng.choice(_CATEGORIES)
    lengths = [window for window in common["windows"] if window not in (None, *_UNITS)]
    timed = {**common, "windows": lengths or ["1d"]}
    listed = {**common, "n": rng.choice((1, 2, 5))}
    tie: dict[str, Any] = {"tie": rng.choice((None, *_SCALARS))}
    by: dict[str, Any] = {"by": rng.choice((None, *_SCALARS))}
    condition = {"condition": "n > 0 OR flag", **common, "name": f"is_{rng.randrange(10**6)}"}
    return (
        lambda: agg.Count(**common),
        lambda: agg.Count(column, **common),
        lambda: agg.Sum(number, **common),
        lambda: agg.Sum(number, **scaled, **common),
        lambda: agg.Sum("price", as_decimal=True, **common),
        lambda: agg.Mean(number, **scaled, **common),
        lambda: agg.Min(rng.choice((number, scalar)), **common),
        lambda: agg.Max(number, **scaled, **common),
        lambda: agg.Max(scalar, **common),
        lambda: agg.Variance(number, ddof=rng.choice((0, 1)), **common),
        lambda: agg.StdDev(number, **scaled, **common),
        lambda: agg.Skewness(number, **scaled, **common),
        lambda: agg.Kurtosis(number, **scaled, **common),
        lambda: agg.First(scalar, **tie, **common),
        lambda: agg.Last(scalar, **tie, **common),
        lambda: agg.Last(rng.choice(("vec", "pair")), **tie, **common),
        lambda: agg.FirstN(scalar, **tie, **listed),
        lambda: agg.LastN(scalar, **tie, **listed),
        lambda: agg.TopK(scalar, **by, **listed),
        lambda: agg.BottomK(scalar, **by, **listed),
        lambda: agg.DecayedSum(number, half_life=half_life, **common),
        lambda: agg.DecayedCount(half_life=half_life, **common),
        lambda: agg.DecayedCount(number, half_life=half_life, **common),
        lambda: agg.DecayedMean(number, half_life=half_life, **common),
        lambda: agg.CountBy(**categories, **common),
        lambda: agg.SumBy(
            number, by=categories["column"], values=categories["values"], **scaled, **common
        ),
        lambda: agg.TopCategories(rng.choice(("word", "small", "flag")), **listed),
        lambda: agg.Any("flag", **common),
        lambda: agg.All(**condition),
        lambda: agg.Rate(per="1h", **timed),
        lambda: agg.Rate(number, per="1d", **scaled, **timed),
        lambda: agg.TimeSinceLast(**common),
        lambda: agg.TimeSinceLast(column, **common),
        lambda: agg.TimeSinceFirst(column, unit="1h", **common),
        lambda: agg.ApproxCountDistinct(scalar, **common),
        lambda: agg.Histogram(number, edges=edges, **common),
        lambda: agg.Quantile(number, q=rng.choice((0.0, 0.5, [0.1, 0.99])), edges=edges, **common),
        lambda: agg.VectorSum("vec", scale=rng.choice((None, 2)), **common),
        lambda: agg.VectorMean("pair", **common),
    )


def random_partition_days(rng: random.Random) -> int | str | None:
    """A definition's ``partition_days``."""
    return rng.choice((None, *PARTITION_DAYS, "none"))


def random_rows(
    rng: random.Random, view: FeatureView, events: pa.Table, count: int
) -> tuple[pa.Table, list[int]]:
    """Entity keys and read times near the events, including unknown and null entities."""
    times = events.column(EVENT_TIME).to_pylist()
    lengths = [w.length for w in view.compiled.windows if isinstance(w.length, int)]
    steps = (*STEPS_MS, *lengths)
    keys: dict[str, list[Any]] = {key: [] for key in view.entity.keys}
    as_of_ms = []
    for _ in range(count):
        for key, kind in view.entity.keys.items():
            known = USERS[kind.text]
            unknown = {"int64": 99, "string": "nobody", "bool": True}[kind.text]
            keys[key].append(rng.choice((*known, *known, unknown, None)))
        q = rng.choice(times)
        if rng.random() < 0.7:
            q += rng.choice((0, 1, -1)) + rng.choice((0, 1)) * rng.choice(steps)
        if rng.random() < 0.2:
            q = q // view.compiled.tile_ms * view.compiled.tile_ms
        if rng.random() < 0.2:
            window = rng.choice(view.compiled.windows)
            # so that an event at q lies on the window's end or start, or 1 ms next to it
            q += window.offset_ms if rng.random() < 0.5 else q - window.start(q)
            q += rng.choice((0, 1, -1))
        as_of_ms.append(q)
    schema = arrow_schema(dict(view.entity.keys))
    return pa.table(keys, schema=schema), as_of_ms
