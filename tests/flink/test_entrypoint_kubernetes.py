"""Flink's Kubernetes entry point runs a rendered job's program, with its configuration.

There is no cluster here: the process is the container's, and its requests to Kubernetes get no
reply. It runs the program all the same.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from paimon_features.core.process.ports import free_ports
from paimon_features.core.process.waiting import wait_until
from paimon_features.flink.gateway import flink_home

pytestmark = [pytest.mark.flink, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]
PROGRAM = """\
import json, os, pathlib, sys
from paimon_features.flink.environment import is_application, new_job_id
found = {
    "arguments": sys.argv[1:],
    "application": is_application(),
    "job_id": new_job_id(),
}
whole = pathlib.Path(os.environ["FOUND"] + ".new")
whole.write_text(json.dumps(found))
whole.rename(os.environ["FOUND"])
"""
JOB_ID = "cd" * 16
HOUR = "3600000"


def deployment() -> dict[str, Any]:
    """The first FlinkDeployment of deploy/kubernetes/base."""
    text = (ROOT / "deploy" / "kubernetes" / "base" / "flink.yaml").read_text()
    first: dict[str, Any] = next(yaml.safe_load_all(text))
    return first["spec"]


@pytest.mark.long
def test_the_job_manager_of_a_pod_runs_the_program(tmp_path: Path) -> None:
    spec = deployment()
    rest_port, rpc_port = free_ports(2)
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    conf = tmp_path / "conf"
    conf.mkdir()
    shutil.copy(flink_home() / "conf" / "log4j-console.properties", conf)
    flag, _, *arguments = spec["job"]["args"]
    options = {
        **spec["flinkConfiguration"],
        # what the operator and Flink's client add to them
        "jobmanager.memory.process.size": spec["jobManager"]["resource"]["memory"],
        "taskmanager.memory.process.size": spec["taskManager"]["resource"]["memory"],
        "jobmanager.rpc.address": "127.0.0.1",
        "kubernetes.cluster-id": "shop-tiles-customer-spend",
        "kubernetes.container.image.ref": spec["image"],
        "execution.target": "kubernetes-application",
        "pipeline.jars": spec["job"]["jarURI"],
        "$internal.application.main": spec["job"]["entryClass"],
        "$internal.application.program-args": ";".join([flag, str(program), *arguments]),
        "$internal.pipeline.job-id": JOB_ID,
        # free ports: this process is on a host and not in a pod
        "rest.port": str(rest_port),
        "jobmanager.rpc.port": str(rpc_port),
    }
    (conf / "config.yaml").write_text(yaml.safe_dump(options))
    found, log = tmp_path / "found.json", tmp_path / "log"
    command = [sys.executable, "-m", "paimon_features.flink.entrypoint", "bash", "-c"]
    with socket.create_server(("127.0.0.1", 0)) as silent, log.open("wb") as output:
        process = subprocess.Popen(
            [*command, "exec kubernetes-jobmanager.sh kubernetes-application"],
            cwd=ROOT,
            env={
                **os.environ,
                "FLINK_CONF_DIR": str(conf),
                "TMPDIR": str(tmp_path),
                "FOUND": str(found),
                "KUBERNETES_SERVICE_HOST": "127.0.0.1",
                "KUBERNETES_SERVICE_PORT": str(silent.getsockname()[1]),
                "KUBERNETES_REQUEST_TIMEOUT": HOUR,
                "KUBERNETES_CONNECTION_TIMEOUT": HOUR,
            },
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            wait_until(lambda: found.is_file() or process.poll() is not None, 240)
        finally:
            process.kill()
            process.wait()
    assert found.is_file(), log.read_text()[-4000:]
    ran = json.loads(found.read_text())
    assert ran["arguments"] == ["--view", "customer_spend", "--project", "/project"]
    assert ran["application"] is True
    assert ran["job_id"] == JOB_ID
