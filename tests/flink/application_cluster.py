"""A cluster in application mode, of processes that a test starts and ends by their ids."""

from __future__ import annotations

import re
import subprocess
import sys
import urllib.request
from pathlib import Path

from paimon_features.core.errors import JobError
from paimon_features.core.process.flink_rest import FlinkRest
from paimon_features.core.process.ports import free_ports
from paimon_features.core.process.waiting import wait_until

ROOT = Path(__file__).parents[2]
WAIT_S = 240.0


class ApplicationCluster:
    """One task manager, and job managers that run a program, one after another."""

    def __init__(self, project: Path, logs: Path) -> None:
        self.project, self.logs = project, logs
        self.rest_port, self.rpc_port, self.metrics_port = free_ports(3)
        self.rest = FlinkRest(f"127.0.0.1:{self.rest_port}")
        self._started: list[subprocess.Popen[bytes]] = []
        self._start(
            "run", "taskmanager", "--host", "127.0.0.1", "--slots", "2", "--memory-mb", "1024"
        )

    def run(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a job manager that runs a program; it ends with the program's job."""
        sizes = ("--memory-mb", "768", "--metrics-port", str(self.metrics_port))
        return self._start("run", "application", program, *sizes, *arguments)

    def metrics(self) -> set[str]:
        """The names of the metrics that Prometheus would read from the job manager."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics") as page:
            lines = page.read().decode().splitlines()
        return {re.split(r"[{ ]", line)[0] for line in lines if not line.startswith("#")}

    def await_state(self, job_id: str, *states: str) -> None:
        """Wait until the job has one of these states."""

        def reached() -> bool:
            try:
                return self.rest.state(job_id) in states
            except JobError:
                return False

        assert wait_until(reached, WAIT_S), self.log()

    def log(self) -> str:
        """The ends of the processes' outputs."""
        return "\n".join(path.read_text()[-4000:] for path in sorted(self.logs.glob("*.log")))

    def stop(self) -> None:
        """End all processes that still run."""
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.wait()

    def _start(self, *command: str) -> subprocess.Popen[bytes]:
        ports = ["--rest-port", str(self.rest_port), "--rpc-port", str(self.rpc_port)]
        listen = ["--address", "127.0.0.1", "--listen", "127.0.0.1", "--project", str(self.project)]
        self.logs.mkdir(exist_ok=True)
        with (self.logs / f"{len(self._started)}-{command[1]}.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "paimon_features", "cluster", *command, *listen, *ports],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self._started.append(process)
        return process
