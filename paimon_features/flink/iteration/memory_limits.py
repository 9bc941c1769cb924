"""How much a job may hand to Java at once, and keep there: shares of the Java heap."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeVar

from paimon_features.errors import JobError
from paimon_features.flink.iteration.job_settings import UNKNOWN_CLUSTER
from paimon_features.flink_rest import FlinkRest
from paimon_features.iteration.config import ReplayMemory

RECORD_SHARE = 8
"""A record is in the heap some four times: as it came from Python, in the buffer that it is written
to, in the one that it is read to, and as it goes to Python. Where there is no room, Java ends, or
the library between it and Python does, without a word of what was too large."""
Data = TypeVar("Data", bytes, str)

UNKNOWN_HEAP = 512 * 2**20
"""Assumed where nobody can be asked."""


@dataclass(frozen=True, slots=True)
class TaskManagerHeap:
    """Of the task managers: the smallest one's bytes, and how many there are."""

    size: int = UNKNOWN_HEAP
    managers: int = 1

    @classmethod
    def of(cls, place: str | None) -> TaskManagerHeap:
        """That of the place where a job is to run (``place_of``)."""
        if place == UNKNOWN_CLUSTER:
            return cls()
        if place is None:
            from pyflink.java_gateway import get_gateway

            jvm: Any = get_gateway().jvm
            return cls(int(jvm.java.lang.Runtime.getRuntime().maxMemory()))
        found = FlinkRest(place).task_managers().values()
        return cls(min(found), len(found)) if found else cls()


@dataclass(frozen=True, slots=True)
class MemoryLimits:
    """What the operators of a job obey.

    ``record_bytes`` is the most that is handed to Java in one piece.
    """

    record_bytes: int = UNKNOWN_HEAP // RECORD_SHARE
    replay: ReplayMemory = field(default_factory=ReplayMemory)

    def checked(self, data: Data, what: str) -> Data:
        """The data, if it is not too large.

        Raises
        ------
        JobError
            If it is; the message begins with ``what``.
        """
        if len(data) > self.record_bytes:
            raise JobError(
                f"{what}: {len(data):,} bytes in one piece, and {self.record_bytes:,} is the most "
                f"that is handed to Java, 1/{RECORD_SHARE} of its heap unless "
                "IterationSettings(max_record_bytes=...) says otherwise: send it as several "
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
    """The shares of one job: ``replayers`` subtasks keep data, in the Java heap or on disk.

    Half of all task managers' heaps is for replayed data.
    """
    kept = heap.size * heap.managers // (2 * replayers) if replayers and in_heap else None
    return MemoryLimits(
        max_record_bytes or heap.size // RECORD_SHARE,
        ReplayMemory(replay_memory_mb * 2**20, kept),
    )
