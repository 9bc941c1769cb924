"""Routers for an application of FastAPI (extra ``fastapi``), next to its own endpoints.

::

    from fastapi import FastAPI
    from paimon_features.integrations.fastapi import feature_router, model_router

    app = FastAPI()
    app.include_router(feature_router("shop"))
    app.include_router(model_router("shop"), prefix="/ml")

They answer what ``paimon-features serve`` answers: the same checks, limits, tokens, batches and
errors, by the same code, and reload by the same rules. A worker of the application is one worker of
the feature server. Where the rest of the application is small, the feature server itself needs a
fraction of the processor time for a request.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from paimon_features.core.errors import ConfigurationError
from paimon_features.core.extras import missing_extra

try:
    from fastapi import APIRouter, Request, Response
except ModuleNotFoundError as error:
    missing = missing_extra(error, "paimon_features.integrations.fastapi")
    if missing is None:
        raise
    raise missing from error

from paimon_features.core.configuration.project_config import find_root, read_config
from paimon_features.core.process.traces import open_tracer
from paimon_features.online.store import OnlineSettings, open_store
from paimon_features.online.store.published_models import model_place_of
from paimon_features.online.store.store import OnlineStore
from paimon_features.serving.http.access.hosts import Hosts
from paimon_features.serving.http.access.token_use import TokenUse
from paimon_features.serving.http.endpoints import openapi
from paimon_features.serving.http.limits import Limits
from paimon_features.serving.http.messages import BodyPart, Reply
from paimon_features.serving.http.messages import Request as Head
from paimon_features.serving.http.server.app import FeatureApp
from paimon_features.serving.http.server.model_reload import ModelReloader
from paimon_features.serving.http.server.reload import Reloader
from paimon_features.serving.request_log.log import open_request_log
from paimon_features.serving.request_log.prediction_log import open_prediction_log

__all__ = ["feature_router", "model_router"]

TICK_S = 0.5
_FEATURES = ("/get-online-features", "/features", "/explain")
_NO_FRAMING = ("content-length", "content-type", "date", "connection")


def feature_router(project: str | Path = ".") -> APIRouter:
    """Return a router with ``/get-online-features``, ``/features``, ``/explain`` and ``/health``.

    ``project`` is a project's folder, or one inside it. The online store is opened when the
    application starts (its lifespan), not here.

    Raises
    ------
    ConfigurationError
        If there is no project, or its configuration is invalid.
    """
    paths = (*_FEATURES, "/health", "/health/ready")
    return _router(_embedded(project), lambda path: path in paths)


def model_router(project: str | Path = ".") -> APIRouter:
    """Return a router with ``/predict/{model}``, ``/models``, ``/v2/...`` and ``/invocations``.

    As ``feature_router``; two routers of one project share everything.
    """

    def chosen(path: str) -> bool:
        return path.startswith(("/predict/", "/v2")) or path in ("/models", "/invocations")

    return _router(_embedded(project), chosen)


_known: dict[Path, _Embedded] = {}


def _embedded(project: str | Path) -> _Embedded:
    root = find_root(Path(project))
    if root not in _known:
        _known[root] = _Embedded(root)
    return _known[root]


class _Embedded:
    """The feature server of one project in this process; open while a router is in use."""

    def __init__(self, root: Path) -> None:
        self.config = read_config(root)
        self.app: FeatureApp | None = None
        self._store: OnlineStore | None = None
        self._reloader: Reloader | None = None
        self._jobs: list[asyncio.Task[None]] = []
        self._users = 0

    @asynccontextmanager
    async def lifespan(self, application: object) -> AsyncIterator[None]:
        """Open with the first router that starts, close with the last one that ends."""
        self._users += 1
        try:
            if self.app is None:
                await self._open()
            yield
        finally:
            self._users -= 1
            if not self._users:
                self._close()

    async def _open(self) -> None:
        config, serve = self.config, self.config.serve
        self._store = store = open_store(OnlineSettings.of(config.online, root=config.root))
        self._reloader = reloader = Reloader(config, serve, store)
        models = ModelReloader(
            model_place_of(config, lambda: store),
            threads=serve.predict_threads,
            load_timeout_s=serve.predict_load_timeout_ms / 1_000,
        )
        definitions, tokens = await asyncio.to_thread(reloader.first)
        self.app = app = FeatureApp(
            definitions,
            serve,
            tokens=tokens,
            request_log=open_request_log(config.name, serve),
            prediction_log=open_prediction_log(config.name, serve),
            # which names an application has is its own business
            hosts=Hosts(None),
            tracer=open_tracer("paimon-features-serve"),
            token_use=None if serve.audit is None else TokenUse(serve.audit, config.name),
        )
        app.replace_models(await asyncio.to_thread(models.load, app.state.models))
        work = [self._tick(app), reloader.watch(app)]
        if serve.reload:
            work.append(models.watch(app))
        self._jobs = [asyncio.create_task(coroutine) for coroutine in work]

    def _close(self) -> None:
        for job in self._jobs:
            job.cancel()
        self._jobs = []
        if self.app is not None:
            self.app.close()
            self.app = None
        if self._reloader is not None:
            self._reloader.close()
        if self._store is not None:
            self._store.close()
            self._store = None

    async def _tick(self, app: FeatureApp) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            app.tick()

    async def answer(self, request: Request, path: str) -> Response:
        """Return the reply to a request, whatever path the router is included under."""
        if self.app is None:
            raise ConfigurationError(
                "the application has not started: its lifespan opens the online store (in tests, "
                "use TestClient as a context manager)"
            )
        exchange = _RouterExchange(request, path)
        self.app.start(exchange)
        try:
            reply = await exchange.replied
        except asyncio.CancelledError:
            exchange.is_gone = True
            raise
        headers = {name.decode(): value.decode("latin-1") for name, value in reply.headers}
        headers = {name: text for name, text in headers.items() if name not in _NO_FRAMING}
        headers["x-request-id"] = exchange.request.request_id
        status = 503 if reply.status == 499 else reply.status
        return Response(reply.body, status, headers, reply.media_type.decode())


class _RouterExchange:
    """A request of the application as one of the feature server (``messages.Exchange``)."""

    body: bytes | bytearray | None = None

    def __init__(self, request: Request, path: str) -> None:
        self._asgi = request
        self.request = Head(
            request.method,
            path,
            request.scope["query_string"],
            request.scope.get("http_version", "1.1"),
            [(name.lower(), value) for name, value in request.headers.raw],
        )
        self.is_gone = False
        self.replied: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()

    async def receive(self) -> BodyPart | None:
        message = await self._asgi.receive()
        if message["type"] != "http.request":
            self.is_gone = True
            return None
        return BodyPart(message.get("body", b""), message.get("more_body", False))

    def respond(self, reply: Reply) -> None:
        if not self.replied.done():
            self.replied.set_result(reply)


def _router(embedded: _Embedded, chosen: Callable[[str], bool]) -> APIRouter:
    router = APIRouter(lifespan=embedded.lifespan, tags=["paimon-features"])
    limits = Limits.of(embedded.config.serve)
    document = openapi.document(None, limits, with_tokens=embedded.config.serve.tokens is not None)
    schemas = document["components"]["schemas"]
    for path, operations in document["paths"].items():
        if not chosen(path):
            continue
        for method, operation in operations.items():
            described = _without_references(operation, schemas)
            described.pop("security", None)
            router.add_api_route(
                path,
                _endpoint(embedded, path),
                methods=[method.upper()],
                summary=described.pop("summary"),
                response_model=None,
                response_class=Response,
                openapi_extra=described,
            )
    return router


def _endpoint(embedded: _Embedded, template: str) -> Callable[[Request], Any]:
    async def endpoint(request: Request) -> Response:
        return await embedded.answer(request, template.format(**request.path_params))

    return endpoint


def _without_references(value: Any, schemas: Mapping[str, Any]) -> Any:
    """Return the value with the schemas in place of references to them, which another document
    lacks."""
    if isinstance(value, dict):
        if "$ref" in value:
            return _without_references(schemas[value["$ref"].rpartition("/")[2]], schemas)
        return {name: _without_references(item, schemas) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_references(item, schemas) for item in value]
    return value
