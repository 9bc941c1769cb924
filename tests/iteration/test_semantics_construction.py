"""S31: what may not be built says which rule it breaks, before anything runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from paimon_features.core.errors import DefinitionError
from paimon_features.iteration import (
    DataStreamList,
    IterationBody,
    IterationBodyResult,
    IterationConfig,
    ReferenceExecutor,
    ReplayableDataStreamList,
    for_each_round,
    iterate_bounded_streams_until_termination,
    iterate_unbounded_streams,
)

Body = Callable[[DataStreamList, DataStreamList], IterationBodyResult]


def result(feedback: list[Any], outputs: list[Any], criteria: Any = None) -> IterationBodyResult:
    return IterationBodyResult(DataStreamList.of(*feedback), DataStreamList.of(*outputs), criteria)


def refuses(rule: str, build: Callable[[Any], Any]) -> None:
    """The rule's short name begins the message, and nothing has run."""
    with pytest.raises(DefinitionError, match=rf"^{rule}: .{{20}}"):
        ReferenceExecutor().run(build)


def one_variable(body: Callable[[Any, Any], Any], bounded: bool = True) -> Callable[[Any], Any]:
    """A program around a body of one variable stream."""

    def build(job: Any) -> Any:
        variable = DataStreamList.of(job.from_collection([1], parallelism=2))
        if not bounded:
            return iterate_unbounded_streams(variable, DataStreamList.of(), body).get(0)
        data = ReplayableDataStreamList.not_replay()
        config = IterationConfig(wire="memory")
        return iterate_bounded_streams_until_termination(variable, data, config, body).get(0)

    return build


@pytest.mark.parametrize("bounded", [True, False])
def test_an_iteration_has_a_variable_stream(bounded: bool) -> None:
    """S31."""

    def body(variables: Any, data: Any) -> Any:
        return result([], [data.get(0)])

    def build(job: Any) -> Any:
        stream = job.from_collection([1])
        none = DataStreamList.of()
        if not bounded:
            return iterate_unbounded_streams(none, DataStreamList.of(stream), body).get(0)
        data = ReplayableDataStreamList.replay(stream)
        return iterate_bounded_streams_until_termination(
            none, data, IterationConfig(wire="memory"), body
        ).get(0)

    refuses("no-variable-stream", build)


@pytest.mark.parametrize("many", [0, 2])
def test_each_variable_has_one_feedback(many: int) -> None:
    """S31."""

    def body(variables: Any, data: Any) -> Any:
        stream = variables.get(0)
        return result([stream.map(int) for _ in range(many)], [stream.map(int)])

    refuses("feedback-count", one_variable(body))


@pytest.mark.parametrize("parallelism", [1, 3])
def test_feedback_is_as_parallel_as_its_variable(parallelism: int) -> None:
    """S31."""

    def body(variables: Any, data: Any) -> Any:
        stream = variables.get(0).map(int)
        return result([stream.map(int).set_parallelism(parallelism)], [stream])

    refuses("parallelism-mismatch", one_variable(body))


def test_feedback_is_no_bare_union() -> None:
    """S31: a map after it is right."""

    def feedback(variables: Any, data: Any) -> Any:
        stream = variables.get(0).map(int)
        return result([stream.union(stream.map(int))], [stream])

    refuses("bare-union", one_variable(feedback))

    def criteria(variables: Any, data: Any) -> Any:
        stream = variables.get(0).map(int)
        return result([stream], [stream], stream.union(stream.map(int)))

    refuses("bare-union", one_variable(criteria))


def test_a_body_has_no_source() -> None:
    """S31."""

    def build(job: Any) -> Any:
        def body(variables: Any, data: Any) -> Any:
            job.from_collection([2])
            stream = variables.get(0).map(int)
            return result([stream], [stream])

        return one_variable(body)(job)

    refuses("source-in-body", build)


@pytest.mark.parametrize("method", ["sink_to", "add_sink", "print"])
def test_a_body_has_no_sink(method: str) -> None:
    """S31."""

    def body(variables: Any, data: Any) -> Any:
        stream = variables.get(0).map(int)
        getattr(stream, method)()
        return result([stream], [stream])

    refuses("sink-in-body", one_variable(body))


