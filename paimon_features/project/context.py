"""What every part of a project builds on: configuration, lake, definitions, stores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from paimon_features.core.configuration.project_config import ProjectConfig, find_root, read_config
from paimon_features.core.errors import GenerationError, PaimonFeaturesError, RequestError
from paimon_features.core.extras import require
from paimon_features.definitions import (
    CompiledTable,
    CompiledView,
    Definitions,
    FeatureService,
    Output,
    Selection,
    load_definitions,
)
from paimon_features.definitions.own_events import EventReads
from paimon_features.online.store import OnlineSettings, OnlineStore, open_store
from paimon_features.online.store.bundles import BundlePlace

if TYPE_CHECKING:
    from paimon_features.lake import Lake
    from paimon_features.lake.side_folder.generations import GenerationRecord
    from paimon_features.offline.reading.pinning import AsOf
    from paimon_features.offline.store import OfflineStore
    from paimon_features.project.monitoring.view_reader import ViewReader

Features = str | FeatureService | Sequence[str]
"""A service, its name, or references ``view:feature`` and names of what is computed of them."""


class ProjectContext:
    """The configuration, lake, definitions and stores of one project folder.

    Lake and definitions are read at first use, so that a serving host that only looks features
    up needs neither the lake nor the packages that read it. Safe to share between threads.
    """

    def __init__(self, config: ProjectConfig) -> None:
        self.config = config
        self.name = config.name
        self.root = config.root

    def __repr__(self) -> str:
        return f"Project({self.name!r}, {str(self.root)!r})"

    @classmethod
    def open(cls, path: str | Path = ".") -> Self:
        """Open the project in ``path`` or the nearest folder above it.

        Raises
        ------
        ConfigurationError
            If there is no ``paimon-features.toml``, or it is invalid.
        """
        return cls(read_config(find_root(Path(path))))

    @cached_property
    def lake(self) -> Lake:
        """The lake with all tables of the project; needs the extra ``lake``."""
        require("pypaimon", "lake", "reading and writing the lake")
        from paimon_features.lake import Lake
        from paimon_features.lake.storage.file_path import note_checkpoints
        from paimon_features.lake.storage.rest_catalog import RestCatalog

        config = self.config
        note_checkpoints(config.flink)
        return Lake.open(
            config.warehouse,
            config.database,
            options=config.lake_options,
            side_folder=config.side_folder,
            rest=None if config.catalog is None else RestCatalog.of(config.catalog),
        )

    @cached_property
    def definitions(self) -> Definitions:
        """The definitions in the definitions file, applied or not.

        A host without that file reads the published bundle, if ``[serve] bundle`` is set.
        """
        place = self.bundle_place
        if place is not None and not self.config.definitions.is_file():
            return place.read().definitions
        return load_definitions(self.config.definitions)

    @property
    def bundle_place(self) -> BundlePlace | None:
        """Where the bundle is published by ``[serve] bundle``; None where it is not set."""
        where = self.config.serve.bundle
        return None if where is None else self.bundle_at(where)

    def bundle_at(self, where: str) -> BundlePlace:
        """Return the place of a bundle: ``online``, or a file."""
        return BundlePlace(self.name, where, lambda: self.store)

    @cached_property
    def online_settings(self) -> OnlineSettings:
        """Connection settings of the online store, from ``[online]`` and the environment."""
        return OnlineSettings.of(self.config.online, root=self.root)

    @cached_property
    def store(self) -> OnlineStore:
        """The online store of the configuration."""
        return open_store(self.online_settings)

    @contextmanager
    def audited(self, kind: str, name: str, details: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Record the change that the block makes in the audit log, also where it fails.

        Yields the details, to which the block may add; it removes all of them where nothing was
        changed, so that there is nothing to record. A change that was made stays made if its
        record cannot be written; the error says so.
        """
        from paimon_features.core.process.identity import identity_of
        from paimon_features.core.times.clock import now_ms
        from paimon_features.lake.side_folder import audit_log

        collected = dict(details)

        def write(error: BaseException | None = None) -> None:
            who = identity_of(self.config.definitions)
            audit_log.record(self.lake, kind, self.name, name, who, now_ms(), collected, error)

        try:
            yield collected
        except Exception as error:
            try:
                write(error)
            except PaimonFeaturesError as second:
                error.add_note(f"nor was it recorded in the audit log: {second}")
            raise
        if not collected:
            return
        try:
            write()
        except PaimonFeaturesError as error:
            error.add_note("the change was made; only its record in the audit log is missing")
            raise

    def view(self, name: str) -> CompiledView:
        """Return the feature view of that name, compiled; UnknownNameError if there is none."""
        return self.definitions.view(name).compiled

    def any_view(self, name: str) -> CompiledView | CompiledTable:
        """Return the feature view or table view of that name, compiled.

        UnknownNameError if none.
        """
        return self.definitions.any_view(name).compiled

    def generation(self, view: CompiledView) -> GenerationRecord:
        """Return the active generation of the view, which all readers read.

        Raises
        ------
        GenerationError
            If the view is not applied, or its definition now means other tiles.
        """
        lake = self.lake
        from paimon_features.lake.side_folder import generations

        record = generations.active(lake, view.name)
        if record is None:
            raise GenerationError(
                f"feature view {view.name!r} is not applied; run 'paimon-features apply'"
            )
        if record.fingerprint != view.fingerprint:
            raise GenerationError(
                f"feature view {view.name!r} is defined for other tiles than generation "
                f"{record.generation} contains; 'paimon-features plan' shows the difference, "
                f"'apply', 'backfill {view.name}' and 'apply --generation {view.name}' replace it"
            )
        return record

    def filled_generation(self, view: CompiledView) -> GenerationRecord:
        """Return the same for readers of tiles; UnfilledError if they were never computed."""
        record = self.generation(view)
        from paimon_features.tiles.consumed import check_filled

        check_filled(self.lake, record, view.source.table)
        return record

    def refs(self, features: Features) -> tuple[Output, ...]:
        """Resolve a service, a view, or texts such as ``view:feature`` to outputs, in order.

        A text without a colon is a service, a view, an interaction or a transformed feature.

        Raises
        ------
        UnknownNameError
            For a name that is not defined.
        RequestError
            For anything else than a service and texts.
        """
        if isinstance(features, FeatureService):
            return self.definitions.outputs(features.items())
        texts: Any = [features] if isinstance(features, str) else features
        if not isinstance(texts, Sequence) or not all(isinstance(text, str) for text in texts):
            raise RequestError(
                f"features={features!r}; expected a FeatureService, its name, or a list of texts "
                "such as 'view:feature'"
            )
        return self.definitions.outputs(
            [item for text in texts for item in self.definitions.resolve(text)]
        )

    def event_reads(self, features: Features) -> EventReads | None:
        """Return how a service with ``request=`` is read; None for anything that has none."""
        service: Any = features
        if isinstance(features, str):
            service = self.definitions.services.get(features)
        if not isinstance(service, FeatureService) or service.request is None:
            return None
        return self.definitions.event_reads(service)

    def entity_rows(self, features: Features, rows: Any) -> Any:
        """Return the rows of a point-in-time read of these features.

        For a service with ``request=`` they are events of its source: those in the lake where
        ``rows`` is None.
        """
        reads = self.event_reads(features)
        if reads is None:
            if rows is None:
                raise RequestError(
                    "entity rows are missing: only a service with request= can be read without "
                    "them, at all events of its source"
                )
            return rows
        from paimon_features.offline.inputs.event_rows import event_rows, stored_events
        from paimon_features.offline.inputs.row_source import row_source

        lake = self.lake
        source = stored_events(lake, reads.source) if rows is None else row_source(rows, lake)
        return event_rows(source, reads)

    def views_of(self, refs: Sequence[Output]) -> list[CompiledView]:
        """Return the feature views that these outputs are read from, each once, in order.

        Raises
        ------
        RequestError
            For a table view, which is not materialized.
        """
        return self.definitions.read_views(Selection.of(refs))

    def view_reader(self, view: str) -> ViewReader:
        """Return the columns of a view's events at the newest snapshots, for fits and
        monitoring."""
        from paimon_features.project.monitoring.view_reader import ViewReader

        definition = self.definitions.view(view)
        return ViewReader(self.lake, definition, self.generation(definition.compiled))

    def pinned(self, as_of: AsOf | str) -> AsOf:
        """``as_of`` itself, or what the training set of that name was built from."""
        from paimon_features.offline.training_set import pins_of

        return pins_of(self.lake, as_of) if isinstance(as_of, str) else as_of

    @cached_property
    def offline(self) -> OfflineStore:
        """Point-in-time reads of the lake."""
        # imported here, as above: a lookup need not load what reads tables
        from paimon_features.offline.store import OfflineStore

        return OfflineStore(self.lake, self.any_view, self.generation)
