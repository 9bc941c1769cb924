"""Wait for the answer to a query of a coalescer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from paimon_features.serving.http.messages import answer_of
from paimon_features.serving.reading.coalesce import Coalescer
from paimon_features.serving.reading.query import FeatureQuery
from paimon_features.serving.replies.response import OnlineResponse


async def answered(
    coalescer: Coalescer,
    query: FeatureQuery,
    render: Callable[[OnlineResponse], Any] | None = None,
) -> Any:
    """The response, or what ``render`` returns for it; a wait that is cancelled gives it up."""
    return await answer_of(lambda finish: coalescer.submit(query, render, finish))
