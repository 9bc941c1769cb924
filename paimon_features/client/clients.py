"""The two clients: the same calls, one blocking and one for asyncio."""

from __future__ import annotations

import asyncio
import json
import os
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from paimon_features.client.replies import FeatureReply, reply_of
from paimon_features.client.requests import ClientRequest, as_list
from paimon_features.client.retries import RetryPolicy, RetryState
from paimon_features.client.row_cache import CacheLookup, Limits, RowCache
from paimon_features.errors import ConfigurationError, MissingExtraError, OnlineStoreError
from paimon_features.online_features.cache import FeatureCache

if TYPE_CHECKING:
    import httpx
    import pyarrow as pa

TOKEN_VARIABLE = "PAIMON_FEATURES_TOKEN"
ARROW = "application/vnd.apache.arrow.stream"
_JSON = {"content-type": "application/json", "accept": "application/json"}
_LIMITS_S = 60.0
"""How long the views' declared staleness is taken as it was told."""

Result = TypeVar("Result")


class _Client:
    """What both clients are given, checked; and all that does not wait."""

    _kind: ClassVar[str]
    """httpx's class."""

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
                f"{max_connections}, cache_ttl_s={cache_ttl_s}: expected more than nothing of each"
            )
        self.url = url.rstrip("/")
        self._policy = RetryPolicy(timeout_s, max_tries)
        self._rows = None if cache is None else RowCache(cache, cache_ttl_s)
        self._limits: tuple[float, Limits] | None = None
        httpx = _httpx()
        headers = {"user-agent": "paimon-features"}
        token = token or os.environ.get(TOKEN_VARIABLE)
        if token:
            headers["authorization"] = f"Bearer {token}"
        self._failure = httpx.TransportError
        self._http: Any = getattr(httpx, self._kind)(
            base_url=self.url,
            headers=headers,
            # without TLS there is nothing to verify, and reading all certificates takes 20 ms
            verify=tls if self.url.startswith("https:") else False,
            limits=httpx.Limits(
                max_connections=max_connections, max_keepalive_connections=max_connections
            ),
            # a proxy of the environment is for the outside, and a feature server is not there
            trust_env=False,
        )

    def _look(self, call: ClientRequest) -> CacheLookup | None:
        return None if self._rows is None else self._rows.look(self.url, call)

    @property
    def _known_limits(self) -> Limits | None:
        """What was told of the views' staleness, while that is young enough."""
        if self._limits is None or time.monotonic() - self._limits[0] > _LIMITS_S:
            return None
        return self._limits[1]

    def _take_limits(self, document: Mapping[str, Any]) -> Limits:
        limits = {view["name"]: view.get("max_staleness_ms") for view in document["views"]}
        self._limits = (time.monotonic(), limits)
        return limits

    def _read(self, response: httpx.Response, how: Callable[[bytes], Result]) -> Result:
        try:
            return how(response.content)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise OnlineStoreError(
                f"{self.url} answered {response.status_code} with something else than a feature "
                f"server's document ({type(error).__name__}: {error}): {response.content[:80]!r}"
            ) from error


