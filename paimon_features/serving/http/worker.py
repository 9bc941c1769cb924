"""One worker: an event loop, uvicorn, the app. The supervisor starts it; it ends with it.

``python -m paimon_features.serving.http.worker '<settings as JSON>'``
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import sys
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

import msgspec
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from paimon_features.config import ServeConfig, read_config
from paimon_features.errors import PaimonFeaturesError
from paimon_features.online import OnlineSettings, open_store
from paimon_features.serving.http.app import FeatureApp
from paimon_features.serving.http.logs import LOGGER, AccessLog, set_up_logging
from paimon_features.serving.http.metrics import CountsFile
from paimon_features.serving.http.no_pandas import forbid_pandas
from paimon_features.serving.http.reload import Reloader
from paimon_features.serving.request_log.log import open_request_log

MAX_HEAD_BYTES = 32_768
TICK_S = 0.5
GRACE_S = 30
KEEP_ALIVE_S = 75


class WorkerSettings(msgspec.Struct):
    """What the supervisor passes to a worker.

    ``listen_fd`` is the shared listening socket. To ``status_fd`` the worker writes ``ready`` when
    it accepts requests, or why it cannot start. It ends when ``alive_fd`` does, whose other end
    only the supervisor has.
    """

    root: str
    slot: int
    listen_fd: int
    status_fd: int
    alive_fd: int
    folder: str
    overrides: dict[str, str | int | float | bool | None]


class _OpenTransport:
    """A transport that drops what is written after the client has disconnected.

    uvloop's raises then, and uvicorn tracks the disconnect only for the last of the requests that
    arrived in one piece. Every client that does not wait for its replies would cause a traceback
    in the log.
    """

    __slots__ = ("_transport", "close", "get_extra_info", "is_closing", "set_protocol")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self.close = transport.close
        self.get_extra_info = transport.get_extra_info
        self.is_closing = transport.is_closing
        self.set_protocol = transport.set_protocol

    def write(self, data: bytes) -> None:
        if not self.is_closing():
            self._transport.write(data)

    def pause_reading(self) -> None:
        if not self.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if not self.is_closing():
            self._transport.resume_reading()


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's protocol with a bound on the size of a request's head, which uvicorn lacks."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(_OpenTransport(transport))  # type: ignore[arg-type]

    def _unsupported_upgrade_warning(self) -> None:
        """A request to upgrade to WebSocket or HTTP/2 gets HTTP/1.1, without a warning."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head_bytes = 0

    def on_url(self, url: bytes) -> None:
        self._bound(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._bound(len(name) + len(value))
        super().on_header(name, value)

    def _bound(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > MAX_HEAD_BYTES:
            # the parser answers with 400 and closes the connection
            raise ValueError("the head of the request is too long")


def main() -> None:
    """Run until SIGTERM, SIGINT, or the end of the supervisor."""
    settings = msgspec.json.decode(sys.argv[1], type=WorkerSettings)
    status = os.fdopen(settings.status_fd, "w")
    try:
        config = read_config(Path(settings.root))
        serve = with_overrides(config.serve, settings.overrides)
        set_up_logging(serve.log_level)
        forbid_pandas()
        # a request makes hundreds of objects and no cycles; a collection after every 700 of them
        # took 6 % of the time
        gc.set_threshold(20_000, 20, 50)
        # compiled files are identified by size and second: two quick edits may look like one
        sys.dont_write_bytecode = True
        store = open_store(OnlineSettings.of(config.online, root=config.root))
        reloader = Reloader(config, serve, store)
        definitions, tokens = reloader.first()
        request_log = open_request_log(config.name, serve)
    except PaimonFeaturesError as error:
        status.write("; ".join([str(error), *getattr(error, "__notes__", ())]))
        status.close()
        sys.exit(1)
    counts_file = CountsFile(Path(settings.folder), settings.slot)
    log = AccessLog(serve.log_level, serve.log_sample)
    app = FeatureApp(
        definitions,
        serve,
        tokens=tokens,
        log=log,
        counts_file=counts_file,
        request_log=request_log,
    )
    listening = socket.socket(fileno=settings.listen_fd)
    uvicorn_config = uvicorn.Config(
        app,
        http=BoundedProtocol,
        loop="uvloop" if sys.platform != "win32" else "asyncio",
        ws="none",
        lifespan="off",
        interface="asgi3",
        access_log=False,
        log_config=None,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=GRACE_S,
    )
    server = uvicorn.Server(uvicorn_config)

    async def run() -> None:
        loop = asyncio.get_running_loop()
        jobs: set[asyncio.Task[Any]] = set()

        def begin(work: Coroutine[Any, Any, Any]) -> None:
            task = loop.create_task(work)
            jobs.add(task)
            task.add_done_callback(jobs.discard)

        def orphaned() -> None:
            loop.remove_reader(settings.alive_fd)
            LOGGER.warning("the supervisor is gone; this worker ends")
            server.should_exit = True

        loop.add_signal_handler(signal.SIGHUP, lambda: begin(reloader.reload(app)))
        loop.add_reader(settings.alive_fd, orphaned)
        begin(_tick(app))
        begin(_report_ready(server, status))
        if serve.reload:
            begin(reloader.watch(app))
        try:
            await server.serve(sockets=[listening])
        finally:
            for task in [*jobs]:
                task.cancel()
            app.close()
            store.close()

    # uvicorn raises the signal that ended it once more, before this worker has written its last
    # lines: it then meets these handlers
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: None)
    with asyncio.Runner(loop_factory=uvicorn_config.get_loop_factory()) as runner:
        runner.run(run())


async def _tick(app: FeatureApp) -> None:
    while True:
        await asyncio.sleep(TICK_S)
        app.tick()


async def _report_ready(server: uvicorn.Server, status: TextIO) -> None:
    while not server.started:
        await asyncio.sleep(0.005)
    status.write("ready")
    status.close()


def with_overrides(
    config: ServeConfig, overrides: dict[str, str | int | float | bool | None]
) -> ServeConfig:
    """The configuration with the command line's options in place of its own."""
    return replace(config, **overrides)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
