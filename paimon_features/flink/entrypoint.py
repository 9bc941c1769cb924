"""The entry point of a container that Kubernetes starts: a command in Flink's environment.

::

    python -m paimon_features.flink.entrypoint \\
        bash -c "kubernetes-jobmanager.sh kubernetes-application"

Flink's Kubernetes client and the Flink Kubernetes Operator start job and task managers by such
commands, through the program that ``kubernetes.entry.path`` names. They expect Flink's scripts on
PATH and its configuration in ``/opt/flink/conf`` (or FLINK_CONF_DIR). Here they find the Flink of
this installation, with its Java, jars and Python, and what the project of the working folder needs
for its warehouse and checkpoints.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from paimon_features.flink.gateway import flink_home, opened_modules, script_environment
from paimon_features.flink.workers import write_python
from paimon_features.lake.storage.file_path import note_stores_here

CONF_DIR = "/opt/flink/conf"
"""Where Kubernetes mounts Flink's configuration (``kubernetes.flink.conf.dir``)."""


def container_environment() -> dict[str, str]:
    """Return the environment of Flink's scripts.

    Logs and helper programs are in the temporary folder.
    """
    note_stores_here()
    conf = os.environ.get("FLINK_CONF_DIR", CONF_DIR)
    logs = os.environ.get("FLINK_LOG_DIR", str(Path(tempfile.gettempdir()) / "flink-log"))
    environment = script_environment(write_python(Path(tempfile.gettempdir()) / "flink-bin"))
    java = [environment.get("JDK_JAVA_OPTIONS", ""), opened_modules()]
    return environment | {
        "PATH": os.pathsep.join([str(flink_home() / "bin"), environment["PATH"]]),
        "FLINK_CONF_DIR": conf,
        "FLINK_LOG_DIR": logs,
        # the configuration of Kubernetes replaces the file in which Flink has these
        "JDK_JAVA_OPTIONS": " ".join(filter(None, java)),
    }


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    command = sys.argv[1:]
    os.execvpe(command[0], command, container_environment())
