"""The offsets of a topic that a checkpoint of Flink contains, read by Flink's own classes.

The offsets that a consumer group has committed are a copy for others to see: Kafka deletes them
when the group has had no member for days (``offsets.retention.minutes``).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

from paimon_features.core.errors import JobError
from paimon_features.flink.checkpoints import METADATA, Checkpoint
from paimon_features.flink.environment import flink_errors
from paimon_features.lake.storage.file_path import read_bytes

SPLITS = "SourceReaderState"
"""Flink's name of the state of a source's splits."""


def checkpoint_offsets(checkpoint: Checkpoint, topic: str) -> dict[int, int]:
    """Return the next offset to read, by partition; a partition that was not begun is left out.

    Raises
    ------
    JobError
        If the checkpoint cannot be read.
    """
    offsets: dict[int, int] = {}
    with flink_errors(f"reading the offsets in {checkpoint}"):
        for state in _split_states(checkpoint):
            try:
                name, partition, offset = parse_split(state)
            except (struct.error, UnicodeDecodeError) as error:
                raise JobError(f"{checkpoint}: a split of its source is unreadable") from error
            if name == topic and offset >= 0:
                offsets[partition] = offset
    return offsets


def parse_split(state: bytes) -> tuple[str, int, int]:
    """Return topic, partition and next offset of a split: ``SimpleVersionedSerialization`` around
    ``KafkaPartitionSplitSerializer``. A negative offset stands for a start that is not decided.

    >>> data = struct.pack(">H", 1) + b"t" + struct.pack(">iqq", 2, 30, -(2**63))
    >>> parse_split(struct.pack(">ii", 0, len(data)) + data)
    ('t', 2, 30)
    """
    (length,) = struct.unpack_from(">H", state, 8)
    topic = state[10 : 10 + length].decode("utf-8")
    partition, offset = struct.unpack_from(">iq", state, 10 + length)
    return topic, partition, offset


def _split_states(checkpoint: Checkpoint) -> Iterator[bytes]:
    """Yield the elements of the lists of splits, of all subtasks."""
    from pyflink.java_gateway import get_gateway

    jvm: Any = get_gateway().jvm
    metadata = jvm.java.io.ByteArrayInputStream(read_bytes(checkpoint.path / METADATA))
    loaded = jvm.org.apache.flink.runtime.checkpoint.Checkpoints.loadCheckpointMetadata(
        jvm.java.io.DataInputStream(metadata),
        jvm.java.lang.Thread.currentThread().getContextClassLoader(),
        checkpoint.path.as_uri(),
    )
    listed = jvm.java.util.ArrayList
    for operator in listed(loaded.getOperatorStates()):
        for subtask in listed(operator.getStates()):
            for handle in listed(subtask.getManagedOperatorState()):
                where = handle.getStateNameToPartitionOffsets().get(SPLITS)
                if where is not None:
                    yield from _elements(jvm, handle, list(where.getOffsets()))


def _elements(jvm: Any, handle: Any, offsets: list[int]) -> Iterator[bytes]:
    opened = handle.openInputStream()
    try:
        for offset in offsets:
            opened.seek(offset)
            element = jvm.java.io.DataInputStream(opened)
            yield bytes(element.readNBytes(element.readInt()))
    finally:
        opened.close()
