"""Flink's own command line, with the Java, jars and Python of this installation.

::

    python -m paimon_features.flink run -m 127.0.0.1:8081 -py jobs/tiles.py --view customer_spend
"""

from __future__ import annotations

import os
import sys

from paimon_features.flink.gateway import flink_environment, flink_home
from paimon_features.lake.storage.file_path import note_stores_here

if __name__ == "__main__":
    # the jars that warehouse and checkpoints of this folder's project need
    note_stores_here()
    command = ["bash", str(flink_home() / "bin" / "flink"), *sys.argv[1:]]
    os.execvpe("bash", command, flink_environment())
