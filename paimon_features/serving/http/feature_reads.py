"""``POST /get-online-features``: the request path.

A request passes: token, format, body, admission, decoding, names, rights, limits, read, reply.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import Any

from paimon_features.errors import UnknownNameError
from paimon_features.serving.coalesce import PendingQuery
from paimon_features.serving.http.definition_set import DefinitionSet, RequestPlan
from paimon_features.serving.http.formats import (
    MEDIA_TYPES,
    Format,
    format_of_body,
    format_of_reply,
)
from paimon_features.serving.http.http_errors import Headers, RequestRejected
from paimon_features.serving.http.logs import StoreLog
from paimon_features.serving.http.messages import (
    Finish,
    Receive,
    Reply,
    Request,
    answer_of,
    check_body,
    read_body,
    take_body,
)
from paimon_features.serving.http.rendered_reply import (
    WRITERS,
    RenderedReply,
    freshness_headers,
    render,
)
from paimon_features.serving.http.request_body import ParsedRequest, decode
from paimon_features.serving.http.state import ServerState
from paimon_features.serving.http.tokens import Rights
from paimon_features.serving.request_log.log import RequestLog
from paimon_features.serving.response import OnlineResponse
from paimon_features.traces import ended_now

_PLAIN = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class FeatureReads:
    """Reads features for clients; ``request_log`` gets a sample of the responses.

    With ``traced`` each request has its reads of the store as ``parts``.
    """

    def __init__(
        self,
        state: ServerState,
        store_log: StoreLog,
        request_log: RequestLog | None = None,
        *,
        traced: bool = False,
    ) -> None:
        self.traced = traced
        self.request_log = request_log
        self._state = state
        self._store_log = store_log

    async def read(self, request: Request, receive: Receive) -> Reply:
        """The reply with the requested features, to a request whose body is yet to be read.

        Raises
        ------
        RequestRejected, PaimonFeaturesError
            For a request that cannot be answered.
        """
        state = self._state
        rights = state.authorize(request)
        body_format = format_of_body(request.content_type)
        reply_format = format_of_reply(request.accept, body_format)
        limits = state.limits
        body = await read_body(
            request, receive, limits.max_body_bytes, state.buffers, limits.body_timeout_s
        )
        return await answer_of(
            lambda finish: self._begin(request, body, body_format, reply_format, rights, finish)
        )

    def start(self, request: Request, body: bytes | bytearray, finish: Finish) -> None:
        """Begin to answer a request with its body; ``finish`` gets the reply, or why there is none.

        Raises as ``read`` does for what is wrong with the request alone; ``finish`` is not called
        then.
        """
        state = self._state
        rights = state.authorize(request)
        body_format = format_of_body(request.content_type)
        reply_format = format_of_reply(request.accept, body_format)
        check_body(request, state.limits.max_body_bytes, state.buffers)
        take_body(body, state.limits.max_body_bytes, state.buffers)
        self._begin(request, body, body_format, reply_format, rights, finish)

    def _begin(
        self,
        request: Request,
        body: bytes | bytearray,
        body_format: Format,
        reply_format: Format,
        rights: Rights,
        finish: Finish,
    ) -> PendingQuery:
        """From a body to the coalescer's queue; the body, which is counted, is freed at the end."""
        state = self._state
        size = len(body)
        try:
            work = state.admission.enter(size, time.perf_counter())
            try:
                parsed = decode(body, body_format, request.query)
                # nothing is awaited from here to the coalescer's queue: one set of definitions
                definitions = state.definitions
                plan = self._plan(definitions, parsed, rights)
                query, rows = definitions.query(parsed, plan, state.limits)
                read = _Read(self, request, size, work, parsed, plan, rows, reply_format, finish)
                observe = read.note_store_read if self.traced else None
                return state.coalescer.submit(query, read.render, read.take, observe)
            except BaseException:
                state.admission.leave(work, time.perf_counter())
                raise
        except BaseException:
            state.buffers.free(size)
            raise

    def reply(self, read: _Read, rendered: RenderedReply) -> Reply:
        """Count an answered read; its reply."""
        if self._store_log.is_failing:
            self._store_log.answered()
        features = len(read.plan.selection.outputs)
        self._state.counts.answer(read.rows, read.rows * features, rendered.statuses or {})
        headers = freshness_headers(rendered.freshness)
        ignored = read.parsed.ignored
        return Reply(
            200,
            read.media_type,
            rendered.body,
            (*headers, *_ignored_headers(ignored)) if ignored else headers,
            read.rows,
            features,
        )

    def leave(self, read: _Read) -> None:
        """Release what an admitted request holds."""
        self._state.admission.leave(read.work, time.perf_counter())
        self._state.buffers.free(read.size)

    def _plan(
        self, definitions: DefinitionSet, parsed: ParsedRequest, rights: Rights
    ) -> RequestPlan:
        limits = self._state.limits
        if len(parsed.features) > limits.max_features:
            limits.check(1, len(parsed.features))
        try:
            plan = definitions.plan(parsed.service, parsed.features)
        except UnknownNameError as error:
            if rights.services is None:
                raise
            # the names in the message's second half are not for this token
            raise RequestRejected(
                404,
                "unknown_name",
                f"{str(error).partition(';')[0]} that the token {rights.client!r} may read; "
                "GET /features lists what it may read",
            ) from None
        definitions.check_rights(plan, rights)
        return plan


class _Read:
    """A request from its admission to its reply."""

    __slots__ = (
        "_finish", "_full", "_reads", "_request", "_writer", "media_type", "parsed", "plan", "rows",
        "size", "work",
    )  # fmt: skip

    def __init__(
        self,
        reads: FeatureReads,
        request: Request,
        size: int,
        work: int,
        parsed: ParsedRequest,
        plan: RequestPlan,
        rows: int,
        reply_format: Format,
        finish: Finish,
    ) -> None:
        self.size, self.work = size, work
        self.parsed, self.plan, self.rows = parsed, plan, rows
        self.media_type = MEDIA_TYPES[reply_format]
        self._reads, self._request = reads, request
        self._writer = WRITERS[reply_format]
        self._finish = finish

    def render(self, response: OnlineResponse) -> RenderedReply:
        """Write the reply's body."""
        log = self._reads.request_log
        if log is not None:
            log.note(self._request.request_id, self.parsed.service or "", response)
        return render(response, self._writer, self.parsed.full_feature_names)

    def note_store_read(self, took_s: float, keys: int) -> None:
        """Remember a read of the store for the request's trace."""
        part = ended_now("MGET", took_s, {"db.system.name": "redis", "paimon_features.keys": keys})
        self._request.parts = (*self._request.parts, part)

    def take(self, result: Any) -> None:
        """The rendered response or an error; called once, also for a query that was given up."""
        self._reads.leave(self)
        if not isinstance(result, BaseException):
            try:
                result = self._reads.reply(self, result)
            except Exception as error:
                result = error
        self._finish(result)


def _ignored_headers(names: Sequence[str]) -> Headers:
    """Report to the client which of its fields had no effect."""
    if not names:
        return ()
    shown = (name if _PLAIN.fullmatch(name) else "?" for name in names)
    return ((b"x-ignored-fields", ", ".join(shown).encode()),)
