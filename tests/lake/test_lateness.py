"""Statistics of lateness, compared with a loop over all events."""

from __future__ import annotations

import random
from itertools import pairwise

import pyarrow as pa
import pytest

from paimon_features.core.times.partition_days import first_day
from paimon_features.core.types.schema import Int64
from paimon_features.core.windows import DAY_MS, HOUR_MS
from paimon_features.definitions import EventSource
from paimon_features.ingest.lateness import EDGES_MS, QUANTILES, lateness
from paimon_features.lake.catalog import Lake
from paimon_features.lake.specs import events_spec
from paimon_features.lake.writing.table_writer import append_arrow

SOURCE = EventSource("clicks", {"t": Int64}, event_time="t")


@pytest.fixture(params=[1, 8])
def lates(lake: Lake, request: pytest.FixtureRequest) -> list[int]:
    """Events of every lateness, on edges and next to them, in several commits."""
    rng = random.Random(3)
    lake.create(events_spec(SOURCE.table, SOURCE.schema, request.param))
    values = [edge + step for edge in EDGES_MS for step in (-1, 0, 1)]
    values += [int(2 ** rng.uniform(0, 40)) for _ in range(500)]
    rng.shuffle(values)
    for start in range(0, len(values), 200):
        some = values[start : start + 200]
        days = [first_day((DAY_MS - late) // DAY_MS, request.param) for late in some]
        table = pa.table(
            {
                "t": [DAY_MS - late for late in some],
                "event_day": pa.array(days, pa.int32()),
                "ingest_time_ms": [DAY_MS] * len(some),
            }
        )
        append_arrow(lake, SOURCE.table, table)
    return values


def test_buckets_are_counted_exactly_and_quantiles_within_a_sixteenth(
    lake: Lake, lates: list[int]
) -> None:
    found = lateness(lake, SOURCE)
    edges = [-(2**62), *EDGES_MS, 2**62]
    expected = [sum(low <= late < high for late in lates) for low, high in pairwise(edges)]
    assert list(found.counts) == expected
    assert (found.events, found.least_ms, found.greatest_ms) == (len(lates), -1, max(lates))
    assert found.later_than(HOUR_MS) == sum(late >= HOUR_MS for late in lates)
    ordered = sorted(max(late, 0) for late in lates)
    assert [share for share, _ in found.quantiles_ms] == list(QUANTILES)
    for share, ms in found.quantiles_ms:
        exact = ordered[max(-(-int(share * 1000) * len(ordered) // 1000), 1) - 1]
        assert exact <= ms <= exact * (1 + 1 / 16)


def test_events_are_selected_by_ingestion_time_or_day(lake: Lake, lates: list[int]) -> None:
    assert lateness(lake, SOURCE, ingested_from_ms=DAY_MS).events == len(lates)
    assert lateness(lake, SOURCE, ingested_from_ms=DAY_MS + 1).events == 0
    today = lateness(lake, SOURCE, event_days=(1, None))
    assert (today.events, today.least_ms, today.greatest_ms) == (2, -1, 0)


def test_without_events_there_are_no_statistics(lake: Lake) -> None:
    lake.create(events_spec(SOURCE.table, SOURCE.schema))
    found = lateness(lake, SOURCE)
    assert (found.events, found.quantiles_ms, found.greatest_ms) == (0, (), None)
