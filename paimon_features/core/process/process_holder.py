"""Processes as owners of leases and locks: how one is identified, and whether it is alive."""

from __future__ import annotations

import calendar
import os
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from paimon_features.core.errors import OwnershipError

Liveness = tuple[Literal["alive", "dead", "unknown"], str]
"""Whether an owner lives, and the reason."""


@dataclass(frozen=True, slots=True)
class ProcessHolder:
    """A process, identified by its id and its start time, because ids are reused."""

    host: str
    pid: int
    started: int
    """The start time: clock ticks since boot (Linux), else seconds since 1970."""
    boot: str = ""
    """The boot id of the machine, because process ids restart with it."""
    namespace: str = ""
    """The PID namespace, in which the id is valid: containers of a machine have their own."""

    @classmethod
    def current(cls) -> ProcessHolder:
        """Return the holder of this process."""
        return cls.of(os.getpid())

    @classmethod
    def of(cls, pid: int) -> ProcessHolder:
        """Return a running process that this one can see."""
        started = _process_start(pid)
        if started is None:
            raise OwnershipError(f"process {pid} does not exist on this host")
        return cls(socket.gethostname(), pid, started, _boot_id(), _namespace())

    def liveness(self) -> Liveness:
        """Return True if it is alive; unknown for a process that this one cannot see."""
        if self.boot != _boot_id() or (not self.boot and self.host != socket.gethostname()):
            return "unknown", "it is on another machine, or this one was restarted since"
        elsewhere = self.namespace != _namespace()
        if elsewhere and (self.namespace or self.host != socket.gethostname()):
            return "unknown", "it is in another container (PID namespace) of this machine"
        running = _process_start(self.pid)
        if running is None or not _sees_own_processes():
            ended: Liveness = ("dead", "it has ended")
            return ended if running is None else ("unknown", "/proc is of another PID namespace")
        return ("alive", "it is running") if running == self.started else ("dead", "it has ended")

    def alive(self) -> tuple[bool, str]:
        """Return True if it is alive, and the reason. One that cannot be seen is, unless the
        machine of its name was restarted."""
        if self.host == socket.gethostname() and self.boot != _boot_id():
            return False, "the host was rebooted since"
        state, why = self.liveness()
        return state != "dead", why

    def is_near(self) -> bool:
        """Return True if it is on this machine and in this PID namespace."""
        here = ProcessHolder.current()
        return (self.boot, self.namespace) == (here.boot, here.namespace)

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


def is_running(pid: int) -> bool:
    """Return True if a process exists and is no zombie."""
    return _process_start(pid) is not None


def _process_start(pid: int) -> int | None:
    """Return the start time of a process, None if it is not running (or a zombie)."""
    if not os.path.exists("/proc/self/stat"):
        return _process_start_of_ps(pid)
    if not _sees_own_processes() and pid != os.getpid():
        return _exists(pid)
    try:
        folder = "self" if pid == os.getpid() else pid
        stat = Path(f"/proc/{folder}/stat").read_text("utf-8", "replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # the command may contain blanks and parentheses: parse after the last parenthesis
    after = stat[stat.rindex(")") + 2 :].split()
    return None if after[0] in ("Z", "X") else int(after[19])


def _process_start_of_ps(pid: int) -> int | None:
    """Return the same without /proc, in seconds since 1970."""
    requested = subprocess.run(
        ["ps", "-o", "stat=,lstart=", "-p", str(pid)],
        env={**os.environ, "LC_ALL": "C", "TZ": "UTC"},
        capture_output=True,
        text=True,
        check=False,
    )
    state, _, started = requested.stdout.strip().partition(" ")
    if not started or state.startswith("Z"):
        return None
    return calendar.timegm(time.strptime(started.strip(), "%a %b %d %H:%M:%S %Y"))


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("utf-8").strip()
    except OSError:
        return ""


def _namespace() -> str:
    """Return the PID namespace of this process."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _sees_own_processes() -> bool:
    """Return True if ids of processes mean the same in /proc as for this process."""
    try:
        return os.readlink("/proc/self") == str(os.getpid())
    except OSError:
        return True  # no /proc: ps has no namespaces


def _exists(pid: int) -> int | None:
    """Return 0 if a process exists whose start time is unknown."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    return 0
