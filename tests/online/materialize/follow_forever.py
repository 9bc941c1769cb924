"""A materializer in a separate process, with small batches, for tests that kill it."""

from __future__ import annotations

from multiprocessing.synchronize import Event
from pathlib import Path

from paimon_features.online.materialize import apply
from tests.clicks import clicks_view
from tests.patient_stores import patient_store
from tests.tile_lake import TileLake


def follow_forever(folder: str, url: str, ready: Event) -> None:
    """Follow the clicks in the lake ``folder`` until the process is killed."""
    apply.BATCH_RECORDS = 2
    lake = TileLake(Path(folder), clicks_view())
    materializer = lake.materializer(patient_store(url), lease_ttl_ms=300, max_rows=30)
    ready.set()
    materializer.follow(poll_ms=5)
