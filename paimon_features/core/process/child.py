"""Child processes that end with the process that started them."""

from __future__ import annotations

import os
import sys
import threading

# Linux only: PR_SET_PDEATHSIG (1) with SIGKILL (9) ends the server when we end for any reason.
# A separate program that then executes the server, because `preexec_fn` is unsafe with threads.
# The signal is tied to the thread that forked, hence only from the main thread.
_DIE_WITH_PARENT = (
    "import ctypes, os, sys\n"
    "ctypes.CDLL(None).prctl(1, 9)\n"
    "if os.getppid() == int(sys.argv[1]): os.execv(sys.argv[2], sys.argv[2:])\n"
)


def bound_to_us(command: list[str]) -> list[str]:
    """Return the command, as one whose process is killed when this process ends.

    Only on Linux and from the main thread; elsewhere the command itself.
    """
    if sys.platform != "linux" or threading.current_thread() is not threading.main_thread():
        return command
    return [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, str(os.getpid()), *command]
