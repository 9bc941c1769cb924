"""Checks the types of the public API with pyright, as users of other editors see them.

    python tools/public_types.py

pyright is a program for Node.js, fetched by npx at the version below. Without npx, or where it
cannot be fetched, this says so and checks nothing: mypy has checked the same file (`make lint`).
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
VERSION = "1.1.414"
PROJECT = ROOT / "tests" / "public_types"


def main() -> int:
    npx = shutil.which("npx")
    if npx is None:
        return say("skipped: there is no npx (Node.js) on this machine")
    pyright = [npx, "--yes", f"pyright@{VERSION}"]
    fetched = subprocess.run([*pyright, "--version"], capture_output=True, text=True, cwd=ROOT)
    if fetched.returncode:
        reason = (fetched.stderr.strip().splitlines() or ["no reason"])[-1]
        return say(f"skipped: it cannot be fetched or does not run here: {reason[:200]}")
    command = [*pyright, "--project", str(PROJECT), "--pythonpath", sys.executable]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if "0 errors" not in done.stdout and not done.returncode:
        done.returncode = 1  # it has found no file
    say(done.stdout.strip().splitlines()[-1] if not done.returncode else f"\n{done.stdout}")
    return done.returncode


def say(text: str) -> int:
    print(f"pyright: {text}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
