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
        self, code: str, detail: str, headers: Headers = (), reason: str | None = None
    ) -> None:
        detail = shortened(detail, _LONGEST_DETAIL)
        if len(msgspec.json.encode(detail)) > _LONGEST_ESCAPED:
            detail = shortened(detail, _LONGEST_ESCAPED // 6)
        super().__init__(detail)
        self.status, _ = CODES[code]
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


CODES: Mapping[str, tuple[int, str]] = {
    "malformed": (400, "the body is not what its content type says"),
    "invalid_request": (
        422,
        "a field is missing, unknown or of the wrong type, or values do not fit",
    ),
    "unknown_name": (404, "a view, feature, service or interaction that is not defined"),
    "unauthorized": (401, "the token is missing or unknown"),
    "forbidden": (403, "the token does not grant the right to read this"),
    "quota_exceeded": (429, "the token is over its rate of requests or rows; see Retry-After"),
    "not_found": (404, "no such path"),
    "unknown_host": (421, "the name in the Host header is not one of this server"),
    "cross_site": (403, "a browser sends this for a page of another site"),
    "method_not_allowed": (405, "the path takes another method"),
    "not_acceptable": (406, "the server writes none of the formats that the client accepts"),
    "unsupported_media_type": (415, "the server does not read this format of bodies"),
    "too_large": (
        413,
        "the body, or the number of requested values, is over a limit of this server",
    ),
    "too_slow": (408, "the body did not arrive in time"),
    "overloaded": (503, "the request would wait too long; retry, at another worker or later"),
    "not_ready": (
        503,
        "a view in the online store is not complete yet, or a model has no version here that can "
        "answer",
    ),
    "prediction_failed": (500, "the network of a model failed on these inputs"),
    "store_unavailable": (503, "the online store does not respond"),
    "internal": (500, "internal server error; the log has it under the request's id"),
}
"""Every ``code``: its HTTP status, and its meaning."""


STORE_UNAVAILABLE = "the online store does not respond; the server's log has the reason"
"""What clients other than operators read about a store that fails."""


def rejection_of(error: PaimonFeaturesError, *, with_detail: bool = False) -> RequestRejected:
    """Return the status and code for an error of a read.

    ``with_detail`` for an operator's request.
    """
    if isinstance(error, OverloadedError):
        return overloaded(str(error), "queue")
    if isinstance(error, StoreNotReadyError):
        return RequestRejected("not_ready", str(error), _RETRY)
    if isinstance(error, OnlineStoreError):
        # the error has the store's address and user, which only the log and operators see
        detail = str(error) if with_detail else STORE_UNAVAILABLE
        return RequestRejected("store_unavailable", detail, _RETRY)
    if isinstance(error, ModelError):
        return RequestRejected("prediction_failed", str(error))
    if isinstance(error, UnknownNameError):
        return RequestRejected("unknown_name", str(error))
    return invalid_request(str(error))


def invalid_request(detail: str) -> RequestRejected:
    """Return 422 for a request that says something wrong."""
    return RequestRejected("invalid_request", detail)


def not_ready(detail: str) -> RequestRejected:
    """Return 503 for what is not there yet."""
    return RequestRejected("not_ready", detail, _RETRY)


def overloaded(detail: str, reason: str, headers: Headers = ()) -> RequestRejected:
    """Return 503 for a request that does not fit now. It was not answered, so it may be retried."""
    return RequestRejected("overloaded", detail, (*_RETRY, *headers), reason)
