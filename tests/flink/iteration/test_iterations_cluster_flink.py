"""Iterations in a session cluster: Python in processes of their own, and jobs without a client."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import paimon_features as pf
from paimon_features.core.errors import OwnershipError
from paimon_features.core.process.flink_rest import FlinkRest
from paimon_features.iteration import IterationListener, ReferenceExecutor
from paimon_features.iteration.algorithms import KMeans
from paimon_features.lake import Lake, TableSpec, read_arrow
from paimon_features.lake.ownership.lease import FlinkJobHolder, acquire, holder_of
from tests.chaos import part_of_chaos
from tests.iteration import loops
from tests.iteration.loops import bounded

pytest.importorskip("pyflink", reason="pip install 'paimon-features[flink]'")

import cloudpickle

from paimon_features.iteration.flink import FileOutput, IterationJob, IterationSettings, PaimonTable

pytestmark = pytest.mark.flink

cloudpickle.register_pickle_by_value(loops)

ROUNDS = 30


@pytest.mark.long
@pytest.mark.redis
def test_an_algorithm_in_process_mode_equals_a_local_fit(
    session_cluster: Any, redis_url: str
) -> None:
    points = np.array([[0.0, 0.0], [0.3, 0.0], [9.0, 0.0], [9.6, 0.0]])
    job = IterationJob(
        settings=IterationSettings(
            mode="process", wire=redis_url, checkpoint_interval_ms=200, stuck_s=120.0
        ),
        cluster=session_cluster.address,
        state_dir=session_cluster.state_dir,
    )
    kmeans = KMeans(k=2, max_iter=3)
    assert kmeans.fit(points, executor=job).to_params() == kmeans.fit(points).to_params()


class Grow(IterationListener):
    """Adds one to its value at the end of each epoch, slowly enough to be observed."""

    def open(self, ctx: Any) -> None:
        self.values = ctx.state.map("values")

    def process_element(self, value: int, ctx: Any, out: Any) -> None:
        self.values.put(ctx.epoch, value)

    def on_epoch_watermark_incremented(self, epoch: int, ctx: Any, out: Any) -> None:
        value = self.values.get(epoch)
        self.values.remove(epoch)
        time.sleep(0.05)
        out.collect(value + 1)
        out.side("seen", (ctx.subtask, epoch, value))


def growing(job: Any) -> Any:
    def body(variables: Any, data: Any) -> Any:
        grown = variables.get(0).process(Grow())
        return [grown], {"seen": grown.get_side_output("seen")}, None

    return bounded([job.from_collection([0, 100], 2)], body, max_rounds=ROUNDS)


@part_of_chaos("detached tile jobs do, too")
def test_a_detached_job_owns_its_table_until_it_has_ended_by_itself(
    tmp_path: Path, session_cluster: Any
) -> None:
    lake = Lake.open(tmp_path / "lake", "shop")
    lake.create(TableSpec("seen", {"subtask": pf.Int64, "epoch": pf.Int64, "value": pf.Int64}))
    files = FileOutput(tmp_path / "files")

    def build(job: Any) -> Any:
        seen = growing(job)["seen"]
        rows = seen.map(lambda one: dict(zip(("subtask", "epoch", "value"), one, strict=True)))
        return {"rows": rows, "files": seen}

    job = IterationJob(
        name="growing",
        settings=IterationSettings(mode="thread", wire="memory", checkpoint_interval_ms=200),
        cluster=session_cluster.address,
        state_dir=session_cluster.state_dir,
    )
    sinks = {"rows": PaimonTable(lake, "seen"), "files": files}
    started = job.execute_async(build, sinks, detached=True)
    rest = FlinkRest(session_cluster.address)
    owner = holder_of(lake, "seen")
    assert owner is not None
    assert isinstance(owner.holder, FlinkJobHolder)
    assert owner.holder.job_id == started.job_id
    with pytest.raises(OwnershipError, match=r"'seen' is owned by Flink job"):
        acquire(lake, "seen")
    # from here on the job's client is not used
    deadline = time.monotonic() + 120
    while (state := rest.state(started.job_id)) != "FINISHED":
        assert state in ("INITIALIZING", "CREATED", "RUNNING"), rest.failure(started.job_id)
        assert time.monotonic() < deadline
        time.sleep(0.1)
    expected = Counter(ReferenceExecutor().run(growing)["seen"])
    assert expected.total() == 2 * ROUNDS
    assert Counter(files.read()) == expected
    rows = read_arrow(lake, "seen").to_pylist()
    assert Counter((row["subtask"], row["epoch"], row["value"]) for row in rows) == expected
    with acquire(lake, "seen"):
        pass
