"""``POST /get-online-features``: the request path.

A request passes: token, format, body, admission, decoding, names, rights, limits, read, reply.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from paimon_features.core.errors import UnknownNameError
from paimon_features.serving.http.access.access import Rights
from paimon_features.serving.http.bodies.formats import (
    MEDIA_TYPES,
    Format,
    format_of_body,
    format_of_reply,
)
from paimon_features.serving.http.bodies.rendered_reply import (
    WRITERS,
    RenderedReply,
    freshness_headers,
    render,
)
from paimon_features.serving.http.bodies.request_body import ParsedRequest, decode
from paimon_features.serving.http.definitions.definition_set import DefinitionSet, RequestPlan
from paimon_features.serving.http.endpoints.entity_requests import EntityRequests, EntityWork, Head
from paimon_features.serving.http.http_errors import Headers, RequestRejected
from paimon_features.serving.http.messages import Exchange, Finish, Reply, Request
from paimon_features.serving.reading.coalesce import PendingQuery
from paimon_features.serving.replies.response import OnlineResponse

_PLAIN = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class FeatureReads(EntityRequests):
    """Reads features for clients."""

    def head(self, request: Request) -> Head:
        """Return rights and formats."""
        rights = self.state.authorize(request)
        body_format = format_of_body(request.content_type)
        return Head(rights, body_format, format_of_reply(request.accept, body_format))

    def decode(self, request: Request, body: bytes | bytearray, head: Head) -> ParsedRequest:
        """Return what the body says."""
        return decode(body, head.body_format, request.query)

    def submit(
        self,
        request: Request,
        decoded: ParsedRequest,
        size: int,
        head: Head,
        admitted: int,
        finish: Finish,
        client: Exchange | None,
    ) -> PendingQuery:
        """Submit what a body requests to the coalescer's queue."""
        state = self.state
        # nothing is awaited from here to the coalescer's queue: one set of definitions
        definitions = state.definitions
        plan = self._plan(definitions, decoded, head.rights)
        query, rows = definitions.query(decoded, plan, state.limits)
        state.note_rows(head.rights, rows)
        read = _Read(self, request, size, admitted, decoded, plan, rows, head.reply_format, finish)
        observe = read.note_store_read if self.traced else None
        return state.coalescer.submit(query, read.render, read.take, observe)

    def reply(self, read: _Read, rendered: RenderedReply) -> Reply:
        """Count an answered read; its reply."""
        self.note_answered()
        features = len(read.plan.selection.outputs)
        self.state.counts.answer(read.rows, read.rows * features, rendered.statuses or {})
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

    def _plan(
        self, definitions: DefinitionSet, parsed: ParsedRequest, rights: Rights
    ) -> RequestPlan:
        limits = self.state.limits
        if len(parsed.features) > limits.max_features:
            limits.check(1, len(parsed.features))
        try:
            plan = definitions.plan(parsed.service, parsed.features)
        except UnknownNameError as error:
            if rights.grants.reads_everything:
                raise
            # the names in the message's second half are not for this token
            raise RequestRejected(
                "unknown_name",
                f"{str(error).partition(';')[0]} that the token {rights.client!r} may read; "
                "GET /features lists what it may read",
            ) from None
        definitions.check_rights(plan, rights)
        return plan


class _Read(EntityWork):
    """A request from its admission to its reply."""

    __slots__ = ("_finish", "_reads", "_writer", "media_type", "parsed", "plan", "rows")

    def __init__(
        self,
        reads: FeatureReads,
        request: Request,
        size: int,
        admitted: int,
        parsed: ParsedRequest,
        plan: RequestPlan,
        rows: int,
        reply_format: Format,
        finish: Finish,
    ) -> None:
        super().__init__(request, size, admitted)
        self.parsed, self.plan, self.rows = parsed, plan, rows
        self.media_type = MEDIA_TYPES[reply_format]
        self._reads = reads
        self._writer = WRITERS[reply_format]
        self._finish = finish

    def render(self, response: OnlineResponse) -> RenderedReply:
        """Write the reply's body."""
        log = self._reads.request_log
        if log is not None:
            log.note(self.request.request_id, self.parsed.service or "", response)
        return render(response, self._writer, self.parsed.full_feature_names)

    def take(self, result: Any) -> None:
        """Take the rendered response or an error; called once, also if the query was given up."""
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
