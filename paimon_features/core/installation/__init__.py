"""Requirements in addition to Python: Java and the Flink jars.

Each one is located or downloaded; if neither is possible, a ``SetupError`` states the remedy.
Nothing here imports Flink, Paimon or Redis, so it runs on every host.
"""

from __future__ import annotations

from paimon_features.core.installation.jars import class_path, fetch_jars
from paimon_features.core.installation.java import find_java_home

__all__ = [
    "class_path",
    "fetch_jars",
    "find_java_home",
]