def test_a_body_assigns_no_timestamps() -> None:
    """S31."""

    def body(variables: Any, data: Any) -> Any:
        stream = variables.get(0).assign_timestamps_and_watermarks(None)
        return result([stream], [stream])

    refuses("timestamps-in-body", one_variable(body))


@pytest.mark.parametrize("bounded", [True, False])
def test_a_body_has_no_iteration(bounded: bool) -> None:
    """S31."""

    def inner(variables: Any, data: Any) -> Any:
        stream = variables.get(0).map(int)
        return result([stream], [stream])

    def body(variables: Any, data: Any) -> Any:
        if bounded:
            made = iterate_bounded_streams_until_termination(
                variables, ReplayableDataStreamList.replay(), IterationConfig(wire="memory"), inner
            )
        else:
            made = iterate_unbounded_streams(variables, DataStreamList.of(), inner)
        return result([made.get(0)], [made.get(0)])

    refuses("nested-iteration", one_variable(body))

    def loop(variables: Any, data: Any) -> Any:
        stream = variables.get(0).iterate()
        return result([stream], [stream])

    refuses("nested-iteration", one_variable(loop))


def test_an_outer_stream_can_enter_only_as_variable_or_data() -> None:
    """S31: however it would be used, also what leaves the body otherwise than by its result."""

    def with_body(use: Callable[[Any, Any], Any]) -> Callable[[Any], Any]:
        def build(job: Any) -> Any:
            outside = job.from_collection([1], parallelism=2)

            def body(variables: Any, data: Any) -> Any:
                stream = use(variables.get(0), outside)
                return result([stream], [stream])

            return one_variable(body)(job)

        return build

    uses: list[Callable[[Any, Any], Any]] = [
        lambda inside, outside: outside,
        lambda inside, outside: outside.map(int),
        lambda inside, outside: inside.union(outside).map(int),
        lambda inside, outside: outside.union(inside).map(int),
        lambda inside, outside: inside.connect(outside).map(Both()),
        lambda inside, outside: outside.key_by(int).map(int),
    ]
    for use in uses:
        refuses("captured-stream", with_body(use))

    def leaked(job: Any) -> Any:
        kept = []

        def body(variables: Any, data: Any) -> Any:
            stream = variables.get(0).map(int)
            kept.append(stream)
            return result([stream], [stream])

        one_variable(body)(job)
        return kept[0].map(int)

    refuses("captured-stream", leaked)

    def returned(job: Any) -> Any:
        kept = []

        def body(variables: Any, data: Any) -> Any:
            kept.append(variables.get(0).map(int))
            return result([kept[0]], [kept[0]])

        one_variable(body)(job)
        return kept[0]

    refuses("captured-stream", returned)

    def criteria(job: Any) -> Any:
        outside = job.from_collection([1], parallelism=2)

        def body(variables: Any, data: Any) -> Any:
            stream = variables.get(0).map(int)
            return result([stream], [stream], outside)

        return one_variable(body)(job)

    refuses("captured-stream", criteria)

    def output(job: Any) -> Any:
        outside = job.from_collection([1], parallelism=2)

        def body(variables: Any, data: Any) -> Any:
            return result([variables.get(0).map(int)], [outside])

        return one_variable(body)(job)

    refuses("captured-stream", output)


