"""Programs that checks need and that are written in Go: installed once, with their own versions.

    python tools/go_programs.py

installs the S3 servers of ``make chaos`` and prints their folder; without Go it says so, and the
tests against them are skipped.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

CACHE = Path.home() / ".cache/paimon-features/go"
S3_SERVERS = {
    "gofakes3": "github.com/johannesboyne/gofakes3/cmd/gofakes3@v1.2.0",
    "versitygw": "github.com/versity/versitygw/cmd/versitygw@v1.8.0",
}


def main() -> int:
    """Install the S3 servers."""
    if shutil.which("go") is None:
        print("Go is not installed: moto is the only S3 server of this run", file=sys.stderr)
        return 0
    for name, module in S3_SERVERS.items():
        install(name, module, CACHE)
    print(CACHE / "bin")
    return 0


def install(name: str, module: str, work: Path) -> Path:
    """The path of a Go program, installed below ``work`` where it is missing."""
    path = work / "bin" / name
    if not path.is_file():
        print(f"installing {module}", file=sys.stderr)
        go(["install", module], work)
    return path


def go(arguments: list[str], work: Path, module: Path | None = None) -> str:
    """Run Go with its folders below ``work``, in ``module``; return its standard output.

    Raises
    ------
    SystemExit
        If there is no Go, or if it fails; its last line says why.
    """
    if shutil.which("go") is None:
        raise SystemExit("Go is not installed")
    work.mkdir(parents=True, exist_ok=True)
    folders = {"GOPATH": f"{work}/path", "GOCACHE": f"{work}/cache", "GOBIN": f"{work}/bin"}
    done = subprocess.run(
        ["go", *arguments],
        cwd=module or work,
        env={**os.environ, **folders},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        print(done.stderr, file=sys.stderr)
        reason = (done.stderr.strip().splitlines() or ["no reason"])[-1].strip()
        raise SystemExit(f"go {' '.join(arguments)}: {reason}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
