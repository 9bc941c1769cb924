"""Messages on Flink's edges: rows of a subtask's key and bytes.

A subtask of a stage is addressed by a key that Flink's hash assigns to it, so that records with any
partitioning and control records for all subtasks share one edge, in order.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from paimon_features.iteration.envelope import dumps
from paimon_features.iteration.flink.job_settings import MAX_PARALLELISM
from paimon_features.iteration.sources import split_batches

if TYPE_CHECKING:
    import pyarrow as pa
    from pyflink.common.typeinfo import TypeInformation

    from paimon_features.lake.reading.splits import SplitPlan


class SourceRecords(NamedTuple):
    """Values for a source node from outside of the program; ``ended`` marks the end."""

    node: int
    values: list[Any]
    ended: bool = False


class SourceSplits(NamedTuple):
    """Splits of a table for a source node, to be read by its subtask."""

    node: int
    plan: SplitPlan
    splits: tuple[bytes, ...]
    block_rows: int

    def blocks(self) -> Iterator[list[pa.RecordBatch]]:
        """Yield the rows in record batches of at most ``block_rows``."""
        return split_batches(self.plan.read(self.splits), self.block_rows)


KICK = b"kick"
"""First message of a subtask that may never receive a record."""


def pack(item: SourceRecords | SourceSplits) -> bytes:
    """Encode a message of a source: a tuple, where messages between stages are lists."""
    return dumps(item)


def message_type() -> TypeInformation:
    """Return the Flink type of a row on an edge: the key of the subtask, and bytes."""
    from pyflink.common import Types

    return Types.ROW([Types.INT(), Types.PRIMITIVE_ARRAY(Types.BYTE())])


def text_type() -> TypeInformation:
    """Return the Flink type of results: a line of text each."""
    from pyflink.common import Types

    return Types.STRING()


@cache
def subtask_keys(parallelism: int) -> tuple[int, ...]:
    """Return, for each subtask, the smallest key that Flink assigns to it."""
    from pyflink.java_gateway import get_gateway

    jvm: Any = get_gateway().jvm
    assign = jvm.org.apache.flink.runtime.state.KeyGroupRangeAssignment
    keys: dict[int, int] = {}
    key = 0
    while len(keys) < parallelism:
        row = jvm.org.apache.flink.types.Row(1)
        row.setField(0, key)
        subtask = assign.assignKeyToParallelOperator(row, MAX_PARALLELISM, parallelism)
        keys.setdefault(int(subtask), key)
        key += 1
    return tuple(keys[subtask] for subtask in range(parallelism))
