"""Run a command while its processes are paused at random, as a busy machine pauses them.

    python tools/with_pauses.py .venv/bin/python -m pytest --fast -n 3

Code and tests that rest on measured time fail here within one run, and on a busy machine once in
fifty. Every second or so some of the processes of the command's session are stopped for up to
1.3 seconds and continued; the exit status is the command's.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

SHARE = 0.6
PAUSED_S, RUNNING_S = (0.2, 1.3), (0.2, 0.9)


def members(session: int) -> Iterator[int]:
    """The processes of a session that are not stopped already, as tests do with some of them.

    Without its leader, whose exit status is waited for.
    """
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != session:
            with contextlib.suppress(OSError):
                # after the name, which may contain anything: state, parent, group, session
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == session and fields[0] != "T":
                    yield int(entry.name)


def send(processes: Sequence[int], number: int) -> None:
    """Send a signal to those that are still there."""
    for process in processes:
        with contextlib.suppress(OSError):
            os.kill(process, number)


def has_ended(process: subprocess.Popen[bytes], within_s: float) -> bool:
    """Whether a process ends within some time."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(within_s)
    return process.returncode is not None


def run(command: Sequence[str], seed: int) -> int:
    """Run a command with pauses; its exit status."""
    chance, pauses = random.Random(seed), 0
    process = subprocess.Popen(command, start_new_session=True)
    try:
        while not has_ended(process, chance.uniform(*RUNNING_S)):
            chosen = [one for one in members(process.pid) if chance.random() < SHARE]
            send(chosen, signal.SIGSTOP)
            try:
                has_ended(process, chance.uniform(*PAUSED_S))
            finally:
                send(chosen, signal.SIGCONT)
            pauses += len(chosen)
    except KeyboardInterrupt:
        process.send_signal(signal.SIGINT)
    status = process.wait()
    print(f"{pauses} pauses, --seed {seed}", file=sys.stderr)
    return status


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("command", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    if not given.command:
        parser.error("a command is missing")
    return run(given.command, given.seed)


if __name__ == "__main__":
    sys.exit(main())
