"""One worker: an event loop, the server, the app. The supervisor starts it; it ends with it.

``python -m paimon_features.serving.http.server.worker '<settings as JSON>'``
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import sys
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import msgspec

from paimon_features.core.configuration.project_config import (
    ProjectConfig,
    ServeConfig,
    read_config,
)
from paimon_features.core.documents.redaction import redact_uncaught_errors
from paimon_features.core.errors import PaimonFeaturesError
from paimon_features.core.process.host_names import LOCAL
from paimon_features.core.process.traces import open_tracer
from paimon_features.online.store import OnlineSettings, open_store
from paimon_features.online.store.published_models import model_place_of
from paimon_features.online.store.store import OnlineStore
from paimon_features.serving.http.access.hosts import Hosts
from paimon_features.serving.http.access.quotas import Quotas
from paimon_features.serving.http.access.token_use import TokenUse
from paimon_features.serving.http.access.tokens import Tokens
from paimon_features.serving.http.definitions.definition_set import DefinitionSet
from paimon_features.serving.http.logs import LOGGER, AccessLog, set_up_logging
from paimon_features.serving.http.metrics import CountsFile
from paimon_features.serving.http.no_pandas import forbid_pandas
from paimon_features.serving.http.server.app import FeatureApp
from paimon_features.serving.http.server.connections import Connections, raise_file_limit
from paimon_features.serving.http.server.model_reload import ModelReloader
from paimon_features.serving.http.server.reload import Reloader
from paimon_features.serving.http.server.server import HttpServer
from paimon_features.serving.http.server.supervisor import is_loopback
from paimon_features.serving.request_log.log import RequestLog, open_request_log
from paimon_features.serving.request_log.prediction_log import PredictionLog, open_prediction_log

TICK_S = 0.5
GRACE_S = 30
SWITCH_S = 0.0005


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


def main() -> None:
    """Run until SIGTERM, SIGINT, or the end of the supervisor."""
    redact_uncaught_errors()
    settings = msgspec.json.decode(sys.argv[1], type=WorkerSettings)
    status = os.fdopen(settings.status_fd, "w")
    try:
        opened = _open(settings)
    except PaimonFeaturesError as error:
        status.write("; ".join([str(error), *getattr(error, "__notes__", ())]))
        status.close()
        sys.exit(1)
    listening = socket.socket(fileno=settings.listen_fd)
    app = _app(settings, opened, listening)
    connections = Connections(opened.serve, app.state.buffers, app.counts, files=raise_file_limit())
    tasks = _WorkerTasks(opened, app, connections, settings.alive_fd)
    server = HttpServer(app, connections)
    # modules and definitions stay: a full collection need not look at all their objects
    gc.freeze()
    # the loop gives up its handlers before this process has ended
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: None)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(tasks.run(server, listening, status))


@dataclass(frozen=True, slots=True)
class _Opened:
    """The configuration, store and logs that a worker opens before it creates its application."""

    config: ProjectConfig
    serve: ServeConfig
    store: OnlineStore
    reloader: Reloader
    definitions: DefinitionSet
    tokens: Tokens | None
    request_log: RequestLog | None
    prediction_log: PredictionLog | None
    models: ModelReloader


def _open(settings: WorkerSettings) -> _Opened:
    """Read the configuration and the definitions, and open the store and the logs."""
    config = read_config(Path(settings.root))
    serve = with_overrides(config.serve, settings.overrides)
    set_up_logging(serve.log_level)
    _set_up_interpreter()
    store = open_store(OnlineSettings.of(config.online, root=config.root))
    reloader = Reloader(config, serve, store)
    definitions, tokens = reloader.first()
    request_log = open_request_log(config.name, serve)
    prediction_log = open_prediction_log(config.name, serve)
    models = ModelReloader(
        model_place_of(replace(config, serve=serve), lambda: store),
        threads=serve.predict_threads,
        load_timeout_s=serve.predict_load_timeout_ms / 1_000,
    )
    return _Opened(
        config, serve, store, reloader, definitions, tokens, request_log, prediction_log, models
    )


def _set_up_interpreter() -> None:
    """Set up imports, garbage collection and thread switches for a server."""
    forbid_pandas()
    # a request makes hundreds of objects and no cycles; a collection after every 700 of them
    # took 6 % of the time
    gc.set_threshold(20_000, 20, 50)
    # the thread of predictions needs the interpreter for moments: by default it would wait for
    # 5 ms each time while the loop is busy, and the next run with it
    sys.setswitchinterval(SWITCH_S)
    # compiled files are identified by size and second: two quick edits may look like one
    sys.dont_write_bytecode = True


def _app(settings: WorkerSettings, opened: _Opened, listening: socket.socket) -> FeatureApp:
    """Return the application with the models that are published now."""
    serve, folder = opened.serve, Path(settings.folder)
    names = serve.hosts
    if names is None and serve.tokens is None and is_loopback(listening):
        names = LOCAL
    app = FeatureApp(
        opened.definitions,
        serve,
        tokens=opened.tokens,
        log=AccessLog(serve.log_level, serve.log_sample),
        counts_file=CountsFile(folder, settings.slot),
        request_log=opened.request_log,
        prediction_log=opened.prediction_log,
        hosts=Hosts(names),
        tracer=open_tracer("paimon-features-serve"),
        quotas=Quotas(folder / "quotas"),
        token_use=None if serve.audit is None else TokenUse(serve.audit, opened.config.name),
    )
    app.replace_models(opened.models.load(app.state.models))
    return app


@dataclass(frozen=True, slots=True, eq=False)
class _WorkerTasks:
    """The tasks of a worker next to its requests, and what ends them."""

    opened: _Opened
    app: FeatureApp
    connections: Connections
    alive_fd: int
    _jobs: set[asyncio.Task[Any]] = field(default_factory=set)

    async def run(self, server: HttpServer, listening: socket.socket, status: TextIO) -> None:
        """Serve until a signal, or the end of the supervisor."""
        opened, app, stop = self.opened, self.app, asyncio.Event()
        self._watch_process(stop)
        self._begin(_tick(app, self.connections))
        self._begin(opened.reloader.watch(app))
        if opened.serve.reload:
            self._begin(opened.models.watch(app))
        try:
            await server.serve(listening, stop, GRACE_S, partial(_report_ready, status))
        finally:
            for task in [*self._jobs]:
                task.cancel()
            app.close()
            opened.reloader.close()
            opened.store.close()

    def _watch_process(self, stop: asyncio.Event) -> None:
        """Handle signals, and the end of the supervisor."""
        loop = asyncio.get_running_loop()

        def orphaned() -> None:
            loop.remove_reader(self.alive_fd)
            LOGGER.warning("the supervisor is gone; this worker ends")
            stop.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        loop.add_signal_handler(signal.SIGHUP, self._reload)
        loop.add_reader(self.alive_fd, orphaned)

    def _reload(self) -> None:
        self._begin(self.opened.reloader.reload(self.app))
        self._begin(self.opened.models.reload(self.app))

    def _begin(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._jobs.add(task)
        task.add_done_callback(self._jobs.discard)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    if sys.platform == "win32":
        return asyncio.new_event_loop
    import uvloop

    return uvloop.new_event_loop


async def _tick(app: FeatureApp, connections: Connections) -> None:
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(TICK_S)
        connections.sweep(loop.time())
        app.tick()


def _report_ready(status: TextIO) -> None:
    status.write("ready")
    status.close()


def with_overrides(
    config: ServeConfig, overrides: dict[str, str | int | float | bool | None]
) -> ServeConfig:
    """Return the configuration with the command line's options in place of its own."""
    return replace(config, **overrides)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
