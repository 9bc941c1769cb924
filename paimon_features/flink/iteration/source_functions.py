"""What Flink sends to a program's source nodes: values, or the splits that they read themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import cloudpickle

from paimon_features.flink.iteration.memory import Memory
from paimon_features.flink.iteration.messages import Feed, Splits, pack
from paimon_features.iteration.graph import Node
from paimon_features.iteration.sources import CollectionSource, TableSource

if TYPE_CHECKING:
    from pyflink.datastream import DataStream

FEED_VALUES = 512
"""Values of a collection that travel together."""


@dataclass(frozen=True, slots=True)
class FlinkSource:
    """A stream of Flink's own."""

    stream: DataStream


def source_messages(
    source: CollectionSource | TableSource, node: Node, keys: Sequence[int], memory: Memory
) -> list[tuple[int, bytes]]:
    """Messages for the subtasks of these keys of a source node, the end of each among them.

    Raises
    ------
    JobError
        If a message is too large for Java.
    """
    messages = (
        _splits(source, node.id, keys)
        if isinstance(source, TableSource)
        else _values(source, node.id, keys)
    )
    if source.bounded:
        messages += [(key, pack(Feed(node.id, [], ended=True))) for key in keys]
    what = f"iteration: {FEED_VALUES} values of the collection {node.name!r}"
    return [(key, memory.checked(data, what)) for key, data in messages]


def _values(source: CollectionSource, node: int, keys: Sequence[int]) -> list[tuple[int, bytes]]:
    messages = []
    for subtask, key in enumerate(keys):
        own = source.values[subtask :: len(keys)]
        for at in range(0, len(own), FEED_VALUES):
            feed = Feed(node, list(own[at : at + FEED_VALUES]))
            # by value where the values' classes are to travel so: here pickle would find them
            messages.append((key, cloudpickle.dumps(feed, protocol=5)))
    return messages


def _splits(source: TableSource, node: int, keys: Sequence[int]) -> list[tuple[int, bytes]]:
    """A split is one element of a Flink source: a checkpoint knows which are read, and waits for
    the one that is being read."""
    plan = source.plan.part()
    return [
        (key, pack(Splits(node, plan, (split,), source.block_rows)))
        for key, share in zip(keys, source.deal(len(keys)), strict=True)
        for split in share
    ]
