"""The ASGI application: a plain callable, since a framework would cost more than the read.

What a request passes on its way: route, token, admission, body, names, rights, limits, read,
reply. Whatever refuses it on the way raises a ``RequestRejected`` or one of our errors, and nothing
else does: another exception is a fault of ours, and a 500 with a traceback in the log.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
import numpy as np

from paimon_features.clock import now_ms
from paimon_features.config import ServeConfig
from paimon_features.definitions import FeatureRef
from paimon_features.errors import OnlineStoreError, PaimonFeaturesError, UnknownNameError
from paimon_features.serving import reply_formats as wire
from paimon_features.serving import ui
from paimon_features.serving.coalesce import Coalescer
from paimon_features.serving.http import docs_page as pages
from paimon_features.serving.http import explorer, health, logs, openapi
from paimon_features.serving.http.admission import Admission
from paimon_features.serving.http.catalogue import catalogue
from paimon_features.serving.http.definition_set import DefinitionSet, RequestPlan
from paimon_features.serving.http.formats import Format, format_of_body, format_of_reply
from paimon_features.serving.http.http_errors import (
    MEDIA_TYPE,
    Headers,
    RequestRejected,
    rejection_of,
)
from paimon_features.serving.http.limits import Limits
from paimon_features.serving.http.messages import (
    ClientGoneError,
    Receive,
    Reply,
    Request,
    Scope,
    Send,
    read_body,
    send_reply,
)
from paimon_features.serving.http.metrics import Counts, CountsFile, page
from paimon_features.serving.http.request_body import ParsedRequest, decode
from paimon_features.serving.http.tokens import ANYBODY, Rights, Tokens
from paimon_features.serving.request_log.log import RequestLog
from paimon_features.serving.response import OnlineResponse, ResultBatch, ViewFreshness
from paimon_features.statuses import Status

_JSON = b"application/json"
INTERACTIONS = "interactions"
"""What interactions count as where views are counted."""
_WRITERS: Mapping[Format, Callable[[OnlineResponse, bool], bytes]] = {
    Format.JSON: wire.feast_json,
    Format.MESSAGE_PACK: wire.message_pack,
    Format.ARROW: wire.arrow_stream,
}
_Handler = Callable[[Request, Receive], Awaitable[Reply]]


class Rendered(msgspec.Struct, gc=False):
    """A reply as bytes, and what is counted of it."""

    body: bytes
    freshness: Mapping[str, ViewFreshness]
    statuses: dict[str, list[int]] | None


class FeatureApp:
    """Answers requests for features, and about them, in one event loop.

    ``served`` is replaced as a whole by ``serve``; a request keeps the one that it began with.
    """

    def __init__(
        self,
        served: DefinitionSet,
        config: ServeConfig,
        *,
        tokens: Tokens | None = None,
        log: logs.AccessLog | None = None,
        counts_file: CountsFile | None = None,
        request_log: RequestLog | None = None,
    ) -> None:
        self.served = served
        self.tokens = tokens
        self.reload_error: str | None = None
        self.log = log or logs.AccessLog(config.log_level, config.log_sample)
        self.request_log = request_log
        self.store_log = logs.StoreLog()
        self.coalescer = Coalescer(served.reader, max_waiting=config.max_concurrent)
        self.admission = Admission(config.max_concurrent, config.max_wait_ms)
        self.limits = Limits.of(config)
        self.probe = health.StoreProbe()
        self.explorer = explorer.Explorer()
        self.counts_file = counts_file
        self.counts = counts_file.begin() if counts_file else Counts(starts=1)
        self._started_s = time.time()
        self._told: dict[str, int] = {}
        self._reads_told: dict[str, int] = {}
        self._logged: dict[str, int] = {}
        self._routes: dict[str, tuple[str, _Handler]] = {
            "/get-online-features": ("POST", self._features),
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

    def serve(self, served: DefinitionSet) -> None:
        """Answer the requests that come from now on with these definitions."""
        self._count_reads()
        self._reads_told = {}
        self.served = served
        self.coalescer.fetcher = served.reader

    def tick(self) -> None:
        """Write what was collected: log lines, counts. Called about once a second."""
        self.log.flush()
        self._count_reads()
        if self.counts_file is not None:
            self.counts_file.write(self.counts, time.time())

    def close(self) -> None:
        """Let threads go and write the last lines and counts."""
        self.coalescer.close()
        self.probe.close()
        self.explorer.close()
        if self.request_log is not None:
            self.request_log.close()
        self.tick()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request of ASGI; nothing but HTTP is spoken."""
        if scope["type"] != "http":
            return
        started = time.perf_counter()
        request = Request(scope)
        try:
            reply = await self._answer(request, receive)
        except ClientGoneError:
            reply = Reply(499, b"", b"", code="client_gone")
        except RequestRejected as refusal:
            reply = _refused(request, refusal)
        except PaimonFeaturesError as error:
            told = rejection_of(error)
            if isinstance(error, OnlineStoreError):
                self.store_log.failed(told.code, told.detail)
            reply = _refused(request, told)
        except Exception:
            logs.LOGGER.exception(
                "a request failed",
                extra={"fields": {"request_id": request.request_id, "path": request.path}},
            )
            reply = _refused(
                request,
                RequestRejected(500, "internal", "a fault of the server; the log tells more"),
            )
        if reply.status != 499:
            await send_reply(request, reply, send)
        self._done(request, reply, time.perf_counter() - started)

    def _done(self, request: Request, reply: Reply, took_s: float) -> None:
        self.counts.request(request.route, reply.status, took_s)
        if self.log.wants(reply.status):
            line: dict[str, object] = {
                "time": logs.time_text(time.time()),
                "level": "info" if reply.status < 500 else "error",
                "request_id": request.request_id,
                "method": request.method,
                "path": request.path[:200],
                "status": reply.status,
                "ms": round(took_s * 1_000, 3),
                "bytes": len(reply.body),
            }
            if reply.rows:
                line["entities"], line["features"] = reply.rows, reply.features
            if reply.code is not None:
                line["code"] = reply.code
            if request.client:
                line["client"] = request.client
            if (trace := request.trace()) is not None:
                line["trace_id"], line["span_id"] = trace
            self.log.add(line)

    async def _answer(self, request: Request, receive: Receive) -> Reply:
        found = self._routes.get(request.path)
        if found is None:
            raise RequestRejected(
                404,
                "not_found",
                f"there is no path {request.path[:80]!r}; there is: {', '.join(self._routes)}",
            )
        method, handler = found
        request.route = request.path
        if request.method != method and not (request.method == "HEAD" and method == "GET"):
            raise RequestRejected(
                405,
                "method_not_allowed",
                f"{request.path} takes {method}, not {request.method[:20]}",
                ((b"allow", method.encode()),),
            )
        return await handler(request, receive)

    def _rights(self, request: Request) -> Rights:
        if self.tokens is None:
            return ANYBODY
        rights = self.tokens.rights(request.authorization)
        request.client = rights.client
        return rights

    # -- features ----------------------------------------------------------------------------

    async def _features(self, request: Request, receive: Receive) -> Reply:
        rights = self._rights(request)
        form = format_of_body(request.content_type)
        reply_form = format_of_reply(request.accept, form)
        body = await read_body(request, receive, self.limits.max_body_bytes)
        try:
            work = self.admission.enter(len(body), time.perf_counter())
        except RequestRejected:
            self._refuse("admission")
            raise
        try:
            asked = decode(body, form, request.query)
            # from here to the reader's queue nothing waits: one set of definitions
            served = self.served
            wanted = self._wanted(served, asked, rights)
            ask, rows = served.ask(asked, wanted, self.limits)
            full = asked.full_feature_names
            writer = _WRITERS[reply_form]

            def render(response: OnlineResponse) -> Rendered:
                if self.request_log is not None:
                    self.request_log.note(request.request_id, asked.service or "", response)
                return _render(response, writer, full)

            rendered = await self.coalescer.get(ask, render)
        finally:
            self.admission.leave(work, time.perf_counter())
        if self.store_log.is_failing:
            self.store_log.answered()
        features = len(wanted.selection.outputs)
        self.counts.answer(rows, rows * features, rendered.statuses or {})
        self.counts.fresh(rendered.freshness)
        return Reply(
            200,
            reply_form.value.encode(),
            rendered.body,
            _freshness_headers(rendered.freshness),
            rows,
            features,
        )

    def _wanted(self, served: DefinitionSet, asked: ParsedRequest, rights: Rights) -> RequestPlan:
        if len(asked.features) > self.limits.max_features:
            self.limits.check(1, len(asked.features))
        try:
            wanted = served.wanted(asked.service, asked.features)
        except UnknownNameError as error:
            if rights.services is None:
                raise
            # what else there is, is nothing that this token may know
            raise RequestRejected(
                404,
                "unknown_name",
                f"{str(error).partition(';')[0]} that the token {rights.client!r} may read; "
                "GET /features tells what it may",
            ) from None
        served.check_rights(wanted, rights)
        return wanted

    def _refuse(self, reason: str) -> None:
        self.counts.refused[reason] = self.counts.refused.get(reason, 0) + 1

    # -- about them --------------------------------------------------------------------------

    async def _catalogue(self, request: Request, receive: Receive) -> Reply:
        rights = self._rights(request)
        return Reply(200, _JSON, msgspec.json.encode(catalogue(self.served, rights)))

    async def _live(self, request: Request, receive: Receive) -> Reply:
        return Reply(200, _JSON, b'{"status":"live"}')

    async def _ready(self, request: Request, receive: Receive) -> Reply:
        document = await self._health_document(stale_is_ready=request.query == b"stale=ok")
        status = 200 if document["status"] == "ready" else 503
        return Reply(status, _JSON, msgspec.json.encode(document))

    async def _health(self, request: Request, receive: Receive) -> Reply:
        document = await self._health_document(stale_is_ready=False)
        document["worker"] = {
            "uptime_s": round(time.time() - self._started_s, 1),
            "in_flight": self.admission.in_flight,
            "expected_wait_ms": round(self.admission.wait_s * 1_000, 3),
        }
        status = 200 if document["status"] == "ready" else 503
        return Reply(status, _JSON, msgspec.json.encode(document))

    async def _health_document(self, stale_is_ready: bool) -> dict[str, Any]:
        served = self.served
        found = await self.probe.look(served)
        current_ms = now_ms()
        limits = {} if stale_is_ready else {v.name: v.max_staleness_ms for v in served.views}
        reasons = found.reasons(limits, current_ms)
        return {
            "status": "not_ready" if reasons else "ready",
            "live": True,
            "reasons": reasons,
            "store": {"reachable": found.error is None},
            "views": health.view_documents(found, current_ms),
            "definitions": {"loaded_ms": served.loaded_ms, "error": self.reload_error},
        }

    async def _metrics(self, request: Request, receive: Receive) -> Reply:
        served = self.served
        found = await self.probe.look(served)
        self.counts.fresh(
            {name: v.freshness for name, v in found.views.items() if v.freshness is not None}
        )
        self.tick()
        counts = self.counts_file.of_all() if self.counts_file else [self.counts]
        now_s = time.time()
        if self.counts_file is None:
            self.counts.written_s = now_s
        text = page(counts, now_s, served.loaded_ms, self.reload_error is None)
        return Reply(200, b"text/plain; version=0.0.4; charset=utf-8", text)

    async def _openapi(self, request: Request, receive: Receive) -> Reply:
        return Reply(200, _JSON, msgspec.json.encode(self._openapi_document(request)))

    async def _docs(self, request: Request, receive: Receive) -> Reply:
        page_ = pages.render(self._openapi_document(request))
        return Reply(200, b"text/html; charset=utf-8", page_, pages.HEADERS)

    async def _explain(self, request: Request, receive: Receive) -> Reply:
        rights = self._rights(request)
        body = await self.explorer.explained(self.served, rights, request.query)
        return Reply(200, _JSON, body)

    async def _ui(self, request: Request, receive: Receive) -> Reply:
        # the page itself says nothing; what it shows it fetches with the token of its reader
        return Reply(200, b"text/html; charset=utf-8", ui.page(), explorer.UI_HEADERS)

    def _openapi_document(self, request: Request) -> dict[str, Any]:
        """With the names that the token may know; without one, of a server with tokens, none."""
        known = None
        if self.tokens is None or request.authorization:
            known = catalogue(self.served, self._rights(request))
        return openapi.document(known, self.limits, with_tokens=self.tokens is not None)

    def _count_reads(self) -> None:
        """Add what was read since the last time."""
        counts = self.counts
        counts.in_flight = self.admission.in_flight
        done = {"batches": self.coalescer.batches, "batched_requests": self.coalescer.asks}
        told, self._told = self._told, done
        reads, self._reads_told = self._reads_told, self.served.reads
        if self.request_log is not None:
            logged, self._logged = self._logged, self.request_log.counts()
            for name, value in self._logged.items():
                counts.logged[name] = counts.logged.get(name, 0) + value - logged.get(name, 0)
        for now, before in ((done, told), (self._reads_told, reads)):
            for name, value in now.items():
                counts.reads[name] = counts.reads.get(name, 0) + value - before.get(name, 0)


