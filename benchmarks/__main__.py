"""Run benchmarks: ``python -m benchmarks [NAME...]``, all of them by default."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def main(names: list[str]) -> int:
    """Run each benchmark in a process of its own; the number of those that failed."""
    here = Path(__file__).parent
    known = sorted(p.stem for p in here.glob("*.py") if not p.stem.startswith("_"))
    unknown = [name for name in names if name not in known]
    if unknown:
        print(f"there is no benchmark {unknown[0]!r}; there is: {', '.join(known)}")
        return 2
    failed = 0
    for name in names or known:
        print(f"\n== {name}", flush=True)
        failed += (
            subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], check=False).returncode
            != 0
        )
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
