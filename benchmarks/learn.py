"""From labelled rows that are committed until a server answers with weights that learned them.

    python -m benchmarks.learn                  # about two minutes

Every part is a process of its own, with its defaults, started as a user would: a Redis-protocol
server, ``serve``, and ``retrain --follow``, for the tabular transformer of 4 layers of 64. A commit
has the outcomes of 1,000 rows, of which more and more are positive: each of them is better
explained by new weights than by those in production, so that each is promoted.

The clock starts when the rows have been committed with the features of their times
(``training-set --append``), and stops when ``/predict`` answers with the next version. Requests
come every 20 ms, and none may fail.

::

    rows committed    found     trained, exported     gate, registered, promoted   served
        |------ poll ----|-- replay, fit, ONNX --|--------------------------|-- reload --|
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa

from paimon_features.core.process.ports import free_ports
from paimon_features.lake import append_arrow
from paimon_features.project import Project
from paimon_features.testing.reference.tiler import event_rows, tile_table
from paimon_features.testing.servers.redis_server import RedisServer

DAY = 86_400_000
START = 15_000 * DAY
CUSTOMERS = 500
FIRST_ROWS, ROWS = 6_000, 1_000
SHARES = (0.7, 0.9, 0.99)
"""The share of positive rows in each commit; it is 0.5 in the first training set."""
POLL_S = 0.02
DEFINITIONS = """
import paimon_features as pf

shop = pf.EventSource("shop", event_time="t", schema={
    "customer_id": pf.Int64, "t": pf.Int64, "amount": pf.Float64, "country": pf.String})
customer = pf.Entity("customer", keys={"customer_id": pf.Int64})
spend = pf.FeatureView("spend", source=shop, entity=customer, features=[
    pf.Count(windows=["1d", "7d", "30d"]), pf.Sum("amount", windows=["1d", "7d", "30d"], scale=2),
    pf.Max("amount", windows=["7d", "30d"]), pf.Min("amount", windows=["30d"]),
    pf.Mean("amount", windows=["7d", "30d"]), pf.Last("country", windows=["30d"])])
churn_v1 = pf.FeatureService("churn_v1", [spend])
"""
CONFIG = """
defaults: [base, _self_]
name: churn
data: {training_set: churn, service: churn_v1}
trainer: {epochs: 3, accelerator: cpu, threads: 1}
retrain: {min_rows: 1000, replay: 0.25}
"""


def main() -> int:
    """Print the seconds of each commit, and their median."""
    argparse.ArgumentParser(description="Seconds from an outcome to served weights.").parse_args()
    with tempfile.TemporaryDirectory() as folder, RedisServer() as redis:
        root = Path(folder)
        (root / "features.py").write_text(DEFINITIONS)
        (root / "churn.yaml").write_text(CONFIG)
        (port,) = free_ports(1)
        (root / "paimon-features.toml").write_text(
            f'[project]\nname = "learn"\n[online]\nurl = "{redis.url}"\n'
        )
        project = filled(root)
        run(root, "materialize", "spend")
        first = run(root, "train", "churn.yaml", "--json", "--quiet")
        version = json.loads(first)["version"]
        run(root, "models", "promote", "churn", str(version))
        seconds: list[float] = []
        with (
            started(root, "serve", "--port", str(port), "--log-sample", "0"),
            started(root, "retrain", "churn", "--follow") as retrainer,
        ):
            address = f"http://127.0.0.1:{port}/predict/churn"
            served = wait_for(address)
            time.sleep(15)  # until the retrainer has imported torch
            for number, share in enumerate(SHARES):
                rows = labelled_rows(ROWS, 60 + 5 * number, 5, share, number + 1)
                project.append_training_rows("churn", "churn_v1", rows)
                began, used = time.monotonic(), processor_s(retrainer)
                while (answered := version_of(address)) == served:
                    if time.monotonic() - began > 120:
                        print("no new version within two minutes")
                        return 1
                    time.sleep(POLL_S)
                seconds.append(time.monotonic() - began)
                served = answered
                used = processor_s(retrainer) - used
                print(
                    f"churn@{served} serves {seconds[-1]:.1f} s after its rows; the round took "
                    f"{used:.1f} s of processor time",
                    flush=True,
                )
    print(f"median of {len(seconds)}: {np.median(seconds):.1f} s, worst {max(seconds):.1f} s")
    return 0


def filled(root: Path) -> Project:
    """A project with events, tiles and a training set, which its labels do not explain."""
    project = Project.open(root)
    project.apply()
    dice = np.random.default_rng(0)
    times = np.sort(START + dice.integers(0, 120 * DAY, 60_000))
    events = pa.table(
        {
            "customer_id": dice.integers(0, CUSTOMERS, len(times)),
            "t": times,
            "amount": np.round(dice.gamma(2, 20, len(times)), 2),
            "country": dice.choice(["DE", "FR", "UK"], len(times)),
            "event_day": pa.array((times // DAY).astype(np.int32)),
        }
    )
    append_arrow(project.lake, "events_shop", events)
    view = project.definitions.views["spend"]
    append_arrow(project.lake, view.compiled.table(1), tile_table(view, event_rows(events)))
    project.build_training_set(
        "churn", "churn_v1", labelled_rows(FIRST_ROWS, 0, 60, 0.5, 0), label="churned"
    )
    return project


def labelled_rows(rows: int, day: int, days: int, share: float, seed: int) -> pa.Table:
    """Rows of some days, with so large a share of positive ones."""
    dice = np.random.default_rng(seed)
    return pa.table(
        {
            "customer_id": dice.integers(0, CUSTOMERS, rows),
            "event_time_ms": np.sort(START + day * DAY + dice.integers(0, days * DAY, rows)),
            "churned": dice.random(rows) < share,
        }
    )


def run(root: Path, *arguments: str) -> str:
    """A command of the project, to its end."""
    done = subprocess.run(
        [sys.executable, "-m", "paimon_features", *arguments],
        cwd=root, capture_output=True, text=True, env=environment(), check=False,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments)}: {done.stderr}")
    return done.stdout


@contextmanager
def started(root: Path, *arguments: str) -> Iterator[int]:
    """A command of the project in the background: the number of its process."""
    with open(root / f"{arguments[0]}.log", "w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "paimon_features", *arguments],
            cwd=root, stdout=log, stderr=log, env=environment(),
        )  # fmt: skip
    try:
        yield process.pid
    finally:
        process.terminate()
        process.wait(60)
        if os.environ.get("BENCHMARK_LOGS"):
            print((root / f"{arguments[0]}.log").read_text()[-4_000:])


def environment() -> dict[str, str]:
    """The environment of commands: this checkout, one thread."""
    here = str(Path(__file__).parents[1])
    return {**os.environ, "PYTHONPATH": here, "OMP_NUM_THREADS": "1"}


def processor_s(pid: int) -> float:
    """The processor time that a process has used (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def version_of(address: str) -> int:
    """The version that answers a request."""
    body = json.dumps({"entities": {"customer_id": [1, 2, 3]}}).encode()
    with urllib.request.urlopen(address, body, timeout=10) as reply:
        return int(json.load(reply)["version"])


def wait_for(address: str) -> int:
    """The version that answers first."""
    for _ in range(600):
        try:
            return version_of(address)
        except OSError:
            time.sleep(0.1)
    raise SystemExit("the server did not start within a minute")


if __name__ == "__main__":
    sys.exit(main())
