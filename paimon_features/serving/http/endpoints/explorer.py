"""``GET /explain``: for people, so it must not delay requests of programs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import msgspec

from paimon_features.core.errors import OverloadedError, UnknownNameError
from paimon_features.serving.http.access.access import Rights
from paimon_features.serving.http.definitions.definition_set import DefinitionSet
from paimon_features.serving.http.http_errors import RequestRejected
from paimon_features.serving.reading.explain import explain, explain_event, service_event
from paimon_features.serving.reading.explain_query import ExplainQuery

_MOST_WAITING = 8


class Explorer:
    """Explains features in a thread of its own, one request after another."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "explain")
        self._waiting = 0

    async def explanation(self, definitions: DefinitionSet, rights: Rights, query: bytes) -> bytes:
        """Return the document of ``explain``, for the features that the rights cover.

        Raises
        ------
        RequestRejected
            403 for a feature that the rights do not cover.
        OverloadedError
            If too many are waiting.
        PaimonFeaturesError
            As ``explain`` does.
        """
        if self._waiting >= _MOST_WAITING:
            raise OverloadedError(f"{self._waiting} others wait for an explanation; retry later")
        query_ = ExplainQuery.of(query.decode("latin-1"))
        if not rights.grants.explain:
            raise RequestRejected(
                "forbidden", f"the token {rights.client!r} may not explain features"
            )
        work = _work(definitions, rights, query_)
        self._waiting += 1
        try:
            document = await asyncio.get_running_loop().run_in_executor(self._thread, work)
        finally:
            self._waiting -= 1
        return msgspec.json.encode(document)

    def close(self) -> None:
        """Release the thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)


def _work(
    definitions: DefinitionSet, rights: Rights, query_: ExplainQuery
) -> Callable[[], dict[str, Any]]:
    features = _allowed(definitions, rights, query_)
    fetcher = definitions.fetcher
    view = query_.view
    if query_.service is not None and query_.event is not None:
        definitions.check_rights(definitions.plan(query_.service, ()), rights)
        chosen = None if query_.feature is None else [query_.feature]
        event, explained = service_event(
            definitions.definitions, query_.service, query_.event, view, chosen
        )
        return partial(explain_event, fetcher, view, event, explained)
    entity = query_.typed(fetcher.variants(view)[0].keys)
    as_of_ms = fetcher.clock() if query_.as_of_ms is None else query_.as_of_ms
    return partial(explain, fetcher, view, entity, as_of_ms, features)


def _allowed(definitions: DefinitionSet, rights: Rights, query_: ExplainQuery) -> list[str] | None:
    """Return the features to explain, None for all of them."""
    granted = definitions.granted(rights)
    view, feature = query_.view, query_.feature
    if granted is None:
        return None if feature is None else [feature]
    readable = [name.partition(":")[2] for name in sorted(granted) if name.startswith(f"{view}:")]
    if not readable:
        # this token may not know whether the view exists
        raise UnknownNameError(
            f"unknown feature view {view[:80]!r} for the token {rights.client!r}; "
            "GET /features lists what it may read"
        )
    if feature is None:
        return readable
    if feature not in readable:
        raise RequestRejected(
            "forbidden",
            f"the token {rights.client!r} may not read {view}:{feature[:80]}; of this view it may "
            f"read: {', '.join(readable)}",
        )
    return [feature]
