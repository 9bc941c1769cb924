"""Limits for data that a job passes to Java and stores there: shares of its memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeVar

from paimon_features.core.errors import JobError
from paimon_features.core.process.flink_rest import FlinkRest
from paimon_features.flink.stream_environment import UNKNOWN_CLUSTER
from paimon_features.iteration.config import ReplayMemory

RECORD_SHARE = 8
"""A record is in the heap about four times: as received from Python, in the output buffer, in the
input buffer, and as sent to Python. If it does not fit, Java or the library between Java and Python
ends without naming the record."""
OFF_HEAP_SHARE = 4
"""From a Python process a record arrives in direct memory, of which Flink leaves little: two
subtasks may send one at the same time, and state and output have a connection each. If it does not
fit, Java closes the connection, and the process waits for a response forever."""
Data = TypeVar("Data", bytes, str)

UNKNOWN_HEAP = 512 * 2**20
"""Assumed if no task manager can be queried."""
FLINK_OFF_HEAP = 128 * 2**20
"""Flink's default, of which tasks have nothing."""


@dataclass(frozen=True, slots=True)
class TaskManagerMemory:
    """Memory of the task managers: bytes of the smallest one, and their number.

    ``off_heap`` is its direct memory without the network's.
    """

    heap: int = UNKNOWN_HEAP
    number: int = 1
    off_heap: int = FLINK_OFF_HEAP

    @classmethod
    def of(cls, target: str | None) -> TaskManagerMemory:
        """Return the memory of an ``execution_target``."""
        if target == UNKNOWN_CLUSTER:
            return cls()
        if target is None:
            from pyflink.java_gateway import get_gateway

            jvm: Any = get_gateway().jvm
            heap = int(jvm.java.lang.Runtime.getRuntime().maxMemory())
            return cls(heap, off_heap=heap)  # Java's default for direct memory
        managers = FlinkRest(target).task_managers().values()
        if not managers:
            return cls()
        return cls(min(m.heap for m in managers), len(managers), min(m.off_heap for m in managers))


@dataclass(frozen=True, slots=True)
class MemoryLimits:
    """Limits of the operators of a job.

    ``record_bytes`` is the maximum size of data that are passed to Java in one piece, which
    follows from memory outside the heap if ``of_off_heap``.
    """

    record_bytes: int = UNKNOWN_HEAP // RECORD_SHARE
    replay: ReplayMemory = field(default_factory=ReplayMemory)
    of_off_heap: bool = False

    def checked(self, data: Data, what: str) -> Data:
        """Return the data if they are not too large.

        Raises
        ------
        JobError
            If they are too large; the message starts with ``what``.
        """
        if len(data) > self.record_bytes:
            share, more = f"1/{RECORD_SHARE} of its heap", ""
            if self.of_off_heap:
                share = f"1/{OFF_HEAP_SHARE} of its direct memory"
                more = " outside the heap (cluster start --off-heap-mb)"
            raise JobError(
                f"{what}: {len(data):,} bytes in one piece exceed the limit of "
                f"{self.record_bytes:,} bytes for data passed to Java, {share} unless "
                "IterationSettings(max_record_bytes=...) is set: send several smaller records, "
                f"or give the task managers more memory{more}"
            )
        return data


def memory_limits(
    managers: TaskManagerMemory,
    *,
    max_record_bytes: int | None = None,
    replay_memory_mb: int = 256,
    replayers: int = 0,
    in_heap: bool = True,
    in_processes: bool = False,
) -> MemoryLimits:
    """Return the limits of one job: ``replayers`` subtasks store data in the Java heap or on disk.

    Half of the heap of all task managers is for replayed data. ``in_processes``: Python runs in
    processes of its own.
    """
    kept = managers.heap * managers.number // (2 * replayers) if replayers and in_heap else None
    of_heap, of_off_heap = managers.heap // RECORD_SHARE, managers.off_heap // OFF_HEAP_SHARE
    is_less = in_processes and of_off_heap < of_heap
    return MemoryLimits(
        max_record_bytes or (of_off_heap if is_less else of_heap),
        ReplayMemory(replay_memory_mb * 2**20, kept),
        is_less,
    )