def test_all_streams_of_a_program_come_from_its_own_job() -> None:
    """S31: wherever a stream of another job is used."""

    def identity(variables: Any, data: Any) -> Any:
        stream = variables.get(0).map(int)
        return result([stream], [stream])

    foreign: list[Any] = []

    def keep(job: Any) -> Any:
        foreign.append(job.from_collection([1], parallelism=2))
        return foreign[0].map(int)

    ReferenceExecutor().run(keep)

    def loop(variables: Any, data: Any = (), body: Any = identity) -> Any:
        given = ReplayableDataStreamList.not_replay(*data)
        return iterate_bounded_streams_until_termination(
            DataStreamList.of(*variables), given, IterationConfig(wire="memory"), body
        ).get(0)

    def own(job: Any) -> Any:
        return job.from_collection([1], parallelism=2)

    def in_part(variables: Any, data: Any) -> Any:
        part = for_each_round(variables, lambda _: DataStreamList.of(*foreign)).get(0)
        return result([part], [part])

    def given(variables: Any, data: Any) -> Any:
        inputs = DataStreamList.of(variables.get(0), *foreign)
        part = for_each_round(inputs, lambda inputs: inputs).get(0)
        return result([part], [part])

    builds: list[Callable[[Any], Any]] = [
        lambda job: loop([own(job), *foreign]),
        lambda job: loop([own(job)], foreign),
        lambda job: loop([own(job)], body=lambda v, d: result(foreign, [v.get(0).map(int)])),
        lambda job: loop([own(job)], body=lambda v, d: result([v.get(0).map(int)], foreign)),
        lambda job: loop([own(job)], body=in_part),
        lambda job: loop([own(job)], body=given),
    ]
    for build in builds:
        with pytest.raises(DefinitionError, match="^captured-stream: streams of two jobs"):
            ReferenceExecutor().run(build)


def test_a_stream_that_left_a_body_enters_no_other_iteration() -> None:
    """S31."""

    def again(job: Any) -> Any:
        kept: list[Any] = []

        def body(variables: Any, data: Any) -> Any:
            kept.append(variables.get(0).map(int))
            return result([kept[0]], [kept[0]])

        one_variable(body)(job)
        return iterate_bounded_streams_until_termination(
            DataStreamList.of(*kept),
            ReplayableDataStreamList.not_replay(),
            IterationConfig(wire="memory"),
            body,
        ).get(0)

    refuses("captured-stream", again)


class Both:
    def map1(self, value: int) -> int:
        return value

    map2 = map1


def test_a_part_for_each_round_keeps_to_the_streams_it_is_given() -> None:
    """S31: what is captured in it, and what leaks from it."""

    def captured(variables: Any, data: Any) -> Any:
        stream = variables.get(0).map(int)
        part = for_each_round(variables, lambda _: DataStreamList.of(stream.map(int)))
        return result([part.get(0)], [part.get(0)])

    refuses("captured-stream", one_variable(captured))

    def leaked(variables: Any, data: Any) -> Any:
        kept = []

        def part(inputs: Any) -> Any:
            kept.append(inputs.get(0).map(int))
            return DataStreamList.of(kept[0])

        made = for_each_round(variables, part).get(0)
        return result([made], [kept[0].map(int)])

    refuses("captured-stream", one_variable(leaked))

    def returned(variables: Any, data: Any) -> Any:
        stream = variables.get(0).map(int)
        part = for_each_round(variables, lambda _: DataStreamList.of(stream))
        return result([part.get(0)], [part.get(0)])

    refuses("captured-stream", one_variable(returned))

    def entering(job: Any) -> Any:
        outside = job.from_collection([1], parallelism=2)

        def body(variables: Any, data: Any) -> Any:
            part = for_each_round(DataStreamList.of(outside), lambda inputs: inputs).get(0)
            return result([part], [part])

        return one_variable(body)(job)

    refuses("captured-stream", entering)


def test_for_each_round_is_a_part_of_a_body() -> None:
    """S31."""

    def build(job: Any) -> Any:
        stream = DataStreamList.of(job.from_collection([1]))
        return for_each_round(stream, lambda inputs: DataStreamList.of(inputs.get(0).map(int)))

    refuses("for-each-round-outside", build)


def test_for_each_round_has_an_input() -> None:
    """S31."""

    def body(variables: Any, data: Any) -> Any:
        part = for_each_round(DataStreamList.of(), lambda inputs: inputs)
        return result([variables.get(0).map(int)], [part.get(0)])

    refuses("empty-for-each-round", one_variable(body))