def _refused(request: Request, refusal: RequestRejected) -> Reply:
    return Reply(
        refusal.status,
        MEDIA_TYPE,
        refusal.document(request.request_id),
        refusal.headers,
        code=refusal.code,
    )


def _render(
    response: OnlineResponse, writer: Callable[[OnlineResponse, bool], bytes], full: bool
) -> Rendered:
    """In the reader's thread. Statuses are counted once for all responses of a batch."""
    rendered = response.batch.rendered
    statuses = None
    if _render not in rendered:
        rendered[_render] = True
        statuses = _statuses(response.batch)
    return Rendered(writer(response, full), response.freshness, statuses)


def _statuses(batch: ResultBatch) -> dict[str, list[int]]:
    """How many values of each status there are, by view; interactions as a view of their own."""
    out: dict[str, list[int]] = {}
    known: dict[int, list[int]] = {}
    for output, codes in zip(batch.selection.outputs, batch.codes, strict=True):
        # the features of a view mostly share one array of codes
        counts = known.get(id(codes))
        if counts is None:
            counts = known[id(codes)] = np.bincount(codes, minlength=len(Status)).tolist()
        view = output.view if isinstance(output, FeatureRef) else INTERACTIONS
        of_view = out.get(view)
        if of_view is None:
            out[view] = list(counts)
        else:
            for status, count in enumerate(counts):
                of_view[status] += count
    return out


def _freshness_headers(freshness: Mapping[str, ViewFreshness]) -> Headers:
    return _headers(tuple((v, f.applied_snapshot, f.current_ms) for v, f in freshness.items()))


@functools.lru_cache(maxsize=1_024)
def _headers(views: tuple[tuple[str, int, int], ...]) -> Headers:
    snapshots = ", ".join(f"{view}={applied}" for view, applied, _ in views)
    current = ", ".join(f"{view}={current_ms}" for view, _, current_ms in views)
    return ((b"x-applied-snapshot", snapshots.encode()), (b"x-current-ms", current.encode()))