class FeatureClient(_Client):
    """Reads features of a feature server; keep it, it keeps its connections.

    Safe to share between threads. ``url`` is that of the server, ``token`` its bearer token, by
    default that of the environment variable PAIMON_FEATURES_TOKEN, if any. What answers 503 or
    fails to connect is asked again (``RetryPolicy``), up to ``max_tries`` times and not after
    ``timeout_s``; a try waits for its connection, and for the next bytes, no longer than what was
    left when it began. With ``cache`` rows that were answered less than ``cache_ttl_s`` ago, and
    whose views are not stale by now, are not asked for again; calls with ``now_ms`` always are.
    ``tls`` is an ``ssl.SSLContext``, where the system's is not the right one.

    Raises
    ------
    ConfigurationError
        For a URL of another form, or a number that is not positive.
    MissingExtraError
        If httpx is not installed.
    """

    _kind = "Client"

    def get_online_features(
        self,
        features_or_service: str | Sequence[str],
        entities: Mapping[str, Any],
        now_ms: int | None = None,
        request: Mapping[str, Any] | None = None,
        full_feature_names: bool = False,
    ) -> FeatureReply:
        """Features of some entities.

        The first argument is the name of a service, one ``view:feature`` or a list of them.
        ``entities`` maps each key column to the values, all of one length; ``request`` each
        request input to one value, or to one for each entity. ``now_ms`` is the time of the read
        (UTC ms), the server's clock by default. With ``full_feature_names`` a feature is called
        ``<view>__<feature>``.

        Raises
        ------
        RequestError
            For a request that the server does not take; the message is the server's.
        UnknownNameError
            For a service, view or feature that is not there.
        ConfigurationError
            For a token that is missing, unknown, or not good for this.
        StoreNotReadyError, OverloadedError, OnlineStoreError
            If there is no answer in time.
        """
        call = ClientRequest.of(features_or_service, entities, now_ms, request, full_feature_names)
        looked = self._look(call)
        asked = call if looked is None else looked.missing
        if looked is not None and asked is None:
            return looked.known()
        assert asked is not None
        response, request_id = self._exchange("POST", "/get-online-features", _JSON, asked.body())
        reply = self._read(
            response, lambda body: reply_of(json.loads(body), list(call.entities), request_id)
        )
        if looked is None:
            return reply
        limits = self._known_limits
        return looked.completed(
            reply, self._take_limits(self.features()) if limits is None else limits
        )

    def get_online_features_arrow(
        self,
        features_or_service: str | Sequence[str],
        entities: Any,
        now_ms: int | None = None,
        full_feature_names: bool = False,
    ) -> pa.Table:
        """The same in bulk, as an Arrow table; both ways are Arrow streams. Needs pyarrow.

        ``entities`` is an Arrow table or a mapping of columns: the entity keys and the request
        inputs, one value per row. The table has the keys, the features, ``<feature>__status`` (a
        place in the ``status_names`` of the metadata) and ``<view>__event_time_ms``; the schema's
        metadata ``paimon_features`` is JSON with ``status_names``, ``as_of_ms`` and ``freshness``.
        Nothing of it is cached.
        """
        headers, body = _arrow_request(features_or_service, entities, now_ms, full_feature_names)
        response, _ = self._exchange("POST", "/get-online-features", headers, body)
        return self._read(response, _arrow_table)

    def features(self) -> dict[str, Any]:
        """What the server serves: views with their features, services, interactions."""
        response, _ = self._exchange("GET", "/features", {"accept": "application/json"}, None)
        return self._read(response, _document)

    def health(self) -> dict[str, Any]:
        """Whether the server can answer, and how fresh each view is; also when it cannot."""
        response, _ = self._exchange("GET", "/health", {}, None, answers=(200, 503))
        return self._read(response, _document)

    def close(self) -> None:
        """Let the connections go."""
        self._http.close()

    def __enter__(self) -> FeatureClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _exchange(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes | None,
        answers: Sequence[int] = (200,),
    ) -> tuple[httpx.Response, str]:
        request_id = uuid.uuid4().hex
        sent = {**headers, "x-request-id": request_id}
        exchange = RetryState(self.url, self._policy)
        while True:
            try:
                response = self._http.request(
                    method, path, content=body, headers=sent, timeout=exchange.remaining_s()
                )
            except self._failure as error:
                wait_s = exchange.failed(error)
            else:
                request_id = response.headers.get("x-request-id", request_id)
                if response.status_code in answers:
                    return response, request_id
                wait_s = exchange.refused(
                    response.status_code, response.headers, response.content, request_id
                )
            time.sleep(wait_s)


