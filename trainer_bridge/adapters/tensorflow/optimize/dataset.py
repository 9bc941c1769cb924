"""The batches of a pipeline as a ``tf.data.Dataset``."""

from __future__ import annotations

from collections.abc import Iterator

import tensorflow as tf

from trainer_bridge.preprocess import PreparedBatches
from trainer_bridge.preprocess.stages import Batch


def dataset(batches: PreparedBatches) -> tf.data.Dataset:
    """Dicts of tensors, one for each batch.

    Iterating over it once iterates over ``batches`` once: from its position to the end
    of the epoch, so the next time is the next epoch, in its own order. The pipeline prefetches
    by itself; TensorFlow gets complete batches and only passes them on.

    >>> import tempfile
    >>> from paimon_features.lake import Lake
    >>> from trainer_bridge.preprocess import PreprocessPipeline
    >>> from trainer_bridge.testing.sample_tables import make_samples
    >>> lake = Lake.open(tempfile.mkdtemp(), "shop")
    >>> pipeline = PreprocessPipeline(lake, make_samples(lake, [5])).select("x", "y").batch(4)
    >>> with pipeline.open() as batches:
    ...     [batch["x"].shape[0] for batch in dataset(batches)]
    [4, 1]
    """
    signature = {
        name: tf.TensorSpec((None, *shape), dtype) for name, (dtype, shape) in batches.spec.items()
    }

    def run() -> Iterator[Batch]:
        return iter(batches)

    generated = tf.data.Dataset.from_generator(run, output_signature=signature)
    options = tf.data.Options()
    # the reader shards by rank; TensorFlow has not to do it again
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return generated.with_options(options)
