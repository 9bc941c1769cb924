"""Commands as a user would type them: to their end, in the background, or next to other steps."""

from __future__ import annotations

import io
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console

from paimon_features.core.errors import JobError, OnlineStoreError
from paimon_features.core.process.interrupts import uninterrupted


class Processes:
    """The commands of one demo in the folder ``into``; what they print is in ``*.log`` there.

    A context: at its end, also on Ctrl-C, every process is ended. ``resources`` are closed with it.
    """

    def __init__(self, into: Path) -> None:
        self.into = into
        self.resources = ExitStack()
        self._background: list[tuple[tuple[str, ...], subprocess.Popen[str]]] = []
        self._commands: set[subprocess.Popen[str]] = set()
        self._ends = False
        self._console = Console(highlight=False, soft_wrap=True)
        self._of_thread = threading.local()

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        self.resources.close()

    def say(self, text: str) -> None:
        """Print a line; what runs next to other steps prints when it is waited for."""
        getattr(self._of_thread, "console", self._console).print(text)

    def command(self, *words: str) -> str:
        """Run a command to its end; returns what it printed to stdout."""
        self.say(f"  [dim]$ paimon-features {' '.join(words)}[/dim]")
        path = self.into / "demo.log"
        if self._ends:
            raise JobError("the demo has been ended")
        with path.open("a") as log:
            process = None
            try:
                with uninterrupted():
                    process = self._start(words, stdout=subprocess.PIPE, stderr=log)
                    self._commands.add(process)
                reported, _ = process.communicate()
            finally:
                if process is not None:
                    _end(process)
                    self._commands.remove(process)
            log.write(f"\n$ paimon-features {' '.join(words)}\n{reported}")
        if process.returncode:
            raise JobError(
                f"'paimon-features {' '.join(words)}' ended with {process.returncode}; "
                f"see {path}:\n{_tail(path)}"
            )
        return reported

    def background(self, *words: str) -> None:
        """Start a command that runs until the demo ends."""
        self.say(f"  [dim]$ paimon-features {' '.join(words)} &[/dim]")
        log = self.resources.enter_context((self.into / f"{words[0]}.log").open("w"))
        with uninterrupted():
            process = self._start(words, stdout=log, stderr=subprocess.STDOUT)
            self.resources.callback(_end, process)
        self._background.append((words, process))

    def aside(self, action: Callable[[], None]) -> Callable[[], None]:
        """Start ``action`` in a thread; the function returned waits for it, and prints its lines.

        An error of it is raised there.
        """
        lines = io.StringIO()
        errors: list[BaseException] = []

        def run() -> None:
            self._of_thread.console = Console(
                file=lines,
                highlight=False,
                soft_wrap=True,
                force_terminal=self._console.is_terminal,
            )
            try:
                action()
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=run, name="demo-aside")
        self.resources.callback(thread.join)
        self.resources.callback(self._end_commands)  # first, so that the thread ends
        thread.start()

        def wait() -> None:
            thread.join()
            self._console.file.write(lines.getvalue())
            if errors:
                raise errors[0]

        return wait

    def wait_for(self, what: str, arrived: Callable[[], bool], timeout_s: float) -> None:
        """Wait until ``arrived``, as long as the processes in the background run."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            for words, process in self._background:
                if process.poll() is not None:
                    log = self.into / f"{words[0]}.log"
                    raise JobError(f"'{' '.join(words)}' has ended; see {log}:\n{_tail(log)}")
            try:
                if arrived():
                    return
            except OnlineStoreError:  # not ready yet, or a loaded machine
                time.sleep(0.2)
            time.sleep(0.02)
        raise JobError(f"{what} did not arrive within {timeout_s:.0f} s; see {self.into}/*.log")

    def _start(self, words: tuple[str, ...], stdout: Any, stderr: Any) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "paimon_features", *words],
            cwd=self.into, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, text=True,
            # Ctrl-C reaches the demo alone, which then ends each command once
            start_new_session=True,
        )  # fmt: skip

    def _end_commands(self) -> None:
        self._ends = True
        for process in list(self._commands):
            _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    """End a command of ours as Ctrl-C would; by force if it does not listen."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(timeout=40)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    if process.stdout is not None:
        process.stdout.close()


def _tail(path: Path, lines: int = 12) -> str:
    return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])
