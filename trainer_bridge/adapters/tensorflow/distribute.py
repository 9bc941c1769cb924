"""``DistributedPaimonDatasetBuilder``: one dataset for all replicas of a strategy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from paimon_features.core.errors import ConfigurationError
from paimon_features.lake.handles import TableRead
from trainer_bridge.adapters.tensorflow.dataset import dataset
from trainer_bridge.readers.snapshot_reader import SnapshotReader

_OF_DATASET = ("weight", "stack", "sparse", "to_dense", "texts", "row_numbers", "prefetch")


class DistributedPaimonDatasetBuilder:
    """Makes datasets of Paimon tables for ``tf.distribute``.

    Every process reads its own rows, in the one global order of :class:`SnapshotReader`; all get
    the same number of batches. What is built goes to ``model.fit``, or to
    ``strategy.experimental_distribute_dataset``, which cut each element into the batches of the
    replicas: ``batch_size / num_replicas_in_sync`` rows each, so that a step of all of them has
    ``batch_size`` rows. They are the same rows for any number of processes that divides
    ``batch_size``.

    Parameters
    ----------
    strategy
        The strategy of the model; by default the one in whose scope ``build`` is called.

    Attributes
    ----------
    reader
        The reader of the dataset that was built last: its state, its epoch.
    """

    def __init__(self, strategy: tf.distribute.Strategy | None = None) -> None:
        self._strategy = strategy
        self.reader: SnapshotReader | None = None

    def build(
        self,
        table: Any,
        read_builder: Any,
        feature_columns: Sequence[str],
        label_column: str,
        **kwargs: Any,
    ) -> tf.data.Dataset:
        """Return a dataset of ``(features, label)``, the features as a dict of tensors.

        Parameters
        ----------
        table, read_builder
            A table of pypaimon's catalog, and its ``new_read_builder()`` (or None). Filter and
            projection of the builder hold, and the snapshot, tag or time that the table's
            options pin.
        kwargs
            ``batch_size`` (32 by default): rows of a step over all replicas; ``weight``,
            ``stack``, ``sparse``, ``to_dense``, ``texts``, ``row_numbers``, ``prefetch`` of
            :func:`dataset`; anything else is for :class:`SnapshotReader` (``seed``, ``shuffle``,
            ``drop_last``, ``pad_last``, ``fill``, ``masks``, ``codes``, ``threads``, ...).

        With several processes an element contains the rows of as many steps as there are processes,
        and what does not fill one at the end of the epoch makes smaller steps, or is left out
        with ``drop_last`` or filled up with ``pad_last``. On a TPU, whose shapes are fixed,
        ``drop_last`` is the default.

        Raises
        ------
        ConfigurationError
            If ``batch_size`` cannot be shared out equally, for a parameter server strategy
            (datasets of a reader stay in their process), or for unknown options.
        UnknownNameError
            For a column that is not there or not read.
        RequestError
            For what the read builder requests and a reader cannot do.
        """
        strategy = self._strategy or tf.distribute.get_strategy()
        rank, workers = _place(strategy)
        batch_size = kwargs.pop("batch_size", 32)
        _check_batch_size(batch_size, strategy.num_replicas_in_sync, workers)
        if isinstance(strategy, tf.distribute.TPUStrategy) and not kwargs.get("pad_last"):
            kwargs.setdefault("drop_last", True)
        if isinstance(feature_columns, str):
            raise ConfigurationError(
                f"feature_columns={feature_columns!r}: expected a list of names"
            )
        read = TableRead.of(table, read_builder)
        of_dataset = {name: kwargs.pop(name) for name in _OF_DATASET if name in kwargs}
        weight = of_dataset.get("weight")
        columns = list(
            dict.fromkeys([*feature_columns, label_column, *([weight] if weight else [])])
        )
        read.check_columns(columns)
        if read.where is not None:
            kwargs["where"] = _both(read.where, kwargs.get("where"))
        if read.snapshot_id is not None:
            kwargs.setdefault("snapshot_id", read.snapshot_id)
        try:
            self.reader = SnapshotReader(
                read.lake,
                read.table,
                columns=columns,
                batch_size=batch_size,
                rank=rank,
                world_size=workers,
                **kwargs,
            )
        except TypeError as error:
            raise ConfigurationError(
                f"build() was given an option that is not known: {error}"
            ) from error
        return dataset(self.reader, label=label_column, **of_dataset)


def _place(strategy: tf.distribute.Strategy) -> tuple[int, int]:
    """Return (number of this process, number of all) among those that train."""
    if isinstance(strategy, tf.distribute.ParameterServerStrategy):
        raise ConfigurationError(
            "a reader's dataset runs Python in the process that made it, and a parameter server "
            "strategy sends datasets to its workers; use MultiWorkerMirroredStrategy, or give "
            "each worker a reader of its own (SnapshotReader(rank=..., world_size=...))"
        )
    resolver = strategy.cluster_resolver
    cluster = {} if resolver is None else resolver.cluster_spec().as_dict()
    chiefs, workers = len(cluster.get("chief", ())), len(cluster.get("worker", ()))
    if isinstance(strategy, tf.distribute.TPUStrategy) or not chiefs + workers:
        return 0, 1
    if resolver.task_type not in ("chief", "worker"):
        return 0, 1  # an evaluator reads everything by itself
    return resolver.task_id + (chiefs if resolver.task_type == "worker" else 0), chiefs + workers


def _check_batch_size(batch_size: int, replicas: int, workers: int) -> None:
    if batch_size < 1 or batch_size % replicas:
        raise ConfigurationError(
            f"batch_size={batch_size} is that of all {replicas} replicas in {workers} processes "
            f"together: expected a multiple of {replicas}"
        )


def _both(one: str, other: str | None) -> str:
    return one if other is None else f"({one}) AND ({other})"
