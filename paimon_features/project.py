"""A project: its configuration, definitions, lake and stores, behind one object.

>>> Project.open(".")                                          # doctest: +SKIP
Project('shop', '/home/me/shop')
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from paimon_features import clock
from paimon_features.callbacks import OnMessage, OnProgress, ignore_progress
from paimon_features.clock import now_ms
from paimon_features.config import ProjectConfig, find_root, read_config
from paimon_features.definitions import (
    CompiledTable,
    CompiledView,
    Definitions,
    FeatureService,
    Output,
    Selection,
    load_definitions,
)
from paimon_features.errors import GenerationError, RequestError
from paimon_features.online import OnlineSettings, OnlineStore, open_store
from paimon_features.planning.plan import ProjectPlan, apply_plan, make_plan
from paimon_features.serving.fetcher import FeatureFetcher, OnlineResponse
from paimon_features.tables import Lake, generations
from paimon_features.tables.generations import GenerationRecord
from paimon_features.transformers.fitted_version import FOLDER

if TYPE_CHECKING:
    from paimon_features.job_control.backfill import TileJobResult
    from paimon_features.monitoring.fitting import Fit
    from paimon_features.monitoring.view_reader import ViewReader
    from paimon_features.offline.derived_rows import DerivedRead
    from paimon_features.offline.derived_table import DerivedRefresh
    from paimon_features.offline.parquet_file import WrittenFile
    from paimon_features.offline.reading.engine import OfflineEngine
    from paimon_features.offline.reading.pinning import AsOf
    from paimon_features.offline.rollup import RollupSummary
    from paimon_features.offline.store import OfflineStore
    from paimon_features.offline.training_set import TrainingSet
    from paimon_features.transformers import (
        FeatureTransformer,
        FittedVersion,
        StoredTransformer,
    )

Engine = Literal["local", "flink"]
"""Where historical features are computed: in this process, or by a Flink batch job."""

Features = str | FeatureService | Sequence[str]
"""A service, its name, or references ``view:feature`` and names of what is computed of them."""


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
        config = self.config
        return Lake.open(
            config.warehouse,
            config.database,
            options=config.lake_options,
            side_folder=config.side_folder,
        )

    @cached_property
    def definitions(self) -> Definitions:
        """What the definitions file says now, applied or not."""
        return load_definitions(self.config.definitions)

    @cached_property
    def online_settings(self) -> OnlineSettings:
        """How to reach the online store: ``[online]`` and the environment, checked."""
        return OnlineSettings.of(self.config.online, root=self.root)

    @cached_property
    def store(self) -> OnlineStore:
        """The online store of the configuration."""
        return open_store(self.online_settings)

    # -- definitions and generations -----------------------------------------------------

    def plan(self) -> ProjectPlan:
        """What ``apply`` would do."""
        return make_plan(self.lake, self.definitions)

    def apply(self) -> ProjectPlan:
        """Create tables and generations for the definitions, and write the registry."""
        return apply_plan(self.lake, self.definitions, now_ms())

    def view(self, name: str) -> CompiledView:
        """The feature view of that name, compiled; UnknownNameError if there is none."""
        return self.definitions.view(name).compiled

    def any_view(self, name: str) -> CompiledView | CompiledTable:
        """The feature view or table view of that name, compiled; UnknownNameError if none."""
        return self.definitions.any_view(name).compiled

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

    def refs(self, features: Features) -> tuple[Output, ...]:
        """Spell a service, a view, or texts such as ``view:feature`` out, in order.

        A text without a colon is a service, a view, an interaction or a transformed feature.

        Raises
        ------
        UnknownNameError
            For a name that is not defined.
        """
        if isinstance(features, FeatureService):
            return self.definitions.outputs(features.items())
        texts = [features] if isinstance(features, str) else list(features)
        return self.definitions.outputs(
            [item for text in texts for item in self.definitions.resolve(text)]
        )

    def views_of(self, refs: Sequence[Output]) -> list[CompiledView]:
        """The feature views that are read for the outputs, each once, in order.

        Raises
        ------
        RequestError
            For a table view, which is not materialized.
        """
        return self.definitions.read_views(Selection.of(refs))

    def backfill(
        self,
        view: str,
        *,
        engine: Literal["local", "flink"] = "local",
        generation: int | None = None,
        rebuild: bool = False,
        **options: Any,
    ) -> TileJobResult:
        """Compute the tiles of all past events of a view in one commit, as the command does.

        ``local`` is DuckDB in this process: no Java, and ``memory="4GB"`` and ``threads=`` bound
        it. ``flink`` takes ``cluster="host:port"``. Both take ``on_message=`` (a line of text
        for each
        decision), ``local`` also ``report=`` (progress). ``rebuild`` empties the generation first.

        Raises
        ------
        OwnershipError, GenerationError, JobError
            If the tables belong to someone else, are not empty, or the computation fails.
        MissingExtraError
            If the engine is not installed.
        """
        from paimon_features.engines import resolve_engine
        from paimon_features.job_control.target import TileTarget

        target = TileTarget.of(self, view, generation)
        return resolve_engine(engine).backfill(target, rebuild=rebuild, **options)

    def roll_up(self, view: str, progress: OnProgress = ignore_progress) -> RollupSummary:
        """Make the rollups of a view's tiles that are missing, so that lifetimes stay cheap.

        ``progress`` is told the units looked at, and all of them. See ``offline.rollup``.

        Raises
        ------
        GenerationError
            As ``generation`` does.
        OwnershipError
            If another process rolls its tiles up.
        """
        from paimon_features.offline.rollup import roll_up

        compiled = self.view(view)
        return roll_up(self.lake, compiled, self.generation(compiled), now_ms(), progress)

    # -- reading -------------------------------------------------------------------------

    @cached_property
    def offline(self) -> OfflineStore:
        """Point-in-time reads of the lake."""
        # imported here, as below: a lookup need not load what reads tables
        from paimon_features.offline.store import OfflineStore

        return OfflineStore(self.lake, self.any_view, self.generation)

    def fetcher(self, features: Features) -> FeatureFetcher:
        """A reader of the online store for these features; keep it, it caches layouts."""
        return FeatureFetcher(self.name, self.views_of(self.refs(features)), self.store)

    def get_online_features(
        self,
        features: Features,
        entities: Mapping[str, Sequence[Any]],
        now_ms: int | None = None,
        *,
        request: Mapping[str, Any] | None = None,
    ) -> OnlineResponse:
        """Features of some entities as of now (or ``now_ms``), from the online store.

        ``entities`` maps each key column to the values, all of one length; a service over several
        entities takes the keys of all of them. ``request`` holds the request inputs of its
        interactions: one value for all entities, or a sequence with one for each.
        """
        as_of_ms = clock.now_ms() if now_ms is None else now_ms
        return self.fetcher(features).get(self.refs(features), entities, as_of_ms, request)

    def get_historical_features(
        self,
        features: Features,
        rows: Any,
        *,
        as_of: AsOf | str = None,
        engine: Engine = "local",
        cluster: str | None = None,
        on_message: OnMessage | None = None,
        **options: Any,
    ) -> pa.Table:
        """Features of entity rows, each at its own ``event_time_ms``; see ``OfflineStore``.

        ``as_of`` may also be the name of a training set: exactly what it was made from is read.
        With ``engine="flink"`` a batch job joins the rows of each feature view, in a JVM of this
        process or on the session cluster ``cluster="host:port"``; ``on_message`` gets a line of
        text at
        each stage. Values are the same, sums of floats within the tolerance of the docs.
        """
        chosen = self._engine(engine, cluster, on_message)
        return self.offline.get_historical_features(
            self.refs(features), rows, as_of=self._pins(as_of), engine=chosen, **options
        )

    def stream_historical_features(
        self,
        features: Features,
        rows: Any,
        *,
        as_of: AsOf | str = None,
        engine: Engine = "local",
        cluster: str | None = None,
        on_message: OnMessage | None = None,
        **options: Any,
    ) -> pa.RecordBatchReader:
        """The same as a stream of batches, for rows or results larger than memory."""
        chosen = self._engine(engine, cluster, on_message)
        return self.offline.stream_historical_features(
            self.refs(features), rows, as_of=self._pins(as_of), engine=chosen, **options
        )

    def write_historical_features(
        self,
        features: Features,
        rows: Any,
        path: str | Path,
        *,
        as_of: AsOf | str = None,
        engine: Engine = "local",
        cluster: str | None = None,
        on_message: OnMessage | None = None,
        **options: Any,
    ) -> WrittenFile:
        """The same as a Parquet file, which is there when it is complete, or not at all."""
        chosen = self._engine(engine, cluster, on_message)
        return self.offline.write_historical_features(
            self.refs(features),
            rows,
            Path(path),
            as_of=self._pins(as_of),
            engine=chosen,
            **options,
        )

    def build_training_set(
        self,
        name: str,
        features: Features,
        rows: Any,
        *,
        label: str | None = None,
        as_of: AsOf | str = None,
        replace: bool = False,
        progress: OnProgress | None = None,
        memory_mb: float | None = None,
        spill_folder: str | None = None,
        engine: Engine = "local",
        cluster: str | None = None,
        on_message: OnMessage | None = None,
    ) -> TrainingSet:
        """Write the historical features of ``rows`` as the table ``training_<name>``."""
        from paimon_features.offline.training_set import build_training_set

        return build_training_set(
            self.offline,
            name,
            self.refs(features),
            rows,
            label=label,
            as_of=self._pins(as_of),
            replace=replace,
            progress=progress,
            memory_mb=memory_mb,
            spill_folder=spill_folder,
            engine=self._engine(engine, cluster, on_message),
        )

    def _engine(
        self, engine: Engine, cluster: str | None, on_message: OnMessage | None
    ) -> OfflineEngine | None:
        from paimon_features.engines import EngineOptions, history_engine

        return history_engine(EngineOptions(engine, cluster, on_message), self.config)

    # -- fitted transformers -------------------------------------------------------------

    @property
    def fitted_folder(self) -> Path:
        """Where exported versions of fitted transformers are: beside the definitions file."""
        return self.config.definitions.parent / FOLDER

    def save_fitted(
        self,
        name: str,
        transformer: FeatureTransformer,
        *,
        table: str | None = None,
        snapshot_id: int | None = None,
    ) -> int:
        """Keep a fitted transformer in the table ``fitted_<name>``; the number of its version.

        ``table`` is the table of the lake that it was fitted on, ``training_churn`` say, at
        ``snapshot_id``, by default its newest one. Saving the same again gives the same version.

        Raises
        ------
        TransformError
            If it is not fitted, or cannot be stored.
        UnknownNameError, SnapshotExpiredError
            If there is no such table or snapshot.
        OwnershipError
            If another process is saving a version of it.
        """
        from paimon_features.tables import latest_snapshot, snapshot
        from paimon_features.tables.fitted import save_fitted

        fitted_on: dict[str, Any] = {}
        if table is not None:
            self.lake.table(table)  # UnknownNameError where there is none
            read = latest_snapshot(self.lake, table)
            if snapshot_id is not None:
                read = snapshot(self.lake, table, snapshot_id)
            fitted_on = {"table": table, "snapshot_id": None if read is None else read.id}
        elif snapshot_id is not None:
            raise RequestError(f"snapshot_id={snapshot_id} goes with table=, the table it is of")
        saved = save_fitted(self.lake, name, transformer, fitted_on=fitted_on, now_ms=now_ms())
        return saved.version

    def fitted(self, name: str, version: int | None = None) -> FittedVersion:
        """A version of a fitted transformer from the lake, the newest by default.

        Raises
        ------
        UnknownNameError
            If there is no such transformer or version.
        """
        from paimon_features.tables.fitted import load_fitted

        return load_fitted(self.lake, name, version)

    def export_fitted(self, name: str, version: int | None = None) -> Path:
        """Write a version as ``fitted/<name>/v<version>.json``, which definitions read.

        Raises
        ------
        UnknownNameError
            If there is no such transformer or version.
        DefinitionError
            If the file is there with another content.
        """
        from paimon_features.transformers.fitted_version import write_version

        return write_version(self.fitted_folder, self.fitted(name, version))

    def fit(self, name: str, transformer: StoredTransformer, view: str, **of: Any) -> FittedVersion:
        """Fit on a view and keep it as the next version of ``name``; see ``fit_view``.

        Where the newest version learnt the same from the same data, that one is given.
        """
        from paimon_features.monitoring.refits import save_fit

        return save_fit(self.lake, name, self.fit_view(transformer, view, **of), now_ms())[0]

    def fit_view(
        self,
        transformer: StoredTransformer,
        view: str,
        *,
        columns: Sequence[str] | None = None,
        features: Sequence[str] | None = None,
        rows: Any = None,
        as_of_ms: int | None = None,
        origin: Literal["tiles", "events"] | None = None,
        progress: OnProgress = ignore_progress,
    ) -> Fit:
        """Fit a transformer on columns of a view's events, or on its features.

        Parameters
        ----------
        columns
            Of the source, or derived: all events count that enter the view's tiles.
        features
            Of the view, of all entities that are known at ``as_of_ms`` (by default just after
            the newest event), or at the entity ``rows``, as for ``get_historical_features``.
        as_of_ms
            Only events before this time (exclusive), UTC ms.
        origin
            ``tiles`` or ``events``; by default tiles where they hold what is learnt from.

        Raises
        ------
        RequestError
            Unless either columns or features are given; where tiles do not hold what is needed.
        TransformError
            If the values cannot be learnt from, or are ILL_CONDITIONED.
        """
        from paimon_features.monitoring import feature_values as points
        from paimon_features.monitoring import fitting

        reader = self.view_reader(view)
        if (columns is None) == (features is None):
            raise RequestError("a fit is of either columns= or features=")
        if columns is not None:
            return fitting.fit_columns(
                reader, transformer, columns, until_ms=as_of_ms, origin=origin, progress=progress
            )
        told: dict[str, Any]
        if rows is not None:
            told = {"rows": rows if isinstance(rows, str) else type(rows).__name__}
            asked: Any = points.asked_rows(self.lake, reader.view, rows)
        else:
            newest = points.newest_event_ms
            at = newest(self.lake, reader.tiles) + 1 if as_of_ms is None else as_of_ms
            told = {"at_ms": at}
            asked = points.entity_rows(self.lake, reader.view, reader.tiles, at)
        wanted = list(features or ())
        found = points.feature_rows(self.offline, reader.view, wanted, asked, progress)
        return fitting.fit_features(transformer, view, wanted, *found, told)

    def view_reader(self, view: str) -> ViewReader:
        """The columns of a view's events at the newest snapshots, for fits and monitoring."""
        from paimon_features.monitoring.view_reader import ViewReader

        definition = self.definitions.view(view)
        return ViewReader(self.lake, definition, self.generation(definition.compiled))

    # -- derived views -------------------------------------------------------------------

    def derive(self, name: str, **options: Any) -> pa.Table:
        """The rows of a tumbling or session view, in the order of start, then keys.

        Parameters
        ----------
        from_ms, to_ms
            Which starts of windows, UTC ms: from (inclusive), to (exclusive); all by default.
        include_open
            Also windows that end after the newest event in the tiles, and so can still grow.
        as_of
            Only tiles that had been committed by then, see ``OfflineStore``.
        memory_mb
            About how much memory the tiles that are worked on take, 1024 by default.

        Raises
        ------
        UnknownNameError, GenerationError
            For a derived view that is not defined, a feature view that is not applied.
        SnapshotExpiredError
            If what had been committed by ``as_of`` can no longer be read.
        """
        return self._derived(name, **options).table()

    def stream_derived(self, name: str, **options: Any) -> pa.RecordBatchReader:
        """The rows of ``derive``, some days at a time, computed as the stream is read."""
        return self._derived(name, **options).reader()

    def write_derived(self, name: str, path: str | Path, **options: Any) -> WrittenFile:
        """The rows of ``derive`` as a Parquet file, which is there when it is complete."""
        from paimon_features.offline.parquet_file import WrittenFile, write_tables

        read = self._derived(name, **options)
        rows = write_tables(read.schema, read.tables(), Path(path))
        return WrittenFile(
            Path(path), rows, tuple(f.name for f in read.derived.features), (read.pin,)
        )

    def refresh_derived(
        self, name: str, *, replace: bool = False, **options: Any
    ) -> DerivedRefresh:
        """Bring the table ``features_<name>`` up to date; see ``derived_table.refresh``."""
        from paimon_features.offline.derived_table import refresh

        derived = self.definitions.derived_view(name).compiled
        record = self.generation(self.view(derived.view.name))
        return refresh(self.lake, derived, record, replace=replace, **options)

    def _derived(self, name: str, *, as_of: AsOf | str = None, **options: Any) -> DerivedRead:
        from paimon_features.offline.derived_rows import DerivedRead

        derived = self.definitions.derived_view(name).compiled
        record = self.generation(self.view(derived.view.name))
        return DerivedRead(self.lake, derived, record, as_of=self._pins(as_of), **options)

    def _pins(self, as_of: AsOf | str) -> AsOf:
        from paimon_features.offline.training_set import pins_of

        return pins_of(self.lake, as_of) if isinstance(as_of, str) else as_of
