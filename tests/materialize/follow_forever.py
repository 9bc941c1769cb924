"""A materializer in a process of its own, in small batches: what the kill test kills."""

from __future__ import annotations

import sys
from pathlib import Path

from paimon_features.materialize import apply
from paimon_features.online import open_store
from paimon_features.testing.clicks import clicks_view
from paimon_features.testing.tile_lake import TileLake


def main(folder: str, url: str) -> None:
    apply.BATCH_RECORDS = 2
    lake = TileLake(Path(folder), clicks_view())
    materializer = lake.materializer(open_store(url), lease_ttl_ms=300, max_rows=30)
    print("ready", flush=True)
    materializer.follow(poll_ms=5)


if __name__ == "__main__":
    main(*sys.argv[1:])
