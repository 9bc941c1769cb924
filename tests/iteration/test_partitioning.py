"""Where records go: stable hashes, and the routes between subtasks."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from typing import Any

import numpy as np
import pytest

from paimon_features.core.errors import DefinitionError, JobError
from paimon_features.iteration import ReferenceExecutor
from paimon_features.iteration.partitioning import stable_hash


class WhoAndWhat:
    """The subtask and the value."""

    def process_element(self, value: Any, ctx: Any, out: Any) -> None:
        out.collect((ctx.subtask, value))


def test_hashes_are_the_same_in_every_process() -> None:
    keys = [0, -1, 2**70, "a", "ä", b"a", None, 1.5, (1, ("a", None))]
    code = (
        "from paimon_features.iteration.partitioning import stable_hash as h; "
        f"print([h(k) for k in {keys}])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert found.stdout.strip() == str([stable_hash(key) for key in keys])


def test_hashes_of_small_numbers_spread_over_few_subtasks() -> None:
    for subtasks in (2, 3, 4, 7):
        for keys in (range(1000), map(str, range(1000)), ((n, n) for n in range(1000))):
            sizes = Counter(stable_hash(key) % subtasks for key in keys)
            assert max(sizes.values()) < 1.3 * 1000 / subtasks


@pytest.mark.parametrize("key", [[1], {"a": 1}, np.array([1, 2]), object(), float("nan")])
def test_what_cannot_be_a_key_is_an_error(key: Any) -> None:
    with pytest.raises(JobError, match="a key is"):
        stable_hash(key)


@pytest.mark.parametrize("key", [[1], float("nan")])
def test_what_cannot_be_a_key_is_an_error_with_one_subtask_too(key: Any) -> None:
    def build(job: Any) -> Any:
        return job.from_collection([1]).key_by(lambda value: key).reduce(lambda a, b: a + b)

    with pytest.raises(JobError, match="a key is"):
        ReferenceExecutor().run(build)


@pytest.mark.parametrize("seed", [None, 1, 2])
@pytest.mark.parametrize("readers", [1, 2, 3])
def test_each_partitioning_sends_every_record_to_the_right_subtasks(
    readers: int, seed: int | None
) -> None:
    values = [*range(30)]

    def build(job: Any) -> Any:
        stream = job.from_collection(values, parallelism=2)
        ways = {
            "rebalance": stream.rebalance(),
            "broadcast": stream.broadcast(),
            "hash": stream.key_by(lambda value: value % 5),
            "custom": stream.partition_custom(lambda key, n: key % n, lambda value: value // 10),
        }
        return {
            name: way.process(WhoAndWhat()).set_parallelism(readers).map(lambda pair: pair)
            for name, way in ways.items()
        }

    found = ReferenceExecutor(seed).run(build)
    for name in ("rebalance", "hash", "custom"):
        assert sorted(value for _, value in found[name]) == values
    assert sorted(found["broadcast"]) == [
        (who, value) for who in range(readers) for value in values
    ]
    sizes = Counter(who for who, _ in found["rebalance"])
    assert max(sizes.values()) - min(sizes.values()) <= 2
    assert {(value % 5, stable_hash(value % 5) % readers) for value in values} == {
        (value % 5, who) for who, value in found["hash"]
    }
    assert all(who == value // 10 % readers for who, value in found["custom"])


@pytest.mark.parametrize("chosen", [2, -1, 0.5, None, "1"])
def test_a_partitioner_that_names_no_subtask_is_an_error(chosen: Any) -> None:
    def build(job: Any) -> Any:
        stream = job.from_collection([1]).partition_custom(lambda *_: chosen, lambda value: value)
        return stream.map(lambda value: value).set_parallelism(2)

    expected = f"returned subtask {chosen!r}; expected an integer from 0 to 1"
    with pytest.raises(JobError, match=expected):
        ReferenceExecutor().run(build)


def test_records_between_two_subtasks_keep_their_order() -> None:
    def build(job: Any) -> Any:
        stream = job.from_collection(range(500), parallelism=1)
        return stream.key_by(lambda value: value % 3).process(WhoAndWhat()).set_parallelism(2)

    for seed in range(5):
        found = ReferenceExecutor(seed).run(build)
        for who in (0, 1):
            own = [value for subtask, value in found if subtask == who]
            assert own == sorted(own)


def test_a_function_without_the_method_of_its_operation_is_refused_where_it_is_given() -> None:
    def build(job: Any) -> Any:
        return job.from_collection([1]).connect(job.from_collection([2])).process(WhoAndWhat())

    with pytest.raises(
        DefinitionError, match="missing method 'process_element1' of a function of type WhoAndWhat"
    ):
        ReferenceExecutor().run(build)
