"""Writers that race on a slow, failing S3 with old listings: exact, on each server (make chaos)."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from typing import Any

import pytest

from paimon_features.core.types.schema import Int32, Int64
from paimon_features.lake import read_arrow
from paimon_features.lake.catalog import Lake
from paimon_features.lake.metadata.snapshots import snapshots
from paimon_features.lake.specs import TableSpec
from tests import s3_servers
from tests.chaos import part_of_chaos
from tests.servers.object_store import Disturbance, object_store

pytest.importorskip("obstore", reason="pip install 'paimon-features[s3]'")

pytestmark = [
    pytest.mark.timeout(600),
    part_of_chaos("minutes of faults"),
]

SPEC = TableSpec("t", {"day": Int32, "n": Int64}, partition_by=("day",))
COMMITS = 15
_WRITER = """
import json, sys
import pyarrow as pa
from paimon_features.lake import append_arrow
from paimon_features.lake.catalog import Lake
address, options, first, count = json.loads(sys.argv[1])
lake = Lake.open(address, "features", options=options)
for n in range(first, first + count):
    rows = pa.table({"day": pa.array([1], pa.int32()), "n": pa.array([n], pa.int64())})
    append_arrow(lake, "t", rows, commit_user=f"writer-{first}", commit_identifier=n)
    print(n, flush=True)
"""


@pytest.mark.parametrize("stale_s", [0.0, 1.0], ids=["listings", "old-listings"])
@pytest.mark.parametrize("server", ["moto", *s3_servers.PROGRAMS])
def test_commits_of_racing_and_killed_writers_are_there_once(server: str, stale_s: float) -> None:
    """Each writer is killed at some commit, and starts again with its first one: a commit of the
    same user and number is not repeated."""
    seed = int(os.environ.get("PAIMON_FEATURES_SEED", random.randrange(10**6)))
    print(f"PAIMON_FEATURES_SEED={seed}")
    rng = random.Random(seed)
    with object_store("bucket", s3_servers.program(server)) as store:
        lake = Lake.open(f"s3://bucket/lake-{stale_s}", "features", options=store.options)
        lake.create(SPEC)
        store.disturbance = Disturbance(seed, latency_s=0.01, stale_s=stale_s)

        def start(first: int) -> subprocess.Popen[str]:
            given: list[Any] = [lake.warehouse, store.options, first, COMMITS]
            return subprocess.Popen(
                [sys.executable, "-c", _WRITER, json.dumps(given)],
                stdout=subprocess.PIPE,
                text=True,
            )

        running = {first: start(first) for first in (100, 200)}
        for first, process in running.items():
            assert process.stdout is not None
            for _ in range(rng.randrange(3, COMMITS - 3)):
                assert process.stdout.readline()
            process.kill()
            process.communicate()
            running[first] = start(first)
        for process in running.values():
            process.communicate()
            assert process.returncode == 0
        faults, store.disturbance = store.disturbance, None
        print(faults.counts)
        found = sorted(read_arrow(lake, "t")["n"].to_pylist())
        assert found == [*range(100, 100 + COMMITS), *range(200, 200 + COMMITS)]
        history = list(snapshots(lake, "t"))
        assert [s.id for s in history] == list(range(1, 2 * COMMITS + 1))
        assert {"refused", "lost", "cut"} <= set(faults.counts)
