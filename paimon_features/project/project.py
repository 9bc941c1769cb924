"""A project: its configuration, definitions, lake and stores, behind one object.

>>> Project.open(".")                                          # doctest: +SKIP
Project('shop', '/home/me/shop')
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from paimon_features.core.errors import PaimonFeaturesError
from paimon_features.core.extras import installed
from paimon_features.core.notebook import ProgressBar
from paimon_features.core.process.callbacks import OnProgress
from paimon_features.core.times.clock import now_ms
from paimon_features.definitions.bundle import Bundle
from paimon_features.project.context import Features, ProjectContext
from paimon_features.project.derived import DerivedViews
from paimon_features.project.fitted import FittedTransformers
from paimon_features.project.jobs import ProjectJobs
from paimon_features.project.models import ProjectModels
from paimon_features.project.online import OnlineFeatures
from paimon_features.serving.reading.fetcher import OnlineResponse

if TYPE_CHECKING:
    import pyarrow as pa

    from paimon_features.definitions import FeatureView
    from paimon_features.offline.feature_file import WrittenFile
    from paimon_features.offline.reading.engine import OfflineEngine
    from paimon_features.offline.reading.pinning import AsOf
    from paimon_features.offline.store import JoinKeywords
    from paimon_features.offline.training_set import TrainingSet
    from paimon_features.project.engines import EngineName, EngineOptions
    from paimon_features.project.lineage import LineageGraph
    from paimon_features.project.planning.plan import ProjectPlan
    from paimon_features.project.planning.reviewed import ReviewedPlan
    from paimon_features.project.preview import Preview


class Project(ProjectContext):
    """One project folder, opened: definitions, plans, and reads of features.

    What is needed less often has accessors: ``online`` (fetchers), ``offline`` (pinned reads),
    ``derived`` (tumbling and session views), ``fitted`` (transformers), ``models`` (model
    versions), ``jobs`` (backfills).
    """

    def _repr_html_(self) -> str:
        from paimon_features.core.documents.redaction import redact
        from paimon_features.core.notebook.markup import Markup, card, facts, table
        from paimon_features.project.lineage import lineage, to_svg

        about = {"folder": str(self.root), "lake": redact(self.config.warehouse)}
        defined = [
            (kind.replace("_", " "), name, item.description, item.owner)
            for kind, items in self.definitions.by_kind().items()
            for name, item in items.items()
        ]
        return card(
            f"Project {self.name}",
            facts(about),
            table(defined, ("kind", "name", "description", "owner")),
            Markup(to_svg(lineage(self.definitions), self.name)),
        )

    # -- definitions -----------------------------------------------------------------------

    def plan(self) -> ProjectPlan:
        """Return what ``apply`` would change.

        Raises
        ------
        ConfigurationError
            If the database belongs to another project.
        """
        lake = self.lake
        from paimon_features.lake.database_owner import check_owner
        from paimon_features.project.planning.plan import make_plan

        check_owner(lake, self.name)
        return make_plan(lake, self.definitions)

    def apply(
        self, reviewed: ReviewedPlan | None = None, *, take_over: bool = False
    ) -> ProjectPlan:
        """Create tables and generations for the definitions, and write the registry.

        Then the bundle is published, where ``[serve] bundle`` says so; see ``publish_bundle``. With
        ``reviewed`` only that plan is applied. ``take_over`` makes a database this project's that
        belonged to another one.

        Raises
        ------
        PlanMovedError
            If the reviewed plan is not what would be applied now; nothing is changed then.
        ConfigurationError
            If the database belongs to another project.
        """
        lake = self.lake
        from paimon_features.core.documents.published_document import document_digest
        from paimon_features.lake import database_owner
        from paimon_features.project.planning.plan import apply_plan
        from paimon_features.project.planning.reviewed import audited_changes

        def check(plan: ProjectPlan) -> None:
            if reviewed is not None:
                reviewed.check(plan, self.name, lake.database)
            with self.audited("take_over", lake.database, {"from": before}) as details:
                if not database_owner.claim(lake, self.name, take_over=take_over) or not before:
                    details.clear()

        definitions = self.definitions
        before = database_owner.owner(lake)
        if not take_over:
            database_owner.check_owner(lake, self.name)
        with self.audited("apply", "", {"reviewed": reviewed is not None}) as details:
            plan = apply_plan(lake, definitions, now_ms(), check)
            details |= {"digest": document_digest(plan.state), **audited_changes(plan)}
            if plan.is_empty:
                details.clear()
        self.publish_bundle()
        return plan

    def bundle(self) -> Bundle:
        """Return what serving hosts need of the project, with the active generations of its
        views."""
        active: dict[str, int] = {}
        if installed("pypaimon"):
            lake = self.lake
            from paimon_features.lake.side_folder import generations

            records = ((view, generations.active(lake, view)) for view in self.definitions.views)
            active = {view: record.generation for view, record in records if record is not None}
        return Bundle(self.name, self.definitions, now_ms(), active)

    def publish_bundle(self, where: str | None = None) -> int | None:
        """Publish the bundle to ``online`` or a file, by default to ``[serve] bundle``.

        Returns its size in bytes; None, and publishes nothing, where neither is given.

        Raises
        ------
        DefinitionError
            For definitions that a bundle cannot contain: those with classes of one's own.
        OnlineStoreError, ConfigurationError
            If it cannot be written; what was applied stays applied.
        """
        place = self.bundle_place if where is None else self.bundle_at(where)
        if place is None:
            return None
        try:
            return place.publish(self.bundle())
        except PaimonFeaturesError as error:
            error.add_note(
                "the bundle was not published; servers keep the one that they have. "
                "'paimon-features apply --bundle' publishes it"
            )
            raise

    # -- looking -----------------------------------------------------------------------------

    def preview(
        self,
        view: str | FeatureView,
        entity: Any = None,
        as_of: int | str | datetime | None = None,
        *,
        events: Any = None,
    ) -> Preview:
        """Return a view's values for one entity, and which events count in which tile and window.

        A notebook shows the values, a time line, the edges of each window with the events next to
        them, and the values of a few more entities. Nothing needs to be applied or computed:
        values come straight from events. All events within the view's retention are read.

        Parameters
        ----------
        view
            A view's name, or a definition, applied or not.
        entity
            The keys by name, or the value of the only key; by default the entity with most events.
        as_of
            The time of the read: UTC ms, a datetime, or a text such as ``"2011-12-01 08:00"``
            (UTC unless it says otherwise). By default just after the newest event. Events at or
            after it do not count; those that exist are shown.
        events
            An Arrow table, a data frame or the path of a Parquet file instead of the lake's
            events.

        Raises
        ------
        RequestError
            For an entity, a time or events that do not fit the view, or without any events.
        UnknownNameError
            For a name that is not defined, or a source that is not applied.
        """
        from paimon_features.project.preview.loading import load_events
        from paimon_features.project.preview.preview import preview_events

        definition = self.definitions.view(view) if isinstance(view, str) else view
        lake = self.lake if events is None else None
        return preview_events(
            definition, load_events(lake, definition, as_of, events), entity, as_of
        )

    def lineage(self) -> LineageGraph:
        """Return what is derived from what, down to training sets; a notebook draws it."""
        from paimon_features.project.lineage import lineage

        return lineage(self.definitions, self.lake)

    # -- accessors -------------------------------------------------------------------------

    @property
    def online(self) -> OnlineFeatures:
        """Reads of the online store."""
        return OnlineFeatures(self)

    @property
    def derived(self) -> DerivedViews:
        """The windows of tumbling and session views."""
        return DerivedViews(self)

    @property
    def fitted(self) -> FittedTransformers:
        """Fitted transformers: fit, save, load, export."""
        return FittedTransformers(self)

    @property
    def models(self) -> ProjectModels:
        """Model versions: list, register, promote, publish."""
        return ProjectModels(self)

    @property
    def jobs(self) -> ProjectJobs:
        """Backfills and rollups."""
        return ProjectJobs(self)

    # -- reading ---------------------------------------------------------------------------

    def get_online_features(
        self,
        features: Features,
        entities: Mapping[str, Sequence[Any]] | None = None,
        as_of_ms: int | None = None,
        *,
        request: Mapping[str, Any] | None = None,
        event: Mapping[str, Any] | None = None,
    ) -> OnlineResponse:
        """Features of entities as of now (or ``as_of_ms``), or of an event; see
        ``OnlineFeatures.get``."""
        return self.online.get(features, entities, as_of_ms, request=request, event=event)

    def get_historical_features(
        self,
        features: Features,
        rows: Any = None,
        *,
        as_of: AsOf | str = None,
        engine: EngineName | EngineOptions = "local",
        **options: Unpack[JoinKeywords],
    ) -> pa.Table:
        """Features of entity rows, each at its own ``event_time_ms``; see ``OfflineStore``.

        Rows of a service with ``request=`` are events of its source, by default all in the lake;
        each is read as of its time and counts itself.

        ``as_of`` may also be the name of a training set: its exact sources are read again. With
        ``engine="flink"`` a batch job joins the rows of each feature view in a JVM of this
        process; ``EngineOptions("flink", cluster="host:port", on_message=print)`` runs it on a
        session cluster and reports each stage. Values are the same, sums of floats within the
        tolerance of the docs.
        """
        return self.offline.get_historical_features(
            self.refs(features),
            self.entity_rows(features, rows),
            as_of=self.pinned(as_of),
            engine=self._engine(engine),
            **options,
        )

    def stream_historical_features(
        self,
        features: Features,
        rows: Any = None,
        *,
        as_of: AsOf | str = None,
        engine: EngineName | EngineOptions = "local",
        **options: Unpack[JoinKeywords],
    ) -> pa.RecordBatchReader:
        """Return the same as a stream of batches, for rows or results larger than memory."""
        return self.offline.stream_historical_features(
            self.refs(features),
            self.entity_rows(features, rows),
            as_of=self.pinned(as_of),
            engine=self._engine(engine),
            **options,
        )

    def write_historical_features(
        self,
        features: Features,
        rows: Any,
        path: str | Path,
        *,
        as_of: AsOf | str = None,
        engine: EngineName | EngineOptions = "local",
        **options: Unpack[JoinKeywords],
    ) -> WrittenFile:
        """Return the same as a file (.parquet, .csv, .csv.gz, .arrow, .feather), which appears when
        it is complete."""
        return self.offline.write_historical_features(
            self.refs(features),
            self.entity_rows(features, rows),
            Path(path),
            as_of=self.pinned(as_of),
            engine=self._engine(engine),
            **options,
        )

    def build_training_set(
        self,
        name: str,
        features: Features,
        rows: Any = None,
        *,
        label: str | None = None,
        as_of: AsOf | str = None,
        replace: bool = False,
        progress: OnProgress | None = None,
        memory_mb: float | None = None,
        spill_folder: str | None = None,
        engine: EngineName | EngineOptions = "local",
    ) -> TrainingSet:
        """Write the historical features of ``rows`` as the table ``training_<name>``."""
        from paimon_features.offline.training_set import build_training_set

        with ProgressBar(f"training set {name}") as bar:
            return build_training_set(
                self.offline,
                name,
                self.refs(features),
                self.entity_rows(features, rows),
                label=label,
                as_of=self.pinned(as_of),
                replace=replace,
                progress=progress or bar,
                memory_mb=memory_mb,
                spill_folder=spill_folder,
                engine=self._engine(engine),
            )

    def append_training_rows(
        self,
        name: str,
        features: Features,
        rows: Any = None,
        *,
        as_of: AsOf | str = None,
        progress: OnProgress | None = None,
        memory_mb: float | None = None,
        spill_folder: str | None = None,
        engine: EngineName | EngineOptions = "local",
    ) -> TrainingSet:
        """Append more ``rows`` with their historical features to the table ``training_<name>``."""
        from paimon_features.offline.training_set import append_training_rows

        with ProgressBar(f"training set {name}") as bar:
            return append_training_rows(
                self.offline,
                name,
                self.refs(features),
                self.entity_rows(features, rows),
                as_of=self.pinned(as_of),
                progress=progress or bar,
                memory_mb=memory_mb,
                spill_folder=spill_folder,
                engine=self._engine(engine),
            )

    def sql(
        self,
        statement: str,
        parameters: Sequence[Any] | Mapping[str, Any] | None = None,
        *,
        memory_mb: float = 1_024.0,
    ) -> pa.RecordBatchReader:
        """Return the rows of a SELECT over the tables of the lake; see ``offline.local.sql.query``.

        ``project.sql("SELECT ...").read_all()`` is an Arrow table, ``.read_pandas()`` a DataFrame.
        It needs the extra ``local``.
        """
        lake = self.lake
        from paimon_features.offline.local.sql import query

        return query(lake, statement, parameters, memory_mb=memory_mb)

    def _engine(self, engine: EngineName | EngineOptions) -> OfflineEngine | None:
        from paimon_features.project.engines import history_engine

        return history_engine(engine, self.config)
