"""Summaries of the tokens' use: a line per client and minute, in a file for the audit log.

Never the token, never what was read: its name, requests, rows and refusals.
"""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

from paimon_features.serving.http.logs import LOGGER
from paimon_features.serving.http.metrics import OTHERS

INTERVAL_S = 60.0
MAX_CLIENTS = 10_000
"""Clients of an interval with a line of their own; the others share one."""
MAX_FILE_BYTES = 64 << 20


class TokenUse:
    """Collects the use of one worker, and appends it to a file of its own a day.

    A folder that cannot be written to costs summaries, and no request; it is logged once.
    """

    def __init__(self, folder: Path, project: str) -> None:
        self._folder = folder
        self._project = project
        self._host = socket.gethostname()
        self._totals: dict[str, list[int]] = {}
        self._since_s: float | None = None
        self._failed = False

    def add(self, client: str, counts: tuple[int, int, int], now_s: float) -> None:
        """Add requests, rows and refusals of a client; ``now_s`` is Unix time."""
        if self._since_s is None:
            self._since_s = now_s
        if client not in self._totals and len(self._totals) >= MAX_CLIENTS:
            client = OTHERS
        total = self._totals.setdefault(client, [0, 0, 0])
        for number, count in enumerate(counts):
            total[number] += count

    def write(self, now_s: float, *, at_once: bool = False) -> None:
        """Append what was collected, once a minute."""
        since_s = self._since_s
        if since_s is None or (now_s - since_s < INTERVAL_S and not at_once):
            return
        lines = [
            {
                "time_ms": int(now_s * 1_000),
                "since_ms": int(since_s * 1_000),
                "kind": "token_use",
                "project": self._project,
                "host": self._host,
                "name": client,
                "requests": requests,
                "rows": rows,
                "refused": refused,
            }
            for client, (requests, rows, refused) in sorted(self._totals.items())
        ]
        self._totals, self._since_s = {}, None
        day = int(now_s // 86_400)
        path = self._folder / f"token-use-{day}-{self._host}-{os.getpid()}.jsonl"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with path.open("a", encoding="utf-8") as file:
                if file.tell() < MAX_FILE_BYTES:
                    file.write("".join(json.dumps(line) + "\n" for line in lines))
        except OSError as error:
            if not self._failed:
                self._failed = True
                LOGGER.error("the use of tokens cannot be recorded in %s: %s", self._folder, error)
