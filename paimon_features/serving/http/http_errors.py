"""Errors over HTTP: the status, a code for programs, and a text for people.

The document is that of RFC 9457, so ``detail`` is where clients of other servers expect it.
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus

import msgspec

from paimon_features.core.documents.redaction import redact
from paimon_features.core.errors import (
    ModelError,
    OnlineStoreError,
    OverloadedError,
    PaimonFeaturesError,
    StoreNotReadyError,
    UnknownNameError,
    shortened,
)

Headers = tuple[tuple[bytes, bytes], ...]

MEDIA_TYPE = b"application/problem+json"
_RETRY: Headers = ((b"retry-after", b"1"),)
CLOSE: Headers = ((b"connection", b"close"),)
"""Ends the connection after a reply to a request that was not read completely."""


_LONGEST_DETAIL = 1_000
"""Characters of a ``detail``: what is wrong with a request says little more if it is longer, and
each is searched for secrets and sent. In JSON a character takes up to six bytes."""
_LONGEST_ESCAPED = 1_500


class RequestRejected(Exception):  # noqa: N818  (a reply of the protocol, not a fault)
    """A request that is answered with an error. ``code`` is stable; the text may change.

    ``reason`` is the label of the counter of refused requests, None for those not counted there.
    """

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        headers: Headers = (),
        reason: str | None = None,
    ) -> None:
        detail = shortened(detail, _LONGEST_DETAIL)
        if len(msgspec.json.encode(detail)) > _LONGEST_ESCAPED:
            detail = shortened(detail, _LONGEST_ESCAPED // 6)
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.headers = headers
        self.reason = reason

    def document(self, request_id: str) -> bytes:
        """Return the body of the reply."""
        return msgspec.json.encode(
            {
                "status": self.status,
                "title": HTTPStatus(self.status).phrase,
                "code": self.code,
                "detail": redact(self.detail),
                "request_id": request_id,
            }
        )


CODES: Mapping[str, str] = {
    "malformed": "the body is not what its content type says",
    "invalid_request": "a field is missing, unknown or of the wrong type, or values do not fit",
    "unknown_name": "a view, feature, service or interaction that is not defined",
    "unauthorized": "the token is missing or unknown",
    "forbidden": "the token does not grant the right to read this",
    "quota_exceeded": "the token is over its rate of requests or rows; see Retry-After",
    "not_found": "no such path",
    "unknown_host": "the name in the Host header is not one of this server",
    "cross_site": "a browser sends this for a page of another site",
    "method_not_allowed": "the path takes another method",
    "not_acceptable": "the server writes none of the formats that the client accepts",
    "unsupported_media_type": "the server does not read this format of bodies",
    "too_large": "the body, or the number of requested values, is over a limit of this server",
    "too_slow": "the body did not arrive in time",
    "overloaded": "the request would wait too long; retry, at another worker or later",
    "not_ready": "a view in the online store is not complete yet, or a model has no version here "
    "that can answer",
    "prediction_failed": "the network of a model failed on these inputs",
    "store_unavailable": "the online store does not respond",
    "internal": "internal server error; the log has it under the request's id",
}
"""Every ``code`` and its meaning."""


STORE_UNAVAILABLE = "the online store does not respond; the server's log has the reason"
"""What clients other than operators read about a store that fails."""


def rejection_of(error: PaimonFeaturesError, *, with_detail: bool = False) -> RequestRejected:
    """Return the status and code for an error of a read.

    ``with_detail`` for an operator's request.
    """
    if isinstance(error, OverloadedError):
        return overloaded(str(error), "queue")
    if isinstance(error, StoreNotReadyError):
        return RequestRejected(503, "not_ready", str(error), _RETRY)
    if isinstance(error, OnlineStoreError):
        # the error has the store's address and user, which only the log and operators see
        detail = str(error) if with_detail else STORE_UNAVAILABLE
        return RequestRejected(503, "store_unavailable", detail, _RETRY)
    if isinstance(error, ModelError):
        return RequestRejected(500, "prediction_failed", str(error))
    if isinstance(error, UnknownNameError):
        return RequestRejected(404, "unknown_name", str(error))
    return RequestRejected(422, "invalid_request", str(error))


def not_ready(detail: str) -> RequestRejected:
    """Return 503 for what is not there yet."""
    return RequestRejected(503, "not_ready", detail, _RETRY)


def overloaded(detail: str, reason: str, headers: Headers = ()) -> RequestRejected:
    """Return 503 for a request that does not fit now. It was not answered, so it may be retried."""
    return RequestRejected(503, "overloaded", detail, (*_RETRY, *headers), reason)
