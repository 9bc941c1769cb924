"""The two clients: the same calls, one blocking and one for asyncio."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

from paimon_features.core.feature_cache import FeatureCache
from paimon_features.core.process.closeable import Closeable
from paimon_features.serving.client.core import ClientCore, HttpAttempt, Steps, import_httpx
from paimon_features.serving.client.replies import FeatureReply

if TYPE_CHECKING:
    from typing import Unpack

    import pyarrow as pa

Result = TypeVar("Result")


class ClientOptions(TypedDict, total=False):
    """The options of both clients; ``FeatureClient`` describes them."""

    token: str | None
    timeout_s: float
    max_tries: int
    max_connections: int
    cache: FeatureCache | None
    cache_ttl_s: float
    tls: Any


class FeatureClient(Closeable):
    """Reads features from a feature server; reuse it, since it keeps connections open.

    Safe to share between threads. ``url`` is that of the server, ``token`` its bearer token, by
    default that of the environment variable PAIMON_FEATURES_TOKEN, if any. A request that fails to
    connect or is answered with 429 or 503 is retried (``RetryPolicy``), up to ``max_tries`` times
    and not after ``timeout_s``; a try waits for its connection, and for the next bytes, no longer
    than the time that was left when it began. With ``cache``, rows that were read less than
    ``cache_ttl_s`` ago, and whose views are not stale by now, are not requested again; calls with
    ``as_of_ms`` are not cached. ``tls`` is an ``ssl.SSLContext`` to use instead of the default one.

    Raises
    ------
    ConfigurationError
        For a URL of another form, or a number that is not positive.
    MissingExtraError
        If httpx is not installed.
    """

    def __init__(self, url: str, **options: Unpack[ClientOptions]) -> None:
        self._core = ClientCore(url, **options)
        self._transport_error = import_httpx().TransportError
        self._http: Any = self._core.http_client("Client")

    @property
    def url(self) -> str:
        """The server's address."""
        return self._core.url

    def get_online_features(
        self,
        features_or_service: str | Sequence[str],
        entities: Mapping[str, Any] | None = None,
        as_of_ms: int | None = None,
        request: Mapping[str, Any] | None = None,
        full_feature_names: bool = False,
        event: Mapping[str, Any] | None = None,
    ) -> FeatureReply:
        """Return the features of some entities.

        The first argument is the name of a service, one ``view:feature`` or a list of them.
        ``entities`` maps each key column to the values, all of one length; ``request`` each
        request input to one value, or to one for each entity. ``as_of_ms`` is the time of the read
        (UTC ms), the server's clock by default. With ``full_feature_names`` a feature is named
        ``<view>__<feature>``. A service with ``request=`` takes an ``event`` instead of entities,
        time and inputs: a value for each column of its source that the features use.

        Raises
        ------
        RequestError
            For a request that the server rejects; the message is the server's.
        UnknownNameError
            For an unknown service, view or feature.
        ConfigurationError
            For a token that is missing, unknown, or without the right to read this.
        StoreNotReadyError, OverloadedError, OnlineStoreError
            If there is no reply in time.
        """
        return self._run(
            self._core.get_online_features(
                features_or_service, entities, as_of_ms, request, full_feature_names, event
            )
        )

    def get_online_features_arrow(
        self,
        features_or_service: str | Sequence[str],
        entities: Any,
        as_of_ms: int | None = None,
        full_feature_names: bool = False,
    ) -> pa.Table:
        """Return the same in bulk, as an Arrow table; request and reply are Arrow streams. Needs
        pyarrow.

        ``entities`` is an Arrow table or a mapping of columns: the entity keys and the request
        inputs, one value per row. The table has the keys, the features, ``<feature>__status`` (an
        index into the ``status_names`` of the metadata) and ``<view>__event_time_ms``; the schema's
        metadata ``paimon_features`` is JSON with ``status_names``, ``as_of_ms`` and ``freshness``.
        It is not cached.
        """
        return self._run(
            self._core.get_online_features_arrow(
                features_or_service, entities, as_of_ms, full_feature_names
            )
        )

    def features(self) -> dict[str, Any]:
        """Return the catalogue of the server: views with their features, services, interactions."""
        return self._run(self._core.features())

    def health(self) -> dict[str, Any]:
        """Return True if the server is ready, and how fresh each view is.

        Also if it is not ready.
        """
        return self._run(self._core.health())

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def _run(self, steps: Steps[Result]) -> Result:
        answer: Any = None
        while True:
            try:
                step = steps.send(answer)
            except StopIteration as end:
                result: Result = end.value
                return result
            if not isinstance(step, HttpAttempt):
                time.sleep(step)
                answer = None
                continue
            try:
                answer = self._http.request(
                    step.method,
                    step.path,
                    content=step.body,
                    headers=step.headers,
                    timeout=step.timeout_s,
                )
            except self._transport_error as error:
                answer = error


class AsyncFeatureClient:
    """``FeatureClient`` for asyncio: the same calls and options, awaited.

    To be used in one event loop, by any number of tasks.
    """

    def __init__(self, url: str, **options: Unpack[ClientOptions]) -> None:
        self._core = ClientCore(url, **options)
        self._transport_error = import_httpx().TransportError
        self._http: Any = self._core.http_client("AsyncClient")

    @property
    def url(self) -> str:
        """The server's address."""
        return self._core.url

    async def get_online_features(
        self,
        features_or_service: str | Sequence[str],
        entities: Mapping[str, Any] | None = None,
        as_of_ms: int | None = None,
        request: Mapping[str, Any] | None = None,
        full_feature_names: bool = False,
        event: Mapping[str, Any] | None = None,
    ) -> FeatureReply:
        """See ``FeatureClient.get_online_features``."""
        return await self._run(
            self._core.get_online_features(
                features_or_service, entities, as_of_ms, request, full_feature_names, event
            )
        )

    async def get_online_features_arrow(
        self,
        features_or_service: str | Sequence[str],
        entities: Any,
        as_of_ms: int | None = None,
        full_feature_names: bool = False,
    ) -> pa.Table:
        """See ``FeatureClient.get_online_features_arrow``."""
        return await self._run(
            self._core.get_online_features_arrow(
                features_or_service, entities, as_of_ms, full_feature_names
            )
        )

    async def features(self) -> dict[str, Any]:
        """See ``FeatureClient.features``."""
        return await self._run(self._core.features())

    async def health(self) -> dict[str, Any]:
        """See ``FeatureClient.health``."""
        return await self._run(self._core.health())

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> AsyncFeatureClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _run(self, steps: Steps[Result]) -> Result:
        answer: Any = None
        while True:
            try:
                step = steps.send(answer)
            except StopIteration as end:
                result: Result = end.value
                return result
            if not isinstance(step, HttpAttempt):
                await asyncio.sleep(step)
                answer = None
                continue
            try:
                answer = await self._http.request(
                    step.method,
                    step.path,
                    content=step.body,
                    headers=step.headers,
                    timeout=step.timeout_s,
                )
            except self._transport_error as error:
                answer = error
