"""Processes of the operating system, as tests that kill some look at them."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO


def is_running(pid: int | None) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def interrupted(call: Callable[[], object], after_s: float) -> None:
    """Call a function, and interrupt this process meanwhile, as Ctrl-C does."""
    timer = threading.Timer(after_s, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    call()
    timer.join()  # it may come late


def line_with(stream: IO[str], text: str) -> str:
    """The next line with this text: warnings of libraries may stand between a program's lines.

    Raises
    ------
    AssertionError
        If the stream ends before it.
    """
    before = []
    for line in iter(stream.readline, ""):
        if text in line:
            return line
        before.append(line)
    raise AssertionError(f"{text!r} was not printed; got {''.join(before)!r}")


def processes_of(folder: Path) -> list[int]:
    """Processes that run in the folder or name it in their arguments."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            there = os.readlink(entry / "cwd") == str(folder)
            named = str(folder).encode() in (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if there or named:
            found.append(int(entry.name))
    return found
