"""The calls of both clients without I/O: generators that yield what to send and how long to wait.

::

    core (generator) ── HttpAttempt ──> client: sends it ── response or transport error ──> core
                     ── seconds ──> client: waits    ── None ─────────────────────────> core

So the clients only differ in how they send and wait.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from paimon_features.core.errors import (
    ConfigurationError,
    MissingExtraError,
    OnlineStoreError,
    RequestError,
)
from paimon_features.core.feature_cache import FeatureCache
from paimon_features.serving.client.replies import FeatureReply, reply_of
from paimon_features.serving.client.requests import ClientRequest, as_list
from paimon_features.serving.client.retries import RetryPolicy, RetryState
from paimon_features.serving.client.row_cache import Limits, RowCache

if TYPE_CHECKING:
    import httpx
    import pyarrow as pa

TOKEN_VARIABLE = "PAIMON_FEATURES_TOKEN"
ARROW = "application/vnd.apache.arrow.stream"
_JSON = {"content-type": "application/json", "accept": "application/json"}
_LIMITS_S = 60.0
"""How long the views' declared max_staleness is used before it is fetched again."""

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class HttpAttempt:
    """One HTTP request to send."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes | None
    timeout_s: float


Steps = Generator["HttpAttempt | float", Any, Result]
"""Yields attempts and waiting times (s); is sent the response or the transport error of an attempt,
and returns the result of the call."""


class ClientCore:
    """Validated options, the cache, and the calls; see ``FeatureClient`` for the options."""

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        timeout_s: float = 5.0,
        max_tries: int = 6,
        max_connections: int = 20,
        cache: FeatureCache | None = None,
        cache_ttl_s: float = 1.0,
        tls: Any = True,
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise ConfigurationError(f"feature server {url!r}: expected http://host:port or https")
        if timeout_s <= 0 or max_tries < 1 or max_connections < 1 or cache_ttl_s <= 0:
            raise ConfigurationError(
                f"timeout_s={timeout_s}, max_tries={max_tries}, max_connections="
                f"{max_connections}, cache_ttl_s={cache_ttl_s}: expected positive numbers"
            )
        self.url = url.rstrip("/")
        self._policy = RetryPolicy(timeout_s, max_tries)
        self._rows = None if cache is None else RowCache(cache, cache_ttl_s)
        self._limits: tuple[float, Limits] | None = None
        self._token = token or os.environ.get(TOKEN_VARIABLE)
        self._max_connections, self._tls = max_connections, tls

    def http_client(self, kind: str) -> Any:
        """Return a new httpx client of this class, ``Client`` or ``AsyncClient``."""
        httpx = import_httpx()
        headers = {"user-agent": "paimon-features"}
        if self._token:
            headers["authorization"] = f"Bearer {self._token}"
        most = self._max_connections
        return getattr(httpx, kind)(
            base_url=self.url,
            headers=headers,
            # without TLS there is nothing to verify, and reading all certificates takes 20 ms
            verify=self._tls if self.url.startswith("https:") else False,
            limits=httpx.Limits(max_connections=most, max_keepalive_connections=most),
            # the environment's proxies are for external hosts, and a feature server is not one
            trust_env=False,
        )

    def get_online_features(
        self,
        features_or_service: str | Sequence[str],
        entities: Mapping[str, Any] | None,
        as_of_ms: int | None,
        request: Mapping[str, Any] | None,
        full_feature_names: bool,
        event: Mapping[str, Any] | None,
    ) -> Steps[FeatureReply]:
        """Read features; rows in the cache are not requested."""
        full = ClientRequest.of(
            features_or_service, entities, as_of_ms, request, full_feature_names, event
        )
        rows = self._rows if event is None else None
        cached = None if rows is None else rows.look_up(self.url, full)
        missing = full if cached is None else cached.missing
        if missing is None:
            assert cached is not None
            return cached.known()
        response, request_id = yield from self._exchange(
            "POST", "/get-online-features", _JSON, missing.body()
        )
        reply = self._parsed(
            response, lambda body: reply_of(json.loads(body), list(full.entities), request_id)
        )
        if cached is None:
            return reply
        limits = self._known_limits
        if limits is None:
            limits = self._keep_limits((yield from self.features()))
        return cached.completed(reply, limits)

    def get_online_features_arrow(
        self,
        features_or_service: str | Sequence[str],
        entities: Any,
        as_of_ms: int | None,
        full_feature_names: bool,
    ) -> Steps[pa.Table]:
        """Read features in bulk."""
        headers, body = _arrow_request(features_or_service, entities, as_of_ms, full_feature_names)
        response, _ = yield from self._exchange("POST", "/get-online-features", headers, body)
        return self._parsed(response, _arrow_table)

    def features(self) -> Steps[dict[str, Any]]:
        """Fetch the catalogue."""
        accept = {"accept": "application/json"}
        response, _ = yield from self._exchange("GET", "/features", accept, None)
        return self._parsed(response, _document)

    def health(self) -> Steps[dict[str, Any]]:
        """Fetch the health document, also of a server that is not ready."""
        response, _ = yield from self._exchange("GET", "/health", {}, None, expected=(200, 503))
        return self._parsed(response, _document)

    def _exchange(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes | None,
        expected: Sequence[int] = (200,),
    ) -> Steps[tuple[httpx.Response, str]]:
        """Return the response with one of the expected statuses, after as many tries as it
        takes."""
        request_id = uuid.uuid4().hex
        sent = {**headers, "x-request-id": request_id}
        retries = RetryState(self.url, self._policy)
        while True:
            response = yield HttpAttempt(method, path, sent, body, retries.remaining_s())
            if isinstance(response, Exception):
                wait_s = retries.failed(response)
            else:
                request_id = response.headers.get("x-request-id", request_id)
                if response.status_code in expected:
                    return response, request_id
                wait_s = retries.rejected(
                    response.status_code, response.headers, response.content, request_id
                )
            yield wait_s

    def _parsed(self, response: httpx.Response, parse: Callable[[bytes], Result]) -> Result:
        try:
            return parse(response.content)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise OnlineStoreError(
                f"{self.url} answered {response.status_code} with something other than a feature "
                f"server's document ({type(error).__name__}: {error}): {response.content[:80]!r}"
            ) from error

    @property
    def _known_limits(self) -> Limits | None:
        """``max_staleness`` of the views as fetched last, unless that was too long ago."""
        if self._limits is None or time.monotonic() - self._limits[0] > _LIMITS_S:
            return None
        return self._limits[1]

    def _keep_limits(self, catalogue: Mapping[str, Any]) -> Limits:
        limits = {view["name"]: view.get("max_staleness_ms") for view in catalogue["views"]}
        self._limits = (time.monotonic(), limits)
        return limits


def import_httpx() -> Any:
    """Return the module httpx; MissingExtraError if it is not installed."""
    try:
        import httpx
    except ModuleNotFoundError as error:
        raise MissingExtraError.of("httpx", "client", "the client of a feature server") from error
    return httpx


def _document(body: bytes) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(body)
    return {**document}


def _arrow_request(
    features_or_service: str | Sequence[str],
    entities: Any,
    as_of_ms: int | None,
    full_feature_names: bool,
) -> tuple[Mapping[str, str], bytes]:
    """Return headers and an Arrow stream with the columns; the other fields are its metadata."""
    import pyarrow as pa

    from paimon_features.core.types.foreign_types import check_foreign_types, plain_table

    if isinstance(entities, Mapping):
        columns = {
            name: values
            if isinstance(values, pa.Array | pa.ChunkedArray)
            else as_list(name, values)
            for name, values in entities.items()
        }
        entities = pa.table(columns)
    fields = ClientRequest.of(features_or_service, {}, as_of_ms, None, full_feature_names).fields()
    metadata = {
        name: ",".join(value) if isinstance(value, list) else str(value)
        for name, value in fields.items()
    }
    # the server takes plain columns only
    table = plain_table(pa.table(entities)).replace_schema_metadata(metadata)
    try:
        check_foreign_types(table.schema)
    except pa.ArrowInvalid as error:
        raise RequestError(f"entities: {error}") from error
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return {"content-type": ARROW, "accept": ARROW}, sink.getvalue().to_pybytes()


def _arrow_table(body: bytes) -> pa.Table:
    import pyarrow as pa

    with pa.ipc.open_stream(body) as reader:
        return reader.read_all()
