"""A view is materialized to a cluster and read from it, while epochs switch and a node is lost."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from paimon_features.core.errors import OnlineStoreError
from paimon_features.core.windows import HOUR_MS
from paimon_features.definitions import FeatureRef
from paimon_features.definitions.aggregates import Count
from paimon_features.online.store import OnlineSettings, OnlineStore, open_store
from paimon_features.serving.reading.fetcher import FeatureFetcher
from tests.servers.online_servers import ClusterServers, wait_for
from tests.serving.test_fetcher import NOW, click, view_of
from tests.tile_lake import PROJECT, TileLake

pytestmark = pytest.mark.redis

USERS = list(range(40))
LAST = 9


@pytest.fixture
def store(cluster: ClusterServers) -> Iterator[OnlineStore]:
    wait_for(cluster.is_well, "the cluster is well")
    cluster.flush()
    settings = OnlineSettings.of({"url": cluster.url, "timeout": "500ms"}, environ={})
    with closing(open_store(settings)) as store:
        yield store


@pytest.mark.long
def test_no_reply_mixes_epochs_or_takes_a_lost_record_for_none(
    tmp_path: Path, cluster: ClusterServers, store: OnlineStore
) -> None:
    """Snapshot n holds n events of each user, so correct counts identify the snapshot."""
    view = view_of(Count(windows=["1h"]))
    lake = TileLake(tmp_path, view, buckets=9)
    worker = lake.materializer(store)

    def commit() -> None:
        lake.commit([click(user, NOW) for user in USERS])

    commit()
    worker.run_once()
    committed, stop, node = [1], threading.Event(), cluster.nodes[1]
    answered, errors = [0], [0]
    fetcher = FeatureFetcher(PROJECT, [view.compiled], store)
    refs = [FeatureRef(view.name, feature.name) for feature in view.compiled.features]

    def read() -> None:
        while not stop.is_set():
            try:
                got = fetcher.get(refs, {"user": USERS}, NOW + HOUR_MS // 2)
            except OnlineStoreError:
                errors[0] += 1
                continue
            counts = got.to_pydict()[refs[0].feature]
            assert None not in counts
            assert got.freshness[view.name].applied_snapshot <= min(counts)
            assert max(counts) <= committed[0]
            answered[0] += 1

    with ThreadPoolExecutor(2) as pool:
        work = [pool.submit(read) for _ in range(2)]
        try:
            for number in range(2, LAST + 1):
                committed[0] = number
                commit()
                if number == LAST // 2:
                    os.kill(node.pid, signal.SIGKILL)
                    wait_for(lambda: not node.running, "the node is gone")
                    node.start()  # empty
                    wait_for(cluster.is_well, "the cluster is well")
                    wait_for(lambda: bool(worker.run_once()), "it is rebuilt")
                elif number % 3 == 0:
                    worker.rebuild()
                else:
                    worker.run_once()
                before = answered[0]
                wait_for(lambda before=before: answered[0] > before + 3, "readers continue")
        finally:
            stop.set()
        for one in work:
            one.result()
    assert errors[0] > 0
    got = fetcher.get(refs, {"user": USERS}, NOW + HOUR_MS // 2)
    assert got.to_pydict()[refs[0].feature] == [LAST] * len(USERS)
