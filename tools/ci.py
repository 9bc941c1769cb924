"""Every check that must hold, one part after the other, within a time: ``.ci/run`` runs it.

    .venv/bin/python tools/ci.py [--started SECONDS] [PART...]

A part is a target of the Makefile. The first one that fails ends the run and fails it. Some parts
need a foreign program: where ``make PART-tools`` cannot get it, the part is not run, the list at
the end says why, and the run goes on. After ``BUDGET_MIN`` minutes only essential parts start, and
``test-long``, the last one, starts no further test; a part that still runs after ``LIMIT_MIN`` is
killed and has failed.

At the end stand the time of each part and what was skipped, with the reason and how often. A skip
whose reason names the target that does run it (``make feast-test``) is left out once that target
has passed.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

ROOT = Path(__file__).parents[1]
BUDGET_MIN = 75.0
LIMIT_MIN = 86.0
TOOLS_MIN = 10.0
"""As long as the programs of one part may take to be installed."""

PIPE_S = 5.0
"""How long output is awaited after the end of a part: a process that it left may hold the pipe."""

WITH_TOOLS = ("feast-test", "adapters-test", "ui-test", "manifests", "alerts")
"""Parts with a target ``PART-tools`` that gets the programs they need."""

ESSENTIAL = ("test", "lint", "notebooks", "docs")
"""Parts that run however late it is."""

DEFAULT = (*ESSENTIAL, *WITH_TOOLS, "test-long")
PARTS = (*DEFAULT, "mutants")
"""All parts; ``mutants`` runs where it is named, as its faults do not all fit into the time."""

ARGS = {"mutants": "--minutes 12"}

APT = "apt-get -o Acquire::Retries=0 -o Acquire::http::Timeout=30 -qq"
INSTALL_CHROMIUM = (
    f"{APT} update && DEBIAN_FRONTEND=noninteractive {APT} install -y --no-install-recommends"
    " chromium"
)

SKIPPED = re.compile(r"^SKIPPED \[(\d+)\] [^:]+(?::\d+)?: (.+)$", re.MULTILINE)
"""A line of pytest's summary (``-rs``)."""

OTHER_SKIP = re.compile(r"^(\w+: skipped: .+|.*\d+ not run: .+)$", re.MULTILINE)
"""What tools say that leave something out: tools/public_types.py and tools/mutants.py."""

COUNTS = re.compile(r"^(?:=+ )?(\d+ (?:passed|failed|skipped).*) in [\d.]+s", re.MULTILINE)
"""pytest's last line."""


@dataclass
class Part:
    """A part that was tried: ``code`` is None if it was not run, and ``reason`` says why."""

    name: str
    code: int | None
    seconds: float
    output: str = ""
    reason: str = ""

    def __str__(self) -> str:
        if self.code is None:
            return f"not run: {self.name}: {self.reason}"
        counts = "; ".join(COUNTS.findall(self.output))
        result = "passed" if self.code == 0 else f"FAILED: {self.reason or f'exit {self.code}'}"
        return f"{self.name:14} {self.seconds / 60:5.1f} min  {result}  {counts}".rstrip()


