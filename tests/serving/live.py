"""The feature server in this process, or in processes of its own: on a port of its own."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from paimon_features.core.configuration.project_config import ServeConfig
from paimon_features.serving.http.access.tokens import Tokens
from paimon_features.serving.http.definitions.definition_set import DefinitionSet
from paimon_features.serving.http.logs import AccessLog
from paimon_features.serving.http.messages import Exchange
from paimon_features.serving.http.server.app import FeatureApp
from paimon_features.serving.http.server.connections import Connections
from paimon_features.serving.http.server.server import HttpServer


class LiveServer:
    """Serves until it is closed; with a token file, to the bearers of its tokens."""

    def __init__(self, served: DefinitionSet, tokens: Path | None = None) -> None:
        self.requested: list[str] = []
        self._served, self._tokens = served, None if tokens is None else Tokens(tokens)
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._ready = threading.Event()
        self._thread = threading.Thread(target=asyncio.run, args=(self._run(),), daemon=True)
        self._thread.start()
        assert self._ready.wait(120)

    async def _run(self) -> None:
        config = ServeConfig()
        app = _Counted(self.requested, self._served, config, tokens=self._tokens,
                       log=AccessLog("error", 0.0))  # fmt: skip
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        connections = Connections(config, app.state.buffers, app.counts)
        await HttpServer(app, connections).serve(self._socket, self._stop, 10, self._ready.set)
        app.close()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(120)
        self._socket.close()


class _Counted(FeatureApp):
    """Notes the path of each request."""

    def __init__(self, requested: list[str], *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._requested = requested

    def start(self, exchange: Exchange) -> None:
        self._requested.append(exchange.request.path)
        super().start(exchange)


@contextmanager
def serving(folder: Path) -> Iterator[tuple[http.client.HTTPConnection, list[int]]]:
    """A server of two workers, a connection to it, and the workers' numbers."""
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "paimon_features", "serve", "--port", "0", "--json",
             "--workers", "2"],
            cwd=folder, stdout=subprocess.PIPE, stderr=log, text=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        )  # fmt: skip
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line, (folder / "log").read_text()
        event = json.loads(line)
        port = urlsplit(event["url"]).port
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=120)) as connection:
            yield connection, event["workers"]
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(120)
        process.stdout.close()
