"""How fast batches come: throughput, and the time of each."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from paimon_features.core.errors import ConfigurationError, RequestError


def benchmark(
    dataset: Iterable[Any],
    num_batches: int | None = None,
    step: Callable[[Any], Any] | None = None,
) -> dict[str, Any]:
    """Take batches and measure; see :meth:`TensorFlowPipelineOptimizer.benchmark` for the keys.

    Parameters
    ----------
    dataset
        A ``tf.data.Dataset``, or anything else that yields batches.
    num_batches
        How many to take, and one more before that is not counted (it starts threads and fills
        buffers); None takes all that there are.
    step
        What the trainer does with a batch. The clock runs on during it; it is not part of the
        latencies, which are how long the trainer waited for each batch.

    Raises
    ------
    ConfigurationError
        For fewer than one batch.
    RequestError
        If the dataset has no batch.
    """
    if num_batches is not None and num_batches < 1:
        raise ConfigurationError(f"num_batches={num_batches}: expected at least 1, or None")
    batches = iter(dataset)
    waits_s: list[float] = []
    samples = 0
    first = next(batches, None) if num_batches is not None else None
    started = last = time.perf_counter()
    while num_batches is None or len(waits_s) < num_batches:
        batch = next(batches, None)
        if batch is None:
            break
        waits_s.append(time.perf_counter() - last)
        samples += num_rows(batch)
        if step is not None:
            step(batch)
        last = time.perf_counter()
    elapsed_s = last - started
    if not waits_s:
        if first is None:
            raise RequestError("the dataset gave no batch to measure")
        raise RequestError(
            "the dataset gave one batch, which is for warming up and not counted; measure more, or "
            "say num_batches=None, which counts it"
        )
    p50, p90, p99 = np.percentile(waits_s, [50, 90, 99]) * 1e3
    return {
        "batch_count": len(waits_s),
        "total_samples": samples,
        "elapsed_time": elapsed_s,
        "throughput": len(waits_s) / elapsed_s,
        "samples_per_sec": samples / elapsed_s,
        "latency_per_batch_ms": float(np.mean(waits_s)) * 1e3,
        "latency_p50_ms": float(p50),
        "latency_p90_ms": float(p90),
        "latency_p99_ms": float(p99),
        "latency_max_ms": max(waits_s) * 1e3,
    }


def num_rows(batch: Any) -> int:
    """Return the rows of a batch: the length of its tensors.

    1 for a single sample, which has a scalar.
    """
    shapes = [part.shape for part in tf.nest.flatten(batch)]
    return int(shapes[0][0]) if all(len(shape) for shape in shapes) else 1
