"""The feature server in this process: on a port of its own."""

from __future__ import annotations

import asyncio
import socket
import threading
from pathlib import Path
from typing import Any

from paimon_features.config import ServeConfig
from paimon_features.serving.http.app import FeatureApp
from paimon_features.serving.http.connections import Connections
from paimon_features.serving.http.definition_set import DefinitionSet
from paimon_features.serving.http.logs import AccessLog
from paimon_features.serving.http.messages import Exchange
from paimon_features.serving.http.server import HttpServer
from paimon_features.serving.http.tokens import Tokens


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
        assert self._ready.wait(10)

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
        self._thread.join(10)
        self._socket.close()


class _Counted(FeatureApp):
    """Notes the path of each request."""

    def __init__(self, requested: list[str], *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._requested = requested

    def start(self, exchange: Exchange) -> None:
        self._requested.append(exchange.request.path)
        super().start(exchange)
