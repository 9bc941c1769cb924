"""TensorFlow input pipelines: optimised, measured and tuned; results stay what they were."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paimon_features.core.errors import ConfigurationError, RequestError
from paimon_features.lake.catalog import Lake
from tests.trainer_bridge.preprocess.test_tune import Clock
from trainer_bridge.preprocess import PreprocessPipeline
from trainer_bridge.testing.sample_tables import make_samples

pytestmark = pytest.mark.tensorflow

SIZES = (9, 3, 17, 30, 1, 26)


@pytest.fixture(scope="module")
def tf() -> Any:
    import tensorflow

    return tensorflow


@pytest.fixture(scope="module")
def optimize() -> Any:
    from trainer_bridge.adapters.tensorflow import optimize

    return optimize


@pytest.fixture
def optimizer(optimize: Any) -> Any:
    return optimize.TensorFlowPipelineOptimizer()


def flat(dataset: Any) -> list[int]:
    return [int(value) for batch in dataset for value in np.ravel(batch.numpy())]


# --- TensorFlowPipelineOptimizer ---


def test_optimised_batches_hold_the_same_samples(tf: Any, optimizer: Any, tmp_path: Path) -> None:
    data = tf.data.Dataset.range(100).map(lambda x: x * 2)
    for options in (
        {},
        {"num_workers": 1, "parallel_map_calls": 2, "prefetch_buffer_size": 1},
        {"enable_cache": False},
        {"cache_file": str(tmp_path / "new" / "cache")},
        {"enable_performance_monitoring": True},
        {"shuffle_buffer_size": 7},
    ):
        made = optimizer.optimize(data, batch_size=30, **options)
        assert isinstance(made, tf.data.Dataset)
        first, second = flat(made), flat(made)
        assert sorted(first) == sorted(second) == list(range(0, 200, 2))
        assert first != second  # another shuffle in each epoch
        assert [len(batch) for batch in made] == [30, 30, 30, 10]
    assert flat(optimizer.optimize(data, shuffle_buffer_size=0)) == list(range(0, 200, 2))
    batches = optimizer.optimize(data.batch(8), shuffle_buffer_size=0, batch_size=0)
    assert [len(batch) for batch in batches] == [8] * 12 + [4]


def test_the_cache_keeps_the_first_epoch(tf: Any, optimizer: Any) -> None:
    seen: list[int] = []

    def note(x: Any) -> Any:
        seen.append(int(x))
        return x

    data = tf.data.Dataset.range(20).map(lambda x: tf.py_function(note, [x], tf.int64))
    made = optimizer.optimize(data, batch_size=5)
    seen.clear()  # how large a sample is was looked at
    assert sorted(flat(made)) == sorted(flat(made)) == list(range(20))
    assert sorted(seen) == list(range(20))


def test_an_optional_step_that_fails_is_left_out_with_a_warning(
    tf: Any, optimizer: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    endless = tf.data.Dataset.range(10).repeat()
    made = optimizer.optimize(endless, batch_size=4)
    assert "cache left out: ConfigurationError: the dataset has no end" in caplog.text
    assert len(flat(made.take(2))) == 8

    caplog.clear()
    from trainer_bridge.adapters.tensorflow.optimize import optimizer as module

    monkeypatch.setattr(module, "_free_bytes", lambda: 1000)
    large = optimizer.optimize(tf.data.Dataset.range(100), batch_size=50)
    assert "100 samples take about 800 bytes; 1,000 are free, of which a cache gets half" in (
        caplog.text
    )
    assert sorted(flat(large)) == list(range(100))

    caplog.clear()
    monkeypatch.setattr(tf.data.Dataset, "batch", _raise)
    three = tf.data.Dataset.range(3)
    made = optimizer.optimize(three, enable_cache=False, shuffle_buffer_size=0)
    assert "batch left out: ValueError: not today" in caplog.text
    assert flat(made) == [0, 1, 2]


def _raise(*arguments: Any, **options: Any) -> Any:
    raise ValueError("not today")


def test_without_prefetch_there_is_no_dataset(
    tf: Any, optimizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tf.data.Dataset.range(10)
    monkeypatch.setattr(tf.data.Dataset, "prefetch", _raise)
    with pytest.raises(ValueError, match="not today"):
        optimizer.optimize(data)


def test_numbers_without_sense_are_refused(tf: Any, optimizer: Any) -> None:
    data = tf.data.Dataset.range(10)
    for option in ("num_workers", "parallel_map_calls"):
        with pytest.raises(ConfigurationError, match=f"{option}=0: expected at least 1"):
            optimizer.optimize(data, **{option: 0})
    for option in ("batch_size", "shuffle_buffer_size", "prefetch_buffer_size"):
        for wrong in (-3, 2.5, True):
            with pytest.raises(ConfigurationError, match=f"{option}={wrong}: expected at least 0"):
                optimizer.optimize(data, **{option: wrong})
    for option in ("batch_size", "shuffle_buffer_size", "num_workers"):
        with pytest.raises(ConfigurationError, match=f"{option}=-1: expected at least"):
            optimizer.optimize(data, **{option: -1})
    tuned = {"prefetch_buffer_size": tf.data.AUTOTUNE, "parallel_map_calls": tf.data.AUTOTUNE}
    assert flat(optimizer.optimize(data, shuffle_buffer_size=0, **tuned)) == list(range(10))
    with pytest.raises(ConfigurationError, match="batch_size=0: expected at least 1"):
        optimizer.benchmark(data, batch_size=0)


@pytest.mark.parametrize(
    "add",
    [
        lambda steps: steps.batch(-1),
        lambda steps: steps.batch(0),
        lambda steps: steps.shuffle(-1),
        lambda steps: steps.shuffle(0),
        lambda steps: steps.prefetch(-2),
        lambda steps: steps.map(lambda x: x, num_parallel_calls=0),
        lambda steps: steps.repeat(-2),
        lambda steps: steps.batch(2.5),
    ],
)
def test_steps_of_a_pipeline_refuse_sizes_that_tensorflow_would_take(tf: Any, add: Any) -> None:
    from trainer_bridge.tensorflow import DatasetPipelineBuilder

    with pytest.raises(ConfigurationError, match="expected at least"):
        add(DatasetPipelineBuilder(tf.data.Dataset.range(10)))


@pytest.mark.parametrize("call", ["py_function", "numpy_function"])
def test_as_many_calls_of_the_maps_run_at_once_as_are_requested(
    tf: Any, optimizer: Any, call: str
) -> None:
    calls, lock = [0, 0], threading.Lock()
    all_at_once = threading.Barrier(8)

    def meet(x: Any) -> Any:
        with lock:
            calls[0] += 1
            calls[1] = max(calls)
        all_at_once.wait(60)  # an error if fewer than eight come
        with lock:
            calls[0] -= 1
        return x

    data = tf.data.Dataset.range(32).map(lambda x: getattr(tf, call)(meet, [x], tf.int64))
    data = data.with_options(tf.data.Options()).map(lambda x: x + 1)
    options = {"enable_cache": False, "shuffle_buffer_size": 0, "batch_size": 5}
    made = optimizer.optimize(data, parallel_map_calls=8, **options)
    assert flat(made) == list(range(1, 33))
    assert calls == [0, 8]


def test_a_benchmark_counts_and_measures(
    tf: Any, optimizer: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    def wait(x: Any) -> Any:
        time.sleep(0.01)
        return x

    data = tf.data.Dataset.range(50).batch(10).map(lambda x: tf.py_function(wait, [x], tf.int64))
    found = optimizer.benchmark(data)
    assert (found["batch_count"], found["total_samples"]) == (5, 50)
    assert found["elapsed_time"] >= 0.05
    assert found["throughput"] == pytest.approx(5 / found["elapsed_time"])
    assert found["samples_per_sec"] == pytest.approx(50 / found["elapsed_time"])
    assert found["latency_per_batch_ms"] <= found["elapsed_time"] * 1000 / 5 + 1
    assert (
        0
        < found["latency_p50_ms"]
        <= found["latency_p90_ms"]
        <= found["latency_p99_ms"]
        <= found["latency_max_ms"]
    )
    seconds = f"{found['elapsed_time']:.2f} s"
    assert capsys.readouterr().out.startswith(f"5 batches, 50 samples in {seconds}: ")
    assert optimizer.benchmark(data.repeat(), num_batches=3, verbose=False)["batch_count"] == 3
    assert capsys.readouterr().out == ""
    scalars = optimizer.benchmark(tf.data.Dataset.range(4), batch_size=25, verbose=False)
    assert (scalars["batch_count"], scalars["total_samples"]) == (4, 4)
    samples = tf.data.Dataset.from_tensor_slices((np.zeros((6, 32)), np.zeros(6)))
    assert optimizer.benchmark(samples, verbose=False)["total_samples"] == 6
    pairs = tf.data.Dataset.from_tensors({"a": np.zeros((3, 2)), "b": np.zeros(3)})
    assert optimizer.benchmark(pairs, verbose=False)["total_samples"] == 3
    with pytest.raises(RequestError, match="no batch"):
        optimizer.benchmark(data.take(0))
    with pytest.raises(RequestError, match="one batch, which is for warming up and not counted"):
        optimizer.benchmark(data.take(1), num_batches=3)
    assert optimizer.benchmark(data.take(1), verbose=False)["batch_count"] == 1
    with pytest.raises(ConfigurationError, match="num_batches=0"):
        optimizer.benchmark(data, num_batches=0)


def test_recommendations_are_arguments_of_optimize_with_reasons(tf: Any, optimizer: Any) -> None:
    for size, workers in ((0, 1), (500, 4), (10**9, 1)):
        found = optimizer.get_optimization_recommendations(size, workers)
        reasons = found.pop("reasons")
        assert set(reasons) == set(found)
        made = optimizer.optimize(tf.data.Dataset.range(100), **found)
        assert sorted(flat(made)) == list(range(100))
    assert not found["enable_cache"]
    with pytest.raises(ConfigurationError, match="num_workers=0"):
        optimizer.get_optimization_recommendations(1, 0)


def test_performance_is_logged_every_hundred_batches(
    tf: Any, optimizer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    data = tf.data.Dataset.range(205)
    made = optimizer.optimize(
        data, batch_size=1, enable_cache=False, enable_performance_monitoring=True
    )
    assert len(flat(made)) == 205
    lines = [line for line in caplog.messages if "samples/s" in line]
    assert [line.split(" batches")[0] for line in lines] == ["100", "200"]


# --- pipelines as datasets ---


def test_a_dataset_gives_the_batches_of_its_pipeline(tf: Any, optimize: Any, lake: Lake) -> None:
    def pair(rows: Any) -> dict[str, Any]:
        return {"pair": np.stack([rows["x"], rows["y"]], axis=1).astype(np.float32)}

    table = make_samples(lake, SIZES)
    pipeline = (
        PreprocessPipeline(lake, table).map(pair, reads=["x", "y"]).select("pair", "flag").batch(8)
    )
    pipeline = pipeline.shuffle(1).prefetch(2)
    with pipeline.open() as batches:
        plain = [[batch["pair"].tolist() for batch in batches] for _ in range(2)]
    with pipeline.open() as batches:
        made = optimize.dataset(batches)
        assert made.element_spec["pair"].shape.as_list() == [None, 2]
        assert made.element_spec["flag"].dtype == tf.bool
        assert [[b["pair"].numpy().tolist() for b in made] for _ in range(2)] == plain
        assert batches.state_dict()["epoch"] == 2


# --- autotune ---


def test_a_tf_data_pipeline_is_tuned_by_trials(tf: Any, optimize: Any) -> None:
    clock = Clock()  # simulated: no choice depends on the speed of this machine

    def slow(x: Any) -> Any:
        clock.spend(0.002)
        return x

    def build(setting: Any) -> Any:
        data = tf.data.Dataset.range(40)
        data = data.map(lambda x: tf.py_function(slow, [x], tf.int64), setting.parallel).batch(4)
        return data.cache() if setting.cache == "memory" else data

    # a trial is long beside what tf.data computes ahead, which falls into another trial
    options = {"parallel": [1], "prefetch": [0], "trial_s": 0.5, "repeats": 1, "verbose": False}
    options["clock"] = clock
    found = optimize.autotune(build, memory_limit=10_000, dataset_bytes=320, **options)
    assert found.setting == optimize.Setting(parallel=1, prefetch=0, cache="memory")
    found = optimize.autotune(build, memory_limit=100, dataset_bytes=320, **options)
    assert found.setting.cache == "none"
