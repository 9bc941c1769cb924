"""The reference executor itself, and what it shows of the exactly-once protocol."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import paimon_features as pf
from paimon_features.core.errors import DefinitionError, JobError
from paimon_features.iteration import (
    IterationListener,
    ReferenceExecutor,
    forward_inputs_of_last_round,
    terminate_on_max_iter_or_tol,
)
from paimon_features.iteration.operators import tail
from paimon_features.iteration.reference.attempt import InjectedFailure
from paimon_features.iteration.sources import split_batches
from paimon_features.lake import Lake, TableSpec, append_arrow
from paimon_features.testing.sizes import every_seed
from tests.iteration.loops import bounded, loop
from tests.iteration.test_naive_differential import check, some_program
from tests.iteration.translation import builder


def same(value: Any) -> Any:
    return value


def test_results_have_the_shape_that_build_returned() -> None:
    def numbers(job: Any) -> Any:
        return job.from_collection([1, 2])

    executor = ReferenceExecutor()
    assert executor.run(numbers) == [1, 2]
    assert executor.run(lambda job: [numbers(job), numbers(job).map(str)]) == [[1, 2], ["1", "2"]]
    assert executor.run(lambda job: {"a": numbers(job)}) == {"a": [1, 2]}
    with pytest.raises(DefinitionError, match="build-result: build returned a int as 'a'"):
        executor.run(lambda job: {"a": 1})


def test_a_seed_determines_the_order_of_results() -> None:
    def build(job: Any) -> Any:
        return job.from_collection(range(40), parallelism=4)

    orders = [ReferenceExecutor(seed).run(build) for seed in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]


def forever(job: Any) -> Any:
    def body(variables: Any, data: Any) -> Any:
        kept = variables.get(0).process(Keep())
        return [kept], {"kept": kept}, None

    return bounded([job.from_collection([1])], body)


class Keep(IterationListener):
    """Emits one value when a round is closed."""

    def process_element(self, value: Any, ctx: Any, out: Any) -> None:
        pass

    def on_epoch_watermark_incremented(self, epoch: int, ctx: Any, out: Any) -> None:
        out.collect(epoch)


def test_a_program_that_does_not_end_is_an_error_that_says_how_far_it_came() -> None:
    with pytest.raises(JobError, match=r"did not end within 300 steps; iteration 0: .*'epoch'"):
        ReferenceExecutor(max_steps=300).run(forever)


def test_an_error_of_a_function_says_where_it_happened() -> None:
    def build(job: Any) -> Any:
        return job.from_collection([1, 0], name="divisors").map(lambda value: 1 // value)

    with pytest.raises(ZeroDivisionError) as error:
        ReferenceExecutor().run(build)
    assert "in stage 'divisors > map > result', subtask 0" in error.value.__notes__[0]


@pytest.mark.parametrize("small", [0, 60])
@every_seed(25)
def test_feedback_that_is_too_large_for_a_snapshot_is_not_lost(
    seed: int, small: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail, "_SMALL_BYTES", small)
    rng = random.Random(f"large {seed}")
    program, right = some_program(rng)
    executor = ReferenceExecutor(
        rng.randrange(2**32), checkpoint_every=15, random_failures=3, lose_wire=seed % 2 == 0
    )
    check(program, right, executor.run(builder(program)))


def test_a_failure_at_any_step_neither_repeats_nor_loses_results() -> None:
    def build(job: Any) -> Any:
        def body(variables: Any, data: Any) -> Any:
            kept = variables.get(0).broadcast().connect(data.get(0)).process(_Sum())
            return [kept.map(same).set_parallelism(1)], {"kept": kept}, None

        data = job.from_collection(range(10), parallelism=2)
        return bounded([job.from_collection([1])], body, replay=[data], max_rounds=3)

    executor = ReferenceExecutor(5, checkpoint_every=12)
    right = executor.run(build)["kept"]
    assert len(right) == 6
    for step in range(executor.steps):
        failing = ReferenceExecutor(5, checkpoint_every=12, failures=[step], lose_wire=True)
        assert sorted(failing.run(build)["kept"]) == sorted(right), f"failure at step {step}"
        assert failing.attempts == 2


class _Sum(IterationListener):
    """Sums of both inputs, given when a round is closed."""

    def process_element1(self, value: int, ctx: Any, out: Any) -> None:
        total = ctx.state.map("totals")
        total.put(ctx.epoch, total.get(ctx.epoch, 0) + value)

    process_element2 = process_element1

    def on_epoch_watermark_incremented(self, epoch: int, ctx: Any, out: Any) -> None:
        out.collect(ctx.state.map("totals").get(epoch, 0))


def test_a_function_may_ask_for_a_failure() -> None:
    calls = []

    def once(value: int) -> int:
        calls.append(value)
        if calls == [1, 2]:
            raise InjectedFailure
        return value

    executor = ReferenceExecutor()
    assert executor.run(lambda job: job.from_collection([1, 2, 3]).map(once)) == [1, 2, 3]
    assert executor.attempts == 2
    assert calls == [1, 2, 1, 2, 3]


@pytest.mark.parametrize(("losses", "rounds"), [([9, 8, 0.5, 7], 3), ([9, 9, 9, 9, 9], 4)])
def test_the_status_contains_the_epoch_and_the_latest_loss(
    losses: list[float], rounds: int
) -> None:
    class Losses(IterationListener):
        def process_element(self, value: Any, ctx: Any, out: Any) -> None:
            pass

        def on_epoch_watermark_incremented(self, epoch: int, ctx: Any, out: Any) -> None:
            out.collect(losses[epoch])

    def body(variables: Any, data: Any) -> Any:
        loss = variables.get(0).process(Losses())
        final = loss.flat_map(forward_inputs_of_last_round())
        criteria = loss.flat_map(terminate_on_max_iter_or_tol(4, tol=1.0))
        return [loss], {"final": final}, criteria

    for executor in (ReferenceExecutor(), ReferenceExecutor(3)):
        # of the last round that got a watermark, as nothing came in the one that ended it
        assert executor.run(loop(body, [[1]]))["final"] == [losses[rounds - 1]]
        status = executor.wires[0].status
        assert (status["epoch"], status["state"]) == (rounds, "finished")
        assert status["loss"] == [loss for loss in losses[: min(rounds, 3)] if loss > 1][-1]


def test_a_table_is_read_in_blocks_by_all_subtasks(tmp_path: Path) -> None:
    lake = Lake.open(tmp_path / "lake", "features")
    lake.create(TableSpec("numbers", {"n": pf.Int64, "part": pf.Int64}, partition_by=("part",)))
    append_arrow(lake, "numbers", pa.table({"n": range(300), "part": [n % 3 for n in range(300)]}))

    def build(job: Any) -> Any:
        stream = job.from_table(lake, "numbers", ["n"], block_rows=40, parallelism=2)
        return stream.process(_Block())

    found = ReferenceExecutor().run(build)
    assert {who for who, _ in found} == {0, 1}
    assert max(len(numbers) for _, numbers in found) == 40
    assert sorted(number for _, numbers in found for number in numbers) == [*range(300)]


class _Block:
    def process_element(self, value: pa.RecordBatch, ctx: Any, out: Any) -> None:
        out.collect((ctx.subtask, value["n"].to_pylist()))


def test_a_block_of_a_large_batch_has_buffers_of_its_own() -> None:
    batch = pa.record_batch({"a": pa.array(range(10_000)), "b": pa.array(["x"] * 10_000)})
    cut = [block for (block,) in split_batches([batch], 1000)]
    assert pa.Table.from_batches(cut).equals(pa.Table.from_batches([batch]))
    assert all(block.get_total_buffer_size() < batch.nbytes / 5 for block in cut)
