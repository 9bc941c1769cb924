"""What a reader may leave behind: threads, file descriptors, shared memory."""

from __future__ import annotations

import gc
import os
import re
import threading
from collections.abc import Callable
from itertools import pairwise


def own_threads() -> set[threading.Thread]:
    """Threads of readers and pipelines; others, TensorFlow's say, come and go as they like.

    A test compares by ``<=`` with those before it: one of a reader that an earlier test left in
    a cycle ends when that is collected.
    """
    names = ("snapshot-", "data-frame", "prefetch", "table-scan", "batch-ahead")
    return {thread for thread in threading.enumerate() if thread.name.startswith(names)}


def kept_each_time(work: Callable[[], object], times: int = 4) -> int:
    """The file descriptors that work leaves open whenever it runs.

    What leaks grows with every run. What a library's thread opens meanwhile, or what work
    opens once for good, does not: so the smallest growth from one run to the next counts.

    >>> kept = []
    >>> kept_each_time(lambda: kept.extend(open("/dev/null") for _ in range(9))) > 5
    True
    >>> for file in kept:
    ...     file.close()
    """
    counts = []
    for _ in range(times):
        work()
        gc.collect()
        counts.append(len(os.listdir("/proc/self/fd")))
    return min(after - before for before, after in pairwise(counts))


def shared_memory(pid: int) -> list[str]:
    """What a process made there: other programs of this machine use it as well."""
    number = re.compile(rf"(?<!\d){pid}(?!\d)")
    return sorted(name for name in os.listdir("/dev/shm") if number.search(name))
