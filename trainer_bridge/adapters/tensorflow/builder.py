"""``DatasetPipelineBuilder``: the usual steps of ``tf.data``, one after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from trainer_bridge.adapters.tensorflow.checked_sizes import check_sizes


class DatasetPipelineBuilder:
    """Adds steps to a dataset in the order of the calls; each call returns the builder.

    Batches of a snapshot reader need none of these but ``map`` and ``prefetch``: they come
    shuffled and batched, and ``cache`` before an epoch's order would repeat that order. The
    steps are for datasets of any origin, such as those of single rows. Each checks its numbers.

    >>> rows = tf.data.Dataset.range(5)
    >>> built = DatasetPipelineBuilder(rows).map(lambda x: 2 * x).batch(2).prefetch().build()
    >>> [batch.numpy().tolist() for batch in built]
    [[0, 2], [4, 6], [8]]
    """

    def __init__(self, dataset: tf.data.Dataset) -> None:
        self._dataset = dataset

    def cache(self, filename: str | None = None) -> DatasetPipelineBuilder:
        """Keep the elements of the first pass, in memory or in files with this prefix."""
        return self._with(self._dataset.cache(filename or ""))

    def shuffle(self, buffer_size: int) -> DatasetPipelineBuilder:
        """Shuffle within a buffer of this number of elements, differently in each pass."""
        check_sizes(buffer_size=buffer_size)
        return self._with(self._dataset.shuffle(buffer_size, reshuffle_each_iteration=True))

    def batch(self, batch_size: int, drop_remainder: bool = False) -> DatasetPipelineBuilder:
        """Combine this number of elements into one; ``drop_remainder`` drops a smaller last one."""
        check_sizes(batch_size=batch_size)
        return self._with(self._dataset.batch(batch_size, drop_remainder=drop_remainder))

    def prefetch(self, buffer_size: int | None = None) -> DatasetPipelineBuilder:
        """Prefetch this number of elements; with None, TensorFlow chooses the number."""
        check_sizes(least=0, tuned=True, buffer_size=buffer_size)
        size = tf.data.AUTOTUNE if buffer_size is None else buffer_size
        return self._with(self._dataset.prefetch(size))

    def map(
        self, map_func: Callable[..., Any], num_parallel_calls: int | None = None
    ) -> DatasetPipelineBuilder:
        """Apply a function to each element, this number in parallel; the order is kept."""
        check_sizes(tuned=True, num_parallel_calls=num_parallel_calls)
        mapped = self._dataset.map(
            map_func,
            num_parallel_calls=num_parallel_calls,
            deterministic=None if num_parallel_calls is None else True,
        )
        return self._with(mapped)

    def repeat(self, count: int = -1) -> DatasetPipelineBuilder:
        """So many passes; -1 is without end."""
        check_sizes(least=-1, count=count)
        return self._with(self._dataset.repeat(count))

    def build(self) -> tf.data.Dataset:
        """Return the dataset with all steps so far."""
        return self._dataset

    def _with(self, dataset: tf.data.Dataset) -> DatasetPipelineBuilder:
        self._dataset = dataset
        return self
