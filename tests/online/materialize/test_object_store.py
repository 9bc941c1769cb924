"""A tile table on an object store that fails for longer than the retries of a request."""

from __future__ import annotations

import threading

import pytest

from paimon_features.core.errors import OnlineStoreError, StoreUnreachableError
from paimon_features.online.materialize import MaterializeProgress
from paimon_features.online.store import MemoryStore
from tests.clicks import ClickStream, clicks_view
from tests.servers.object_store import object_store
from tests.tile_lake import TileLake

pytest.importorskip("obstore", reason="pip install 'paimon-features[s3]'")


@pytest.mark.long
def test_the_store_of_the_tiles_is_waited_for_until_it_is_back() -> None:
    with object_store("bucket") as store:
        lake = TileLake("s3://bucket/lake", clicks_view(), options=store.options)
        stream = ClickStream(lake)
        stream.commit(20)
        away: list[OnlineStoreError | StoreUnreachableError] = []
        applied: list[int] = []
        stop, first, second = threading.Event(), threading.Event(), threading.Event()

        def failed(error: OnlineStoreError | StoreUnreachableError) -> None:
            away.append(error)
            store.fail(0)

        def passed(progress: MaterializeProgress) -> None:
            applied.append(progress.applied_snapshot)
            (second if away else first).set()

        follow = lake.materializer(MemoryStore()).follow
        thread = threading.Thread(target=follow, args=(10, stop, failed, passed))
        thread.start()
        try:
            assert first.wait(60)
            store.fail(1_000_000)
            assert second.wait(120)
        finally:
            stop.set()
            thread.join()
        assert isinstance(away[0], StoreUnreachableError), away
        assert applied[-1] == 1
