"""``TensorFlowPipelineOptimizer``: the usual steps of a fast ``tf.data`` pipeline, in order."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from paimon_features.core.errors import ConfigurationError
from trainer_bridge.adapters.tensorflow.checked_sizes import check_sizes
from trainer_bridge.adapters.tensorflow.optimize.measure import benchmark
from trainer_bridge.preprocess.tune import num_bytes

_log = logging.getLogger(__name__)

_CACHE_SHARE = 0.5
"""A cache in memory may take this share of what is free."""

_REPORT_EVERY = 100


class TensorFlowPipelineOptimizer:
    """Adds cache, shuffle, batch and prefetch to a dataset of single samples, and measures it.

    >>> import tensorflow as tf
    >>> optimizer = TensorFlowPipelineOptimizer()
    >>> batches = optimizer.optimize(tf.data.Dataset.range(100), batch_size=40)
    >>> [len(batch) for batch in batches]
    [40, 40, 20]
    >>> optimizer.benchmark(batches, verbose=False)["total_samples"]
    100
    """

    def optimize(
        self,
        dataset: tf.data.Dataset,
        num_workers: int | None = None,
        prefetch_buffer_size: int | None = None,
        enable_cache: bool = True,
        cache_file: str | None = None,
        parallel_map_calls: int | None = None,
        enable_performance_monitoring: bool = False,
        shuffle_buffer_size: int = 10000,
        batch_size: int = 32,
    ) -> tf.data.Dataset:
        """Return the dataset with these steps, in this order; ``None`` lets ``tf.data`` tune a
        number.

        1. ``parallel_map_calls``: that many calls of its last maps run at once (of those before
           a shuffle or batch only as they were made), and its batches are made in as many
           threads; the order stays.
        2. ``enable_cache``: samples are kept after the first epoch, in memory or in files named
           ``cache_file``. In memory only what is finite and fits into half of the memory that
           is free. What is random before it is frozen: augment after it.
        3. ``shuffle_buffer_size``: a shuffle of that many samples, another one in each epoch;
           0 leaves it out.
        4. ``batch_size``: rows of a batch; 0 leaves it out, for a dataset of batches.
        5. ``enable_performance_monitoring``: logs samples per second every 100 batches.
        6. ``prefetch_buffer_size``: batches made ahead of the trainer.
        7. ``num_workers``: threads of this dataset; as many as ``parallel_map_calls`` by default.

        A step that fails is left out and logged as a warning; only without prefetch there is
        no dataset.

        Raises
        ------
        ConfigurationError
            For a number that makes no sense.
        Exception
            Whatever TensorFlow raises where prefetch fails.
        """
        check_sizes(num_workers=num_workers)
        check_sizes(tuned=True, parallel_map_calls=parallel_map_calls)
        check_sizes(least=0, shuffle_buffer_size=shuffle_buffer_size, batch_size=batch_size)
        check_sizes(least=0, tuned=True, prefetch_buffer_size=prefetch_buffer_size)
        calls = parallel_map_calls
        dataset = _step("parallel maps", dataset, lambda d: _parallel_maps(d, calls))
        if enable_cache:
            dataset = _step("cache", dataset, lambda d: _cached(d, cache_file))
        if shuffle_buffer_size:
            dataset = _step("shuffle", dataset, lambda d: _shuffled(d, shuffle_buffer_size))
        if batch_size:
            dataset = _step(
                "batch", dataset, lambda d: d.batch(batch_size, num_parallel_calls=calls)
            )
        if enable_performance_monitoring:
            dataset = _step("performance monitoring", dataset, _monitored)
        depth = tf.data.AUTOTUNE if prefetch_buffer_size is None else prefetch_buffer_size
        dataset = dataset.prefetch(depth)
        threads = num_workers or (None if calls in (None, tf.data.AUTOTUNE) else calls)
        return _step("threads", dataset, lambda d: _with_threads(d, threads))

    def benchmark(
        self,
        dataset: tf.data.Dataset,
        num_batches: int | None = None,
        batch_size: int = 32,
        verbose: bool = True,
    ) -> dict[str, Any]:
        """Return how fast a dataset of batches is.

        Parameters
        ----------
        num_batches
            How many batches to take, after one that is not counted; None takes all, and
            counts the first one too.
        batch_size
            At least 1; rows are counted in the batches, and a scalar is one sample.
        verbose
            Prints a line.

        Returns
        -------
        ``batch_count``, ``total_samples``, ``elapsed_time`` (s), ``throughput`` (batches/s),
        ``samples_per_sec``, ``latency_per_batch_ms`` (the mean wait for a batch), and of the
        waits ``latency_p50_ms``, ``latency_p90_ms``, ``latency_p99_ms``, ``latency_max_ms``.
        """
        check_sizes(batch_size=batch_size)
        figures = benchmark(dataset, num_batches)
        if verbose:
            print(
                f"{figures['batch_count']} batches, {figures['total_samples']:,} samples in "
                f"{figures['elapsed_time']:.2f} s: {figures['throughput']:,.1f} batches/s, "
                f"{figures['samples_per_sec']:,.0f} samples/s; wait for a batch "
                f"{figures['latency_per_batch_ms']:.2f} ms (p50 {figures['latency_p50_ms']:.2f}, "
                f"p99 {figures['latency_p99_ms']:.2f})"
            )
        return figures

    def get_optimization_recommendations(
        self, dataset_size: int, num_workers: int = 1
    ) -> dict[str, Any]:
        """Arguments of :meth:`optimize` to begin with, and why; then measure.

        Parameters
        ----------
        dataset_size
            Samples of the dataset.
        num_workers
            Trainers on this machine that share its cores.

        Returns
        -------
        The arguments by their names, and ``reasons``: a text for each of them.

        Raises
        ------
        ConfigurationError
            For sizes below 0, or no worker.
        """
        if dataset_size < 0 or num_workers < 1:
            raise ConfigurationError(
                f"dataset_size={dataset_size}, num_workers={num_workers}: expected 0 or more "
                "samples and at least 1 worker"
            )
        cores = max(1, len(_cores()) // num_workers)
        in_memory = dataset_size <= 1_000_000
        return {
            "num_workers": cores,
            "parallel_map_calls": cores,
            "prefetch_buffer_size": None,
            "enable_cache": in_memory,
            "cache_file": None,
            "shuffle_buffer_size": min(dataset_size, 10_000),
            "batch_size": 32 if dataset_size < 10_000 else 256,
            "reasons": {
                "num_workers": f"{len(_cores())} cores for {num_workers} trainers",
                "parallel_map_calls": "a map per core; more only wait for each other",
                "prefetch_buffer_size": "None: tf.data measures how far ahead is worth it",
                "enable_cache": (
                    "up to a million samples usually fit into memory; optimize() checks the bytes"
                    if in_memory
                    else "too many samples for memory: pass cache_file=, or use a "
                    "PreprocessPipeline with a partial cache"
                ),
                "cache_file": "a file is worth it where preparing costs more than reading it",
                "shuffle_buffer_size": "the whole dataset where it is small, else a window; a "
                "SnapshotReader shuffles all rows without one",
                "batch_size": "small datasets need their steps; large ones fewer calls",
            },
        }


def _step(
    name: str, dataset: tf.data.Dataset, add: Callable[[tf.data.Dataset], tf.data.Dataset]
) -> tf.data.Dataset:
    try:
        return add(dataset)
    except Exception as error:  # whatever it is: the pipeline works without the step
        _log.warning("%s left out: %s: %s", name, type(error).__name__, error)
        return dataset


def _parallel_maps(dataset: tf.data.Dataset, calls: int | None) -> tf.data.Dataset:
    if calls is not None:
        dataset = _last_maps_in_parallel(dataset, calls)
    options = tf.data.Options()
    options.experimental_optimization.map_parallelization = True
    options.experimental_optimization.map_and_batch_fusion = True
    options.experimental_optimization.map_fusion = True
    options.experimental_optimization.noop_elimination = True
    options.autotune.enabled = True
    if calls not in (None, tf.data.AUTOTUNE):
        options.autotune.cpu_budget = calls
    return dataset.with_options(options)


def _last_maps_in_parallel(dataset: tf.data.Dataset, calls: int) -> tf.data.Dataset:
    """Return the dataset with its last maps made again, in parallel.

    TensorFlow itself does so only for functions without Python or state, and starts with one call.
    """
    kind = type(dataset).__name__
    if kind == "_OptionsDataset":
        inner = _last_maps_in_parallel(dataset._input_dataset, calls)
        return inner.with_options(dataset.options())
    if kind != "_MapDataset":
        return dataset
    inner = _last_maps_in_parallel(dataset._input_dataset, calls)
    return inner.map(dataset._map_func._func, num_parallel_calls=calls, deterministic=True)


def _cached(dataset: tf.data.Dataset, file: str | None) -> tf.data.Dataset:
    if file is not None:
        os.makedirs(os.path.dirname(os.path.abspath(file)), exist_ok=True)
        return dataset.cache(file)
    count = int(dataset.cardinality())
    if count == tf.data.INFINITE_CARDINALITY:
        raise ConfigurationError("the dataset has no end, so a cache would have none either")
    if count > 0:
        needed = count * num_bytes(next(iter(dataset.take(1))))
        free = _free_bytes()
        if needed > _CACHE_SHARE * free:
            raise ConfigurationError(
                f"{count:,} samples take about {needed:,} bytes; {free:,} are free, of which a "
                "cache gets half. Pass cache_file=, or use a PreprocessPipeline with a partial "
                "cache"
            )
    return dataset.cache()


def _shuffled(dataset: tf.data.Dataset, size: int) -> tf.data.Dataset:
    return dataset.shuffle(size, reshuffle_each_iteration=True)


def _monitored(dataset: tf.data.Dataset) -> tf.data.Dataset:
    seen = _Seen()

    def count(*batch: Any) -> Any:
        parts = tf.nest.flatten(batch)
        single = any(part.shape.rank == 0 for part in parts)
        rows = tf.constant(1) if single else tf.shape(parts[0])[0]
        with tf.control_dependencies([tf.py_function(seen.add, [rows], [])]):
            kept = tf.nest.map_structure(tf.identity, batch)
        return kept[0] if len(kept) == 1 else kept

    return dataset.map(count)


class _Seen:
    """Counts batches and logs their rate."""

    def __init__(self) -> None:
        self._batches = self._rows = 0
        self._since = time.perf_counter()

    def add(self, rows: Any) -> None:
        self._batches += 1
        self._rows += int(rows)
        if self._batches % _REPORT_EVERY == 0:
            now = time.perf_counter()
            rate = self._rows / (now - self._since)
            _log.info("%d batches, %s samples/s", self._batches, f"{rate:,.0f}")
            self._since, self._rows = now, 0


def _with_threads(dataset: tf.data.Dataset, num_workers: int | None) -> tf.data.Dataset:
    if num_workers is None:
        return dataset
    options = tf.data.Options()
    options.threading.private_threadpool_size = num_workers
    return dataset.with_options(options)


def _cores() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return set(os.sched_getaffinity(0))
    return set(range(os.cpu_count() or 1))


def _free_bytes() -> int:
    """Memory that is free on this machine, or in this process's control group if less."""
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        with open("/proc/meminfo") as file:
            line = next(line for line in file if line.startswith("MemAvailable"))
            free = int(line.split()[1]) * 1024
        with (
            open("/sys/fs/cgroup/memory.max") as limit,
            open("/sys/fs/cgroup/memory.current") as used,
        ):
            text = limit.read().strip()
            if text != "max":
                free = min(free, int(text) - int(used.read()))
    except (OSError, StopIteration, ValueError):
        pass  # not Linux, or no control group of that kind
    return max(int(free), 0)
