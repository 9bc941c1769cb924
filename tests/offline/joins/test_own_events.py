"""Rows that are events count themselves: the point-in-time join equals the oracle."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from paimon_features.core.columns.column import Column
from paimon_features.core.types.schema import Float64, Int64
from paimon_features.core.windows import DAY_MS
from paimon_features.definitions import Entity, EventSource, FeatureView
from paimon_features.definitions.aggregates import Count, DecayedSum, Mean, TimeSinceLast
from paimon_features.definitions.event_partials import event_columns
from paimon_features.definitions.own_events import OwnEvents
from paimon_features.offline.joins.point_in_time import JoinResult, PointInTimeJoin
from paimon_features.testing.generators import random_events
from paimon_features.testing.reference.compare import differences
from paimon_features.testing.reference.features import Entered, answer, entered
from paimon_features.testing.reference.tiler import event_rows, tile_table
from paimon_features.testing.sizes import cases
from tests import generators
from tests.offline.joins.test_point_in_time import has_key, row_of

PAYMENTS = EventSource(
    "payments", schema={"card": Int64, "amount": Float64, "at": Int64}, event_time="at"
)
CARD = Entity("card", keys={"card": Int64})


def join(view: FeatureView, events: pa.Table, spine: pa.Table) -> JoinResult:
    """Join rows that are events with the tiles and edges of all events."""
    compiled, time = view.compiled, view.source.event_time
    as_of_ms = np.array(spine.column(time).to_pylist(), np.int64)
    columns = {name: Column.from_arrow(spine.column(name)) for name in event_columns(compiled)}
    keys = spine.select(list(view.entity.keys))
    own = OwnEvents(compiled, columns, as_of_ms)
    work = PointInTimeJoin(compiled, compiled.features, keys, as_of_ms, own)
    days = set(work.edge_days.tolist())
    needed = [t is not None and t // DAY_MS in days for t in events.column(time).to_pylist()]
    work.add_events(events.filter(pa.array(needed, pa.bool_())).select(work.event_columns))
    work.join_tiles([tile_table(view, event_rows(events)).select(work.tile_columns)])
    return work.results()


@given(seed=st.integers(0, 2**32 - 1))
@cases(60)
def test_every_row_equals_the_oracle(seed: int) -> None:
    rng = random.Random(seed)
    view = generators.random_view(rng, offline_only=True)
    events, spine = random_events(rng, view, 60), random_events(rng, view, 20)
    got = join(view, events, spine)
    rows = entered(view, event_rows(events))
    for i, own in enumerate(event_rows(spine)):
        key = {name: own[name] for name in view.entity.keys}
        known = None not in key.values()
        mine = Entered(row for row in rows if known and has_key(row, key))
        as_of_ms = own[view.source.event_time]
        expected = answer(view, mine, as_of_ms, own_event=own)
        values, statuses = row_of(got, view, i)
        wrong = differences(view, mine, as_of_ms, expected, values, statuses, own_event=own)
        assert not wrong, (own, wrong)


def payments(*rows: tuple[int | None, float | None, int]) -> pa.Table:
    cards, amounts, times = zip(*rows, strict=True)
    return pa.table(
        {
            "card": pa.array(cards, pa.int64()),
            "amount": pa.array(amounts, pa.float64()),
            "at": pa.array(times, pa.int64()),
        }
    )


def test_an_event_is_counted_once_and_those_of_its_time_do_not_see_each_other() -> None:
    view = FeatureView(
        "by_card",
        source=PAYMENTS,
        entity=CARD,
        tile="1ms",
        features=[
            Count(windows=["1h"]),
            Count(windows=["1h"], own_event=False, name="before"),
            Mean("amount", windows=["1h"]),
            DecayedSum("amount", half_life="1h", windows=["1d"]),
            TimeSinceLast(windows=["1d"]),
        ],
    )
    events = payments((7, 10.0, 0), (7, 20.0, 3_600_000), (7, 40.0, 3_600_000))
    got = join(view, events, payments((7, 20.0, 3_600_000), (7, 40.0, 3_600_000), (8, 1.0, 0)))
    table = got.table(view.compiled.features)
    assert table.column("count_1h").to_pylist() == [2, 2, 1]
    # the third card has no event before its own
    assert table.column("before_1h").to_pylist() == [1, 1, None]
    assert table.column("mean_amount_1h").to_pylist() == [15.0, 25.0, 1.0]
    assert table.column("decayed_sum_amount_h1h_1d").to_pylist() == [25.0, 45.0, 1.0]
    assert table.column("time_since_last_1d").to_pylist() == [0, 0, 0]
