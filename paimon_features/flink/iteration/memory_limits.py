"""Limits for data that a job passes to Java and stores there: shares of the Java heap."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeVar

from paimon_features.errors import JobError
from paimon_features.flink.iteration.job_settings import UNKNOWN_CLUSTER
from paimon_features.flink_rest import FlinkRest
from paimon_features.iteration.config import ReplayMemory

RECORD_SHARE = 8
"""A record is in the heap about four times: as received from Python, in the output buffer, in the
input buffer, and as sent to Python. If it does not fit, Java or the library between Java and Python
ends without naming the record."""
Data = TypeVar("Data", bytes, str)

UNKNOWN_HEAP = 512 * 2**20
"""Assumed if no task manager can be queried."""


@dataclass(frozen=True, slots=True)
class TaskManagerHeap:
    """Heap of the task managers: bytes of the smallest one, and their number."""

    size: int = UNKNOWN_HEAP
    managers: int = 1

    @classmethod
    def of(cls, target: str | None) -> TaskManagerHeap:
        """Return the heap of an ``execution_target``."""
        if target == UNKNOWN_CLUSTER:
            return cls()
        if target is None:
            from pyflink.java_gateway import get_gateway

            jvm: Any = get_gateway().jvm
            return cls(int(jvm.java.lang.Runtime.getRuntime().maxMemory()))
        found = FlinkRest(target).task_managers().values()
        return cls(min(found), len(found)) if found else cls()


@dataclass(frozen=True, slots=True)
class MemoryLimits:
    """Limits of the operators of a job.

    ``record_bytes`` is the maximum size of data that are passed to Java in one piece.
    """

    record_bytes: int = UNKNOWN_HEAP // RECORD_SHARE
    replay: ReplayMemory = field(default_factory=ReplayMemory)

    def checked(self, data: Data, what: str) -> Data:
        """Return the data if they are not too large.

        Raises
        ------
        JobError
            If they are too large; the message starts with ``what``.
        """
        if len(data) > self.record_bytes:
            raise JobError(
                f"{what}: {len(data):,} bytes in one piece exceed the limit of "
                f"{self.record_bytes:,} bytes for data passed to Java, 1/{RECORD_SHARE} of its "
                "heap unless IterationSettings(max_record_bytes=...) is set: send several smaller "
                "records, or give the task managers more memory"
            )
        return data


def memory_limits(
    heap: TaskManagerHeap,
    *,
    max_record_bytes: int | None = None,
    replay_memory_mb: int = 256,
    replayers: int = 0,
    in_heap: bool = True,
) -> MemoryLimits:
    """Return the limits of one job: ``replayers`` subtasks store data in the Java heap or on disk.

    Half of the heap of all task managers is for replayed data.
    """
    kept = heap.size * heap.managers // (2 * replayers) if replayers and in_heap else None
    return MemoryLimits(
        max_record_bytes or heap.size // RECORD_SHARE,
        ReplayMemory(replay_memory_mb * 2**20, kept),
    )
