"""The native core and NumPy: one result to the bit, whatever the view, the window, the bytes."""

from __future__ import annotations

import random
from contextlib import nullcontext

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from paimon_features.core.columns.column import Column
from paimon_features.core.errors import OnlineStoreError, PaimonFeaturesError
from paimon_features.core.native import CORE
from paimon_features.core.types.schema import Float64, Int64
from paimon_features.core.windows import DAY_MS, Kind
from paimon_features.definitions import CompiledView, Entity, EventSource, FeatureView
from paimon_features.definitions import aggregates as agg
from paimon_features.definitions.aggregates import Aggregate
from paimon_features.online.store.codec import HEADER, PLAIN, cell_key
from paimon_features.serving.reading.native_fold import split_features
from paimon_features.serving.reading.view_results import ViewPlan, ViewResult
from paimon_features.serving.reading.view_rows import RowRange
from paimon_features.testing.generators import VALUE_COLUMNS
from paimon_features.testing.sizes import cases
from tests import generators
from tests.generators import random_view
from tests.stored_rows import StoredRows

NOW_MS = 1_700_000_123_456


def both(
    rows: StoredRows, part: RowRange, plan: ViewPlan, as_of_ms: int
) -> tuple[ViewResult, ViewResult]:
    """The result of the core, and that of NumPy."""
    stale = {0} if as_of_ms % 2 else set()
    # random integers leave the ranges that guards keep
    with np.errstate(all="ignore"):
        folded = plan.fold(part, as_of_ms, stale)
        assert folded is not None
        assert folded.bucket_high_ms == part.decoded.bucket_high_ms
        mine = plan.compute(part, folded, as_of_ms, stale)
        return mine, plan.compute(part, None, as_of_ms, stale)


def assert_same(got: ViewResult, expected: ViewResult) -> None:
    assert got.values.keys() == expected.values.keys()
    assert got.newest.tolist() == expected.newest.tolist()
    assert got.snapshots.tolist() == expected.snapshots.tolist()
    for name, column in expected.values.items():
        mine = got.values[name]
        assert got.codes[name].tolist() == expected.codes[name].tolist(), name
        assert mine.mask.tolist() == column.mask.tolist(), name
        assert mine.values.dtype == column.values.dtype, name
        ours, theirs = mine.values[mine.mask], column.values[column.mask]
        if ours.dtype == object:
            assert ours.tolist() == theirs.tolist(), name
        else:
            assert ours.tobytes() == theirs.tobytes(), (name, ours, theirs)


def check(rng: random.Random, view: CompiledView) -> None:
    """Random records of a view at random times, in parts of random sizes."""
    rows = StoredRows(view)
    plan = ViewPlan(rows.variant, view.features)
    read = rows.read(rows.random_records(rng, NOW_MS, rng.choice((1, 1, 2, 9))))
    count = len(read.found)
    start = rng.randrange(count)
    part = read.part(start, rng.randint(start + 1, count))
    for _ in range(3):
        as_of_ms = NOW_MS - rng.choice((0, 0, 1, 60_000, 7 * DAY_MS, rng.randrange(DAY_MS)))
        assert_same(*both(rows, part, plan, as_of_ms))


@pytest.mark.skipif(CORE is None, reason="the native core is not built (make test)")
@given(seed=st.integers(0, 2**32 - 1))
@cases(150)
def test_random_views_and_records_have_one_result(seed: int) -> None:
    rng = random.Random(seed)
    view = random_view(rng).compiled
    if view.is_online and plan_is_native(view):
        check(rng, view)


def plan_is_native(view: CompiledView) -> bool:
    return bool(split_features(view, view.features)[0])


def aggregates() -> list[Aggregate]:
    """One of each aggregate and variant that the generator of random views knows."""
    found: dict[str, Aggregate] = {}
    rng = random.Random(0)
    windows = ["1h", "12h", "1d", "7d", "30d"]
    while len(found) < 60:
        for make in generators._makers(rng, {"windows": windows, "where": None, "offset": None}):
            for one in make().each():
                found.setdefault(one.stem, one)
    return list(found.values())


@pytest.mark.skipif(CORE is None, reason="the native core is not built (make test)")
@pytest.mark.parametrize("kind", ["sawtooth", "hop", "exact"])
def test_each_aggregate_has_one_result_on_each_kind_of_window(kind: Kind) -> None:
    source = EventSource("e", schema={"user": Int64, "t": Int64, **VALUE_COLUMNS}, event_time="t")
    features = aggregates()
    assert {type(one) for one in features} >= {
        agg.Count, agg.Sum, agg.Mean, agg.Min, agg.Max, agg.Variance, agg.StdDev, agg.Skewness,
        agg.Kurtosis, agg.First, agg.Last, agg.DecayedSum, agg.DecayedCount, agg.DecayedMean,
        agg.Rate, agg.TimeSinceLast, agg.TimeSinceFirst, agg.Any, agg.All, agg.CountBy, agg.SumBy,
        agg.Histogram, agg.Quantile, agg.VectorSum, agg.ApproxCountDistinct,
    }  # fmt: skip
    rng = random.Random(kind)
    for offset in (None, "1d"):
        # a window of its own end, so that decayed sums have several origins
        late = agg.DecayedSum("x", half_life="1h", windows=["7d"], offset=offset, name="late")
        view = FeatureView(
            "v", source=source, entity=Entity("user", keys={"user": Int64}), kind=kind,
            tile="1ms" if kind == "exact" else "5min", ttl=rng.choice((None, "20d")),
            derive={"amount": "n * x", "twice": "small * 2"},
            features=[*features, late, agg.Sum("x", windows=["today", None], name="long")],
            time_zone="Asia/Kathmandu",
        )  # fmt: skip
        for _ in range(4):
            check(rng, view.compiled)


