"""``project.online``: reads of the online store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paimon_features.core.times.clock import now_ms
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
        entities: Mapping[str, Sequence[Any]],
        as_of_ms: int | None = None,
        *,
        request: Mapping[str, Any] | None = None,
    ) -> OnlineResponse:
        """Features of some entities as of now (or ``as_of_ms``), from the online store.

        ``entities`` maps each key column to the values, all of one length; a service over several
        entities takes the keys of all of them. ``request`` contains the request inputs of its
        interactions: one value for all entities, or a sequence with one for each.
        """
        as_of_ms = now_ms() if as_of_ms is None else as_of_ms
        return self.fetcher(features).get(self._project.refs(features), entities, as_of_ms, request)
