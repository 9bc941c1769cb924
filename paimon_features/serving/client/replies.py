"""Replies of a feature server, as plain lists."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from paimon_features.core.types.statuses import STATUS_OF_FEAST
from paimon_features.serving.replies.freshness import Freshness

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_NEVER = "1970-01-01T00:00:00Z"


@dataclass(frozen=True)
class FeatureReply:
    """Features of some entities at ``as_of_ms`` (UTC ms); rows are in the order of the request.

    ``columns`` has the entity keys and then the features, ``statuses`` the features alone with
    PRESENT, STALE, EXPIRED, MISSING or ILL_CONDITIONED for each value. ``freshness`` is per view.
    A reply that is partly from a cache has the oldest ``as_of_ms`` and the worst freshness of its
    rows, and the ``request_id`` of the request that was sent; None if none was.
    """

    as_of_ms: int
    columns: Mapping[str, list[Any]]
    statuses: Mapping[str, list[str]]
    event_timestamps: Mapping[str, list[str]] = field(repr=False)
    freshness: Mapping[str, Freshness]
    request_id: str | None = None
    own_event: Mapping[str, str] | None = None
    """How each view of its source handles the event of the request; None without one."""

    @property
    def features(self) -> list[str]:
        """The names of the features, in the order of the request."""
        return list(self.statuses)

    @property
    def keys(self) -> list[str]:
        """The names of the entity keys."""
        return [name for name in self.columns if name not in self.statuses]

    @property
    def applied_snapshot(self) -> Mapping[str, int]:
        """For each view the snapshot of its tile table that every value includes."""
        return {view: freshness.applied_snapshot for view, freshness in self.freshness.items()}

    @property
    def event_times_ms(self) -> Mapping[str, list[int | None]]:
        """For each feature the entities' newest events (UTC ms); None where there is none."""
        return {name: _times_ms(texts) for name, texts in self.event_timestamps.items()}

    def to_pydict(self) -> dict[str, list[Any]]:
        """Return the values as lists by column name, entity keys first."""
        return {name: list(values) for name, values in self.columns.items()}

    def to_pylist(self) -> list[dict[str, Any]]:
        """Return the values as one dictionary per entity."""
        names = list(self.columns)
        return [
            dict(zip(names, row, strict=True)) for row in zip(*self.columns.values(), strict=True)
        ]


def reply_of(
    document: Mapping[str, Any], keys: Sequence[str], request_id: str | None
) -> FeatureReply:
    """Parse a JSON document; ``keys`` are the entity keys of the request, unless it had an event.

    Raises
    ------
    KeyError, TypeError, ValueError
        For a document of another form.
    """
    metadata, results = document["metadata"], document["results"]
    keys = metadata.get("entity_keys", keys)
    columns: dict[str, list[Any]] = {}
    statuses: dict[str, list[str]] = {}
    times: dict[str, list[str]] = {}
    for name, result in zip(metadata["feature_names"], results, strict=True):
        columns[name] = result["values"]
        if name not in keys:
            theirs = [STATUS_OF_FEAST.get(status, status) for status in result["statuses"]]
            statuses[name] = result.get("detailed_statuses", theirs)
            times[name] = result["event_timestamps"]
    freshness = {
        view: Freshness(*(document[part.name] for part in fields(Freshness)))
        for view, document in metadata["freshness"].items()
    }
    return FeatureReply(
        metadata["as_of_ms"], columns, statuses, times, freshness, request_id,
        metadata.get("own_event"),
    )  # fmt: skip


def _times_ms(texts: Sequence[str]) -> list[int | None]:
    return [
        None
        if text == _NEVER
        else (dt.datetime.fromisoformat(text) - _EPOCH) // dt.timedelta(milliseconds=1)
        for text in texts
    ]
