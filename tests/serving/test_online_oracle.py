"""Random definitions, random events, random accidents: what is read online equals the oracle."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from paimon_features.core.errors import OnlineStoreError, RequestError
from paimon_features.core.times.partition_days import PARTITION_DAYS, WHOLE_HISTORY
from paimon_features.definitions import FeatureRef, FeatureView
from paimon_features.online.materialize import Materializer
from paimon_features.online.store import OnlineStore
from paimon_features.serving.reading.fetcher import FeatureFetcher
from paimon_features.testing.generators import random_events
from paimon_features.testing.reference.compare import differences
from paimon_features.testing.reference.features import Event, answer
from paimon_features.testing.reference.tiler import event_rows
from paimon_features.testing.servers.redis_server import RedisServer
from paimon_features.testing.servers.resp import connect
from paimon_features.testing.sizes import cases
from tests import generators
from tests.patient_stores import patient_store
from tests.stored import Stored
from tests.tile_lake import PROJECT, TileLake
from tests.waiting import LONG_S


@pytest.mark.redis
@example(seed=55_221)  # a count that decays in an hour, read three months before its newest event
@given(seed=st.integers(0, 2**32 - 1))
@cases(12)  # each writes real tables and a real server
def test_reads_equal_the_oracle_after_every_pass(redis_server: RedisServer, seed: int) -> None:
    rng = random.Random(seed)
    view = generators.random_view(rng)
    events = random_events(rng, view, 60)
    _flush(redis_server)
    with (
        tempfile.TemporaryDirectory() as folder,
        closing(patient_store(redis_server.url)) as store,
    ):
        partition_days = rng.choice((1, 1, *PARTITION_DAYS[1:], WHOLE_HISTORY))
        lake = TileLake(Path(folder), view, rng.choice((1, 3)), partition_days)
        fetcher = FeatureFetcher(PROJECT, [view.compiled], store)
        applied: list[Event] = []
        for new in _after_each_pass(rng, lake, store, redis_server, event_rows(events)):
            applied += new
            entered = [e["t"] for e in applied if None not in (e[k] for k in view.entity.keys)]
            high_ms = max(entered, default=0)
            keys, times = generators.random_rows(rng, view, events, 12)
            for i, t in enumerate(times):
                as_of_ms = rng.choice((t, max(t, high_ms), high_ms + rng.choice((0, 1, 60_000))))
                _check(view, fetcher, keys.slice(i, 1), as_of_ms, applied, high_ms)


def _after_each_pass(
    rng: random.Random,
    lake: TileLake,
    store: OnlineStore,
    server: RedisServer,
    waiting: Sequence[Event],
) -> Iterator[list[Event]]:
    """Commit the events in random snapshots, and let something happen before each pass."""
    stored = Stored(store, lake.view.name)
    worker = lake.materializer(store)
    while waiting:
        new: list[Event] = []
        for _ in range(rng.choice((1, 1, 2, 4))):
            size = rng.randint(1, 25)
            lake.commit(waiting[:size])
            new, waiting = [*new, *waiting[:size]], waiting[size:]
        accident = rng.choice(("none", "none", "new process", "rebuild", "flush", "crash", "two"))
        if accident == "new process":
            worker = _another(rng, lake, store)
        elif accident == "rebuild":
            worker.request_rebuild()
        elif accident == "flush":
            _flush(server)
        elif accident == "crash":  # between the last record and the markers
            before = stored.markers()
            worker.run_once()
            if before.keys() == stored.markers().keys():
                stored.put(before)
            worker = _another(rng, lake, store)
        elif accident == "two":
            _another(rng, lake, store, shard=(0, 2)).run_once()
        assert worker.run_once().caught_up
        yield new


def _another(
    rng: random.Random, lake: TileLake, store: OnlineStore, **options: Any
) -> Materializer:
    return lake.materializer(store, max_rows=rng.choice((1, 7, 1000)), **options)


def _check(
    view: FeatureView,
    fetcher: FeatureFetcher,
    row: Any,
    as_of_ms: int,
    applied: Sequence[Event],
    high_ms: int,
) -> None:
    """One entity at one time: the oracle's answer, or a refusal that is right."""
    refs = [FeatureRef(view.name, f.name) for f in view.compiled.features]
    requested = dict(zip(row.column_names, row.columns, strict=True))
    if any(column.null_count for column in row.columns):
        with pytest.raises(RequestError, match="is null"):
            fetcher.get(refs, requested, as_of_ms)
        return
    entity = event_rows(row)[0]
    own = [e for e in applied if all(e[k] == v for k, v in entity.items())]
    try:
        got = fetcher.get(refs, requested, as_of_ms)
    except (RequestError, OnlineStoreError):  # the latter for events after this host's clock
        assert as_of_ms < high_ms - view.compiled.margin_ms
        return
    expected = answer(view, own, as_of_ms, online=True)
    values, statuses = event_rows(got.table)[0], got.statuses.to_pylist()[0]
    wrong = differences(view, own, as_of_ms, expected, values, statuses, online=True)
    assert not wrong, (entity, as_of_ms, wrong)


def _flush(server: RedisServer) -> None:
    with connect(server.url, LONG_S) as connection:
        connection.request("FLUSHALL")
