"""Check when the alerts of docker/ fire, and Prometheus' settings: ``make alerts`` runs it.

It needs Go, and builds with it, once, Prometheus' own ``promtool``; with ``--tools`` it does only
that.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from go_programs import CACHE, go

PROMETHEUS = "github.com/prometheus/prometheus"
VERSION = "v0.305.0"
ROOT = Path(__file__).parents[1]
DOCKER = ROOT / "docker"


def main() -> int:
    """Run the tests of the rules; the exit code is promtool's."""
    promtool = str(_promtool(CACHE))
    if sys.argv[1:] == ["--tools"]:
        return 0
    settings = [DOCKER / "prometheus.yml", ROOT / "deploy/kubernetes/prometheus.yml"]
    for command in (
        ["check", "rules", DOCKER / "alerts.yml"],
        ["test", "rules", DOCKER / "alerts_test.yml"],
        # the rules are checked above; those of a cluster are mounted next to its settings
        *(["check", "config", "--syntax-only", path] for path in settings),
    ):
        code = subprocess.run([promtool, *map(str, command)]).returncode
        if code:
            return code
    return 0


def _promtool(work: Path) -> Path:
    # a module of its own, because that of Prometheus replaces modules: 'go install' refuses it
    path = work / "bin" / "promtool"
    if not path.is_file():
        module = work / "promtool"
        module.mkdir(parents=True, exist_ok=True)
        if not (module / "go.mod").is_file():
            go(["mod", "init", "promtool"], work, module)
        go(["get", f"{PROMETHEUS}/cmd/promtool@{VERSION}"], work, module)
        go(["build", "-o", str(path), f"{PROMETHEUS}/cmd/promtool"], work, module)
    return path


if __name__ == "__main__":
    sys.exit(main())
