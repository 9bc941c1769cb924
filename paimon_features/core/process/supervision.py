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
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_CRASHES = tuple(
    getattr(signal, name) for name in ("SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGSEGV")
)
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LONGEST = 4_000
_report: Callable[[str], None] | None = None
_file = ""


@contextmanager
def reading(file: str) -> Iterator[None]:
    """Record the file that is read in the block, for the error about a crash."""
    outer = _file
    _record(file)
    yield
    _record(outer)


def _record(file: str) -> None:
    global _file
    _file = file
    if _report is not None:
        _report(file)


def report_reading(report: Callable[[str], None]) -> None:
    """Report by ``report`` which file ``reading`` records, for whoever outlives this process."""
    global _report
    _report = report


def crash_text(file: str, code: int | None, may_need: str = "") -> str:
    """Return the error about a process that ended with ``code`` (as Popen has it) at a file."""
    name = f"signal {signal.Signals(-code).name}" if code and code < 0 else f"exit code {code}"
    return (
        f"{file}: the process that read it ended with {name}: the file is damaged or "
        f"malicious{may_need}; write it again with the program that it is from"
    )


# PR_SET_PDEATHSIG (1) with SIGKILL (9) ends a child when we end for any reason. A separate program
# that then executes the command, because `preexec_fn` is unsafe with threads. The signal is tied to
# the thread that forked, hence only from the main thread.
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


def run_supervised(run: Callable[[], None], fail: Callable[[str], None]) -> None:
    """Run a command, which may raise SystemExit, in a process that ends with this one.

    A crash is reported by ``fail``, and the exit code is 1 then. To be called before threads are
    started. Only on Linux; elsewhere the command runs in this process.
    """
    if sys.platform != "linux":
        return run()
    note = mmap.mmap(-1, _LONGEST + 1)

    def write(file: str) -> None:
        text = file.encode(errors="replace")[:_LONGEST]
        note[: len(text) + 1] = text + b"\0"

    report_reading(write)
    ours = os.getpid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if it is ignored, no exit code is kept
    child = os.fork()
    if not child:
        _end_with(ours)
        return run()
    code = _wait(child)
    if -code in _CRASHES:
        file = note[:].partition(b"\0")[0].decode(errors="replace")
        fail(f"{crash_text(file, code)}. Nothing was ingested" if file else _fault(code))
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


def _fault(code: int) -> str:
    return (
        f"the process of this command ended with signal {signal.Signals(-code).name}, which is a "
        "fault of a library; run it with PYTHONFAULTHANDLER=1 and report what it prints"
    )