def test_an_unbounded_iteration_has_no_criteria() -> None:
    """S19, S31: and no maximum of rounds, which is the same."""

    def body(variables: Any, data: Any) -> Any:
        stream = variables.get(0).map(int)
        return result([stream], [stream], stream.map(int))

    refuses("criteria-unbounded", one_variable(body, bounded=False))

    def build(job: Any) -> Any:
        variable = DataStreamList.of(job.from_collection([1]))

        def plain(variables: Any, data: Any) -> Any:
            stream = variables.get(0).map(int)
            return result([stream], [stream])

        config = IterationConfig(wire="memory", max_rounds=3)
        return iterate_unbounded_streams(variable, DataStreamList.of(), plain, config).get(0)

    refuses("criteria-unbounded", build)


def test_a_bounded_iteration_has_bounded_streams() -> None:
    """S31: what never ends cannot be replayed, nor give a first round."""

    def build(job: Any) -> Any:
        variable = DataStreamList.of(job.from_collection([1], bounded=False))

        def body(variables: Any, data: Any) -> Any:
            stream = variables.get(0).map(int)
            return result([stream], [stream])

        return iterate_bounded_streams_until_termination(
            variable, ReplayableDataStreamList.replay(), IterationConfig(wire="memory"), body
        ).get(0)

    refuses("unbounded-stream", build)


def test_a_body_may_be_a_class_or_a_callable() -> None:
    """Section 3.1."""

    class Plain(IterationBody):
        def process(self, variables: Any, data: Any) -> IterationBodyResult:
            stream = variables.get(0).map(int)
            return result([stream.filter(_never)], [stream])

    for body in (Plain(), Plain().process):
        assert ReferenceExecutor().run(one_variable(body)) == [1]


def _never(value: int) -> bool:
    return False


def test_an_invalid_result_of_a_body_is_rejected() -> None:
    """A body that forgets its ``return`` must not end in an attribute error."""
    refuses("body-result", one_variable(lambda variables, data: None))


STREAMS = "^streams: .*"


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda job: loop(job, variables=job.from_collection([1])), STREAMS + "init_variables"),
        (lambda job: loop(job, variables=DataStreamList.of(1)), STREAMS + "of type int"),
        (lambda job: loop(job, data=DataStreamList.of()), STREAMS + "ReplayableDataStreamList"),
        (lambda job: loop(job, config=IterationConfig), "^iteration-config: .*IterationConfig()"),
        (lambda job: loop(job, body=IterationBody), "^body: .* an object of an IterationBody"),
        (lambda job: loop(job, body=None), "^body: got None"),
        (lambda job: loop(job, body=lambda v, _: IterationBodyResult(v.get(0).map(abs), v)),
         STREAMS + r"the feedback is of type IterationStream; .*DataStreamList.of\(stream\)"),
        (lambda job: loop(job, body=lambda v, _: IterationBodyResult(v, v.get(0))),
         STREAMS + "the outputs of a body"),
        (lambda job: loop(job, body=lambda v, _: IterationBodyResult(v, v, v)),
         STREAMS + "the termination criteria"),
        (lambda job: iterate_unbounded_streams(
            DataStreamList.of(job.from_collection([1])), ReplayableDataStreamList.replay(),
            lambda v, _: IterationBodyResult(v, v)), STREAMS + "the data of an unbounded"),
        (lambda job: job.from_collection([1]).connect([2]), "^connect got a list"),
        (lambda job: job.from_collection([1]).process(Echo), r"the class Echo; .*: Echo\(\)"),
        (lambda job: None, "^build-result: build returned a NoneType"),
    ],
)  # fmt: skip
def test_arguments_of_a_wrong_type_are_rejected(build: Any, message: str) -> None:
    with pytest.raises(DefinitionError, match=message):
        ReferenceExecutor().run(build)


class Echo:
    def process_element(self, value: int, ctx: Any, out: Any) -> None:
        out.collect(value)


def loop(job: Any, **other: Any) -> Any:
    given = {
        "init_variables": other.get("variables", DataStreamList.of(job.from_collection([1]))),
        "data": other.get("data", ReplayableDataStreamList.not_replay()),
        "config": other.get("config", IterationConfig(max_rounds=2)),
        "body": other.get("body", lambda v, _: IterationBodyResult(v, v)),
    }
    return iterate_bounded_streams_until_termination(**given).get(0)
