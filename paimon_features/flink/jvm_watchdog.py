"""Ends the JVM of a process that does not run any more, though it exists.

The commits of a job in the JVM of its own process are not fenced: Paimon's committer checks no
lease. A process that is stopped alone (SIGSTOP, a debugger, a frozen thread) beats no more for its
leases, while its JVM continues to commit, and another machine takes the tables over after 120 s of
silence. So a small process of its own reads the process's beats from a pipe and kills the JVM
before.

This file is also the program of that process, which imports nothing of the package.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading

BEAT_S = 5.0
LOOKS = 18
"""The JVM is killed after so many intervals without a beat. A machine that was suspended, whose
clock may have gone on, resumes within one of them."""
_END_TIMEOUT_S = 5.0


class JvmWatchdog:
    """Beats for a JVM from a daemon thread, until ``close``; a child process watches the beats."""

    def __init__(self, pid: int, beat_s: float = BEAT_S, looks: int = LOOKS) -> None:
        self._closed = threading.Event()
        self._beat_s = beat_s
        self.process = subprocess.Popen(
            # isolated, and in a session of its own: Ctrl-C and Ctrl-Z are for the command
            [sys.executable, "-I", __file__, str(pid), str(beat_s), str(looks)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        self._thread = threading.Thread(target=self._beat, name="jvm-watchdog", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the watch, the JVM has ended or is about to; harmless to repeat."""
        self._closed.set()
        self._thread.join(_END_TIMEOUT_S)

    def _beat(self) -> None:
        assert self.process.stdin is not None
        pipe = self.process.stdin.fileno()
        with contextlib.suppress(OSError):
            while not self._closed.wait(self._beat_s):
                os.write(pipe, b".")
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        self.process.wait()


def watch(pid: int, beat_s: float, looks: int, beats: int = 0) -> None:
    """Kill a process once the descriptor ``beats`` is silent; return when it is closed."""
    parent, silent = os.getppid(), 0
    while silent < looks:
        readable, _, _ = select.select([beats], [], [], beat_s)
        if readable and not os.read(beats, 4_096):
            return
        silent = 0 if readable else silent + 1
    # a parent that has ended took its JVM along, and the number may be of another process by now
    if os.getppid() == parent:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    watch(int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]))
