"""Iterations on a real Flink: the same results as the reference executor, whatever fails."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import paimon_features as pf
from paimon_features.core.errors import (
    ConfigurationError,
    DefinitionError,
    JobError,
    OwnershipError,
)
from paimon_features.iteration import (
    DataStreamList,
    IterationBodyResult,
    IterationConfig,
    IterationListener,
    ReferenceExecutor,
    ReplayableDataStreamList,
    iterate_bounded_streams_until_termination,
    iterate_unbounded_streams,
    terminate_on_max_iter,
)
from paimon_features.lake import Lake, TableSpec, append_arrow, read_arrow, snapshots
from paimon_features.lake.ownership.lease import acquire, holder_of

pytest.importorskip("pyflink", reason="pip install 'paimon-features[flink]'")

from pyflink.common import WatermarkStrategy
from pyflink.datastream.connectors.number_seq import NumberSequenceSource

from paimon_features.iteration.flink import (
    FileOutput,
    IterationJob,
    IterationSettings,
    PaimonTable,
    open_stream_environment,
    running_job,
)
from paimon_features.iteration.flink.table_outputs import TableRowConverter
from paimon_features.iteration.flink.topology import restarting_sources
from tests.os_processes import interrupted
from tests.waiting import await_true

pytestmark = pytest.mark.flink

ROUNDS = 40


class Add(IterationListener):
    """Adds up the data and the variable's records of each epoch; emits the sum at its end.

    A record of the next epoch may come before that (S5), hence sums are kept by epoch. Fails
    once at each of ``failures`` epochs; a file remembers that it has.
    """

    def __init__(self, failures: dict[int, Path] | None = None) -> None:
        self.failures = failures or {}

    def open(self, ctx: Any) -> None:
        self.ctx = ctx
        self.totals = ctx.state.map("totals")
        self.data = ctx.state.list("data")

    def process_element1(self, value: int, ctx: Any, out: Any) -> None:
        marker = self.failures.get(ctx.epoch)
        if marker is not None and not marker.exists():
            marker.touch()
            raise RuntimeError(f"injected in epoch {ctx.epoch}")
        self.totals.put(ctx.epoch, (self.totals.get(ctx.epoch) or 0) + value)

    def process_element2(self, value: int, ctx: Any, out: Any) -> None:
        self.data.add(value)

    def on_epoch_watermark_incremented(self, epoch: int, ctx: Any, out: Any) -> None:
        total = ((self.totals.get(epoch) or 0) + sum(self.data.get())) % 1_000_003
        self.totals.remove(epoch)
        out.collect(total)
        out.side("seen", (epoch, ctx.subtask, total))

    def on_iteration_terminated(self, ctx: Any, out: Any) -> None:
        out.side("seen", ("end", ctx.subtask, sorted(self.totals.items())))


def sums(
    parallelism: int,
    rounds: int,
    failures: dict[int, Any] | None = None,
    shuffle: bool = False,
) -> Any:
    """A program that sums, with a record per epoch and subtask in its output."""

    def build(job: Any) -> Any:
        start = job.from_collection(range(parallelism), parallelism, "start")
        data = job.from_collection(range(100), parallelism, "numbers")

        def body(variables: DataStreamList, inputs: DataStreamList) -> IterationBodyResult:
            variable = variables.get(0)
            if shuffle:
                variable = variable.broadcast()
            added = variable.connect(inputs.get(0)).process(Add(failures)).name("add")
            criteria = added.flat_map(terminate_on_max_iter(rounds))
            return IterationBodyResult(
                DataStreamList.of(added),
                DataStreamList.of(added.get_side_output("seen")),
                criteria,
            )

        return {
            "seen": iterate_bounded_streams_until_termination(
                DataStreamList.of(start),
                ReplayableDataStreamList.not_replay(data),
                IterationConfig(wire="memory"),
                body,
            ).get(0)
        }

    return build


def ordered(results: dict[str, list[Any]]) -> dict[str, list[Any]]:
    return {name: sorted(values, key=repr) for name, values in results.items()}


@pytest.fixture(scope="module")
def state_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("iterations")


@pytest.fixture(scope="module")
def flink(state_dir: Path) -> Iterator[Any]:
    """Makes jobs that share one environment; Python runs in threads of the JVM."""
    env = open_stream_environment(state_dir=state_dir, workers=True)

    def make(resume: str | None = None, **settings: Any) -> IterationJob:
        given = {
            "mode": "thread",
            "wire": "memory",
            "checkpoint_interval_ms": 100,
            "stuck_s": 120.0,
            **settings,
        }
        return IterationJob(
            env, settings=IterationSettings(**given), state_dir=state_dir, resume=resume
        )

    return make


def test_a_loop_on_flink_equals_the_reference_executor(flink: Any) -> None:
    program = sums(parallelism=2, rounds=ROUNDS, shuffle=True)
    assert ordered(flink().run(program)) == ordered(ReferenceExecutor().run(program))


@pytest.mark.long
def test_the_end_does_not_wait_for_rare_checkpoints(
    flink: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running_job, "MAX_CHECKPOINT_WAIT_S", 2.0)
    program = sums(parallelism=1, rounds=3)  # the test's timeout is half of the interval
    results = flink(checkpoint_interval_ms=600_000).run(program)
    assert ordered(results) == ordered(ReferenceExecutor().run(program))


def test_failures_inside_the_loop_change_no_committed_row(flink: Any, tmp_path: Path) -> None:
    failures = {epoch: tmp_path / str(epoch) for epoch in (0, 7, 23, ROUNDS)}
    results = flink().run(sums(2, ROUNDS, failures, shuffle=True))
    assert all(marker.exists() for marker in failures.values())
    assert ordered(results) == ordered(ReferenceExecutor().run(sums(2, ROUNDS, shuffle=True)))


@pytest.mark.long
@pytest.mark.redis
def test_a_failure_may_flush_the_redis_wire(flink: Any, tmp_path: Path, redis_url: str) -> None:
    failures = {5: Flushing(tmp_path / "5", redis_url)}
    results = flink(wire=redis_url).run(sums(2, ROUNDS, failures, shuffle=True))
    assert ordered(results) == ordered(ReferenceExecutor().run(sums(2, ROUNDS, shuffle=True)))


class Flushing:
    """A marker that also empties the server."""

    def __init__(self, path: Path, url: str) -> None:
        self.path = path
        self.url = url

    def exists(self) -> bool:
        return self.path.exists()

    def touch(self) -> None:
        from paimon_features.testing.servers.resp import connect

        with connect(self.url) as connection:
            connection.request("FLUSHALL")
        self.path.touch()


class Forever(IterationListener):
    """Counts what goes round, for ever."""

    def open(self, ctx: Any) -> None:
        self.count = ctx.state.value("count")

    def process_element(self, value: int, ctx: Any, out: Any) -> None:
        self.count.update((self.count.value() or 0) + 1)
        if self.count.value() % 10 == 0:
            out.side("tens", self.count.value())
        out.collect(value + 1)


def counting(job: Any) -> Any:
    def body(variables: DataStreamList, _: DataStreamList) -> IterationBodyResult:
        went = variables.get(0).process(Forever())
        return IterationBodyResult(
            DataStreamList.of(went), DataStreamList.of(went.get_side_output("tens"))
        )

    start = job.from_collection([0], name="start", bounded=False)
    config = IterationConfig(wire="memory")
    outputs = iterate_unbounded_streams(DataStreamList.of(start), DataStreamList.of(), body, config)
    return outputs.get(0)


@pytest.mark.long
@pytest.mark.parametrize("into", ["files", "table"])
def test_an_unbounded_iteration_resumes_from_its_savepoint(
    flink: Any, tmp_path: Path, into: str
) -> None:
    files = FileOutput(tmp_path / "tens")
    lake = Lake.open(tmp_path / "lake", "features")
    lake.create(TableSpec("tens", {"count": pf.Int64}))
    sink = files if into == "files" else PaimonTable(lake, "tens")

    def build(job: Any) -> Any:
        tens = counting(job)
        return {"result": tens if into == "files" else tens.map(lambda ten: {"count": ten})}

    def committed() -> list[int]:
        if into == "files":
            return sorted(files.read())
        return sorted(read_arrow(lake, "tens")["count"].to_pylist())

    running = flink().execute_async(build, {"result": sink})
    await_true(lambda: len(committed()) >= 20)
    savepoint = running.stop(tmp_path / "savepoints")
    before = len(committed())
    again = flink(resume=savepoint).execute_async(build, {"result": sink})
    await_true(lambda: len(committed()) >= before + 20)
    again.cancel()
    tens = committed()
    assert tens == list(range(10, 10 * len(tens) + 10, 10)), "each count once, without a gap"


@pytest.mark.long
def test_a_savepoint_of_another_parallelism_is_rejected(flink: Any, tmp_path: Path) -> None:
    running = flink().execute_async(sums(2, 10_000_000), {"seen": FileOutput(tmp_path / "seen")})
    await_true(lambda: (running.status()[0].get("epoch") or 0) > 3)
    savepoint = running.stop(tmp_path / "savepoints")
    with pytest.raises(JobError, match="rescaled"):
        flink(resume=savepoint, restarts=1).execute(
            sums(3, 10_000_000), {"seen": FileOutput(tmp_path / "more")}
        )


def test_a_flink_stream_enters_and_its_end_is_detected_in_spite_of_a_failure(
    flink: Any, tmp_path: Path
) -> None:
    job = flink()
    numbers = job.env.from_source(
        NumberSequenceSource(1, 60), WatermarkStrategy.no_watermarks(), "numbers"
    ).map(lambda value: value * 2)
    numbers.set_parallelism(2)
    failures = {1: tmp_path / "failed"}

    def build(builder: Any) -> Any:
        def body(variables: DataStreamList, inputs: DataStreamList) -> IterationBodyResult:
            added = variables.get(0).connect(inputs.get(0)).process(Add(failures))
            return IterationBodyResult(
                DataStreamList.of(added),
                DataStreamList.of(added.get_side_output("seen")),
                added.flat_map(terminate_on_max_iter(3)),
            )

        start = builder.from_collection([0, 0], 2, "start")
        return iterate_bounded_streams_until_termination(
            DataStreamList.of(start),
            ReplayableDataStreamList.not_replay(builder.from_stream(numbers)),
            IterationConfig(wire="memory"),
            body,
        ).get(0)

    seen = job.run(build)
    assert failures[1].exists()
    assert sum(total for epoch, _, total in seen if epoch == 0) == 60 * 61
    assert restarting_sources(numbers) == []
    again = job.env.from_collection([1, 2]).map(lambda value: value)
    assert restarting_sources(again) == ["Collection Source"]


def test_the_subtasks_of_a_table_read_its_splits(flink: Any, tmp_path: Path) -> None:
    lake = Lake.open(tmp_path / "lake", "features")
    spec = TableSpec("numbers", {"n": pf.Int64, "part": pf.Int64}, partition_by=("part",))
    lake.create(spec)
    rows = {"n": list(range(300)), "part": [n % 3 for n in range(300)]}
    append_arrow(lake, "numbers", pa.table(rows))

    def build(job: Any) -> Any:
        blocks = job.from_table(lake, "numbers", ["n"], block_rows=40, parallelism=2)
        return blocks.map(lambda block: (block.num_rows, sum(block["n"].to_pylist())))

    found = flink().run(build)
    assert sum(total for _, total in found) == sum(range(300))
    assert max(number for number, _ in found) <= 40


@pytest.mark.long
def test_outputs_are_table_rows_exactly_once_in_spite_of_failures(
    flink: Any, tmp_path: Path
) -> None:
    lake = Lake.open(tmp_path / "lake", "features")
    columns = {
        "epoch": pf.Int64,
        "subtask": pf.Int32,
        "total": pf.Float32,
        "name": pf.String,
        "at": pf.Timestamp,
        "price": pf.Decimal(10, 2),
        "day": pf.Date,
        "model": pf.List(pf.Float64),
        "data": pf.Bytes,
        "good": pf.Bool,
    }
    lake.create(TableSpec("seen", columns))
    failures = {epoch: tmp_path / str(epoch) for epoch in (3, ROUNDS - 2)}

    def row(seen: tuple[Any, int, Any]) -> Any:
        epoch, subtask, total = seen
        if epoch == "end":  # many rows at once, with less columns
            return pa.table({"epoch": [-1, -2], "subtask": [subtask] * 2})
        return {
            "epoch": epoch,
            "subtask": np.int32(subtask),
            "total": total,
            "name": f"ä{epoch}",
            "at": datetime(2026, 1, 2, 3, 4, 5, 678_000),
            "price": Decimal(f"{epoch}.25"),
            "day": date(2026, 1, 2),
            "model": [epoch, None] if subtask else np.array([epoch, 0.5]),
            "data": bytes([subtask, 0, 255]),
            "good": None if subtask else True,
        }

    program = sums(2, ROUNDS, failures, shuffle=True)

    def build(job: Any) -> Any:
        return {"seen": program(job)["seen"].map(row)}

    flink().execute(build, {"seen": PaimonTable(lake, "seen")})
    assert all(marker.exists() for marker in failures.values())
    expected = ReferenceExecutor().run(sums(2, ROUNDS, shuffle=True))["seen"]
    made = pa.concat_tables(
        [TableRowConverter("seen", lake.schema("seen")).arrow(row(one)) for one in expected]
    )
    keys = [("epoch", "ascending"), ("subtask", "ascending")]
    found = read_arrow(lake, "seen").sort_by(keys)
    assert found.to_pylist() == made.sort_by(keys).to_pylist()
    assert holder_of(lake, "seen") is None
    assert max(snapshot.id for snapshot in snapshots(lake, "seen")) > 1


def test_a_table_with_another_writer_is_rejected(flink: Any, tmp_path: Path) -> None:
    lake = Lake.open(tmp_path / "lake", "features")
    lake.create(TableSpec("seen", {"epoch": pf.Int64}))
    sink = PaimonTable(lake, "seen")
    with (
        acquire(lake, "seen"),
        pytest.raises(OwnershipError, match="table 'seen' is owned by process"),
    ):
        flink().execute(sums(1, 3), {"seen": sink})
    with pytest.raises(DefinitionError, match="two outputs write the table"):
        flink().execute(lambda job: [job.from_collection([1])] * 2, lambda name: sink)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (3.5, "is a float; expected a mapping from columns"),
        ({"epoch": 1, "loss": 2.0}, "'loss'; available: epoch, name"),
        ({"epoch": "one"}, r"does not match its columns \(epoch int64, name string\)"),
    ],
)
def test_a_value_that_does_not_match_its_table_is_rejected(value: Any, message: str) -> None:
    rows = TableRowConverter("seen", pa.schema({"epoch": pa.int64(), "name": pa.string()}))
    with pytest.raises(JobError, match=message):
        rows.arrow(value)


@pytest.mark.long
def test_replayed_data_beyond_the_memory_limit_give_equal_results(
    flink: Any, tmp_path: Path
) -> None:
    """No replayed data in memory; the state is on disk."""
    marker = tmp_path / "failed"

    def build(job: Any) -> Any:
        blocks = [np.full(1000, number) for number in range(30)]
        data = job.from_collection(blocks, name="blocks")

        def failing_sum(block: Any) -> int:
            if block[0] == 7 and marker.parent.exists() and not marker.exists():
                marker.touch()
                raise RuntimeError("injected")
            return int(block.sum())

        def body(variables: DataStreamList, inputs: DataStreamList) -> IterationBodyResult:
            found = inputs.get(0).rebalance().map(failing_sum).set_parallelism(2)
            return IterationBodyResult(
                DataStreamList.of(variables.get(0)), DataStreamList.of(found)
            )

        start = job.from_collection([0])
        return iterate_bounded_streams_until_termination(
            DataStreamList.of(start),
            ReplayableDataStreamList.replay(data),
            IterationConfig(max_rounds=4, wire="memory"),
            body,
        ).get(0)

    rocksdb = {"state.backend.type": "rocksdb"}
    found = flink(replay_memory_mb=0, conf=rocksdb).run(build)
    assert sorted(found) == sorted([1000 * number for number in range(30)] * 4)
    assert marker.exists()


def test_a_record_too_large_for_java_is_an_error(flink: Any) -> None:
    def build(job: Any) -> Any:
        large = job.from_collection([1]).map(lambda _: bytes(200_000))
        return large.rebalance().map(len).set_parallelism(2)

    with pytest.raises(JobError, match=r"200,\d+ bytes in one piece exceed the limit of 100,000"):
        flink(restarts=1, max_record_bytes=100_000).run(build)
    with pytest.raises(JobError, match=r"values of the collection 'collection': .* in one piece"):
        flink(max_record_bytes=100).run(lambda job: job.from_collection(["x" * 200]))


def test_ctrl_c_in_a_call_to_java_is_raised_and_not_logged(
    flink: Any, caplog: pytest.LogCaptureFixture
) -> None:
    from pyflink.java_gateway import get_gateway

    flink()
    java = get_gateway().jvm.java.lang
    with pytest.raises(KeyboardInterrupt):
        interrupted(lambda: java.Thread.sleep(600_000), 0.3)
    assert "KeyboardInterrupt" not in caplog.text
    assert java.Math.abs(-1) == 1


def test_blas_has_one_thread_in_functions_that_run_inside_the_jvm(flink: Any) -> None:
    def build(job: Any) -> Any:
        return job.from_collection([0]).map(lambda _: os.environ["OPENBLAS_NUM_THREADS"])

    assert flink().run(build) == ["1"]


def test_separate_processes_need_a_redis_wire(tmp_path: Path) -> None:
    env = open_stream_environment(state_dir=tmp_path, workers=True)
    settings = IterationSettings(mode="process", wire="memory")
    job = IterationJob(env, settings=settings, state_dir=tmp_path)
    with pytest.raises(ConfigurationError, match="works within one process only"):
        job.run(sums(1, 2))


def test_a_detached_job_needs_a_cluster(flink: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="^detached"):
        flink().execute_async(sums(1, 3), {"seen": FileOutput(tmp_path)}, detached=True)


@pytest.mark.long
def test_a_stuck_job_fails_with_the_name_of_the_missing_subtask(flink: Any, tmp_path: Path) -> None:
    class Sleepy(IterationListener):
        def flat_map(self, value: int) -> list[int]:
            return []

        def on_epoch_watermark_incremented(self, epoch: int, ctx: Any, out: Any) -> None:
            if epoch == 2 and ctx.subtask == 1:
                time.sleep(9)
            out.collect(epoch)

    def build(job: Any) -> Any:
        def body(variables: DataStreamList, _: DataStreamList) -> IterationBodyResult:
            slept = variables.get(0).flat_map(Sleepy()).name("sleepy")
            return IterationBodyResult(DataStreamList.of(slept), DataStreamList.of(slept))

        return iterate_bounded_streams_until_termination(
            DataStreamList.of(job.from_collection(range(2), 2)),
            ReplayableDataStreamList.not_replay(),
            IterationConfig(wire="memory"),
            body,
        ).get(0)

    with pytest.raises(JobError, match=r"stuck.*epoch 2.*sleepy.*subtask 1"):
        flink(stuck_s=4.0).run(build)


def test_a_function_that_always_fails_fails_the_job_with_its_message(flink: Any) -> None:
    def build(job: Any) -> Any:
        return job.from_collection(["one"]).map(lambda word: int(word))

    # where it failed, too: a traceback does not come back from Flink
    where = r"ValueError: invalid literal .*\(test_job_flink.py, line \d+, in <lambda>; in stage"
    with pytest.raises(JobError, match=where):
        flink(restarts=1).run(build)


def test_sinks_that_do_not_match_the_outputs_are_rejected(flink: Any, tmp_path: Path) -> None:
    with pytest.raises(DefinitionError, match="outputs are seen, the sinks are for other"):
        flink().execute(sums(1, 3), {"other": FileOutput(tmp_path)})
