"""The process that runs the local cluster's processes, and starts those again that end.

``cluster start`` starts it, detached, with the environment of Flink's scripts and a file of what to
run. It writes what it does to ``supervisor.log``, and the state of each process to
``processes.json``. It ends, and all of them with it, on SIGTERM; on Linux they end with it in every
case, also after SIGKILL::

    cluster start --> supervisor --> job manager      (restarted after 0.5, 1, 2, ... 30 s)
                                 --> task manager 1
                                 --> task manager 2
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

from paimon_features.core.process.supervision import bound_to_us
from paimon_features.core.times.clock import now_ms
from paimon_features.lake.storage.json_files import write_plain_json

TASKS, PROCESSES, LOG = "supervisor.json", "processes.json", "supervisor.log"
"""Files in the folder of a cluster: what to run, what runs, what happened."""
BACK_OFF_S = (0.5, 30.0)
"""The first and the longest wait before a restart; it doubles with each."""
STEADY_S = 60.0
"""A process that ran for so long before it ended is restarted after the first wait again."""
STOP_TIMEOUT_S = 15.0
POLL_S = 0.2
MAX_OUTPUT_BYTES = 1 << 20

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SupervisedTask:
    """A process to keep running: its name, and the script of Flink with its arguments."""

    name: str
    command: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ProcessState:
    """A process of the cluster. ``pid`` is None while it is waited for to be restarted.

    ``restarts`` counts since the start of the cluster; ``exit_code`` is that of the last one that
    ended, at ``ended_ms`` (UTC): negative is the number of a signal.
    """

    name: str
    pid: int | None
    restarts: int = 0
    exit_code: int | None = None
    ended_ms: int | None = None

    def __str__(self) -> str:
        now = "waits for its restart" if self.pid is None else f"pid {self.pid}"
        if self.exit_code is None:
            return f"{self.name}: {now}"
        how = f"exit code {self.exit_code}" if self.exit_code >= 0 else f"signal {-self.exit_code}"
        times = "once" if self.restarts == 1 else f"{self.restarts} times"
        return f"{self.name}: {now}, restarted {times}, last after {how}"


def read_states(folder: Path) -> tuple[ProcessState, ...]:
    """Return the states of a cluster's processes; none if it was never started."""
    try:
        document = json.loads((folder / PROCESSES).read_text("utf-8"))
    except FileNotFoundError:
        return ()
    return tuple(ProcessState(**state) for state in document["processes"])


def back_off_s(failures: int) -> float:
    """Return how long to wait after so many failures in a row, 1 or more.

    >>> [back_off_s(failures) for failures in (1, 2, 3, 7, 1000)]
    [0.5, 1.0, 2.0, 30.0, 30.0]
    """
    first, longest = BACK_OFF_S
    return float(min(longest, first * 2.0 ** min(failures - 1, 20)))


class _Supervised:
    """One process, which is started again after it ended."""

    def __init__(self, task: SupervisedTask, log_dir: Path) -> None:
        self.task = task
        self.state = ProcessState(task.name, None)
        self._output = log_dir / f"{task.name}.out"
        self._process: subprocess.Popen[bytes] | None = None
        self._failures = 0
        self._began = self._due = time.monotonic()

    def poll(self) -> bool:
        """Start it if that is due; returns whether its state has changed."""
        now = time.monotonic()
        if self._process is None:
            if now < self._due:
                return False
            self._start()
            return True
        code = self._process.poll()
        if code is None:
            return False
        self._process = None
        self._failures = 1 if now - self._began >= STEADY_S else self._failures + 1
        wait_s = back_off_s(self._failures)
        self._due = now + wait_s
        state = self.state
        _log.warning(
            "%s (pid %s) has ended with %s; it is started again in %g s",
            *(state.name, state.pid, code, wait_s),
        )
        self.state = ProcessState(state.name, None, state.restarts + 1, code, now_ms())
        return True

    def signal(self, number: int) -> None:
        if self._process is not None and self._process.poll() is None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)

    @property
    def ended(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def _start(self) -> None:
        with suppress(FileNotFoundError):
            if self._output.stat().st_size > MAX_OUTPUT_BYTES:
                self._output.unlink()
        with self._output.open("ab") as output:
            self._process = subprocess.Popen(
                bound_to_us(list(self.task.command)),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                # a fixed ident makes the names of log and pid files predictable
                env={**os.environ, "FLINK_IDENT_STRING": self.task.name},
            )
        self._began = time.monotonic()
        self.state = replace(self.state, pid=self._process.pid)
        _log.info("%s has pid %s", self.state.name, self.state.pid)


def supervise(folder: Path, log_dir: Path) -> None:
    """Run the processes of ``folder`` until SIGTERM or SIGINT."""
    stopped = False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal stopped
        stopped = True

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    tasks = json.loads((folder / TASKS).read_text("utf-8"))["tasks"]
    running = [_Supervised(SupervisedTask(t["name"], tuple(t["command"])), log_dir) for t in tasks]
    try:
        while not stopped:
            changed = [one for one in running if one.poll()]
            if changed:
                _write(folder, running)
            time.sleep(POLL_S)
    finally:
        _end(running)
        _log.info("stopped")


def _write(folder: Path, running: Sequence[_Supervised]) -> None:
    states: Mapping[str, Any] = {"processes": [asdict(one.state) for one in running]}
    try:
        write_plain_json(folder / PROCESSES, states)
    except Exception:  # a full disk must not end the cluster
        _log.exception("%s cannot be written", PROCESSES)


def _end(running: Sequence[_Supervised]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + STOP_TIMEOUT_S
        for one in running:
            one.signal(number)
        while time.monotonic() < deadline and not all(one.ended for one in running):
            time.sleep(POLL_S / 4)


def _detach() -> None:
    """Continue in a child that outlives the caller, which reads the child's id and continues."""
    pid = os.fork()
    if pid:
        os.write(1, str(pid).encode())
        os._exit(0)
    os.setsid()  # Ctrl-C in the terminal is for the client only
    os.dup2(2, 1)


if __name__ == "__main__":
    if sys.argv[3:] == ["--detach"]:
        _detach()
    logging.basicConfig(
        filename=Path(sys.argv[2]) / LOG,
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(message)s",
    )
    supervise(Path(sys.argv[1]), Path(sys.argv[2]))
