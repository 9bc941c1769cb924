"""A network's first run has a deadline, and a later run, too."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx", reason="networks for tests")
pytest.importorskip("onnxruntime", reason="the runtime of models")

from paimon_features.core.errors import ModelError, OverloadedError
from paimon_features.serving.prediction.batcher import Batcher, Prediction
from paimon_features.serving.prediction.network import OnnxNetwork
from paimon_features.serving.prediction.network_trial import try_network
from tests.serving.prediction.networks import linear, looping, number

COUNT = number("clicks:count_1d")


def test_a_network_that_runs_is_accepted() -> None:
    try_network(linear([1.0], [COUNT]), 120)


def test_a_network_that_never_ends_is_refused_by_the_trial() -> None:
    with pytest.raises(ModelError, match=r"churn@1.*within 3 s.*predict_load_timeout"):
        try_network(looping(COUNT), 3)


def test_a_network_that_never_ends_does_not_hold_the_process_that_loads_it() -> None:
    with pytest.raises(OverloadedError, match="did not end in time"):
        OnnxNetwork(looping(COUNT), first_run_s=0.2)


def test_what_is_wrong_with_a_network_is_the_same_in_the_trial() -> None:
    good = linear([1.0], [COUNT])
    other = number("clicks:sum_1d")
    wrong = replace(
        good,
        manifest=replace(
            good.manifest, signature=replace(good.manifest.signature, inputs=(other,))
        ),
    )
    with pytest.raises(ModelError) as direct:
        OnnxNetwork(wrong)
    with pytest.raises(ModelError) as tried:
        try_network(wrong, 120)
    assert str(tried.value) == str(direct.value)


def test_a_run_that_never_ends_is_ended_and_the_next_one_is_made() -> None:
    endless, good = OnnxNetwork(looping(COUNT, when=100.0)), OnnxNetwork(linear([1.0], [COUNT]))

    async def both() -> list[Any]:
        batcher = Batcher(max_run_s=0.2)
        loop = asyncio.get_running_loop()
        answers = [loop.create_future() for _ in range(3)]
        rows = ([np.full((1, 1), 101.0)], [np.full((1, 1), 102.0)], [np.zeros((1, 1))])
        for answer, network, arrays in zip(answers, (endless, endless, good), rows, strict=True):
            batcher.submit(Prediction(network, arrays, 0, 1, answer.set_result))
        while not all(answer.done() for answer in answers):
            await asyncio.sleep(0.05)
            batcher.expire(loop.time())
        batcher.close()
        return [answer.result() for answer in answers]

    first, second, third = asyncio.run(both())
    assert isinstance(first, OverloadedError)
    assert isinstance(second, OverloadedError)
    assert third[0].shape == (1, 1)
    assert endless.run([np.zeros((2, 1))])[0].tolist() == [[0.0], [0.0]]
