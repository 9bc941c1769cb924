"""The feature server in this process: the app under uvicorn, on a port of its own."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from pathlib import Path

import uvicorn

from paimon_features.config import ServeConfig
from paimon_features.serving.http.app import FeatureApp
from paimon_features.serving.http.definition_set import DefinitionSet
from paimon_features.serving.http.logs import AccessLog
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
        log = AccessLog("error", 0.0)
        app = FeatureApp(self._served, ServeConfig(), tokens=self._tokens, log=log)

        async def counted(scope: dict[str, str], receive: object, send: object) -> None:
            self.requested.append(scope["path"])
            await app(scope, receive, send)  # type: ignore[arg-type]

        config = uvicorn.Config(
            counted, log_config=None, access_log=False, lifespan="off", loop="none"
        )
        self._server = uvicorn.Server(config)
        serving = asyncio.ensure_future(self._server.serve([self._socket]))
        while not self._server.started:
            await asyncio.sleep(0.01)
        self._ready.set()
        with contextlib.suppress(asyncio.CancelledError):
            await serving
        app.close()

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join(10)
        self._socket.close()
