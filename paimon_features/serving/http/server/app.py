"""The application: what is answered to each request, whichever connection it comes from.

A feature read or prediction of entities whose body has arrived is begun in the same step, and
answered by the store's reply, without a task of its own. Everything else is answered by a task.

Here are routes, errors, and what is logged and counted for every request; the endpoints are in
``feature_reads``, ``predictions``, ``inference_protocols`` and ``admin_pages``. A request is
rejected by ``RequestRejected`` or by one of our errors; any other exception is a defect, answered
with 500 and a traceback in the log.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial

from paimon_features.core.configuration.project_config import ServeConfig
from paimon_features.core.errors import OnlineStoreError, PaimonFeaturesError
from paimon_features.core.process.traces import Tracer, ended_now
from paimon_features.core.times.clock import now_ms
from paimon_features.serving.http import logs
from paimon_features.serving.http.access.admission import Admission
from paimon_features.serving.http.access.hosts import Hosts
from paimon_features.serving.http.access.quotas import Quotas
from paimon_features.serving.http.access.token_use import TokenUse
from paimon_features.serving.http.access.tokens import Tokens
from paimon_features.serving.http.bodies.buffered_bytes import BufferedBytes
from paimon_features.serving.http.definitions.definition_set import DefinitionSet
from paimon_features.serving.http.definitions.served_models import ModelSet
from paimon_features.serving.http.definitions.state import ServerState
from paimon_features.serving.http.endpoints.admin_pages import AdminPages
from paimon_features.serving.http.endpoints.feast_errors import PATH as READ_PATH
from paimon_features.serving.http.endpoints.feast_errors import feast_document, is_feast
from paimon_features.serving.http.endpoints.feature_reads import FeatureReads
from paimon_features.serving.http.endpoints.inference_protocols import ModelPages, model_error
from paimon_features.serving.http.endpoints.predictions import PREFIX as PREDICT_PREFIX
from paimon_features.serving.http.endpoints.predictions import ROUTE as PREDICT_ROUTE
from paimon_features.serving.http.endpoints.predictions import Predictions
from paimon_features.serving.http.http_errors import MEDIA_TYPE, RequestRejected, rejection_of
from paimon_features.serving.http.limits import Limits
from paimon_features.serving.http.messages import (
    ClientGoneError,
    Exchange,
    Handler,
    Reply,
    Request,
)
from paimon_features.serving.http.metrics import Counts, CountsFile, GrowingTotals
from paimon_features.serving.prediction.batcher import Batcher
from paimon_features.serving.reading.coalesce import Coalescer
from paimon_features.serving.request_log.log import RequestLog
from paimon_features.serving.request_log.prediction_log import PredictionLog


class FeatureApp:
    """Answers requests of one event loop."""

    def __init__(
        self,
        definitions: DefinitionSet,
        config: ServeConfig,
        *,
        tokens: Tokens | None = None,
        log: logs.AccessLog | None = None,
        counts_file: CountsFile | None = None,
        request_log: RequestLog | None = None,
        prediction_log: PredictionLog | None = None,
        hosts: Hosts | None = None,
        tracer: Tracer | None = None,
        quotas: Quotas | None = None,
        token_use: TokenUse | None = None,
    ) -> None:
        self.log = log or logs.AccessLog(config.log_level, config.log_sample)
        self.counts = counts_file.load() if counts_file else Counts(starts=1)
        self.state = ServerState(
            definitions,
            tokens,
            Limits.of(config),
            Coalescer(definitions.reader, max_waiting=config.max_concurrent),
            Admission(config.max_concurrent, config.max_wait_ms),
            BufferedBytes(config.max_buffered_bytes),
            self.counts,
            Batcher(
                max_rows=config.predict_batch,
                max_delay_s=config.predict_delay_ms / 1_000,
                max_run_s=config.predict_timeout_ms / 1_000,
            ),
            config.predict_timeout_ms / 1_000,
            quotas or Quotas(),
        )
        self._token_use = token_use
        self._store_log = logs.StoreLog()
        self._hosts = hosts or Hosts(config.hosts)
        self.reads = FeatureReads(self.state, self._store_log, request_log, traced=bool(tracer))
        self.predictions = Predictions(
            self.state, self._store_log, request_log, prediction_log, traced=bool(tracer)
        )
        self._tracer = tracer
        self._admin = AdminPages(self.state, self._all_counts, self._store_log)
        self._models = ModelPages(self.state, self._admin.probe)
        self._routes = {
            READ_PATH: ("POST", self.reads.answer),
            **self._models.routes,
            **self._admin.routes,
        }
        self._tasks: set[asyncio.Task[None]] = set()
        self._counts_file = counts_file
        self._batches = GrowingTotals(self.counts.reads)
        self._records = GrowingTotals(self.counts.reads)
        self._logged = GrowingTotals(self.counts.logged)
        self._logged_predictions = GrowingTotals(self.counts.logged_predictions)
        self._networks = GrowingTotals(self.counts.network)

    def replace_definitions(self, definitions: DefinitionSet) -> None:
        """Answer requests that arrive from now on with these definitions."""
        self._update_counts()
        self._records.restart()  # the reader of the new definitions starts at zero
        self.state.definitions = definitions
        self.state.coalescer.fetcher = definitions.reader

    def replace_tokens(self, tokens: Tokens | None) -> None:
        """Know these tokens from now on, and no others."""
        self._collect_use()
        self.state.tokens = tokens

    def replace_models(self, models: ModelSet) -> None:
        """Answer requests that arrive from now on with these models."""
        self.state.models = models

    def tick(self) -> None:
        """Write collected log lines and counts. Called about once a second."""
        self.state.batcher.expire(time.monotonic())
        self.log.flush()
        self._update_counts()
        if self._token_use is not None:
            self._token_use.write(now_ms() / 1000)
        if self._counts_file is not None:
            self._counts_file.write(self.counts, now_ms() / 1000)

    def close(self) -> None:
        """Release all threads and write the last lines and counts."""
        self.state.coalescer.close()
        self.state.batcher.close()
        self.state.bodies.close()
        self._admin.close()
        if self.reads.request_log is not None:
            self.reads.request_log.close()
        if self.predictions.prediction_log is not None:
            self.predictions.prediction_log.close()
        if self._tracer is not None:
            self._tracer.close()
        self.tick()
        if self._token_use is not None:
            self._token_use.write(now_ms() / 1000, at_once=True)

    @property
    def is_working(self) -> bool:
        """Whether a task still answers a request."""
        return bool(self._tasks)

    def cancel(self) -> None:
        """Give up requests that tasks answer."""
        for task in self._tasks:
            task.cancel()

    def start(self, exchange: Exchange) -> None:
        """Begin to answer a request: ``exchange.respond`` is called now or later."""
        started_s = time.perf_counter()
        request, body = exchange.request, exchange.body
        is_read = request.path == READ_PATH
        if (
            body is None
            or request.method != "POST"
            or not (is_read or request.path.startswith(PREDICT_PREFIX))
        ):
            task = asyncio.get_running_loop().create_task(self._answer(exchange, started_s))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            return
        finish = partial(self._finish, exchange, started_s)
        try:
            self._hosts.check(request)
            if is_read:
                request.route = READ_PATH
                self.reads.start(request, body, finish)
            else:
                request.route = PREDICT_ROUTE
                self.predictions.start(request, body, finish, exchange)
        except Exception as error:
            finish(error)

    async def _answer(self, exchange: Exchange, started_s: float) -> None:
        try:
            result: Reply | Exception = await self._handler(exchange.request)(
                exchange.request, exchange.receive
            )
        except Exception as error:
            result = error
        self._finish(exchange, started_s, result)

    def _handler(self, request: Request) -> Handler:
        self._hosts.check(request)
        route = self._route_of(request.path)
        if route is None:
            routes = [*self._routes, PREDICT_ROUTE, "/v2/models/{model}"]
            raise RequestRejected(
                "not_found", f"no path {request.path[:80]!r}; the paths are: {', '.join(routes)}"
            )
        request.route, method, handler = route
        if request.method != method and not (request.method == "HEAD" and method == "GET"):
            raise RequestRejected(
                "method_not_allowed",
                f"{request.path} takes {method}, not {request.method[:20]}",
                ((b"allow", method.encode()),),
            )
        return handler

    def _route_of(self, path: str) -> tuple[str, str, Handler] | None:
        """Return the route, method and handler of a path."""
        method_and_handler = self._routes.get(path)
        if method_and_handler is not None:
            return path, *method_and_handler
        if path.startswith(PREDICT_PREFIX) and "/" not in path[len(PREDICT_PREFIX) :]:
            return PREDICT_ROUTE, "POST", self.predictions.answer
        return self._models.route_of(path) or self._admin.route_of(path)

    def _finish(self, exchange: Exchange, started_s: float, result: Reply | Exception) -> None:
        """Send the reply, count the request, and add its line to the access log."""
        request = exchange.request
        reply = result if isinstance(result, Reply) else self._reply_to(request, result)
        try:
            exchange.respond(reply)
        except ValueError as error:  # a defect: it has a header that cannot be sent
            reply = self._reply_to(request, error)
            exchange.respond(reply)
        took_s = time.perf_counter() - started_s
        self.counts.request(request.route, reply.status, took_s)
        if self.log.wants(reply.status):
            self.log.add(logs.access_line(request, reply, took_s))
        if self._tracer is not None:
            self._trace(self._tracer, request, reply, took_s)

    def _trace(self, tracer: Tracer, request: Request, reply: Reply, took_s: float) -> None:
        attributes: dict[str, str | int] = {
            "http.request.method": request.method,
            "http.route": request.route,
            "http.response.status_code": reply.status,
            "paimon_features.request_id": request.request_id,
            "paimon_features.rows": reply.rows,
            "paimon_features.features": reply.features,
        }
        if reply.code is not None:
            attributes["error.type"] = reply.code
        tracer.record(
            ended_now(f"{request.method} {request.route}", took_s, attributes),
            "server",
            traceparent=request.traceparent.decode("latin-1"),
            # by the conventions of HTTP, what a client did wrong is no error of the server
            error=reply.code if reply.status >= 500 else None,
            parts=request.parts,
        )

    def _reply_to(self, request: Request, error: Exception) -> Reply:
        """Return the reply to a request that failed."""
        if isinstance(error, ClientGoneError):
            return Reply(499, b"", b"", code="client_gone")
        if isinstance(error, RequestRejected):
            return self._rejected(request, error)
        if isinstance(error, PaimonFeaturesError):
            rejection = rejection_of(error, with_detail=self.state.is_operator(request))
            if isinstance(error, OnlineStoreError):
                self._store_log.failed(rejection.code, str(error))
            return self._rejected(request, rejection)
        logs.LOGGER.error(
            "a request failed",
            exc_info=error,
            extra={"fields": {"request_id": request.request_id, "path": request.path}},
        )
        detail = "internal server error; the server's log has it under this request id"
        return self._rejected(request, RequestRejected("internal", detail))

    def _rejected(self, request: Request, rejection: RequestRejected) -> Reply:
        if rejection.reason is not None:
            self.counts.refuse(rejection.reason)
        of_protocol = model_error(request, rejection)
        if of_protocol is not None:
            media_type, body = b"application/json", of_protocol
        elif is_feast(request):
            media_type, body = b"application/json", feast_document(rejection, request.request_id)
        else:
            media_type, body = MEDIA_TYPE, rejection.document(request.request_id)
        return Reply(
            rejection.status,
            media_type,
            body,
            rejection.headers,
            code=rejection.code,
        )

    def _all_counts(self) -> list[Counts]:
        """Return the counts of all workers, those of this one up to date."""
        self.tick()
        if self._counts_file is not None:
            return self._counts_file.of_all()
        self.counts.written_s = now_ms() / 1000
        return [self.counts]

    def _collect_use(self) -> None:
        """Add what clients with tokens did since the last time."""
        if self.state.tokens is None:
            return
        now_s = now_ms() / 1000
        for client, label, used in self.state.tokens.take_usage():
            self.counts.use(label, used)
            if self._token_use is not None:
                self._token_use.add(client, used, now_s)

    def _update_counts(self) -> None:
        """Add what was read and logged since the last update."""
        state = self.state
        self._collect_use()
        self.counts.in_flight = state.admission.in_flight
        self.counts.buffered_bytes = state.buffers.held
        self.counts.models_ok = state.models.problem is None
        self.counts.model_ok = state.models.well(state.definitions)
        self._batches.add(
            {"batches": state.coalescer.batches, "batched_requests": state.coalescer.queries}
        )
        self._records.add(state.definitions.reads)
        stats = state.batcher.stats
        self.counts.waiting_rows = state.batcher.waiting_rows
        if stats.runs or stats.shadow_rows:
            self._networks.add(
                {
                    "network_runs": stats.runs,
                    "network_rows": stats.rows,
                    "network_us": int(stats.run_s * 1e6),
                    "predictions_late": stats.late,
                    "shadow_dropped": stats.shadow_dropped,
                }
            )
        if self.reads.request_log is not None:
            self._logged.add(self.reads.request_log.stats.by_result())
        if self.predictions.prediction_log is not None:
            self._logged_predictions.add(self.predictions.prediction_log.stats.by_result())
