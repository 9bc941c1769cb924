"""The session cluster that all Flink tests of a worker share."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class SessionCluster(NamedTuple):
    """A running cluster of one task manager with four slots."""

    address: str
    state_dir: Path
