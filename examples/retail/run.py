"""The demo: the whole loop once, on a real retail log, with the commands a user would type.

``paimon-features demo --into demo`` (or ``make demo``) runs it. It starts a Redis-protocol
server, a tile job and a materializer, ends all three, also on Ctrl-C, and leaves a project to
look around in and ``report.html``.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from report import Facts, write_report
from rich.console import Console

from paimon_features.errors import JobError
from paimon_features.project import Project, now_ms
from paimon_features.setup.redis_server import RedisServer
from paimon_features.tables import EventWriter, latest_snapshot, read_arrow
from paimon_features.tables.lease import acquire
from paimon_features.windows import DAY_MS

HERE = Path(__file__).parent
LOG = HERE / "data" / "online_retail.parquet"
BROKEN = HERE / "data" / "broken.csv"
STREAMED_DAYS = 2
CUSTOMERS = [12748, 14911, 17850, 99999]
SERVICE = "will_buy_v1"
LOOP = "will_buy"

console = Console(highlight=False)


class Demo:
    """One run of the demo in the folder ``into``."""

    def __init__(self, into: Path) -> None:
        self.into = into.resolve()
        self.facts = Facts()
        self.processes = ExitStack()

    def run(self) -> None:
        started = time.monotonic()
        with self.processes:
            self._step("Project", self._project)
            self._step("Ingest the log", self._ingest)
            self._step("Tiles, while the last days stream in", self._stream)
            self._step("Look customers up", self._lookup)
            self._step("Training set", self._training_set)
            self._step("Train, feed losses back, train on what was hard", self._train)
            self._step("Verify", self._verify)
        self._draw()
        console.print(
            f"\nDone in {time.monotonic() - started:.0f} s. Look at [b]{self.into}/report.html[/b], "
            f"and go on from here:\n"
            f"  cd {self.into}\n"
            f"  paimon-features plan          # edit features.py first\n"
            f"  paimon-features jobs\n"
            f"  paimon-features --help"
        )