class AsyncFeatureClient(_Client):
    """``FeatureClient`` for asyncio: the same calls and options, awaited.

    To be used in one event loop, by any number of tasks.
    """

    _kind = "AsyncClient"

    async def get_online_features(
        self,
        features_or_service: str | Sequence[str],
        entities: Mapping[str, Any],
        now_ms: int | None = None,
        request: Mapping[str, Any] | None = None,
        full_feature_names: bool = False,
    ) -> FeatureReply:
        """See ``FeatureClient.get_online_features``."""
        call = ClientRequest.of(features_or_service, entities, now_ms, request, full_feature_names)
        looked = self._look(call)
        asked = call if looked is None else looked.missing
        if looked is not None and asked is None:
            return looked.known()
        assert asked is not None
        response, request_id = await self._exchange(
            "POST", "/get-online-features", _JSON, asked.body()
        )
        reply = self._read(
            response, lambda body: reply_of(json.loads(body), list(call.entities), request_id)
        )
        if looked is None:
            return reply
        limits = self._known_limits
        if limits is None:
            limits = self._take_limits(await self.features())
        return looked.completed(reply, limits)

    async def get_online_features_arrow(
        self,
        features_or_service: str | Sequence[str],
        entities: Any,
        now_ms: int | None = None,
        full_feature_names: bool = False,
    ) -> pa.Table:
        """See ``FeatureClient.get_online_features_arrow``."""
        headers, body = _arrow_request(features_or_service, entities, now_ms, full_feature_names)
        response, _ = await self._exchange("POST", "/get-online-features", headers, body)
        return self._read(response, _arrow_table)

    async def features(self) -> dict[str, Any]:
        """See ``FeatureClient.features``."""
        response, _ = await self._exchange("GET", "/features", {"accept": "application/json"}, None)
        return self._read(response, _document)

    async def health(self) -> dict[str, Any]:
        """See ``FeatureClient.health``."""
        response, _ = await self._exchange("GET", "/health", {}, None, answers=(200, 503))
        return self._read(response, _document)

    async def close(self) -> None:
        """Let the connections go."""
        await self._http.aclose()

    async def __aenter__(self) -> AsyncFeatureClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _exchange(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes | None,
        answers: Sequence[int] = (200,),
    ) -> tuple[httpx.Response, str]:
        request_id = uuid.uuid4().hex
        sent = {**headers, "x-request-id": request_id}
        exchange = RetryState(self.url, self._policy)
        while True:
            try:
                response = await self._http.request(
                    method, path, content=body, headers=sent, timeout=exchange.remaining_s()
                )
            except self._failure as error:
                wait_s = exchange.failed(error)
            else:
                request_id = response.headers.get("x-request-id", request_id)
                if response.status_code in answers:
                    return response, request_id
                wait_s = exchange.refused(
                    response.status_code, response.headers, response.content, request_id
                )
            await asyncio.sleep(wait_s)


def _httpx() -> Any:
    try:
        import httpx
    except ModuleNotFoundError as error:
        raise MissingExtraError.of("httpx", "client", "the client of a feature server") from error
    return httpx


def _document(body: bytes) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(body)
    return {**found}


def _arrow_request(
    features_or_service: str | Sequence[str],
    entities: Any,
    now_ms: int | None,
    full_feature_names: bool,
) -> tuple[Mapping[str, str], bytes]:
    """An Arrow stream with the columns, and what is asked for in its schema's metadata."""
    import pyarrow as pa

    if isinstance(entities, Mapping):
        columns = {
            name: values if isinstance(values, pa.Array) else as_list(name, values)
            for name, values in entities.items()
        }
        entities = pa.table(columns)
    call = ClientRequest.of(features_or_service, {}, now_ms, None, full_feature_names)
    told = {
        name: ",".join(value) if isinstance(value, list) else str(value)
        for name, value in call.fields().items()
    }
    table = pa.table(entities).replace_schema_metadata(told)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return {"content-type": ARROW, "accept": ARROW}, sink.getvalue().to_pybytes()


def _arrow_table(body: bytes) -> pa.Table:
    import pyarrow as pa

    with pa.ipc.open_stream(body) as reader:
        return reader.read_all()
