"""What of S1 to S31 can be seen on Flink: parallelism 4, a checkpoint every 100 ms."""

from __future__ import annotations

from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

from paimon_features.core.errors import DefinitionError
from paimon_features.iteration import DataStreamList, IterationListener, for_each_round
from tests.iteration import loops, probes
from tests.iteration.loops import bounded
from tests.iteration.probes import Event, Hold, Probe, epochs, of_subtask, values

pytest.importorskip("pyflink", reason="pip install 'paimon-features[flink]'")

import cloudpickle

from paimon_features.iteration.flink import IterationJob, IterationSettings, open_stream_environment

pytestmark = pytest.mark.flink

# where the job runs there are no tests
for module in (loops, probes):
    cloudpickle.register_pickle_by_value(module)

ROUNDS = 5
VARIABLES = [*range(1, 9)]
REPLAYED = [*range(101, 107)]
ONCE = [*range(201, 205)]
END = 2**31 - 2


class Farewell(IterationListener):
    """Emits at the end, and reports records that return."""

    def process_element(self, value: Any, ctx: Any, out: Any) -> None:
        if value < 0:
            out.side("heard", value)

    def on_iteration_terminated(self, ctx: Any, out: Any) -> None:
        out.collect(-1)


class Closing:
    """Outside of the iteration: what came, and the end of the input."""

    def process_element(self, value: Any, ctx: Any, out: Any) -> None:
        out.collect(value)

    def end_input(self, ctx: Any, out: Any) -> None:
        out.collect("ended")


def everything(job: Any) -> Any:
    """One loop with replayed and other data, a part per round, and operators outside."""
    variable = job.from_collection(VARIABLES, parallelism=4)
    replayed = job.from_collection(REPLAYED, parallelism=2)
    once = job.from_collection(ONCE, parallelism=1)

    def part(inputs: Any) -> Any:
        return DataStreamList.of(inputs.get(0).process(Probe()))

    def body(given: Any, data: Any) -> Any:
        held = given.get(0).process(Hold())
        far = held.rebalance().process(Probe()).set_parallelism(3)
        again = data.get(0).process(Probe()).set_parallelism(4)
        only = data.get(1).process(Probe()).set_parallelism(4)
        every = given.get(0).union(data.get(0), data.get(1)).rebalance().process(Probe())
        inside = for_each_round(given, part).get(0)
        last = given.get(0).process(Farewell())
        logs = {
            name: stream.get_side_output("log")
            for name, stream in {
                "held": held,
                "far": far,
                "replayed": again,
                "once": only,
                "every": every,
                "part": inside,
            }.items()
        }
        outputs = {**logs, "last": last, "heard": last.get_side_output("heard"), "values": held}
        feedback = held.union(last).map(_ten_more).set_parallelism(4)
        return [feedback], outputs, None

    outputs = bounded([variable], body, replay=[replayed], once=[once], max_rounds=ROUNDS)
    inside = outputs.pop("values")
    after = inside.rebalance().process(Closing()).set_parallelism(3)
    return {**outputs, "after": after}


def _ten_more(value: int) -> int:
    return value + 10


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> IterationJob:
    state_dir = tmp_path_factory.mktemp("semantics")
    env = open_stream_environment(state_dir=state_dir, workers=True)
    settings = IterationSettings(
        mode="thread", wire="memory", checkpoint_interval_ms=100, stuck_s=60.0
    )
    return IterationJob(env, settings=settings, state_dir=state_dir)


@pytest.fixture(scope="module")
def found(job: IterationJob) -> dict[str, list[Any]]:
    """The outputs; of each subtask the log of an instance in the order in which it was written."""
    found: dict[str, list[Any]] = job.run(everything)
    for name in ("held", "far", "replayed", "once", "every"):
        found[name].sort(key=attrgetter("subtask", "instance"))
    return found


def test_records_have_the_epoch_of_their_round(found: dict[str, list[Event]]) -> None:
    """S1, S2, S3, S4, S10: and all of them come, each once."""
    for epoch in range(ROUNDS + 1):
        now = [value + 10 * epoch for value in VARIABLES]
        assert values(found["held"], epoch) == now
        if epoch < ROUNDS:
            assert values(found["far"], epoch) == now
            others = [*REPLAYED, *(ONCE if epoch == 0 else ())]
            assert values(found["every"], epoch) == sorted([*now, *others])
    # what is emitted at the end is of no round any more
    assert values(found["far"], END) == [value + 10 * ROUNDS for value in VARIABLES]


def test_watermarks_are_unique_ordered_and_follow_the_records_of_their_epoch(
    found: dict[str, list[Event]],
) -> None:
    """S6, S7, S8, S15: n rounds are n callbacks, in all subtasks, also those without records."""
    for name, width in {"held": 4, "far": 3, "replayed": 4, "every": 4}.items():
        for subtask in range(width):
            log = of_subtask(found[name], subtask)
            assert epochs(log, "watermark") == [*range(ROUNDS)], name
            closed = -1
            for event in log:
                assert event.kind != "record" or event.epoch > closed, name
                closed = event.epoch if event.kind == "watermark" else closed


def test_data_arrive_once_or_in_every_round_except_the_last(found: dict[str, list[Event]]) -> None:
    """S9, S21, S22."""
    for epoch in range(ROUNDS + 1):
        assert values(found["replayed"], epoch) == (REPLAYED if epoch < ROUNDS else [])
        assert values(found["once"], epoch) == (ONCE if epoch == 0 else [])
    assert epochs(found["once"], "watermark") == []
    assert len(epochs(found["once"], "end")) == 4


def test_functions_end_once_and_last(found: dict[str, list[Event]]) -> None:
    """S15, S23."""
    for name, width in {"held": 4, "far": 3, "replayed": 4, "once": 4, "every": 4}.items():
        for subtask in range(width):
            log = of_subtask(found[name], subtask)
            assert [event.kind for event in log[-2:]] == ["end", "end_input"], name
            assert [event.instance for event in log] == [*range(len(log))], name


def test_a_part_has_an_instance_for_each_round(found: dict[str, list[Event]]) -> None:
    """S24, S25."""
    for epoch in range(ROUNDS + 1):
        for subtask in range(4):
            log = [event for event in of_subtask(found["part"], subtask) if event.epoch == epoch]
            log.sort(key=attrgetter("instance"))
            end = "watermark" if epoch < ROUNDS else "end"
            assert [event.kind for event in log] == ["record"] * 2 + [end, "end_input"]
            assert [event.instance for event in log] == [0, 1, 2, 3]


def test_records_emitted_at_the_end_are_only_in_the_outputs(found: dict[str, list[Any]]) -> None:
    """S16, S20: and what lies outside ends once per subtask, after it."""
    assert found["last"] == [-1] * 4
    assert found["heard"] == []
    after = found["after"]
    assert after.count("ended") == 3
    numbers = sorted(value for value in after if value != "ended")
    assert numbers == sorted(
        value + 10 * epoch for value in VARIABLES for epoch in range(ROUNDS + 1)
    )


def test_a_batch_environment_is_rejected(tmp_path: Path) -> None:
    """S31."""
    from pyflink.datastream import RuntimeExecutionMode

    env = open_stream_environment(state_dir=tmp_path, workers=True)
    env.set_runtime_mode(RuntimeExecutionMode.BATCH)
    with pytest.raises(DefinitionError, match="^batch-mode: "):
        IterationJob(env, state_dir=tmp_path)
