"""A project: its configuration, definitions, lake and stores, behind one object.

>>> Project.open(".")                                          # doctest: +SKIP
Project('shop', '/home/me/shop')
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from paimon_features.config import ProjectConfig, find_root, read_config
from paimon_features.definitions import (
    CompiledView,
    Definitions,
    FeatureRef,
    FeatureService,
    load_definitions,
)
from paimon_features.errors import GenerationError, UnknownNameError
from paimon_features.online.store import OnlineStore
from paimon_features.planning import Plan, apply_plan, make_plan
from paimon_features.serving.fetcher import FeatureFetcher, OnlineResponse
from paimon_features.tables import Lake, generations
from paimon_features.tables.generations import GenerationRecord

if TYPE_CHECKING:
    from paimon_features.offline.store import OfflineStore
    from paimon_features.offline.training_set import TrainingSet

Features = str | FeatureService | Sequence[str]
"""A service, its name, or references ``view:feature``."""


class Project:
    """One project folder, opened.

    Lake and definitions are read when they are first needed, so that a serving host that only
    looks up need not see the lake's history. Safe to share between threads for reading.
    """

    def __init__(self, config: ProjectConfig) -> None:
        self.config = config
        self.name = config.name
        self.root = config.root

    def __repr__(self) -> str:
        return f"Project({self.name!r}, {str(self.root)!r})"

    @classmethod
    def open(cls, path: str | Path = ".") -> Project:
        """Open the project in ``path`` or the nearest folder above it.

        Raises
        ------
        ConfigurationError
            If there is no ``paimon-features.toml``, or it is not as it has to be.
        """
        return cls(read_config(find_root(Path(path))))

    @cached_property
    def lake(self) -> Lake:
        """The lake in which all tables of the project live."""
        return Lake.open(self.config.warehouse, self.config.database)

    @cached_property
    def definitions(self) -> Definitions:
        """What the definitions file says now, applied or not."""
        return load_definitions(self.config.definitions)

    @cached_property
    def store(self) -> OnlineStore:
        """The online store of the configuration."""
        from paimon_features.online.redis_store import RedisStore

        return RedisStore.connect(self.config.online_url)

    # -- definitions and generations -----------------------------------------------------

    def plan(self) -> Plan:
        """What ``apply`` would do."""
        return make_plan(self.lake, self.definitions)

    def apply(self) -> Plan:
        """Create tables and generations for the definitions, and write the registry."""
        return apply_plan(self.lake, self.definitions, now_ms())

    def view(self, name: str) -> CompiledView:
        """The feature view of that name, compiled; UnknownNameError if there is none."""
        return self.definitions.view(name).compiled

    def generation(self, view: CompiledView) -> GenerationRecord:
        """The generation of the view that is read.

        Raises
        ------
        GenerationError
            If the view was not applied, or its definition now means other tiles than those.
        """
        record = generations.active(self.lake, view.name)
        if record is None:
            raise GenerationError(
                f"feature view {view.name!r} is not applied; run 'paimon-features apply'"
            )
        if record.fingerprint != view.fingerprint:
            raise GenerationError(
                f"feature view {view.name!r} is defined for other tiles than generation "
                f"{record.generation} holds; 'paimon-features plan' shows the difference, "
                f"'apply', 'backfill {view.name}' and 'switch {view.name}' bring the new one in"
            )
        return record

    def refs(self, features: Features) -> tuple[FeatureRef, ...]:
        """Spell a service, its name, or ``view:feature`` texts out, in order.

        Raises
        ------
        UnknownNameError
            For a service, view or feature that is not defined.
        """
        if isinstance(features, FeatureService):
            return features.refs()
        if isinstance(features, str) and ":" not in features:
            if features in self.definitions.views and features not in self.definitions.services:
                return tuple(FeatureRef(features, f.name) for f in self.view(features).features)
            return self.definitions.service(features).refs()
        texts = [features] if isinstance(features, str) else list(features)
        refs = tuple(FeatureRef.parse(text) for text in texts)
        for ref in refs:
            view = self.view(ref.view)
            if view.feature(ref.feature) is None:
                known = [f"{view.name}:{f.name}" for f in view.features]
                raise UnknownNameError.of("feature", f"{ref.view}:{ref.feature}", known)
        return refs

    def views_of(self, refs: Sequence[FeatureRef]) -> list[CompiledView]:
        """The views that the references name, each once, in order."""
        return [self.view(name) for name in dict.fromkeys(ref.view for ref in refs)]

    # -- reading -------------------------------------------------------------------------

    @cached_property
    def offline(self) -> OfflineStore:
        """Point-in-time reads of the lake."""
        # imported here, as below: a lookup need not load what reads tables
        from paimon_features.offline.store import OfflineStore

        return OfflineStore(self.lake, self.view, self.generation)

    def fetcher(self, features: Features) -> FeatureFetcher:
        """A reader of the online store for these features; keep it, it caches layouts."""
        return FeatureFetcher(self.name, self.views_of(self.refs(features)), self.store)

    def get_online_features(
        self,
        features: Features,
        entities: Mapping[str, Sequence[Any]],
        now_ms: int | None = None,
    ) -> OnlineResponse:
        """Features of some entities as of now (or ``now_ms``), from the online store.

        ``entities`` maps each key column to the values, all of one length.
        """
        q_ms = _clock() if now_ms is None else now_ms
        return self.fetcher(features).get(self.refs(features), entities, q_ms)

    def get_historical_features(
        self, features: Features, rows: Any, *, as_of: int | None = None, **options: Any
    ) -> pa.Table:
        """Features of entity rows, each at its own ``event_time_ms``; see ``OfflineStore``."""
        return self.offline.get_historical_features(
            self.refs(features), rows, as_of=as_of, **options
        )

    def build_training_set(
        self,
        name: str,
        features: Features,
        rows: Any,
        *,
        label: str | None = None,
        as_of: int | None = None,
        replace: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> TrainingSet:
        """Write the historical features of ``rows`` as the table ``training_<name>``."""
        from paimon_features.offline.training_set import build_training_set

        return build_training_set(
            self.offline,
            name,
            self.refs(features),
            rows,
            label=label,
            as_of=as_of,
            replace=replace,
            progress=progress,
        )


def now_ms() -> int:
    """The clock: UTC milliseconds since 1970."""
    return time.time_ns() // 1_000_000


_clock = now_ms