SPEND = FeatureView(
    "spend",
    source=EventSource("s", schema={"user": Int64, "t": Int64, "x": Float64}, event_time="t"),
    entity=Entity("user", keys={"user": Int64}),
    features=[agg.Sum("x", windows=["1d"]), agg.Last("x", windows=["1d"]), agg.Count()],
).compiled


@pytest.mark.parametrize("is_random", [False, True])
@given(seed=st.integers(0, 2**32 - 1))
# the newest time is that of the last cell; a text shorter than a time
@example(seed=284)
@example(seed=2111)
@cases(100)
def test_damaged_records_have_the_errors_of_the_reference(is_random: bool, seed: int) -> None:
    rng = random.Random(seed)
    view = random_view(rng).compiled if is_random else SPEND
    assume(view.is_online)
    rows = StoredRows(view)
    records = rows.random_records(rng, NOW_MS, 4)
    row = rng.randrange(4)
    record = bytearray(records[row] or bytes(HEADER.itemsize + 4))
    damage = rng.choice(("cut", "byte", "longer", "noise"))
    if damage == "cut":
        del record[rng.randrange(len(record)) :]
    elif damage == "byte":
        record[rng.randrange(len(record))] = rng.randrange(256)
    elif damage == "longer":
        record += bytes(rng.randint(1, 99))
    else:
        record[HEADER.itemsize :] = rng.randbytes(len(record) - HEADER.itemsize)
    records[row] = bytes(record)
    plan = ViewPlan(rows.variant, view.features)
    results: list[ViewResult | PaimonFeaturesError] = []
    for native in (True, False):
        part = rows.read(records).part(0, 4)
        try:
            folded = plan.fold(part, NOW_MS, set()) if native else None
            with np.errstate(all="ignore"):
                results.append(plan.compute(part, folded, NOW_MS, set()))
        except OnlineStoreError as error:
            results.append(error)
    got, expected = results
    if isinstance(expected, ViewResult):
        assert isinstance(got, ViewResult)
        assert_same(got, expected)
    else:
        assert str(got) == str(expected)


@pytest.mark.skipif(CORE is None, reason="the native core is not built (make test)")
def test_a_history_of_too_many_tiles_is_left_to_numpy() -> None:
    view = FeatureView(
        "v", source=EventSource("s", schema={"user": Int64, "t": Int64}, event_time="t"),
        entity=Entity("user", keys={"user": Int64}), tile="1min",
        features=[agg.DecayedCount(half_life="1d"), agg.Count()],
    ).compiled  # fmt: skip
    rows = StoredRows(view)
    plan = ViewPlan(rows.variant, view.features)
    #  cells   |two years and more|                                  |now|
    for ago_ms, is_native in ((300 * DAY_MS, True), (800 * DAY_MS, False)):
        times = [NOW_MS - ago_ms, NOW_MS - 1]
        top = len(view.levels_ms) - 1
        old = cell_key(top, times[0] // view.levels_ms[top])
        keys = np.array([old, cell_key(0, times[1] // 60_000)])
        order = np.argsort(keys)
        columns = {p.name: Column(np.ones(2, p.type.text)) for p in view.partials}
        columns["p_event_time_max"] = Column(np.array(times)[order])
        headers = np.zeros(1, HEADER)
        headers["event_high"] = times[1]
        cells = rows.variant.layout.cells(keys[order], columns)
        [record] = rows.variant.layout.encode(headers, cells, np.array([0, 2]))
        part = rows.read([record]).part(0, 1)
        assert (plan.fold(part, NOW_MS, set()) is not None) is is_native
        assert plan.compute(part, None, NOW_MS, set()).values["count"].values.tolist() == [2]


@pytest.mark.parametrize(("keys", "is_ascending"), [
    ((-(2**63), 2**63 - 1), True),
    ((2**63 - 1, -(2**63)), False),
    ((7, 7), False),
])  # fmt: skip
def test_keys_are_compared_however_far_they_are_apart(
    keys: tuple[int, int], is_ascending: bool
) -> None:
    layout = StoredRows(SPEND).variant.layout
    header, cells = np.zeros(1, HEADER), np.zeros(2, layout.cell)
    header["format"], header["layout"], header["cells"] = PLAIN, layout.id, 2
    cells["key"] = keys
    record = header.tobytes() + cells.tobytes()
    # the keys of another record do not count
    with nullcontext() if is_ascending else pytest.raises(OnlineStoreError, match="not ascending"):
        assert layout.decode([record, record]).cells.rows["key"].tolist() == [*keys, *keys]
