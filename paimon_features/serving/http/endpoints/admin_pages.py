"""The endpoints for operators and people: health, metrics, catalogue, OpenAPI, explorer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from paimon_features.core.times.clock import now_ms
from paimon_features.serving import ui
from paimon_features.serving.http.definitions.health import (
    StoreProbe,
    store_document,
    view_documents,
)
from paimon_features.serving.http.definitions.state import ServerState
from paimon_features.serving.http.endpoints import docs_page, openapi
from paimon_features.serving.http.endpoints.catalogue import catalogue
from paimon_features.serving.http.endpoints.explorer import Explorer
from paimon_features.serving.http.http_errors import STORE_UNAVAILABLE
from paimon_features.serving.http.logs import StoreLog
from paimon_features.serving.http.messages import Handler, Receive, Reply, Request, json_reply
from paimon_features.serving.http.metrics import Counts, page

_JSON = b"application/json"
RELOAD_FAILED = "the last reload failed; the server's log has the reason"
_HTML = b"text/html; charset=utf-8"


class AdminPages:
    """Everything but feature reads. ``all_counts`` returns the current counts of all workers."""

    def __init__(
        self, state: ServerState, all_counts: Callable[[], list[Counts]], store_log: StoreLog
    ) -> None:
        self._state = state
        self._store_log = store_log
        self._all_counts = all_counts
        self.probe = StoreProbe()
        self._explorer = Explorer()
        self._started_s = now_ms() / 1000
        self.routes: dict[str, tuple[str, Handler]] = {
            "/features": ("GET", self._catalogue),
            "/health": ("GET", self._health),
            "/health/live": ("GET", self._live),
            "/health/ready": ("GET", self._ready),
            "/metrics": ("GET", self._metrics),
            "/openapi.json": ("GET", self._openapi),
            "/docs": ("GET", self._docs),
            "/explain": ("GET", self._explain),
            "/ui": ("GET", self._ui),
        }
        """Method and handler by path."""

    def route_of(self, path: str) -> tuple[str, str, Handler] | None:
        """Return route, method and handler of a file of the pages; None for an unknown file."""
        is_asset = path.removeprefix("/") in ui.assets("server")
        return ("/ui/{file}", "GET", self._ui) if is_asset else None

    def close(self) -> None:
        """Release the threads of probes and explanations."""
        self.probe.close()
        self._explorer.close()

    async def _catalogue(self, request: Request, receive: Receive) -> Reply:
        rights = self._state.authorize(request)
        return json_reply(catalogue(self._state.definitions, rights))

    async def _live(self, request: Request, receive: Receive) -> Reply:
        return Reply(200, _JSON, b'{"status":"live"}')

    async def _ready(self, request: Request, receive: Receive) -> Reply:
        document = await self._health_document(request, request.query == b"stale=ok")
        return json_reply(document, 200 if document["status"] == "ready" else 503)

    async def _health(self, request: Request, receive: Receive) -> Reply:
        admission = self._state.admission
        document = await self._health_document(request, stale_is_ready=False)
        document["worker"] = {
            "uptime_s": round(now_ms() / 1000 - self._started_s, 1),
            "in_flight": admission.in_flight,
            "expected_wait_ms": round(admission.wait_s * 1_000, 3),
        }
        return json_reply(document, 200 if document["status"] == "ready" else 503)

    async def _health_document(self, request: Request, stale_is_ready: bool) -> dict[str, Any]:
        definitions = self._state.definitions
        store = await self.probe.check(definitions)
        at_ms = now_ms()
        limits = {v.name: v.max_staleness_ms for v in definitions.views}
        models = self._state.models
        reasons = store.reasons({} if stale_is_ready else limits, at_ms)
        unserved = models.unserved(definitions)
        reload_error = self._state.reload_error
        if store.error is not None:
            self._store_log.not_ready(store.error)
        if not self._state.is_operator(request):
            # anybody may request this; addresses, users and lines of code are for operators
            reasons = reasons if store.error is None else [STORE_UNAVAILABLE]
            reload_error = reload_error and RELOAD_FAILED
        reasons = [*reasons, *unserved]
        document: dict[str, Any] = {
            "status": "not_ready" if reasons else "ready",
            "live": True,
            "reasons": reasons,
            "warnings": [*store.warnings(limits, at_ms), *models.problems(definitions)],
            "store": store_document(store),
            "views": view_documents(store, limits, at_ms),
            "definitions": {
                "loaded_ms": definitions.loaded_ms,
                "error": reload_error,
                "waiting_for": list(self._state.waiting_for),
            },
        }
        if not self._state.knows_names(request):
            return _without_names(document)
        return document

    async def _metrics(self, request: Request, receive: Receive) -> Reply:
        definitions = self._state.definitions
        store = await self.probe.check(definitions)
        at_ms = now_ms()
        limits = {v.name: v.max_staleness_ms for v in definitions.views}
        documents = view_documents(store, limits, at_ms)
        self._state.counts.fresh(
            {
                name: (v.freshness, documents[name]["behind"])
                for name, v in store.views.items()
                if v.freshness is not None
            },
            at_ms,
        )
        counts, ok = self._all_counts(), self._state.reload_error is None
        text = page(counts, now_ms() / 1000, definitions.loaded_ms, ok)
        return Reply(200, b"text/plain; version=0.0.4; charset=utf-8", text)

    async def _openapi(self, request: Request, receive: Receive) -> Reply:
        return json_reply(self._openapi_document(request))

    async def _docs(self, request: Request, receive: Receive) -> Reply:
        text = docs_page.render(self._openapi_document(request))
        return Reply(200, _HTML, text, docs_page.HEADERS)

    async def _explain(self, request: Request, receive: Receive) -> Reply:
        rights = self._state.authorize(request)
        body = await self._explorer.explanation(self._state.definitions, rights, request.query)
        return Reply(200, _JSON, body)

    async def _ui(self, request: Request, receive: Receive) -> Reply:
        # the files themselves contain no data; they fetch it with the token of their reader
        asset = ui.assets("server")[request.path.removeprefix("/")]
        return Reply(200, asset.media_type.encode(), asset.content, ui.headers())

    def _openapi_document(self, request: Request) -> dict[str, Any]:
        """With the names that the token may know; on a server with tokens, none without one."""
        state = self._state
        readable = None
        if state.tokens is None or request.authorization:
            readable = catalogue(state.definitions, state.authorize(request))
        return openapi.document(readable, state.limits, with_tokens=state.tokens is not None)


def _without_names(document: dict[str, Any]) -> dict[str, Any]:
    """Return a health document for those who may not know the names of views and models."""
    views = document["views"].values()
    hidden = "; a token for everything, or with 'admin', reads which and why"
    unreadable = sum(not view["readable"] for view in views)
    counts = f"{unreadable} of {len(views)} feature views cannot be read"
    shown = [reason for reason in document["reasons"] if reason == STORE_UNAVAILABLE]
    if document["reasons"] and not shown:
        shown = [f"{len(document['reasons'])} reasons; {counts}{hidden}"]
    warnings = len(document["warnings"])
    return document | {
        "reasons": shown,
        "warnings": [f"{warnings} warnings{hidden}"] if warnings else [],
        "views": {},
        "definitions": document["definitions"] | {"waiting_for": []},
    }
