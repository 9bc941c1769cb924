"""Messages for a program's source nodes: values, or the splits that they read themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import cloudpickle

from paimon_features.iteration.dataflow import DataflowNode
from paimon_features.iteration.flink.edge_messages import SourceRecords, SourceSplits, pack
from paimon_features.iteration.flink.memory_limits import MemoryLimits
from paimon_features.iteration.sources import CollectionSource, SnapshotSource

if TYPE_CHECKING:
    from pyflink.datastream import DataStream

FEED_VALUES = 512
"""Values of a collection in one message."""


@dataclass(frozen=True, slots=True)
class FlinkSource:
    """A Flink stream of the user."""

    stream: DataStream


def source_messages(
    source: CollectionSource | SnapshotSource,
    node: DataflowNode,
    keys: Sequence[int],
    memory: MemoryLimits,
) -> list[tuple[int, bytes]]:
    """Return the messages for the subtasks of a source node, including the end of each.

    Raises
    ------
    JobError
        If a message is too large for Java.
    """
    messages = (
        _splits(source, node.id, keys)
        if isinstance(source, SnapshotSource)
        else _values(source, node.id, keys)
    )
    if source.bounded:
        messages += [(key, pack(SourceRecords(node.id, [], ended=True))) for key in keys]
    description = f"iteration: {FEED_VALUES} values of the collection {node.name!r}"
    return [(key, memory.checked(data, description)) for key, data in messages]


def _values(source: CollectionSource, node: int, keys: Sequence[int]) -> list[tuple[int, bytes]]:
    messages = []
    for subtask, key in enumerate(keys):
        values = source.values[subtask :: len(keys)]
        for at in range(0, len(values), FEED_VALUES):
            feed = SourceRecords(node, list(values[at : at + FEED_VALUES]))
            # cloudpickle, as classes may be shipped by value; pickle would refer to them by name
            messages.append((key, cloudpickle.dumps(feed, protocol=5)))
    return messages


def _splits(source: SnapshotSource, node: int, keys: Sequence[int]) -> list[tuple[int, bytes]]:
    """Return a split is one element of a Flink source: a checkpoint contains which splits are read,
    and waits for the current one."""
    plan = source.plan.part()
    return [
        (key, pack(SourceSplits(node, plan, (split,), source.block_rows)))
        for key, share in zip(keys, source.assign(len(keys)), strict=True)
        for split in share
    ]
