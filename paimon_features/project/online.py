"""``project.online``: reads of the online store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paimon_features.core.errors import RequestError
from paimon_features.core.times.clock import now_ms
from paimon_features.definitions.own_events import EventReads
from paimon_features.project.context import Features, ProjectContext
from paimon_features.serving.reading.fetcher import FeatureFetcher, OnlineResponse


class OnlineFeatures:
    """Features of a project as its online store has them."""

    def __init__(self, project: ProjectContext) -> None:
        self._project = project

    def fetcher(self, features: Features) -> FeatureFetcher:
        """Return a reader of these features.

        Create it once and reuse it: it caches record layouts.
        """
        return FeatureFetcher(
            self._project.name,
            self._project.views_of(self._project.refs(features)),
            self._project.store,
        )

    def get(
        self,
        features: Features,
        entities: Mapping[str, Sequence[Any]] | None = None,
        as_of_ms: int | None = None,
        *,
        request: Mapping[str, Any] | None = None,
        event: Mapping[str, Any] | None = None,
    ) -> OnlineResponse:
        """Features of some entities as of now (or ``as_of_ms``), from the online store.

        ``entities`` maps each key column to the values, all of one length; a service over several
        entities takes the keys of all of them. ``request`` contains the request inputs of its
        interactions: one value for all entities, or a sequence with one for each.

        A service with ``request=`` takes an ``event`` instead: a value for each column of its
        source that the features use. The read is as of the event's time, and counts the event in
        the features of views over the source, once, also where it has been ingested already.
        ``own_event`` of the response says so.

        Raises
        ------
        RequestError
            For entities or an event that do not fit the features.
        """
        reads = self._project.event_reads(features)
        if reads is not None or event is not None:
            return self._get_event(features, reads, entities, as_of_ms, request, event)
        if entities is None:
            raise RequestError("entities are missing: a mapping of each key column to its values")
        as_of_ms = now_ms() if as_of_ms is None else as_of_ms
        return self.fetcher(features).get(self._project.refs(features), entities, as_of_ms, request)

    def _get_event(
        self,
        features: Features,
        reads: EventReads | None,
        entities: object,
        as_of_ms: object,
        request: object,
        event: Mapping[str, Any] | None,
    ) -> OnlineResponse:
        if reads is None:
            raise RequestError("event= is for a service with request=; name such a service")
        if event is None:
            raise RequestError(
                f"the service is read with event=, a row of source {reads.source.name!r}: "
                f"{', '.join(sorted(reads.needed))}"
            )
        others = {"entities": entities, "as_of_ms": as_of_ms, "request": request}
        if given := [name for name, value in others.items() if value is not None]:
            raise RequestError(
                f"event= and {given[0]}= exclude each other: keys, time and request inputs are "
                "those of the event"
            )
        return self.fetcher(features).get_event(self._project.refs(features), reads.parse(event))
