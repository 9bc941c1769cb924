"""A command in a process that a damaged file may bring down, watched by the one that was started.

Decoders of files in C++ abort their process where a file is damaged in a way that they do not
expect. To read each file in a process of its own costs a third of an ingestion; a fork before
anything is imported costs nothing. Its crash is an error and an exit code, not a signal.
"""

from __future__ import annotations

import mmap
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_CRASHES = tuple(
    getattr(signal, name) for name in ("SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGSEGV")
)
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LONGEST = 4_000
_note: mmap.mmap | None = None


@contextmanager
def reading(name: str) -> Iterator[None]:
    """Record what is read in the block, for the error about a crash."""
    _write(name)
    yield
    _write("")


def _write(name: str) -> None:
    if _note is not None:
        text = name.encode(errors="replace")[:_LONGEST]
        _note[: len(text) + 1] = text + b"\0"


def run_supervised(run: Callable[[], None], fail: Callable[[str], None]) -> None:
    """Run a command, which may raise SystemExit, in a process that ends with this one.

    A crash is reported by ``fail``, and the exit code is 1 then. To be called before threads are
    started. Only on Linux; elsewhere the command runs in this process.
    """
    global _note
    if sys.platform != "linux":
        return run()
    _note = mmap.mmap(-1, _LONGEST + 1)
    ours = os.getpid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if it is ignored, no exit code is kept
    child = os.fork()
    if not child:
        _end_with(ours)
        return run()
    code = _wait(child)
    if -code in _CRASHES:
        file = _note[:].partition(b"\0")[0].decode(errors="replace")
        fail(_crash(file, signal.Signals(-code).name))
        code = 1
    if code < 0:  # somebody ended it: the same end for us
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    raise SystemExit(code)


def _end_with(parent: int) -> None:
    import ctypes

    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os._exit(1)


def _wait(child: int) -> int:
    """Return the exit code of the child, or minus the signal that ended it.

    Signals are passed on.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD, *_PASSED_ON])
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD, *_PASSED_ON])
            return os.waitstatus_to_exitcode(status)
        received = signal.sigwaitinfo([signal.SIGCHLD, *_PASSED_ON])
        # the terminal's Ctrl-C, which the kernel sends, reaches both of us
        if received.si_signo != signal.SIGCHLD and received.si_code <= 0:
            os.kill(child, received.si_signo)


def _crash(file: str, name: str) -> str:
    if not file:
        return (
            f"the process of this command ended with signal {name}, which is a fault of a library; "
            "run it with PYTHONFAULTHANDLER=1 and report what it prints"
        )
    return (
        f"{file}: the process that read it ended with signal {name}: the file is damaged or "
        "malicious; write it again with the program that it is from. Nothing was ingested"
    )
