"""Arguments of another type are refused where they are given, not where they have an effect."""

from __future__ import annotations

import dataclasses
import datetime as dt
import math
import typing
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from paimon_features.core.errors import ConfigurationError, DefinitionError, JobError
from paimon_features.iteration import (
    DataStreamList,
    IterationBodyResult,
    IterationConfig,
    OperatorLifeCycle,
    ReferenceExecutor,
    ReplayableDataStreamList,
    algorithms,
    iterate_bounded_streams_until_termination,
    terminate_on_max_iter,
    terminate_on_max_iter_or_tol,
)
from paimon_features.iteration.algorithms import online_scaler
from paimon_features.iteration.config import ReplayMemory
from paimon_features.iteration.timers import TimerService

WRONG = ("2", 2.5, True, [1.5], {"a": 1}, object())


def dataclasses_of_the_package() -> list[type]:
    """The dataclasses whose arguments a user passes."""
    modules = (algorithms, online_scaler)
    found = [getattr(module, name) for module in modules for name in dir(module)]
    chosen = {each for each in found if isinstance(each, type) and dataclasses.is_dataclass(each)}
    own = [
        each
        for each in chosen
        if not getattr(each, "__abstractmethods__", None)
        and (each.__name__.endswith("Windows") or hasattr(each, "fit"))
    ]
    return [IterationConfig, ReplayMemory, *sorted(own, key=lambda each: each.__name__)]


def needed(kind: type) -> dict[str, Any]:
    """Valid values of the fields without a default."""
    return {
        field.name: 3
        for field in dataclasses.fields(kind)
        if field.default is field.default_factory is dataclasses.MISSING
    }


def accepts(hint: Any, value: Any) -> bool:
    """An independent reading of the annotations that occur here."""
    choices = typing.get_args(hint) if type(None) in typing.get_args(hint) else (hint,)
    for choice in choices:
        if choice is float and type(value) in (int, float):
            return True
        if choice in (int, str, bool) and type(value) is choice:
            return True
        if choice == str | tuple[str, ...] and type(value) is str:
            return True
    return False


def test_every_dataclass_of_the_package_refuses_arguments_of_another_type() -> None:
    tried = 0
    for kind in dataclasses_of_the_package():
        hints = typing.get_type_hints(kind)
        for field in dataclasses.fields(kind):
            for value in WRONG:
                if not field.init or accepts(hints[field.name], value):
                    continue
                tried += 1
                with pytest.raises(DefinitionError, match=field.name):
                    kind(**{**needed(kind), field.name: value})
    assert tried > 400


@pytest.mark.parametrize("value", ["5", 2.5, True, [1.5]])
def test_the_settings_of_a_job_refuse_arguments_of_another_type(value: Any) -> None:
    settings = pytest.importorskip("paimon_features.iteration.flink.job_settings").IterationSettings
    for name in ("checkpoint_interval_ms", "restarts", "bundle_ms", "replay_memory_mb"):
        with pytest.raises(ConfigurationError, match=name):
            settings(**{name: value})
    with pytest.raises(ConfigurationError, match="restarts"):
        settings(restarts=-1)


def test_outputs_and_jobs_refuse_arguments_of_another_type() -> None:
    flink = pytest.importorskip("paimon_features.iteration.flink")
    outputs = pytest.importorskip("paimon_features.iteration.flink.outputs")
    for make in (
        lambda: outputs.FileOutput("folder"),
        lambda: outputs.SinkOutput(3),
        lambda: flink.IterationJob(name=3),
        lambda: flink.IterationJob(parallelism=2.5),
        lambda: flink.IterationJob(settings={"mode": "thread"}),
    ):
        with pytest.raises(DefinitionError, match="expected"):
            make()


class Running:
    """Emits how many records this instance has seen."""

    def open(self, ctx: Any) -> None:
        self.n = ctx.state.value("n")

    def process_element(self, value: Any, ctx: Any, out: Any) -> None:
        self.n.update(self.n.value(0) + 1)
        out.collect(self.n.value())


def counts(life_cycle: Any) -> Any:
    def body(variables: DataStreamList, data: DataStreamList) -> IterationBodyResult:
        less = variables.get(0).filter(lambda value: value > 0).map(lambda value: value - 1)
        seen = variables.get(0).process(Running())
        return IterationBodyResult(DataStreamList.of(less), DataStreamList.of(seen))

    def build(job: Any) -> Any:
        return iterate_bounded_streams_until_termination(
            DataStreamList.of(job.from_collection([2])),
            ReplayableDataStreamList.replay(),
            IterationConfig(lifecycle=life_cycle),
            body,
        ).get(0)

    return ReferenceExecutor().run(build)


@pytest.mark.parametrize("life_cycle", list(OperatorLifeCycle))
def test_a_life_cycle_as_text_is_the_life_cycle(life_cycle: OperatorLifeCycle) -> None:
    assert IterationConfig(lifecycle=life_cycle.value).lifecycle is life_cycle  # type: ignore[arg-type]
    assert counts(life_cycle.value) == counts(life_cycle)
    assert counts("all-round") == [1, 2, 3]
    assert counts("per-round") == [1, 1, 1]


@pytest.mark.parametrize("given", ["PER_ROUND", "per_round", "", None, 1, OperatorLifeCycle])
def test_an_unknown_life_cycle_is_refused_with_the_known_ones(given: Any) -> None:
    with pytest.raises(DefinitionError, match=r"^iteration-config: lifecycle=.*'per-round'"):
        IterationConfig(lifecycle=given)


