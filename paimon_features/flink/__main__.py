"""Flink's own command line, with the Java, jars and Python of this installation.

::

    python -m paimon_features.flink run -m 127.0.0.1:8081 -py jobs/tiles.py --view customer_spend
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

from paimon_features.config import find_root, read_config
from paimon_features.errors import ConfigurationError
from paimon_features.flink.gateway import flink_environment, flink_home
from paimon_features.tables.storage.file_path import note_stores

if __name__ == "__main__":
    # the jars that warehouse and checkpoints of this folder's project need
    with suppress(ConfigurationError):
        note_stores(read_config(find_root(Path("."))))
    command = ["bash", str(flink_home() / "bin" / "flink"), *sys.argv[1:]]
    os.execvpe("bash", command, flink_environment())
