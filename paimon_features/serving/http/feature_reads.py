"""``POST /get-online-features``: the request path.

A request passes: token, format, body, admission, decoding, names, rights, limits, read, reply.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence

from paimon_features.errors import UnknownNameError
from paimon_features.serving.http.definition_set import DefinitionSet, RequestPlan
from paimon_features.serving.http.formats import Format, format_of_body, format_of_reply
from paimon_features.serving.http.http_errors import Headers, RequestRejected
from paimon_features.serving.http.logs import StoreLog
from paimon_features.serving.http.messages import Receive, Reply, Request, read_body
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

_PLAIN = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class FeatureReads:
    """Reads features for clients; ``request_log`` gets a sample of the responses."""

    def __init__(
        self, state: ServerState, store_log: StoreLog, request_log: RequestLog | None = None
    ) -> None:
        self.request_log = request_log
        self._state = state
        self._store_log = store_log

    async def read(self, request: Request, receive: Receive) -> Reply:
        """The reply with the requested features.

        Raises
        ------
        RequestRejected, PaimonFeaturesError
            For a request that cannot be answered.
        """
        state = self._state
        rights = state.authorize(request)
        body_format = format_of_body(request.content_type)
        reply_format = format_of_reply(request.accept, body_format)
        limits, buffers = state.limits, state.buffers
        body = await read_body(
            request, receive, limits.max_body_bytes, buffers, limits.body_timeout_s
        )
        try:
            return await self._answer(request, body, body_format, reply_format, rights)
        finally:
            buffers.free(len(body))

    async def _answer(
        self,
        request: Request,
        body: bytes | bytearray,
        body_format: Format,
        reply_format: Format,
        rights: Rights,
    ) -> Reply:
        state = self._state
        work = state.admission.enter(len(body), time.perf_counter())
        try:
            parsed = decode(body, body_format, request.query)
            # nothing is awaited from here to the coalescer's queue: one set of definitions
            definitions = state.definitions
            plan = self._plan(definitions, parsed, rights)
            query, rows = definitions.query(parsed, plan, state.limits)
            full = parsed.full_feature_names
            writer = WRITERS[reply_format]

            def rendered_response(response: OnlineResponse) -> RenderedReply:
                if self.request_log is not None:
                    self.request_log.note(request.request_id, parsed.service or "", response)
                return render(response, writer, full)

            rendered = await state.coalescer.get(query, rendered_response)
        finally:
            state.admission.leave(work, time.perf_counter())
        if self._store_log.is_failing:
            self._store_log.answered()
        features = len(plan.selection.outputs)
        state.counts.answer(rows, rows * features, rendered.statuses or {})
        return Reply(
            200,
            reply_format.value.encode(),
            rendered.body,
            (*freshness_headers(rendered.freshness), *_ignored_headers(parsed.ignored)),
            rows,
            features,
        )

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


def _ignored_headers(names: Sequence[str]) -> Headers:
    """Report to the client which of its fields had no effect."""
    if not names:
        return ()
    shown = (name if _PLAIN.fullmatch(name) else "?" for name in names)
    return ((b"x-ignored-fields", ", ".join(shown).encode()),)
