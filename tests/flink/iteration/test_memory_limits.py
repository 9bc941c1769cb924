"""Limits of records by the memory of task managers, and processes whose state connection ends."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("pyflink", reason="pip install 'paimon-features[flink]'")

from paimon_features.core.errors import JobError
from paimon_features.iteration.flink.memory_limits import TaskManagerMemory, memory_limits

MIB = 2**20


@pytest.mark.parametrize(
    ("off_heap", "in_processes", "expected", "remedy"),
    [
        (
            128,
            True,
            32,
            "1/4 of its direct memory .* outside the heap .cluster start --off-heap-mb",
        ),
        (128, False, 128, "1/8 of its heap .* or give the task managers more memory$"),
        (1_024, True, 128, "1/8 of its heap"),
    ],
)
def test_records_of_processes_are_limited_by_direct_memory_as_well(
    off_heap: int, in_processes: bool, expected: int, remedy: str
) -> None:
    managers = TaskManagerMemory(1_024 * MIB, off_heap=off_heap * MIB)
    limits = memory_limits(managers, in_processes=in_processes)
    assert limits.record_bytes == expected * MIB
    assert limits.checked(bytes(expected * MIB), "a record")
    with pytest.raises(JobError, match=remedy):
        limits.checked(bytes(expected * MIB + 1), "a record")
    chosen = memory_limits(managers, in_processes=in_processes, max_record_bytes=7)
    assert chosen.record_bytes == 7


DYING = """
import importlib.machinery, sys, threading, time
from paimon_features.iteration.flink.hosts import WORKER_MODULE, end_with_state_channel

# as a process that Flink started; a caller's is not ended
sys.modules["__main__"].__spec__ = importlib.machinery.ModuleSpec(WORKER_MODULE, None)

end_with_state_channel()
end_with_state_channel()

def die():
    raise RuntimeError("recvmsg: connection reset by peer")

for name in ("another", "read_state"):
    thread = threading.Thread(target=die, name=name)
    thread.start()
    thread.join()
    print("after", name, flush=True)
time.sleep(600)
"""


def test_a_process_without_its_state_ends_and_says_why() -> None:
    done = subprocess.run(
        [sys.executable, "-c", DYING], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 1
    assert done.stdout in ("after another\n", "after another\nafter read_state\n")
    assert done.stderr.count("connection reset by peer") == 2
    assert done.stderr.count("start the cluster with --off-heap-mb") == 1
