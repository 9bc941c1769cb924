"""``tools/with_pauses.py``: processes are paused and continued, and the status is the command's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TOOL = Path(__file__).parents[1] / "tools/with_pauses.py"

# the child of the session's leader ends once it has been stopped and continued
PAUSED = """
import signal, subprocess, sys
child = "import signal; signal.signal(signal.SIGCONT, lambda *_: sys.exit(7)); signal.pause()"
sys.exit(subprocess.run([sys.executable, "-c", "import sys; " + child]).returncode)
"""


def test_processes_are_paused_and_the_status_is_that_of_the_command() -> None:
    done = subprocess.run(
        [sys.executable, TOOL, "--seed", "1", sys.executable, "-c", PAUSED],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 7, done.stderr
    assert "pauses, --seed 1" in done.stderr


def test_without_a_command_there_is_nothing_to_run() -> None:
    done = subprocess.run([sys.executable, TOOL], capture_output=True, text=True)
    assert done.returncode == 2
    assert "a command is missing" in done.stderr