def test_integers_and_floats_of_numpy_are_numbers() -> None:
    assert type(IterationConfig(max_rounds=np.int64(3)).max_rounds) is int  # type: ignore[arg-type]
    kmeans = algorithms.KMeans(k=np.int32(3))  # type: ignore[arg-type]
    assert kmeans == algorithms.KMeans(k=3)
    assert type(kmeans.k) is int
    assert algorithms.KMeans(features_col=["a", "b"]).features_col == ("a", "b")  # type: ignore[arg-type]
    assert terminate_on_max_iter(np.int64(3)).max_iter == 3  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "build",
    [
        lambda job: job.from_collection([1], parallelism=1.5),
        lambda job: job.from_collection([1], parallelism="2"),
        lambda job: job.from_collection([1], bounded="no"),
        lambda job: job.from_collection([1], name=3),
        lambda job: job.from_collection([1]).map(str).set_parallelism(True),
        lambda job: job.from_collection([1]).map(str).set_parallelism(2.0),
        lambda job: job.from_collection([1]).map(str).name(None),
        lambda job: job.from_collection([1]).map(str).get_side_output(1),
        lambda job: job.from_collection([1]).key_by("user"),
        lambda job: job.from_collection([1]).partition_custom(1, int),
        lambda job: job.from_collection([1]).partition_custom(max, "user"),
        lambda job: job.from_collection([1]).count_window_all(2.5, sum),
        lambda job: terminate_on_max_iter(2.5),  # type: ignore[arg-type]
        lambda job: terminate_on_max_iter_or_tol("3", 0.1),  # type: ignore[arg-type]
        lambda job: terminate_on_max_iter_or_tol(3, "0.1"),  # type: ignore[arg-type]
        lambda job: terminate_on_max_iter_or_tol(3, math.nan),
        lambda job: ReferenceExecutor(checkpoint_every=0.5),  # type: ignore[arg-type]
        lambda job: ReferenceExecutor(max_steps="9"),  # type: ignore[arg-type]
        lambda job: algorithms.StandardScalerStage().fit([[1.0]], parallelism=1.5),  # type: ignore[arg-type]
        lambda job: TimerService({}, int).register_event_time_timer(2.5),  # type: ignore[arg-type]
        lambda job: algorithms.ImputerStage(input_cols="price"),  # type: ignore[arg-type]
    ],
)
def test_setters_and_functions_refuse_arguments_of_another_type(
    build: Callable[[Any], Any],
) -> None:
    with pytest.raises(DefinitionError, match="expected"):
        ReferenceExecutor().run(build)


KEYS = [[1], {"a": 1}, {1}, (1, [2]), np.array([1, 2]), dt.date(2026, 1, 1), math.nan, object()]


@pytest.mark.parametrize("parallelism", [1, 2])
@pytest.mark.parametrize("key", KEYS, ids=lambda key: type(key).__name__)
def test_what_cannot_be_a_key_is_an_error_at_every_parallelism(key: Any, parallelism: int) -> None:
    """Also for functions that use no state."""

    def without_state(job: Any) -> Any:
        keyed = job.from_collection([1]).key_by(lambda value: key)
        return keyed.map(lambda value: value).set_parallelism(parallelism)

    def at_the_end(job: Any) -> Any:
        keyed = job.from_collection([1]).key_by(lambda value: key)
        return keyed.window_at_end(lambda key, values: values).set_parallelism(parallelism)

    def joined(job: Any) -> Any:
        one, two = job.from_collection([1]), job.from_collection([1])
        both = one.join(two).where(lambda value: key).equal_to(lambda value: key)
        return both.apply(lambda left, right: left).set_parallelism(parallelism)

    for build in (without_state, at_the_end, joined):
        with pytest.raises(JobError, match="a key is"):
            ReferenceExecutor().run(build)


@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_partitioner_that_names_no_subtask_is_an_error_at_every_parallelism(
    parallelism: int,
) -> None:
    def build(job: Any) -> Any:
        stream = job.from_collection([1]).partition_custom(lambda *_: 7, lambda value: value)
        return stream.map(lambda value: value).set_parallelism(parallelism)

    with pytest.raises(JobError, match="returned subtask 7; expected an integer from 0 to"):
        ReferenceExecutor().run(build)


def rounds_with(loss: float) -> int:
    """The records of a program whose loss is always the same, at most four rounds."""

    def body(variables: DataStreamList, data: DataStreamList) -> IterationBodyResult:
        same = variables.get(0).map(lambda value: value)
        until = same.map(lambda value: loss).flat_map(terminate_on_max_iter_or_tol(4, 0.1))
        return IterationBodyResult(
            DataStreamList.of(same), DataStreamList.of(variables.get(0).map(str)), until
        )

    def build(job: Any) -> Any:
        return iterate_bounded_streams_until_termination(
            DataStreamList.of(job.from_collection([1])),
            ReplayableDataStreamList.replay(),
            IterationConfig(),
            body,
        ).get(0)

    return len(ReferenceExecutor().run(build))


@pytest.mark.parametrize("loss", [math.nan, np.float32("nan"), math.inf])
def test_a_loss_that_is_not_a_number_has_not_converged(loss: float) -> None:
    assert rounds_with(0.0) < rounds_with(1.0) == rounds_with(loss)