@dataclass
class Run:
    """A run of parts; ``end`` and ``limit`` are times of ``time.time()``."""

    end: float
    limit: float
    parts: list[Part] = field(default_factory=list)

    def run(self, names: Sequence[str]) -> int:
        """Run the parts and print what came of them; return the exit code."""
        for name in names:
            part = self._part(name)
            self.parts.append(part)
            print(f"--- {part}", flush=True)
            if part.code:
                break
        print("\n".join(self.summary()), flush=True)
        return 1 if any(part.code for part in self.parts) else 0

    def summary(self) -> list[str]:
        """Return the lines that a run ends with."""
        lines = ["", "parts", *map(str, self.parts)]
        lines += ["", "skipped, with the number of tests"]
        lines += [f"{count:6} {reason}" for reason, count in skips(self.parts).most_common()]
        totals = dict.fromkeys(("passed", "failed", "skipped"), 0)
        for part in self.parts:
            for counts in COUNTS.findall(part.output):
                for number, word in re.findall(r"(\d+) (passed|failed|skipped)", counts):
                    totals[word] += int(number)
        return [*lines, "", ", ".join(f"{number} {word}" for word, number in totals.items())]

    def _part(self, name: str) -> Part:
        started = time.time()
        if name not in ESSENTIAL and started > self.end:
            return Part(name, None, 0, reason=f"{BUDGET_MIN:.0f} minutes are over")
        if name in WITH_TOOLS and (lack := self._lacks(name)):
            return Part(name, None, time.time() - started, reason=lack)
        # the conftest skips the tests that would start later
        last = {"PAIMON_FEATURES_FUZZ_UNTIL": str(self.end)} if name == "test-long" else {}
        arguments = [f"ARGS={ARGS[name]}"] if name in ARGS else []
        code, output = execute(["make", name, *arguments], self.limit, last)
        reason = f"killed after {LIMIT_MIN:.0f} minutes of the whole run" if code is None else ""
        return Part(name, 124 if code is None else code, time.time() - started, output, reason)

    def _lacks(self, name: str) -> str | None:
        """Return what keeps the programs of a part from being installed, None if they are."""
        until = min(time.time() + TOOLS_MIN * 60, self.limit)
        if name == "ui-test" and not any(map(shutil.which, ("chromium", "chromium-browser"))):
            if os.geteuid() or shutil.which("apt-get") is None:
                return "no chromium on the PATH, and it cannot be installed here"
            execute(["sh", "-c", INSTALL_CHROMIUM], until)
        code, output = execute(["make", f"{name}-tools"], until)
        if code is None:
            return f"make {name}-tools took longer than {TOOLS_MIN:.0f} minutes"
        return last_line(output) if code else None


def skips(parts: Sequence[Part]) -> Counter[str]:
    """Return how many tests each reason skipped, without those that another part has run."""
    passed = {part.name for part in parts if part.code == 0}
    counts: Counter[str] = Counter()
    for part in parts:
        for number, reason in SKIPPED.findall(part.output):
            targets = set(re.findall(r"make ([\w-]+)", reason))
            if not targets & passed - {part.name}:
                counts[reason.removeprefix("Skipped: ")] += int(number)
        counts.update(line.strip() for line in OTHER_SKIP.findall(part.output))
    return counts


def last_line(output: str) -> str:
    """Return the last line that is not from make itself."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return next((line for line in reversed(lines) if not line.startswith("make")), "no reason")


def execute(
    command: Sequence[str], until: float, settings: Mapping[str, str] | None = None
) -> tuple[int | None, str]:
    """Run a command and show its output; return its exit code, None if it was killed, and that."""
    print(f"--- {' '.join(command)}", flush=True)
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, **(settings or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        process_group=0,
    )
    assert process.stdout is not None
    output: list[bytes] = []
    reader = threading.Thread(target=_show, args=(process.stdout, output), daemon=True)
    reader.start()
    try:
        code: int | None = process.wait(max(0, until - time.time()))
    except subprocess.TimeoutExpired:
        code = None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        reader.join(PIPE_S)
    return code, b"".join(output).decode(errors="replace")


def _show(stream: IO[bytes], output: list[bytes]) -> None:
    with stream:
        while part := os.read(stream.fileno(), 1 << 16):
            output.append(part)
            sys.stdout.buffer.write(part)
            sys.stdout.buffer.flush()


def main() -> int:
    """Run the parts that are named, else all."""
    parser = argparse.ArgumentParser(description="Every check that must hold.")
    parser.add_argument("parts", nargs="*", default=DEFAULT, metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--started", type=float, default=time.time(), help="When the run started.")
    arguments = parser.parse_args()
    if unknown := set(arguments.parts) - set(PARTS):
        parser.error(f"unknown part {sorted(unknown)[0]!r}; available: {', '.join(PARTS)}")
    # whoever ends this ends the part, too
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    started = arguments.started
    return Run(started + BUDGET_MIN * 60, started + LIMIT_MIN * 60).run(arguments.parts)


if __name__ == "__main__":
    sys.exit(main())
